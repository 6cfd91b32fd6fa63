"""What the cluster said, as pages need it. Pure.

Everything is plain values, so that it is JSON as it stands. Offsets are next ones; -1: not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from hightide import (
    ClusterDescription,
    GroupDescription,
    GroupLag,
    LogDirDescription,
    PartitionDescription,
    ReplicaDescription,
    TopicDescription,
)
from hightide.protocol.hosts import is_loopback
from hightide.protocol.words import counted
from hightide_broker.trace.lanes import badge_of

HOSTS_SHOWN_MAX = 3
View = dict[str, Any]
Held = Mapping[tuple[int, str, int], ReplicaDescription]
"""(broker, topic, partition) → what that broker says of its replica."""


def held_by(directories: Iterable[LogDirDescription]) -> Held:
    """The replicas of all brokers that answered."""
    return {
        (directory.broker, replica.topic, replica.partition): replica
        for directory in directories
        for replica in directory.replicas
    }


def cluster_view(
    cluster: ClusterDescription,
    topics: list[TopicDescription],
    disks: Mapping[int, LogDirDescription],
) -> View:
    """The overview: brokers and topics."""
    parts = [part for topic in topics for part in topic.partitions]
    led = Counter(part.leader for part in parts)
    held = Counter(broker for part in parts for broker in part.replicas)
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller,
        "brokers": [
            {
                "id": broker.id,
                "address": f"{broker.host}:{broker.port}",
                "rack": broker.rack,
                "roles": list(broker.roles),
                "fenced": broker.fenced,
                "epoch": broker.epoch,
                "leads": led[broker.id],
                "replicas": held[broker.id],
                **_disk(disks.get(broker.id)),
            }
            for broker in sorted(cluster.brokers, key=lambda each: each.id)
        ],
        "topics": [_topic_row(topic) for topic in sorted(topics, key=lambda each: each.topic)],
    }


def open_view(cluster: ClusterDescription) -> View:
    """What it means that a cluster lets in who does not prove who it is: of a cluster that gives
    addresses of its own machine alone, no more than a remark."""
    reached = sorted({broker.host for broker in cluster.brokers if not is_loopback(broker.host)})
    named = ", ".join(reached[:HOSTS_SHOWN_MAX])
    more = f" and {len(reached) - HOSTS_SHOWN_MAX} more" if len(reached) > HOSTS_SHOWN_MAX else ""
    told = (
        f"Whoever reaches {named}{more} needs no password to read, change and delete what is shown "
        f"here. Brokers ask for one with security.protocol = SASL_SSL and authorizer.enable = "
        f"true; a new cluster that does is made by"
        if reached
        else "This cluster is on one machine, and asks nobody there who they are. One that asks is "
        "made by"
    )
    return {"calm": not reached, "told": told}


def _disk(directory: LogDirDescription | None) -> View:
    if directory is None or directory.error:
        return {"free_bytes": -1, "size_bytes": -1, "offline": 0, "silent": directory is not None}
    return {
        "free_bytes": directory.free_bytes,
        "size_bytes": sum(max(each.size_bytes, 0) for each in directory.replicas),
        "offline": sum(bool(each.error) for each in directory.replicas),
        "silent": False,
    }


def _topic_row(topic: TopicDescription) -> View:
    parts = topic.partitions
    return {
        "topic": topic.topic,
        "internal": topic.internal,
        "partitions": len(parts),
        "replicas": max((len(part.replicas) for part in parts), default=0),
        "leaderless": sum(part.leader < 0 for part in parts),
        "under_replicated": sum(len(part.isr) < len(part.replicas) for part in parts),
    }


def topic_view(
    topic: TopicDescription,
    held: Held,
    min_isr: int,
    before: Held | None = None,
    *,
    untold: str = "",
) -> View:
    """A topic's page: a lane for each replica of each partition. Of a broker that does not answer
    now, what it said `before` is shown, and that it is old. `untold`: why brokers that answer do
    not say how far they are."""
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "min_isr": min_isr,
        "partitions": [
            _partition(topic.topic, part, held, {} if untold else before or {}, min_isr, untold)
            for part in topic.partitions
        ],
    }


def _partition(
    topic: str, part: PartitionDescription, held: Held, before: Held, min_isr: int, untold: str
) -> View:
    lanes = []
    for broker in part.replicas:
        key = broker, topic, part.partition
        is_stale = key not in held and not untold
        lanes.append(_lane(broker, part, held.get(key, before.get(key)), is_stale))
    return {
        "partition": part.partition,
        "leader": part.leader,
        "leader_epoch": part.leader_epoch,
        "isr": list(part.isr),
        "elr": list(part.elr),
        "preferred": part.replicas[0] if part.replicas else -1,
        "lanes": lanes,
        "why": untold or why_there(part, lanes, min_isr),
    }


def _lane(
    broker: int, part: PartitionDescription, replica: ReplicaDescription | None, is_stale: bool
) -> View:
    told = replica if replica is not None and not replica.error else None
    return {
        "broker": broker,
        "leads": broker == part.leader,
        "badge": badge_of(broker, part.isr, part.elr),
        "stale": is_stale,
        "error": replica.error if replica is not None else "",
        "log_start": told.log_start_offset if told else -1,
        "high_watermark": told.high_watermark if told else -1,
        "log_end": told.log_end_offset if told else -1,
        "synced": told.synced_offset if told else -1,
        "epoch": told.leader_epoch if told else -1,
        "size_bytes": told.size_bytes if told else -1,
    }


def why_there(part: PartitionDescription, lanes: list[View], min_isr: int) -> str:
    """Why the watermark of a partition is where it is, in a sentence."""
    if part.leader < 0:
        return f"nobody leads: {part.message or 'no replica may'}"
    leader = next((lane for lane in lanes if lane["leads"]), None)
    if leader is None or leader["stale"] or leader["log_end"] < 0:
        return f"broker {part.leader} leads, and did not answer"
    end, watermark = leader["log_end"], leader["high_watermark"]
    if watermark >= end:
        return "everything is committed: all replicas in sync have every record"
    needed = min(min_isr, len(part.replicas))
    if len(part.isr) < needed:
        return (
            f"it stands: {len(part.isr)} in sync, and nothing is committed below {needed} "
            f"(min.insync.replicas)"
        )
    if others := [*part.elr, *part.last_known_elr]:
        return (
            f"it stands: {others} may yet lead, until the controller has heard the leader and "
            f"enough in sync"
        )
    members = [lane for lane in lanes if lane["broker"] in part.isr and lane["log_end"] >= 0]
    slowest = min(members, key=lambda lane: lane["log_end"], default=leader)
    if slowest["log_end"] < end:
        behind = counted(end - slowest["log_end"], "record")
        return f"it waits for broker {slowest['broker']}, {behind} behind the leader"
    if leader["synced"] < end:
        return f"it waits for the leader's disk: synced up to {leader['synced']}"
    return "it is about to rise: the replicas in sync have every record"


def group_view(group: GroupDescription, lags: list[GroupLag]) -> View:
    """A group's page: who reads what, and how far it is."""
    owners = {member.member_id: member for member in group.members}
    return {
        "group": group.group,
        "state": group.state,
        "generation": group.generation,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "members": [
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.host,
                "leads": member.member_id == group.leader,
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": lag.topic,
                "partition": lag.partition,
                "committed": -1 if lag.committed is None else lag.committed,
                "end": lag.end,
                "lag": -1 if lag.lag is None else lag.lag,
                "behind_ms": -1 if lag.behind_ms is None else lag.behind_ms,
                "member": lag.member_id if lag.member_id in owners else "",
            }
            for lag in lags
        ],
        "rebalances": [
            {"ms": each.at_ms, "generation": each.generation, "cause": each.cause}
            for each in group.rebalances
        ],
    }
