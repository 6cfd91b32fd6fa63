"""What holds for connections of ours holds for those of Kafka's clients: quotas, idleness, counts,
nodes that do not serve.

Method: a node on real sockets and a bare client, on a clock that the test moves.
"""

import gc
import logging
import struct

import pytest
import trio
from brokers import GatedDisk, batch, client_of, new_node, one_of_several, quiet, settings
from kafkakit import both, kafka_client, records, request_bytes
from patience import PATIENCE_S
from test_kafka_records import fetch, part_of, produce, rows
from test_throttle import BURST, LIMIT, limited

from hightide.protocol import quota_messages as k
from hightide_broker import config_keys as keys
from hightide_broker.simulation.disk import SimDisk


async def test_who_sends_too_fast_is_told_and_not_read_on(mock_clock):
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as client:
        await ours.create("t")
        await limited(node, k.PRODUCER_BYTE_RATE, client_id="kit")
        await produce(client, 9, rows(b"x" * (BURST - 1000)))
        sent = rows(b"x" * 5 * LIMIT)
        part = {"name": "t", "partition_data": [{"index": 0, "records": records(sent)}]}
        answer = await client.call("produce", 9, acks=-1, timeout_ms=1000, topic_data=[part])
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
        assert 4_900 < answer["throttle_time_ms"] < 5_200
        asked = await client.send("metadata", 0, topics=[])
        heard = trio.Event()

        async def hear():
            assert (await client.receive("metadata", 0))[0] == asked
            heard.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            for jump, is_heard in ((4.0, False), (1.5, True)):
                mock_clock.jump(jump)
                await quiet()
                assert heard.is_set() is is_heard


async def test_a_wait_that_has_no_place_in_an_answer_is_told_as_the_longest_that_has(mock_clock):
    """With a byte a second, as somebody is locked out: what was stored is acknowledged."""
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as client:
        await ours.create("t", partitions=3)
        wish = k.QuotaSetting(key=k.PRODUCER_BYTE_RATE, value=1, client_id="kit")
        await node.change(k.AlterClientQuotasRequest(quotas=[wish]))
        data = records(rows(bytes(900_000)))
        parts = [{"index": number, "records": data} for number in range(3)]
        topic = {"name": "t", "partition_data": parts}
        answer = await client.call("produce", 9, acks=-1, timeout_ms=1000, topic_data=[topic])
        found = answer["responses"][0]["partition_responses"]
        assert [part["error_code"] for part in found] == [0, 0, 0]
        assert answer["throttle_time_ms"] == 2**31 - 1


async def test_who_reads_too_fast_gets_little_and_is_told(mock_clock):
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as client:
        await ours.create("t")
        for _ in range(4):
            await ours.produce(bytes(2 * LIMIT))
        await limited(node, k.CONSUMER_BYTE_RATE, client_id="kit")
        told = []
        for _ in range(3):
            mock_clock.jump(0.1)
            answer = await fetch(client, 11)
            assert len(part_of(answer)["records"]) < 3 * LIMIT
            told.append(answer["throttle_time_ms"])
        assert told == [0, pytest.approx(0, abs=300), pytest.approx(2_000, abs=300)]


async def test_who_says_nothing_is_closed(mock_clock):
    over = settings({"connections.max.idle.ms": "5000"})
    async with new_node(SimDisk(), over) as node, kafka_client(node) as client:
        await client.call("api_versions", 0)
        mock_clock.jump(5.1)
        await quiet()
        assert await client.is_closed()


async def test_what_was_asked_is_counted_as_ours_is():
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as client:
        await ours.create("t")
        before = node.server.counts.requests.copy()
        await produce(client, 9, rows(b"v"))
        await produce(client, 9, rows(b"v"), topic="missing")
        await client.call("find_coordinator", 4, coordinator_keys=["g", "h"])
        await fetch(client, 11)
        counted = node.server.counts.requests - before
        assert counted == {
            ("produce", "NONE"): 2,
            ("find_coordinator", "NONE"): 2,
            ("fetch", "NONE"): 1,
        }
        assert node.replicas.traffic.get("t").out_bytes > 0


async def test_a_node_that_does_not_serve_yet_closes(caplog):
    caplog.set_level(logging.INFO, "hightide.server")
    others = {
        "node.id": "1",
        "cluster.id": "alone",
        "controller.quorum.voters": "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3",
        "listen.port": "0",
    }
    async with one_of_several(1, others) as node:
        await quiet()
        async with kafka_client(node) as client:
            assert not node.serving.is_set()
            assert (await client.call("api_versions", 0))["error_code"] == 0
            await client.send("metadata", 0, topics=[])
            assert await client.is_closed()
    assert "BROKER_NOT_AVAILABLE" in caplog.text


async def test_a_request_that_is_too_large_for_the_node_is_not_read():
    limit = 3 << 20
    async with both({keys.SOCKET_REQUEST_MAX_BYTES.name: str(limit)}) as (_ours, client):
        await client.call("api_versions", 0)
        await client.stream.send_all(struct.pack(">ihh", limit + 1, 0, 9))
        assert await client.is_closed()


async def test_who_has_to_wait_for_its_turn_holds_no_room_for_bytes():
    """A fetch that waits, and half of the budget behind it: others send all the same."""
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as client:
        await ours.create("t")
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        topics = [{"topic": "t", "partitions": [part]}]
        await client.send("fetch", 4, max_wait_ms=60_000, min_bytes=1, topics=topics)
        large = request_bytes("produce", 9, produce_of(rows(bytes(900_000))))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stream.send_all, large)
            await quiet()
            (connection,) = (each for each in node.server._inside if each._tongue.in_order)
            assert connection._terms.budget._holds == {}
            await ours.produce(b"news")
            assert part_of((await client.receive("fetch", 4))[1])["error_code"] == 0
            answer = (await client.receive("produce", 9))[1]
            (found,) = answer["responses"][0]["partition_responses"]
            assert (found["error_code"], found["base_offset"]) == (0, 1)


def produce_of(data):
    part = {"name": "t", "partition_data": [{"index": 0, "records": records(data)}]}
    return {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": [part]}


def views_of(size):
    """How many views there are of so many bytes or more."""
    gc.collect()
    found = 0
    for each in gc.get_objects():
        try:
            found += isinstance(each, memoryview) and each.nbytes >= size
        except ValueError:
            continue  # it was released
    return found


@pytest.mark.parametrize("protocol", ["native", "kafka"])
async def test_a_produce_that_waits_for_a_sync_keeps_nothing_of_its_records(protocol):
    """Some hundred may wait on each connection, for minutes."""
    size, disk = 400_000, GatedDisk()
    async with new_node(disk) as node, client_of(node) as ours, kafka_client(node) as theirs:
        await ours.create("t")
        before = views_of(size)
        disk.shut()
        if protocol == "native":
            waits = await ours.begin(batch(bytes(size)), timeout_ms=60_000)
        else:
            await produce(theirs, 9, rows(bytes(size)), wait=False, timeout_ms=60_000)
        await quiet()
        assert node.server.waiting()["produce"] == 1
        assert views_of(size) == before
        disk.gate.set()
        if protocol == "native":
            assert (await waits.wait(PATIENCE_S))[0].partitions[0].error is None
        else:
            _, answer = await theirs.receive("produce", 9)
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
