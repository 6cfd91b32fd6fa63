"""Metrics of the groups that a broker coordinates: who is in them, and how far they are behind.

A group's lag is told by its coordinator, for the partitions of which it has a replica: all of them,
where there are as many replicas as brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hightide_broker.core.groups.parts import REASONS
from hightide_broker.runtime.metrics.node import Node
from hightide_broker.runtime.metrics.page import Measured, counter, each, gauge, histogram, one


def about_groups(node: Node) -> Iterator[Measured]:
    """The groups that this broker coordinates."""
    groups = dict(node.coordinators.groups())
    states = Counter(group.state.value for group in groups.values())
    yield each(gauge("groups", "Groups coordinated here.", "state"), states)
    help_ = "Partitions of the offsets topic: read here, answered for, or not because of this disk."
    yield each(gauge("coordinator_partitions", help_, "state"), node.coordinators.states())
    members = {name: len(group.members) for name, group in groups.items()}
    yield each(gauge("group_members", "Members of each group.", "group"), members)
    counts = node.coordinators.counts
    help_ = "How often groups here began to rebalance, by why."
    begun = {reason: counts.rebalances[reason] for reason in REASONS}
    yield each(counter("group_rebalances", help_, "reason"), begun)
    help_ = "How long rebalances took, until each member could hear what it has."
    yield one(histogram("group_rebalance_seconds", help_), counts.rebalance_seconds)
    yield one(counter("offset_commits", "Offsets that groups committed."), counts.offset_commits)
    help_ = "Offsets of groups that were forgotten because they were old."
    yield one(counter("offset_expirations", help_), counts.offset_expirations)
    labels = ("group", "topic", "partition")
    known, now_ms = node.coordinators.lags(), node.now_ms()
    family = gauge("group_lag_records", "Committed records that a group has not read.", *labels)
    yield Measured(family, [(lag.labels, lag.records) for lag in known])
    help_ = "How long ago the first record was written that a group has not read; 0: it read all."
    seconds = (  # what cannot be read here is not known: it is not nothing
        (lag.labels, behind_ms / 1000)
        for lag in known
        if (behind_ms := lag.behind_ms(now_ms)) is not None
    )
    yield Measured(gauge("group_lag_seconds", help_, *labels), seconds)
