"""What a consumer waits for, and since when, and what it counts: for those who wonder why nothing
comes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hightide.consume.subscription import Assignment
from hightide.protocol.errors import HightideError
from hightide.protocol.words import counted

_NAMED_MAX = 3


class Health(NamedTuple):
    """The one thing that a consumer waits for most."""

    waits_for: str
    """In words: `records of orders-0`, `group 'billing' to let it join`, …"""
    since_s: float
    """For how many seconds."""
    is_well: bool
    """Whether that is as it should be: it waits for records that nobody wrote yet, or for its
    caller."""
    error: HightideError | None
    """What went wrong last, if it is not well."""


class View(NamedTuple):
    """What is known of a consumer; times on its clock, in seconds."""

    assignments: Sequence[Assignment]
    leaderless: Sequence[Assignment]
    polled_at: float
    arrived_at: float
    """When the last records came."""
    group: str = ""
    joins_since: float | None = None
    """When it began to join its group, if it is no member of a generation now."""
    last_error: HightideError | None = None


def health_of(view: View, now: float) -> Health:
    """The first of: its group, a leader, an answer, an offset, its caller, records."""
    if view.joins_since is not None:
        words = f"group {view.group!r} to let it join"
        return Health(words, now - view.joins_since, False, view.last_error)
    if view.leaderless:
        words = f"a leader of {_names(view.leaderless)}"
        return Health(words, now - _since(view.leaderless, now), False, view.last_error)
    failing = [a for a in view.assignments if a.failing_since is not None]
    if failing:
        words = f"an answer about {_names(failing)}"
        return Health(words, now - _since(failing, now), False, view.last_error)
    unplaced = [a for a in view.assignments if a.position is None]
    if unplaced:
        words = f"the offset to begin at in {_names(unplaced)}"
        return Health(words, now - view.polled_at, False, view.last_error)
    size = sum(a.ahead_bytes for a in view.assignments)
    if size:
        words = f"its caller to poll: {counted(size, 'byte')} of records are here"
        return Health(words, now - view.polled_at, True, None)
    if not view.assignments:
        return Health("partitions: it has none", now - view.polled_at, True, None)
    words = f"records of {_names(view.assignments)}"
    return Health(words, now - view.arrived_at, True, None)


def metrics_of(view: View, records: int, size: int, fetches: int, now: float) -> dict[str, float]:
    """What a consumer tells in numbers, by Kafka's names."""
    return {
        "records_consumed_total": records,
        "bytes_consumed_total": size,
        "fetch_total": fetches,
        "records_lag_max": max((a.lag or 0 for a in view.assignments), default=0),
        "fetched_bytes_waiting": sum(a.ahead_bytes for a in view.assignments),
        "assigned_partitions": len(view.assignments),
        "last_poll_seconds_ago": now - view.polled_at,
    }


def _since(assignments: Sequence[Assignment], now: float) -> float:
    return min(now if a.failing_since is None else a.failing_since for a in assignments)


def _names(assignments: Sequence[Assignment]) -> str:
    shown = ", ".join(str(each.tp) for each in assignments[:_NAMED_MAX])
    more = len(assignments) - _NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
