"""Requests that came and wait for a quota: how long, and how many bytes they may hold meanwhile.

There is room for so many bytes, over all connections. When it is short, a connection of who
holds most of it is closed: who sends far more than its quota allows takes no room from those who
send a little more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from hightide_broker.runtime.base.call import CloseConnection

MUTED_BYTES_MAX = 64 << 20
"""Bytes of requests that came and wait for a quota at a time, over all connections."""
LOOK_AGAIN_S = 1.0
"""How soon who waits hears of a quota that was raised."""


class _Place:
    """The room that one waiting request takes: whose it is, and how many bytes."""

    def __init__(self, holder: str, held: int) -> None:
        self.holder = holder
        self.held = held
        self.scope = trio.CancelScope()


class MutedRoom:
    """The room for all requests to a node that wait for a quota."""

    def __init__(self) -> None:
        self._places: dict[_Place, None] = {}
        self._total = 0

    def __len__(self) -> int:
        """How many connections wait."""
        return len(self._places)

    async def wait(self, holder: str, held: int, due_s: Callable[[], float]) -> None:
        """Wait for as long as `due_s` says, or says later if that is less, while `held` bytes are
        the holder's. Raises `CloseConnection` if they are needed for others."""
        self._make_room(holder, held)
        place = _Place(holder, held)
        self._places[place] = None
        self._total += held
        try:
            with place.scope:
                await _pass(due_s)
        finally:
            self._leave(place)
        if place.scope.cancelled_caught:
            raise _no_room()

    def _make_room(self, holder: str, held: int) -> None:
        """Who holds most gives way, the last come first; that may be who comes."""
        while held and self._total and self._total + held > MUTED_BYTES_MAX:
            shares: Counter[str] = Counter()
            for place in self._places:
                shares[place.holder] += place.held
            largest, share = shares.most_common(1)[0]
            if shares[holder] + held >= share:
                raise _no_room()
            last = [place for place in self._places if place.holder == largest and place.held][-1]
            self._leave(last)
            last.scope.cancel()

    def _leave(self, place: _Place) -> None:
        if place in self._places:
            del self._places[place]
            self._total -= place.held


async def _pass(due_s: Callable[[], float]) -> None:
    left_s = due_s()
    while left_s > 0:
        step_s = min(left_s, LOOK_AGAIN_S)
        await trio.sleep(step_s)
        left_s = min(left_s - step_s, due_s())


def _no_room() -> CloseConnection:
    return CloseConnection(
        f"a quota has it wait, and requests that wait hold {MUTED_BYTES_MAX >> 20} MiB at most: "
        f"it holds more than others do",
        reason="quota",
    )
