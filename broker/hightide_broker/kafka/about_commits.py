"""Offsets that groups commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hightide.protocol import group_messages as g
from hightide_broker.core.cluster.limits import check_count
from hightide_broker.kafka.asked import (
    Asked,
    asked_each,
    errand,
    question,
)
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.grouped import by_topic
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Ask, Heard

SEVERAL_FROM = 8
"""The first version of offset_fetch that asks for several groups (KIP-709)."""
GROUPS_MAX = 1000
"""Groups whose offsets are asked for in one request."""


def offset_commit(asked: Asked, _facts: Facts) -> Heard:
    """Keep offsets; what is refused as a whole is refused for each partition."""
    fields = asked.fields
    parts = [
        g.CommitPartition(
            topic=topic["name"],
            partition=part["partition_index"],
            offset=part["committed_offset"],
            leader_epoch=part.get("committed_leader_epoch", -1),
            metadata=part["committed_metadata"] or "",
        )
        for topic in fields["topics"]
        for part in topic["partitions"]
    ]
    request = g.OffsetCommitRequest(
        group=fields["group_id"],
        partitions=parts,
        member_id=fields["member_id"],
        generation=fields["generation_id_or_member_epoch"],
        instance_id=fields.get("group_instance_id") or "",
    )

    def answer(body: g.OffsetCommitResponse, _parts: Sequence[Attached]) -> Fields:
        return {"topics": by_topic(body.partitions, _result)}

    return question(asked, request, answer, lambda number, _: _each_refused(parts, number))


def offset_delete(asked: Asked, _facts: Facts) -> Heard:
    """Forget offsets of what nobody in the group reads (KIP-496)."""
    parts = [
        g.GroupPartition(topic=topic["name"], partition=part["partition_index"])
        for topic in asked.fields["topics"]
        for part in topic["partitions"]
    ]
    request = g.OffsetDeleteRequest(group=asked.fields["group_id"], partitions=parts)

    def answer(body: g.OffsetDeleteResponse, _parts: Sequence[Attached]) -> Fields:
        topics = by_topic(body.partitions, _result)
        return {"error_code": 0, "topics": topics}

    return question(asked, request, answer, lambda number, _: {"error_code": number, "topics": []})


def _result(result: g.CommitResult) -> Fields:
    return {"partition_index": result.partition, "error_code": number_of(result.error)}


def _each_refused(parts: Sequence[g.CommitPartition], number: int) -> Fields:
    def one(part: g.CommitPartition) -> Fields:
        return {"partition_index": part.partition, "error_code": number}

    return {"topics": by_topic(parts, one)}


def offset_fetch(asked: Asked, _facts: Facts) -> Heard:
    """What groups have committed, of some partitions or of all."""
    fields = asked.fields
    if asked.version >= SEVERAL_FROM:
        return _of_groups(asked, fields["groups"])
    request = _asking(fields)

    def answer(body: g.OffsetFetchResponse, _parts: Sequence[Attached]) -> Fields:
        return _fetched(body)

    def refuse(number: int, _message: str) -> Fields:
        def one(part: g.GroupPartition) -> Fields:
            return _offset(g.FetchedOffset(topic=part.topic, partition=part.partition), number)

        topics = by_topic(request.partitions or (), one)
        return {"topics": topics, "error_code": number}

    return question(asked, request, answer, refuse)


def _of_groups(asked: Asked, groups: Sequence[Fields]) -> Heard:
    def answer(place: int, body: Any) -> Fields:
        return {"group_id": groups[place]["group_id"], **_fetched(body)}

    def refused(place: int, number: int, _message: str) -> Fields:
        return {"group_id": groups[place]["group_id"], "topics": [], "error_code": number}

    async def run(ask: Ask) -> Fields:
        check_count(len(groups), GROUPS_MAX, "groups")
        return {"groups": await asked_each(ask, [*map(_asking, groups)], refused, answer)}

    def refuse(number: int, message: str) -> Fields:
        return {"groups": [refused(place, number, message) for place in range(len(groups))]}

    return errand(asked, run, refuse)


def _asking(fields: Fields) -> g.OffsetFetchRequest:
    topics = fields["topics"]
    parts = [
        g.GroupPartition(topic=topic["name"], partition=number)
        for topic in topics or ()
        for number in topic["partition_indexes"]
    ]
    return g.OffsetFetchRequest(
        group=fields["group_id"], partitions=None if topics is None else parts
    )


def _fetched(body: g.OffsetFetchResponse) -> Fields:
    def one(found: g.FetchedOffset) -> Fields:
        return _offset(found, number_of(found.error))

    return {
        "topics": by_topic(body.partitions, one),
        "error_code": number_of(body.error),
    }


def _offset(found: g.FetchedOffset, number: int) -> Fields:
    return {
        "partition_index": found.partition,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": number,
    }


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {
    8: offset_commit,
    9: offset_fetch,
    47: offset_delete,
}
