"""The simulated network: what a real one may do, and nothing else.

Goal: anybody who proves a rule of the cluster in a simulated world has met TCP as it is: order
inside a connection, silence instead of errors where nothing gets through, errors where somebody
answers. Method: two or three named machines on virtual time; times are exact, or bounded by the
weather.
"""

import math
from functools import partial

import pytest
import trio
from sim_machines import (
    BROKEN,
    CALM,
    LONG_S,
    PORT,
    connected,
    is_silent,
    network_of,
    receive,
    receive_all,
    virtual,
)

from hightide_broker.simulation.network import Weather

# Connecting.


def test_a_connection_joins_two_machines_and_carries_both_ways():
    async def world():
        near, far = await connected(network_of())
        assert (near.peer, far.peer) == ("b", "a")
        near.send_now([b"as", memoryview(b"ks"), bytearray(b"!")])
        assert await receive(far) == b"asks!"
        far.send_now([b"answers"])
        assert await receive(near) == b"answers"

    virtual(world)


def test_connecting_takes_the_way_there_and_back():
    async def world():
        network = network_of()
        begun = trio.current_time()
        await connected(network)
        assert math.isclose(trio.current_time() - begun, 2 * CALM.latency_s)

    virtual(world)


def test_where_nobody_listens_a_connection_is_refused():
    async def world():
        network = network_of()
        listener = await network.host("b").listen("b", PORT)
        for target, port in (("c", PORT), ("b", PORT + 1)):
            with pytest.raises(ConnectionRefusedError):
                await network.host("a").connect(target, port)
        await network.host("a").connect("b", PORT)
        await listener.aclose()
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect("b", PORT)

    virtual(world)


def test_a_port_has_one_listener_at_a_time_on_its_machine():
    async def world():
        network = network_of()
        first = await network.host("b").listen("b", PORT)
        await network.host("c").listen("c", PORT)
        with pytest.raises(OSError, match="in use"):
            await network.host("b").listen("b", PORT)
        await first.aclose()
        second = await network.host("b").listen("b", PORT)
        # The old one's end is no longer that of the port.
        await first.aclose()
        assert second.port == PORT
        await network.host("a").connect("b", PORT)

    virtual(world)


# Order, time, size.


@pytest.mark.parametrize("seed", range(5))
def test_a_connection_keeps_the_order_whatever_the_weather(seed):
    weather = Weather(latency_s=0.001, jitter_s=0.5, loss=0.5)

    async def world():
        near, far = await connected(network_of(weather, seed))
        sent = [b"%03d" % number for number in range(100)]
        for each in sent:
            near.send_now([each])
        await near.aclose()
        assert await receive_all(far) == sent

    virtual(world, seed)


def test_connections_do_not_keep_the_order_among_each_other():
    weather = Weather(latency_s=0.0, jitter_s=1.0)

    async def world():
        network = network_of(weather)
        overtaken = 0
        for _ in range(20):
            ends = [await connected(network) for _ in range(2)]
            arrived = []

            async def read(number, stream, arrived=arrived):
                await receive(stream)
                arrived.append(number)

            async with trio.open_nursery() as nursery:
                for number, (near, far) in enumerate(ends):
                    near.send_now([b"x"])
                    nursery.start_soon(read, number, far)
            overtaken += arrived == [1, 0]
        assert 0 < overtaken < 20

    virtual(world)


def test_what_is_sent_arrives_after_the_latency_and_not_before():
    async def world():
        near, far = await connected(network_of())
        begun = trio.current_time()
        near.send_now([b"x"])
        assert trio.current_time() == begun
        assert await receive(far) == b"x"
        assert math.isclose(trio.current_time() - begun, CALM.latency_s)

    virtual(world)


def test_the_weather_bounds_the_delay_and_loss_only_makes_late():
    weather = Weather(latency_s=0.01, jitter_s=0.02, loss=0.5, retransmit_s=1.0)

    async def world():
        delays = []
        network = network_of(weather)
        near, far = await connected(network)
        for _ in range(200):
            begun = trio.current_time()
            near.send_now([b"x"])
            assert await receive(far) == b"x"
            delays.append(trio.current_time() - begun)
        plain = [delay for delay in delays if delay < 0.03 + 1e-9]
        late = [delay for delay in delays if delay not in plain]
        assert min(plain) >= 0.01
        assert all(1.01 - 1e-9 <= delay <= 2.03 + 1e-9 for delay in late)
        assert 60 < len(late) < 140

    virtual(world)


def test_a_clog_slows_one_direction_until_it_is_healed():
    async def world():
        network = network_of()
        near, far = await connected(network)

        async def takes(sender, receiver):
            begun = trio.current_time()
            sender.send_now([b"x"])
            await receive(receiver)
            return trio.current_time() - begun

        network.clog("a", "b", 2.0)
        assert math.isclose(await takes(near, far), 2.01)
        assert math.isclose(await takes(far, near), 0.01)
        network.heal()
        assert math.isclose(await takes(near, far), 0.01)

    virtual(world)


