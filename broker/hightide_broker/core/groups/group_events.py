"""What happens to a group, as an event of a trace. Pure."""

from __future__ import annotations

from hightide_broker.core.groups.group import Group
from hightide_broker.core.groups.parts import Cause
from hightide_broker.trace.events import GroupChanged


def last_cause(group: Group) -> Cause | None:
    """Why its last rebalance began, as far as that is remembered."""
    return group.causes[-1] if group.causes else None


def group_changed(group: Group, before: Cause | None) -> GroupChanged:
    """It has another state; why, if a rebalance has begun since `before` was the last cause, even
    if everybody had joined at once."""
    cause = last_cause(group)
    return GroupChanged(
        group=group.group_id,
        state=group.state.value,
        generation=group.generation,
        members=len(group.members),
        cause=cause.text if cause is not None and cause is not before else "",
    )
