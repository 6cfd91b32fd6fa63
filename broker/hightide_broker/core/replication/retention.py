"""What may go - never above the high watermark: old segments, by log start, by size, by age; and
records that somebody asks to delete. Pure.

Oldest first, and the first segment that must stay ends the search. Sources: Kafka, KIP-107.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.cluster.topic_keys import POLICY


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


def start_after_deletion(
    topic: str, partition: int, config: TopicConfig, offset: int, *, high_watermark: int
) -> int:
    """Where a log is to begin once the records below `offset` (-1: the high watermark) are deleted;
    raises `Refused`."""
    if not config.is_deleted:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"{POLICY.name} of {topic} is {config.values[POLICY.name]}, "
            f"records can be deleted only with 'delete'",
        )
    start = high_watermark if offset == -1 else offset
    if not 0 <= start <= high_watermark:
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{topic}-{partition}: offset {offset}, expected -1 or 0 to {high_watermark} "
            f"(the high watermark)",
        )
    return start
