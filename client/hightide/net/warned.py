"""Who hears that something is tried again when the program does not want to: its log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hightide.protocol.errors import BrokerUnreachable, HightideError, RequestTimedOut

_LOG = logging.getLogger("hightide")
TOLD_AT = 3
"""A broker that cannot be reached so often is worth a word: others take its place within less."""
FORGOTTEN_S = 60.0
"""What was not heard again for so long is over."""
SILENT_S = 5.0
"""So long nobody is told that an answer is waited for; a busy broker takes its time, too."""
REASONS_MAX = 100


class Warned:
    """Says once in each trouble that nobody answers. What a broker refuses for a while is said by
    the error, should it last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: dict[str, tuple[float, int]] = {}
        """When last, and how often, by reason."""

    def __call__(self, error: HightideError) -> None:
        if not isinstance(error, BrokerUnreachable | RequestTimedOut):
            return
        now, reason = self._clock(), error.reason
        last, count = self._heard.get(reason, (now, 0))
        if len(self._heard) >= REASONS_MAX and not count:
            self._heard.clear()
        count = 1 if now - last > FORGOTTEN_S else count + 1
        self._heard[reason] = now, count
        if count == (TOLD_AT if isinstance(error, BrokerUnreachable) else 1):
            _LOG.warning("%s; trying again", reason)

    def silent(self, broker: str, patience_s: float) -> None:
        """A broker that owes an answer has said nothing for `SILENT_S`, and is given so long."""
        _LOG.warning("%s", told_of_silence(broker, patience_s))


def told_of_silence(broker: str, patience_s: float) -> str:
    """What is said of it."""
    given = round(patience_s, 2)
    return f"broker {broker} has said nothing for {SILENT_S:g} s; it is given {given:g} s"
