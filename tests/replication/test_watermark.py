"""The watermark's waiters: woken in time, woken alone, and gone when they gave up.

Goal: a step wakes exactly those it satisfies, an end with an error reaches everybody it concerns,
and no waiter that was cancelled is kept. Method: tasks that note when they go on, looked at once
every task stands still; Hypothesis holds many wishes against the plain rule; how many wait is read
from the printed form.
"""

from __future__ import annotations

import re

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S
from tries import tries
from trio.testing import wait_all_tasks_blocked

from hightide_broker.runtime.base.watermark import Wake, Watermark

KEPT_MAX = 8
"""How many wishes nobody has any more may stand in the heap."""


class Deposed(Exception):
    """What these watermarks are closed with."""


def waiting(watermark: Watermark) -> int:
    found = re.fullmatch(r"<Watermark -?\d+ waiting=(\d+)>", repr(watermark))
    assert found is not None, repr(watermark)
    return int(found.group(1))


class Waiters:
    """Tasks at thresholds, and what became of them."""

    def __init__(self, watermark: Watermark, nursery: trio.Nursery, thresholds: list[int]) -> None:
        self.ended: dict[int, str] = {}
        for threshold in thresholds:
            nursery.start_soon(self._wait, watermark, threshold)

    async def _wait(self, watermark: Watermark, threshold: int) -> None:
        try:
            await watermark.wait_for(threshold)
        except Deposed:
            self.ended[threshold] = "deposed"
        else:
            self.ended[threshold] = "reached"


# Waking.


async def test_a_step_wakes_exactly_those_at_or_below_it(nursery) -> None:
    watermark = Watermark(10)
    waiters = Waiters(watermark, nursery, [15, 11, 14, 12, 13])
    await wait_all_tasks_blocked()
    assert (waiters.ended, waiting(watermark)) == ({}, 5)
    for value, expected in ((11, {11}), (13, {11, 12, 13}), (99, {11, 12, 13, 14, 15})):
        assert watermark.advance(value)
        await wait_all_tasks_blocked()
        assert waiters.ended.keys() == expected
    assert set(waiters.ended.values()) == {"reached"}
    assert waiting(watermark) == 0


async def test_what_is_reached_is_not_waited_for(nursery) -> None:
    watermark = Watermark(10)
    waiters = Waiters(watermark, nursery, [-1, 0, 10])
    await wait_all_tasks_blocked()
    assert waiters.ended == {-1: "reached", 0: "reached", 10: "reached"}
    assert waiting(watermark) == 0


async def test_many_may_wait_for_the_same_value(nursery) -> None:
    watermark = Watermark()
    groups = [Waiters(watermark, nursery, [1, 2]) for _ in range(50)]
    await wait_all_tasks_blocked()
    watermark.advance(1)
    await wait_all_tasks_blocked()
    assert [waiters.ended for waiters in groups] == [{1: "reached"}] * 50
    watermark.advance(2)


def test_the_value_rises_or_stays() -> None:
    watermark = Watermark(5)
    assert [watermark.advance(value) for value in (5, 6, 6, 9)] == [False, True, False, True]
    assert watermark.value == 9
    with pytest.raises(AssertionError, match="would fall from 9 to 8"):
        watermark.advance(8)
    assert watermark.value == 9


# The end.


async def test_closing_wakes_everybody_with_the_error(nursery) -> None:
    watermark = Watermark(10)
    waiters = Waiters(watermark, nursery, [11, 12, 10**9])
    await wait_all_tasks_blocked()
    watermark.close(Deposed("epoch 5 leads"))
    await wait_all_tasks_blocked()
    assert waiters.ended == dict.fromkeys((11, 12, 10**9), "deposed")
    assert waiting(watermark) == 0


async def test_who_was_reached_before_the_end_does_not_see_the_error(nursery) -> None:
    """Both in one stretch: the step comes first, the tasks go on only after the end."""
    watermark = Watermark(10)
    waiters = Waiters(watermark, nursery, [11, 12, 13])
    await wait_all_tasks_blocked()
    watermark.advance(12)
    watermark.close(Deposed())
    await wait_all_tasks_blocked()
    assert waiters.ended == {11: "reached", 12: "reached", 13: "deposed"}


async def test_a_closed_watermark_refuses_above_its_value_and_not_below() -> None:
    watermark = Watermark(10)
    error = Deposed("epoch 5 leads")
    assert watermark.closed is None
    watermark.close(error)
    assert watermark.closed is error
    await watermark.wait_for(10)
    with pytest.raises(Deposed) as caught:
        await watermark.wait_for(11)
    assert caught.value is error
    assert waiting(watermark) == 0


# One wish at several watermarks.


