"""How many bytes of requests may be on their way in at a time, over all connections."""

from __future__ import annotations

import trio

SMALL_REQUEST_BYTES = 64 << 10
"""Requests up to this size do not count: max.connections bounds them."""


class ByteBudget:
    """So many bytes may be held at a time; who needs more waits."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._freed = trio.Event()

    async def take(self, count: int) -> None:
        """Wait for room for `count` bytes."""
        while self._free < count:
            await self._freed.wait()
        self._free -= count

    def give_back(self, count: int) -> None:
        """Those bytes are not held any more."""
        self._free += count
        freed, self._freed = self._freed, trio.Event()
        freed.set()


class Hold:
    """What one request holds of the budget: only for bytes that came, not for those announced."""

    def __init__(self, budget: ByteBudget, length: int) -> None:
        self._budget = budget
        self._is_small = length <= SMALL_REQUEST_BYTES
        self._held = 0

    async def admit(self, count: int) -> None:
        """Wait for room for the next piece; small requests never wait."""
        if not self._is_small:
            await self._budget.take(count)
            self._held += count

    def release(self) -> None:
        """The request is done."""
        self._budget.give_back(self._held)
