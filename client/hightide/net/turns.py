"""One after the other, in the order of asking; who goes away holds up nobody. For tasks, and for
threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
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


class Places:
    """So many places for threads. A semaphore's go to the quickest, again and again."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._line: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    def take(self, look: Callable[[], None], *, every_s: float) -> None:
        """Wait for a place; `look` is called meanwhile, and may raise."""
        with self._lock:
            if self._free and not self._line:
                self._free -= 1
                return
            turn = threading.Event()
            self._line.append(turn)
        is_given = False
        try:
            look()
            while not (is_given := turn.wait(every_s)):
                look()
        finally:
            if not is_given:
                self._go(turn)

    def _go(self, turn: threading.Event) -> None:
        with self._lock:
            if turn in self._line:
                self._line.remove(turn)
                return
        self.leave()  # it was given the place meanwhile

    def leave(self) -> None:
        """Give the place to the next in line, or back."""
        with self._lock:
            if self._line:
                self._line.popleft().set()
            else:
                self._free += 1
