"""What a producer's batch must be before a leader stores it, so that no stored batch breaks a
reader.

In this order: header and checksum (`check_sent`); size (`check_size`); a look inside, within
compression too, with a bound on what it inflates to (`look_inside`, in steps: a mebibyte of Kafka's
small rows takes longer than an event loop may be held); then the topic's own rules (`check_facts`).
What is known to be stored is not held to the latter: a setting may have changed since, and a
producer that is refused would send it again as something else. The whole batch is refused if one
record fails. Pure. Source: Kafka's LogValidator and ProduceRequest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hightide.protocol.codecs import Steps, is_lz4_linked
from hightide.protocol.columns import Columns, open_batch, payload_of
from hightide.protocol.errors import CorruptBatch, ErrorCode, InflatesTooFar, Refused
from hightide.protocol.records import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    ROWS_MAGIC,
    TIMESTAMP_MAX,
    BatchHeader,
    check_crc,
    parse_header,
    stamp_append_time,
    stamp_max_timestamp,
)
from hightide.protocol.row_spans import RowHeaders, Span
from hightide.protocol.rows import row_spans
from hightide_broker.core.cluster.features import ROWS
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.cluster.topic_keys import (
    MAX_MESSAGE_BYTES,
    SEGMENT_BYTES,
    TIMESTAMP_AFTER_MAX_MS,
    TIMESTAMP_BEFORE_MAX_MS,
)

_MAGIC_AT = 16
_KAFKA_CODEC_MAX = 4
STEPS_AT_ONCE = 4
"""So many steps of looking inside may be taken without a pause: some 8 000 records in rows, or four
MiB that are inflated."""


class Facts(NamedTuple):
    """What the records of a batch say; times in ms."""

    header: BatchHeader
    oldest: int
    newest: int
    has_null_key: bool


def check_sent(batch: memoryview) -> BatchHeader:
    """The header of a batch that arrived as a producer sent it; raises `Refused`."""
    try:
        header = parse_header(batch)
        check_crc(batch, header)
    except CorruptBatch as error:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    _check_header(header)
    return header


def check_sent_by_kafka(batch: memoryview) -> BatchHeader:
    """The same of what a Kafka client sent for one partition: exactly one batch, of rows."""
    if not batch:
        _refuse("no batch: there must be one for each partition of a produce request")
    if len(batch) > _MAGIC_AT and batch[_MAGIC_AT] != ROWS_MAGIC:
        _refuse(f"a batch of magic {batch[_MAGIC_AT]}, expected {ROWS_MAGIC}")
    if len(batch) > HEADER_BYTES and 0 < (size := _stated_size(batch)) < len(batch):
        _refuse(
            f"{len(batch) - size} bytes behind the batch: there may be one for each partition of a "
            "produce request"
        )
    return check_sent(batch)


def _stated_size(batch: memoryview) -> int:
    try:
        return parse_header(batch).size
    except CorruptBatch:
        return 0


def check_form(header: BatchHeader, feature_levels: Mapping[str, int]) -> None:
    """Raise `Refused` unless all brokers can read a batch of this form."""
    if header.has_rows and feature_levels.get(ROWS, 0) < 1:
        raise Refused(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            "a batch of Kafka's rows, which some broker of this cluster is too old to read: "
            f"feature {ROWS} has level {feature_levels.get(ROWS, 0)}, expected 1; upgrade all of "
            "them first",
        )


def check_size(size: int, config: TopicConfig) -> None:
    """Raise `Refused` if a batch of so many bytes is too large for the topic."""
    limit = config[MAX_MESSAGE_BYTES]
    if size > limit:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE, f"batch of {size} bytes, max.message.bytes is {limit}"
        )
    segment_bytes = config[SEGMENT_BYTES]
    if size > segment_bytes:
        raise Refused(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"batch of {size} bytes, segment.bytes is {segment_bytes}",
        )


def looking_at(batch: memoryview, *, inflated_max: int) -> Steps[Facts]:
    """Everything that takes long about what a Kafka client sent for one partition, in steps of a
    few ms; raises `Refused`. What depends on the moment is `admit`'s: a batch that is stored
    already is answered as that, whatever was set since."""
    header = check_sent_by_kafka(batch)
    return (yield from look_inside(batch, header, inflated_max=inflated_max))


def admit(
    batch: memoryview,
    header: BatchHeader,
    facts: Facts | None,
    config: TopicConfig,
    *,
    now_ms: int,
    inflated_max: int,
) -> BatchHeader:
    """The header as it is stored of a batch that is not yet; its times are stamped or put right in
    place. `facts` None: nobody has looked inside. Raises `Refused`, and then changed nothing."""
    check_size(len(batch), config)
    facts = facts or look_at_once(batch, header, inflated_max=inflated_max)
    check_facts(facts, config, now_ms=now_ms)
    if config.append_time:
        stamp_append_time(batch, now_ms)
    elif facts.newest != header.max_timestamp:
        stamp_max_timestamp(batch, facts.newest)
    else:
        return header
    return parse_header(batch)


def look_inside(batch: memoryview, header: BatchHeader, *, inflated_max: int) -> Steps[Facts]:
    """What records in rows say, of which each field was checked; raises `Refused`. Each step takes
    a few ms at most."""
    assert header.has_rows, "columns are added up at once"
    try:
        payload = yield from payload_of(batch, header, inflated_max=inflated_max)
        if header.codec == "lz4" and is_lz4_linked(batch[HEADER_BYTES:]):
            _refuse(
                "lz4 blocks that refer to the one before, or to a dictionary, which Kafka's Java "
                "clients refuse"
            )
        rows = bytes(payload) if isinstance(payload, memoryview) else payload
        return (yield from _facts_of_rows(rows, header))
    except InflatesTooFar as error:
        # Who sent it may split it.
        why = f"{error}, as message.inflated.max.bytes says"
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, why) from error
    except CorruptBatch as error:
        raise Refused(ErrorCode.INVALID_RECORD, str(error)) from error


def look_at_once(batch: memoryview, header: BatchHeader, *, inflated_max: int) -> Facts:
    """What records say, without a pause; raises `Refused`, also if rows take more than
    `STEPS_AT_ONCE`."""
    if not header.has_rows:
        try:
            columns = open_batch(batch, header, inflated_max=inflated_max)
        except CorruptBatch as error:
            raise Refused(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        return _facts_of_columns(columns, header)
    steps = look_inside(batch, header, inflated_max=inflated_max)
    try:
        for _ in range(STEPS_AT_ONCE + 1):
            next(steps)
    except StopIteration as done:
        facts: Facts = done.value
        return facts
    steps.close()
    raise Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"{header.record_count} records in rows are too many to be looked at at once: "
        "send smaller batches, or as Kafka's clients do",
    )


def check_facts(facts: Facts, config: TopicConfig, *, now_ms: int) -> None:
    """Raise `Refused` unless records that are not stored yet may be, by the topic's rules."""
    header, oldest, newest = facts.header, facts.oldest, facts.newest
    if config.is_compacted and facts.has_null_key:
        _refuse("a record without a key in a compacted topic")
    # Of rows it is put right, as Kafka does.
    if newest != header.max_timestamp and not header.has_rows:
        _refuse(f"max timestamp is {header.max_timestamp}, the newest record has {newest}")
    if config.append_time:
        return
    before = config[TIMESTAMP_BEFORE_MAX_MS]
    after = config[TIMESTAMP_AFTER_MAX_MS]
    impossible = oldest < 0 or newest > TIMESTAMP_MAX or abs(header.base_timestamp) > TIMESTAMP_MAX
    if impossible or now_ms - oldest > before or newest - now_ms > after:
        raise Refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamps {oldest}..{newest}, the broker's time is {now_ms} and "
            f"message.timestamp.before.max.ms={before}, message.timestamp.after.max.ms={after}",
        )


