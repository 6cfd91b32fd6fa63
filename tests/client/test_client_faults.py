"""The producer and a broker that misbehaves: stored once and in order, or an error that says why.

Goal: Kafka's rules, and promises 5 and 7 of the design. Method: `FakeBroker` in
memory on trio's autojump clock, so that time-outs cost nothing; what needs no time-out also runs on
TCP. The fake broker checks sequences as KIP-98 has it.
"""

import random

import pytest
import trio
from brokers import FakeClock
from fake_broker import (
    CLOSE_IN_MID_ANSWER,
    GARBAGE,
    IGNORE,
    LOSE_ANSWER,
    NO_FRAME,
    STORE_AND_SAY_NOTHING,
    FakeBroker,
    Trick,
    in_memory,
    on_tcp,
    refuse,
)
from tries import few

from hightide import (
    Admin,
    ApiError,
    BrokerUnreachable,
    Consumer,
    DeliveryTimeout,
    ErrorCode,
    HightideError,
    Producer,
    RequestTimedOut,
)
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol.errors import RemoteProtocolError
from hightide.protocol.records import parse_header

FAULTS = {
    "closes in mid-answer": CLOSE_IN_MID_ANSWER,
    "loses the answer": LOSE_ANSWER,
    "answers no message": GARBAGE,
    "answers no frame": NO_FRAME,
    "does not lead": refuse("NOT_LEADER_OR_FOLLOWER"),
    "stores, then times out": refuse("REQUEST_TIMED_OUT", after_effect=True),
    "has too few replicas": refuse("NOT_ENOUGH_REPLICAS"),
    "answers about nothing": Trick(body=m.ProduceResponse(partitions=[])),
    "is not ready": Trick(takes_effect=False, envelope=ErrorCode.BROKER_NOT_AVAILABLE),
}
SLOW_FAULTS = {"never answers": IGNORE, "stores and never answers": STORE_AND_SAY_NOTHING}


def producer_of(broker, network, **options):
    seeded = {"random": random.Random(3), "clock": FakeClock()}
    return Producer(broker.address, network=network, **(seeded | options))


async def send_all(producer, values, **options):
    return [await producer.send("t", value, **options) for value in values]


def numbered(count):
    return [b"%04d" % number for number in range(count)]


# --- stored once, in order ----------------------------------------------------------------------


async def check_once(broker, network, fault):
    broker.will(m.ProduceRequest, fault, Trick(), fault, fault)
    rows = numbered(60)
    async with producer_of(broker, network, batch_size=150) as producer:
        deliveries = await send_all(producer, rows)
        offsets = [(await delivery).offset for delivery in deliveries]
    assert broker.values() == rows
    assert offsets == list(range(60))
    assert broker.count(m.ProduceRequest) > 4


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_records_are_stored_once_and_in_order_whatever_a_broker_does_to_a_request(
    fault, autojump_clock
):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network:
        await check_once(broker, network, fault)


@pytest.mark.parametrize("fault", SLOW_FAULTS.values(), ids=SLOW_FAULTS.keys())
async def test_records_are_stored_once_and_in_order_although_a_broker_says_nothing(
    fault, autojump_clock
):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network:
        await check_once(broker, network, fault)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_the_same_holds_on_a_real_socket(fault):
    broker = FakeBroker({"t": 1})
    async with on_tcp(broker) as network:
        await check_once(broker, network, fault)


@pytest.mark.parametrize("seed", few(range(12), 4))
async def test_records_are_stored_once_and_in_order_through_a_storm(seed, autojump_clock):
    dice = random.Random(seed)
    faults = [*FAULTS.values(), *SLOW_FAULTS.values(), Trick(), Trick(), Trick()]
    broker = FakeBroker({"t": 3})
    broker.will(m.ProduceRequest, *dice.choices(faults, k=30))
    broker.will(m.MetadataRequest, Trick(), *dice.choices([LOSE_ANSWER, IGNORE, Trick()], k=5))
    broker.will(p.InitProducerIdRequest, *dice.choices([LOSE_ANSWER, IGNORE], k=2))
    rows = numbered(300)
    options = {"batch_size": 200, "random": dice, "request_timeout_ms": 2_000}
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        deliveries = []
        for number, row in enumerate(rows):
            deliveries.append(await producer.send("t", row, partition=number % 3))
            if dice.random() < 0.1:
                await trio.sleep(dice.random())
    for partition in range(3):
        assert broker.values(partition=partition) == rows[partition::3]
    places = [delivery.result() for delivery in deliveries]
    assert [place.offset for place in places] == [number // 3 for number in range(300)]


async def test_with_one_request_in_flight_a_refused_batch_is_not_overtaken_without_idempotence(
    autojump_clock,
):
    broker = FakeBroker({"t": 1})
    faults = refuse("NOT_ENOUGH_REPLICAS"), Trick(), refuse("REQUEST_TIMED_OUT")
    broker.will(m.ProduceRequest, *faults)
    options = {"acks": 1, "max_in_flight_requests_per_connection": 1, "batch_size": 150}
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        await send_all(producer, numbered(40))
    assert broker.values() == numbered(40)
    assert broker.count(p.InitProducerIdRequest) == 0


async def test_batches_go_on_after_one_that_was_refused_for_good(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.will(m.ProduceRequest, Trick(), refuse("INVALID_RECORD"))
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, batch_size=100) as producer,
    ):
        deliveries = await send_all(producer, [b"x" * 80, b"bad" * 25, b"y" * 80, b"z" * 80])
        with pytest.raises(ApiError, match="INVALID_RECORD: as the test says") as caught:
            await deliveries[1]
    assert broker.values() == [b"x" * 80, b"y" * 80, b"z" * 80]
    assert caught.value.broker == broker.address
    assert [deliveries[i].result().offset for i in (0, 2, 3)] == [0, 1, 2]


