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
    """So many places for threads, which take some at a time. A semaphore's go to the quickest,
    again and again."""

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._line: deque[tuple[threading.Event, int]] = deque()
        self._lock = threading.RLock()  # the handler of a signal may come here, too

    def take(self, look: Callable[[], None], *, every_s: float, count: int = 1) -> None:
        """Wait for places, at most as many as there are; `look` is called meanwhile, and may
        raise."""
        assert count <= self._count, f"{count} of {self._count} places can never be had"
        with self._lock:
            if count <= self._free and not self._line:
                self._free -= count
                return
            turn = threading.Event(), count
            self._line.append(turn)
        is_given = False
        try:
            look()
            while not (is_given := turn[0].wait(every_s)):
                look()
        finally:
            if not is_given:
                self._go(turn)

    def _go(self, turn: tuple[threading.Event, int]) -> None:
        with self._lock:
            if turn in self._line:
                self._line.remove(turn)
                self._give()
                return
        self.leave(turn[1])  # it was given the places meanwhile

    def leave(self, count: int = 1) -> None:
        """Give places back; whoever is next in line gets them."""
        with self._lock:
            self._free += count
            self._give()

    def _give(self) -> None:
        while self._line and self._line[0][1] <= self._free:
            event, count = self._line.popleft()
            self._free -= count
            event.set()
