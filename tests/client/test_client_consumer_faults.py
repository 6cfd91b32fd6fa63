"""The consumer and a broker that misbehaves: nothing is lost or repeated or waits in vain.

Goal: Kafka's rules, and promises 2 and 7 of the design. Method: `FakeBroker` in
memory on trio's autojump clock, so that time-outs and idle hours cost nothing.
"""

import random
from collections import Counter

import pytest
import trio
from brokers import batch
from clients import take, values_of
from fake_broker import (
    CLOSE_IN_MID_ANSWER,
    GARBAGE,
    IGNORE,
    LOSE_ANSWER,
    NO_FRAME,
    FakeBroker,
    Trick,
    in_memory,
    on_tcp,
    refuse,
)
from tries import few

from hightide import ApiError, Consumer, CorruptBatch, ErrorCode
from hightide.protocol import messages as m
from hightide.protocol.records import encode_batch

FAULTS = {
    "closes in mid-answer": CLOSE_IN_MID_ANSWER,
    "loses the answer": LOSE_ANSWER,
    "answers no message": GARBAGE,
    "answers no frame": NO_FRAME,
    "does not lead": refuse("NOT_LEADER_OR_FOLLOWER"),
    "knows another epoch": refuse("FENCED_LEADER_EPOCH"),
    "does not know its watermark": refuse("OFFSET_NOT_AVAILABLE"),
    "answers about nothing": Trick(body=m.FetchResponse(partitions=[])),
    "is not ready": Trick(envelope=ErrorCode.BROKER_NOT_AVAILABLE),
    "never answers": IGNORE,
}


def numbered(count):
    return [b"%04d" % number for number in range(count)]


def filled(*, partitions=1, batches=10, of=10, **options):
    """A broker whose partitions hold `batches` batches of `of` records."""
    broker = FakeBroker({"t": partitions}, **options)
    rows = numbered(batches * of)
    for partition in range(partitions):
        for start in range(0, len(rows), of):
            broker.append(batch(*rows[start : start + of]), partition=partition)
    return broker


def consumer_of(broker, network, **options):
    plain = {
        "topics": ["t"],
        "auto_offset_reset": "earliest",
        "network": network,
        "random": random.Random(5),
        "request_timeout_ms": 5_000,
    }
    return Consumer(broker.address, **(plain | options))


async def read(consumer, count):
    """The next records; an hour without any is too long."""
    with trio.fail_after(3600):
        return await take(consumer, count)


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_every_record_is_read_once_whatever_a_broker_does_to_a_fetch(fault, autojump_clock):
    broker = filled()
    broker.will(m.FetchRequest, fault, Trick(), fault, fault)
    async with (
        in_memory(broker) as network,
        consumer_of(broker, network, max_partition_fetch_bytes=300) as consumer,
    ):
        records = await read(consumer, 100)
        broker.will(m.FetchRequest, fault)
        await trio.sleep(10)
        broker.append(batch(b"end"))
        records += await read(consumer, 1)
    assert values_of(records) == [*numbered(100), b"end"]
    assert [record.offset for record in records] == list(range(101))


@pytest.mark.parametrize("fault", [LOSE_ANSWER, CLOSE_IN_MID_ANSWER, NO_FRAME], ids=str)
async def test_the_same_holds_on_a_real_socket(fault):
    broker = filled()
    broker.will(m.FetchRequest, fault, Trick(), fault)
    async with (
        on_tcp(broker) as network,
        consumer_of(broker, network, max_partition_fetch_bytes=300) as consumer,
    ):
        with trio.fail_after(10):
            assert values_of(await take(consumer, 100)) == numbered(100)


@pytest.mark.parametrize("seed", few(range(8), 4))
async def test_every_record_is_read_once_through_a_storm(seed, autojump_clock):
    dice = random.Random(seed)
    broker = filled(partitions=3, batches=20)
    broker.will(m.FetchRequest, *dice.choices([*FAULTS.values(), *[Trick()] * 10], k=60))
    unreachable = [LOSE_ANSWER, IGNORE, Trick(), Trick()]
    broker.will(m.MetadataRequest, Trick(), *dice.choices(unreachable, k=10))
    broker.will(m.ListOffsetsRequest, *dice.choices([*unreachable, FAULTS["does not lead"]], k=5))
    options = {"max_partition_fetch_bytes": 300, "prefetch_bytes": 900, "random": dice}
    found = {0: [], 1: [], 2: []}
    async with in_memory(broker) as network, consumer_of(broker, network, **options) as consumer:
        with trio.fail_after(3600):
            while sum(map(len, found.values())) < 600:
                try:
                    for record in await consumer.poll(timeout_ms=10_000):
                        found[record.partition].append(record.offset)
                except ApiError:
                    continue  # They lasted too long to be hidden; the next call tries again.
    assert found == {partition: list(range(200)) for partition in range(3)}


