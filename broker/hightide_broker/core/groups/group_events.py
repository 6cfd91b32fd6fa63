"""What happens to a group, as an event of a trace. Pure."""

from __future__ import annotations

from hightide_broker.core.groups.group import Group
from hightide_broker.core.groups.parts import State
from hightide_broker.trace.events import GroupChanged


def group_changed(group: Group) -> GroupChanged:
    """It has another state; why, if a rebalance begins."""
    begins = group.state is State.PREPARING and group.causes
    return GroupChanged(
        group=group.group_id,
        state=group.state.value,
        generation=group.generation,
        members=len(group.members),
        cause=group.causes[-1].text if begins else "",
    )
