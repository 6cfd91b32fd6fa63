"""A record that nothing is to be waited for is on its way when `send` returns.

Goal: it costs the event loop no turn, and nothing that holds for other records is lost by it: their
order, their time, how many are together. Method: `FakeBroker` in memory on trio's autojump clock.
"""

import random

import pytest
import trio
from brokers import FakeClock
from fake_broker import IGNORE, FakeBroker, in_memory, refuse
from tries import few

from hightide import ClosedError, Producer
from hightide.protocol import messages as m


def producer_of(broker, network, **options):
    given = {"random": random.Random(3), "clock": FakeClock(), "linger_ms": 0}
    return Producer(broker.address, network=network, **(given | options))


def under_way(producer):
    return producer.metrics()["requests_in_flight"]


async def first(producer, topic="t", **options):
    """One record that was acknowledged: the connection is there, and the producer's id is known."""
    await (await producer.send(topic, b"first", **options))


async def test_a_record_alone_is_under_way_when_send_returns(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        await first(producer)
        delivery = await producer.send("t", b"second")
        assert under_way(producer) == 1
        assert (await delivery).offset == 1


@pytest.mark.parametrize("why", ["lingers", "is not acknowledged", "has never been asked"])
async def test_what_waits_for_others_or_for_a_connection_does_not_leave(why, autojump_clock):
    broker = FakeBroker({"t": 1})
    options = {"linger_ms": 5} if why == "lingers" else {"acks": 0} if "not ack" in why else {}
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        if why != "has never been asked":
            await first(producer)
        await producer.send("t", b"second")
        assert under_way(producer) == 0
    assert broker.values()[-1] == b"second"


async def test_only_the_first_of_a_loop_leaves_alone(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        await first(producer)
        await trio.sleep(1)
        asked = broker.count(m.ProduceRequest)
        rows = [b"%04d" % number for number in range(1000)]
        for row in rows:
            await producer.send("t", row)
        await producer.flush()
        assert broker.count(m.ProduceRequest) - asked <= 10
    assert broker.values() == [b"first", *rows]


async def test_what_is_to_be_sent_again_is_not_overtaken(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        await first(producer)
        broker.will(m.ProduceRequest, refuse("NOT_ENOUGH_REPLICAS"), refuse("NOT_ENOUGH_REPLICAS"))
        await producer.send("t", b"second")
        await trio.sleep(0.01)
        await producer.send("t", b"third")
        assert broker.values() == [b"first"], "the second one waits, and the third behind it"
    assert broker.values() == [b"first", b"second", b"third"]


async def test_what_is_told_of_a_broken_connection_strikes_nobody_who_sends(autojump_clock):
    """The socket is broken and nobody has noticed yet: `send` meets it first, and the user's own
    callback raises. That ends the producer, as anywhere else, and leaves nobody waiting."""

    def refuse_to_go_on(error):
        raise ValueError("the user's own")

    broker, sent = FakeBroker({"t": 1}), []

    async def use(network):
        async with producer_of(broker, network, on_retry=refuse_to_go_on) as producer:
            await first(producer)
            await broken(producer)
            sent.append(await producer.send("t", b"second"))
            await sent[0]

    async with in_memory(broker) as network:
        with pytest.RaisesGroup(ValueError, flatten_subgroups=True):
            await use(network)
    with pytest.raises(ClosedError):
        sent[0].result()


async def test_a_broken_connection_is_made_again_by_who_meets_it_in_send(autojump_clock):
    broker, told = FakeBroker({"t": 1}), []
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, on_retry=told.append) as producer,
    ):
        await first(producer)
        await broken(producer)
        assert (await (await producer.send("t", b"second"))).offset == 1
        assert "sending failed" in str(told[0])


async def broken(producer):
    """Its connection cannot send, and has not noticed."""
    (connection,) = producer._cluster._pool._connections.values()

    def send_now(buffers):
        raise BrokenPipeError("Broken pipe")

    connection.stream.send_now = send_now


async def test_a_loop_over_many_partitions_gives_others_their_turn(autojump_clock):
    broker, turns = FakeBroker({"t": 200}), 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        await first(producer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            for place in range(200):
                await producer.send("t", b"x", partition=place)
            nursery.cancel_scope.cancel()
    assert turns > 100


@pytest.mark.parametrize("idle_s", [0, 100])
async def test_an_answer_that_does_not_come_is_missed_in_time(idle_s, autojump_clock):
    """Also if the housekeeping had nothing to look for until much later."""
    broker, told = FakeBroker({"t": 1}), []
    options = {"request_timeout_ms": 2000, "on_retry": lambda _: told.append(trio.current_time())}
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        await first(producer)
        await trio.sleep(idle_s)
        broker.will(m.ProduceRequest, IGNORE)
        began = trio.current_time()
        await (await producer.send("t", b"second"))
        assert [at - began for at in told] == [pytest.approx(3.0)]


@pytest.mark.parametrize("seed", few(range(10), 4))
async def test_partitions_keep_their_order_whoever_sends(seed, autojump_clock):
    """Some leave at once, some wait for a turn, some come back."""
    dice, broker = random.Random(seed), FakeBroker({"t": 3})
    rows: list[list[bytes]] = [[], [], []]
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        for number in range(300):
            place = dice.randrange(3)
            if not dice.randrange(20):
                broker.will(m.ProduceRequest, refuse("NOT_LEADER_OR_FOLLOWER"))
            delivery = await producer.send("t", b"%04d" % number, partition=place)
            rows[place].append(b"%04d" % number)
            if dice.randrange(2):
                await delivery
            elif not dice.randrange(4):
                await trio.sleep(dice.choice([0, 0.01, 0.3]))
    assert [broker.values("t", place) for place in range(3)] == rows
