"""One after the other, in the order of asking; who goes away holds up nobody."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Turns:
    """A place is taken in the stretch in which somebody asks, also for what a task does later: a
    lock would have them in the order in which their tasks come to run."""

    def __init__(self) -> None:
        self._line: deque[trio.Event] = deque()

    def take(self) -> trio.Event:
        """The last place; to be given to `turn`, which leaves it."""
        place = trio.Event()
        self._line.append(place)
        self._line[0].set()
        return place

    @asynccontextmanager
    async def turn(self, place: trio.Event) -> AsyncIterator[None]:
        """The block runs once everybody before this place has left."""
        try:
            await place.wait()
            yield
        finally:
            self._line.remove(place)
            if self._line:
                self._line[0].set()
