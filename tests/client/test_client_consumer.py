"""The consumer against a real node: where it starts, how it moves, what it hands out and when.

Goal: Kafka's rules and `consumer.py`. Method: a node in this process on a simulated
disk, talked to over a real socket. A broker that misbehaves is `test_client_consumer_faults.py`'s.
"""

import pytest
import trio
import trio.testing
from brokers import NOW_MS, FakeClock, client_of, new_node, settings
from clients import one_node, take, values_of
from patience import PATIENCE_MS, PATIENCE_S

from hightide import ApiError, Consumer, ErrorCode, Producer
from hightide.protocol import messages as m
from hightide.protocol.errors import ClosedError, UsageError
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.simulation.disk import SimDisk


def numbered(start, end=None):
    first, last = (0, start) if end is None else (start, end)
    return [b"%04d" % number for number in range(first, last)]


@pytest.fixture
async def one():
    """Ten records in one partition: a batch of four, then one of six."""
    async with one_node() as found:
        await found.client.produce(*numbered(4))
        await found.client.produce(*numbered(4, 10))
        yield found


@pytest.fixture
async def three():
    """Thirty records in each of three partitions, in batches of ten."""
    async with one_node(partitions=3) as found:
        for partition in range(3):
            for start in (0, 10, 20):
                await found.client.produce(*numbered(start, start + 10), partition=partition)
        yield found


async def located(consumer, topic="t", partition=0):
    """Wait until the reset policy has given a position."""
    with trio.fail_after(PATIENCE_S):
        while consumer.position(topic, partition) is None:
            await trio.sleep(0.001)


# --- where it starts ----------------------------------------------------------------------------


async def test_earliest_starts_at_the_start_of_the_log(one):
    await one.client.delete_records(3)
    async with one.consumer(auto_offset_reset="earliest") as consumer:
        records = await take(consumer, 7)
    assert [record.offset for record in records] == list(range(3, 10))
    assert values_of(records) == numbered(3, 10)


async def test_latest_reads_only_what_comes_after_it_started(one):
    async with one.consumer(auto_offset_reset="latest") as consumer:
        await located(consumer)
        assert consumer.position("t", 0) == 10
        await one.client.produce(b"new")
        assert values_of(await take(consumer, 1)) == [b"new"]


async def test_without_a_reset_policy_a_start_must_be_given(one):
    async with one.consumer(auto_offset_reset="none") as consumer:
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                await consumer.poll(timeout_ms=PATIENCE_MS)
        consumer.seek("t", 0, 8)
        assert values_of(await take(consumer, 2)) == numbered(8, 10)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert "t-0 has no position and auto_offset_reset is 'none'" in str(caught.value)
    assert "see auto_offset_reset, seek()" in str(caught.value)


async def test_a_record_comes_with_everything_that_was_sent(one):
    async with one.producer() as producer:
        headers = [("h", b"v"), ("h", None)]
        await producer.send("t", b"v", key=b"k", timestamp=NOW_MS + 5, headers=headers)
    async with one.consumer() as consumer:
        record = (await take(consumer, 11))[-1]
    assert (record.topic, record.partition, record.offset) == ("t", 0, 10)
    assert (record.key, record.value, record.timestamp) == (b"k", b"v", NOW_MS + 5)
    assert list(record.headers) == headers


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_compressed_records_are_read(one, codec):
    async with one.producer(compression_type=codec) as producer:
        for value in numbered(10, 50):
            await producer.send("t", value)
    async with one.consumer() as consumer:
        assert values_of(await take(consumer, 50)) == numbered(50)


# --- what it hands out --------------------------------------------------------------------------


async def test_iteration_gives_every_record_in_the_order_of_its_partition(three):
    found = {0: [], 1: [], 2: []}
    count = 0
    async with three.consumer() as consumer:
        async for record in consumer:
            found[record.partition].append(record.value)
            assert consumer.position("t", record.partition) == record.offset + 1
            count += 1
            if count == 90:
                break
    assert found == dict.fromkeys(range(3), numbered(30))


