"""A number that only rises, and who waits for it to pass a threshold: tasks, and callbacks.

Waiters stand in a heap by threshold, so that a step wakes exactly those that can go on. Closing it
with an error wakes everybody with that error: the deposed leader's way of letting go.
"""

from __future__ import annotations

import heapq
from typing import Protocol

import trio

from hightide.protocol.errors import Refused
from hightide_broker.runtime.base.agenda import Act, Agenda

_NEVER = float("inf")
_LOOK_EVERY = 8
"""After so many wishes those that nobody has any more are looked for, and where many stand after as
many as an eighth of them: each is looked at some eight times, however many there are."""


class Waker(Protocol):
    """A wish to be woken; it may stand at several watermarks at once."""

    @property
    def is_set(self) -> bool:
        """Whether the wait is over, or nobody waits any more."""
        ...

    def set(self) -> None:
        """End the wait; more than once is fine. Nothing is done here and now."""
        ...


class Wake:
    """A task's wish to be woken."""

    def __init__(self) -> None:
        self._event = trio.Event()

    @property
    def is_set(self) -> bool:
        """Whether the wait is over, or nobody waits any more."""
        return self._event.is_set()

    def set(self) -> None:
        """End the wait."""
        self._event.set()

    async def wait(self) -> None:
        """Until some watermark passes its threshold or is closed."""
        await self._event.wait()


class Callback:
    """Something that is done, once, when the stretch has ended in which it was woken."""

    def __init__(self, agenda: Agenda, act: Act) -> None:
        self._agenda = agenda
        self._act: Act | None = act

    @property
    def is_set(self) -> bool:
        return self._act is None

    def set(self) -> None:
        if self._act is not None:
            self._agenda.soon(self._act)
            self._act = None

    def drop(self) -> None:
        """Nobody waits any more."""
        self._act = None


class Watermark:
    """`value` never falls; `closed` is the error that ended it, or None."""

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.closed: Refused | None = None
        self._heap: list[tuple[float, int, Waker]] = []
        self._order = 0
        self._unseen = 0
        """Wishes that came since the last look."""

    def __repr__(self) -> str:
        return f"<Watermark {self.value} waiting={len(self._heap)}>"

    def advance(self, value: int) -> bool:
        """Raise the value; whether it rose."""
        assert value >= self.value, f"watermark would fall from {self.value} to {value}"
        if value == self.value:
            return False
        self.value = value
        while self._heap and self._heap[0][0] <= value:
            heapq.heappop(self._heap)[2].set()
        return True

    def wake_at(self, threshold: float, wake: Waker) -> None:
        """Set `wake` once the value is ≥ `threshold`, or the watermark is closed."""
        if self.closed is not None or self.value >= threshold:
            wake.set()
            return
        self._order += 1
        heapq.heappush(self._heap, (threshold, self._order, wake))
        self._unseen += 1
        if self._unseen >= max(_LOOK_EVERY, len(self._heap) // _LOOK_EVERY):
            # Who gave up would stand here until the threshold is passed, which may be never.
            self._forget_the_gone()

    def _forget_the_gone(self) -> None:
        self._unseen = 0
        waiting = [entry for entry in self._heap if not entry[2].is_set]
        if len(waiting) < len(self._heap):
            self._heap = waiting
            heapq.heapify(self._heap)

    async def wait_for(self, threshold: int) -> None:
        """Until the value is ≥ `threshold`; raises the error the watermark was closed with."""
        if self.value < threshold and self.closed is None:
            wake = Wake()
            self.wake_at(threshold, wake)
            try:
                await wake.wait()
            finally:
                wake.set()
        if self.value < threshold:
            assert self.closed is not None
            raise self.closed

    def wake_at_close(self, wake: Waker) -> None:
        """Set `wake` once the watermark is closed."""
        self.wake_at(_NEVER, wake)

    async def wait_closed(self) -> Refused:
        """Until the watermark is closed; the error it was closed with."""
        wake = Wake()
        self.wake_at_close(wake)
        try:
            await wake.wait()
        finally:
            wake.set()
        assert self.closed is not None, "nothing else ends this wait"
        return self.closed

    def followed_by(self, value: int, why: Refused) -> Watermark:
        """Wake all who wait with an error; the watermark that is in this one's place from here."""
        self.close(why)
        return Watermark(value)

    def close(self, error: Refused) -> None:
        """Wake everybody; those below their threshold get `error`."""
        self.closed = error
        heap, self._heap = self._heap, []
        for _, _, wake in heap:
            wake.set()
