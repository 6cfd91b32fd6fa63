"""A log that strangers can write to, by what they do, or a thousand partitions at once: so many
lines, and then a number.

A line is of the place that tells it, which is none in here: the name of an event goes by that.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

import trio

from hightide.protocol.words import counted

LINES_MAX = 10
WINDOW_S = 10.0


class SparingLog:
    """So many lines within `WINDOW_S`; the next one tells how many there were not."""

    def __init__(self, log: logging.Logger, *, lines_max: int = LINES_MAX) -> None:
        self._log = log
        self._lines_max = lines_max
        self._until = 0.0
        self._written = 0
        self._left_out = 0

    def write(self, level: int, message: str, *parts: object, stacklevel: int = 1) -> None:
        """As `logging.Logger.log`, if there is room for it."""
        now = trio.current_time()
        self.write_at(now, level, message, *parts, stacklevel=stacklevel + 1)

    def write_at(
        self, now: float, level: int, message: str, *parts: object, stacklevel: int = 1
    ) -> None:
        """The same for those who know the time."""
        if now >= self._until:
            if self._left_out:
                many = "lines like the last ones were"
                said = counted(self._left_out, "line like the last one was", many)
                self._log.log(level, "%s left out", said)
            self._until, self._written, self._left_out = now + WINDOW_S, 0, 0
        if self._written == self._lines_max:
            self._left_out += 1
            return
        self._written += 1
        self._log.log(level, message, *parts, stacklevel=stacklevel + 1)


class SparingLogs:
    """One for each of many strangers: nobody hides behind others' noise."""

    def __init__(
        self, log: logging.Logger, *, lines_max: int = LINES_MAX, strangers_max: int
    ) -> None:
        """`strangers_max`: whose lines are counted, those who came last."""
        self._log = log
        self._lines_max = lines_max
        self._strangers_max = strangers_max
        self._logs: OrderedDict[str, SparingLog] = OrderedDict()

    def write(self, stranger: str, level: int, message: str, *parts: object) -> None:
        """As `SparingLog.write`, for one of them."""
        log = self._logs.get(stranger)
        if log is None:
            log = self._logs[stranger] = SparingLog(self._log, lines_max=self._lines_max)
            if len(self._logs) > self._strangers_max:
                self._logs.popitem(last=False)
        self._logs.move_to_end(stranger)
        log.write(level, message, *parts, stacklevel=2)
