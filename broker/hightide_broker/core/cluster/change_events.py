"""Changes of the metadata as events of a trace: what was decided, and why. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import (
    AnyChange,
    ChangePartition,
    CreatePartition,
    CreateTopic,
    FenceBroker,
    RegisterBroker,
    RemoveTopic,
    StopBroker,
    UnfenceBroker,
)
from hightide_broker.core.cluster.image import NO_LEADER, ClusterImage, PartitionState
from hightide_broker.core.cluster.log_ends import LogEnds
from hightide_broker.core.cluster.partition_changes import are_back
from hightide_broker.trace.events import BrokerChanged, Event, PartitionChanged, TopicChanged

ELECTIONS = ("isr", "preferred", "elr", "last_known", "unclean")
"""How a leader may be found, the more is lost the further right; see `election_of`."""
NEW_CONTROLLER = "a new active controller looked at everything"
NOBODY_LISTENS = "nobody listens where the broker was"
NOT_HEARD = "the broker was not heard for broker.session.timeout.ms"
BACK_TO_PREFERRED = "leaders go back to their preferred replicas"

_STATES = {FenceBroker: "fenced", UnfenceBroker: "unfenced", StopBroker: "stopping"}


def event_of(
    change: AnyChange, image: ClusterImage, log_ends: LogEnds, *, offset: int, cause: str
) -> Event | None:
    """What a change, the record at `offset`, does to an image that it was not replayed into yet;
    None for what no trace tells of. `log_ends`: what it was decided by."""
    match change:
        case RegisterBroker():
            return BrokerChanged(
                offset=offset,
                broker=change.broker,
                broker_epoch=offset,
                state="registered",
                cause="" if change.clean else "its last stop was not orderly",
            )
        case FenceBroker() | UnfenceBroker() | StopBroker():
            return BrokerChanged(
                offset=offset,
                broker=change.broker,
                broker_epoch=change.broker_epoch,
                state=_STATES[type(change)],
                cause=cause if isinstance(change, FenceBroker) else "",
            )
        case CreateTopic():
            return TopicChanged(offset=offset, topic=change.topic, state="created")
        case RemoveTopic():
            name = image.topics_by_id[change.topic_id].name
            return TopicChanged(offset=offset, topic=name, state="deleted")
        case CreatePartition():
            return PartitionChanged(
                offset=offset,
                topic=image.topics_by_id[change.topic_id].name,
                partition=change.partition,
                leader_epoch=change.leader_epoch,
                leader=change.leader,
                isr=change.isr,
                cause="it is new",
            )
        case ChangePartition():
            return _of_partition(change, image, log_ends, offset=offset, cause=cause)
    return None


def _of_partition(
    change: ChangePartition, image: ClusterImage, log_ends: LogEnds, *, offset: int, cause: str
) -> PartitionChanged:
    topic = image.topics_by_id[change.topic_id]
    before = topic.partitions[change.partition]
    found = election_of(before, change, image, log_ends)
    what = became(topic.name, change.partition, before, before.changed(change), offset=offset)
    return replace(what, election=found, cause=cause)


def became(
    topic: str, partition: int, before: PartitionState, after: PartitionState, *, offset: int
) -> PartitionChanged:
    """What a partition was, and is since the record at `offset`; not why."""
    return PartitionChanged(
        offset=offset,
        topic=topic,
        partition=partition,
        leader_epoch=after.leader_epoch,
        leader=after.leader,
        isr=after.isr,
        elr=after.elr,
        leader_before=before.leader,
        isr_before=before.isr,
        elr_before=before.elr,
    )


def election_of(
    before: PartitionState, change: ChangePartition, image: ClusterImage, log_ends: LogEnds
) -> str:
    """How the leader was found whom a change makes one, one of `ELECTIONS`; empty if it makes
    none."""
    leader = change.leader
    if leader in (None, NO_LEADER):
        return ""
    if leader in before.isr:
        isr = before.isr if change.isr is None else change.isr
        # The last leader could have gone on: it only was not the first replica.
        may_go_on = before.leader != leader and before.leader in isr
        return "preferred" if may_go_on and leader == before.replicas[0] else "isr"
    if leader in before.elr:
        return "elr"
    ends = log_ends.of(change.topic_id, change.partition, before.leader_epoch)
    has_all_that_is_left = are_back(before, image.is_active, ends) and all(
        ends[leader] >= ends[other] for other in before.last_known_elr
    )
    return "last_known" if has_all_that_is_left else "unclean"


def cause_of(request: m.Message) -> str:
    """Why a request changes what it changes, in a few words."""
    match request:
        case c.RegisterBrokerRequest():
            return f"broker {request.broker} came up"
        case c.BrokerHeartbeatRequest():
            if request.want_shut_down:
                return f"broker {request.broker} stops"
            does = "has replicas that serve nobody" if request.offline else "is back"
            return f"broker {request.broker} {does}"
        case c.AlterPartitionRequest():
            return f"broker {request.broker}, which leads it, asked for that"
        case m.ElectLeadersRequest():
            return "an election was asked for"
        case m.AlterConfigsRequest():
            return "a configuration was altered"
    return ""
