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

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from hightide.protocol.codecs import Buffer, Steps, at_once, is_lz4_linked, stated_bytes
from hightide.protocol.columns import Columns, decode_columns, payload_of
from hightide.protocol.errors import (
    NO_RECORDS,
    CorruptBatch,
    ErrorCode,
    InflatesTooFar,
    UnknownMagic,
)
from hightide.protocol.records import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    TIMESTAMP_MAX,
    BatchHeader,
    check_crc,
    parse_header,
    stamp_append_time,
    stamp_max_timestamp,
)
from hightide.protocol.row_spans import Span
from hightide.protocol.rows import row_spans
from hightide_broker.core.cluster.features import ROWS
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.cluster.topic_keys import (
    MAX_MESSAGE_BYTES,
    SEGMENT_BYTES,
    TIMESTAMP_AFTER_MAX_MS,
    TIMESTAMP_BEFORE_MAX_MS,
)
from hightide_broker.core.replication.refusals import BatchRefused, Cause

_KAFKA_CODEC_MAX = 4
COLUMNS_RECORDS_MAX = COLUMNS_HEADERS_MAX = 1 << 16
"""Records, and headers, in one batch of columns."""
ROWS_RECORDS_MAX = 1 << 20
"""Records in one batch of rows: a few KiB may hold millions. librdkafka sends a million at most."""
RECORDS_AT_ONCE, INFLATED_AT_ONCE = 20_000, 4 << 20
"""Records and bytes of batches of columns that are looked into without a pause."""
RECORDS_TOLD_MAX = 100
"""So many records without a key are named when their batch is refused."""
STEPS_AT_ONCE = 4
"""So many steps of looking inside may be taken without a pause: some 8 000 records in rows, or four
MiB that are inflated."""


class Facts(NamedTuple):
    """What the records of a batch say; times in ms."""

    header: BatchHeader
    oldest: int
    oldest_at: int
    """The place in the batch of the first record of that time."""
    newest: int
    newest_at: int
    without_key: tuple[int, ...]
    """The places of the first records without one."""


def check_sent(batch: memoryview) -> BatchHeader:
    """The header of a batch that arrived as a producer sent it; raises `BatchRefused`."""
    try:
        header = parse_header(batch)
        check_crc(batch, header)
    except CorruptBatch as error:
        cause: Cause = "magic" if isinstance(error, UnknownMagic) else "crc"
        raise BatchRefused(ErrorCode.CORRUPT_MESSAGE, str(error), cause) from error
    _check_header(header)
    return header


def check_form(header: BatchHeader, feature_levels: Mapping[str, int]) -> None:
    """Raise `BatchRefused` unless all brokers can read a batch of this form."""
    if header.has_rows and feature_levels.get(ROWS, 0) < 1:
        raise BatchRefused(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            "a batch of Kafka's rows, which some broker of this cluster is too old to read: "
            f"feature {ROWS} has level {feature_levels.get(ROWS, 0)}, expected 1; upgrade all of "
            "them first",
            "magic",
        )


def check_size(size: int, config: TopicConfig) -> None:
    """Raise `BatchRefused` if a batch of so many bytes is too large for the topic."""
    limit = config[MAX_MESSAGE_BYTES]
    if size > limit:
        raise BatchRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {size} bytes, max.message.bytes is {limit}",
            "size",
        )
    segment_bytes = config[SEGMENT_BYTES]
    if size > segment_bytes:
        raise BatchRefused(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"batch of {size} bytes, segment.bytes is {segment_bytes}",
            "size",
        )


def takes_long(batches: Sequence[memoryview]) -> bool:
    """Whether to look into all of these without a pause would hold an event loop for more than a
    few ms, by what they say of themselves: to no more are they inflated."""
    records = inflated = 0
    for batch in batches:
        try:
            header = parse_header(batch)
            records += header.record_count
            stated = stated_bytes(batch[HEADER_BYTES:], header.codec)
            inflated += INFLATED_AT_ONCE + 1 if stated < 0 else stated
        except CorruptBatch:
            continue  # it will be refused as soon
    return records > RECORDS_AT_ONCE or inflated > INFLATED_AT_ONCE


