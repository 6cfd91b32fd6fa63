"""Every metric of a node: its name, what it means, and where its number comes from.

The names are those of the field where it has them (`under_replicated_partitions`), units are in the
name, and labels come from sets that are bounded: APIs, errors, states, and topics that there are.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator

from hightide_broker.core.cluster.image import NO_LEADER, ClusterImage, PartitionState
from hightide_broker.core.quorum.roles import Role
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.measures import Histogram
from hightide_broker.runtime.metrics.health import STATES, state_of
from hightide_broker.runtime.metrics.node import Node
from hightide_broker.runtime.metrics.page import Measured, counter, each, gauge, histogram, one
from hightide_broker.runtime.server.routes import VERSION


def about_the_node(node: Node, loop_lag: Histogram) -> Iterator[Measured]:
    """Which it is, how it is, and whether its event loop keeps up."""
    facts = (VERSION, platform.python_version(), node.cluster_id, str(node.id))
    family = gauge(
        "build_info", "Which node this is.", "version", "python", "cluster_id", "node_id"
    )
    yield Measured(family, [(facts, 1)])
    state = state_of(node)
    states = {name: int(name == state) for name in STATES}
    yield each(gauge("node_state", "1 for the state that the node is in.", "state"), states)
    yield one(
        histogram("loop_lag_seconds", "How much later than asked the event loop woke a task."),
        loop_lag,
    )
    seconds = node.syncer.seconds
    yield one(histogram("fsync_seconds", "How long each sync of a log to disk took."), seconds)
    try:
        free = node.free_bytes()
    except DiskError:
        return
    yield one(gauge("disk_free_bytes", "Room on the disk of the data directory."), free)


def about_the_quorum(node: Node) -> Iterator[Measured]:
    """The controllers' log, and this node's part in it."""
    core = node.quorum.core
    states = {role.value: int(role is core.role) for role in Role}
    yield each(gauge("quorum_state", "1 for this node's role in the quorum.", "state"), states)
    yield one(gauge("quorum_leader_id", "The active controller, -1: none is known."), core.leader)
    yield one(gauge("quorum_epoch", "The epoch of the quorum."), core.epoch)
    voters = len(core.membership.voters)
    yield one(gauge("quorum_voters", "Nodes that vote."), voters)
    watermark = node.quorum.committed.value
    yield one(gauge("quorum_high_watermark", "What is committed, as known here."), watermark)
    log_end = node.quorum.metadata.log_end
    yield one(gauge("quorum_end_offset", "Where the metadata log ends here."), log_end)
    applied = node.metadata_loader.applied.value
    yield one(gauge("quorum_applied_offset", "How far this node has applied it."), applied)


def about_the_controller(node: Node) -> Iterator[Measured]:
    """The cluster as the active controller has it; each node tells whether that is itself."""
    is_active = node.controller is not None and node.controller.is_active
    yield one(gauge("controller_active", "1 at the active controller."), int(is_active))
    if not is_active:
        return
    image = node.image
    states = Counter("fenced" if each.fenced else "active" for each in image.brokers.values())
    brokers = {state: states[state] for state in ("active", "fenced")}
    yield each(gauge("controller_brokers", "Registered brokers.", "state"), brokers)
    yield one(gauge("controller_topics", "Topics."), len(image.topics))
    partitions = list(_partitions(image))
    yield one(gauge("controller_partitions", "Partitions of all topics."), len(partitions))
    offline = sum(each.leader == NO_LEADER for each in partitions)
    yield one(gauge("controller_offline_partitions", "Partitions that nobody leads."), offline)
    elsewhere = sum(each.leader not in (NO_LEADER, each.replicas[0]) for each in partitions)
    help_ = "Partitions that another than their preferred replica leads."
    yield one(gauge("controller_preferred_imbalance", help_), elsewhere)


def _partitions(image: ClusterImage) -> Iterator[PartitionState]:
    for topic in image.topics.values():
        yield from topic.partitions


def about_replicas(node: Node) -> Iterator[Measured]:
    """The replicas of this broker, and those of others that it leads."""
    leaders = [each.leader for each in node.replicas if each.leader is not None]
    yield one(gauge("replicas", "Replicas here."), len(node.replicas))
    yield one(gauge("leaders", "Partitions that are led here."), len(leaders))
    under = sum(len(each.isr) < len(each.replicas) for each in leaders)
    help_ = "Partitions led here whose ISR lacks a replica."
    yield one(gauge("under_replicated_partitions", help_), under)
    help_ = "Partitions led here with fewer in sync than min.insync.replicas."
    below = sum(len(each.isr) < each.effective_min_isr for each in leaders)
    yield one(gauge("under_min_isr_partitions", help_), below)
    # With as many replicas as must be in sync there is nothing to lose.
    at = sum(len(each.isr) == each.effective_min_isr < len(each.replicas) for each in leaders)
    help_ = "Partitions led here that take no acks=all once another replica is lost."
    yield one(gauge("at_min_isr_partitions", help_), at)
    offline = sum(bool(each.offline) for each in node.replicas)
    yield one(gauge("offline_replicas", "Replicas here that serve nobody."), offline)
    moves = {kind: node.replicas.isr_moves[kind] for kind in ("shrink", "expand")}
    help_ = "How often replicas left the ISR of partitions led here, or joined."
    yield each(counter("isr_changes", help_, "kind"), moves)
    refused = dict(node.replicas.isr_changes.refused)
    help_ = "ISR changes that the controller did not grant."
    yield each(counter("isr_update_failures", help_, "error"), refused)


def about_topics(node: Node) -> Iterator[Measured]:
    """What came and went, by topic, and what is on disk."""
    traffic = node.replicas.traffic
    traffic.forget_all_but(node.image.topics)
    records = {name: each.in_records for name, each in traffic.items()}
    yield each(counter("topic_records_in", "Records of producers.", "topic"), records)
    size = counter("topic_bytes", "Bytes of batches.", "topic", "direction")
    yield Measured(
        size,
        [
            ((name, direction), value)
            for name, topic in traffic.items()
            for direction, value in (
                ("in", topic.in_bytes),
                ("out", topic.out_bytes),
                ("replication_in", topic.replicated_in),
                ("replication_out", topic.replicated_out),
            )
        ],
    )
    failures = [
        ((name, api), topic.failures[api])
        for name, topic in traffic.items()
        for api in ("produce", "fetch")
    ]
    help_ = "Partitions of requests that were refused."
    yield Measured(counter("topic_failures", help_, "topic", "api"), failures)
    sizes: Counter[str] = Counter()
    for replica in node.replicas:
        if not replica.offline:
            sizes[replica.topic] += replica.log.size_bytes
    yield each(gauge("log_bytes", "Bytes of segments here.", "topic"), sizes)


def about_requests(node: Node) -> Iterator[Measured]:
    """What was asked, how it went, and who is connected."""
    counts = node.server.counts
    requests = list(counts.requests.items())
    yield Measured(counter("requests", "Requests that were answered.", "api", "error"), requests)
    help_ = "From when a request was there until its answer was; what waits for news waits for it."
    yield each(histogram("request_seconds", help_, "api"), counts.seconds)
    connections = node.server.connections()
    yield each(gauge("connections", "Connections open now.", "listener"), connections)
    away = counts.turned_away
    yield each(counter("connections_turned_away", "Connections not let in.", "listener"), away)


def about_access(node: Node) -> Iterator[Measured]:
    """Who came in, who was slowed down."""
    logins = [
        ((way, "ok" if came_in else "failed"), count)
        for (way, came_in), count in node.server.counts.logins.items()
    ]
    help_ = "Users that proved who they are, or did not."
    yield Measured(counter("authentications", help_, "mechanism", "result"), logins)
    throttled = node.server.counts.throttled_s
    yield each(counter("throttle_seconds", "Waits that clients were told.", "quota"), throttled)


def about_groups(node: Node) -> Iterator[Measured]:
    """The groups that this broker coordinates."""
    groups = dict(node.coordinators.groups())
    states = Counter(group.state.value for group in groups.values())
    yield each(gauge("groups", "Groups coordinated here.", "state"), states)
    members = {name: len(group.members) for name, group in groups.items()}
    yield each(gauge("group_members", "Members of each group.", "group"), members)


def about_partitions(node: Node) -> Iterator[Measured]:
    """The offsets of every replica here."""
    offsets = gauge("partition_offset", "Offsets of replicas here.", "topic", "partition", "kind")
    yield Measured(offsets, _offsets(node))


def _offsets(node: Node) -> Iterator[tuple[tuple[str, ...], int]]:
    for replica in node.replicas:
        if replica.offline:
            continue
        log, place = replica.log, (replica.topic, str(replica.partition))
        yield (*place, "start"), log.log_start
        yield (*place, "high_watermark"), replica.high_watermark
        yield (*place, "end"), log.log_end
        yield (*place, "synced"), log.synced_end
