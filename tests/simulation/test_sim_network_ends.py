"""How connections end in the simulated network: closed, reset, killed, without power; or pause.

Goal: an orderly end, an error and silence come when they would from a real machine, and never one
in the place of the other. Method: as in `test_sim_network.py`.
"""

import math

import pytest
import trio
from sim_machines import BROKEN, CALM, PORT, connected, is_silent, network_of, receive, virtual


def test_an_orderly_close_delivers_what_was_sent_first_and_then_the_end():
    async def world():
        near, far = await connected(network_of())
        near.send_now([b"one"])
        near.send_now([b"two"])
        await near.aclose()
        assert [await receive(far) for _ in range(4)] == [b"one", b"two", b"", b""]

    virtual(world)


def test_a_close_wakes_a_reader_that_waits():
    async def world():
        near, far = await connected(network_of())
        ended = []

        async def read():
            ended.append((await receive(far), trio.current_time()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(5)
            closed = trio.current_time()
            await near.aclose()
        ((data, at),) = ended
        assert data == b""
        assert math.isclose(at - closed, CALM.latency_s)

    virtual(world)


def test_an_end_that_was_closed_is_of_no_more_use_to_either_side():
    async def world():
        near, far = await connected(network_of())
        far.send_now([b"unread"])
        await near.aclose()
        await near.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await receive(near)
        with pytest.raises(trio.ClosedResourceError):
            near.send_now([b"x"])
        with pytest.raises(BROKEN):
            far.send_now([b"x"])
        assert await receive(far) == b""

    virtual(world)


def test_a_reset_breaks_the_connections_of_two_machines_and_loses_what_is_on_its_way():
    async def world():
        network = network_of()
        near, far = await connected(network)
        back, there = await connected(network, "b", "a")
        others = [await connected(network, *pair) for pair in ("ac", "bc", "cb")]
        near.send_now([b"lost"])
        network.reset("b", "a")
        await trio.sleep(1)
        for end in (near, far, back, there):
            with pytest.raises(BROKEN):
                await receive(end)
            with pytest.raises(BROKEN):
                end.send_now([b"x"])
        for aside, elsewhere in others:
            aside.send_now([b"x"])
            assert await receive(elsewhere) == b"x"
        again, _ = await connected(network)
        again.send_now([b"x"])

    virtual(world)


def test_a_process_that_is_gone_breaks_its_streams_and_refuses():
    async def world():
        network = network_of()
        listener = await network.host("b").listen("b", PORT)
        near = await network.host("a").connect("b", PORT)
        far = await listener.accept()
        outward, elsewhere = await connected(network, "b", "c")
        aside, there = await connected(network, "a", "c")
        broke = []

        async def read(stream):
            with pytest.raises(BROKEN):
                await receive(stream)
            broke.append(stream)

        async with trio.open_nursery() as nursery:
            for stream in (near, elsewhere):
                nursery.start_soon(read, stream)
            await trio.sleep(1)
            assert broke == []
            network.drop("b", silently=False)
        assert len(broke) == 2
        for stream in (far, outward):
            with pytest.raises(BROKEN):
                stream.send_now([b"x"])
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect("b", PORT)
        aside.send_now([b"x"])
        assert await receive(there) == b"x"
        await network.host("b").listen("b", PORT)
        await network.host("a").connect("b", PORT)

    virtual(world)


def test_a_machine_without_power_says_nothing_until_it_is_back():
    async def world():
        network = network_of()
        near, far = await connected(network)
        await network.host("b").listen("b", PORT)
        network.drop("b", silently=True)
        near.send_now([b"into the dark"])
        far.send_now([b"out of the dark"])
        assert await is_silent(receive, near)
        assert await is_silent(receive, far)
        assert await is_silent(network.host("a").connect, "b", PORT)
        network.boot("b")
        for end in (near, far):
            with pytest.raises(BROKEN):
                await receive(end)
            with pytest.raises(BROKEN):
                end.send_now([b"x"])
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect("b", PORT)
        again, there = await connected(network)
        again.send_now([b"x"])
        assert await receive(there) == b"x"

    virtual(world)


def test_what_left_a_machine_before_its_power_went_still_arrives():
    async def world():
        network = network_of()
        near, far = await connected(network)
        far.send_now([b"last words"])
        network.drop("b", silently=True)
        assert await receive(near) == b"last words"
        assert await is_silent(receive, near)

    virtual(world)


def test_booting_a_machine_that_has_power_changes_nothing():
    async def world():
        network = network_of()
        near, far = await connected(network)
        network.boot("b")
        near.send_now([b"x"])
        assert await receive(far) == b"x"

    virtual(world)


def test_a_machine_that_is_paused_gets_and_sends_nothing_and_loses_nothing():
    async def world():
        for seed in range(8):
            network = network_of(seed=seed)
            near, far = await connected(network)
            listener = await network.host("b").listen("b", PORT)
            aside, there = await connected(network, "a", "c")
            network.freeze("b")
            for data in (b"1", b"2"):
                near.send_now([data])
                far.send_now([data])
            assert await is_silent(receive, near)
            assert await is_silent(receive, far)
            assert await is_silent(network.host("a").connect, "b", PORT)
            aside.send_now([b"x"])
            assert await receive(there) == b"x"
            network.thaw("b")
            for end in (near, far):
                assert [await receive(end) for _ in range(2)] == [b"1", b"2"]
            await network.host("a").connect("b", PORT)
            assert (await listener.accept()).peer == "a"

    virtual(world)


def test_the_end_of_a_pause_heals_no_cut():
    async def world():
        network = network_of()
        near, far = await connected(network)
        network.cut("a", "b")
        network.freeze("c")
        near.send_now([b"held"])
        network.thaw("c")
        assert network.is_cut("a", "b")
        assert await is_silent(receive, far)

    virtual(world)


def test_healing_ends_a_pause_too():
    async def world():
        network = network_of()
        near, far = await connected(network)
        network.freeze("b")
        network.heal()
        near.send_now([b"x"])
        assert await receive(far) == b"x"

    virtual(world)
