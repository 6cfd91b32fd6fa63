"""How long who is faster than a quota has to wait. Pure.

What somebody sends takes as long as the quota says, one after the other; who is ahead of that by
more than a burst waits. A debt is never forgiven: it goes by with time. Kafka's rate over eleven
samples of a second allows the same burst, and forgets what is older.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable

BURST_S = 10.0
"""So far ahead somebody may be: Kafka's quota.window.num less one, of a second each."""
HOLDERS_MAX = 10_000
"""Whose rates are remembered: those who did something last."""


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


class Rates:
    """Of many holders."""

    def __init__(self) -> None:
        self._rates: OrderedDict[Hashable, Rate] = OrderedDict()

    def record(self, holder: Hashable, amount: float, limit: float, now: float) -> None:
        """So much more of this one."""
        rate = self._rates.get(holder)
        if rate is None:
            rate = self._rates[holder] = Rate()
            if len(self._rates) > HOLDERS_MAX:
                self._rates.popitem(last=False)
        self._rates.move_to_end(holder)
        rate.record(amount, limit, now)

    def delay_s(self, holder: Hashable, now: float) -> float:
        """How long this one has to wait from now."""
        rate = self._rates.get(holder)
        return rate.delay_s(now) if rate else 0.0
