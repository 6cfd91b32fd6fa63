"""Which old segments may go: by log start, by size, by age - never above the high watermark. Pure.

Oldest first, and the first segment that must stay ends the search. Source: Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class SegmentFacts(Protocol):
    """What is looked at: offsets, bytes, and ms since 1970 (-1: no record has a timestamp)."""

    @property
    def next_base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def max_timestamp(self) -> int: ...


def deletable(
    segments: Sequence[SegmentFacts],
    *,
    log_start: int,
    high_watermark: int,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
) -> int:
    """How many of the oldest segments may be deleted. -1 as a limit: no limit.

    The active segment, the last one, goes only by age and only if it holds data; the log rolls
    first.
    """
    total = sum(segment.size for segment in segments)
    count = 0
    for number, segment in enumerate(segments):
        active = number == len(segments) - 1
        if segment.next_base_offset > high_watermark or (active and segment.size == 0):
            break
        below_start = segment.next_base_offset <= log_start and not active
        too_much = not active and 0 <= retention_bytes <= total - segment.size
        # A segment without records (-1), as compaction leaves it, keeps nobody.
        too_old = 0 <= retention_ms < now_ms - segment.max_timestamp
        if not (below_start or too_much or too_old):
            break
        total -= segment.size
        count += 1
    return count
