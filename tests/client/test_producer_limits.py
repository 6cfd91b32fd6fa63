"""A producer that goes on for long: what a topic refuses, the end of its epochs, memory that is
short, errors that nobody looked at, and values of the wrong kind.

Goal: nothing that a program does for months ends its producer, and nothing that it does wrong is
swallowed. Method: real nodes where a node is all it takes; a broker that plays tricks on trio's
autojump clock where it is not.
"""

import random
from itertools import pairwise

import numpy as np
import pytest
import trio
from accumulating import REFUSED, Story, header, stored
from brokers import FakeClock
from clients import FOR_EVER_MS
from fake_broker import IGNORE, FakeBroker, Trick, in_memory, refuse

from hightide import ApiError, Producer
from hightide.produce.delivery import ERRORS_KEPT, Unseen
from hightide.protocol import messages as m
from hightide.protocol.errors import DeliveryTimeout, ErrorCode, UsageError
from hightide.protocol.records import iter_batches


def producer_of(broker, network, **options):
    seeded = {"random": random.Random(3), "clock": FakeClock()}
    return Producer(broker.address, network=network, **(seeded | options))


def numbered(count):
    return [b"%04d" % number for number in range(count)]


# --- what a topic refuses -----------------------------------------------------------------------


async def test_what_a_topic_refused_is_remembered_so_that_epochs_last(one):
    await one.client.alter({"max.message.bytes": "1000"})
    rows = [b"%04d" % number + b"x" * 96 for number in range(400)]
    async with one.producer(linger_ms=FOR_EVER_MS) as producer:
        for start in range(0, len(rows), 40):
            await producer.send_many("t", rows[start : start + 40])
            await producer.flush()
    assert await one.values() == rows
    part = m.FetchPartition(topic="t", partition=0, fetch_offset=399, max_bytes=1 << 20)
    request = m.FetchRequest(max_wait_ms=0, max_bytes=1 << 20, partitions=[part])
    _, (data,) = await one.client.connection.call(request, timeout_s=10)
    last = [found for found, _ in iter_batches(data)][-1]
    assert last.producer_epoch <= 4, "a refusal for each halving, not for each batch"


def test_batches_that_wait_are_halved_before_they_get_a_sequence():
    story = Story(batch_size=100)
    (refused,) = story.fill(b"a")
    story.put(b"b", b"c", b"d", b"e", size=20)
    (sent,) = story.send()
    waiting = story.queue().pending[0]
    assert sent[0] is refused
    story.core.fail(refused, REFUSED)
    assert len(waiting) == 4
    story.core._sizes["t"] = story.queue().batch_size = 40
    assert story.core.shrink(story.queue()) == [waiting]
    assert stored(story.send(now=5.0)) == [b"b", b"c"]
    assert not waiting.parts[0].is_done


def test_the_other_half_of_what_was_halved_is_halved_too():
    story = Story(batch_size=100)
    story.put(*(b"%d" % n for n in range(8)), size=10)
    whole = story.queue().pending[0]
    story.core._sizes["t"] = story.queue().batch_size = 20
    assert story.core.shrink(story.queue()) == [whole, whole.parts[0]]
    assert [len(batch) for batch in story.queue().pending] == [2, 2, 4]


async def test_a_flush_waits_for_halves_of_halves(one):
    await one.client.alter({"max.message.bytes": "1000"})
    rng, sent = random.Random(7), 0
    for _ in range(6):
        async with one.producer(linger_ms=FOR_EVER_MS, batch_size=1 << 20) as producer:
            rows = [bytes(rng.randrange(100, 600)) for _ in range(rng.randrange(2, 120))]
            deliveries = [await producer.send("t", row) for row in rows]
            await producer.flush()
            assert all(delivery.is_done for delivery in deliveries)
            sent += len(rows)
    assert len(await one.values()) == sent


@pytest.mark.parametrize("limit", ["max_request_size", "buffer_memory"])
async def test_a_batch_is_full_when_a_request_or_the_buffer_is(one, limit):
    async with one.producer(linger_ms=FOR_EVER_MS, **{limit: 1_000}) as producer:
        deliveries = [await producer.send("t", bytes(200)) for _ in range(5)]
        with trio.fail_after(30):
            await deliveries[0]


