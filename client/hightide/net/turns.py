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
        self._left: deque[int] = deque()
        """Places that were given back, and are not free yet."""
        self._line: deque[tuple[threading.Event, int]] = deque()
        self._lock = threading.RLock()  # the handler of a signal may come here, too

    def take(self, look: Callable[[], None], *, every_s: float, count: int = 1) -> None:
        """Wait for places, at most as many as there are; `look` is called meanwhile, and may
        raise."""
        assert count <= self._count, f"{count} of {self._count}: they can never be had"
        turn, is_given = (threading.Event(), count), False
        try:
            with self._lock:
                self._give()
                if count <= self._free and not self._line:
                    is_given = True
                    self._free -= count
                    return
                self._line.append(turn)
            look()
            while not (is_given := turn[0].wait(every_s)):
                self._try_to_give()
                look()
        finally:
            if not is_given:
                self._go(turn)
            self._try_to_give()

    def take_now(self, count: int) -> bool:
        """Take places if so many are free, and nobody waits for some; waits for nobody, not even
        for the lock."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._give()
            if count > self._free or self._line:
                return False
            self._free -= count
            return True
        finally:
            self._lock.release()

    def _go(self, turn: tuple[threading.Event, int]) -> None:
        with self._lock:
            if turn in self._line:
                self._line.remove(turn)
            elif turn[0].is_set():  # it was given the places meanwhile
                self._left.append(turn[1])
            self._give()

    def leave(self, count: int = 1) -> None:
        """Give places back; who is next in line gets them. Waits for nobody: who holds the lock
        may be a thread that the handler of a signal keeps waiting, and gives them then."""
        self._left.append(count)
        self._try_to_give()

    def _try_to_give(self) -> None:
        while self._left and self._lock.acquire(blocking=False):
            try:
                self._give()
            finally:
                self._lock.release()

    def _give(self) -> None:
        while self._left:
            self._free += self._left.popleft()
        while self._line and self._line[0][1] <= self._free:
            event, count = self._line.popleft()
            self._free -= count
            event.set()
