"""A follower's decisions: what an answer of its leader means, and where two logs part.

Goal: an answer counts only for the question that is still asked; a cut goes no further than the
epochs demand and no less far; errors make it wait, longer each time, or stop. Method: answers by
hand for the pure decisions; then Hypothesis gives two logs a common past and different presents,
each epoch written by one leader only, and lets the follower ask until both are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from logkit import Stored
from replicakit import LEADER, Place, spans_of, state, write
from tries import tries

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.replication.fetches import diverging
from hightide_broker.core.replication.follower import (
    PAUSE_MIN_S,
    Append,
    AskOffsets,
    Follower,
    Ignore,
    OwnLog,
    Pause,
    Stop,
    Truncate,
    TruncateFully,
    next_fetch,
)
from hightide_broker.runtime.replication.following import own_log

EPOCH = 4
NOW = 100.0
NONE = (-1, -1)


def follower(*, pause_max_s: float = 1.0) -> Follower:
    return Follower(leader=1, epoch=EPOCH, pause_max_s=pause_max_s)


def own(log_end: int = 10, *, log_start: int = 0, **ends: tuple[int, int]) -> OwnLog:
    """A log by its bounds; `e3=(2, 7)`: asked for epoch 3, it says that epoch 2 ends at 7."""
    known = {int(name[1:]): end for name, end in ends.items()}
    return OwnLog(log_start, log_end, EPOCH, lambda epoch: known.get(epoch, NONE))


def asked(offset: int = 10, *, epoch: int = EPOCH, last_epoch: int = EPOCH) -> m.FetchPartition:
    return m.FetchPartition(
        topic="jade",
        partition=0,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
    )


def test_an_answer_to_a_question_about_other_records_is_ignored() -> None:
    """The log was cut and has grown to the same end again, in another epoch."""
    one, question = follower(), asked(last_epoch=EPOCH - 1)
    assert one.on_result(question, answer(diverging=(2, 5)), own(e2=(2, 7)), NOW) == Ignore()


def answer(
    *, watermark: int = 6, log_start: int = 2, diverging: tuple[int, int] | None = None
) -> m.FetchResult:
    parting = None if diverging is None else m.EpochEnd(epoch=diverging[0], end_offset=diverging[1])
    return m.FetchResult(
        topic="jade",
        partition=0,
        high_watermark=watermark,
        log_start_offset=log_start,
        diverging_epoch=parting,
    )


def refusal(error: str) -> m.FetchResult:
    return m.FetchResult(topic="jade", partition=0, error=error, message="it says why")


# --- the question ------------------------------------------------------------------------------


def test_a_follower_asks_from_its_log_end_and_names_the_newest_epoch_it_knows() -> None:
    log = OwnLog(3, 10, 2, lambda epoch: NONE)
    assert next_fetch(
        "jade", "id", 7, follower(), log, high_watermark=6, max_bytes=500
    ) == m.FetchPartition(
        topic="jade",
        topic_id="id",
        partition=7,
        fetch_offset=10,
        current_leader_epoch=EPOCH,
        last_fetched_epoch=2,
        log_start_offset=3,
        max_bytes=500,
        high_watermark=6,
    )


# --- answers that count ------------------------------------------------------------------------

ANSWERS = {
    "records": answer(),
    "a divergence": answer(diverging=(2, 5)),
    "fenced": refusal(ErrorCode.FENCED_LEADER_EPOCH),
    "out of range": refusal(ErrorCode.OFFSET_OUT_OF_RANGE),
    "another error": refusal(ErrorCode.UNKNOWN_LEADER_EPOCH),
}
STALE = {
    "the log was cut since": asked(11),
    "the log has grown since": asked(9),
    "an older epoch": asked(epoch=EPOCH - 1),
    "a newer epoch": asked(epoch=EPOCH + 1),
}


@pytest.mark.parametrize("result", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("question", STALE.values(), ids=STALE.keys())
def test_an_answer_to_another_question_is_ignored_and_changes_nothing(
    question: m.FetchPartition, result: m.FetchResult
) -> None:
    one = follower()
    assert one.on_result(question, result, own(), NOW) == Ignore()
    assert one == follower()
    assert one.may_fetch(NOW)


@pytest.mark.parametrize("question", STALE.values(), ids=STALE.keys())
@pytest.mark.parametrize("bounds", [(0, 5), (20, 30), (0, 10)])
def test_bounds_of_the_leaders_log_that_come_too_late_are_ignored(
    question: m.FetchPartition, bounds: tuple[int, int]
) -> None:
    one = follower()
    assert one.out_of_range(question, *bounds, own(), NOW) == Ignore()
    assert one == follower()


def test_records_come_with_the_leaders_watermark_and_log_start() -> None:
    assert follower().on_result(asked(), answer(), own(), NOW) == Append(6, 2)


def test_of_an_answer_that_names_a_divergence_nothing_else_is_used() -> None:
    result = answer(watermark=9, log_start=8, diverging=(2, 5))
    assert follower().on_result(asked(), result, own(e2=(2, 7)), NOW) == Truncate(5)


# --- where to cut ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leader", "here", "cut"),
    [
        pytest.param((4, 140), (4, 149), 140, id="same epoch, the leader's ends first"),
        pytest.param((4, 149), (4, 140), 140, id="same epoch, the own one ends first"),
        pytest.param((3, 130), (2, 129), 129, id="not known here, the one before it ends first"),
        pytest.param((3, 120), (2, 129), 129, id="not known here: the own end of the one before"),
        pytest.param((2, 120), (1, 119), 119, id="not known here, far back"),
        pytest.param((4, 170), (4, 160), 150, id="same epoch, never above the own log end"),
        pytest.param((3, 170), (2, 160), 150, id="not known here, never above the own log end"),
        pytest.param((3, 140), NONE, 140, id="no epoch known here, the leader's end"),
        pytest.param((3, 170), NONE, 150, id="no epoch known here, never above the own end"),
        pytest.param((-1, 140), (4, 120), 140, id="the leader names no epoch"),
        pytest.param((-1, 170), (4, 120), 150, id="no epoch named, never above the own end"),
        pytest.param((4, -1), (4, 120), 150, id="the leader names no end: nothing is cut"),
    ],
)
def test_the_cut_is_where_the_older_of_both_histories_ends(
    leader: tuple[int, int], here: tuple[int, int], cut: int
) -> None:
    """KIP-101, KIP-279: by epochs, never by a watermark."""
    log = own(150, **{f"e{leader[0]}": here})
    step = follower().on_result(asked(150), answer(diverging=leader), log, NOW)
    assert step == Truncate(cut)


# --- errors ------------------------------------------------------------------------------------

WAITS = [
    code
    for code in [*ErrorCode, "A_NAME_OF_TOMORROW"]
    if code not in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.FENCED_LEADER_EPOCH)
]


@pytest.mark.parametrize("code", WAITS)
def test_after_an_error_it_waits_and_then_asks_again(code: str) -> None:
    one = follower()
    step = one.on_result(asked(), refusal(code), own(), NOW)
    assert step == Pause(NOW + PAUSE_MIN_S, f"{code}: it says why")
    assert not one.may_fetch(NOW)
    assert not one.may_fetch(NOW + PAUSE_MIN_S - 0.001)
    assert one.may_fetch(NOW + PAUSE_MIN_S)


def test_an_error_beats_whatever_else_the_answer_holds() -> None:
    result = m.FetchResult(
        topic="jade",
        partition=0,
        error=ErrorCode.KAFKA_STORAGE_ERROR,
        high_watermark=9,
        diverging_epoch=m.EpochEnd(epoch=2, end_offset=5),
    )
    assert isinstance(follower().on_result(asked(), result, own(), NOW), Pause)


def test_fenced_in_the_very_epoch_it_follows_it_stops_for_good() -> None:
    one = follower()
    step = one.on_result(asked(), refusal(ErrorCode.FENCED_LEADER_EPOCH), own(), NOW)
    assert step == Stop("it says why")
    assert one.stopped == "it says why"
    assert not one.may_fetch(NOW + 1_000_000)


def test_out_of_range_is_a_question_and_no_pause() -> None:
    one = follower()
    step = one.on_result(asked(), refusal(ErrorCode.OFFSET_OUT_OF_RANGE), own(), NOW)
    assert step == AskOffsets()
    assert one == follower()


def pauses(one: Follower, count: int) -> list[float]:
    error = refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    steps = [one.on_result(asked(), error, own(), 0.0) for _ in range(count)]
    return [step.until for step in steps if isinstance(step, Pause)]


def test_pauses_double_up_to_the_limit() -> None:
    assert pauses(follower(pause_max_s=0.1), 5) == [0.02, 0.04, 0.08, 0.1, 0.1]
    assert pauses(follower(), 8)[-2:] == [1.0, 1.0]


@pytest.mark.parametrize("helpful", [answer(), answer(diverging=(2, 5))])
def test_an_answer_that_helps_makes_the_next_pause_short_again(helpful: m.FetchResult) -> None:
    one = follower()
    assert pauses(one, 4)[-1] == 0.16
    one.on_result(asked(), helpful, own(), NOW)
    assert pauses(one, 2) == [0.02, 0.04]


def test_an_answer_that_is_ignored_makes_no_pause_shorter() -> None:
    one = follower()
    pauses(one, 2)
    one.on_result(asked(9), answer(), own(), NOW)
    assert pauses(one, 1) == [0.08]


# --- out of range ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        pytest.param(0, 0, Truncate(0), id="the leader's log is empty"),
        pytest.param(0, 9, Truncate(9), id="the leader's log ends one before"),
        pytest.param(6, 8, Truncate(8), id="it begins and ends before"),
        pytest.param(11, 20, TruncateFully(11), id="it begins one later"),
        pytest.param(11, 11, TruncateFully(11), id="it is empty, further on"),
    ],
)
def test_where_a_follower_goes_on_that_is_outside_the_leaders_log(
    start: int, end: int, step: Truncate | TruncateFully
) -> None:
    assert follower().out_of_range(asked(), start, end, own(), NOW) == step


@pytest.mark.parametrize(("start", "end"), [(0, 10), (10, 10), (10, 12), (0, 30)])
def test_out_of_range_inside_the_leaders_log_is_asked_again_after_a_pause(
    start: int, end: int
) -> None:
    one = follower()
    step = one.out_of_range(asked(), start, end, own(), NOW)
    assert isinstance(step, Pause)
    assert f"{start} to {end}" in step.why
    assert not one.may_fetch(NOW)


# --- two logs become one -----------------------------------------------------------------------

Span = tuple[int, int]
"""(epoch, records): one batch."""


class Past(NamedTuple):
    """What both logs have, and what only one of them has."""

    common: list[Span]
    leaders: list[Span]
    followers: list[Span]
    idle_epoch: int
    """The follower's last epoch as a leader, in which it wrote nothing; -1 if there was none."""


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    """Epochs rise, and each was written by one leader: no epoch has two different batches at one
    offset. The leader of the last common epoch may have gone on in it, alone."""
    counts = st.integers(1, 3)
    kept = sorted(draw(st.lists(st.integers(0, 3), max_size=5)))
    common = [(epoch, draw(counts)) for epoch in kept]
    last = kept[-1] if kept else -1
    sides: tuple[list[int], list[int]] = ([], [])
    if kept:
        sides[draw(st.integers(0, 1))].extend([last] * draw(st.integers(0, 2)))
    for epoch in range(last + 1, last + 7):
        # A third fate: the epoch left no record in either log.
        fate = draw(st.integers(0, 2))
        if fate < 2:
            sides[fate].extend([epoch] * draw(st.integers(1, 3)))
    leaders, followers = ([(epoch, draw(counts)) for epoch in side] for side in sides)
    used = {epoch for epoch, _ in [*common, *leaders, *followers]}
    newest = (followers or common or [(-1, 0)])[-1][0]
    free = [epoch for epoch in range(newest + 1, last + 8) if epoch not in used]
    return Past(common, leaders, followers, draw(st.sampled_from([-1, *free])))