async def test_partitions_take_turns(three):
    async with three.consumer() as consumer:
        await take(consumer, 1)
        with trio.fail_after(PATIENCE_S):
            while None in [consumer.lag("t", partition) for partition in range(3)]:
                await trio.sleep(0.001)
        rest = await take(consumer, 49)
    assert {record.partition for record in rest} == {0, 1, 2}


async def test_poll_gives_no_more_than_it_may_and_of_one_partition(three):
    async with three.consumer(max_poll_records=7) as consumer:
        seen = []
        while len(seen) < 90:
            records = await consumer.poll(timeout_ms=PATIENCE_MS)
            assert 0 < len(records) <= 7
            assert len({record.partition for record in records}) == 1
            seen += records
            records = await consumer.poll(max_records=2)
            assert len(records) <= 2
            seen += records
        assert await consumer.poll() == []
    places = sorted((record.partition, record.offset) for record in seen)
    assert places == [(partition, offset) for partition in range(3) for offset in range(30)]


async def test_poll_returns_empty_handed_when_nothing_came_in_time(one):
    async with one.consumer(auto_offset_reset="latest") as consumer:
        assert await consumer.poll() == []
        assert await consumer.poll(timeout_ms=20) == []
        assert await consumer.poll(timeout_ms=20, max_records=0) == []


async def test_poll_waits_for_what_is_produced_meanwhile(one):
    async with one.consumer(auto_offset_reset="latest") as consumer, trio.open_nursery() as nursery:
        await located(consumer)

        async def produce():
            await trio.testing.wait_all_tasks_blocked(0.01)
            await one.client.produce(b"new")

        nursery.start_soon(produce)
        assert values_of(await consumer.poll(timeout_ms=PATIENCE_MS)) == [b"new"]


async def test_a_poll_that_is_cancelled_takes_nothing(one):
    async with one.consumer() as consumer:
        records = await take(consumer, 1)
        for _ in range(3):
            with trio.CancelScope() as scope:
                scope.cancel()
                records += await consumer.poll(timeout_ms=PATIENCE_MS, max_records=2)
            assert consumer.position("t", 0) == len(records)
        with trio.fail_after(PATIENCE_S):
            records += await take(consumer, 10 - len(records))
    assert values_of(records) == numbered(10)


async def test_only_named_partitions_are_read(three):
    async with three.consumer(partitions=[("t", 2), ("t", 0)]) as consumer:
        assert consumer.assignment() == [("t", 2), ("t", 0)]
        records = await take(consumer, 60)
        assert await consumer.poll(timeout_ms=10) == []
    assert {record.partition for record in records} == {0, 2}


# --- positions ----------------------------------------------------------------------------------


async def test_position_and_lag_follow_what_was_handed_out(one):
    async with one.consumer() as consumer:
        await take(consumer, 3)
        assert (consumer.position("t", 0), consumer.lag("t", 0)) == (3, 7)
        await take(consumer, 7)
        assert (consumer.position("t", 0), consumer.lag("t", 0)) == (10, 0)


@pytest.mark.parametrize("offset", range(11))
async def test_a_seek_continues_at_exactly_that_offset(one, offset):
    async with one.consumer() as consumer:
        await take(consumer, 5)
        consumer.seek("t", 0, offset)
        assert consumer.position("t", 0) == offset
        await one.client.produce(b"end")
        records = await take(consumer, 11 - offset)
    assert [record.offset for record in records] == list(range(offset, 11))


async def test_seeks_may_follow_each_other_at_any_time(one):
    async with one.consumer(max_poll_records=3, fetch_max_wait_ms=10) as consumer:
        for offset in (9, 0, 5, 2, 2, 7, 0):
            consumer.seek("t", 0, 1)
            consumer.seek("t", 0, offset)
            records = await consumer.poll(timeout_ms=PATIENCE_MS)
            assert records[0].offset == offset


