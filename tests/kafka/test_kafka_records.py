"""Produce, fetch and offsets by Kafka's protocol, at both ends of their versions.

Goal: what came is stored byte for byte and read by everybody; what is wrong is refused with Kafka's
number, and only that partition. Method: a real node, a bare client of each protocol.
"""

import pytest
import trio
from brokers import batch, client_of, new_node, quiet
from kafkakit import both, kafka_client, records, rows
from patience import PATIENCE_S

from hightide.protocol.records import iter_batches
from hightide.protocol.row_spans import SPAN_RECORDS
from hightide.protocol.rows import make_ready
from hightide_broker.core.replication import validation
from hightide_broker.core.replication.validation import STEPS_AT_ONCE
from hightide_broker.kafka.about_records import no_id_yet
from hightide_broker.kafka.converted import CONVERTED_BYTES_MAX, Conversions
from hightide_broker.runtime.server import record_handlers
from hightide_broker.simulation.disk import SimDisk

NO_ID = ""


async def produce(client, version, data, *, acks=-1, topic="t", partition=0, wait=True, **more):
    part = {"index": partition, "records": data if data is None else records(data)}
    fields = {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 5000,
        "topic_data": [{"name": topic, "partition_data": [part]}],
        **more,
    }
    if not wait:
        return await client.send("produce", version, **fields)
    answer = await client.call("produce", version, **fields)
    ((found,),) = [topic["partition_responses"] for topic in answer["responses"]]
    return found


async def fetch(client, version, offset=0, *, topic="t", topic_id=NO_ID, **more):
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    fields = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [part]}],
        "forgotten_topics_data": [],
        **more,
    }
    return await client.call("fetch", version, **fields)


def part_of(answer):
    (topic,) = answer["responses"]
    (part,) = topic["partitions"]
    return part


async def id_of(client, topic="t"):
    answer = await client.call(
        "metadata",
        12,
        topics=[{"name": topic, "topic_id": NO_ID}],
        include_topic_authorized_operations=False,
    )
    return answer["topics"][0]["topic_id"]


@pytest.mark.parametrize("version", range(3, 11))
async def test_what_came_is_stored_and_every_version_reads_it(version):
    sent = rows(b"one", None, keys=[b"k", None], headers={1: [("h", None)]})
    async with both() as (ours, client):
        stored = await produce(client, version, sent)
        assert (stored["error_code"], stored["base_offset"]) == (0, 0)
        topic_id = await id_of(client)
        for reading in range(4, 17):
            part = part_of(await fetch(client, reading, topic_id=topic_id))
            assert part["error_code"] == 0
            assert part["high_watermark"] == part["last_stable_offset"] == 2
            assert part["aborted_transactions"] is None
            found = bytes(part["records"])
            assert found[:8] == bytes(8)  # stamped: offset and epoch; all else is as it came
            assert found[16:] == sent[16:]
        assert await ours.values() == [b"one", None]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_oldest_produces_are_answered_and_refused(version):
    async with both() as (_ours, client):
        assert (await produce(client, version, rows(b"v")))["error_code"] == 35


@pytest.mark.parametrize(
    ("data", "number", "words"),
    [
        (None, 87, "no batch"),
        (b"", 87, "no batch"),
        (rows(b"a") + rows(b"b"), 87, "bytes behind the batch"),
        (bytes(batch(b"v")), 87, "a batch of magic 72, expected 2"),
        (rows(b"v")[:-1], 2, ""),
        (rows(b"v")[:-1] + b"x", 2, "CRC"),
        (rows(b"v", codec="zstd"), 76, "zstd in produce version 6"),
    ],
)
async def test_what_is_wrong_is_refused_by_number(data, number, words):
    version = 6 if number == 76 else 9
    async with both() as (ours, client):
        part = await produce(client, version, data)
        assert (part["error_code"], part["base_offset"]) == (number, -1)
        if version >= 8:
            assert words in part["error_message"]
        assert await ours.values() == []