async def test_a_request_that_is_refused_as_a_whole_for_good_fails_and_is_not_repeated(
    autojump_clock,
):
    broker = FakeBroker({"t": 1})
    envelope = Trick(takes_effect=False, envelope=ErrorCode.UNSUPPORTED_VERSION)
    broker.always(m.ProduceRequest, envelope)
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        delivery = await producer.send("t", b"x")
        with pytest.raises(ApiError) as caught:
            await delivery
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert broker.count(m.ProduceRequest) == 1


async def repetitions(*tricks):
    """How many batches are sent again, all in one epoch, when `tricks` are what is done first."""
    broker = FakeBroker({"t": 1})
    broker.will(m.ProduceRequest, *tricks)
    options = {"batch_size": 150}
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        await send_all(producer, numbered(40))
    assert broker.values() == numbered(40)
    headers = [parse_header(data) for data in broker.logs[("t", 0)].batches]
    assert {header.producer_epoch for header in headers} == {0}
    return broker.count(m.ProduceRequest) - len(headers)


async def test_a_batch_that_came_before_its_predecessor_is_sent_again_in_the_same_epoch(
    autojump_clock,
):
    assert await repetitions(Trick(), refuse("NOT_ENOUGH_REPLICAS")) > 1


async def test_no_batch_comes_before_a_producers_first_one(autojump_clock):
    assert await repetitions(refuse("NOT_ENOUGH_REPLICAS")) == 1


async def test_every_repetition_is_told(autojump_clock):
    told = []
    broker = FakeBroker({"t": 1})
    broker.will(m.ProduceRequest, refuse("NOT_ENOUGH_REPLICAS"), LOSE_ANSWER)
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, on_retry=told.append) as producer,
    ):
        await producer.send("t", b"x")
    assert [type(error) for error in told] == [ApiError, BrokerUnreachable]
    assert told[0].code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "NOT_ENOUGH_REPLICAS" in str(told[0])


# --- leaders ------------------------------------------------------------------------------------


def two_brokers():
    infos = [m.BrokerInfo(id=number, host="127.0.0.1", port=number) for number in (1, 2)]
    first = FakeBroker({"t": 1}, id=1, port=1, others=[infos[1]])
    second = FakeBroker({"t": 1}, id=2, port=2, others=[infos[0]], leaders={("t", 0): 2})
    return first, second


async def test_a_hint_at_the_new_leader_is_followed_without_asking_again(autojump_clock):
    first, second = two_brokers()
    hint = m.LeaderHint(leader=2, leader_epoch=1)
    async with in_memory(first, second) as network, producer_of(first, network) as producer:
        await (await producer.send("t", b"before"))
        asked = first.count(m.MetadataRequest)
        first.always(m.ProduceRequest, refuse("NOT_LEADER_OR_FOLLOWER", hint=hint))
        await send_all(producer, numbered(3))
    assert (first.values(), second.values()) == ([b"before"], numbered(3))
    assert (first.count(m.MetadataRequest), second.count(m.MetadataRequest)) == (asked, 0)


async def test_a_hint_of_an_epoch_that_is_not_newer_is_not_followed(autojump_clock):
    first, second = two_brokers()
    hint = m.LeaderHint(leader=2, leader_epoch=0)
    first.will(m.ProduceRequest, refuse("NOT_LEADER_OR_FOLLOWER", hint=hint))
    async with in_memory(first, second) as network, producer_of(first, network) as producer:
        await send_all(producer, numbered(3))
    assert (first.values(), second.values()) == (numbered(3), [])


