"""The producer against a real node: what is sent is stored, in order, and its delivery says where.

Goal: Kafka's rules and `producer.py`. Method: a node in this process
on a simulated disk, talked to over a real socket; what was stored is read by the broker tests' own
client. A broker that misbehaves is `test_client_faults.py`'s.
"""

from collections import Counter
from itertools import pairwise

import pytest
import trio
from brokers import NOW_MS, FakeClock
from clients import FOR_EVER_MS, one_node
from patience import PATIENCE_S

from hightide import ApiError, ErrorCode, Producer
from hightide.produce.partitioner import partition_for_key
from hightide.protocol.errors import ClosedError, RecordTooLarge, UsageError


@pytest.fixture
async def four():
    async with one_node(partitions=4) as found:
        yield found


# --- order and place ----------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, "all"])
async def test_each_partition_holds_its_records_in_the_order_of_send(four, acks):
    async with four.producer(acks=acks, batch_size=300) as producer:
        for number in range(400):
            await producer.send("t", b"%d" % number, partition=number % 4)
    assert await four.everything() == {
        p: [b"%d" % number for number in range(400) if number % 4 == p] for p in range(4)
    }


async def test_a_delivery_says_where_its_record_is(four):
    async with four.producer(batch_size=200) as producer:
        sent = [(b"%d" % n, await producer.send("t", b"%d" % n)) for n in range(100)]
        places = [(value, await delivery) for value, delivery in sent]
    stored = {p: await four.records(p) for p in range(4)}
    for value, place in places:
        record = stored[place.partition][place.offset]
        assert (place.topic, record.offset, record.value) == ("t", place.offset, value)
        assert record.timestamp == place.timestamp


async def test_deliveries_are_right_when_many_tasks_send_at_once(one):
    places = {}

    async def send_some(producer, name):
        for number in range(5):
            value = b"%s-%d" % (name, number)
            places[value] = await producer.send("t", value)

    async with one.producer(batch_size=200) as producer:
        await (await producer.send("t", b"first"))
        async with trio.open_nursery() as nursery:
            for name in (b"a", b"b", b"c", b"d"):
                nursery.start_soon(send_some, producer, name)
        offsets = {value: (await delivery).offset for value, delivery in places.items()}
    stored = {record.value: record.offset for record in await one.records()}
    assert len(stored) == 21
    assert offsets == {value: offset for value, offset in stored.items() if value != b"first"}


async def test_a_delivery_can_be_awaited_twice_and_by_several_tasks(one):
    seen = []

    async def look(delivery):
        seen.append(await delivery)

    async with one.producer(linger_ms=20) as producer:
        delivery = await producer.send("t", b"x")
        assert not delivery.is_done
        with pytest.raises(UsageError, match="not known yet"):
            delivery.result()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(look, delivery)
        assert await delivery == delivery.result()
        assert delivery.is_done
    assert [place.offset for place in seen] == [0, 0, 0]


async def test_keys_decide_the_partition_as_in_kafka(four):
    keys = [b"", b"21", b"foobar", *(b"key-%d" % n for n in range(40))]
    async with four.producer() as producer:
        deliveries = [await producer.send("t", b"v", key=key) for key in keys]
        found = [(await delivery).partition for delivery in deliveries]
    assert found == [partition_for_key(key, 4) for key in keys]
    assert set(found) == set(range(4))


async def test_an_explicit_partition_wins_over_the_key(four):
    async with four.producer() as producer:
        for partition in range(4):
            delivery = await producer.send("t", b"v", key=b"same", partition=partition)
            assert (await delivery).partition == partition


async def test_records_without_a_key_share_a_batch_and_the_next_batch_goes_elsewhere(four):
    async with four.producer(linger_ms=FOR_EVER_MS) as producer:
        rounds = []
        for _ in range(8):
            deliveries = [await producer.send("t", b"v") for _ in range(10)]
            await producer.flush()
            rounds.append([delivery.result().partition for delivery in deliveries])
    assert all(len(set(partitions)) == 1 for partitions in rounds)
    chosen = [partitions[0] for partitions in rounds]
    assert all(before != after for before, after in pairwise(chosen))


async def test_over_many_batches_every_partition_gets_its_share(four):
    async with four.producer(batch_size=100) as producer:
        for _ in range(400):
            await producer.send("t", b"0123456789" * 5)
    shares = Counter({p: len(values) for p, values in (await four.everything()).items()})
    assert shares.total() == 400
    assert min(shares.values()) > 40


# --- what a record is ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_keys_values_headers_and_timestamps_arrive_whatever_the_compression(one, codec):
    rows = [
        (b"k", b"v", 1_000, [("a", b"1"), ("a", None), ("ü", b"")]),
        (None, None, 0, []),
        (b"", b"", 999, []),
        (None, b"\x00\xff" * 3_000, NOW_MS + 60_000, [("h", b"x" * 300)]),
    ]
    async with one.producer(compression_type=codec) as producer:
        for key, value, stamp, headers in rows:
            await producer.send("t", value, key=key, timestamp=stamp, headers=headers, partition=0)
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in await one.records()] == rows


