"""How fast somebody sends, over the last seconds, and how long to wait to be slow enough. Pure.

Kafka's windows: samples of a second, eleven of them. Who was too fast waits until the same amount
over a longer time would have been right. Source: KIP-13, Kafka's Rate and QuotaUtils.
"""

from __future__ import annotations

from collections import deque

SAMPLE_S = 1.0
"""Kafka: quota.window.size.seconds."""
SAMPLES = 11
"""Kafka: quota.window.num."""


class Rate:
    """Of one holder of a quota; times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        """When each began, and how much there was in it."""

    def record(self, amount: float, now: float) -> None:
        """So much more."""
        self._forget(now)
        if self._samples and now - self._samples[-1][0] < SAMPLE_S:
            began, there = self._samples[-1]
            self._samples[-1] = (began, there + amount)
        else:
            self._samples.append((now, amount))

    def delay_s(self, limit: float, now: float) -> float:
        """How long to wait from now, so that what there was is no more than `limit` a second."""
        self._forget(now)
        total = sum(amount for _, amount in self._samples)
        return max(total / limit - self._window_s(now), 0.0)

    def _window_s(self, now: float) -> float:
        """What the amounts are measured over: all but one sample at least, as if they had been
        there all the time; so a short burst is none."""
        oldest = self._samples[0][0] if self._samples else now
        return max(now - oldest + SAMPLE_S, SAMPLE_S * (SAMPLES - 1))

    def _forget(self, now: float) -> None:
        while self._samples and self._samples[0][0] <= now - SAMPLE_S * SAMPLES:
            self._samples.popleft()