EPOCH_NOW = 20


def leader_of(past: Past, log_start: int = 0) -> Place:
    """The leader's end of a past: its epoch begins at its log end, and it writes one batch."""
    place = Place(*past.common, *past.leaders)
    place.replica.become_leader(state(LEADER, EPOCH_NOW), broker=LEADER)
    write(place.log, (EPOCH_NOW, 2))
    place.log.advance_log_start(log_start)
    return place


def follower_of(past: Past) -> Place:
    place = Place(*past.common, *past.followers, epoch=EPOCH_NOW)
    if past.idle_epoch >= 0:
        place.log.epochs.assign(past.idle_epoch, place.log.log_end)
    return place


def one_round(leader: Place, here: Place) -> str:
    """One question, its answer, and what is done about it; what that was."""
    log, question = leader.log, here.ask()
    bounds = {"watermark": log.log_end, "log_start": log.log_start}
    try:
        ends = log.epochs.end_offset_for(question.last_fetched_epoch, log.log_end)
        names = {"log_start": log.log_start, "log_end": log.log_end, "name": leader.replica.name}
        parting = diverging(question, *ends, **names)
        offset, end = question.fetch_offset, log.log_end
        part = None
        if parting is None:
            part = leader.replica.read(offset, limit=end, max_bytes=1, at_least_one=True)
    except Refused as refused:
        step = here.answer(error=refused.code)
        if step == AskOffsets():
            start, end = log.log_start, log.log_end
            found = own_log(here.replica)
            step = here.replica.follower.out_of_range(question, start, end, found, 0.0)
        return type(here.do(step)).__name__
    told = None if parting is None else (parting.epoch, parting.end_offset)
    records = b"" if part is None else part.read()
    return type(here.answer(records, diverging=told, **bounds)).__name__


