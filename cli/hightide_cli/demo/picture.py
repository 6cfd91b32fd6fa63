"""`demo.png`: what happened while the demo ran, and what its data says.

Above, how many records a second went into the topic and came out as Parquet, with the kill marked;
below, the departure delays of the year by weeks, with the worst days named.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hightide_cli.demo.flights import Delays, Hour
from hightide_cli.output import say

if TYPE_CHECKING:
    from hightide.spark.pipeline import FinishedBatch

WORST_DAYS = 5
HEADROOM = 1.35
"""How much higher a drawing is than what is drawn: words stand there."""
EPOCH_WEEKDAY = 3
"""1970 began on a Thursday; weeks begin on Monday."""


@dataclass
class Timeline:
    """What happened when, by the clock of the wall."""

    committed: list[tuple[float, int]] = field(default_factory=list)
    """(when, high watermark of the topic)."""
    batches: list[FinishedBatch] = field(default_factory=list)
    """Of the query that writes the flights."""
    events: list[tuple[float, str]] = field(default_factory=list)

    def note(self, event: str) -> None:
        """Something happened; the user is told."""
        say(event)
        self.events.append((time.time(), event))

    @property
    def began(self) -> float:
        """When the first of all this was."""
        times = [at for at, _ in (*self.committed, *self.events)]
        return min([*times, *(batch.began for batch in self.batches)], default=0.0)


class Stretch(NamedTuple):
    """From here to there, in seconds, at this rate."""

    began: float
    ended: float
    per_s: float


def rates(samples: Sequence[tuple[float, int]]) -> list[Stretch]:
    """How fast a number rose between samples of it."""
    return [
        Stretch(at, then, (value - before) / (then - at))
        for (at, before), (then, value) in pairwise(samples)
        if then > at
    ]


class Week(NamedTuple):
    """The daily mean delays of a week, in minutes."""

    first_day: int
    """Since 1970."""
    least: float
    mean: float
    most: float


def daily_means(hours: Iterable[tuple[Hour, Delays]]) -> dict[int, float]:
    """Day since 1970 → minutes of delay of an average flight that left."""
    total: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for at, delays in hours:
        day = total[at.hour // 24]
        day[0] += delays.delay
        day[1] += delays.flights - delays.cancelled
    return {day: delay / flown for day, (delay, flown) in sorted(total.items()) if flown}


def weeks(means: dict[int, float]) -> list[Week]:
    """Those days by weeks."""
    found = []
    for _, days in groupby(sorted(means), key=lambda day: (day + EPOCH_WEEKDAY) // 7):
        week = list(days)
        values = [means[day] for day in week]
        found.append(Week(week[0], min(values), sum(values) / len(values), max(values)))
    return found


def worst(means: dict[int, float], count: int = WORST_DAYS) -> list[tuple[int, float]]:
    """The days of the longest delays, the worst one first."""
    return sorted(means.items(), key=lambda each: (-each[1], each[0]))[:count]


def draw(timeline: Timeline, hours: Iterable[tuple[Hour, Delays]], path: Path) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    above, below = figure.subplots(2, 1)
    _draw_rates(above, timeline)
    _draw_delays(below, daily_means(hours))
    figure.savefig(path, dpi=120)


def _draw_rates(axes: Any, timeline: Timeline) -> None:
    began = timeline.began
    written = [
        Stretch(each.began, each.ended, each.rows / max(each.ended - each.began, 0.001))
        for each in timeline.batches
    ]
    for name, color, stretches in (
        ("into the topic, committed", "tab:blue", rates(timeline.committed)),
        ("out of it, in Parquet", "tab:orange", written),
    ):
        for number, each in enumerate(stretches):
            span = [each.began - began, each.ended - began]
            label = name if number == 0 else None
            axes.fill_between(span, each.per_s, alpha=0.4, color=color, label=label, linewidth=0)
    top = axes.get_ylim()[1]
    middle = sum(axes.get_xlim()) / 2
    for number, (at, event) in enumerate(timeline.events):
        axes.axvline(at - began, color="black", linewidth=1, linestyle="--")
        place = at - began, top * (1.33 - 0.07 * (number % 5))
        side = "left" if at - began < middle else "right"
        axes.annotate(f" {event} ", place, fontsize=8, ha=side, va="top")
    axes.set_xlabel("seconds")
    axes.set_ylabel("records/s")
    axes.set_ylim(0, top * HEADROOM)
    axes.set_title("What went in, and what came out")
    if timeline.committed or written:
        axes.legend(loc="lower left")


def _draw_delays(axes: Any, means: dict[int, float]) -> None:
    import numpy as np

    found = weeks(means)
    days = np.array([week.first_day for week in found], "datetime64[D]")
    bands = [week.least for week in found], [week.most for week in found]
    axes.fill_between(days, *bands, alpha=0.25, step="post", label="best to worst day of a week")
    axes.step(days, [week.mean for week in found], where="post", label="mean of the week")
    for day, mean in worst(means):
        date = np.datetime64(day, "D")
        axes.plot(date, mean, "o", color="tab:red", markersize=4)
        axes.annotate(f" {date.astype(object):%b %d}: {mean:.0f} min", (date, mean), fontsize=8)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, bottom + (top - bottom) * HEADROOM)
    axes.set_ylabel("mean departure delay [min]")
    axes.set_title("Departures from New York, from the pipeline's hourly aggregate")
    axes.legend(loc="upper left", ncols=2)
