"""What wrong passwords may cost everybody else: a piece of work in a turn of the event loop, and
so many failures a second from one address.

Method: turns are counted by a task that does nothing else; a clock that a test moves.
"""

import pytest
import trio
from brokers import quiet
from logins import PASSWORD
from test_login import a_node_with_users, connected, network_of

from hightide.protocol.errors import AuthenticationFailed
from hightide_broker.runtime.server import door, login
from hightide_broker.runtime.server.guesses import (
    AHEAD_S,
    FAILURES_A_SECOND,
    HEARS_S_MAX,
    WAITS_S_MAX,
    Guesses,
    Turnstile,
)

FREE = int(FAILURES_A_SECOND * AHEAD_S)
HOST = "127.0.0.1"


async def test_a_turn_of_the_event_loop_lets_one_through_however_many_come():
    turnstile, turns, seen = Turnstile(), 0, []

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def come():
        await turnstile.turn()
        seen.append(turns)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async with trio.open_nursery() as crowd:
            for _ in range(50):
                crowd.start_soon(come)
        nursery.cancel_scope.cancel()
    # Of two tasks that run in one turn either may be first.
    assert all(later - earlier >= 1 for earlier, later in zip(seen, seen[2:], strict=False))
    assert seen[-1] - seen[0] >= 45


class Counted(Turnstile):
    """A turnstile that counts."""

    made = ()

    def __init__(self):
        super().__init__()
        self.count = 0
        Counted.made = (*Counted.made, self)

    async def turn(self):
        self.count += 1
        await super().turn()


async def test_each_step_of_a_handshake_and_of_a_login_takes_its_turn(tmp_path, monkeypatch):
    Counted.made = ()
    for room in (door, login):
        monkeypatch.setattr(room, "Turnstile", Counted)
    async with a_node_with_users(tmp_path) as served:
        of_clients, of_nodes, of_logins = Counted.made
        async with connected(served):
            assert of_clients.count >= 2, "a greeting, and the end of it"
            assert of_logins.count == 3, "a handshake, and two words"
            assert of_nodes.count == 0, "nodes do not stand in line with strangers"


async def test_who_has_failed_too_often_waits_for_a_while_and_nobody_else_does(mock_clock):
    known = Guesses(0.1)
    for _ in range(FREE):
        assert (known.waits_s(HOST), known.hears_s(HOST)) == (0, 0.1)
        known.failed(HOST)
    for _ in range(FAILURES_A_SECOND // 2):
        known.failed(HOST)
    assert known.waits_s(HOST) == known.hears_s(HOST) == pytest.approx(0.5)
    assert (known.waits_s("10.0.0.1"), known.hears_s("10.0.0.1")) == (0, 0.1)
    for _ in range(100 * FREE):
        known.failed(HOST)
    assert (known.waits_s(HOST), known.hears_s(HOST)) == (WAITS_S_MAX, HEARS_S_MAX)
    mock_clock.jump(HEARS_S_MAX + 2 / FAILURES_A_SECOND)
    assert known.waits_s(HOST) == 0, "however long it has guessed"


async def test_an_address_that_guesses_waits_at_the_door_before_anything_is_worked_out(
    tmp_path, mock_clock
):
    async with a_node_with_users(tmp_path) as served, connected(served):
        for _ in range(10 * FREE):
            served.node.server._guesses.failed(HOST)
        came = trio.Event()

        async def come():
            async with connected(served):
                came.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come)
            await quiet()
            assert not came.is_set()
            mock_clock.jump(WAITS_S_MAX)
            await came.wait()


async def test_what_fails_is_counted_where_it_came_from_and_what_succeeds_is_not(tmp_path):
    async with a_node_with_users(tmp_path) as served:
        known, counted = served.node.server._guesses, []
        known.failed = counted.append
        async with connected(served):
            assert counted == []
        for _ in range(2):
            with pytest.raises(AuthenticationFailed):
                await network_of(served, password="no").connect(HOST, served.node.port)
        assert counted == [HOST, HOST]


async def test_who_fails_hears_so_after_as_long_as_is_set(tmp_path, mock_clock):
    over = {"connection.failed.authentication.delay.ms": "400"}
    heard = []

    async with a_node_with_users(tmp_path, over) as served, trio.open_nursery() as nursery:

        async def fail():
            with pytest.raises(AuthenticationFailed):
                await network_of(served, password=f"no {PASSWORD}").connect(HOST, served.node.port)
            heard.append(trio.current_time())

        began = trio.current_time()
        nursery.start_soon(fail)
        for passed_s in (0.39, 0.02):
            await quiet()
            assert heard == []
            mock_clock.jump(passed_s)
        await quiet()
        assert heard == [pytest.approx(began + 0.41)]