def rounds(leader: Place, here: Place) -> Iterator[str]:
    """Ask until records flow and both logs end at the same offset; what was done, each time."""
    limit = len(leader.epochs) + len(here.epochs) + len(leader.batches) + 3
    for _ in range(limit):
        done = one_round(leader, here)
        assert here.replica.high_watermark <= here.log.log_end
        yield done
        if done == "Append" and here.log.log_end == leader.log.log_end:
            return
    raise AssertionError(f"no end after {limit} rounds")


def is_prefix(some: list[Stored], of: list[Stored]) -> bool:
    return of[: len(some)] == some


@given(pasts())
@settings(max_examples=tries(150), deadline=None)
@example(Past([(0, 2)], [], [], -1))
@example(Past([], [(1, 1), (3, 1), (5, 1)], [(0, 1), (2, 1), (4, 1)], -1))
@example(Past([(0, 1), (0, 1), (2, 1)], [(5, 1), (5, 1)], [(4, 1), (4, 1), (4, 1)], -1))
@example(Past([(0, 1), (1, 1)], [(1, 1)], [(3, 2)], 4))
@example(Past([(0, 1)], [(2, 3)], [], 1))
def test_two_logs_that_parted_become_equal_and_lose_nothing_they_share(past: Past) -> None:
    leader, here = leader_of(past), follower_of(past)
    shared = here.batches[: len(past.common)]
    assert is_prefix(shared, leader.batches)
    whole, lowest, done = leader.batches, here.log.log_end, []
    for step in rounds(leader, here):
        done.append(step)
        lowest = min(lowest, here.log.log_end)
        assert is_prefix(shared, here.batches), f"{done} cut what both have"
    event(f"cut {done.count('Truncate')} times")
    # Cuts come first, and end where the logs parted: no byte below was fetched a second time.
    assert done == sorted(done, reverse=True)
    assert lowest == (shared[-1].next_offset if shared else 0)
    assert (here.batches, leader.batches) == (whole, whole)
    assert here.epochs == leader.epochs
    assert here.replica.high_watermark == leader.log.log_end


