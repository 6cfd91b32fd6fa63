"""How many bytes of requests may be on their way in at a time, over all connections.

There is one room for all, and it is shared by who sends: freed bytes go to who holds least of it,
and while somebody waits, who holds most of it has `GRACE_S` for a request to arrive whole. So half
a request that never ends holds up nobody for longer than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from hightide_broker.runtime.base.call import CloseConnection

SMALL_REQUEST_BYTES = 64 << 10
"""Requests up to this size do not count: max.connections bounds them."""
GRACE_S = 2.0
"""How long a request may be on its way while others, who hold less, have no room."""
LOOK_AGAIN_S = 0.25


class ByteBudget:
    """So many bytes may be held at a time; who needs more waits."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._holds: dict[Hold, None] = {}
        """Those that hold anything, or wait to, the first come first."""
        self._waiting: dict[Hold, tuple[int, trio.Event]] = {}

    @property
    def used(self) -> int:
        """Bytes that are held now."""
        return self.size - self._free

    async def take(self, hold: Hold, count: int) -> None:
        """Wait for room for `count` bytes."""
        self._holds[hold] = None
        granted = trio.Event()
        self._waiting[hold] = (count, granted)
        try:
            self._grant()
            while not granted.is_set():
                self._make_room(hold)
                with trio.move_on_after(LOOK_AGAIN_S):
                    await granted.wait()
        finally:
            self._waiting.pop(hold, None)

    def give_back(self, hold: Hold) -> None:
        """What it held is not held any more."""
        self._free += hold.held
        hold.held = 0
        self._holds.pop(hold, None)
        self._grant()

    def _grant(self) -> None:
        """Room for those who wait, who holds least first; nobody passes one for whom it is short:
        who needs much would wait for ever."""
        shares = self._shares()
        while self._waiting:
            hold = min(self._waiting, key=lambda each: shares[each.holder])
            count, granted = self._waiting[hold]
            if count > self._free:
                return
            del self._waiting[hold]
            self._free -= count
            hold.held += count
            shares[hold.holder] += count
            granted.set()

    def _make_room(self, wanting: Hold) -> None:
        """Who holds most gives way, of its requests the one that is longest on its way."""
        shares = self._shares()
        holder, share = shares.most_common(1)[0] if shares else ("", 0)
        if holder == wanting.holder or shares[wanting.holder] >= share:
            return
        arriving = (each for each in self._holds if each.holder == holder and each.is_arriving)
        oldest = next(arriving, None)
        if oldest is not None and trio.current_time() >= oldest.since + GRACE_S:
            self.give_back(oldest)
            oldest.end()

    def _shares(self) -> Counter[str]:
        shares: Counter[str] = Counter()
        for hold in self._holds:
            shares[hold.holder] += hold.held
        return shares


class Hold:
    """What one request holds of the budget: only for bytes that came, not for those announced."""

    def __init__(self, budget: ByteBudget, length: int, holder: str) -> None:
        """`holder` is who sends it."""
        self.holder = holder
        self.held = 0
        self.since = 0.0
        """From when on it is arriving."""
        self.is_arriving = False
        """Whether it is not whole yet, and may be given up."""
        self._budget = budget
        self._is_small = length <= SMALL_REQUEST_BYTES
        self._reading: trio.CancelScope | None = None
        self._is_given_up = False

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """The request is read in the block. Raises `CloseConnection` if others needed its room."""
        self.is_arriving, self.since = True, trio.current_time()
        try:
            with trio.CancelScope() as self._reading:
                yield
        finally:
            self.is_arriving = False
        if self._is_given_up:
            raise CloseConnection(
                f"its request was on its way for more than {GRACE_S:g} s, while others had no "
                f"room: it held most of that",
                reason="slow",
            )

    async def admit(self, count: int) -> None:
        """Wait for room for the next piece; small requests never wait."""
        if not self._is_small:
            await self._budget.take(self, count)

    def end(self) -> None:
        """Its room is another's now."""
        assert self._reading is not None, "who is given up is arriving"
        self._is_given_up = True
        self._reading.cancel()

    def release(self) -> None:
        """The request is done."""
        if not self._is_small:
            self._budget.give_back(self)