def _facts_of_columns(columns: Columns, header: BatchHeader) -> Facts:
    if columns.offset_deltas is not None:
        _refuse("offset deltas are compaction's to write, a producer sends nil")
    deltas = columns.timestamp_deltas.tolist()
    return Facts(
        header,
        header.base_timestamp + min(deltas),
        header.base_timestamp + max(deltas),
        -1 in columns.key_lengths.tolist(),
    )


def _facts_of_rows(payload: bytes | bytearray, header: BatchHeader) -> Steps[Facts]:
    done = 0
    oldest = newest = None
    has_null_key = False
    for span in row_spans(payload, header.record_count, RowHeaders()):
        _check_offsets(span, done)
        times = span.timestamp_deltas.tolist()
        oldest = min(times) if oldest is None else min(oldest, *times)
        newest = max(times) if newest is None else max(newest, *times)
        has_null_key = has_null_key or -1 in span.key_lengths.tolist()
        done += span.record_count
        yield
    assert oldest is not None, "a batch without records passed the check of its header"
    assert newest is not None, "the same"
    base = header.base_timestamp
    return Facts(header, base + oldest, base + newest, has_null_key)


def _check_offsets(span: Span, first: int) -> None:
    found = span.offset_deltas.tolist()
    if found != [*range(first, first + len(found))]:
        number, delta = next(pair for pair in enumerate(found, first) if pair[0] != pair[1])
        _refuse(f"record {number} of the batch has offset delta {delta}, a producer counts from 0")


def _check_header(header: BatchHeader) -> None:
    """What a client's batch must say of itself; the broker assigns offsets and epoch."""
    if header.base_offset != 0:
        _refuse(f"base offset is {header.base_offset}, a producer sends 0")
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        _refuse(f"{header.record_count} records with last offset delta {header.last_offset_delta}")
    if header.has_rows:
        _check_attributes_of_rows(header)
    if header.attributes & ~(CODEC_MASK | LOG_APPEND_TIME):
        _refuse(f"attributes 0x{header.attributes & 0xFFFF:04x} are not a producer's to set")
    if header.attributes & LOG_APPEND_TIME:
        _refuse("LogAppendTime is the broker's to set")
    if header.producer_id != NO_PRODUCER_ID and (
        header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0
    ):
        _refuse(
            f"producer {header.producer_id} with epoch {header.producer_epoch} "
            f"and sequence {header.base_sequence}"
        )


def _check_attributes_of_rows(header: BatchHeader) -> None:
    """Where Kafka has a code of its own for what a batch says."""
    if header.attributes & CODEC_MASK > _KAFKA_CODEC_MAX:
        raise Refused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression codec {header.codec}, expected 0 to {_KAFKA_CODEC_MAX}",
        )
    if header.attributes & CONTROL:
        _refuse("a control batch is a broker's to write")
    if header.is_transactional:
        raise Refused(
            ErrorCode.INVALID_TXN_STATE, "a batch of a transaction: this cluster has none"
        )
    if header.is_log_append_time:
        raise Refused(ErrorCode.INVALID_TIMESTAMP, "LogAppendTime is the broker's to set")


def _refuse(why: str) -> None:
    raise Refused(ErrorCode.INVALID_RECORD, why)
