"""Retention: what may go, goes, oldest first; what consumers may still wait for, stays.

And what somebody asks to delete goes, if the topic's policy is to delete.

Goal: `deletable` follows Kafka (LS4, LS5, S12, S13) and never reaches past the high watermark.
Method: segments written out as (next base offset, bytes, largest timestamp), named cases, and
Hypothesis, which holds every answer against the reasons told one segment at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.replication.retention import deletable, start_after_deletion

NOW_MS = 1_000_000
FOR_EVER = NO_LIMIT = -1


class Piece(NamedTuple):
    """A segment, as far as retention looks at it."""

    next_base_offset: int
    size: int = 100
    max_timestamp: int = 0


def count(
    segments: list[Piece],
    *,
    log_start: int = 0,
    high_watermark: int | None = None,
    now_ms: int = NOW_MS,
    retention_ms: int = FOR_EVER,
    retention_bytes: int = NO_LIMIT,
) -> int:
    """`deletable` where everything is committed and nothing limits, unless said otherwise."""
    end = segments[-1].next_base_offset if segments else 0
    return deletable(
        segments,
        log_start=log_start,
        high_watermark=end if high_watermark is None else high_watermark,
        now_ms=now_ms,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
    )


TENS = [Piece(10), Piece(20), Piece(30), Piece(40)]
"""Three closed segments and the active one: ten records and 100 bytes each."""


def test_without_limits_everything_stays() -> None:
    assert count(TENS) == 0
    assert count([]) == 0


# By size.


@pytest.mark.parametrize(
    ("retention_bytes", "gone"),
    [
        (401, 0),
        (400, 0),
        (301, 0),
        (300, 1),
        (299, 1),
        (200, 2),
        (101, 2),
        (100, 3),
        (0, 3),
    ],
)
def test_by_size_only_whole_segments_go_and_the_limit_stays_filled(
    retention_bytes: int, gone: int
) -> None:
    assert count(TENS, retention_bytes=retention_bytes) == gone


def test_a_large_old_segment_keeps_the_small_ones_after_it() -> None:
    segments = [Piece(10, size=500), Piece(20, size=1), Piece(30, size=1)]
    assert count(segments, retention_bytes=3) == 0
    assert count(segments, retention_bytes=2) == 1


def test_the_active_segment_never_goes_by_size() -> None:
    assert count([Piece(10)], retention_bytes=0) == 0
    assert count([Piece(10, size=0), Piece(10, size=0)], retention_bytes=0) == 1


# By age.


@pytest.mark.parametrize(("retention_ms", "gone"), [(99, 1), (100, 0), (101, 0)])
def test_by_age_a_segment_goes_once_its_newest_record_is_too_old(
    retention_ms: int, gone: int
) -> None:
    segments = [Piece(10, max_timestamp=NOW_MS - 100), Piece(20, max_timestamp=NOW_MS)]
    assert count(segments, retention_ms=retention_ms) == gone


def test_the_first_segment_that_must_stay_keeps_all_after_it() -> None:
    segments = [Piece(10), Piece(20, max_timestamp=NOW_MS), Piece(30), Piece(40)]
    assert count(segments, retention_ms=10) == 1


def test_a_record_from_the_future_keeps_its_segment() -> None:
    assert count([Piece(10, max_timestamp=NOW_MS + 10**9), Piece(20)], retention_ms=0) == 0


def test_a_segment_without_records_is_as_old_as_can_be_and_keeps_nobody() -> None:
    """Compaction leaves such, and no producer can send a negative timestamp."""
    segments = [Piece(10, max_timestamp=-1), Piece(20), Piece(30, max_timestamp=NOW_MS)]
    assert count(segments, retention_ms=0) == 2
    assert count(segments, retention_ms=NOW_MS) == 1
    assert count(segments, retention_ms=NOW_MS + 1) == 0, "it has an age nevertheless"
    assert count(segments) == 0, "and stays for ever with the others"


@pytest.mark.parametrize(("high_watermark", "gone"), [(9, 0), (10, 1), (19, 1), (20, 2)])
def test_a_segment_without_records_goes_below_the_high_watermark_only(
    high_watermark: int, gone: int
) -> None:
    segments = [Piece(10, max_timestamp=-1), Piece(20, max_timestamp=-1), Piece(30)]
    assert count(segments, retention_ms=NOW_MS, high_watermark=high_watermark) == gone


def test_a_young_segment_keeps_the_empty_ones_after_it() -> None:
    segments = [Piece(10, max_timestamp=NOW_MS), Piece(20, max_timestamp=-1), Piece(30)]
    assert count(segments, retention_ms=10) == 0


def test_timestamp_zero_is_an_age() -> None:
    assert count([Piece(10, max_timestamp=0), Piece(20, max_timestamp=NOW_MS)], retention_ms=1) == 1


def test_the_active_segment_goes_by_age_if_it_holds_data() -> None:
    assert count(TENS, retention_ms=10) == 4
    assert count([*TENS, Piece(40, size=0)], retention_ms=10) == 4


# By log start.


@pytest.mark.parametrize(
    ("log_start", "gone"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3), (40, 3)]
)
def test_segments_below_the_log_start_go_but_not_the_active_one(log_start: int, gone: int) -> None:
    assert count(TENS, log_start=log_start) == gone


@pytest.mark.parametrize(
    ("limit", "gone"),
    [
        ({"retention_bytes": 120}, 1),
        ({"log_start": 10}, 1),
        ({"retention_ms": 10}, 0),
        ({"retention_bytes": 120, "retention_ms": 10}, 2),
        ({"log_start": 10, "retention_ms": 10}, 2),
    ],
)
def test_each_segment_needs_one_reason_of_its_own(limit: dict[str, int], gone: int) -> None:
    young = [Piece(10, size=900, max_timestamp=NOW_MS), Piece(30, size=60, max_timestamp=NOW_MS)]
    segments = [young[0], Piece(20, size=60, max_timestamp=1), young[1]]
    assert count(segments, **limit) == gone


# Never above the high watermark.


@pytest.mark.parametrize(("high_watermark", "gone"), [(0, 0), (9, 0), (10, 1), (39, 3), (40, 4)])
@pytest.mark.parametrize("reason", ["log start", "size", "age"])
def test_no_reason_reaches_past_the_high_watermark(
    reason: str, high_watermark: int, gone: int
) -> None:
    limits = {"log start": {"log_start": 40}, "size": {"retention_bytes": 0}}
    expected = gone if reason == "age" else min(gone, 3)
    limit = limits.get(reason, {"retention_ms": 10})
    assert count(TENS, high_watermark=high_watermark, **limit) == expected


def test_the_log_start_follows_the_watermark_up_to_one_empty_segment() -> None:
    """S12: everything is too old, and the watermark climbs from 0 to 100 by ones."""
    segments = [Piece(end) for end in range(10, 101, 10)]
    log_start = 0
    for watermark in range(101):
        gone = count(segments, log_start=log_start, high_watermark=watermark, retention_ms=10)
        if gone == len(segments):
            segments.append(Piece(100, size=0))  # the log rolls first
        log_start = segments[gone - 1].next_base_offset if gone else log_start
        segments = segments[gone:]
        assert log_start == watermark // 10 * 10
    assert segments == [Piece(100, size=0)]
    assert count(segments, log_start=100, retention_ms=0, retention_bytes=0) == 0


# Any log, any limits.


pieces = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 50), st.integers(-1, 120)), max_size=8
)
limits = st.fixed_dictionaries(
    {
        "log_start": st.integers(0, 100),
        "high_watermark": st.integers(0, 120),
        "now_ms": st.integers(0, 120),
        "retention_ms": st.integers(-1, 120),
        "retention_bytes": st.integers(-1, 250),
    }
)


def laid_out(steps: list[tuple[int, int, int]]) -> list[Piece]:
    """Segments one after the other; only the last may be empty, as in a real log."""
    segments, end = [], 0
    for number, (records, size, timestamp) in enumerate(steps):
        is_active = number == len(steps) - 1
        end += records if is_active else records + 1
        segments.append(Piece(end, size if is_active else size + 1, timestamp))
    return segments


def may_go(segments: list[Piece], number: int, limit: dict[str, int]) -> bool:
    """Whether a segment may go once all before it have gone, in the words of LS4."""
    segment = segments[number]
    is_active = number == len(segments) - 1
    left = sum(one.size for one in segments[number + 1 :])
    reasons = {
        "below the log start": segment.next_base_offset <= limit["log_start"],
        "enough is left": limit["retention_bytes"] != NO_LIMIT and left >= limit["retention_bytes"],
    }
    is_old = (
        limit["retention_ms"] != FOR_EVER
        and limit["now_ms"] - segment.max_timestamp > limit["retention_ms"]
    )
    if segment.next_base_offset > limit["high_watermark"]:
        return False
    return (is_old and segment.size > 0) if is_active else (is_old or any(reasons.values()))


@pytest.mark.slow
@given(pieces, limits)
@settings(max_examples=tries(400), deadline=None)
def test_exactly_the_segments_that_may_go_are_counted(
    steps: list[tuple[int, int, int]], limit: dict[str, int]
) -> None:
    segments = laid_out(steps)
    gone = count(segments, **limit)
    assert 0 <= gone <= len(segments)
    assert all(may_go(segments, number, limit) for number in range(gone))
    assert gone == len(segments) or not may_go(segments, gone, limit)
    assert all(one.next_base_offset <= limit["high_watermark"] for one in segments[:gone])


@given(pieces, limits, st.integers(1, 50))
@settings(max_examples=tries(200), deadline=None)
def test_a_higher_watermark_and_a_later_clock_never_keep_more(
    steps: list[tuple[int, int, int]], limit: dict[str, int], more: int
) -> None:
    segments = laid_out(steps)
    gone = count(segments, **limit)
    for name in ("high_watermark", "now_ms", "log_start"):
        assert count(segments, **{**limit, name: limit[name] + more}) >= gone, name


# --- what somebody asks to delete -----------------------------------------------------------------


def start_after(offset: int, policy: str = "delete") -> int:
    config = TopicConfig.of({"cleanup.policy": policy}, {})
    return start_after_deletion("t", 3, config, offset, high_watermark=10)


@pytest.mark.parametrize(("offset", "start"), [(-1, 10), (0, 0), (4, 4), (10, 10)])
@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_records_are_deleted_up_to_the_high_watermark_at_most(
    offset: int, start: int, policy: str
) -> None:
    assert start_after(offset, policy) == start


@pytest.mark.parametrize("offset", [-2, 11])
def test_what_is_not_committed_is_not_deleted(offset: int) -> None:
    with pytest.raises(Refused, match=f"t-3: offset {offset}, expected -1 or 0 to 10") as refused:
        start_after(offset)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_where_the_newest_of_each_key_stays_nothing_is_deleted() -> None:
    with pytest.raises(Refused, match=r"cleanup\.policy of t is compact, records can") as refused:
        start_after(4, "compact")
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
