"""Who hears that something is tried again when the program does not want to: its log."""

from __future__ import annotations

import logging

from hightide.protocol.errors import BrokerUnreachable, HightideError, RequestTimedOut

_LOG = logging.getLogger("hightide")
TOLD_AT = 3
"""A broker that cannot be reached so often is worth a word: others take its place within less."""
REASONS_MAX = 100


class Warned:
    """Says once for each reason that nobody answers. What a broker refuses for a while is said by
    the error, should it last."""

    def __init__(self) -> None:
        self._heard: dict[str, int] = {}

    def __call__(self, error: HightideError) -> None:
        if not isinstance(error, BrokerUnreachable | RequestTimedOut):
            return
        reason = error.reason
        if len(self._heard) >= REASONS_MAX and reason not in self._heard:
            self._heard.clear()
        count = self._heard[reason] = self._heard.get(reason, 0) + 1
        if count == (TOLD_AT if isinstance(error, BrokerUnreachable) else 1):
            _LOG.warning("%s; trying again", reason)
