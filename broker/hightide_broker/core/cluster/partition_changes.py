"""How one partition changes: who is in sync, who may lead, who leads. Pure.

What holds at every moment: each record that any leader has committed is held by every member of the
ISR and of the ELR. A replica that leaves the ISR has all that is committed until then and stays
eligible (ELR, KIP-966), unless its disk forgot something. A partition that others than its ISR may
yet lead is contested: its leader commits nothing. Who else is eligible is let go by a change of its
own, once the leader and as many in sync as `min.insync.replicas` asks for were heard after the last
one left (`let_go`): before that, who stays may be a machine without power, and who left the one
that has everything. While nobody leads, nobody commits either: the ISR is empty then, and all of it
is eligible.

When everybody who was eligible forgot something, nobody leads by itself, with one exception:
a replica that stopped uncleanly and has its disk still is remembered (`last_known_elr`), and once
all of those are back and have said how far their logs reach, the longest log leads: all that
survived.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from hightide_broker.core.cluster.changes import ChangePartition
from hightide_broker.core.cluster.image import NO_LEADER, PartitionState


class Election(Enum):
    """Which replica is wanted as leader."""

    ONLINE = "online"
    """The current one if it may lead, else the first that may."""
    PREFERRED = "preferred"
    """The first replica of the assignment, if it may lead."""
    UNCLEAN = "unclean"
    """As ONLINE, and if nobody may lead, the live replica with the longest log, once all of them
    have said how long theirs is: committed records may be lost."""


class Forgot(Enum):
    """What a replica that came back may lack of what it had."""

    UNSYNCED = "what was not synced"
    """It stopped uncleanly; its disk is the same."""
    EVERYTHING = "everything"
    """Its disk is another one, or an older copy, or damaged."""


class LogEnd(NamedTuple):
    """How far a log reaches; the larger one of two holds everything committed that the other
    does."""

    last_epoch: int
    log_end: int


NOBODY_FORGOT: Mapping[int, Forgot] = MappingProxyType({})
NO_ENDS: Mapping[int, LogEnd] = MappingProxyType({})


class Rules(NamedTuple):
    """What the cluster says about this partition."""

    is_active: Callable[[int], bool]
    """Whether a broker is alive and not stopping."""
    min_isr: int
    unclean: bool = False
    """unclean.leader.election.enable."""
    ends: Mapping[int, LogEnd] = NO_ENDS
    """Broker → how far its log reaches, for those who said it since nobody leads."""
    untold: tuple[int, ...] = ()
    """Replicas that live, or may come back, and have not said it yet, nor that they are offline:
    one of their logs may be the longest."""


class _Target(NamedTuple):
    leader: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    last_leader: int


def change_partition(
    topic_id: str,
    number: int,
    old: PartitionState,
    rules: Rules,
    *,
    isr: tuple[int, ...] | None = None,
    election: Election = Election.ONLINE,
    forgot: Mapping[int, Forgot] = NOBODY_FORGOT,
) -> ChangePartition | None:
    """What to change when the ISR shall be `isr` and an election is due; None if nothing.

    `forgot` names replicas that do not have all that they had.
    """
    target = _settle(old, old.isr if isr is None else isr, forgot)
    leader, cuts = _elect(old, target, rules, election)
    if leader == NO_LEADER:
        eligible = tuple(b for b in old.replicas if b in (*target.isr, *target.elr))
        last_leader = old.leader if old.leader != NO_LEADER else old.last_leader
        target = target._replace(leader=leader, isr=(), elr=eligible, last_leader=last_leader)
    else:
        target = _led(target, leader, cuts)
    change = ChangePartition(
        topic_id=topic_id,
        partition=number,
        isr=_if_new(target.isr, old.isr),
        leader=None if leader == old.leader else leader,
        elr=_if_new(target.elr, old.elr),
        last_known_elr=_if_new(target.last_known_elr, old.last_known_elr),
        last_leader=None if target.last_leader == old.last_leader else target.last_leader,
    )
    if change == ChangePartition(topic_id=topic_id, partition=number):
        return None
    old.changed(change).assert_consistent()
    return change


def let_go(
    topic_id: str,
    number: int,
    state: PartitionState,
    min_isr: int,
    heard: Collection[int],
) -> ChangePartition | None:
    """What lets records commit without those that are eligible beside the ISR. `heard`: who of that
    was heard after the last of them left or forgot something; None while it is too few, or not the
    leader."""
    if not state.is_contested or state.leader not in heard or len(heard) < min_isr:
        return None
    return ChangePartition(topic_id=topic_id, partition=number, elr=(), last_known_elr=())


def _if_new(wanted: tuple[int, ...], known: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if wanted == known else wanted


def _settle(old: PartitionState, isr: tuple[int, ...], forgot: Mapping[int, Forgot]) -> _Target:
    """ISR, ELR, and who was eligible until it forgot something, before anybody is elected."""
    ordered = tuple(b for b in old.replicas if b in isr)
    # All of these had everything committed until now: nothing commits without the whole ISR.
    had_all = {*old.elr, *old.isr}
    elr = had_all - {*ordered, *forgot}
    stopped = {b for b, what in forgot.items() if what is Forgot.UNSYNCED and b in had_all}
    empty = {b for b, what in forgot.items() if what is Forgot.EVERYTHING}
    last_known = ({*old.last_known_elr} | stopped) - {*ordered, *elr, *empty}
    return _Target(
        old.leader,
        ordered,
        tuple(b for b in old.replicas if b in elr),
        tuple(b for b in old.replicas if b in last_known),
        NO_LEADER,
    )


def _led(target: _Target, leader: int, cuts: bool) -> _Target:
    """What is true once `leader` leads; one from outside the ISR is in sync with itself alone."""
    if cuts:
        # After an unclean election the leader's log is the truth: nobody else has all of it.
        return _Target(leader, (leader,), (), (), NO_LEADER)
    isr, elr = target.isr, target.elr
    if leader not in isr:
        elr = tuple(b for b in (*isr, *elr) if b != leader)
        isr = (leader,)
    known = tuple(b for b in target.last_known_elr if b != leader)
    return _Target(leader, isr, elr, known, NO_LEADER)


def _elect(
    old: PartitionState, target: _Target, rules: Rules, election: Election
) -> tuple[int, bool]:
    """(leader, whether others may have committed records that it misses, and lose them)."""
    candidates = [b for b in old.replicas if rules.is_active(b)]
    # The ELR has all that is committed, the ISR what came after it, too: fewer records are cut off.
    valid = [b for b in candidates if b in target.isr] or [b for b in candidates if b in target.elr]
    preferred = old.replicas[0]
    if election is Election.PREFERRED and preferred in valid:
        return preferred, False
    # Who leads well goes on, whatever the order: each new leader is a new epoch for everybody.
    if old.leader in valid:
        return old.leader, False
    if valid:
        return valid[0], False
    if not rules.untold and are_back(target, rules.is_active, rules.ends):
        return _longest(candidates, rules), False
    may_be_unclean = election is Election.UNCLEAN or (
        rules.unclean and election is not Election.PREFERRED
    )
    # Which log is the longest of those that live is known once all of them have been heard.
    with_logs = [b for b in candidates if b in rules.ends]
    if may_be_unclean and with_logs and not rules.untold:
        return _longest(with_logs, rules), True
    return NO_LEADER, False


def are_back(
    partition: PartitionState | _Target,
    is_active: Callable[[int], bool],
    ends: Mapping[int, LogEnd],
) -> bool:
    """Whether nobody is eligible any more, and all who were until an unclean stop are there and
    have said how far their logs reach (KIP-966)."""
    known = partition.last_known_elr
    if partition.isr or partition.elr or not known:
        return False
    return all(is_active(broker) and broker in ends for broker in known)


def _longest(candidates: list[int], rules: Rules) -> int:
    """Whose log reaches furthest, as far as is known; of equals, the first of the assignment."""
    return max(candidates, key=lambda b: rules.ends.get(b, LogEnd(-1, -1)))