async def test_without_a_hint_metadata_tells_the_new_leader(autojump_clock):
    first, second = two_brokers()
    async with in_memory(first, second) as network, producer_of(first, network) as producer:
        await (await producer.send("t", b"one"))
        first.always(m.ProduceRequest, refuse("NOT_LEADER_OR_FOLLOWER"))
        first.leaders[("t", 0)] = 2
        await (await producer.send("t", b"two"))
    assert (first.values(), second.values()) == ([b"one"], [b"two"])


async def test_a_broker_that_dies_is_left_for_the_new_leader(autojump_clock):
    first, second = two_brokers()
    async with in_memory(first, second) as network, producer_of(first, network) as producer:
        await (await producer.send("t", b"one"))
        first.is_down = True
        await first.break_connections()
        await (await producer.send("t", b"two"))
    assert (first.values(), second.values()) == ([b"one"], [b"two"])


async def test_a_partition_without_a_leader_does_not_stop_the_others(autojump_clock):
    broker = FakeBroker({"t": 2}, leaders={("t", 0): -1})
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        waiting = await producer.send("t", b"patient", partition=0)
        await (await producer.send("t", b"lucky", partition=1))
        assert not waiting.is_done
        # Without a key only partitions that have a leader are used.
        for _ in range(10):
            place = await (await producer.send("t", b"x"))
            assert place.partition == 1
        broker.leaders.clear()
        await waiting
    assert broker.values(partition=0) == [b"patient"]


# --- giving up ----------------------------------------------------------------------------------


async def test_a_record_that_nobody_acknowledges_fails_after_the_delivery_timeout(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(m.ProduceRequest, IGNORE)
    started = trio.current_time()
    patience = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 10_000}
    async with in_memory(broker) as network, producer_of(broker, network, **patience) as producer:
        deliveries = await send_all(producer, numbered(3))
        for delivery in deliveries:
            with pytest.raises(DeliveryTimeout) as caught:
                await delivery
    assert 10 <= trio.current_time() - started <= 13
    error = caught.value
    assert error.attempts == broker.count(m.ProduceRequest) > 2
    assert 10 <= error.elapsed_s <= 13
    assert "3 records for t-0 were not acknowledged within delivery_timeout_ms=10000" in str(error)
    last = f"the last attempt: no answer to produce within 2 s (broker {broker.address})"
    assert last in str(error)
    assert str(error).count("attempts,") == 1
    assert "see delivery_timeout_ms" in str(error)


async def test_a_record_that_was_never_sent_fails_after_the_delivery_timeout(autojump_clock):
    broker = FakeBroker({"t": 1}, leaders={("t", 0): -1})
    patience = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 5_000}
    async with in_memory(broker) as network, producer_of(broker, network, **patience) as producer:
        started = trio.current_time()
        delivery = await producer.send("t", b"x")
        with pytest.raises(DeliveryTimeout, match="0 attempts"):
            await delivery
    assert 5 <= trio.current_time() - started <= 7
    assert broker.count(m.ProduceRequest) == 0


async def test_after_a_record_expired_the_next_ones_are_stored_once(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(m.ProduceRequest, IGNORE)
    patience = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 3_000}
    async with in_memory(broker) as network, producer_of(broker, network, **patience) as producer:
        lost = await producer.send("t", b"lost")
        with pytest.raises(DeliveryTimeout):
            await lost
        broker.always(m.ProduceRequest, None)
        broker.will(m.ProduceRequest, LOSE_ANSWER, refuse("REQUEST_TIMED_OUT", after_effect=True))
        for row in numbered(5):
            await (await producer.send("t", row))
    assert broker.values() == numbered(5)


async def test_memory_that_stays_full_makes_send_fail_after_max_block_ms(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(m.ProduceRequest, IGNORE)
    options = {"buffer_memory": 1_000, "max_block_ms": 700, "delivery_timeout_ms": 60_000}
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        kept = await send_all(producer, [b"x" * 400, b"y" * 400])
        started = trio.current_time()
        with pytest.raises(RequestTimedOut) as caught:
            await producer.send("t", b"z" * 400)
        assert trio.current_time() - started == pytest.approx(0.7)
        broker.always(m.ProduceRequest, None)
        for delivery in kept:
            await delivery
    text = str(caught.value)
    assert "no room for 424 bytes in buffer_memory=1000 within max_block_ms=700" in text
    assert "see buffer_memory, max_block_ms" in text


async def test_a_send_that_waits_for_memory_goes_on_when_there_is_room(autojump_clock):
    broker = FakeBroker({"t": 1})
    rows = numbered(200)
    # Nothing but the lack of memory makes a batch leave before an hour is over.
    options = {"buffer_memory": 1_000, "linger_ms": 3_600_000, "max_block_ms": 1_000}
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        await send_all(producer, rows)
    assert broker.values() == rows


@pytest.mark.parametrize("down", [True, False], ids=["down", "silent"])
async def test_send_fails_after_max_block_ms_without_metadata(down, autojump_clock):
    broker = FakeBroker({"t": 1, "other": 1})
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, max_block_ms=2_000) as producer,
    ):
        await (await producer.send("t", b"x"))
        broker.is_down = down
        await broker.break_connections()
        broker.always(m.MetadataRequest, IGNORE)
        started = trio.current_time()
        with pytest.raises((BrokerUnreachable, RequestTimedOut)) as caught:
            await producer.send("other", b"x")
        assert 0.5 <= trio.current_time() - started <= 2.1
    assert f"broker {broker.address}" in str(caught.value)
    assert caught.value.attempts > 1 or not down


