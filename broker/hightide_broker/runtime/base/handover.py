"""What worker threads have ended is told in the event loop: all of it at once that has ended by the
time the loop has its turn. Told one by one, the ends of thirty syncs would be thirty wake-ups, and
each would set off a fetch, or answer one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import trio

from hightide_broker.ports import Done, Outcomes

T = TypeVar("T")


class _Handover:
    """From threads to one run of the event loop."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._lock = threading.Lock()
        self._ended: dict[Done[Any], Outcomes[Any]] = {}

    def put(self, done: Done[T], what: T, outcome: Any) -> None:
        """In a thread. Where the loop has ended, nobody is told."""
        with self._lock:
            is_first = not self._ended
            self._ended.setdefault(done, []).append((what, getattr(outcome, "error", None)))
        if is_first:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._tell)

    def _tell(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, {}
        for done, outcomes in ended.items():
            done(outcomes)


_of_this_run: trio.lowlevel.RunVar[_Handover] = trio.lowlevel.RunVar("handover")


def begin_in_thread(work: Callable[[], None], what: T, done: Done[T]) -> None:
    """Do `work` in a thread; `done` is told of `what`, and what that failed with. No task waits for
    it: that would cost turns of the event loop."""
    try:
        handover = _of_this_run.get()
    except LookupError:
        _of_this_run.set(handover := _Handover())
    trio.lowlevel.start_thread_soon(work, partial(handover.put, done, what))
