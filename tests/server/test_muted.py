"""Who waits for a quota with a request that came takes room from nobody who holds less of it.

Method: the room alone, on a clock that jumps.
"""

import pytest
import trio

from hightide_broker.runtime.base.call import CloseConnection
from hightide_broker.runtime.server.muted import LOOK_AGAIN_S, MUTED_BYTES_MAX, MutedRoom

DUE_S = 100.0
MIB = 1 << 20


class Waiting:
    """Those who wait in a room, and how each of them ended."""

    def __init__(self, nursery):
        self.room = MutedRoom()
        self.ended = {}
        self._nursery = nursery

    async def comes(self, name, mib, due_s=DUE_S):
        """Named as its holder, and a number."""

        async def wait():
            until = trio.current_time() + due_s
            try:
                await self.room.wait(name[0], mib * MIB, lambda: until - trio.current_time())
            except CloseConnection:
                self.ended[name] = "closed"
            else:
                self.ended[name] = "taken"

        self._nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def waiting(autojump_clock, nursery):
    autojump_clock.autojump_threshold = float("inf")
    return Waiting(nursery)


async def test_who_comes_last_gives_way_where_all_is_its_own(waiting):
    for number in range(5):
        await waiting.comes(f"a{number}", 15)
    assert waiting.ended == {"a4": "closed"}


async def test_whoever_holds_most_gives_way_to_who_holds_less(waiting):
    for number in range(4):
        await waiting.comes(f"a{number}", 15)
    await waiting.comes("b0", 10)
    assert waiting.ended == {"a3": "closed"}
    await waiting.comes("c0", 30)
    assert waiting.ended == {"a3": "closed", "a2": "closed", "c0": "closed"}


async def test_one_that_is_larger_than_the_room_is_taken_if_it_is_alone(waiting):
    await waiting.comes("a0", 2 * MUTED_BYTES_MAX // MIB)
    await waiting.comes("b0", 0)
    assert waiting.ended == {}
    await waiting.comes("b1", 1)
    assert waiting.ended == {"a0": "closed"}


async def test_who_holds_nothing_is_never_closed(waiting):
    await waiting.comes("a0", 0)
    for number in range(1, 7):
        await waiting.comes(f"a{number}", 20)
    assert "a0" not in waiting.ended
    assert list(waiting.ended.values()) == ["closed"] * 3


async def test_what_was_waited_for_gives_its_room_back(waiting, autojump_clock):
    await waiting.comes("a0", 60, due_s=5)
    autojump_clock.jump(5)
    await trio.testing.wait_all_tasks_blocked()
    await waiting.comes("b0", 60)
    assert waiting.ended == {"a0": "taken"}


async def test_a_quota_that_is_raised_is_heard_of_meanwhile(autojump_clock):
    due_s = DUE_S
    began = trio.current_time()

    async def raise_it():
        nonlocal due_s
        await trio.sleep(1.5 * LOOK_AGAIN_S)
        due_s = 0.0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(raise_it)
        await MutedRoom().wait("a", MIB, lambda: due_s)
    assert trio.current_time() - began <= 3 * LOOK_AGAIN_S


async def test_what_others_add_to_a_debt_makes_nobody_wait_longer(autojump_clock):
    began = trio.current_time()
    await MutedRoom().wait("a", MIB, lambda: 10.0)
    assert trio.current_time() - began == pytest.approx(10.0)
