"""Records that are looked for by their time, inside a batch: in steps of some ms, because a batch
of a few bytes may hold millions. Pure: what is read of a log is read before. Source: KIP-79,
KIP-734.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hightide.protocol.codecs import Steps
from hightide.protocol.columns import decoding_columns, offsets_of, payload_of, timestamps_of
from hightide.protocol.records import BatchHeader
from hightide.protocol.rows import row_spans

Span = Sequence[tuple[int, int]]
"""Offsets and timestamps of some records."""


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


class Dated(NamedTuple):
    """A batch in which a record is looked for; its checksum holds."""

    header: BatchHeader
    data: memoryview


def first_since(
    batch: Dated, timestamp: int, *, start_offset: int
) -> Steps[TimestampOffset | None]:
    """The first record with a timestamp ≥ `timestamp` at or above `start_offset`. Raises
    `CorruptBatch`."""
    for span in _spans(batch):
        for offset, value in span or ():
            if value >= timestamp and offset >= start_offset:
                return TimestampOffset(value, offset, batch.header.leader_epoch)
        yield
    return None


def newest_from(batch: Dated, start_offset: int) -> Steps[int]:
    """The largest timestamp of a record at or above `start_offset`; -1 if there is none. Raises
    `CorruptBatch`."""
    newest = -1
    for span in _spans(batch):
        newest = max([newest, *(value for offset, value in span or () if offset >= start_offset)])
        yield
    return newest


def _spans(batch: Dated) -> Iterator[Span | None]:
    """The records, some thousand at a time; None while it inflates."""
    header = batch.header
    payload = yield from payload_of(batch.data, header)
    if not header.has_rows:
        columns = yield from decoding_columns(payload, header.record_count)
        yield [*zip(offsets_of(columns, header), timestamps_of(columns, header), strict=True)]
        return
    rows = bytes(payload) if isinstance(payload, memoryview) else payload
    for span in row_spans(rows, header.record_count):
        offsets = [header.base_offset + delta for delta in span.offset_deltas.tolist()]
        times = [header.base_timestamp + delta for delta in span.timestamp_deltas.tolist()]
        if header.is_log_append_time:
            times = [header.max_timestamp] * len(offsets)
        yield [*zip(offsets, times, strict=True)]
