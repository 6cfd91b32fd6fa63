"""What a batch query's WHERE says of topics, partitions, offsets and times: less is read.

Spark hands over conditions that are joined by AND; it applies all of them again to what is read, so
a bound may let through too much but never too little. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from hightide.spark.ranges import OffsetRange

Span = tuple[float, float]
"""From the first to the last, both included."""
ALL: Span = (-math.inf, math.inf)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the wanted rows lie."""

    topics: frozenset[str] | None = None
    """None: all."""
    partitions: Span = ALL
    offsets: Span = ALL
    since_ms: float = -math.inf
    """The earliest timestamp. There is no latest one: a later record may have an earlier time."""

    def reads(self, topic: str, partition: int) -> bool:
        """Whether a partition may have such rows."""
        first, last = self.partitions
        return (self.topics is None or topic in self.topics) and first <= partition <= last

    def cut(self, wanted: OffsetRange, since: int) -> OffsetRange | None:
        """What is left of a range; None for nothing. `since` is the offset at `since_ms`."""
        first, last = self.offsets
        start = max(wanted.start, since, first)
        end = min(wanted.end, last + 1)
        if not self.reads(wanted.topic, wanted.partition) or start >= end:
            return None
        return replace(wanted, start=int(start), end=int(end))


EVERYTHING = Bounds()


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The bounds that some filters set; those that set none are passed over."""
    found = EVERYTHING
    for each in filters:
        found = _narrowed(found, each)
    return found


def _narrowed(bounds: Bounds, condition: Filter) -> Bounds:
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    name = attribute[0] if len(attribute) == 1 else ""
    if name == "topic":
        names = _values(condition)
        if names is None:
            return bounds
        both = frozenset(names) if bounds.topics is None else bounds.topics.intersection(names)
        return replace(bounds, topics=both)
    span = _span(condition) if name in ("partition", "offset", "timestamp") else None
    if span is None:
        return bounds
    if name == "timestamp":
        return replace(bounds, since_ms=max(bounds.since_ms, span[0]))
    if name == "offset":
        return replace(bounds, offsets=_both(bounds.offsets, span))
    return replace(bounds, partitions=_both(bounds.partitions, span))


def _both(one: Span, other: Span) -> Span:
    return max(one[0], other[0]), min(one[1], other[1])


def _values(condition: Filter) -> Collection[Any] | None:
    """The only values that a condition allows."""
    if isinstance(condition, EqualTo):
        return [condition.value]
    return condition.value if isinstance(condition, In) else None


def _span(condition: Filter) -> Span | None:
    """The least and the greatest number that a condition allows; None if it is of another kind."""
    values = _values(condition)
    if values is not None:
        numbers = [_number(value) for value in values if value is not None]
        return (min(numbers), max(numbers)) if numbers else (math.inf, -math.inf)
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        return _number(condition.value), math.inf
    if isinstance(condition, LessThan | LessThanOrEqual):
        return -math.inf, _number(condition.value)
    return None


def _number(value: Any) -> float:
    """A number as it is, a time in ms since 1970, rounded down."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    number: float = value
    return number
