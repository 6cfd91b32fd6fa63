"""Requests of one connection: begun in order, parked, woken, and finished before a stop.

Goal: §2 of the design and Kafka's rules FE2, 1.13, 1.14 as a client sees them. Method: a real node
on a simulated disk whose syncs wait for the test, real sockets, and a mock clock moved by hand,
so that "not yet" is a fact and not a matter of timing.
"""

import pytest
import trio
from brokers import DATA, GatedDisk, batch, broker, client_of, new_node, quiet
from brokers import settings as config_of
from patience import PATIENCE_S

from hightide.protocol import messages as m
from hightide.protocol.errors import BrokerUnreachable, HightideError
from hightide.protocol.records import iter_batches
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.runtime.server import fetch_handler
from hightide_broker.runtime.server.fetch_handler import FetchHandler
from hightide_broker.runtime.server.listener import LAST_ANSWERS_S
from hightide_broker.simulation.disk import SimDisk


class Parked:
    """A call in a task of its own: done or not done, and its outcome."""

    def __init__(self, nursery, call):
        self.outcome = None
        nursery.start_soon(self._run, call)

    async def _run(self, call):
        try:
            self.outcome = await call
        except HightideError as error:
            self.outcome = error

    @property
    def done(self):
        return self.outcome is not None


async def later(mock_clock, seconds):
    await quiet()
    mock_clock.jump(seconds)
    await quiet()


# --- order --------------------------------------------------------------------------------------


async def test_requests_that_were_sent_without_waiting_take_effect_in_order():
    disk = GatedDisk()
    async with broker(disk) as client:
        await client.create()
        disk.shut()
        answers = [
            await client.begin(batch(b"%d" % number), acks=1 if number % 3 else -1)
            for number in range(50)
        ]
        await quiet()
        disk.gate.set()
        results = [(await answer.wait(PATIENCE_S))[0].partitions[0] for answer in answers]
        assert [(r.error, r.base_offset) for r in results] == [(None, n) for n in range(50)]
        assert await client.values() == [b"%d" % number for number in range(50)]


async def test_an_answer_does_not_wait_for_the_one_before_it():
    disk = GatedDisk()
    async with broker(disk) as client:
        await client.create()
        disk.shut()
        slow = await client.begin(batch(b"slow"))
        fast = await client.begin(batch(b"fast"), acks=1)
        body, _ = await fast.wait(PATIENCE_S)
        assert body.partitions[0].base_offset == 1
        assert await client.values() == []
        disk.gate.set()
        body, _ = await slow.wait(PATIENCE_S)
        assert body.partitions[0].base_offset == 0


async def test_no_more_requests_of_a_connection_are_at_work_than_allowed():
    disk = GatedDisk()
    config = config_of({"max.in.flight.requests.per.connection": "2"})
    async with new_node(disk, config) as node, client_of(node) as client, client_of(node) as other:
        await client.create()
        disk.shut()
        answers = [await client.begin(batch(b"%d" % number)) for number in range(5)]
        await quiet()
        assert (await other.log_dirs())[("t", 0)].log_end_offset == 2
        disk.gate.set()
        for number, answer in enumerate(answers):
            body, _ = await answer.wait(PATIENCE_S)
            assert body.partitions[0].base_offset == number


async def test_a_produce_to_many_partitions_answers_when_all_are_committed(mock_clock):
    disk = GatedDisk()
    async with broker(disk) as client, trio.open_nursery() as nursery:
        await client.create(partitions=2)
        await client.create("now", configs={"flush": "replicated"})
        disk.shut()
        parts = [
            m.ProducePartition(topic=topic, partition=partition, records=number)
            for number, (topic, partition) in enumerate([("t", 0), ("now", 0), ("t", 1)])
        ]
        request = m.ProduceRequest(acks=-1, timeout_ms=4000, partitions=parts)
        data = [batch(b"%d" % number) for number in range(3)]
        call = Parked(nursery, client.call(request, *data))
        await later(mock_clock, 3)
        assert not call.done
        await later(mock_clock, 2)
        errors = [part.error for part in call.outcome.partitions]
        assert errors == ["REQUEST_TIMED_OUT", None, "REQUEST_TIMED_OUT"]
        disk.gate.set()


async def test_a_large_answer_of_a_real_disk_arrives_whole(tmp_path):
    async with broker(RealDisk(), config_of(data=f"{tmp_path}/b")) as client:
        await client.create()
        values = [b"%d" % number * 40_000 for number in range(9)]
        for value in values:
            await client.produce(value)
        assert await client.values() == values


# --- fetches that wait --------------------------------------------------------------------------


async def test_a_fetch_waits_for_a_commit_and_is_not_woken_by_an_append(mock_clock):
    disk = GatedDisk()
    async with broker(disk) as client, trio.open_nursery() as nursery:
        await client.create()
        await client.produce(b"old")
        call = Parked(nursery, client.fetch(1, max_wait_ms=9000))
        disk.shut()
        await client.produce(b"new", acks=1)
        await later(mock_clock, 1)
        assert not call.done
        disk.gate.set()
        await quiet()
        assert call.outcome.values == [b"new"]
        assert call.outcome.result.high_watermark == 2