async def test_seek_to_time_finds_the_first_record_at_or_after_it(three):
    async with three.producer() as producer:
        for partition, stamp in [(0, NOW_MS + 1_000), (0, NOW_MS + 3_000), (1, NOW_MS + 2_000)]:
            await producer.send("t", b"late", partition=partition, timestamp=stamp)
            await producer.flush()
    async with three.consumer() as consumer:
        await consumer.seek_to_time(NOW_MS + 1_500)
        positions = [consumer.position("t", partition) for partition in range(3)]
        assert positions == [31, 30, 30], "the last one has nothing so late: its end"
        assert values_of(await take(consumer, 2)) == [b"late", b"late"]
        await consumer.seek_to_time(0)
        assert [consumer.position("t", partition) for partition in range(3)] == [0, 0, 0]


async def offsets(consumer, timestamp):
    return {tp: at.offset for tp, at in (await consumer.offsets(timestamp)).items()}


async def test_offsets_at_a_time_and_at_the_ends_are_told(three):
    await three.client.delete_records(7, partition=1)
    async with three.consumer() as consumer:
        tps = [TopicPartition("t", partition) for partition in range(3)]
        assert await offsets(consumer, m.EARLIEST) == dict(zip(tps, [0, 7, 0], strict=True))
        assert await offsets(consumer, m.LATEST) == dict.fromkeys(tps, 30)
        assert await offsets(consumer, NOW_MS + 1) == dict.fromkeys(tps, -1)


@pytest.mark.parametrize(("reset", "start"), [("earliest", 6), ("latest", 10)])
async def test_an_offset_that_is_gone_is_reset_by_the_policy(one, reset, start):
    async with one.consumer(auto_offset_reset=reset) as consumer:
        await located(consumer)
        await one.client.delete_records(6)
        consumer.seek("t", 0, 2)
        with trio.fail_after(PATIENCE_S):
            while consumer.position("t", 0) != start:
                assert await consumer.poll(timeout_ms=1, max_records=0) == []
        await one.client.produce(b"end")
        records = await take(consumer, 11 - start)
    assert [record.offset for record in records] == list(range(start, 11))


async def test_an_offset_beyond_the_end_is_reset_by_the_policy(one):
    async with one.consumer() as consumer:
        consumer.seek("t", 0, 1_000)
        assert values_of(await take(consumer, 10)) == numbered(10)


async def test_without_a_reset_policy_an_offset_that_is_gone_is_an_error_until_a_seek(one):
    await one.client.delete_records(6)
    async with one.consumer(auto_offset_reset="none") as consumer:
        consumer.seek("t", 0, 2)
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                await consumer.poll(timeout_ms=PATIENCE_MS)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert caught.value.broker == one.address
        consumer.seek("t", 0, 9)
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    records = await consumer.poll(timeout_ms=PATIENCE_MS)
                    break
                except ApiError:
                    continue  # One that was on its way already.
    assert values_of(records) == numbered(9, 10)


# --- pauses -------------------------------------------------------------------------------------


async def test_a_paused_partition_hands_out_nothing_until_it_is_resumed(three):
    async with three.consumer() as consumer:
        consumer.pause(("t", 0), ("t", 2))
        records = await take(consumer, 30)
        assert {record.partition for record in records} == {1}
        assert await consumer.poll(timeout_ms=20) == []
        consumer.resume(("t", 2))
        records = await take(consumer, 30)
        assert {record.partition for record in records} == {2}


async def test_a_pause_holds_back_what_was_fetched_already(one):
    async with one.consumer() as consumer:
        assert values_of(await take(consumer, 2)) == numbered(2)
        consumer.pause(("t", 0))
        assert await consumer.poll(timeout_ms=20) == []
        assert consumer.position("t", 0) == 2
        consumer.resume(("t", 0))
        assert values_of(await take(consumer, 8)) == numbered(2, 10)


# --- assignments --------------------------------------------------------------------------------


async def test_what_stays_assigned_goes_on_and_what_is_new_starts_by_the_policy(three):
    async with three.consumer(partitions=[("t", 0), ("t", 1)]) as consumer:
        consumer.pause(("t", 1))
        await take(consumer, 5)
        await consumer.assign([("t", 0), ("t", 2)])
        rest = await take(consumer, 25 + 30)
    offsets = {0: [], 2: []}
    for record in rest:
        offsets[record.partition].append(record.offset)
    assert offsets == {0: list(range(5, 30)), 2: list(range(30))}