async def test_what_is_short_to_look_into_does_not_wait_for_what_is_long(monkeypatch):
    """Two clients with batches of millions of rows kept all others waiting, for seconds each."""
    began = []

    async def never_done(steps):
        began.append(next(steps))
        await trio.sleep_forever()

    monkeypatch.setattr(record_handlers, "in_slices", never_done)
    long = rows(*[b"v"] * (STEPS_AT_ONCE * SPAN_RECORDS + 1), codec="zstd")
    async with new_node(SimDisk()) as node, client_of(node) as ours, trio.open_nursery() as nursery:
        await ours.create()
        for _ in range(record_handlers.LOOKS_MAX + 1):
            client = await nursery.start(connected_to, node)
            nursery.start_soon(produce, client, 9, long)
        await trio.testing.wait_all_tasks_blocked()
        assert len(began) == record_handlers.LOOKS_MAX, "one waits for its turn"
        async with kafka_client(node) as client:
            for codec in ("none", "lz4", "zstd"):
                found = await produce(client, 9, rows(b"a", codec=codec))
                assert found["error_code"] == 0
        nursery.cancel_scope.cancel()


async def connected_to(node, task_status):
    async with kafka_client(node) as client:
        task_status.started(client)
        await trio.sleep_forever()


async def test_what_the_topic_does_not_take_is_not_looked_into(monkeypatch):
    """Five MB of rows by the million were gone through before their size was looked at."""
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as client:
        await ours.create(configs={"max.message.bytes": "1000"})
        monkeypatch.setattr(validation, "look_inside", None)
        found = await produce(client, 9, rows(b"v" * 1000))
        assert found["error_code"] == 10
        assert "max.message.bytes is 1000" in found["error_message"]


async def test_only_the_partition_that_is_wrong_is_refused():
    async with both(partitions=2) as (ours, client):
        good = {"index": 1, "records": records(rows(b"good"))}
        bad = {"index": 0, "records": None}
        lost = {"index": 7, "records": records(rows(b"lost"))}
        answer = await client.call(
            "produce",
            9,
            acks=-1,
            timeout_ms=5000,
            topic_data=[{"name": "t", "partition_data": [bad, good, lost]}],
        )
        (topic,) = answer["responses"]
        found = {part["index"]: part["error_code"] for part in topic["partition_responses"]}
        assert found == {0: 87, 1: 0, 7: 3}
        assert await ours.values(partition=1) == [b"good"]


async def test_transactions_are_refused_for_good():
    async with both() as (_ours, client):
        assert (await produce(client, 9, rows(b"v"), transactional_id="x"))["error_code"] == 48
        refused = await client.call(
            "init_producer_id", 4, transactional_id="x", transaction_timeout_ms=1
        )
        assert (refused["error_code"], refused["producer_id"]) == (53, -1)


async def test_acks_0_is_not_answered_and_a_refusal_closes():
    async with both() as (ours, client):
        await produce(client, 9, rows(b"v"), acks=0, wait=False)
        assert (await client.call("api_versions", 0))["error_code"] == 0
        with trio.fail_after(PATIENCE_S):
            while not (found := await ours.values()):
                await trio.sleep(0.01)  # it was not waited for until it is on the disk
        assert found == [b"v"]
        await produce(client, 9, rows(b"v"), acks=0, topic="missing", wait=False)
        assert await client.is_closed()


async def test_produces_behind_each_other_are_stored_and_answered_in_order():
    async with both() as (ours, client):
        sent = [await produce(client, 9, rows(b"%d" % n), wait=False) for n in range(20)]
        found = [await client.receive("produce", 9) for _ in sent]
        assert [correlation_id for correlation_id, _ in found] == sent
        offsets = [a["responses"][0]["partition_responses"][0]["base_offset"] for _, a in found]
        assert offsets == [*range(20)]
        assert await ours.values() == [b"%d" % n for n in range(20)]


async def test_what_comes_behind_a_fetch_that_waits_is_answered_behind_it():
    async with both() as (ours, client):
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": "t", "partitions": [part]}]
        first = await client.send("fetch", 4, max_wait_ms=60_000, min_bytes=1, topics=topics)
        second = await client.send("metadata", 0, topics=[])
        await quiet()
        await ours.produce(b"news")
        assert (await client.receive("fetch", 4))[0] == first
        assert (await client.receive("metadata", 0))[0] == second


