"""Batches to Arrow, by adding up lengths: no Python per record.

pyarrow and numpy come with the `spark` extra and are imported when the first batch is converted;
they also add up the lengths here, so the columns are opened without the slower sums. The value and
key bytes of an uncompressed batch are not copied: Arrow points into the bytes that came off the
wire. The columns are those of Spark's Kafka source. Pure.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from hightide.columns import Columns, headers_of, open_batch
from hightide.errors import CorruptBatch
from hightide.records import TIMESTAMP_MAX, BatchHeader, Buffer

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def schema(*, include_headers: bool = False) -> pa.Schema:
    """key, value, topic, partition, offset, timestamp, timestampType [, headers]."""
    import pyarrow as pa

    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        fields.append(pa.field("headers", pa.list_(pair)))
    return pa.schema(fields)


def to_arrow(
    batch: Buffer,
    header: BatchHeader,
    topic: str,
    partition: int,
    *,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """Every record of one batch as a `pyarrow.RecordBatch` of `schema()`; raises `CorruptBatch`."""
    import pyarrow as pa

    columns = open_batch(batch, header, check_sums=False)
    count = columns.record_count
    arrays = [
        _binary(columns.key_lengths, columns.keys, count),
        _binary(columns.value_lengths, columns.values, count),
        _constant(topic, "string", count),
        _constant(partition, "int32", count),
        _offsets(columns, header),
        _timestamps(columns, header),
        _constant(1 if header.is_log_append_time else 0, "int32", count),
    ]
    if include_headers:
        arrays.append(_headers(columns))
    return pa.RecordBatch.from_arrays(arrays, schema=schema(include_headers=include_headers))


def _binary(lengths: memoryview, blob: memoryview, count: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    sizes = np.frombuffer(lengths, np.int32)
    starts = np.zeros(count + 1, np.int32)
    validity = None
    if count and (least := int(sizes.min())) < 0:
        if least < -1:
            raise CorruptBatch(f"a length is {least}")
        validity = pa.py_buffer(np.packbits(sizes >= 0, bitorder="little"))
        sizes = np.maximum(sizes, 0)
    total = int(sizes.sum(dtype=np.int64))
    if total != len(blob):
        raise CorruptBatch(f"lengths add up to {total}, {len(blob)} bytes are there")
    np.cumsum(sizes, out=starts[1:])
    buffers = [validity, pa.py_buffer(starts), pa.py_buffer(blob)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


@lru_cache(maxsize=1024)
def _constant_block(value: str | int, kind: str, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, getattr(pa, kind)()), count)


def _constant(value: str | int, kind: str, count: int) -> pa.Array:
    """`count` times the same value, cut from a cached block of a power of two."""
    return _constant_block(value, kind, 1 << max(count - 1, 0).bit_length()).slice(0, count)


def _offsets(columns: Columns, header: BatchHeader) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if columns.offset_deltas is None:
        return pa.array(np.arange(header.base_offset, header.base_offset + columns.record_count))
    deltas = np.frombuffer(columns.offset_deltas, np.int32)
    return pa.array(deltas.astype(np.int64) + header.base_offset)


def _timestamps(columns: Columns, header: BatchHeader) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if header.is_log_append_time:
        _check_range(header.max_timestamp)
        milliseconds = np.full(columns.record_count, header.max_timestamp, np.int64)
    else:
        wide = columns.timestamp_deltas.itemsize == 8
        deltas = np.frombuffer(columns.timestamp_deltas, np.int64 if wide else np.int32)
        milliseconds = deltas.astype(np.int64) + header.base_timestamp
        if columns.record_count:
            _check_range(header.base_timestamp + int(deltas.min()))
            _check_range(header.base_timestamp + int(deltas.max()))
    microseconds = pa.py_buffer(milliseconds * 1000)
    return pa.Array.from_buffers(
        pa.timestamp("us", tz="UTC"), columns.record_count, [None, microseconds]
    )


def _check_range(milliseconds: int) -> None:
    """Raise `CorruptBatch` for a time that Arrow's microseconds cannot say."""
    if abs(milliseconds) > TIMESTAMP_MAX:
        raise CorruptBatch(f"timestamp {milliseconds} ms does not fit into microseconds")


def _headers(columns: Columns) -> pa.Array:
    import pyarrow as pa

    headers = headers_of(columns)
    if not headers:
        return pa.nulls(columns.record_count, schema(include_headers=True).field("headers").type)
    rows = [
        [{"key": name, "value": value} for name, value in headers[index]]
        if index in headers
        else None
        for index in range(columns.record_count)
    ]
    return pa.array(rows, schema(include_headers=True).field("headers").type)
