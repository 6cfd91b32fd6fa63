"""Metrics of the replicas of a broker: who is in sync, what came and went, what is on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hightide_broker.runtime.metrics.node import Node
from hightide_broker.runtime.metrics.page import Measured, counter, each, gauge, histogram, one

REPLICAS_AT_ONCE = 200
"""Of so many logs sizes are added up before it may be the turn of others."""


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
    left = node.replicas.recovering
    help_ = "Partitions that a node which starts has still to open."
    yield one(gauge("recovery_remaining_partitions", help_), left.partitions)
    help_ = "Bytes of them that it has to look at, at most: those of a stop that was not orderly."
    yield one(gauge("recovery_remaining_bytes", help_), left.bytes)
    offline = sum(bool(each.offline) for each in node.replicas)
    yield one(gauge("offline_replicas", "Replicas here that serve nobody."), offline)
    yield one(gauge("replica_max_lag_records", "How far the last follower is behind."), _lag(node))
    help_ = "Records that followers here cut because their leader did not have them."
    yield one(counter("truncated_records", help_), node.happened.truncated_records)
    damages = {kind: node.happened.damages[kind] for kind in ("detected", "repaired")}
    help_ = "Replicas here whose files were found to be damaged, and that were repaired."
    yield each(counter("corruptions", help_, "result"), damages)
    moves = {kind: node.replicas.isr_moves[kind] for kind in ("shrink", "expand")}
    help_ = "How often replicas left the ISR of partitions led here, or joined."
    yield each(counter("isr_changes", help_, "kind"), moves)
    refused = dict(node.replicas.isr_changes.refused)
    help_ = "ISR changes that the controller did not grant."
    yield each(counter("isr_update_failures", help_, "error"), refused)


def _lag(node: Node) -> int:
    ends = [
        leader.log_end - remote.log_end
        for replica in node.replicas
        if (leader := replica.leader) is not None
        for remote in leader.remotes.values()
        if remote.log_end >= 0
    ]
    return max(ends, default=0)


def about_topics(node: Node) -> Iterator[Measured | None]:
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
    for by, name in (("retention", "retention"), ("compaction", "cleaner")):
        gone = {topic: each.deleted_bytes[by] for topic, each in traffic.items()}
        help_ = f"Bytes that {by} gave up."
        yield each(counter(f"{name}_deleted_bytes", help_, "topic"), gone)
    help_ = (
        "Of the closed segments of the compacted partition that waits most: the share that waits."
    )
    waiting = max(node.replicas.uncleaned.values(), default=0.0)
    yield one(gauge("cleaner_backlog_ratio", help_), waiting)
    help_ = "How long each compaction of a partition took."
    yield one(histogram("cleaner_seconds", help_), node.replicas.cleaner_seconds)
    yield from _about_logs(node)


def _about_logs(node: Node) -> Iterator[Measured | None]:
    sizes: Counter[str] = Counter()
    unsynced = producers = 0
    for number, replica in enumerate(node.replicas, 1):
        if number % REPLICAS_AT_ONCE == 0:
            yield None
        producers += len(replica.producers)
        if not replica.offline:
            sizes[replica.topic] += replica.log.size_bytes
            unsynced += replica.log.unsynced_bytes
    yield each(gauge("log_bytes", "Bytes of segments here.", "topic"), sizes)
    help_ = "Bytes of records here that may be in the page cache only."
    yield one(gauge("unsynced_bytes", help_), unsynced)
    yield one(gauge("producer_ids", "Idempotent producers that are remembered."), producers)


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