@pytest.mark.parametrize(
    "code", ["UNKNOWN_SERVER_ERROR", "INVALID_REQUEST", "UNSUPPORTED_VERSION"], ids=str
)
@pytest.mark.parametrize("where", ["partition", "envelope"])
async def test_a_fetch_that_is_refused_for_good_is_told_to_the_caller(code, where, autojump_clock):
    broker = filled()
    trick = refuse(code) if where == "partition" else Trick(envelope=ErrorCode(code))
    broker.always(m.FetchRequest, trick)
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        with trio.fail_after(60), pytest.raises(ApiError) as caught:
            await consumer.poll(timeout_ms=100_000)
        broker.always(m.FetchRequest, None)
    assert (caught.value.code, caught.value.broker) == (code, broker.address)


async def test_a_damaged_batch_is_an_error_each_time_and_can_be_passed_by_a_seek(autojump_clock):
    broker = filled(batches=3)
    broker.logs[("t", 0)].batches[1][-1] ^= 1
    found, errors = [], []

    async def poll(consumer):
        try:
            found.extend(await consumer.poll(timeout_ms=60_000))
        except CorruptBatch as error:
            errors.append(str(error))

    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        while len(errors) < 3:
            await poll(consumer)
        assert [record.offset for record in found] == list(range(10))
        assert consumer.position("t", 0) == 10
        consumer.seek("t", 0, 20)
        while len(found) < 20:
            await poll(consumer)
    assert [record.offset for record in found[10:]] == list(range(20, 30))
    assert all(f"t-0 from {broker.address}: batch at offset 10 " in error for error in errors)


async def test_a_batch_that_cannot_be_opened_is_an_error_at_once_each_time(autojump_clock):
    """Its checksum is right; and it is as much as is fetched ahead."""
    broker = filled(batches=0)
    nonsense = encode_batch(b"nonsense" * 40, record_count=1, base_timestamp=1, max_timestamp=1)
    broker.append(nonsense)
    options = {"max_partition_fetch_bytes": 100}
    async with in_memory(broker) as network, consumer_of(broker, network, **options) as consumer:
        for poll in [consumer.poll, consumer.poll_arrow] * 2:
            with pytest.raises(CorruptBatch):
                assert await poll(timeout_ms=10_000) is not None


async def test_a_seek_past_the_damage_ends_the_trouble(autojump_clock):
    broker = filled(batches=3)
    broker.logs[("t", 0)].batches[1][-1] ^= 1
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        assert values_of(await read(consumer, 10)) == numbered(10)
        with pytest.raises(CorruptBatch):
            await consumer.poll(timeout_ms=60_000)
        await trio.sleep(10)
        consumer.seek("t", 0, 20)
        records = await read(consumer, 10)
        assert await consumer.poll(timeout_ms=10_000) == []
    assert [record.offset for record in records] == list(range(20, 30))


async def test_another_partition_is_read_although_one_is_damaged(autojump_clock):
    broker = filled(partitions=2, batches=3)
    broker.logs[("t", 0)].batches[1][-1] ^= 1
    found, errors = {0: [], 1: []}, 0
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        with trio.fail_after(3600):
            while len(found[1]) < 30 or not errors:
                try:
                    for record in await consumer.poll(timeout_ms=1_000):
                        found[record.partition].append(record.offset)
                except CorruptBatch:
                    errors += 1
    assert found == {0: list(range(10)), 1: list(range(30))}


async def test_a_partition_in_trouble_that_is_taken_away_troubles_nobody_any_more(autojump_clock):
    broker = filled(partitions=2, batches=3)
    broker.logs[("t", 0)].batches[1][-1] ^= 1
    options = {"topics": [], "partitions": [("t", 0)]}
    async with in_memory(broker) as network, consumer_of(broker, network, **options) as consumer:
        # The first batch waits to be handed out, the second one is known to be damaged.
        await trio.sleep(10)
        await consumer.assign([("t", 1)])
        records = await read(consumer, 30)
    assert {record.partition for record in records} == {1}


