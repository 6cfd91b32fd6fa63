"""What a producer's batch must be before a leader stores it, so that no stored batch breaks a
reader.

Header, checksum, counts; then size, columns that add up (inside compression too, with a bound on
what it inflates to), and the topic's own rules. What is known to be stored is not held to the
latter: a setting may have changed since, and a producer that is refused would send it again as
something else. The whole batch is refused if one record fails. Pure. Source: Kafka's LogValidator.
"""

from __future__ import annotations

from hightide.protocol.columns import Columns, open_batch
from hightide.protocol.errors import CorruptBatch, ErrorCode, Refused
from hightide.protocol.records import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    TIMESTAMP_MAX,
    BatchHeader,
    check_crc,
    parse_header,
)
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.cluster.topic_keys import (
    MAX_MESSAGE_BYTES,
    SEGMENT_BYTES,
    TIMESTAMP_AFTER_MAX_MS,
    TIMESTAMP_BEFORE_MAX_MS,
)


def check_sent(batch: memoryview) -> BatchHeader:
    """The header of a batch that arrived as a producer sent it; raises `Refused`."""
    try:
        header = parse_header(batch)
        check_crc(batch, header)
        _check_header(header)
    except CorruptBatch as error:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return header


def check_produced(
    batch: memoryview, header: BatchHeader, config: TopicConfig, *, now_ms: int, inflated_max: int
) -> None:
    """Raise `Refused` unless a batch that is not stored yet may be."""
    limit = config[MAX_MESSAGE_BYTES]
    if len(batch) > limit:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {len(batch)} bytes, max.message.bytes is {limit}",
        )
    segment_bytes = config[SEGMENT_BYTES]
    if len(batch) > segment_bytes:
        raise Refused(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"batch of {len(batch)} bytes, segment.bytes is {segment_bytes}",
        )
    try:
        columns = open_batch(batch, header, inflated_max=inflated_max)
    except CorruptBatch as error:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    _check_records(columns, header, config, now_ms)


def _check_header(header: BatchHeader) -> None:
    """What a client's batch must say of itself; the broker assigns offsets and epoch."""
    if header.base_offset != 0:
        _refuse(f"base offset is {header.base_offset}, a producer sends 0")
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        _refuse(f"{header.record_count} records with last offset delta {header.last_offset_delta}")
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


def _check_records(columns: Columns, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    if columns.offset_deltas is not None:
        _refuse("offset deltas are compaction's to write, a producer sends nil")
    if config.is_compacted and -1 in columns.key_lengths.tolist():
        _refuse("a record without a key in a compacted topic")
    deltas = columns.timestamp_deltas.tolist()
    newest = header.base_timestamp + max(deltas)
    if newest != header.max_timestamp:
        _refuse(f"max timestamp is {header.max_timestamp}, the newest record has {newest}")
    if config.append_time:
        return
    oldest = header.base_timestamp + min(deltas)
    before = config[TIMESTAMP_BEFORE_MAX_MS]
    after = config[TIMESTAMP_AFTER_MAX_MS]
    impossible = oldest < 0 or newest > TIMESTAMP_MAX
    if impossible or now_ms - oldest > before or newest - now_ms > after:
        raise Refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamps {oldest}..{newest}, the broker's time is {now_ms} and "
            f"message.timestamp.before.max.ms={before}, message.timestamp.after.max.ms={after}",
        )


def _refuse(why: str) -> None:
    raise Refused(ErrorCode.INVALID_RECORD, why)
