"""Events as sentences, for people who look for what went wrong. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hightide.protocol.words import counted
from hightide_broker.trace.events import (
    BrokerChanged,
    CoordinatorBegan,
    CoordinatorEnded,
    Event,
    EventsLost,
    FollowerBegan,
    GroupChanged,
    IsrProposed,
    IsrRefused,
    LeaderBegan,
    NodeFailed,
    NodeServes,
    NodeStarted,
    NodeStopped,
    OfPartition,
    PartitionChanged,
    QuorumRole,
    QuorumTruncated,
    QuorumVote,
    RepairBegan,
    RepairEnded,
    ReplicaOffline,
    TopicChanged,
    Truncated,
    VotersChanged,
    WatermarksMoved,
)

_FOUND = {
    "isr": "from the ISR",
    "preferred": "the preferred replica leads again",
    "elr": "from the ELR",
    "last_known": "from those that were eligible before they stopped",
    "unclean": "unclean: what only others had is given up",
}
_BROKERS = {
    "registered": "is registered",
    "unfenced": "may serve",
    "fenced": "is fenced",
    "stopping": "is about to stop",
}
SHOWN_MAX = 4
"""Positions in one sentence."""


def sentence(node: int, what: Event) -> str:
    """What a node told, without its time, on one line: clients choose names and reasons."""
    text = _SENTENCES[type(what)](node, what)
    return text if text.isprintable() else repr(text)[1:-1]


def ids(brokers: tuple[int, ...]) -> str:
    """Brokers, or nobody."""
    return ",".join(map(str, brokers)) or "nobody"


def name_of(what: OfPartition | PartitionChanged) -> str:
    """topic-partition."""
    return f"{what.topic}-{what.partition}"


def _because(cause: str) -> str:
    return f": {cause}" if cause else ""


def who(broker: int) -> str:
    """A broker, or nobody."""
    return "nobody" if broker < 0 else f"broker {broker}"


# -- a node, the quorum ----------------------------------------------------------------------------


def _started(node: int, what: NodeStarted) -> str:
    last = "" if what.was_clean else ", after a stop that was not orderly"
    return f"node {node} starts as {' and '.join(what.roles)}, version {what.version}{last}"


def _serves(node: int, what: NodeServes) -> str:
    epoch = f" in broker epoch {what.broker_epoch}" if what.broker_epoch >= 0 else ""
    return f"node {node} serves on {what.address}{epoch}"


def _stopped(node: int, what: NodeStopped) -> str:
    return f"node {node} stopped{'' if what.is_clean else ', not all of its data is clean'}"


def _failed(node: int, what: NodeFailed) -> str:
    if what.why:
        return f"node {node} cannot go on: {what.why} ({what.error} at {what.place})"
    return f"node {node} met a bug and ends: {what.error} at {what.place}; its log has the rest"


def _lost(node: int, what: EventsLost) -> str:
    were = "was" if what.count == 1 else "were"
    return f"{counted(what.count, 'event')} of node {node} before this one {were} not kept"


def _role(node: int, what: QuorumRole) -> str:
    left_out = _left_out(what.left_out, "change of role", "changes of role")
    return f"{_standing(node, what)}{left_out}"


def _left_out(count: int, one: str, many: str = "") -> str:
    """How many were not told before this one."""
    return f" (after {counted(count, one, many)} that came to nothing)" if count else ""


def _standing(node: int, what: QuorumRole) -> str:
    epoch = f"epoch {what.epoch} of the quorum"
    match what.role:
        case "leader":
            return f"node {node} is the leader of {epoch}, its log ends at {what.log_end}"
        case "follower":
            return f"node {node} follows node {what.leader} in {epoch}"
        case "observer":
            leader = f" of node {what.leader}" if what.leader >= 0 else ""
            return f"node {node} observes {epoch}{leader}"
    voted = f", it voted for node {what.voted}" if what.voted not in (-1, node) else ""
    return f"node {node} is {what.role} in {epoch}{voted}"


def _vote(node: int, what: QuorumVote) -> str:
    said = "yes" if what.granted else f"no{_because(what.why)}"
    if what.is_pre_vote:
        asked = f"node {what.candidate} asked node {node} whether it could win after epoch"
        return f"{asked} {what.epoch}: {said}{_left_out(what.left_out, 'question')}"
    return f"node {what.candidate} asked node {node} for its vote in epoch {what.epoch}: {said}"


def _voters(_: int, what: VotersChanged) -> str:
    return f"the voters become {ids(what.voters)}"


def _quorum_truncated(node: int, what: QuorumTruncated) -> str:
    leader = f"node {what.leader}"
    return f"node {node} cut its metadata log{_cut(what, leader, 'the watermark that it knew was')}"


def _cut(
    what: Truncated | QuorumTruncated, leader: str, stood: str = "the watermark stood at"
) -> str:
    """From where to where, and why nobody misses it."""
    count = what.before - what.after
    these = "this record" if count == 1 else f"these {counted(count, 'record')}"
    return (
        f" from {what.before} to {what.after} (epoch {what.epoch_before} -> {what.epoch_after}): "
        f"{leader} does not have {these}; {stood} {what.high_watermark}"
    )


# -- the active controller -------------------------------------------------------------------------


def _broker(_: int, what: BrokerChanged) -> str:
    epoch = f" (epoch {what.broker_epoch})" if what.broker_epoch >= 0 else ""
    return (
        f"broker {what.broker} {_BROKERS.get(what.state, what.state)}{epoch}{_because(what.cause)}"
    )


def _topic(_: int, what: TopicChanged) -> str:
    return f"topic {what.topic} is {what.state}"


def _partition(_: int, what: PartitionChanged) -> str:
    name, told = name_of(what), []
    if what.leader != what.leader_before:
        found = f" ({_FOUND.get(what.election, what.election)})" if what.election else ""
        last = f" after {who(what.leader_before)}" if what.leader_before >= 0 else ""
        told.append(f"{who(what.leader)} leads in epoch {what.leader_epoch}{last}{found}")
    for which, before, after in (
        ("ISR", what.isr_before, what.isr),
        ("ELR", what.elr_before, what.elr),
    ):
        if before != after:
            told.append(f"{which} {ids(before)} -> {ids(after)}")
    if not told:
        told.append("what is remembered of those that led or were eligible changed")
    return f"{name}: {', '.join(told)}{_because(what.cause)}"


# -- replicas --------------------------------------------------------------------------------------


def _leads(node: int, what: LeaderBegan) -> str:
    return (
        f"broker {node} leads {name_of(what)} in epoch {what.leader_epoch} from offset "
        f"{what.log_end} on; the watermark stands at {what.high_watermark}, ISR {ids(what.isr)}"
    )


def _follows(node: int, what: FollowerBegan) -> str:
    which = f"for {name_of(what)} in epoch {what.leader_epoch}"
    if what.leader < 0:
        return f"broker {node} has no leader {which}"
    last = f", the last of epoch {what.last_epoch}" if what.last_epoch >= 0 else ""
    leader, end = what.leader, what.log_end
    return f"broker {node} follows broker {leader} {which} with records up to {end}{last}"


def _proposed(node: int, what: IsrProposed) -> str:
    name, watermark = name_of(what), f"the watermark stood at {what.high_watermark}"
    if what.joins:
        return f"broker {what.broker} caught up with {name}: it may join the ISR again; {watermark}"
    lag = f"{what.behind_ms / 1000:.1f} s behind" if what.behind_ms >= 0 else "behind"
    if 0 <= what.its_end < what.log_end:
        lag += f", by {counted(what.log_end - what.its_end, 'record')}"
    return f"broker {what.broker} is to leave the ISR of {name}: {lag}; {watermark}"


def _refused(_: int, what: IsrRefused) -> str:
    return f"{name_of(what)}: ISR {ids(what.isr)} was refused ({what.error}: {what.message})"


def _truncated(node: int, what: Truncated) -> str:
    name = name_of(what)
    if what.is_whole:
        return f"broker {node} gives up all of {name}, and begins again at {what.after}"
    return f"broker {node} cut {name}{_cut(what, f'broker {what.leader}')}"


def _moved(node: int, what: WatermarksMoved) -> str:
    shown = [
        f"{each.topic}-{each.partition} {each.high_watermark} of {each.log_end}"
        for each in what.replicas[:SHOWN_MAX]
    ]
    more = len(what.replicas) - len(shown)
    rest = f" and {more} more" if more else ""
    return f"broker {node}: committed {', '.join(shown)}{rest}"


def _offline(node: int, what: ReplicaOffline) -> str:
    kind = "is damaged" if what.is_damaged else "is offline"
    return f"{name_of(what)} {kind} on broker {node}: {what.why}"


def _repairs(node: int, what: RepairBegan) -> str:
    return f"broker {node} repairs {name_of(what)}: {what.why}"


def _repaired(node: int, what: RepairEnded) -> str:
    if what.log_end < 0:
        return f"broker {node} could not repair {name_of(what)}"
    return f"broker {node} kept {name_of(what)} up to {what.log_end}, and fetches the rest"


# -- groups ----------------------------------------------------------------------------------------


def _coordinates(node: int, what: CoordinatorBegan) -> str:
    return f"broker {node} coordinates {counted(what.groups, 'group')} of {name_of(what)}"


def _coordinates_no_more(node: int, what: CoordinatorEnded) -> str:
    return f"broker {node} coordinates the groups of {name_of(what)} no more{_because(what.why)}"


def _group(_: int, what: GroupChanged) -> str:
    members = counted(what.members, "member")
    generation = f"generation {what.generation}"
    return f"group {what.group} is {what.state}, {generation}, {members}{_because(what.cause)}"


_SENTENCES: dict[type[Event], Callable[[int, Any], str]] = {
    NodeStarted: _started,
    NodeServes: _serves,
    NodeStopped: _stopped,
    NodeFailed: _failed,
    EventsLost: _lost,
    QuorumRole: _role,
    QuorumVote: _vote,
    VotersChanged: _voters,
    QuorumTruncated: _quorum_truncated,
    BrokerChanged: _broker,
    TopicChanged: _topic,
    PartitionChanged: _partition,
    LeaderBegan: _leads,
    FollowerBegan: _follows,
    IsrProposed: _proposed,
    IsrRefused: _refused,
    Truncated: _truncated,
    WatermarksMoved: _moved,
    ReplicaOffline: _offline,
    RepairBegan: _repairs,
    RepairEnded: _repaired,
    CoordinatorBegan: _coordinates,
    CoordinatorEnded: _coordinates_no_more,
    GroupChanged: _group,
}
