"""Records that are read: fetch, as they are stored where that is in rows, and converted where not.

There are no fetch sessions (KIP-227): every request is a full one, and says so. Only consumers
fetch here: who claims to be a replica would acknowledge what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.quorum.leader import METADATA_TOPIC
from hightide_broker.kafka.asked import Asked, at_once, question
from hightide_broker.kafka.converted import converted
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.grouped import by_topic
from hightide_broker.kafka.leaders import endpoints, hinted
from hightide_broker.kafka.numbers import number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Heard

IDS_FROM = 13
"""Topics by their ids (KIP-516)."""
STORAGE_ERROR_FROM = 6
ZSTD_FROM = 10
"""The first version that may bring zstd (KIP-110)."""
ANSWER_BYTES_MAX = 8 << 20
"""The most that one fetch brings, a batch at least: all of it is looked at, if it is in rows."""
NOTHING = Attached(b"", 0)
"""No records, which are never null: librdkafka takes that for damage."""


def fetch(asked: Asked, facts: Facts) -> Heard:
    """Records of some partitions."""
    fields = asked.fields
    replica = fields.get("replica_id", fields.get("replica_state", {}).get("replica_id", -1))
    if fields.get("session_id", 0) and fields.get("session_epoch", -1) > 0:
        return at_once(asked, _failed(number_of(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)))
    parts, elsewhere = _wanted(asked, facts)
    if replica >= 0:
        error = number_of(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return at_once(asked, _every([*parts, *elsewhere], error))
    request = m.FetchRequest(
        max_wait_ms=fields["max_wait_ms"] if fields["min_bytes"] > 0 else 0,
        min_bytes=fields["min_bytes"],
        max_bytes=min(fields["max_bytes"], ANSWER_BYTES_MAX),
        rack=fields.get("rack_id", ""),
        reads_rows=True,
        partitions=parts,
    )
    ids = {part.topic: part.topic_id for part in parts}

    def answer(body: m.FetchResponse, attached: Sequence[Attached]) -> Fields:
        one = partial(_fetched, asked, attached)
        found = by_topic(body.partitions, one, name="topic")
        for topic in found:
            topic["topic_id"] = ids.get(topic["topic"], "")
        return {
            "throttle_time_ms": body.throttle_time_ms,
            "error_code": 0,
            "responses": [*found, *_refused(elsewhere)],
            "node_endpoints": endpoints(facts, body.partitions),
        }

    def refuse(number: int, _message: str) -> Fields:
        return _every([*parts, *elsewhere], number)

    zstd = asked.version >= ZSTD_FROM
    rest = partial(converted, facts.conversions, facts.id_of, zstd=zstd)
    return question(asked, request, answer, refuse, rest=rest)


def _wanted(asked: Asked, facts: Facts) -> tuple[list[m.FetchPartition], list[m.FetchPartition]]:
    """The partitions that are asked for; those that there cannot be, apart."""
    wanted: list[m.FetchPartition] = []
    elsewhere: list[m.FetchPartition] = []
    for topic in asked.fields["topics"]:
        topic_id = topic.get("topic_id", "")
        name = facts.name_of(topic_id) if asked.version >= IDS_FROM else topic["topic"]
        there = wanted if name and name != METADATA_TOPIC else elsewhere
        there += [
            m.FetchPartition(
                topic=name,
                topic_id=topic_id,
                partition=part["partition"],
                fetch_offset=part["fetch_offset"],
                current_leader_epoch=part.get("current_leader_epoch", -1),
                last_fetched_epoch=part.get("last_fetched_epoch", -1),
                max_bytes=part["partition_max_bytes"],
            )
            for part in topic["partitions"]
        ]
    return wanted, elsewhere


def _failed(number: int) -> Fields:
    return {"error_code": number, "responses": []}


def _every(parts: Sequence[m.FetchPartition], number: int) -> Fields:
    """An answer that refuses each of them."""
    return {"error_code": 0, "responses": [_one_refused(part, number) for part in parts]}


def _refused(elsewhere: Sequence[m.FetchPartition]) -> list[Fields]:
    """About topics that there are not."""
    found = []
    for part in elsewhere:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        if part.topic:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found.append(_one_refused(part, number_of(code)))
    return found


def _one_refused(part: m.FetchPartition, number: int) -> Fields:
    result = {
        "partition_index": part.partition,
        "error_code": number,
        "high_watermark": -1,
        "aborted_transactions": None,
        "records": NOTHING,
    }
    return {"topic": part.topic, "topic_id": part.topic_id, "partitions": [result]}


def _fetched(asked: Asked, attached: Sequence[Attached], result: m.FetchResult) -> Fields:
    return {
        "partition_index": result.partition,
        "error_code": _number(asked, result.error),
        "high_watermark": result.high_watermark,
        "last_stable_offset": result.high_watermark,
        "log_start_offset": result.log_start_offset,
        "aborted_transactions": None,
        "preferred_read_replica": result.preferred_read_replica,
        "records": attached[result.records] if result.records >= 0 else NOTHING,
        **_diverging(result.diverging_epoch),
        **hinted(result.current_leader),
    }


def _number(asked: Asked, error: str | None) -> int:
    if error == ErrorCode.KAFKA_STORAGE_ERROR and asked.version < STORAGE_ERROR_FROM:
        return number_of(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return number_of(error)


def _diverging(end: m.EpochEnd | None) -> Fields:
    """Where what was read before begins to differ from what is here (KIP-595)."""
    if end is None:
        return {}
    return {"diverging_epoch": {"epoch": end.epoch, "end_offset": end.end_offset}}


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {1: fetch}
