"""Topics and their partitions, as Metadata and DescribeTopicPartitions tell them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hightide.protocol import messages as m
from hightide_broker.kafka.reading import Fields


def topic_told(topic: m.TopicMetadata, number: int, partitions: Sequence[Fields]) -> Fields:
    """A topic, with Kafka's number of its error, and those of its partitions that are told."""
    return {
        "error_code": number,
        "name": topic.topic,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": partitions,
    }


def partition_told(part: m.PartitionMetadata, listed: set[int], number: int) -> Fields:
    """A partition; only brokers that are `listed` beside it lead, or are there."""
    return {
        "error_code": number,
        "partition_index": part.partition,
        "leader_id": part.leader if part.leader in listed else -1,
        "leader_epoch": part.leader_epoch,
        "replica_nodes": part.replicas,
        "isr_nodes": part.isr,
        "eligible_leader_replicas": part.elr,
        "last_known_elr": part.last_known_elr,
        "offline_replicas": [broker for broker in part.replicas if broker not in listed],
    }