async def test_what_was_fetched_is_handed_out_before_the_reset_policy_is_asked(autojump_clock):
    broker = filled()
    options = {"auto_offset_reset": "latest", "max_poll_records": 5}
    async with in_memory(broker) as network, consumer_of(broker, network, **options) as consumer:
        consumer.seek("t", 0, 0)
        records = await read(consumer, 5)
        broker.will(m.FetchRequest, refuse("OFFSET_OUT_OF_RANGE"))
        await trio.sleep(10)
        records += await read(consumer, 95)
        await trio.sleep(10)
        broker.append(batch(b"end"))
        records += await read(consumer, 1)
    assert [record.offset for record in records] == list(range(101))


# --- leaders ------------------------------------------------------------------------------------


async def test_a_partition_without_a_leader_does_not_stop_the_others(autojump_clock):
    broker = filled(partitions=3, leaders={("t", 0): -1, ("t", 1): -1})
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        records = await read(consumer, 100)
        assert {record.partition for record in records} == {2}
        broker.leaders.clear()
        records = await read(consumer, 200)
        assert {record.partition for record in records} == {0, 1}


async def test_a_broker_that_is_down_does_not_stop_the_partitions_of_another(autojump_clock):
    gone = m.BrokerInfo(id=2, host="127.0.0.1", port=2)
    broker = filled(partitions=2, others=[gone], leaders={("t", 0): 2})
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        started = trio.current_time()
        records = await read(consumer, 100)
        assert {record.partition for record in records} == {1}
        assert trio.current_time() - started < 2


@pytest.mark.parametrize("hinted", [True, False])
async def test_reading_goes_on_at_the_new_leader(hinted, autojump_clock):
    infos = [m.BrokerInfo(id=number, host="127.0.0.1", port=number) for number in (1, 2)]
    first = filled(id=1, port=1, others=[infos[1]])
    second = filled(batches=12, id=2, port=2, others=[infos[0]], leaders={("t", 0): 2})
    async with in_memory(first, second) as network, consumer_of(first, network) as consumer:
        records = await read(consumer, 100)
        hint = m.LeaderHint(leader=2, leader_epoch=1) if hinted else None
        first.always(m.FetchRequest, refuse("NOT_LEADER_OR_FOLLOWER", hint=hint))
        await first.break_connections()
        first.leaders[("t", 0)] = 2
        records += await read(consumer, 20)
    assert values_of(records) == numbered(120)


# --- limits -------------------------------------------------------------------------------------


async def test_what_is_fetched_ahead_is_bounded_and_reading_on_fetches_the_rest(autojump_clock):
    broker = filled(partitions=10, batches=20, of=20)
    stored = sum(len(data) for log in broker.logs.values() for data in log.batches)
    options = {"prefetch_bytes": 5_000, "max_partition_fetch_bytes": 2_000}
    async with in_memory(broker) as network, consumer_of(broker, network, **options) as consumer:
        await trio.sleep(60)
        assert 5_000 < broker.bytes_sent < 11_000 < stored / 2
        fetches = broker.count(m.FetchRequest)
        await trio.sleep(3600)
        assert broker.count(m.FetchRequest) == fetches, "it has enough, and asks for no more"
        records = await read(consumer, 4_000)
    assert len({(record.partition, record.offset) for record in records}) == 4_000


async def test_the_first_fetch_waits_for_offsets_that_are_being_looked_up(autojump_clock):
    # Else it is parked with some of the partitions, and the others wait for its end.
    for partition in range(4):
        broker = FakeBroker({"t": 4})
        broker.append(batch(b"here"), partition=partition)
        async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
            assert values_of(await consumer.poll(timeout_ms=400)) == [b"here"]
        first = next(each for each in broker.requests if isinstance(each, m.FetchRequest))
        assert len(first.partitions) == 4


async def test_a_paused_partition_is_not_fetched(autojump_clock):
    broker = filled(partitions=2, batches=1)
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        await read(consumer, 20)
        consumer.pause(("t", 0))
        await trio.sleep(10)
        broker.requests.clear()
        await trio.sleep(10)
        fetches = [r for r in broker.requests if isinstance(r, m.FetchRequest)]
        assert {part.partition for fetch in fetches for part in fetch.partitions} == {1}


