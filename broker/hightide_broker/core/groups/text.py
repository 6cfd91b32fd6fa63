"""Where a consumer group stands, in a few words. Pure.

For logs, and for the stories in `tests/scenarios/groups`.
"""

from __future__ import annotations

from itertools import chain, islice

from hightide_broker.core.groups.group import Group
from hightide_broker.core.groups.members import Member

MEMBERS_SHOWN = 20
NAME_SHOWN = 80


def show_group(group: Group, *, assigned: bool = False) -> str:
    """State, generation and members; the leader has a star, those that only have an id stand in
    brackets. `assigned`: with what each was given, which must be text."""
    members, pending = group.members, group.members.pending
    told = chain(
        (_show_member(member, group, assigned=assigned) for member in members),
        (f"({_name(member_id)})" for member_id in pending),
    )
    shown = list(islice(told, MEMBERS_SHOWN))
    if len(members) + len(pending) > MEMBERS_SHOWN:
        shown.append(f"and {len(members) + len(pending) - MEMBERS_SHOWN} more")
    return " ".join([f"{group.state} g{group.generation}:", *(shown or ["nobody"])])


def _show_member(member: Member, group: Group, *, assigned: bool) -> str:
    leads = "*" if member.member_id == group.leader else ""
    instance = f"({_name(member.instance_id)})" if member.instance_id else ""
    given = f"={member.assignment.decode()}" if assigned and member.assignment else ""
    return f"{_name(member.member_id)}{instance}{leads}{given}"


def _name(name: str) -> str:
    """A name that its client chose: it must not fill the log, nor look like a line of it."""
    cut = name if len(name) <= NAME_SHOWN else f"{name[:NAME_SHOWN]}…"
    return cut if cut.isprintable() else repr(cut)
