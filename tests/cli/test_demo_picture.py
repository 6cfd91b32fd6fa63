"""Goal: the demo's picture shows what was measured: rates between samples, weeks and worst days.

Method: the numbers behind it, by hand; that it is drawn at all, of much and of nothing.
"""

import pytest

from hightide_cli.demo.flights import Delays, Hour
from hightide_cli.demo.picture import Timeline, Week, daily_means, draw, rates, weeks, worst

MONDAY = 4
"""The fifth of January 1970."""


def test_a_rate_is_what_came_between_two_samples():
    assert rates([]) == rates([(5.0, 100)]) == []
    samples = [(5.0, 100), (5.5, 300), (5.5, 400), (7.5, 400)]
    assert rates(samples) == [(5.0, 5.5, 400.0), (5.5, 7.5, 0.0)]


def test_the_mean_of_a_day_is_over_flights_that_left():
    hours = [
        (Hour(24 * MONDAY, "JFK"), Delays(flights=3, cancelled=1, delay=30)),
        (Hour(24 * MONDAY + 23, "LGA"), Delays(flights=8, cancelled=0, delay=0)),
        (Hour(24 * MONDAY + 24, "LGA"), Delays(flights=2, cancelled=2, delay=0)),
    ]
    assert daily_means(hours) == {MONDAY: 3.0}


def test_weeks_begin_on_monday():
    means = {MONDAY - 1: 9.0, MONDAY: 1.0, MONDAY + 1: 2.0, MONDAY + 6: 6.0, MONDAY + 7: 5.0}
    assert weeks(means) == [
        Week(MONDAY - 1, 9.0, 9.0, 9.0),
        Week(MONDAY, 1.0, 3.0, 6.0),
        Week(MONDAY + 7, 5.0, 5.0, 5.0),
    ]


def test_the_worst_days_come_first_and_the_earlier_of_equals():
    means = {10: 5.0, 11: 7.0, 12: 7.0, 13: -3.0}
    assert worst(means, 3) == [(11, 7.0), (12, 7.0), (10, 5.0)]


@pytest.mark.parametrize("much", [True, False])
def test_it_is_drawn(tmp_path, much):
    pytest.importorskip("matplotlib")
    from hightide.spark.pipeline import FinishedBatch

    timeline, hours = Timeline(), []
    if much:
        timeline.committed = [(100 + at / 4, 5000 * at) for at in range(40)]
        timeline.batches = [FinishedBatch(100.0 + at, 100.8 + at, 19_000) for at in range(10)]
        timeline.events = [(104.0, "kill -9 of broker 2"), (104.6, "broker 2 is back")]
        hours = [
            (Hour(24 * day, "JFK"), Delays(100, 0, 100 * (day % 11))) for day in range(40, 400)
        ]
    draw(timeline, hours, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_it_begins_with_the_first_thing_that_happened():
    assert Timeline().began == 0.0
    timeline = Timeline(committed=[(7.0, 0)])
    timeline.events.append((6.5, "first"))
    assert timeline.began == 6.5