async def test_min_bytes_0_means_at_once():
    async with both() as (_ours, client):
        part = part_of(await fetch(client, 4, min_bytes=0, max_wait_ms=60_000))
        assert (part["error_code"], bytes(part["records"])) == (0, b"")


async def test_a_node_takes_a_stranger_for_no_replica():
    async with both() as (_ours, client):
        topic_id = await id_of(client)
        for version in (4, 14, 15):
            over = {"replica_id": 1} if version < 15 else {"replica_state": {"replica_id": 1}}
            answer = await fetch(client, version, topic_id=topic_id, **over)
            assert part_of(answer)["error_code"] == 31


async def test_there_are_no_sessions_and_a_full_fetch_says_so():
    async with both() as (_ours, client):
        answer = await fetch(client, 7, session_id=0, session_epoch=0)
        assert (answer["error_code"], answer["session_id"]) == (0, 0)
        answer = await fetch(client, 7, session_id=9, session_epoch=1)
        assert (answer["error_code"], answer["responses"]) == (70, [])


async def test_what_there_is_not_is_named_in_the_answer():
    async with new_node(SimDisk()) as node, kafka_client(node) as client:
        assert part_of(await fetch(client, 12, topic="missing"))["error_code"] == 3
        assert part_of(await fetch(client, 12, topic="__cluster_metadata"))["error_code"] == 3
        answer = await fetch(client, 13, topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
        assert part_of(answer)["error_code"] == 100
        assert answer["responses"][0]["topic_id"] == "AAAAAAAAAAAAAAAAAAAAAQ"


async def test_a_consumer_that_went_another_way_is_told_where():
    async with both() as (ours, client):
        await ours.produce(b"v")
        part = {"partition": 0, "fetch_offset": 5, "partition_max_bytes": 1000}
        topics = [{"topic": "t", "partitions": [{**part, "last_fetched_epoch": 0}]}]
        answer = await client.call(
            "fetch", 12, max_wait_ms=0, min_bytes=1, topics=topics, forgotten_topics_data=[]
        )
        found = part_of(answer)
        assert (found["error_code"], bytes(found["records"])) == (0, b"")
        assert found["diverging_epoch"] == {"epoch": 0, "end_offset": 1}


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_columns_are_read_in_rows(codec):
    async with both() as (ours, client):
        sent = batch(b"a", None, b"c", keys=[None, b"k", b""], codec=codec)
        await ours.send(sent)
        await produce(client, 9, rows(b"d"))
        await ours.send(batch(b"e", codec=codec))
        part = part_of(await fetch(client, 11))
        found = [*iter_batches(part["records"])]
        assert [header.magic for header, _ in found] == [2, 2, 2]
        assert [header.base_offset for header, _ in found] == [0, 3, 4]
        assert [header.codec for header, _ in found] == [codec, "none", codec]
        again = part_of(await fetch(client, 11))
        assert bytes(again["records"]) == bytes(part["records"])


async def test_an_old_fetch_is_not_given_zstd():
    async with both() as (ours, client):
        await ours.send(batch(b"a", codec="zstd"))
        part = part_of(await fetch(client, 9))
        assert (part["error_code"], bytes(part["records"])) == (76, b"")
        assert part_of(await fetch(client, 10))["error_code"] == 0


async def test_as_much_as_is_converted_for_one_answer_is_bounded_and_the_rest_is_there():
    async with both() as (ours, client):
        value = bytes(700_000)
        for _ in range(8):
            await ours.produce(value)
        everything = 64 << 20
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": everything}
        topics = [{"topic": "t", "partitions": [part]}]
        answer = await client.call("fetch", 4, max_wait_ms=0, min_bytes=1, topics=topics)
        found = [header.base_offset for header, _ in iter_batches(part_of(answer)["records"])]
        assert found == [*range(CONVERTED_BYTES_MAX // 700_000 + 1)]
        topics[0]["partitions"][0]["fetch_offset"] = len(found)
        answer = await client.call("fetch", 4, max_wait_ms=0, min_bytes=1, topics=topics)
        more = [header.base_offset for header, _ in iter_batches(part_of(answer)["records"])]
        assert [*found, *more] == [*range(8)]


def test_converted_batches_are_kept_as_far_as_there_is_room():
    kept = Conversions(bytes_max=10)
    one, two, three = (("t", 0, offset, 0, 0) for offset in range(3))
    kept.keep(one, b"12345")
    kept.keep(two, b"12345")
    assert kept.get(one) == b"12345"
    kept.keep(three, b"123")
    assert (kept.get(one), kept.get(two), kept.get(three)) == (b"12345", None, b"123")
    kept.keep(three, b"12345")
    assert kept.get(one) == b"12345"


@pytest.mark.parametrize("version", range(1, 8))
async def test_offsets_by_time(version):
    async def listed(client, timestamp):
        part = {"partition_index": 0, "timestamp": timestamp}
        answer = await client.call(
            "list_offsets",
            version,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": "t", "partitions": [part]}],
        )
        (found,) = answer["topics"][0]["partitions"]
        return found["error_code"], found["offset"]

    async with both() as (ours, client):
        await ours.send(batch(b"a", b"b", times=[1_700_000_000_000, 1_700_000_000_005]))
        assert await listed(client, -1) == (0, 2)
        assert await listed(client, -2) == (0, 0)
        assert await listed(client, -3) == (0, 1)
        assert await listed(client, 1_700_000_000_001) == (0, 1)
        assert await listed(client, 1_700_000_000_009) == (0, -1)
        assert await listed(client, -4) == (42, -1)


@pytest.mark.parametrize("version", range(2, 5))
async def test_where_an_epoch_ends(version):
    async with both() as (ours, client):
        await ours.produce(b"v")
        part = {"partition": 0, "leader_epoch": 0}
        answer = await client.call(
            "offset_for_leader_epoch", version, topics=[{"topic": "t", "partitions": [part]}]
        )
        (found,) = answer["topics"][0]["partitions"]
        assert (found["error_code"], found["end_offset"]) == (0, 1)


@pytest.mark.parametrize("version", range(5))
async def test_each_producer_gets_an_id_of_its_own(version):
    async with new_node(SimDisk()) as node, kafka_client(node) as client:
        ids = [
            await client.call(
                "init_producer_id", version, transactional_id=None, transaction_timeout_ms=-1
            )
            for _ in range(2)
        ]
    assert [(each["error_code"], each["producer_epoch"]) for each in ids] == [(0, 0), (0, 0)]
    assert ids[0]["producer_id"] != ids[1]["producer_id"]


@pytest.mark.parametrize(("code", "number"), [(7, 14), (77, 14), (102, 14), (31, 31), (29, 29)])
def test_a_controller_that_gives_no_ids_yet_is_waited_for(code, number):
    assert no_id_yet(code, "")["error_code"] == number


async def test_a_batch_that_is_sent_again_is_stored_once():
    async with both() as (ours, client):
        again = rows(b"once", producer=(5, 0, 0))
        for _ in range(3):
            part = await produce(client, 9, again)
            assert (part["error_code"], part["base_offset"]) == (0, 0)
        assert (await produce(client, 9, rows(b"gap", producer=(5, 0, 9))))["error_code"] == 45
        assert await ours.values() == [b"once"]


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted(version):
    async with both() as (ours, client):
        await ours.produce(b"a", b"b")
        part = {"partition_index": 0, "offset": 1}
        answer = await client.call(
            "delete_records",
            version,
            topics=[{"name": "t", "partitions": [part]}],
            timeout_ms=1000,
        )
        (found,) = answer["topics"][0]["partitions"]
        assert (found["error_code"], found["low_watermark"]) == (0, 1)
        assert part_of(await fetch(client, 11, offset=0))["error_code"] == 1


class WatchedDisk(SimDisk):
    """Remembers what was done in threads."""

    def __init__(self):
        super().__init__()
        self.done = []

    async def in_thread(self, function):
        self.done.append(function)
        return await super().in_thread(function)


async def test_what_large_batches_are_read_with_is_made_ready_when_the_first_of_them_comes():
    async with (
        new_node(disk := WatchedDisk()) as node,
        client_of(node) as ours,
        kafka_client(node) as client,
    ):
        await ours.create("t")
        await ours.produce(b"v")
        assert make_ready not in disk.done
        for _ in range(2):
            await produce(client, 9, rows(b"v"))
        assert disk.done.count(make_ready) == 1