async def test_a_wake_at_several_watermarks_is_set_by_the_first() -> None:
    wake, end, committed = Wake(), Watermark(), Watermark()
    end.wake_at(5, wake)
    committed.wake_at(3, wake)
    end.advance(4)
    committed.advance(2)
    assert not wake.is_set
    committed.advance(3)
    assert wake.is_set
    with trio.fail_after(PATIENCE_S):
        await wake.wait()
    assert waiting(committed) == 0
    assert waiting(end) == 1, "forgotten later"
    end.advance(5)
    assert waiting(end) == 0


def test_a_wake_is_set_at_once_where_there_is_nothing_to_wait_for() -> None:
    closed = Watermark()
    closed.close(Deposed())
    for watermark, threshold in ((Watermark(5), 5), (Watermark(5), 4), (closed, 10**9)):
        wake = Wake()
        watermark.wake_at(threshold, wake)
        assert wake.is_set
        assert waiting(watermark) == 0


def test_the_end_of_one_watermark_sets_the_wakes_that_stand_there() -> None:
    left, right = Watermark(), Watermark()
    both, right_only = Wake(), Wake()
    for watermark, wake in ((left, both), (right, both), (right, right_only)):
        watermark.wake_at(7, wake)
    left.close(Deposed())
    assert both.is_set
    assert not right_only.is_set


# Those who gave up.


async def give_up_waiting(watermark: Watermark, threshold: int) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await watermark.wait_for(threshold)
    assert scope.cancelled_caught


async def test_cancelled_waiters_do_not_gather(nursery) -> None:
    watermark = Watermark()
    waiters = Waiters(watermark, nursery, [3, 1, 2])
    await wait_all_tasks_blocked()
    for number in range(500):
        await give_up_waiting(watermark, 10**6 - number)
        assert waiting(watermark) <= KEPT_MAX + 3
    for value in (1, 2, 3):
        assert len(waiters.ended) == value - 1, "those who still wait were not forgotten"
        watermark.advance(value)
        await wait_all_tasks_blocked()
    assert list(waiters.ended) == [1, 2, 3]


def test_the_nearest_is_still_woken_first_when_others_were_forgotten() -> None:
    watermark = Watermark()
    gone, far, near = Wake(), Wake(), Wake()
    for threshold, wake in ((1, gone), (50, far), (2, near)):
        watermark.wake_at(threshold, wake)
    gone.set()
    others = [Wake() for _ in range(KEPT_MAX)]
    for other in others:
        watermark.wake_at(100, other)
    assert waiting(watermark) == len(others) + 2, "the one that is gone was forgotten"
    watermark.advance(2)
    assert (near.is_set, far.is_set) == (True, False)
    watermark.advance(50)
    assert far.is_set


async def test_cancelled_waiters_go_with_the_step_that_passes_them() -> None:
    watermark = Watermark()
    for threshold in range(1, 8):
        await give_up_waiting(watermark, threshold)
    assert waiting(watermark) == 7
    watermark.advance(5)
    assert waiting(watermark) == 2


async def test_a_cancelled_waiter_takes_nobody_with_it(nursery) -> None:
    watermark = Watermark()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            gone = Waiters(watermark, inner, [4, 5])
            stays = Waiters(watermark, nursery, [4, 5])
            await wait_all_tasks_blocked()
            scope.cancel()
    watermark.advance(4)
    await wait_all_tasks_blocked()
    assert (gone.ended, stays.ended) == ({}, {4: "reached"})
    watermark.close(Deposed())
    await wait_all_tasks_blocked()
    assert (gone.ended, stays.ended) == ({}, {4: "reached", 5: "deposed"})


# Any order of wishes, steps and goings.


thresholds = st.lists(st.integers(0, 60), max_size=40)
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("wish"), thresholds),
        st.tuples(st.just("step"), st.integers(0, 9)),
        st.tuples(st.just("go"), thresholds),
    ),
    max_size=20,
)


@pytest.mark.slow
@given(happenings)
@settings(max_examples=tries(200), deadline=None)
def test_a_wish_is_fulfilled_exactly_when_its_threshold_is_reached(
    steps: list[tuple[str, list[int] | int]],
) -> None:
    watermark = Watermark()
    wakes: list[tuple[int, Wake]] = []
    for step, argument in steps:
        match step:
            case "wish":
                for threshold in argument:
                    wakes.append((threshold, Wake()))
                    watermark.wake_at(*wakes[-1])
            case "step":
                watermark.advance(watermark.value + argument)
            case _:
                for index in argument[: len(wakes)]:
                    wakes.pop(index % len(wakes))[1].set()
        value = watermark.value
        assert [wake.is_set for _, wake in wakes] == [at <= value for at, _ in wakes]
        assert waiting(watermark) >= sum(at > value for at, _ in wakes)
    watermark.close(Deposed())
    assert all(wake.is_set for _, wake in wakes)
    assert waiting(watermark) == 0