async def test_a_batch_larger_than_a_fetch_is_read_all_the_same(autojump_clock):
    broker = FakeBroker({"t": 1})
    rows = [b"x" * 50_000, b"y" * 50_000]
    for row in rows:
        broker.append(batch(row))
    options = {
        "max_partition_fetch_bytes": 1_000,
        "prefetch_bytes": 1_000,
        "fetch_max_bytes": 1_000,
    }
    async with in_memory(broker) as network, consumer_of(broker, network, **options) as consumer:
        assert values_of(await read(consumer, 2)) == rows


async def test_batches_from_before_the_offset_that_was_asked_for_are_left_out(autojump_clock):
    broker = filled()
    broker.logs[("t", 0)].reads_before = 25
    async with (
        in_memory(broker) as network,
        consumer_of(broker, network, max_partition_fetch_bytes=1_000) as consumer,
    ):
        consumer.seek("t", 0, 33)
        records = await read(consumer, 67)
        assert await consumer.poll(timeout_ms=5_000) == []
    assert [record.offset for record in records] == list(range(33, 100))


async def test_an_answer_to_a_fetch_from_before_a_seek_is_dropped(autojump_clock):
    broker = filled(batches=2)
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        await read(consumer, 20)
        # The next fetch, at the end of the log, is parked: what it brings was not asked for.
        await trio.sleep(0.1)
        consumer.seek("t", 0, 3)
        broker.append(batch(b"end"))
        records = await read(consumer, 18)
    assert [record.offset for record in records] == list(range(3, 21))


async def test_a_cancelled_look_up_does_not_keep_anybody_from_reading_on(autojump_clock):
    broker = filled(batches=1)
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        await read(consumer, 10)
        broker.will(m.ListOffsetsRequest, IGNORE)
        with trio.move_on_after(1):
            await consumer.offsets(m.LATEST)
        await trio.sleep(2)  # the fetch that was parked meanwhile has been answered
        broker.append(batch(b"end"))
        with trio.fail_after(5):
            assert values_of(await read(consumer, 1)) == [b"end"]


# --- idle hours ---------------------------------------------------------------------------------


async def test_a_consumer_sleeps_while_there_is_nothing_to_do(autojump_clock):
    broker = filled(batches=1)
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        await read(consumer, 10)
        broker.requests.clear()
        await trio.sleep(600)
        assert await consumer.poll() == []
    # One parked fetch after the other, and metadata when it is old.
    assert 600 < broker.count(m.FetchRequest) < 1_500
    assert 1 <= broker.count(m.MetadataRequest) <= 3


@pytest.mark.parametrize("pause_s", [0, 2])
async def test_each_damaged_partition_is_told_of_and_the_others_are_read(pause_s, autojump_clock):
    """Also by who takes long between two polls, so that each is damaged again by then."""
    broker = filled(partitions=3, batches=2)
    for partition in range(2):
        broker.logs[("t", partition)].batches[0][-1] ^= 1
    found, told = [], Counter()
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        with trio.fail_after(3600):
            while len(found) < 20 or min(told["t-0"], told["t-1"]) < 3:
                try:
                    found += await consumer.poll(timeout_ms=1_000, max_records=5)
                except CorruptBatch as error:
                    told[str(error)[:3]] += 1
                await trio.sleep(pause_s)
    assert [(record.partition, record.offset) for record in found] == [(2, n) for n in range(20)]
    assert abs(told["t-0"] - told["t-1"]) <= 1


@pytest.mark.parametrize("damaged", [1, 2])
async def test_a_consumer_sleeps_while_nobody_asks_for_its_trouble(damaged, autojump_clock):
    broker = filled(batches=1, partitions=damaged)
    for partition in range(damaged):
        broker.logs[("t", partition)].batches[0][-1] ^= 1
    often = {"metadata_max_age_ms": 30_000}
    async with in_memory(broker) as network, consumer_of(broker, network, **often) as consumer:
        for _ in range(3):
            broker.requests.clear()
            await trio.sleep(70)
            assert broker.count(m.FetchRequest) == 1
            with pytest.raises(CorruptBatch):
                await consumer.poll(timeout_ms=1_000)


async def test_without_metadata_starting_fails_after_default_api_timeout_ms(autojump_clock):
    broker = FakeBroker({"t": 1}, is_down=True)
    async with in_memory(broker) as network:
        consumer = consumer_of(broker, network, default_api_timeout_ms=7_000)
        with pytest.raises(Exception, match=f"broker {broker.address}.* see timeout 7 s"):
            await consumer.__aenter__()
    assert 5 < trio.current_time() < 8
