"""What a node does next without a task of its own: once the stretch that is under way has ended, or
at a time.

A stretch is what runs without an `await`: a request that is begun, an answer that is taken in, a
sync that is counted. What it sets off (answers to requests that were parked, the next fetch, the
next sync) must not run in the middle of it, and a task for each would cost the event loop one more
pass. So it is written down here, and carried out when the stretch ends. One task does what was
written down outside of any stretch, and what is due.

What fails in it is not the fault of the task whose stretch it was: the one here raises it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

import trio

Act = Callable[[], None]
_STALE_MIN = 8
"""So many entries that were taken back are not worth clearing away."""


class Entry:
    """Something that is due at a time."""

    __slots__ = ("_agenda", "act", "is_due")

    def __init__(self, agenda: Agenda, act: Act) -> None:
        self.act: Act | None = act
        """None once it was done or taken back."""
        self.is_due = False
        """Whether its time has come: it is done soon."""
        self._agenda = agenda

    def take_back(self) -> None:
        """It is not done any more; fine if it was."""
        if self.act is not None:
            self.act = None
            if not self.is_due:
                self._agenda.forget_one()

    def do(self) -> None:
        """Its time has come; another one that was due may have taken it back."""
        act, self.act = self.act, None
        if act is not None:
            act()


class Stretch:
    """The one that may be under way; a block, which may be in others."""

    # Not a generator: every request comes by here, more than once.
    __slots__ = ("_agenda", "depth")

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self.depth == 1 and kind is None:
                self._agenda.do_what_was_set_off()
        finally:
            self.depth -= 1
            if not self.depth:
                self._agenda.leave_the_rest()


class Agenda:
    """Of one node. Times are trio's; what is due at the same time is done in order of entry."""

    def __init__(self) -> None:
        self._soon: deque[Act] = deque()
        self._timed: list[tuple[float, int, Entry]] = []
        """A heap: by time, then by order of entry."""
        self._stale = 0
        self._order = 0
        self._stretch = Stretch(self)
        self._runs = False
        self._failure: BaseException | None = None
        self._news = trio.Event()

    def soon(self, act: Act) -> None:
        """Do this when the stretch has ended that is under way; if none is, in the next one."""
        self._soon.append(act)
        if not self._stretch.depth:
            self._news.set()

    def now(self, act: Act) -> None:
        """Do this in a stretch of its own: here, or, if one is under way, at its end."""
        with self.stretch():
            self._soon.append(act)

    def at(self, time: float, act: Act) -> Entry:
        """Do this at a time, in a stretch of its own."""
        self._order += 1
        entry = Entry(self, act)
        heapq.heappush(self._timed, (time, self._order, entry))
        if self._timed[0][2] is entry:
            self._news.set()
        return entry

    def forget_one(self) -> None:
        """An entry was taken back."""
        self._stale += 1
        if self._stale > max(_STALE_MIN, len(self._timed) // 2):
            self._timed = [timed for timed in self._timed if timed[2].act is not None]
            heapq.heapify(self._timed)
            self._stale = 0

    def stretch(self) -> Stretch:
        """The block is one, or a part of the one that is under way; at the end of the outermost,
        what it set off is done."""
        return self._stretch

    def do_what_was_set_off(self) -> None:
        """All that is to be done soon."""
        while self._soon:
            self._do(self._soon.popleft())

    def leave_the_rest(self) -> None:
        """A stretch has ended; if it failed, what it set off is not lost with it."""
        if self._soon:
            self._news.set()

    def _do(self, act: Act) -> None:
        try:
            act()
        except BaseException as failure:
            if not self._runs:
                raise
            self._failure = self._failure or failure
            self._news.set()

    async def run(self) -> None:
        """Until cancelled; raises what failed."""
        self._runs = True
        try:
            while self._failure is None:
                with trio.CancelScope(deadline=self._due) as waiting:
                    await self._do_what_comes(waiting)
                self._do_what_is_due()
            raise self._failure
        finally:
            self._runs = False

    @property
    def _due(self) -> float:
        return self._timed[0][0] if self._timed else float("inf")

    async def _do_what_comes(self, waiting: trio.CancelScope) -> None:
        """Until something is due, which ends the scope, or something failed. One scope for many
        waits: trio remembers each that was left until its time would have come."""
        while self._failure is None:
            await self._news.wait()
            self._news = trio.Event()
            self._do_what_is_due()
            if waiting.deadline != (due := self._due):
                waiting.deadline = due

    def _do_what_is_due(self) -> None:
        now = trio.current_time()
        with self.stretch():
            while self._timed and (self._timed[0][2].act is None or self._timed[0][0] <= now):
                entry = heapq.heappop(self._timed)[2]
                if entry.act is None:
                    self._stale -= 1
                else:
                    entry.is_due = True
                    self._soon.append(entry.do)
