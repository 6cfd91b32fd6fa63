"""Batches to Arrow, by adding up lengths: no Python per record.

pyarrow and numpy come with the `spark` extra and are imported when the first batch is converted;
they also add up the lengths here, so the columns are opened without the slower sums. The value and
key bytes of an uncompressed batch are not copied: Arrow points into the bytes that came off the
wire. The columns are those of Spark's Kafka source. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from hightide.protocol.columns import Columns, headers_of
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import OFFSET_MAX, TIMESTAMP_MAX, BatchHeader
from hightide.protocol.words import counted

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_INT32_MAX = (1 << 31) - 1


@cache
def schema(*, include_headers: bool = False, include_leader_epoch: bool = False) -> pa.Schema:
    """key, value, topic, partition, offset, timestamp, timestampType [, headers] [,
    leader_epoch]."""
    import pyarrow as pa

    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
    ]
    if include_headers:
        pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        fields.append(pa.field("headers", pa.list_(pair)))
    if include_leader_epoch:
        fields.append(pa.field("leader_epoch", pa.int32(), nullable=False))
    return pa.schema(fields)


def rows_from(
    opened: Sequence[tuple[BatchHeader, Columns]], topic: str, partition: int, *, start: int
) -> pa.RecordBatch:
    """The records of neighbouring batches from offset `start` on; raises `CorruptBatch`. They were
    opened as `join_arrow` wants it."""
    import pyarrow as pa

    if not opened:
        return pa.RecordBatch.from_pylist([], schema=schema())
    return cut(join_arrow(opened, topic, partition), start)


def cut(rows: pa.RecordBatch, start: int, end: int = OFFSET_MAX) -> pa.RecordBatch:
    """Those of the rows of `join_arrow` whose offsets lie in [start, end), without a copy."""
    import numpy as np

    offsets = np.frombuffer(rows.column("offset").buffers()[1], np.int64)
    first, last = np.searchsorted(offsets, [start, end]).tolist()
    return rows.slice(first, last - first)


def join_arrow(
    parts: Sequence[tuple[BatchHeader, Columns]],
    topic: str,
    partition: int,
    *,
    include_headers: bool = False,
    include_leader_epoch: bool = False,
) -> pa.RecordBatch:
    """Every record of several batches of a partition, in order, as one `pyarrow.RecordBatch`.

    The columns come from `open_batch(…, check_sums=False)`; their lengths are added up here. Those
    of a single batch are not copied. Raises `CorruptBatch`.
    """
    import pyarrow as pa

    edges = [0, *accumulate(columns.record_count for _, columns in parts)]
    spans = [slice(begin, end) for begin, end in pairwise(edges)]
    count = edges[-1]
    arrays = [
        _binary([(columns.key_lengths, columns.keys) for _, columns in parts], edges),
        _binary([(columns.value_lengths, columns.values) for _, columns in parts], edges),
        _constant(topic, "string", count),
        _constant(partition, "int32", count),
        _offsets(parts, spans, count),
        _timestamps(parts, spans, count),
        _timestamp_types(parts, count),
    ]
    if include_headers:
        arrays.append(pa.concat_arrays([_headers(columns) for _, columns in parts]))
    if include_leader_epoch:
        epochs = [_constant(h.leader_epoch, "int32", c.record_count) for h, c in parts]
        arrays.append(pa.concat_arrays(epochs))
    wanted = schema(include_headers=include_headers, include_leader_epoch=include_leader_epoch)
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _binary(parts: Sequence[tuple[memoryview, memoryview]], edges: Sequence[int]) -> pa.Array:
    """Lengths and bytes of batches as one binary array; `edges` are the numbers of the rows that
    they begin at. The lengths of each must be those of its bytes."""
    import numpy as np
    import pyarrow as pa

    count = edges[-1]
    sizes = np.concatenate([np.frombuffer(lengths, np.int32) for lengths, _ in parts])
    blob = parts[0][1] if len(parts) == 1 else b"".join([blob for _, blob in parts])
    validity = None
    if (least := int(sizes.min(initial=0))) < 0:
        if least < -1:
            raise CorruptBatch(f"a length is {least}")
        if not blob and int(sizes.max()) < 0:
            return pa.nulls(count, pa.binary())
        validity = pa.py_buffer(np.packbits(sizes >= 0, bitorder="little"))
        sizes = np.maximum(sizes, 0)
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, dtype=np.int32, out=starts[1:])
    _check_sums(starts, edges, [len(blob) for _, blob in parts])
    buffers = [validity, pa.py_buffer(starts), pa.py_buffer(blob)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _check_sums(starts: np.ndarray, edges: Sequence[int], sizes: Sequence[int]) -> None:
    """Raise `CorruptBatch` unless the lengths of each batch, added up, are those of its bytes."""
    if int(starts.min()) < 0:
        raise CorruptBatch("lengths add up to more than 2 GiB")
    sums = starts[edges].tolist()
    for (begin, end), size in zip(pairwise(sums), sizes, strict=True):
        if end - begin != size:
            raise CorruptBatch(
                f"lengths add up to {end - begin}, {counted(size, 'byte is', 'bytes are')} there"
            )


def _numbers(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Numbers as they lie in memory. `pa.array`, `pa.scalar` and `to_numpy` would do, too, but the
    first use of each imports pandas, for half a second, to see whether that is a column of its."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


@lru_cache(maxsize=1024)
def _constant_block(value: str | int, kind: str, count: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if isinstance(value, int):
        return _numbers(np.full(count, value, kind), getattr(pa, kind)())
    text = value.encode()
    if count * len(text) > _INT32_MAX:
        raise CorruptBatch(f"{count} times {value} is more than 2 GiB")
    starts = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(text * count)]
    return pa.Array.from_buffers(getattr(pa, kind)(), count, buffers)


def _constant(value: str | int, kind: str, count: int) -> pa.Array:
    """`count` times the same value, cut from a cached block of a power of two."""
    return _constant_block(value, kind, 1 << max(count - 1, 0).bit_length()).slice(0, count)


def _offsets(
    parts: Sequence[tuple[BatchHeader, Columns]], spans: Sequence[slice], count: int
) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    first = parts[0][0].base_offset
    offsets = np.arange(first, first + count, dtype=np.int64)
    for (header, columns), span in zip(parts, spans, strict=True):
        if columns.offset_deltas is not None:
            offsets[span] = np.frombuffer(columns.offset_deltas, np.int32)
            offsets[span] += header.base_offset
        elif gap := header.base_offset - first - span.start:
            offsets[span] += gap
    return _numbers(offsets, pa.int64())


def _timestamps(
    parts: Sequence[tuple[BatchHeader, Columns]], spans: Sequence[slice], count: int
) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    times = np.empty(count, np.int64)
    for (header, columns), span in zip(parts, spans, strict=True):
        if header.is_log_append_time:
            times[span] = header.max_timestamp
            continue
        wide = columns.timestamp_deltas.itemsize == 8
        times[span] = np.frombuffer(columns.timestamp_deltas, np.int64 if wide else np.int32)
        if columns.record_count:
            _check_range(header.base_timestamp)  # or a sum might turn over
            times[span] += header.base_timestamp
    _check_range(int(times.min(initial=0)))
    _check_range(int(times.max(initial=0)))
    times *= 1000
    return _numbers(times, pa.timestamp("us", tz="UTC"))


def _timestamp_types(parts: Sequence[tuple[BatchHeader, Columns]], count: int) -> pa.Array:
    import pyarrow as pa

    kinds = [1 if header.is_log_append_time else 0 for header, _ in parts]
    if min(kinds) == max(kinds):
        return _constant(kinds[0], "int32", count)
    pairs = zip(kinds, parts, strict=True)
    return pa.concat_arrays([_constant(kind, "int32", c.record_count) for kind, (_, c) in pairs])


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
