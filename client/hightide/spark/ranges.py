"""Offset ranges, and how they are shared out over tasks. Pure. Source: Spark's
KafkaOffsetRangeCalculator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records [start, end) of a partition; all of them were committed when it was planned."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    leader_epoch: int = -1
    """The leader's when it was planned: a leader of old may not know all of it."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"


def split(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Ranges of at most `max_records` records each, and about `min_partitions` of them in all, if
    that is more: large ranges are cut into more parts than small ones. Nothing is joined."""
    found = [part for each in ranges for part in _cut(each, _needed(each, max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    # Ranges that stay whole anyway take no part in sharing out what is left.
    total = sum(map(_size, found))
    small = [each for each in found if _parts(_size(each), total, min_partitions) == 1]
    rest = total - sum(map(_size, small))
    wanted = max(min_partitions - len(small), 1)
    return [
        part
        for each in found
        for part in ([each] if each in small else _cut(each, _parts(_size(each), rest, wanted)))
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    """A range's share of the parts, rounded as Scala does."""
    return max(math.floor(size / total * wanted + 0.5), 1) if total else 1


def _size(wanted: OffsetRange) -> int:
    return wanted.end - wanted.start


def _needed(wanted: OffsetRange, max_records: int | None) -> int:
    return 1 if max_records is None else max(-(-_size(wanted) // max_records), 1)


def _cut(wanted: OffsetRange, count: int) -> list[OffsetRange]:
    """So many parts of nearly the same size, none of them empty."""
    count = max(min(count, _size(wanted)), 1)
    edges = [wanted.start + _size(wanted) * number // count for number in range(count + 1)]
    return [replace(wanted, start=start, end=end) for start, end in pairwise(edges)]
