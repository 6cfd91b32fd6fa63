"""One after the other, in the order of asking; who goes away holds up nobody. For tasks, and for
threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

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
    again and again. Who has places has a list of how many it was given each time.

    Ctrl-C strikes where something is called, or a loop goes round: no call stands between the steps
    that take places and write down whose they are, or that give them back."""

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._left: deque[int] = deque()
        """Places that were given back, and are not free yet."""
        self._line: deque[tuple[threading.Lock, int, list[int]]] = deque()
        """Who waits: for a lock to be released, and for how many places, into which list."""
        self._lock = threading.RLock()  # the handler of a signal may come here, too

    def take(
        self, look: Callable[[], None], *, every_s: float, count: int, into: list[int]
    ) -> None:
        """Wait for places, at most as many as there are; `look` is called meanwhile, and may raise.
        `into`, which is empty, has them or not where this does not return."""
        assert count <= self._count, f"{count} of {self._count}: they can never be had"
        if self.take_now(count, into):
            return
        is_given = threading.Lock()
        is_given.acquire()
        turn = is_given, count, into
        try:
            with self._lock:
                self._line.append(turn)
                self._give()
            while not into:
                look()
                is_given.acquire(timeout=every_s)
                self._try_to_give()
        finally:
            self._go(turn)
            self._try_to_give()

    def take_now(self, count: int, into: list[int]) -> bool:
        """Take places if so many are free, and nobody waits for some."""
        with self._lock:
            self._give()
            may = count <= self._free and not self._line
            if may:
                self._free -= count
                into += [count]
        self._try_to_give()
        return may

    def _go(self, turn: tuple[threading.Lock, int, list[int]]) -> None:
        with self._lock:
            if turn in self._line:
                self._line.remove(turn)
            self._give()

    def leave(self, places: list[int]) -> None:
        """Give back what a list has; who is next in line gets it. Waits for nobody: who holds the
        lock may be a thread that the handler of a signal keeps waiting, and gives it then."""
        with suppress(IndexError):  # nothing is left
            self._left.extend(iter(places.pop, None))
        self._try_to_give()

    def _try_to_give(self) -> None:
        while self._left:
            has_it: list[bool] = []
            try:
                has_it += map(self._lock.acquire, (False,))  # no call of Python's, see above
                if not has_it[0]:
                    return
                self._give()
            finally:
                if True in has_it:
                    self._lock.release()

    def _give(self) -> None:
        while self._left:
            self._free += self._left[0]
            del self._left[0]
        while self._line and self._line[0][1] <= self._free:
            is_given, count, into = self._line[0]
            self._free -= count
            into += [count]
            del self._line[0]
            is_given.release()
