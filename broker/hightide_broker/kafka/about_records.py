"""Records that are sent: produce, and the ids of who sends (KIP-98)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol.codecs import ROW_CODECS
from hightide.protocol.errors import CorruptBatch, ErrorCode, Refused
from hightide.protocol.records import CODEC_MASK, ROWS_MAGIC, parse_header
from hightide.protocol.words import counted
from hightide_broker.kafka.asked import Asked, at_once, errand, question, told
from hightide_broker.kafka.facts import Facts
from hightide_broker.kafka.grouped import by_topic
from hightide_broker.kafka.leaders import endpoints, hinted
from hightide_broker.kafka.numbers import TRANSACTIONAL_ID_AUTHORIZATION_FAILED, number_of
from hightide_broker.kafka.reading import Fields
from hightide_broker.kafka.writing import Attached
from hightide_broker.runtime.server.tongue import Ask, Heard

ROWS_FROM = 3
"""The first version of produce whose batches are rows of today's form; earlier ones are offered,
because old clients compress only where they are, and refused (KAFKA-18659)."""
ZSTD_FROM = 7
"""The first version of produce that may bring zstd (KIP-110)."""
NO_TRANSACTIONS = "there are no transactions here: leave transactional.id out"
_MAGIC_AT = 16
_ATTRIBUTES_LOW_AT = 22
_PARTS = "partition_responses"
LOADING = number_of(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
NOT_ALLOWED = [
    number_of(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    number_of(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
]


def produce(asked: Asked, facts: Facts) -> Heard:
    """A batch for each of some partitions, stored as it came."""
    fields, acks = asked.fields, asked.fields["acks"]
    parts: list[m.ProducePartition] = []
    batches: list[memoryview] = []
    refused: list[m.ProduceResult] = []
    for topic in fields["topic_data"]:
        for part in topic["partition_data"]:
            records = memoryview(b"") if part["records"] is None else part["records"]
            name, number = topic["name"], part["index"]
            if (why := _why_not(asked, records)) is not None:
                error, message = why
                result = m.ProduceResult(topic=name, partition=number, error=error, message=message)
                refused.append(result)
                continue
            parts.append(m.ProducePartition(topic=name, partition=number, records=len(batches)))
            batches.append(records)
    request = m.ProduceRequest(acks=acks, timeout_ms=fields["timeout_ms"], partitions=parts)
    if refused and acks == 0:
        return _closing(asked, refused[0])

    def answer(body: m.ProduceResponse, _parts: Sequence[Attached]) -> Fields:
        results = [*body.partitions, *refused]
        return {
            "responses": by_topic(results, _produced, parts_name=_PARTS),
            "throttle_time_ms": body.throttle_time_ms,
            "node_endpoints": endpoints(facts, results),
        }

    def refuse(number: int, message: str) -> Fields | None:
        if acks == 0:
            return None
        every: list[m.ProducePartition | m.ProduceResult] = [*parts, *refused]
        told_of = by_topic(
            every, lambda part: _not_stored(part, number, message), parts_name=_PARTS
        )
        return {"responses": told_of}

    # What waits for other replicas keeps nothing of the records.
    short = asked._replace(fields={})
    return question(short, request, answer, refuse, attachments=batches, looks=True)


def _why_not(asked: Asked, records: memoryview) -> tuple[ErrorCode, str] | None:
    """Why a batch is not even looked at."""
    if asked.version < ROWS_FROM:
        why = f"produce version {asked.version}, expected {ROWS_FROM} or more: no older batches"
        return ErrorCode.UNSUPPORTED_VERSION, why
    if asked.fields["transactional_id"] is not None:
        return ErrorCode.INVALID_TXN_STATE, NO_TRANSACTIONS
    is_zstd = (
        len(records) > _ATTRIBUTES_LOW_AT
        and records[_ATTRIBUTES_LOW_AT] & CODEC_MASK == ROW_CODECS["zstd"]
    )
    if is_zstd and asked.version < ZSTD_FROM:
        why = f"zstd in produce version {asked.version}, expected {ZSTD_FROM} or more"
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, why
    if why := why_not_one_batch(records):
        return ErrorCode.INVALID_RECORD, why
    return None


def why_not_one_batch(records: memoryview) -> str:
    """Why what was sent for a partition cannot be exactly one batch, of rows; empty: it may be."""
    if not records:
        return "no batch: there must be one for each partition of a produce request"
    if len(records) > _MAGIC_AT and records[_MAGIC_AT] != ROWS_MAGIC:
        return f"a batch of magic {records[_MAGIC_AT]}, expected {ROWS_MAGIC}"
    behind = len(records) - _stated_size(records)
    if 0 < behind < len(records):
        return (
            f"{counted(behind, 'byte')} behind the batch: there may be one for each partition of a "
            "produce request"
        )
    return ""


def _stated_size(records: memoryview) -> int:
    """By its header; 0: that is none."""
    try:
        return parse_header(records).size
    except CorruptBatch:
        return 0


def _closing(asked: Asked, refused: m.ProduceResult) -> Heard:
    """To acks=0 nothing is answered."""

    async def run(_ask: Ask) -> Fields:
        raise Refused(ErrorCode(refused.error or ""), f"acks=0 and {refused.message}")

    return errand(asked, run)


def _produced(result: m.ProduceResult) -> Fields:
    return {
        "index": result.partition,
        "error_code": number_of(result.error),
        "base_offset": result.base_offset,
        "log_append_time_ms": result.log_append_time_ms,
        "log_start_offset": result.log_start_offset,
        "record_errors": [
            {"batch_index": each.index, "batch_index_error_message": told(each.message)}
            for each in result.record_errors
        ],
        "error_message": told(result.message) or None,
        **hinted(result.current_leader),
    }


def _not_stored(part: m.ProducePartition | m.ProduceResult, number: int, message: str) -> Fields:
    return {
        "index": part.partition,
        "error_code": number,
        "base_offset": -1,
        "record_errors": [],
        "error_message": message,
    }


def init_producer_id(asked: Asked, _facts: Facts) -> Heard:
    """A producer's id."""
    if asked.fields["transactional_id"] is not None:
        return at_once(asked, _no_id(TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS))

    def answer(body: p.InitProducerIdResponse, _parts: Sequence[Attached]) -> Fields:
        return {
            "error_code": 0,
            "producer_id": body.producer_id,
            "producer_epoch": body.producer_epoch,
        }

    return question(asked, p.InitProducerIdRequest(), answer, no_id_yet)


def no_id_yet(number: int, message: str) -> Fields:
    """Whatever keeps a controller from giving ids is waited for: any other number but this one, and
    those that say who may not have any, ends idempotent producers for good (KAFKA-14417)."""
    return _no_id(number if number in NOT_ALLOWED else LOADING, message)


def _no_id(number: int, _message: str) -> Fields:
    return {"error_code": number, "producer_id": -1, "producer_epoch": -1}


TRANSLATORS: dict[int, Callable[[Asked, Facts], Heard]] = {0: produce, 22: init_producer_id}
