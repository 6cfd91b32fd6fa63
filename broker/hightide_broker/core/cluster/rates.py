"""How long who is faster than a quota has to wait. Pure.

What somebody sends takes as long as the quota says, one after the other; who is ahead of that by
more than a burst waits. A debt is never forgiven: it goes by with time, and faster if the quota is
raised. Kafka's rate over eleven samples of a second forgets what is older.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

BURST_S = 10.0
"""So far ahead somebody may be, if not said otherwise: Kafka's quota.window.num less one, of a
second each."""
HOLDERS_MAX = 10_000
"""Whose rates are remembered: those who owe something, and of too many those who owe it longest."""

TOLD_MS_MAX = (1 << 31) - 1
"""The longest wait that can be told: Kafka's protocol has no room for more than 24 days."""


def in_ms(delay_s: float) -> int:
    """A wait, as it is told to who has to: a quota may be so small that nobody lives to see it."""
    return math.ceil(min(delay_s * 1000, TOLD_MS_MAX))


class Rate:
    """How fast one holder of a quota is; times are monotonic, in seconds."""

    def __init__(self, burst_s: float = BURST_S) -> None:
        """`burst_s`: so far ahead its holder may be."""
        self._burst_s = burst_s
        self._debt = 0.0
        self._at = 0.0
        self.free_at = 0.0
        """When nothing is left of its debt, by the limit of its last record."""

    def record(self, amount: float, limit: float, now: float) -> None:
        """So much more, where `limit` a second are allowed."""
        assert limit > 0, f"at {limit} a second a debt never goes by"
        assert amount >= 0, f"{amount} more would forgive a debt"
        assert now >= self._at, f"it is {now}, and more came at {self._at}"
        self._debt = self._left(limit, now) + amount
        self._at, self.free_at = now, now + self._debt / limit

    def delay_s(self, limit: float, now: float) -> float:
        """How long to wait from now."""
        return max(self._left(limit, now) / limit - self._burst_s, 0.0)

    def _left(self, limit: float, now: float) -> float:
        return max(self._debt - limit * (now - self._at), 0.0)


class Rates:
    """How fast each of many holders of a quota is."""

    def __init__(self, burst_s: float = BURST_S) -> None:
        """`burst_s`: so far ahead each may be."""
        self._burst_s = burst_s
        self._rates: dict[Hashable, Rate] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def record(self, holder: Hashable, amount: float, limit: float, now: float) -> None:
        """So much more of this one."""
        rate = self._rates.get(holder)
        if rate is None:
            if len(self._rates) >= HOLDERS_MAX:
                self._forget(now)
            rate = self._rates[holder] = Rate(self._burst_s)
        rate.record(amount, limit, now)
        assert len(self._rates) <= HOLDERS_MAX, f"{len(self._rates)} holders are remembered"

    def delay_s(self, holder: Hashable, limit: float, now: float) -> float:
        """How long this one has to wait from now, where `limit` a second are allowed."""
        rate = self._rates.get(holder)
        return rate.delay_s(limit, now) if rate else 0.0

    def _forget(self, now: float) -> None:
        """Who owes nothing, however lately it did something, so that nobody's debt goes away
        because somebody comes by many names; and who owes least long, until there is room for a
        tenth."""
        owing = [pair for pair in self._rates.items() if pair[1].free_at > now]
        owing.sort(key=lambda pair: -pair[1].free_at)
        self._rates = dict(owing[: HOLDERS_MAX - HOLDERS_MAX // 10])
