"""A batch of columns in the form that Kafka's clients read: its own records, in rows. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from hightide.protocol.codecs import Buffer, Steps, at_once, compressing
from hightide.protocol.columns import (
    check_offsets,
    decoding_columns,
    headers_of,
    keys_of,
    payload_of,
    values_of,
)
from hightide.protocol.opened import AS_THEY_ARE, Columns, SparseHeaders
from hightide.protocol.records import HEADER_BYTES, ROWS_MAGIC, BatchHeader, resealing
from hightide.protocol.row_spans import SPAN_RECORDS
from hightide.protocol.rows import encode_rows

BYTES_AT_ONCE = 1 << 20
"""Bytes of records that are rewritten without a pause, on the average; one record at least."""
HEADER_COSTS = 100
"""Bytes that take as long to be rewritten as one header does."""


def to_rows(batch: Buffer, header: BatchHeader) -> Buffer:
    """The same records at the same offsets, with everything else that the header says; as it is if
    it has rows already.

    The codec stays, the checksum is a new one. Raises `CorruptBatch` if the batch cannot be opened.
    """
    return at_once(converting(batch, header))


def converting(batch: Buffer, header: BatchHeader) -> Steps[Buffer]:
    """The same in steps of some ms, whatever is in it."""
    if header.has_rows:
        return batch
    payload = yield from payload_of(batch, header)
    columns = yield from decoding_columns(payload, header.record_count)
    check_offsets(columns, header)
    yield
    rows = bytearray(HEADER_BYTES)
    for start, span in _spans(columns):
        offsets: Sequence[int] = range(start, start + span.record_count)
        if span.offset_deltas is not None:
            offsets = span.offset_deltas.tolist()
        headers = headers_of(span, errors=AS_THEY_ARE)
        rows += encode_rows(
            span.timestamp_deltas.tolist(),
            offsets,
            keys_of(span),
            values_of(span),
            {index - start: each for index, each in headers.items()} if start else headers,
        )
        yield
    codec = header.codec if header.record_count else "none"
    if codec != "none":
        compressed = yield from compressing(memoryview(rows)[HEADER_BYTES:], codec)
        rows = bytearray(HEADER_BYTES)
        rows += compressed
    yield from resealing(rows, header, codec=codec, magic=ROWS_MAGIC)
    return rows


def _spans(columns: Columns) -> Iterator[tuple[int, Columns]]:
    """So many records at a time as one has time for, each with the number of the first; of the
    header columns those that belong to them, by the numbers that records have in all."""
    count, sparse = columns.record_count, columns.headers
    size = len(columns.keys) + len(columns.values)
    if sparse is not None:
        size += len(sparse.values) + HEADER_COSTS * len(sparse.name_lengths)
    limit = max(1, min(SPAN_RECORDS, BYTES_AT_ONCE * count // (size + 1)))
    cut = _Cut(columns)
    for start in range(0, count, limit):
        yield start, cut.until(min(count, start + limit))


class _Cut:
    """Columns, cut off from their beginning."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._done = self._keys = self._values = 0
        self._records = self._headers = self._names = self._header_values = 0

    def until(self, end: int) -> Columns:
        """Those of the next records, up to this number."""
        columns, start = self._columns, self._done
        key_lengths, value_lengths = (
            columns.key_lengths[start:end],
            columns.value_lengths[start:end],
        )
        keys, values = self._keys, self._values
        self._done = end
        self._keys += _held(key_lengths)
        self._values += _held(value_lengths)
        offsets = columns.offset_deltas
        return Columns(
            end - start,
            None if offsets is None else offsets[start:end],
            columns.timestamp_deltas[start:end],
            key_lengths,
            columns.keys[keys : self._keys],
            value_lengths,
            columns.values[values : self._values],
            self._sparse(end),
        )

    def _sparse(self, end: int) -> SparseHeaders | None:
        """The headers of the next records, up to this one."""
        every = self._columns.headers
        if every is None:
            return None
        records, headers = self._records, self._headers
        names, values = self._names, self._header_values
        self._records = bisect_left(every.indexes, end, records)
        counts = every.header_counts[records : self._records]
        self._headers += sum(counts)
        name_lengths = every.name_lengths[headers : self._headers]
        value_lengths = every.value_lengths[headers : self._headers]
        self._names += _held(name_lengths)
        self._header_values += _held(value_lengths)
        return SparseHeaders(
            every.indexes[records : self._records],
            counts,
            name_lengths,
            every.names[names : self._names],
            value_lengths,
            every.values[values : self._header_values],
        )


def _held(lengths: memoryview) -> int:
    """Bytes of blobs with these lengths."""
    return sum(length for length in lengths if length > 0)