@pytest.mark.parametrize("linger_s", [0, 20])
async def test_what_is_not_answered_in_time_is_sent_again(autojump_clock, linger_s):
    broker = FakeBroker({"t": 1})
    broker.will(m.ProduceRequest, IGNORE)
    patience = {"request_timeout_ms": 1_000, "linger_ms": linger_s * 1000}
    async with in_memory(broker) as network, producer_of(broker, network, **patience) as producer:
        started = trio.current_time()
        await (await producer.send("t", b"x"))
        assert 2 <= trio.current_time() - started - linger_s <= 3
        assert producer.metrics()["requests_in_flight"] == 0
    assert broker.count(m.ProduceRequest) == 2


# --- the end of the epochs ----------------------------------------------------------------------


async def test_after_its_last_epoch_a_producer_goes_on_under_another_id(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.will(m.ProduceRequest, *[Trick(), refuse("INVALID_RECORD")] * 3)
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        producer._accumulator.epoch_max = 1
        for number in range(8):
            delivery = await producer.send("t", b"%d" % number)
            if number in (1, 3, 5):
                with pytest.raises(ApiError, match="INVALID_RECORD"):
                    await delivery
            else:
                await delivery
    assert broker.values() == [b"0", b"2", b"4", b"6", b"7"]
    found = [header(data) for data in broker.logs["t", 0].batches]
    first, *_ = [each.producer_id for each in found]
    places = [(each.producer_id - first, each.producer_epoch) for each in found]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 1)]


def test_a_partition_without_epochs_waits_and_the_others_go_on():
    story = Story()
    story.core.epoch_max = 0
    story.begin(0, 1)
    failed, _ = story.fill(b"x", b"after")
    story.send()
    story.core.fail(failed, REFUSED)
    assert (story.ready_at(now=9.0), story.core.wants_id) == (float("inf"), True)
    story.fill(b"other", partition=1)
    assert stored(story.send(now=9.0)) == [b"other"]
    story.core.producer_id = 8
    ((_, data),) = story.send(now=9.0)
    found = header(data)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (8, 0, 0)
    assert not story.core.wants_id


# --- memory -------------------------------------------------------------------------------------


async def test_memory_is_given_in_the_order_of_asking(autojump_clock):
    """A large record waits for half of the memory; small ones that came later must not take what
    becomes free, again and again."""
    broker = FakeBroker({"t": 1})
    order = []
    options = {
        "buffer_memory": 1_000,
        "batch_size": 100,
        "max_in_flight_requests_per_connection": 1,
        "linger_ms": 0,
    }
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        broker.always(m.ProduceRequest, IGNORE)
        for _ in range(9):
            await producer.send("t", b"f" * 80)

        async def send(name, size):
            await producer.send("t", b"x" * size)
            order.append(name)

        async with trio.open_nursery() as nursery:
            for name, size in [("large", 500), *((f"small {n}", 40) for n in range(5))]:
                nursery.start_soon(send, name, size)
                await trio.testing.wait_all_tasks_blocked()
            broker.always(m.ProduceRequest, None)
    assert order == ["large", *(f"small {n}" for n in range(5))]


async def test_who_waits_in_vain_does_not_hold_up_who_came_later(autojump_clock):
    broker = FakeBroker({"t": 1})
    options = {"buffer_memory": 1_000, "max_block_ms": 60_000}
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        broker.always(m.ProduceRequest, IGNORE)
        await producer.send("t", b"f" * 900)
        with trio.move_on_after(1):
            await producer.send("t", b"never" * 100)
        broker.always(m.ProduceRequest, None)
        await producer.send("t", b"later" * 20)
    assert broker.values() == [b"f" * 900, b"later" * 20]


# --- errors that nobody looked at ---------------------------------------------------------------


def test_an_error_among_many_that_were_seen_is_found():
    unseen = Unseen()
    seen = [unseen.add(ApiError(ErrorCode.INVALID_RECORD, str(n))) for n in range(3 * ERRORS_KEPT)]
    for number, see in enumerate(seen):
        if number != 2 * ERRORS_KEPT:
            see()
            see()
    assert isinstance(unseen.error, ApiError)
    seen[2 * ERRORS_KEPT]()
    assert unseen.error is None


