"""How long who is faster than a quota has to wait. Pure.

What somebody sends takes as long as the quota says, one after the other; who is ahead of that by
more than a burst waits. A debt is never forgiven: it goes by with time. Kafka's rate over eleven
samples of a second allows the same burst, and forgets what is older.
"""

from __future__ import annotations

import math

BURST_S = 10.0
"""So far ahead somebody may be: Kafka's quota.window.num less one, of a second each."""


class Rate:
    """Of one holder of a quota; times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._paid_until = -math.inf

    def record(self, amount: float, limit: float, now: float) -> None:
        """So much more, where `limit` a second are allowed."""
        self._paid_until = max(self._paid_until, now) + amount / limit

    def delay_s(self, now: float) -> float:
        """How long to wait from now."""
        return max(self._paid_until - BURST_S - now, 0.0)
