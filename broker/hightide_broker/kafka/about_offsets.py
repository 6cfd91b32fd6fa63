"""Offsets of partitions: by time, by leader epoch, and from where on records are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.kafka.asked import Asked, question
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.grouped import by_topic
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Heard

NOT_AVAILABLE_FROM = 5
"""The first version of list_offsets that knows OFFSET_NOT_AVAILABLE (KIP-207)."""


def list_offsets(asked: Asked, _facts: Facts) -> Heard:
    """Where logs begin and end, and which offset a time has."""
    parts = [
        m.ListOffsetsPartition(
            topic=topic["name"],
            partition=part["partition_index"],
            timestamp=part["timestamp"],
            current_leader_epoch=part.get("current_leader_epoch", -1),
        )
        for topic in asked.fields["topics"]
        for part in topic["partitions"]
    ]

    def answer(body: m.ListOffsetsResponse, _parts: Sequence[Attached]) -> Fields:
        listed = partial(_listed, asked)
        return {"topics": by_topic(body.partitions, listed)}

    def refuse(number: int, _message: str) -> Fields:
        def one(part: m.ListOffsetsPartition) -> Fields:
            return {"partition_index": part.partition, "error_code": number}

        return {"topics": by_topic(parts, one)}

    return question(asked, m.ListOffsetsRequest(partitions=parts), answer, refuse)


def _listed(asked: Asked, result: m.ListOffsetsResult) -> Fields:
    error = result.error
    if error == ErrorCode.OFFSET_NOT_AVAILABLE and asked.version < NOT_AVAILABLE_FROM:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    return {
        "partition_index": result.partition,
        "error_code": number_of(error),
        "timestamp": result.timestamp,
        "offset": result.offset,
        "leader_epoch": result.leader_epoch,
    }


def offset_for_leader_epoch(asked: Asked, _facts: Facts) -> Heard:
    """Where a leader epoch ends (KIP-320)."""
    parts = [
        m.EpochPartition(
            topic=topic["topic"],
            partition=part["partition"],
            leader_epoch=part["leader_epoch"],
            current_leader_epoch=part["current_leader_epoch"],
        )
        for topic in asked.fields["topics"]
        for part in topic["partitions"]
    ]

    def one(result: m.EpochResult) -> Fields:
        return {
            "error_code": number_of(result.error),
            "partition": result.partition,
            "leader_epoch": result.leader_epoch,
            "end_offset": result.end_offset,
        }

    def answer(body: m.OffsetForLeaderEpochResponse, _parts: Sequence[Attached]) -> Fields:
        return {"topics": by_topic(body.partitions, one, name="topic")}

    def refuse(number: int, _message: str) -> Fields:
        def refused(part: m.EpochPartition) -> Fields:
            return {"partition": part.partition, "error_code": number}

        return {"topics": by_topic(parts, refused, name="topic")}

    return question(asked, m.OffsetForLeaderEpochRequest(partitions=parts), answer, refuse)


def delete_records(asked: Asked, _facts: Facts) -> Heard:
    """Move log starts up (KIP-107)."""
    parts = [
        m.DeleteRecordsPartition(
            topic=topic["name"], partition=part["partition_index"], offset=part["offset"]
        )
        for topic in asked.fields["topics"]
        for part in topic["partitions"]
    ]

    def one(result: m.DeleteRecordsResult) -> Fields:
        return {
            "partition_index": result.partition,
            "low_watermark": result.low_watermark,
            "error_code": number_of(result.error),
        }

    def answer(body: m.DeleteRecordsResponse, _parts: Sequence[Attached]) -> Fields:
        return {"topics": by_topic(body.partitions, one)}

    def refuse(number: int, _message: str) -> Fields:
        def refused(part: m.DeleteRecordsPartition) -> Fields:
            return {
                "partition_index": part.partition,
                "low_watermark": -1,
                "error_code": number,
            }

        return {"topics": by_topic(parts, refused)}

    request = m.DeleteRecordsRequest(partitions=parts, timeout_ms=asked.fields["timeout_ms"])
    return question(asked, request, answer, refuse)


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {
    2: list_offsets,
    21: delete_records,
    23: offset_for_leader_epoch,
}