@given(pasts(), st.data())
@settings(max_examples=tries(150), deadline=None)
def test_a_follower_of_a_leader_that_deleted_old_records_ends_with_what_is_left(
    past: Past, data: st.DataObject
) -> None:
    """What is left below the leader's log start may differ, and nobody can read it."""
    bases = [stored.base_offset for stored in leader_of(past).batches]
    leader = leader_of(past, data.draw(st.sampled_from(bases)))
    here = follower_of(past)
    done = list(rounds(leader, here))
    event("began again" if "TruncateFully" in done else "went on")
    assert here.batches == leader.batches
    assert here.offsets == (leader.log.log_start, leader.log.log_end, leader.log.log_end)
    assert here.epochs == leader.epochs


def test_logs_without_a_common_record_meet_at_the_beginning() -> None:
    """Each round finds an older epoch that the other side does not know."""
    past = Past([], [(1, 1), (3, 1), (5, 1)], [(0, 1), (2, 1), (4, 1)], -1)
    leader, here = leader_of(past), follower_of(past)
    ends = []
    while here.log.log_end:
        assert one_round(leader, here) == "Truncate"
        ends.append(here.log.log_end)
    assert ends == [2, 1, 0]
    assert set(rounds(leader, here)) == {"Append"}
    assert spans_of(here.batches) == [(1, 0, 1), (3, 1, 2), (5, 2, 3), (EPOCH_NOW, 3, 5)]


def test_one_cut_is_enough_where_the_epoch_before_is_shared() -> None:
    """A watermark far below, at 1, cuts nothing."""
    past = Past([(0, 1), (0, 1), (2, 1)], [(5, 1), (5, 1)], [(4, 1), (4, 1), (4, 1)], -1)
    leader, here = leader_of(past), follower_of(past)
    here.answer(watermark=1)
    assert one_round(leader, here) == "Truncate"
    assert here.offsets == (0, 1, 3)
    assert here.ask().last_fetched_epoch == 2
    assert list(rounds(leader, here)) == ["Append", "Append", "Append"]


def test_a_follower_never_asks_without_a_pause() -> None:
    """A leader that refuses would be asked as fast as it can answer."""
    hasty = follower(pause_max_s=0.0)
    hasty.back_off("refused", NOW)
    with pytest.raises(AssertionError, match="would ask without end"):
        hasty.back_off("refused", NOW)