async def test_a_fetch_that_finds_nothing_answers_empty_when_its_time_is_up(mock_clock):
    async with broker(SimDisk()) as client, trio.open_nursery() as nursery:
        await client.create()
        call = Parked(nursery, client.fetch(max_wait_ms=4000))
        await later(mock_clock, 3.9)
        assert not call.done
        await later(mock_clock, 0.2)
        assert (call.outcome.result.error, call.outcome.values) == (None, [])


async def test_a_fetch_waits_for_min_bytes_and_takes_less_when_its_time_is_up(mock_clock):
    one = len(batch(b"x"))
    async with broker(SimDisk()) as client, trio.open_nursery() as nursery:
        await client.create()
        two = Parked(nursery, client.fetch(max_wait_ms=4000, min_bytes=2 * one))
        many = Parked(nursery, client.fetch(max_wait_ms=4000, min_bytes=9 * one))
        await quiet()
        await client.produce(b"x")
        await quiet()
        assert not two.done
        await client.produce(b"y")
        await quiet()
        assert two.outcome.values == [b"x", b"y"]
        assert not many.done
        await later(mock_clock, 4.1)
        assert many.outcome.values == [b"x", b"y"]


async def test_a_fetch_whose_answer_is_full_waits_for_nothing_more(mock_clock):
    """However much it wants at least: an answer has no room for more (Kafka's min of both)."""
    one = len(batch(b"x"))
    async with broker(SimDisk()) as client, trio.open_nursery() as nursery:
        await client.create()
        for _ in range(3):
            await client.produce(b"x")
        full = Parked(nursery, client.fetch(max_wait_ms=4000, min_bytes=9 * one, max_bytes=2 * one))
        await quiet()
        assert full.outcome.values == [b"x", b"x"]


async def test_a_fetch_brings_so_many_batches_and_the_next_one_the_rest(monkeypatch):
    """Each is checked, in one stretch: of small ones a full answer took a quarter of a second."""
    monkeypatch.setattr(fetch_handler, "BATCHES_MAX", 3)
    async with broker(SimDisk()) as client:
        await client.create(partitions=3)
        for partition in range(3):
            for _ in range(2):
                await client.produce(b"x", partition=partition)
        offsets = [0, 0, 0]
        brought = []
        for max_wait_ms in (50_000, 0):
            parts = [
                m.FetchPartition(topic="t", partition=n, fetch_offset=offset)
                for n, offset in enumerate(offsets)
            ]
            request = m.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1 << 30, partitions=parts)
            body, attachments = await client.connection.call(request, timeout_s=PATIENCE_S)
            for result in body.partitions:
                data = attachments[result.records] if result.records >= 0 else b""
                offsets[result.partition] += len([*iter_batches(data)])
            brought.append([*offsets])
        assert brought == [[2, 2, 0], [2, 2, 2]]


async def test_of_a_fetch_that_waits_for_much_only_what_has_news_is_looked_at(
    mock_clock, monkeypatch
):
    looks = []
    look_at = FetchHandler.look_at

    def counted(handler, request, parts, look):
        looks.append([part.partition for part in parts])
        look_at(handler, request, parts, look)

    one = len(batch(b"x"))
    async with broker(SimDisk()) as client, trio.open_nursery() as nursery:
        await client.create(partitions=4)
        monkeypatch.setattr(FetchHandler, "look_at", counted)
        parts = [m.FetchPartition(topic="t", partition=n, fetch_offset=0) for n in range(4)]
        request = m.FetchRequest(max_wait_ms=50_000, min_bytes=3 * one, partitions=parts)
        call = Parked(nursery, client.call(request))
        await quiet()
        for partition in (2, 1):
            await client.produce(b"x", partition=partition)
            await quiet()
        assert looks == [[0, 1, 2, 3], [2], [1]]
        assert not call.done
        await client.produce(b"x", partition=2)
        await quiet()
        assert [part.high_watermark for part in call.outcome.partitions] == [0, 1, 2, 0]


async def test_a_fetch_of_many_partitions_is_woken_by_any_and_refused_at_once_by_one(mock_clock):
    async with broker(SimDisk()) as client, trio.open_nursery() as nursery:
        await client.create(partitions=3)
        parts = [m.FetchPartition(topic="t", partition=n, fetch_offset=0) for n in range(3)]
        request = m.FetchRequest(max_wait_ms=50_000, partitions=parts)
        call = Parked(nursery, client.call(request))
        await quiet()
        assert not call.done
        await client.produce(b"x", partition=2)
        await quiet()
        assert [part.high_watermark for part in call.outcome.partitions] == [0, 0, 1]
        parts.insert(0, m.FetchPartition(topic="gone", partition=0, fetch_offset=0))
        reply = await client.call(m.FetchRequest(max_wait_ms=50_000, partitions=parts[:2]))
        errors = [part.error for part in reply.partitions]
        assert errors == ["UNKNOWN_TOPIC_OR_PARTITION", None]


