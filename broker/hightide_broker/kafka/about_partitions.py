"""Partitions, one by one: a page of them, who wrote to them, and which are on the move."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol.errors import ErrorCode
from hightide_broker.kafka.asked import Asked, at_once, question, told
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.grouped import by_topic
from hightide_broker.kafka.numbers import NONE, number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.topics_told import partition_told, topic_told
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Heard

PAGE_PARTITIONS = 2000
"""The most in one answer, as Kafka's max.request.partition.size.limit."""
NO_COORDINATOR = -1
"""The epoch of a transaction's coordinator, where there are no transactions."""


def describe_topic_partitions(asked: Asked, _facts: Facts) -> Heard:
    """Topics by their names, as many as their partitions have room for, and where the rest begins
    (KIP-966). None named are all."""
    cursor: Fields = asked.fields["cursor"] or {"topic_name": "", "partition_index": 0}
    most = max(1, min(asked.fields["response_partition_limit"], PAGE_PARTITIONS))
    wanted = [topic["name"] for topic in asked.fields["topics"]]
    later = sorted({name for name in wanted if name >= cursor["topic_name"]})
    # Those that there are have a partition or more each: there is no room for others.
    names, next_page = later[:most], later[most:]

    def refuse(number: int, _message: str) -> Fields:
        topics = [m.TopicMetadata(topic=name) for name in names]
        return {"topics": [topic_told(topic, number, ()) for topic in topics], **_rest()}

    if cursor["partition_index"] < 0:
        return at_once(asked, refuse(number_of(ErrorCode.INVALID_REQUEST), ""))

    def answer(body: m.MetadataResponse, _parts: Sequence[Attached]) -> Fields:
        listed = {broker.id for broker in body.brokers}
        left, topics = most, list[Fields]()
        for topic in sorted(body.topics, key=lambda topic: topic.topic):
            if topic.topic < cursor["topic_name"]:
                continue
            is_first = topic.topic == cursor["topic_name"]
            start = cursor["partition_index"] if is_first else 0
            parts = topic.partitions[start:]
            if parts and not left:
                return {"topics": topics, **_rest(topic.topic, start)}
            found = [partition_told(part, listed, NONE) for part in parts[:left]]
            topics.append(topic_told(topic, number_of(topic.error), found))
            if len(found) < len(parts):
                return {"topics": topics, **_rest(topic.topic, start + left)}
            left -= len(found)
        return {"topics": topics, **_rest(*next_page[:1])}

    request = m.MetadataRequest(topics=names if wanted else None)
    return question(asked, request, answer, refuse)


def _rest(topic: str | None = None, partition: int = 0) -> Fields:
    """Where the next page begins; None: there is none."""
    at = None if topic is None else {"topic_name": topic, "partition_index": partition}
    return {"next_cursor": at}


def describe_producers(asked: Asked, _facts: Facts) -> Heard:
    """Idempotent producers that wrote to some partitions, of each one's leader (KIP-664)."""
    parts = [
        p.ProducerQuestion(topic=topic["name"], partition=number)
        for topic in asked.fields["topics"]
        for number in dict.fromkeys(topic["partition_indexes"])
    ]

    def one(state: p.ProducerState) -> Fields:
        return {
            "partition_index": state.partition,
            "error_code": number_of(state.error),
            "error_message": told(state.message) or None,
            "active_producers": [*map(_producer, state.producers)],
        }

    def answer(body: p.DescribeProducersResponse, _parts: Sequence[Attached]) -> Fields:
        return {"topics": by_topic(body.partitions, one)}

    def refuse(number: int, message: str) -> Fields:
        def refused(part: p.ProducerQuestion) -> Fields:
            why = {"error_code": number, "error_message": message}
            return {"partition_index": part.partition, **why, "active_producers": []}

        return {"topics": by_topic(parts, refused)}

    return question(asked, p.DescribeProducersRequest(partitions=parts), answer, refuse)


def _producer(producer: p.KnownProducer) -> Fields:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_timestamp,
        "coordinator_epoch": NO_COORDINATOR,
    }


def list_partition_reassignments(asked: Asked, _facts: Facts) -> Heard:
    """None: replicas stay where they were put (KIP-455)."""
    return at_once(asked, {"error_code": 0, "topics": []})


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {
    46: list_partition_reassignments,
    61: describe_producers,
    75: describe_topic_partitions,
}
