"""The cluster under the names of `kafka_exporter`, which boards and alerts of many people read.

A cluster is told once: what belongs to a partition by its leader, what belongs to a group by its
coordinator, the rest by the active controller. All nodes together are one exporter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

from hightide_broker.runtime.metrics.node import Node
from hightide_broker.runtime.metrics.page import Family, Measured, Value
from hightide_broker.runtime.replication.replica import Replica

PREFIX = "kafka_"
_Rows = list[tuple[tuple[str, ...], Value]]


def about_the_cluster(node: Node) -> Iterator[Measured]:
    """Brokers and topics, by the active controller."""
    if node.controller is None or not node.controller.is_active:
        return
    brokers = [each for each in node.image.brokers.values() if not each.fenced]
    yield Measured(_gauge("brokers", "Brokers that serve."), [((), len(brokers))])
    rows: _Rows = [((str(each.broker), f"{each.host}:{each.port}"), 1) for each in brokers]
    yield Measured(_gauge("broker_info", "A broker and where it is.", "id", "address"), rows)
    rows = [((name,), len(topic.partitions)) for name, topic in node.image.topics.items()]
    yield Measured(_gauge("topic_partitions", "Partitions of a topic.", "topic"), rows)


def about_partitions(node: Node) -> Iterator[Measured]:
    """The partitions that are led here."""
    led = [each for each in node.replicas if each.leader is not None and not each.offline]
    for name, help_, value in (
        ("current_offset", "The end of what is committed.", attrgetter("high_watermark")),
        ("oldest_offset", "Where the log begins.", attrgetter("log.log_start")),
        ("in_sync_replica", "Replicas in sync.", _in_sync),
        ("leader", "The broker that leads.", lambda _: node.id),
        ("leader_is_preferred", "1 if the first replica leads.", _is_preferred),
        ("replicas", "Replicas.", _replicas),
        ("under_replicated_partition", "1 if a replica is not in sync.", _is_under_replicated),
    ):
        family = _gauge(f"topic_partition_{name}", help_, "topic", "partition")
        yield Measured(family, [((each.topic, str(each.partition)), value(each)) for each in led])


def about_groups(node: Node) -> Iterator[Measured]:
    """The groups that are coordinated here."""
    known = node.coordinators.lags()
    for name, help_, value in (
        ("current_offset", "What a group committed.", attrgetter("committed")),
        ("lag", "Committed records that it has not read.", attrgetter("records")),
    ):
        labels = ("consumergroup", "topic", "partition")
        rows: _Rows = [(lag.labels, value(lag)) for lag in known]
        yield Measured(_gauge(f"consumergroup_{name}", help_, *labels), rows)
        sums: Counter[tuple[str, ...]] = Counter()
        for lag in known:
            sums[lag.group, lag.tp.topic] += value(lag)
        family = _gauge(f"consumergroup_{name}_sum", f"{help_[:-1]}, in all.", *labels[:2])
        yield Measured(family, list(sums.items()))
    members: _Rows = [((name,), len(group.members)) for name, group in node.coordinators.groups()]
    yield Measured(_gauge("consumergroup_members", "Members.", "consumergroup"), members)


def _gauge(name: str, help_: str, *labels: str) -> Family:
    return Family(name, "gauge", help_, labels, PREFIX)


def _in_sync(replica: Replica) -> int:
    return len(replica.leader.isr) if replica.leader else 0


def _replicas(replica: Replica) -> int:
    return len(replica.leader.replicas) if replica.leader else 0


def _is_preferred(replica: Replica) -> int:
    leader = replica.leader
    return int(leader is not None and leader.replicas[0] == leader.broker)


def _is_under_replicated(replica: Replica) -> int:
    return int(_in_sync(replica) < _replicas(replica))