async def test_nothing_more_comes_from_a_partition_that_was_taken_away(three):
    async with three.consumer(partitions=[("t", 0)]) as consumer:
        await take(consumer, 5)
        await consumer.assign([])
        assert await consumer.poll(timeout_ms=20) == []
        assert consumer.assignment() == []
        with pytest.raises(UsageError, match="t-0 is not assigned"):
            consumer.position("t", 0)


@pytest.mark.parametrize("method", ["seek", "position", "lag", "pause", "resume"])
async def test_a_partition_that_is_not_assigned_is_refused(one, method):
    async with one.consumer() as consumer:
        arguments = [("x", 3)] if method in ("pause", "resume") else ["x", 3]
        with pytest.raises(UsageError, match="x-3 is not assigned"):
            getattr(consumer, method)(*arguments, *([0] if method == "seek" else []))


@pytest.mark.parametrize("partition", [-1, 1])
async def test_a_partition_that_does_not_exist_is_refused(one, partition):
    consumer = one.consumer(partitions=[("t", partition)])
    with pytest.raises(UsageError, match="does not exist, 't' has 1 partition"):
        await consumer.__aenter__()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"auto_offset_reset": "first"}, "auto_offset_reset is 'first', expected one of earliest"),
        ({"topics": ["t"], "partitions": [("t", 0)]}, "topics or partitions, not both"),
    ],
)
def test_options_that_cannot_work_together_are_refused(options, why):
    with pytest.raises(UsageError, match=why):
        Consumer("127.0.0.1:1", **options)


async def test_a_consumer_outside_its_block_says_so(one):
    consumer = one.consumer()

    async def check_closed():
        with pytest.raises(ClosedError, match="async with"):
            await consumer.poll(timeout_ms=10)
        with pytest.raises(ClosedError, match="async with"):
            await consumer.assign([("t", 0)])
        with pytest.raises(ClosedError, match="async with"):
            await anext(consumer)

    await check_closed()
    async with consumer:
        # The rest of the batch is there, and goes with the block.
        assert values_of(await take(consumer, 1)) == numbered(1)
    await check_closed()


# --- what happens meanwhile ---------------------------------------------------------------------


async def test_a_deleted_topic_is_an_error_and_not_silence(one):
    async with one.consumer() as consumer, one.admin() as admin:
        await take(consumer, 10)
        await admin.delete_topic("t")
        with trio.fail_after(PATIENCE_S), pytest.raises(ApiError) as caught:
            await consumer.poll(timeout_ms=60_000)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def live(disk, config, end, *, task_status):
    """A node until `end` is set, which stops it in order, or until this is cancelled."""
    with trio.CancelScope() as life:
        async with new_node(disk, config) as node:
            task_status.started((node, life))
            await end.wait()


@pytest.mark.parametrize("killed", [False, True], ids=["stopped in order", "killed"])
async def test_reading_and_writing_go_on_after_the_broker_was_restarted(killed):
    disk, rows, end = SimDisk(), numbered(180), trio.Event()
    async with trio.open_nursery() as nursery:
        node, life = await nursery.start(live, disk, settings(), end)
        async with client_of(node) as client:
            await client.create()
        async with (
            Producer(node.address, clock=FakeClock()) as producer,
            Consumer(node.address, topics=["t"], auto_offset_reset="earliest") as consumer,
        ):
            for row in rows[:60]:
                await producer.send("t", row)
            found = await take(consumer, 40)
            life.cancel() if killed else end.set()
            while nursery.child_tasks:
                await trio.sleep(0.001)
            for row in rows[60:120]:
                await producer.send("t", row)
            config = settings({"listen.port": str(node.port)})
            node, life = await nursery.start(live, disk, config, trio.Event())
            for row in rows[120:]:
                await producer.send("t", row)
            with trio.fail_after(PATIENCE_S):
                found += await take(consumer, 140)
        assert values_of(found) == rows
        assert [record.offset for record in found] == list(range(180))
        async with client_of(node) as client:
            assert await client.values() == rows
        life.cancel()
