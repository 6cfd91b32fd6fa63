"""What happened to the groups of a broker, in numbers; `runtime/metrics` reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hightide_broker.core.groups.group import Group
from hightide_broker.core.groups.group_events import last_cause
from hightide_broker.core.groups.parts import Cause, State
from hightide_broker.runtime.base.measures import Histogram


class GroupCounts:
    """Of all groups that were coordinated here, since the process began."""

    def __init__(self) -> None:
        self.rebalances: Counter[str] = Counter()
        """How often a group began one, by why."""
        self.rebalance_seconds = Histogram()
        """How long they took, from their beginning until each member could hear what it has. One
        that another one interrupts does not end."""
        self.offset_commits = 0
        """Offsets that groups have committed."""
        self.offset_expirations = 0
        """Offsets that were forgotten because they were old."""
        self.waiting: Counter[str] = Counter()
        """Members that wait for an answer now: those that `join` for the others to do so, those
        that `sync` for what the group's leader assigns."""

    @contextmanager
    def waits(self, kind: str) -> Iterator[None]:
        """A member waits, for the block."""
        self.waiting[kind] += 1
        try:
            yield
        finally:
            self.waiting[kind] -= 1

    def group_moved(self, group: Group, before: State, cause: Cause | None, now: float) -> None:
        """A group was in the state `before`, and had `cause` for its last rebalance."""
        last = last_cause(group)
        if last is None:
            return
        if last is not cause:
            self.rebalances[last.reason] += 1
        if group.state is State.STABLE and before is not State.STABLE:
            self.rebalance_seconds.observe(now - last.at)