@pytest.mark.parametrize(
    ("max_bytes", "part_bytes", "expected"),
    [
        (1, 1, [1, 0]),
        (0, 0, [1, 0]),
        (-5, -5, [1, 0]),
        (10_000, 1, [1, 0]),
        (1, 10_000, [1, 0]),
        (10_000, 250, [2, 2]),
        (350, 10_000, [3, 0]),
        (480, 10_000, [3, 1]),
        (10_000, 10_000, [3, 3]),
    ],
)
async def test_a_fetch_takes_whole_batches_within_its_limits_but_always_one(
    max_bytes, part_bytes, expected
):
    async with broker(SimDisk()) as client:
        await client.create(partitions=2)
        data = batch(b"x" * 24)
        assert len(data) == 110
        for partition in (0, 0, 0, 1, 1, 1):
            await client.send(data, partition=partition)
        parts = [
            m.FetchPartition(topic="t", partition=number, fetch_offset=0, max_bytes=part_bytes)
            for number in range(2)
        ]
        request = m.FetchRequest(max_wait_ms=0, max_bytes=max_bytes, partitions=parts)
        body, attachments = await client.connection.call(request)
        counts = [
            len(list(iter_batches(attachments[part.records]))) if part.records >= 0 else 0
            for part in body.partitions
        ]
        assert counts == expected


async def test_a_fetch_names_its_leader_epoch_and_topic_id_and_is_held_to_them():
    async with broker(SimDisk()) as client:
        created = await client.create()
        for over, error in (
            ({"current_leader_epoch": 0}, None),
            ({"current_leader_epoch": 1}, "UNKNOWN_LEADER_EPOCH"),
            ({"topic_id": created.topic_id}, None),
            ({"topic_id": "A" * 22}, "INCONSISTENT_TOPIC_ID"),
        ):
            part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, **over)
            reply = await client.call(m.FetchRequest(max_wait_ms=0, partitions=[part]))
            assert reply.partitions[0].error == error


async def test_a_produce_that_names_a_topic_id_stores_nothing_in_another_topic():
    async with broker(SimDisk()) as client:
        created = await client.create()
        for topic_id, error in (
            ("A" * 22, "INCONSISTENT_TOPIC_ID"),
            (created.topic_id, None),
            ("", None),
        ):
            part = m.ProducePartition(topic="t", partition=0, records=0, topic_id=topic_id)
            request = m.ProduceRequest(acks=-1, timeout_ms=5000, partitions=[part])
            reply = await client.call(request, batch(topic_id.encode()))
            assert reply.partitions[0].error == error
        assert await client.values() == [created.topic_id.encode(), b""]


# --- stopping -----------------------------------------------------------------------------------


async def test_a_stop_finishes_what_is_at_work_and_takes_no_more(mock_clock):
    disk = GatedDisk()
    async with new_node(disk) as node, client_of(node) as client, trio.open_nursery() as nursery:
        await client.create()
        disk.shut()
        working = Parked(nursery, client.produce(b"at work"))
        await quiet()
        node.stop()
        await quiet()
        late = Parked(nursery, client.produce(b"late"))
        with pytest.raises(BrokerUnreachable):
            async with client_of(node):
                pass
        assert not working.done
        disk.gate.set()
        await quiet()
        assert (working.outcome.error, working.outcome.base_offset) == (None, 0)
        assert isinstance(late.outcome, HightideError)
    assert disk.exists(f"{DATA}/.clean_shutdown")
    async with broker(disk) as client:
        assert await client.values() == [b"at work"]


async def test_a_stop_does_not_wait_for_ever(mock_clock):
    disk = GatedDisk()
    config = config_of({"shutdown.timeout.ms": "3s"})
    async with new_node(disk, config) as node, client_of(node) as client:
        await client.create()
        async with trio.open_nursery() as nursery:
            call = Parked(nursery, client.fetch(max_wait_ms=60_000))
            await quiet()
            node.stop()
            await later(mock_clock, 2)
            assert not call.done
            await later(mock_clock, 2)
            assert call.outcome.result.error == "NOT_LEADER_OR_FOLLOWER"
    assert disk.exists(f"{DATA}/.clean_shutdown")


async def test_half_a_request_holds_a_stop_up_once(mock_clock):
    """Where nobody else is there a node waits before it gives up what it leads, and after."""
    disk = SimDisk()
    config = config_of({"shutdown.timeout.ms": "3s"})
    async with new_node(disk, config) as node, client_of(node) as client:
        await client.connection.stream.wait_writable()
        client.connection.stream.send_now([b"\0\0\x10\0", b"half"])
        await quiet()
        node.stop()
        await later(mock_clock, 3.1)
        await later(mock_clock, LAST_ANSWERS_S + 0.1)
        assert disk.exists(f"{DATA}/.clean_shutdown")


async def test_connections_that_say_nothing_do_not_hold_a_stop_up(mock_clock):
    disk = SimDisk()
    async with new_node(disk) as node, client_of(node), client_of(node):
        await quiet()
        assert node.server.connections().total() == 2
        node.stop()
        await quiet()
        assert node.server.connections().total() == 0
        assert disk.exists(f"{DATA}/.clean_shutdown")