def looking_at(
    batch: memoryview,
    config: TopicConfig,
    knows: Callable[[BatchHeader], bool],
    *,
    inflated_max: int,
) -> Steps[Facts]:
    """Everything that takes long about a batch that was sent, in steps of a few ms; raises
    `BatchRefused`. What depends on the moment is `admit`'s: a batch that is stored already is
    answered as that, whatever was set since. Of what is not, no more is looked into than the topic
    takes."""
    header = check_sent(batch)
    try:
        check_size(len(batch), config)
    except BatchRefused:
        if not knows(header):
            raise
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
    place. `facts` None: nobody has looked inside. Raises `BatchRefused`, and then changed
    nothing."""
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
    """What records say, of which each field was checked; raises `BatchRefused`. Each step takes
    a few ms at most."""
    try:
        _check_count(header)
        payload = yield from _inflated(batch, header, inflated_max)
        if header.has_rows:
            return (yield from _look_into_rows(batch, header, payload))
        count, most = header.record_count, COLUMNS_HEADERS_MAX
        return _facts_of_columns(decode_columns(payload, count, headers_max=most), header)
    except InflatesTooFar as error:
        why = f"{error}: split it"
        raise BatchRefused(ErrorCode.MESSAGE_TOO_LARGE, why, "size") from error
    except CorruptBatch as error:
        code = ErrorCode.INVALID_RECORD if header.has_rows else ErrorCode.CORRUPT_MESSAGE
        raise BatchRefused(code, str(error), "record") from error


def _inflated(batch: memoryview, header: BatchHeader, inflated_max: int) -> Steps[Buffer]:
    try:
        return (yield from payload_of(batch, header, inflated_max=inflated_max))
    except InflatesTooFar as error:
        # Who sent it may split it.
        why = f"{error}, as message.inflated.max.bytes says"
        raise BatchRefused(ErrorCode.MESSAGE_TOO_LARGE, why, "size") from error


def _look_into_rows(batch: memoryview, header: BatchHeader, payload: Buffer) -> Steps[Facts]:
    if header.codec == "lz4" and is_lz4_linked(batch[HEADER_BYTES:]):
        _refuse(
            "lz4 blocks that refer to the one before, or to a dictionary, which Kafka's Java "
            "clients refuse"
        )
    rows = bytes(payload) if isinstance(payload, memoryview) else payload
    return (yield from _facts_of_rows(rows, header))


def _check_count(header: BatchHeader) -> None:
    """Every reader opens a batch of columns at once: so that no small one becomes millions; and
    rows are gone through one by one."""
    most = ROWS_RECORDS_MAX if header.has_rows else COLUMNS_RECORDS_MAX
    if header.record_count > most:
        raise BatchRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{header.record_count} records in one batch, expected {most} or less: split it",
            "size",
        )


def at_once_if_short(steps: Steps[Facts]) -> Facts | None:
    """What it comes to without a pause; None if that takes more than `STEPS_AT_ONCE`, and it is
    given up. Raises `BatchRefused`."""
    try:
        for _ in range(STEPS_AT_ONCE + 1):
            next(steps)
    except StopIteration as done:
        facts: Facts = done.value
        return facts
    steps.close()
    return None


def look_at_once(batch: memoryview, header: BatchHeader, *, inflated_max: int) -> Facts:
    """What records say, without a pause; raises `BatchRefused`, also if rows take more than
    `STEPS_AT_ONCE`."""
    steps = look_inside(batch, header, inflated_max=inflated_max)
    facts = at_once_if_short(steps) if header.has_rows else at_once(steps)
    if facts is not None:
        return facts
    raise BatchRefused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"{header.record_count} records in rows are too many to be looked at at once: "
        "send smaller batches, or as Kafka's clients do",
        "size",
    )


def check_facts(facts: Facts, config: TopicConfig, *, now_ms: int) -> None:
    """Raise `BatchRefused` unless records that are not stored yet may be, by the topic's rules."""
    header, oldest, newest = facts.header, facts.oldest, facts.newest
    if config.is_compacted and facts.without_key:
        why = "a record without a key in a compacted topic"
        _refuse(why, records=dict.fromkeys(facts.without_key, why))
    # Of rows it is put right, as Kafka does.
    if newest != header.max_timestamp and not header.has_rows:
        why = f"max timestamp is {header.max_timestamp}, the newest record has {newest}"
        _refuse(why, "timestamp")
    if config.append_time:
        return
    before = config[TIMESTAMP_BEFORE_MAX_MS]
    after = config[TIMESTAMP_AFTER_MAX_MS]
    bounds = (
        f"the broker's time is {now_ms} and message.timestamp.before.max.ms={before}, "
        f"message.timestamp.after.max.ms={after}"
    )
    wrong: dict[int, str] = {}
    if oldest < 0 or now_ms - oldest > before:
        wrong[facts.oldest_at] = f"timestamp {oldest}, {bounds}"
    if newest > TIMESTAMP_MAX or newest - now_ms > after:
        wrong[facts.newest_at] = f"timestamp {newest}, {bounds}"
    if wrong or abs(header.base_timestamp) > TIMESTAMP_MAX:
        why = f"timestamps {oldest}..{newest}, {bounds}"
        raise BatchRefused(ErrorCode.INVALID_TIMESTAMP, why, "timestamp", records=wrong)


