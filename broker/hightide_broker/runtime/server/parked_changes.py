"""A change that is answered once other replicas have made it, too: a produce with acks=all, a
deletion of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import trio

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.call import Asker, Reply
from hightide_broker.runtime.base.watermark import Callback, Watermark

WAIT_MS_MAX = 300_000
"""The longest that a produce or a deletion waits for other replicas, whatever it asks for."""


class Waiting(NamedTuple):
    """A partition of a request that waits for a watermark of the leader epoch it was served in."""

    number: int
    watermark: Watermark
    threshold: int
    held_up: Callable[[], str] = str
    """By what, for who has waited too long; nothing, if it is not said."""

    @property
    def has_arrived(self) -> bool:
        return self.watermark.value >= self.threshold


class ParkedChange:
    """Waits until every partition has got there, or will not any more: a role that ended, or time;
    a `Parked`."""

    def __init__(
        self,
        waiting: Sequence[Waiting],
        timeout_ms: int,
        too_late: str,
        reply: Callable[[Mapping[int, Refused]], Reply],
        agenda: Agenda,
    ) -> None:
        """`reply` is told, by number, why some have not got there; `too_late` begins the sentence
        for those that may yet, with a place for the seconds."""
        self._waiting = waiting
        self._timeout_s = min(max(timeout_ms, 0), WAIT_MS_MAX) / 1000
        self._too_late = too_late
        self._reply = reply
        self._agenda = agenda
        self._is_over = False

    def begin(self, asker: Asker) -> None:
        self._asker = asker
        at_the_end = partial(asker.work, self._end)
        self._alarm = self._agenda.at(trio.current_time() + self._timeout_s, at_the_end)
        self._left = 1
        self._callbacks: list[Callback] = []
        for each in self._waiting:
            self._left += 1
            callback = Callback(self._agenda, partial(asker.work, self._one_is_there))
            each.watermark.wake_at(each.threshold, callback)
            self._callbacks.append(callback)
        self._one_is_there()

    def drop(self) -> None:
        self._is_over = True
        self._alarm.take_back()
        for callback in self._callbacks:
            callback.drop()

    def _one_is_there(self) -> None:
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        if self._is_over:
            return
        self.drop()
        missing = (each for each in self._waiting if not each.has_arrived)
        self._asker.answer(
            self._reply(
                {each.number: each.watermark.closed or self._late(each) for each in missing}
            )
        )

    def _late(self, waiting: Waiting) -> Refused:
        said = self._too_late.format(self._timeout_s) + waiting.held_up()
        return Refused(ErrorCode.REQUEST_TIMED_OUT, said)