@pytest.mark.parametrize(("codec", "is_small"), [("none", False), ("lz4", True), ("zstd", True)])
async def test_compression_makes_the_stored_bytes_fewer(one, codec, is_small):
    async with one.producer(compression_type=codec) as producer:
        for _ in range(10):
            await producer.send("t", b"a" * 5_000)
    size = (await one.client.log_dirs())[("t", 0)].size_bytes
    assert (size < 5_000) == is_small


async def test_a_record_without_a_timestamp_gets_the_producers_time(one):
    clock = FakeClock(NOW_MS + 123)
    async with one.producer(clock=clock) as producer:
        delivery = await producer.send("t", b"v")
        clock.ms += 1_000
        assert (await delivery).timestamp == NOW_MS + 123
    assert [record.timestamp for record in await one.records()] == [NOW_MS + 123]


async def test_with_log_append_time_the_delivery_has_the_brokers_time(one):
    await one.client.alter({"message.timestamp.type": "LogAppendTime"})
    async with one.producer() as producer:
        place = await (await producer.send("t", b"v", timestamp=5))
    (record,) = await one.records()
    assert (place.timestamp, record.timestamp, record.timestamp_type) == (NOW_MS, NOW_MS, 1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"partition": 4}, "partition 4, topic 't' has 0 to 3"),
        ({"partition": -1}, "partition -1"),
        ({"timestamp": -1}, "timestamp -1, expected ms since 1970"),
        ({"timestamp": 1 << 63}, "timestamp 9223372036854775808"),
    ],
)
async def test_a_record_that_cannot_be_is_refused_by_send(four, options, why):
    async with four.producer() as producer:
        with pytest.raises(UsageError, match=why):
            await producer.send("t", b"v", **options)
        await producer.send("t", b"good")
    assert sum(map(len, (await four.everything()).values())) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"value": "text"}, {"value": 5}, {"value": b"v", "key": "text"}]
    + [{"value": b"v", "headers": [pair]} for pair in [("a", "text"), (b"a", b"v"), ("a", 5)]],
    ids=str,
)
async def test_a_record_of_the_wrong_type_is_refused_by_send_and_harms_nothing(one, wrong):
    async with one.producer() as producer:
        with pytest.raises((TypeError, UsageError)):
            await producer.send("t", **wrong)
        place = await (await producer.send("t", b"good"))
    assert place.offset == 0
    assert await one.values() == [b"good"]


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("knob", ["max_request_size", "buffer_memory"])
async def test_a_record_that_can_never_be_sent_is_refused_at_once(one, knob):
    async with one.producer(**{knob: 1_000}) as producer:
        with pytest.raises(RecordTooLarge, match=rf"{knob} is 1000"):
            await producer.send("t", b"x" * 1_000)
        await producer.send("t", b"x" * 500)
    assert await one.values() == [b"x" * 500]


@pytest.mark.parametrize("limit", ["max.message.bytes", "segment.bytes"])
async def test_a_batch_larger_than_the_topic_allows_is_split_and_loses_nothing(one, limit):
    await one.client.alter({limit: "1100"})
    rows = [b"%03d" % number + b"x" * 100 for number in range(40)]
    async with one.producer(linger_ms=FOR_EVER_MS) as producer:
        deliveries = [await producer.send("t", row) for row in rows]
        await producer.flush()
        offsets = [delivery.result().offset for delivery in deliveries]
    assert await one.values() == rows
    assert offsets == list(range(40))


async def test_a_record_larger_than_the_topic_allows_fails_alone_and_says_why(one):
    await one.client.alter({"max.message.bytes": "1000"})
    async with one.producer(linger_ms=FOR_EVER_MS) as producer:
        before = await producer.send("t", b"before")
        large = await producer.send("t", b"x" * 2_000)
        after = await producer.send("t", b"after")
        await producer.flush()
        assert (await before).offset == 0
        with pytest.raises(ApiError) as caught:
            await large
        assert (await after).offset == 1
    assert await one.values() == [b"before", b"after"]
    error = caught.value
    assert (error.code, error.retriable) == (ErrorCode.MESSAGE_TOO_LARGE, False)
    assert (error.broker, error.attempts >= 1) == (one.address, True)
    assert "(t-0)" in str(error)
    assert f"broker {one.address}" in str(error)


async def test_every_record_of_a_batch_learns_its_error(one):
    async with one.producer(linger_ms=FOR_EVER_MS, acks=1) as producer:
        deliveries = [await producer.send("t", b"%d" % n) for n in range(3)]
        await one.client.alter({"max.message.bytes": "10"})
        await producer.flush()
        for delivery in deliveries:
            with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
                await delivery


# --- acknowledgements and the end ---------------------------------------------------------------