def _facts_of_columns(columns: Columns, header: BatchHeader) -> Facts:
    if columns.offset_deltas is not None:
        _refuse("offset deltas are compaction's to write, a producer sends nil")
    deltas = columns.timestamp_deltas.tolist()
    oldest, newest, base = min(deltas), max(deltas), header.base_timestamp
    return Facts(
        header,
        oldest=base + oldest,
        oldest_at=deltas.index(oldest),
        newest=base + newest,
        newest_at=deltas.index(newest),
        without_key=_without_key(columns.key_lengths.tolist(), 0, RECORDS_TOLD_MAX),
    )


def _without_key(lengths: list[int], first: int, most: int) -> tuple[int, ...]:
    """The places of the first few; `first` is that of the first length."""
    if most <= 0 or -1 not in lengths:
        return ()
    places = (place for place, length in enumerate(lengths, first) if length == -1)
    return (*islice(places, most),)


def _facts_of_rows(payload: bytes | bytearray, header: BatchHeader) -> Steps[Facts]:
    done = 0
    oldest = newest = None
    oldest_at = newest_at = 0
    without_key: tuple[int, ...] = ()
    for span in row_spans(payload, header.record_count):
        _check_offsets(span, done)
        times = span.timestamp_deltas.tolist()
        if oldest is None or min(times) < oldest:
            oldest = min(times)
            oldest_at = done + times.index(oldest)
        if newest is None or max(times) > newest:
            newest = max(times)
            newest_at = done + times.index(newest)
        room = RECORDS_TOLD_MAX - len(without_key)
        without_key += _without_key(span.key_lengths.tolist(), done, room)
        done += span.record_count
        yield
    assert oldest is not None, "a batch without records passed the check of its header"
    assert newest is not None, "the same"
    base = header.base_timestamp
    return Facts(header, base + oldest, oldest_at, base + newest, newest_at, without_key)


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
        _refuse("LogAppendTime is the broker's to set", "timestamp")
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
        raise BatchRefused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression codec {header.codec}, expected 0 to {_KAFKA_CODEC_MAX}",
            "record",
        )
    if header.attributes & CONTROL:
        _refuse("a control batch is a broker's to write")
    if header.is_transactional:
        why = "a batch of a transaction: this cluster has none"
        raise BatchRefused(ErrorCode.INVALID_TXN_STATE, why, "record")
    if header.is_log_append_time:
        why = "LogAppendTime is the broker's to set"
        raise BatchRefused(ErrorCode.INVALID_TIMESTAMP, why, "timestamp")


def _refuse(why: str, cause: Cause = "record", records: Mapping[int, str] = NO_RECORDS) -> None:
    raise BatchRefused(ErrorCode.INVALID_RECORD, why, cause, records=records)