async def test_a_peer_that_speaks_another_protocol_is_named_at_once(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(m.MetadataRequest, NO_FRAME)
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        with pytest.raises(RemoteProtocolError, match=f"{broker.address}: .* speak HTTP"):
            await producer.send("t", b"x")
    assert trio.current_time() < 10


async def test_records_wait_for_a_producer_id_and_expire_without_one(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(p.InitProducerIdRequest, IGNORE)
    patience = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 5_000}
    async with in_memory(broker) as network, producer_of(broker, network, **patience) as producer:
        delivery = await producer.send("t", b"x")
        with trio.fail_after(20), pytest.raises(DeliveryTimeout):
            await delivery
        broker.always(p.InitProducerIdRequest, None)
        assert (await (await producer.send("t", b"y"))).offset == 0
    assert broker.values() == [b"y"]


async def test_a_delivery_does_not_wait_for_ever_for_a_producer_that_was_cancelled(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(m.ProduceRequest, IGNORE)
    async with in_memory(broker) as network:
        with trio.move_on_after(1):
            async with producer_of(broker, network) as producer:
                delivery = await producer.send("t", b"x")
                await trio.sleep_forever()
    with trio.fail_after(3600), pytest.raises(HightideError):
        await delivery


async def test_a_send_that_waits_for_memory_ends_when_the_producer_is_closed(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(m.ProduceRequest, IGNORE)
    ended = []

    async def send_one_more(producer):
        with trio.fail_after(3600):
            try:
                await (await producer.send("t", b"z" * 400))
            except HightideError as error:
                ended.append(error)

    async with in_memory(broker) as network, trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            async with producer_of(broker, network, buffer_memory=1_000) as producer:
                await send_all(producer, [b"x" * 400, b"y" * 400])
                nursery.start_soon(send_one_more, producer)
                await trio.sleep_forever()
    assert len(ended) == 1


# --- how errors leave ---------------------------------------------------------------------------


def clients(broker, network):
    options = {"network": network}
    return [
        producer_of(broker, network),
        Consumer(broker.address, topics=["t"], auto_offset_reset="earliest", **options),
        Admin(broker.address, **options),
    ]


@pytest.mark.parametrize("which", range(3), ids=["producer", "consumer", "admin"])
@pytest.mark.parametrize(
    "error", [ValueError("mine"), ApiError(ErrorCode.INVALID_TOPIC), KeyboardInterrupt()], ids=repr
)
async def test_an_exception_leaves_a_clients_block_as_it_is(which, error, autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network:
        with pytest.raises(type(error)) as caught:
            async with clients(broker, network)[which]:
                raise error
    assert caught.value is error


async def test_an_exception_leaves_nested_blocks_as_it_is(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network:
        producer, consumer, admin = clients(broker, network)
        with pytest.raises(ZeroDivisionError):
            async with admin, consumer, producer:
                await producer.send("t", b"%d" % (1 // 0))


@pytest.mark.parametrize("which", range(3), ids=["producer", "consumer", "admin"])
async def test_a_cancelled_block_ends_at_once(which, autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(m.ProduceRequest, IGNORE)
    async with in_memory(broker) as network:
        started = trio.current_time()
        with trio.move_on_after(2) as scope:
            async with clients(broker, network)[which] as client:
                if which == 0:
                    await client.send("t", b"x")
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert trio.current_time() - started == pytest.approx(2)


async def test_a_consumer_of_an_unknown_topic_fails_with_the_error_itself(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network:
        with pytest.raises(ApiError) as caught:
            async with Consumer(broker.address, topics=["nowhere"], network=network):
                raise AssertionError("it was let in")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_answer_that_leaves_out_what_was_asked_is_the_peers_error(autojump_clock):
    broker = FakeBroker({"t": 1})
    nothing = m.MetadataResponse(cluster_id="x", controller=1, brokers=[], topics=[])
    broker.always(m.MetadataRequest, Trick(body=nothing))
    async with in_memory(broker) as network, Admin(broker.address, network=network) as admin:
        with pytest.raises(RemoteProtocolError):
            await admin.describe_topic("t")
        async with producer_of(broker, network) as producer:
            with pytest.raises(HightideError):
                await producer.send("t", b"x")
