"""How one partition changes: who is in sync, who may lead, who leads. Pure.

The rule of eligible leader replicas (KIP-966): no record commits while the ISR is smaller than
`min.insync.replicas`; so whoever leaves an ISR that is, or becomes, smaller than that still has all
that is committed, stays eligible (ELR), and loses it only when the ISR is large enough again, or
its disk forgot something. The ISR may be empty, and then the ELR says who is waited for; when that
is empty, too, the last leader is.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from hightide_broker.core.changes import ChangePartition
from hightide_broker.core.image import NO_LEADER, PartitionState


class Election(Enum):
    """Which replica is wanted as leader."""

    ONLINE = "online"
    """The current one if it may lead, else the first that may."""
    PREFERRED = "preferred"
    """The first replica of the assignment, if it may lead."""
    UNCLEAN = "unclean"
    """As ONLINE, and if nobody may lead, any live replica: committed records may be lost."""


class Rules(NamedTuple):
    """What the cluster says about this partition."""

    is_active: Callable[[int], bool]
    """Whether a broker is alive and not stopping."""
    min_isr: int
    unclean: bool = False
    """unclean.leader.election.enable."""


class _Target(NamedTuple):
    leader: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_leader: int


def change_partition(
    topic_id: str,
    number: int,
    old: PartitionState,
    rules: Rules,
    *,
    isr: tuple[int, ...] | None = None,
    election: Election = Election.ONLINE,
    forgetful: int | None = None,
) -> ChangePartition | None:
    """What to change when the ISR shall be `isr` and an election is due; None if nothing.

    `forgetful` is a replica that came back without all that it had.
    """
    target = _settle(old, rules, old.isr if isr is None else isr, forgetful)
    leader, unclean = _elect(old, target, rules, election)
    if leader != NO_LEADER and leader not in target.isr:
        # From the ELR, the last leader, or uncleanly: it is in sync with itself.
        kept = () if unclean else tuple(b for b in target.elr if b != leader)
        target = _Target(leader, (leader,), kept, NO_LEADER)
        if len(target.isr) >= rules.min_isr:
            target = target._replace(elr=())
    change = ChangePartition(
        topic_id=topic_id,
        partition=number,
        isr=None if target.isr == old.isr else target.isr,
        leader=None if leader == old.leader else leader,
        elr=None if target.elr == old.elr else target.elr,
        last_leader=None if target.last_leader == old.last_leader else target.last_leader,
    )
    is_nothing = change == ChangePartition(topic_id=topic_id, partition=number)
    return None if is_nothing else change


def _settle(
    old: PartitionState, rules: Rules, isr: tuple[int, ...], forgetful: int | None
) -> _Target:
    """ISR, ELR and last leader, before anybody is elected."""
    ordered = tuple(b for b in old.replicas if b in isr)
    if len(ordered) >= rules.min_isr:
        elr: tuple[int, ...] = ()
    else:
        eligible = {*old.elr, *old.isr} - {*isr, forgetful}
        elr = tuple(b for b in old.replicas if b in eligible)
    last_leader = NO_LEADER
    if not ordered:
        last_leader = old.leader if old.leader != NO_LEADER else old.last_leader
    return _Target(old.leader, ordered, elr, last_leader)


def _elect(
    old: PartitionState, target: _Target, rules: Rules, election: Election
) -> tuple[int, bool]:
    """(leader, whether it may miss committed records)."""
    candidates = [b for b in old.replicas if rules.is_active(b)]
    pool = target.isr or target.elr
    valid = [b for b in candidates if b in pool]
    preferred = old.replicas[0]
    if election is Election.PREFERRED and preferred in valid:
        return preferred, False
    if old.leader in valid:
        return old.leader, False
    if valid:
        return valid[0], False
    if not pool and target.last_leader in candidates:
        return target.last_leader, False
    may_be_unclean = election is Election.UNCLEAN or (
        rules.unclean and election is not Election.PREFERRED
    )
    if may_be_unclean and candidates:
        return candidates[0], True
    return NO_LEADER, False
