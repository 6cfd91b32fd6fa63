"""Who votes about the metadata, and how far each one is (KIP-595, KIP-836, KIP-853)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode
from hightide_broker.kafka.asked import Asked, question
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Heard

METADATA = ("__cluster_metadata", 0)
"""The only partition that a quorum decides about, by its name and number."""
LISTENER = "CONTROLLER"
"""What Kafka's tools call where voters listen for nodes."""


def describe_quorum(asked: Asked, facts: Facts) -> Heard:
    """The state of the quorum; other partitions have none."""

    def answer(body: q.DescribeQuorumResponse, _parts: Sequence[Attached]) -> Fields:
        now_ms = facts.now_ms()
        told: set[tuple[str, int]] = set()
        topics = []
        for topic in asked.fields["topics"]:
            name = topic["topic_name"]
            numbers = dict.fromkeys(part["partition_index"] for part in topic["partitions"])
            places = [(name, number) for number in numbers if (name, number) not in told]
            told.update(places)
            parts = [_partition(place, body, now_ms) for place in places]
            topics.append({"topic_name": name, "partitions": parts})
        return {"error_code": 0, "topics": topics, "nodes": list(map(_node, body.voters))}

    return question(asked, q.DescribeQuorumRequest(), answer, _refused)


def _refused(number: int, message: str) -> Fields:
    return {"error_code": number, "error_message": message, "topics": [], "nodes": []}


def _partition(place: tuple[str, int], body: q.DescribeQuorumResponse, now_ms: int) -> Fields:
    there = place == METADATA
    state = partial(_replica, now_ms)
    return {
        "partition_index": place[1],
        "error_code": number_of(None if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        "leader_id": body.leader if there else -1,
        "leader_epoch": body.epoch if there else -1,
        "high_watermark": body.high_watermark if there else -1,
        "current_voters": [*map(state, body.voters)] if there else [],
        "observers": [*map(state, body.observers)] if there else [],
    }


def _replica(now_ms: int, replica: q.QuorumReplica) -> Fields:
    return {
        "replica_id": replica.id,
        "replica_directory_id": replica.directory,
        "log_end_offset": replica.log_end_offset,
        "last_fetch_timestamp": _at(now_ms, replica.last_fetch_ms_ago),
        "last_caught_up_timestamp": _at(now_ms, replica.last_caught_up_ms_ago),
    }


def _at(now_ms: int, ago_ms: int) -> int:
    """When something was, -1 if that is not known."""
    return -1 if ago_ms < 0 else now_ms - ago_ms


def _node(voter: q.QuorumReplica) -> Fields:
    """A voter, and where it listens, for who may know that."""
    listener = {"name": LISTENER, "host": voter.host, "port": voter.port}
    return {"node_id": voter.id, "listeners": [listener] if voter.host else []}


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {55: describe_quorum}