@pytest.mark.parametrize(("acks", "offset"), [(0, -1), ("0", -1), (1, 2), ("all", 2), (-1, 2)])
async def test_the_offset_is_known_if_somebody_acknowledged(one, acks, offset):
    await one.client.produce(b"a", b"b")
    async with one.producer(acks=acks) as producer:
        assert (await (await producer.send("t", b"c"))).offset == offset
    with trio.fail_after(PATIENCE_S):
        while await one.values() != [b"a", b"b", b"c"]:
            await trio.sleep(0.01)


async def test_leaving_the_block_waits_until_everything_is_stored(one):
    async with one.producer(linger_ms=FOR_EVER_MS) as producer:
        deliveries = [await producer.send("t", b"%d" % n) for n in range(100)]
        assert not any(delivery.is_done for delivery in deliveries)
    assert [delivery.result().offset for delivery in deliveries] == list(range(100))
    assert len(await one.values()) == 100


async def test_flush_waits_for_what_was_sent_before_it(one):
    async with one.producer(linger_ms=FOR_EVER_MS) as producer:
        await producer.flush()
        delivery = await producer.send("t", b"x")
        await producer.flush()
        assert delivery.result().offset == 0
        later = await producer.send("t", b"y")
        assert not later.is_done, "the flush is over, and records linger again"


async def test_a_send_that_is_cancelled_sends_nothing(one):
    async with one.producer() as producer:
        await producer.send("t", b"first")
        await producer.flush()
        with trio.CancelScope() as scope:
            scope.cancel()
            await producer.send("t", b"cancelled")
        await producer.send("t", b"last")
    sent = [] if scope.cancelled_caught else [b"cancelled"]
    assert await one.values() == [b"first", *sent, b"last"]


async def test_an_error_that_nobody_looked_at_is_raised_at_the_end_of_the_block(one):
    await one.client.alter({"max.message.bytes": "500"})
    with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
        async with one.producer() as producer:
            await producer.send("t", b"x" * 1_000)
    assert await one.values() == []


async def test_an_error_that_was_awaited_is_not_raised_again(one):
    await one.client.alter({"max.message.bytes": "500"})
    async with one.producer() as producer:
        with pytest.raises(ApiError):
            await (await producer.send("t", b"x" * 1_000))


async def test_the_blocks_own_error_is_the_one_that_leaves_and_nothing_is_lost(one):
    await one.client.alter({"max.message.bytes": "500"})

    async def send_and_fail():
        async with one.producer(linger_ms=FOR_EVER_MS) as producer:
            await producer.send("t", b"x" * 1_000)
            await producer.send("t", b"good")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await send_and_fail()
    assert await one.values() == [b"good"]


async def test_a_producer_outside_its_block_says_so(one):
    producer = one.producer()
    with pytest.raises(ClosedError, match="async with"):
        await producer.send("t", b"x")
    async with producer:
        await producer.send("t", b"x")
    with pytest.raises(ClosedError, match="async with"):
        await producer.send("t", b"x")
    with pytest.raises(ClosedError, match="async with"):
        await producer.flush()
    assert await one.values() == [b"x"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"acks": 2}, "acks is 2"),
        ({"acks": "none"}, "acks is 'none'"),
        (
            {"compression_type": "gzip"},
            "compression_type is 'gzip', expected one of none, lz4, zstd",
        ),
        ({"acks": 1, "enable_idempotence": True}, "enable_idempotence needs acks='all'"),
        (
            {"max_in_flight_requests_per_connection": 6, "enable_idempotence": True},
            "connection up to 5",
        ),
    ],
)
def test_options_that_cannot_work_together_are_refused(options, why):
    with pytest.raises(UsageError, match=why):
        Producer("127.0.0.1:1", **options)


# --- topics that come and go --------------------------------------------------------------------


async def test_an_unknown_topic_is_refused_by_send_and_names_the_knob(one):
    async with one.producer() as producer:
        with pytest.raises(ApiError) as caught:
            await producer.send("nowhere", b"x")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "see auto.create.topics.enable" in str(caught.value)


async def test_an_unknown_topic_is_made_where_the_broker_allows_it():
    async with one_node(auto_create_topics_enable="true") as open_world:
        async with open_world.producer() as producer:
            await producer.send("fresh", b"x")
        assert await open_world.client.values(topic="fresh") == [b"x"]


async def test_a_topic_that_is_deleted_and_made_again_is_written_to_again(one):
    patience = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 5_000}
    async with one.producer(**patience) as producer, one.admin() as admin:
        await (await producer.send("t", b"old"))
        await admin.delete_topic("t")
        delivery = await producer.send("t", b"new")
        await trio.sleep(0.15)
        more = await producer.send("t", b"more")
        await admin.create_topic("t", partitions=1)
        with trio.fail_after(PATIENCE_S):
            await delivery
            await more
    assert await one.values() == [b"new", b"more"]


async def test_partitions_that_were_added_are_used_once_metadata_is_old(one):
    async with one.producer(metadata_max_age_ms=20) as producer, one.admin() as admin:
        await producer.send("t", b"x")
        await admin.create_partitions("t", 3)
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    delivery = await producer.send("t", b"y", partition=2)
                    break
                except UsageError:
                    await trio.sleep(0.01)
        assert (await delivery).partition == 2
