"""Topics that are made, deleted and given more partitions, and leaders that are elected by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.words import counted
from hightide_broker.kafka.asked import Asked, at_once, question, told
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.grouped import by_topic
from hightide_broker.kafka.named import as_asked
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Heard

IDS_FROM = 6
"""The first version of delete_topics that may name topics by their ids (KIP-516)."""
PREFERRED, UNCLEAN = 0, 1
"""Kinds of elections (KIP-460)."""


def create_topics(asked: Asked, _facts: Facts) -> Heard:
    """Make topics, with the cluster's defaults for what is not said."""
    topics: list[m.NewTopic] = []
    refused: list[m.TopicResult] = []
    for topic in asked.fields["topics"]:
        try:
            topics.append(_new(topic))
        except Refused as why:
            refused.append(m.TopicResult(topic=topic["name"], error=why.code, message=why.message))
    request = m.CreateTopicsRequest(topics=topics, validate_only=asked.fields["validate_only"])

    def answer(body: m.CreateTopicsResponse, _parts: Sequence[Attached]) -> Fields:
        results = [*body.topics, *refused]
        return {"throttle_time_ms": _throttled_ms(results), "topics": [*map(_created, results)]}

    def refuse(number: int, message: str) -> Fields:
        return {"topics": [_not_created(topic.topic, number, message) for topic in topics]}

    return question(asked, request, answer, refuse)


def _new(topic: Fields) -> m.NewTopic:
    configs = {
        each["name"]: each["value"] for each in topic["configs"] if each["value"] is not None
    }
    return m.NewTopic(
        topic=topic["name"],
        partitions=topic["num_partitions"],
        replication_factor=topic["replication_factor"],
        configs=configs,
        assignment=_assignment(topic["assignments"]),
    )


def _assignment(assignments: Sequence[Fields]) -> list[list[int]] | None:
    """The replicas of each partition, in their order. Raises `Refused`."""
    if not assignments:
        return None
    by_number = {each["partition_index"]: each["broker_ids"] for each in assignments}
    numbers = [*range(len(assignments))]
    if sorted(by_number) != numbers or not all(by_number.values()):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"an assignment of {counted(len(assignments), 'partition')}, expected each of 0 to "
            f"{len(assignments) - 1} once, with a replica or more",
        )
    return [by_number[number] for number in numbers]


def _created(result: m.TopicResult) -> Fields:
    if result.error is not None:
        return _not_created(result.topic, number_of(result.error), told(result.message))
    return {
        "name": result.topic,
        "topic_id": result.topic_id,
        "error_code": 0,
        "error_message": None,
        "num_partitions": result.partitions,
        "replication_factor": result.replication_factor,
        "configs": [],  # never null where there is no error: Java would not bear it
    }


def _not_created(name: str, number: int, message: str) -> Fields:
    why = {"error_code": number, "error_message": message}
    return {"name": name, "topic_id": "", **why, "configs": []}


def _throttled_ms(results: Sequence[m.TopicResult]) -> int:
    return max((result.throttle_time_ms for result in results), default=0)


def delete_topics(asked: Asked, facts: Facts) -> Heard:
    """Delete topics, by their names or ids."""
    old = asked.fields.get("topic_names", ())
    wanted = [{"name": name, "topic_id": ""} for name in old] or asked.fields.get("topics", ())
    names, name_of = facts.named(wanted)

    def one(result: m.TopicResult) -> Fields:
        return {
            "name": result.topic,
            "topic_id": "",
            "error_code": number_of(result.error),
            "error_message": told(result.message) or None,
        }

    def answer(body: m.DeleteTopicsResponse, _parts: Sequence[Attached]) -> Fields:
        return {
            "throttle_time_ms": _throttled_ms(body.topics),
            "responses": as_asked(wanted, name_of, body.topics, one, _unknown_id),
        }

    def refuse(number: int, message: str) -> Fields:
        why = {"error_code": number, "error_message": message}
        return {"responses": [{**topic, **why} for topic in wanted]}  # an id's name is not told

    ids = {name: topic_id for topic_id, name in name_of.items()}
    request = m.DeleteTopicsRequest(topics=[*dict.fromkeys(names)], ids=ids)
    return question(asked, request, answer, refuse)


def _unknown_id(topic_id: str) -> Fields:
    error = number_of(ErrorCode.UNKNOWN_TOPIC_ID)
    return {"name": None, "topic_id": topic_id, "error_code": error}


def create_partitions(asked: Asked, _facts: Facts) -> Heard:
    """Give topics more partitions, where they are wanted, or where the controller puts them."""
    more: list[m.MorePartitions] = []
    refused: list[Fields] = []

    def result(name: str, number: int, message: str) -> Fields:
        return {"name": name, "error_code": number, "error_message": message or None}

    for topic in asked.fields["topics"]:
        try:
            placed = _placed(topic["assignments"])
        except Refused as why:
            refused.append(result(topic["name"], number_of(why.code), why.message))
        else:
            count = topic["count"]
            more.append(m.MorePartitions(topic=topic["name"], count=count, assignment=placed))

    def answer(body: m.CreatePartitionsResponse, _parts: Sequence[Attached]) -> Fields:
        done = [result(e.topic, number_of(e.error), told(e.message)) for e in body.topics]
        return {"throttle_time_ms": _throttled_ms(body.topics), "results": [*done, *refused]}

    def refuse(number: int, message: str) -> Fields:
        return {"results": [result(each.topic, number, message) for each in more] + refused}

    request = m.CreatePartitionsRequest(topics=more, validate_only=asked.fields["validate_only"])
    return question(asked, request, answer, refuse)


def _placed(assignments: Sequence[Fields] | None) -> list[list[int]] | None:
    """The replicas of each new partition, in their order. Raises `Refused`."""
    if assignments is None:
        return None
    replicas = [each["broker_ids"] for each in assignments]
    if not all(replicas):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"new partition {replicas.index([])} is to have no replica, expected one or more",
        )
    return replicas


def elect_leaders(asked: Asked, _facts: Facts) -> Heard:
    """Elections of some partitions, or of all that need one."""
    kind = asked.fields.get("election_type", PREFERRED)
    wanted = asked.fields["topic_partitions"]
    if kind not in (PREFERRED, UNCLEAN):
        error = number_of(ErrorCode.INVALID_REQUEST)
        return at_once(asked, {"error_code": error, "replica_election_results": []})
    parts = [
        m.PartitionName(topic=topic["topic"], partition=number)
        for topic in wanted or ()
        for number in topic["partitions"]
    ]
    request = m.ElectLeadersRequest(
        unclean=kind == UNCLEAN,
        partitions=None if wanted is None else parts,
        timeout_ms=asked.fields["timeout_ms"],
    )

    def one(result: m.ElectLeadersResult) -> Fields:
        return {
            "partition_id": result.partition,
            "error_code": number_of(result.error),
            "error_message": told(result.message) or None,
        }

    def answer(body: m.ElectLeadersResponse, _parts: Sequence[Attached]) -> Fields:
        found = by_topic(body.partitions, one, name="topic", parts_name="partition_result")
        return {"error_code": 0, "replica_election_results": found}

    def refuse(number: int, message: str) -> Fields:
        def refused(part: m.PartitionName) -> Fields:
            why = {"error_code": number, "error_message": message}
            return {"partition_id": part.partition, **why}

        found = by_topic(parts, refused, name="topic", parts_name="partition_result")
        return {"error_code": number, "replica_election_results": found}

    return question(asked, request, answer, refuse)


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {
    19: create_topics,
    20: delete_topics,
    37: create_partitions,
    43: elect_leaders,
}