def test_a_small_buffer_gets_the_rest_next_time():
    async def world():
        near, far = await connected(network_of())
        near.send_now([b"abcde"])
        near.send_now([b"fg"])
        assert [await receive(far, 2) for _ in range(4)] == [b"ab", b"cd", b"e", b"fg"]

    virtual(world)


# Cuts.


async def fate_of_what_a_cut_held(seed):
    network = network_of(seed=seed)
    near, far = await connected(network)
    network.cut("a", "b")
    assert network.is_cut("a", "b")
    assert not network.is_cut("b", "a")
    for data in (b"1", b"2", b"3"):
        near.send_now([data])
    far.send_now([b"the other way"])
    assert await receive(near) == b"the other way"
    assert await is_silent(receive, far)
    network.heal()
    assert not network.is_cut("a", "b")
    healed = trio.current_time()
    try:
        found = [await receive(far) for _ in range(3)]
    except BROKEN:
        with pytest.raises(BROKEN):
            near.send_now([b"4"])
        with pytest.raises(BROKEN):
            await receive(near)
        return "reset"
    assert found == [b"1", b"2", b"3"]
    assert math.isclose(trio.current_time() - healed, CALM.latency_s)
    near.send_now([b"4"])
    assert await receive(far) == b"4"
    return "goes on"


def test_a_cut_holds_one_direction_and_heals_to_go_on_or_to_be_reset():
    fates = {virtual(partial(fate_of_what_a_cut_held, seed)) for seed in range(12)}
    assert fates == {"reset", "goes on"}


def test_a_connection_that_a_cut_held_nothing_of_goes_on():
    async def world():
        for seed in range(8):
            network = network_of(seed=seed)
            near, far = await connected(network)
            network.cut("a", "b")
            await trio.sleep(LONG_S)
            network.heal()
            near.send_now([b"x"])
            assert await receive(far) == b"x"

    virtual(world)


def test_a_cut_does_not_stop_what_was_on_its_way_nor_other_machines():
    async def world():
        network = network_of()
        near, far = await connected(network)
        aside, there = await connected(network, "c", "d")
        near.send_now([b"before"])
        network.cut("a", "b")
        near.send_now([b"after"])
        assert await receive(far) == b"before"
        assert await is_silent(receive, far)
        aside.send_now([b"elsewhere"])
        assert await receive(there) == b"elsewhere"

    virtual(world)


@pytest.mark.parametrize("cut", [("a", "b"), ("b", "a")])
def test_connecting_hangs_across_a_cut_of_either_direction_and_goes_on(cut):
    async def world():
        network = network_of()
        listener = await network.host("b").listen("b", PORT)
        network.cut(*cut)
        assert await is_silent(network.host("a").connect, "b", PORT)
        made = []

        async def connect():
            made.append(await network.host("a").connect("b", PORT))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await trio.sleep(LONG_S)
            assert made == []
            network.heal()
            await trio.sleep(1)
        (near,) = made
        far = await listener.accept()
        near.send_now([b"x"])
        assert await receive(far) == b"x"

    virtual(world)


def test_even_a_refusal_hangs_across_a_cut():
    async def world():
        network = network_of()
        network.cut("b", "a")
        assert await is_silent(network.host("a").connect, "b", PORT)

    virtual(world)


# One history.


def history(seed):
    async def world():
        network = network_of(Weather(), seed)
        for source, target in (("a", "b"), ("b", "a")):
            near, far = await connected(network, source, target)
            for size in (1, 2, 3):
                near.send_now([bytes(size)])
                await receive(far)
        return network.messages, network.fingerprint

    return virtual(world, seed)


def test_the_fingerprint_is_that_of_the_seed():
    assert history(1) == history(1)
    assert history(1)[0] == 6
    assert len({history(seed)[1] for seed in range(5)}) == 5


@pytest.mark.parametrize(
    "planted", [("a", "b", b"xx", 0), ("b", "a", b"x", 0), ("a", "b", b"x", 1)]
)
def test_the_fingerprint_tells_size_direction_and_time(planted):
    def told(source, target, data, after_s):
        async def world():
            network = network_of()
            near, far = await connected(network)
            await trio.sleep(after_s)
            {"a": near, "b": far}[source].send_now([data])
            assert near.peer == "b"
            assert target != source
            return network.fingerprint

        return virtual(world)

    plain = told("a", "b", b"x", 0)
    assert plain == told("a", "b", b"y", 0)
    assert plain != told(*planted)


def test_the_fingerprint_tells_what_was_long_ago():
    def told(*sizes):
        async def world():
            network = network_of()
            near, _ = await connected(network)
            for size in sizes:
                near.send_now([bytes(size)])
                await trio.sleep(1)
            return network.fingerprint

        return virtual(world)

    assert told(1, 2, 3) == told(1, 2, 3)
    assert len({told(1, 2, 3), told(2, 2, 3), told(1, 1, 3), told(1, 2, 4)}) == 4
