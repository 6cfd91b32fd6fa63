"""Metrics of the groups that a broker coordinates: who is in them, and how far they are behind.

A group's lag is told by its coordinator, for the partitions of which it has a replica: all of them,
where there are as many replicas as brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from hightide.protocol.errors import Refused
from hightide_broker.ports import DiskError
from hightide_broker.runtime.metrics.node import Node
from hightide_broker.runtime.metrics.page import Measured, counter, each, gauge, one
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.storage.segment import SegmentDamage


class Lag(NamedTuple):
    """How far a group is with one partition."""

    group: str
    topic: str
    partition: int
    committed: int
    replica: Replica
    next_offset: int
    """What it reads next: what it committed, or where the log begins if that is gone."""

    @property
    def records(self) -> int:
        """What is committed, and not read yet."""
        return max(self.replica.high_watermark - self.next_offset, 0)

    @property
    def labels(self) -> tuple[str, str, str]:
        """Group, topic and partition."""
        return self.group, self.topic, str(self.partition)


def about_groups(node: Node) -> Iterator[Measured]:
    """The groups that this broker coordinates."""
    groups = dict(node.coordinators.groups())
    states = Counter(group.state.value for group in groups.values())
    yield each(gauge("groups", "Groups coordinated here.", "state"), states)
    members = {name: len(group.members) for name, group in groups.items()}
    yield each(gauge("group_members", "Members of each group.", "group"), members)
    help_ = "How often groups here began to rebalance."
    yield one(counter("group_rebalances", help_), node.happened.rebalances)
    labels = ("group", "topic", "partition")
    known, now_ms = lags(node), node.now_ms()
    family = gauge("group_lag_records", "Committed records that a group has not read.", *labels)
    yield Measured(family, [(lag.labels, lag.records) for lag in known])
    help_ = "How long ago the first record was written that a group has not read; 0: it read all."
    seconds = ((lag.labels, seconds_behind(lag, now_ms)) for lag in known)
    yield Measured(gauge("group_lag_seconds", help_, *labels), seconds)


def lags(node: Node) -> list[Lag]:
    """Of every group here, with every partition that has a replica here; a page is made in slices,
    and groups change between them."""
    by_tp = {replica.tp: replica for replica in node.replicas if not replica.offline}
    topic_ids, found = node.coordinators.topic_ids(), []
    for group, offsets in node.coordinators.offsets():
        for tp, value in offsets.all(topic_ids).items():
            replica = by_tp.get(tp)
            if replica is not None:
                next_offset = max(value.offset, replica.log.log_start)
                lag = Lag(group, tp.topic, tp.partition, value.offset, replica, next_offset)
                found.append(lag)
    return found


def seconds_behind(lag: Lag, now_ms: int) -> float:
    """How old the record is that a group reads next, to the batch; 0: there is none, or it cannot
    be read here."""
    if lag.records == 0:
        return 0.0
    try:
        header, _ = next(lag.replica.log.batches(lag.next_offset))
    except (StopIteration, SegmentDamage, DiskError, Refused):
        return 0.0
    is_first = lag.next_offset <= header.base_offset
    written_ms = header.base_timestamp if is_first else header.max_timestamp
    return max(now_ms - written_ms, 0) / 1000
