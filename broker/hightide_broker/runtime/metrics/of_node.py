"""Metrics of a node as such, of its part in the quorum, and of the controller.

The names are those of the field where it has them, units are in the name, and labels come from sets
that are bounded: APIs, errors, states, nodes, topics and groups that there are.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Sized
from contextlib import suppress
from typing import Protocol

import trio

from hightide.protocol.errors import CorruptBatch
from hightide_broker.core.cluster.change_events import ELECTIONS
from hightide_broker.core.cluster.features import KNOWN_LEVELS
from hightide_broker.core.cluster.image import NO_LEADER, ClusterImage, PartitionState
from hightide_broker.core.quorum.roles import Role
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.measures import Histogram
from hightide_broker.runtime.base.system import open_files
from hightide_broker.runtime.metrics.health import STATES, state_of
from hightide_broker.runtime.metrics.node import Node
from hightide_broker.runtime.metrics.page import Measured, counter, each, gauge, histogram, one
from hightide_broker.runtime.server.routes import VERSION


def about_the_node(node: Node, loop_lag: Histogram) -> Iterator[Measured]:
    """Which it is, how it is, and whether its event loop keeps up."""
    roles = ",".join(node.config.roles)
    facts = (VERSION, platform.python_version(), node.cluster_id, str(node.id), roles)
    labels = ("version", "python", "cluster_id", "node_id", "roles")
    yield Measured(gauge("build_info", "Which node this is.", *labels), [(facts, 1)])
    levels = {(name, "known"): level for name, level in KNOWN_LEVELS.items()}
    levels |= {(name, "cluster"): level for name, level in node.image.feature_levels().items()}
    help_ = "Up to which level a feature is known here, and may be used in the cluster."
    yield Measured(gauge("feature_level", help_, "feature", "kind"), levels.items())
    state = state_of(node)
    states = {name: int(name == state) for name in STATES}
    began = gauge("node_start_time_seconds", "When the process began, in seconds since 1970.")
    yield one(began, node.began_ms / 1000)
    tasks = trio.lowlevel.current_statistics().tasks_living
    yield one(gauge("tasks", "Tasks of the event loop."), tasks)
    yield each(gauge("node_state", "1 for the state that the node is in.", "state"), states)
    yield one(
        histogram("loop_lag_seconds", "How much later than asked the event loop woke a task."),
        loop_lag,
    )
    help_ = "How long each sync of a log to disk took."
    yield each(histogram("fsync_seconds", help_, "what"), node.syncer.seconds)
    with suppress(OSError):
        yield one(gauge("open_files", "Descriptors that the process has."), open_files())


def about_the_disk(node: Node) -> Iterator[Measured]:
    """Room on it, and whether it works."""
    room = {}
    with suppress(DiskError):
        room["free"], room["total"] = node.disk_bytes()
    help_ = "Of the disk of the data directory."
    yield each(gauge("disk_bytes", help_, "kind"), room)
    has_failed = not room or node.replicas.disk_failed
    help_ = "1 if the data directory, or what is in it, cannot be read or written."
    yield one(gauge("log_dir_failed", help_), int(has_failed))


def about_the_quorum(node: Node) -> Iterator[Measured]:
    """The controllers' log, and this node's part in it."""
    core = node.quorum.core
    states = {role.value: int(role is core.role) for role in Role}
    yield each(gauge("quorum_state", "1 for this node's role in the quorum.", "state"), states)
    heard = core.leader_that_is_heard
    yield one(gauge("quorum_leader_id", "The active controller, -1: none is heard of."), heard)
    yield one(gauge("quorum_epoch", "The epoch of the quorum."), core.epoch)
    watermark = node.quorum.committed.value
    kinds = voters_by_kind(node.quorum.metadata, core.config.voters, watermark)
    help_ = (
        "How many vote by what is committed, and by what is not yet (0: no change is on its way)."
    )
    yield each(gauge("quorum_voters", help_, "kind"), kinds)
    yield one(gauge("quorum_high_watermark", "What is committed, as known here."), watermark)
    log_end = node.quorum.metadata.log_end
    yield one(gauge("quorum_end_offset", "Where the metadata log ends here."), log_end)
    applied = node.metadata_loader.applied.value
    yield one(gauge("quorum_applied_offset", "How far this node has applied it."), applied)
    help_ = "How often this node began to lead the quorum."
    yield one(counter("quorum_elections", help_), node.happened.quorums_led)
    errors = node.quorum.metadata.errors + node.metadata_loader.errors
    help_ = "Metadata that could not be stored, and snapshots that could not be written."
    yield one(counter("metadata_errors", help_), errors)
    help_ = "How old the latest snapshot of the metadata is here; left out while there is none."
    yield Measured(gauge("snapshot_age_seconds", help_), _snapshot_age(node))
    lags = gauge("quorum_replica_lag_records", "How far a voter is behind the leader.", "replica")
    told = core.describe(trio.current_time())[0] if core.is_leader else []
    yield each(lags, {str(voter.id): voter.lag for voter in told if voter.lag >= 0})


def _snapshot_age(node: Node) -> list[tuple[tuple[str, ...], float]]:
    made_ms = -1
    with suppress(DiskError, CorruptBatch):
        made_ms = node.quorum.metadata.snapshot_ms
    return [] if made_ms < 0 else [((), max(node.now_ms() - made_ms, 0) / 1000)]


class Voting(Protocol):
    """The records of the voters in a metadata log."""

    @property
    def voters(self) -> Sized | None: ...

    @property
    def earlier_voters(self) -> Sized: ...

    @property
    def voters_end(self) -> int: ...


def voters_by_kind(log: Voting, configured: Sized, watermark: int) -> dict[str, int]:
    """How many vote by the last record that is committed, or by configuration where there is none;
    and by one that is not committed yet."""
    if log.voters is None or log.voters_end <= watermark:
        return {"committed": len(log.voters or configured), "uncommitted": 0}
    return {"committed": len(log.earlier_voters or configured), "uncommitted": len(log.voters)}


def about_the_controller(node: Node) -> Iterator[Measured]:
    """The cluster as the active controller has it; each node tells whether that is itself."""
    is_active = node.controller is not None and node.controller.is_active
    yield one(gauge("controller_active", "1 at the active controller."), int(is_active))
    if node.controller is None or not is_active:
        return
    help_ = "Leaders that were found here, by how: the further right, the more is lost."
    found = {kind: node.controller.elections[kind] for kind in ELECTIONS}
    yield each(counter("leader_elections", help_, "kind"), found)
    help_ = "How long it took to decide what the controller was asked for, and to write it down."
    yield one(histogram("controller_event_seconds", help_), node.controller.event_seconds)
    help_ = "How long it took to commit what the controller was asked for."
    yield one(histogram("quorum_commit_seconds", help_), node.controller.commit_seconds)
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