async def test_an_error_that_nobody_saw_is_raised_after_hundreds_that_somebody_saw(one):
    await one.client.alter({"max.message.bytes": "500"})

    async def see_all_but_the_last():
        async with one.producer() as producer:
            for _ in range(2 * ERRORS_KEPT):
                with pytest.raises(ApiError):
                    await (await producer.send("t", b"x" * 1_000))
            await producer.send("t", b"x" * 1_000)

    with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
        await see_all_but_the_last()


# --- kinds --------------------------------------------------------------------------------------


async def test_many_values_may_come_from_a_generator(one):
    async with one.producer() as producer:
        sent = await producer.send_many("t", (row for row in numbered(50)))
        assert len(sent) == 50
        await producer.send_many("t", iter(numbered(2)), keys=(b"k" for _ in range(2)))
    assert await one.values() == numbered(50) + numbered(2)


async def test_whole_numbers_of_others_are_whole_numbers(one):
    async with one.producer() as producer:
        await producer.send("t", b"a", partition=np.int64(0), timestamp=np.int64(5))
        await producer.send_many("t", [b"b"], partition=np.int32(0), timestamp=np.int64(6))
    found = await one.records()
    assert [(r.value, r.timestamp) for r in found] == [(b"a", 5), (b"b", 6)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"timestamp": 1.5},
        {"timestamp": "5"},
        {"partition": 0.0},
        {"partition": "0"},
        {"headers": [("\udc80", b"x")]},
    ],
    ids=str,
)
async def test_values_of_the_wrong_kind_are_refused_where_they_are_given(one, wrong):
    async with one.producer() as producer:
        with pytest.raises(UsageError):
            await producer.send("t", b"x", **wrong)
        if "headers" not in wrong:
            with pytest.raises(UsageError):
                await producer.send_many("t", [b"x"], **wrong)
        await producer.send("t", b"fine")
    assert await one.values() == [b"fine"]


async def test_a_partitioner_that_answers_nonsense_is_refused_too(one):
    async with one.producer(partitioner=lambda *_: 0.5) as producer:
        with pytest.raises(UsageError, match=r"partition is 0\.5"):
            await producer.send("t", b"x")
        with pytest.raises(UsageError, match=r"partition is 0\.5"):
            await producer.send_many("t", [b"x"])


# --- when a batch is sent again -----------------------------------------------------------------


async def test_a_batch_comes_again_after_retry_backoff_ms_and_after_twice_that(autojump_clock):
    times, broker = [], FakeBroker({"t": 1})
    broker.will(m.ProduceRequest, *[refuse("NOT_ENOUGH_REPLICAS")] * 5)
    options = {"retry_backoff_ms": 200, "on_retry": lambda _: times.append(trio.current_time())}
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, **options) as producer,
    ):
        await producer.send("t", b"x")
    pauses = [later - before for before, later in pairwise(times)]
    assert pauses == [pytest.approx(pause, rel=0.21) for pause in (0.2, 0.4, 0.8, 1.0)]


async def test_each_attempt_that_is_refused_is_told_of_alone(autojump_clock):
    """What came of those before it stands with the last error alone, and once: a disk that was full
    for thirty seconds was told of in a line of 8 KB."""
    told, broker = [], FakeBroker({"t": 1})
    broker.will(m.ProduceRequest, *[refuse("KAFKA_STORAGE_ERROR")] * 5)
    broker.will(m.ProduceRequest, refuse("TOPIC_AUTHORIZATION_FAILED"))
    options = {"on_retry": lambda error: told.append(error.message)}
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, **options) as producer,
    ):
        with pytest.raises(ApiError) as caught:
            await (await producer.send("t", b"x"))
    assert len(told) == 5
    assert len(set(told)) == 1
    assert str(caught.value).count("the attempt before: KAFKA_STORAGE_ERROR") == 1


async def test_brokers_that_say_nothing_of_leaders_either_delay_no_outcome(autojump_clock):
    """A network that is gone answers nothing: who looks for leaders waits, and gives up in time."""
    broker = FakeBroker({"t": 1})
    patience = {"request_timeout_ms": 10_000, "delivery_timeout_ms": 12_000}
    async with in_memory(broker) as network, producer_of(broker, network, **patience) as producer:
        await (await producer.send("t", b"before"))
        broker.always(m.ProduceRequest, IGNORE)
        broker.always(m.MetadataRequest, IGNORE)
        started = trio.current_time()
        with pytest.raises(DeliveryTimeout):
            await (await producer.send("t", b"x"))
        assert 12 <= trio.current_time() - started <= 13
