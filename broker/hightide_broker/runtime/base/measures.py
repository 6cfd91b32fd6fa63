"""How long things took, counted so that it costs next to nothing.

Each room counts what it does, in plain numbers of its own; `runtime/metrics` reads them when it is
asked. A count only rises as long as its process lives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Up to how many seconds each step of a histogram goes; one more has what took longer."""


class Histogram:
    """How often something took how long."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """How often it ended in each step, not counting the steps below."""
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """It took so long once more."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class Course:
    """How something passes through its phases, each with a histogram of its own."""

    __slots__ = ("_began", "_phase", "_since", "_steps")

    def __init__(self, steps: Sequence[Histogram], since: float) -> None:
        """`since`: when the first phase began."""
        self._steps = steps
        self._phase = 0
        self._since = since
        self._began = since

    def leave_out(self, phase: int, spans: Sequence[tuple[float, float]]) -> None:
        """Of the time in the phase that it is in, these spans were another one's: those of them
        that began once it was there."""
        spent = sum(until - since for since, until in spans if since >= self._began)
        if spent:
            self._steps[phase].observe(spent)
            self._since += spent

    def enter(self, phase: int, now: float) -> None:
        """A phase begins, by its number, and the one before it ends."""
        self._steps[self._phase].observe(now - self._since)
        self._phase, self._since = phase, now
