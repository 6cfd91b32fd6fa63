"""Rows of an Arrow table as records to be sent, by adding up lengths: no Python per row.

Columns are those of Spark's Kafka sink: `value`, and if they are there `key` (both binary or text),
`topic`, `partition`, `timestamp` and `headers` (a list of structs `key`, `value`). pyarrow and
numpy come with the `spark` extra. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hightide.protocol.batch_builder import HEADER_OVERHEAD, RECORD_OVERHEAD, Batch
from hightide.protocol.columns import pack_columns, pack_headers
from hightide.protocol.errors import UsageError
from hightide.protocol.records import TIMESTAMP_MAX

if TYPE_CHECKING:
    from hightide.protocol.records import Buffer

ROWS_AT_ONCE = 65_536
COLUMNS = ("key", "value", "topic", "partition", "timestamp", "headers")
_I32_MAX = (1 << 31) - 1
WORD_BYTES = 8
USUAL_BYTES_MAX = 128
"""Values from a word to so many bytes are hashed together: CRC-32 takes no more for longer ones."""
HASHED_AT_ONCE = 4096
"""So many values stay in a processor's cache while their words are gone through."""
_ODD = 0x9E37_79B9_7F4A_7C15
_PAIR = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of one topic, or of several: columns of the same length."""

    keys: pa.BinaryArray | None
    values: pa.BinaryArray
    times: np.ndarray
    """int64, ms since 1970."""
    headers: pa.ListArray | None
    is_timed: np.ndarray | None = None
    """Which of them named their time (bool); None: none."""

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, end: int) -> Rows:
        """The rows [start, end), without a copy."""
        size = end - start
        return Rows(
            None if self.keys is None else self.keys.slice(start, size),
            self.values.slice(start, size),
            self.times[start:end],
            None if self.headers is None else self.headers.slice(start, size),
            None if self.is_timed is None else self.is_timed[start:end],
        )

    def take(self, indexes: np.ndarray) -> Rows:
        """These rows, in this order."""
        wanted = pa.array(indexes)
        return Rows(
            None if self.keys is None else self.keys.take(wanted),
            self.values.take(wanted),
            self.times[indexes],
            None if self.headers is None else self.headers.take(wanted),
            None if self.is_timed is None else self.is_timed[indexes],
        )

    def sizes(self) -> np.ndarray:
        """What each row takes of a producer's memory, in bytes, added up: [0, first, both, …]."""
        sizes = np.full(len(self), RECORD_OVERHEAD, np.int64)
        for column in (self.keys, self.values):
            if column is not None:
                sizes += np.maximum(_lengths(column), 0)
        if self.headers is not None:
            sizes += _header_sizes(self.headers)
        return np.concatenate(([0], np.cumsum(sizes)))


def chunks(table: pa.Table | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A table in pieces; raises `UsageError` for columns that nobody knows."""
    unknown = [name for name in table.schema.names if name not in COLUMNS]
    if unknown or "value" not in table.schema.names:
        raise UsageError(f"columns {table.schema.names}, expected value and some of {COLUMNS}")
    whole = table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
    yield from whole.to_batches(max_chunksize=ROWS_AT_ONCE)


def rows_of(chunk: pa.RecordBatch, now_ms: int) -> Rows:
    """The records of a piece; raises `UsageError` for columns of other types."""
    keys = None
    if "key" in chunk.schema.names and chunk.column("key").null_count < len(chunk):
        keys = _binary(chunk, "key")
    headers = None
    if "headers" in chunk.schema.names and chunk.column("headers").null_count < len(chunk):
        headers = _cast(chunk, "headers", pa.list_(_PAIR))
    is_timed = None
    if "timestamp" in chunk.schema.names:
        is_timed = ~_nulls(chunk.column("timestamp"))
    return Rows(keys, _binary(chunk, "value"), _times(chunk, now_ms), headers, is_timed)


def topics_of(chunk: pa.RecordBatch) -> dict[str, np.ndarray]:
    """Topic → the indexes of its rows, by the column `topic`; raises `UsageError` for a null."""
    encoded = _cast(chunk, "topic", pa.string()).dictionary_encode()
    if encoded.null_count:
        raise UsageError("a row names no topic, expected one in the column topic")
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    return {name: np.flatnonzero(codes == number) for number, name in enumerate(names)}


def places_of(
    chunk: pa.RecordBatch,
    rows: Rows,
    count: int,
    choose: Callable[[bytes | None, bytes | None, int], int] | None = None,
    *,
    key_count: int = 0,
) -> np.ndarray:
    """The partition of each row: what it names, or what its key says, or what `choose` says of key,
    value and `count`; -1: any (int64). Keys are shared out over `key_count`, if that is fewer.
    Raises `UsageError`."""
    places = np.full(len(chunk), -1, np.int64)
    if choose is not None:
        keys = repeat(None, len(rows)) if rows.keys is None else rows.keys.to_pylist()
        pairs = zip(keys, rows.values.to_pylist(), strict=True)
        places[:] = [choose(key, value, count) for key, value in pairs]
    elif rows.keys is not None:
        has_key = ~_nulls(rows.keys)
        places[has_key] = partitions_of(rows.keys, key_count or count)[has_key]
    if "partition" in chunk.schema.names:
        named = _cast(chunk, "partition", pa.int64())
        is_named = ~_nulls(named)
        places[is_named] = named.fill_null(0).to_numpy(zero_copy_only=False)[is_named]
        if is_named.any() and places[is_named].min() < 0:
            raise UsageError(f"a row names a partition that is none of 0 to {count - 1}")
    if places.max(initial=-1) >= count or (choose is not None and places.min(initial=0) < 0):
        raise UsageError(f"a row names a partition that is none of 0 to {count - 1}")
    return places


def hashes_of(values: pa.BinaryArray) -> np.ndarray:
    """A number for each value that follows from its bytes, spread evenly (int64, ≥ 0); a null's is
    that of b"". Those of usual lengths are hashed all at once, the others by CRC-32."""
    lengths = np.maximum(_lengths(values), 0).astype(np.int64)
    starts, blob = np.cumsum(lengths) - lengths, memoryview(_blob(values))
    is_usual = (lengths >= WORD_BYTES) & (lengths <= USUAL_BYTES_MAX)
    usual, others = np.flatnonzero(is_usual), np.flatnonzero(~is_usual)
    hashes = np.empty(len(values), np.int64)
    for start in range(0, len(usual), HASHED_AT_ONCE):
        these = usual[start : start + HASHED_AT_ONCE]
        hashes[these] = _hashes_of_words(blob, starts[these], lengths[these])
    ends = (starts + lengths)[others].tolist()
    places = zip(starts[others].tolist(), ends, strict=True)
    hashes[others] = [crc32(blob[start:end]) for start, end in places]
    return hashes


def _hashes_of_words(blob: memoryview, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Each word of a value, mixed by its place, all added up; the last word is that of the last
    bytes, whether they were in the one before it or not."""
    words = _at_each_byte(blob, np.uint64)
    last, factor = lengths - WORD_BYTES, 1
    sums = lengths.astype(np.uint64) + _mixed(words[starts + last], 1)
    shortest, longest = int(last.min()), int(last.max())
    for place in range(0, longest, WORD_BYTES):
        factor = factor * _ODD % (1 << 64)
        have_all = place < shortest
        word = _mixed(words[starts + (place if have_all else np.minimum(place, last))], factor)
        sums += word if have_all else word * (place < last)
    hashes: np.ndarray = (_mixed(_mixed(sums, _ODD), _ODD) >> np.uint64(33)).astype(np.int64)
    return hashes


def _mixed(words: np.ndarray, factor: int) -> np.ndarray:
    """Words, in place, whose high bits tell what all of their bits told: those of a number that
    begins with its largest byte would be lost in products otherwise."""
    words ^= words >> np.uint64(32)
    words *= np.uint64(factor)
    return words


def rows_at(chunk: pa.RecordBatch, indexes: np.ndarray) -> pa.RecordBatch:
    """Some rows of a piece."""
    return chunk.take(pa.array(indexes))


def in_one_order(table: pa.Table) -> pa.Table:
    """The rows sorted by all columns, so that the order they came in does not matter."""
    order = table
    if "headers" in table.schema.names:  # a list has no order in Arrow, what Python shows of it has
        shown = [repr(headers or []) for headers in table.column("headers").to_pylist()]
        order = table.drop_columns("headers").append_column("headers", pa.array(shown, pa.string()))
    return table.take(pc.sort_indices(order, [(name, "ascending") for name in order.schema.names]))


def by_place(places: np.ndarray) -> Iterator[tuple[int, np.ndarray | None]]:
    """Each partition with the indexes of its rows, None for all of them."""
    if not len(places):
        return
    if (places == places[0]).all():
        yield int(places[0]), None
        return
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-2))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield int(places[order[start]]), order[start:end]


# -- keys ----------------------------------------------------------------------------------------


def partitions_of(keys: pa.BinaryArray, count: int) -> np.ndarray:
    """`partition_for_key` of every key at once; of a null it is that of an empty key."""
    lengths = np.maximum(_lengths(keys), 0)
    data = np.frombuffer(_blob(keys), np.uint8)
    starts = np.concatenate(([0], np.cumsum(lengths[:-1]))).astype(np.int64)
    m, h = np.uint32(0x5BD1E995), np.uint32(0x9747B28C) ^ lengths.astype(np.uint32)
    whole, words = lengths // 4, _at_each_byte(data.data, np.uint32)
    for word in range(int(whole.max(initial=0))):
        here = np.flatnonzero(whole > word)
        k = words[starts[here] + 4 * word] * m
        h[here] = h[here] * m ^ (k ^ (k >> np.uint32(24))) * m
    tails = np.flatnonzero(lengths % 4)
    h[tails] = (h[tails] ^ _rests(data, starts[tails] + 4 * whole[tails], lengths[tails] % 4)) * m
    h = (h ^ (h >> np.uint32(13))) * m
    h ^= h >> np.uint32(15)
    places: np.ndarray = (h & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    return places


def _rests(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Little-endian numbers of up to three bytes."""
    found = np.zeros(len(starts), np.uint32)
    for byte in range(3):
        here = sizes > byte
        found[here] |= data[starts[here] + byte].astype(np.uint32) << np.uint32(8 * byte)
    return found


def _at_each_byte(data: Buffer, kind: type[np.unsignedinteger[Any]]) -> np.ndarray:
    """The little-endian number that begins at each byte, without a copy."""
    little = np.dtype(kind).newbyteorder("<")
    return np.ndarray((max(len(data) + 1 - little.itemsize, 0),), little, data, strides=(1,))


# -- batches -------------------------------------------------------------------------------------


class ArrowBatch(Batch):
    """Rows that are sent together; nothing is added to them."""

    __slots__ = ("rows",)

    def __init__(
        self, topic: str, partition: int, created_at: float, order: tuple[int, ...], rows: Rows
    ) -> None:
        super().__init__(topic, partition, created_at, order)
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def timestamp(self, index: int) -> int:
        return int(self.rows.times[index])

    def payload(self) -> tuple[bytes, int, int]:
        times = self.rows.times
        base = int(times[0])
        return _payload(self.rows, base), base, int(times.max())

    def part(self, number: int, start: int, end: int) -> Self:
        return type(self)(
            self.topic,
            self.partition,
            self.created_at,
            (*self.order, number),
            self.rows.slice(start, end),
        )


def _payload(rows: Rows, base: int) -> bytes:
    deltas = rows.times - base
    fits = int(deltas.min()) >= -_I32_MAX and int(deltas.max()) <= _I32_MAX
    no_keys = np.full(len(rows), -1, np.int32)
    return pack_columns(
        None,
        deltas.astype(np.int32 if fits else np.int64).tobytes(),
        (no_keys if rows.keys is None else _lengths(rows.keys)).tobytes(),
        b"" if rows.keys is None else _blob(rows.keys),
        _lengths(rows.values).tobytes(),
        _blob(rows.values),
        None if rows.headers is None else _headers(rows.headers),
    )


def _headers(headers: pa.ListArray) -> bytes | None:
    counts = np.maximum(_lengths(headers), 0)
    indexes = np.flatnonzero(counts).astype(np.int32)
    if not len(indexes):
        return None
    pairs = headers.flatten()
    names, values = pairs.field("key").cast(pa.binary()), pairs.field("value")
    if names.null_count:
        raise UsageError("a header has no name")
    return pack_headers(
        indexes.tobytes(),
        counts[indexes].astype(np.int32).tobytes(),
        _lengths(names).tobytes(),
        _blob(names),
        _lengths(values).tobytes(),
        _blob(values),
    )


# -- columns of Arrow ----------------------------------------------------------------------------


def _cast(chunk: pa.RecordBatch, name: str, kind: pa.DataType) -> Any:
    column = chunk.column(name)
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"column {name} is {column.type}, expected {kind}: {error}") from error


def _binary(chunk: pa.RecordBatch, name: str) -> pa.BinaryArray:
    kind = chunk.column(name).type
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_bytes or is_text or pa.types.is_null(kind) or pa.types.is_fixed_size_binary(kind)):
        raise UsageError(f"column {name} is {kind}, expected binary or string")
    return _cast(chunk, name, pa.binary())


def _times(chunk: pa.RecordBatch, now_ms: int) -> np.ndarray:
    if "timestamp" not in chunk.schema.names:
        return np.full(len(chunk), now_ms, np.int64)
    column = chunk.column("timestamp")
    if pa.types.is_timestamp(column.type):
        # Arrow rounds nothing away unless it is told to.
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    try:
        filled = column.cast(pa.int64()).fill_null(now_ms)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"column timestamp is {column.type}, expected a timestamp") from error
    times: np.ndarray = filled.to_numpy(zero_copy_only=False)
    if len(times) and not 0 <= times.min() <= times.max() <= TIMESTAMP_MAX:
        raise UsageError(f"timestamps {times.min()} to {times.max()}, expected ms since 1970")
    return times


def _nulls(column: pa.Array) -> np.ndarray:
    found: np.ndarray = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _lengths(column: pa.BinaryArray | pa.ListArray) -> np.ndarray:
    """The length of each item, -1 for a null (int32)."""
    starts = np.frombuffer(column.buffers()[1], np.int32)
    lengths: np.ndarray = np.diff(starts[column.offset : column.offset + len(column) + 1])
    if column.null_count:
        lengths[_nulls(column)] = -1
    return lengths


def _blob(column: pa.BinaryArray) -> Buffer:
    """The bytes of all items; a null may have some too, and they are left out."""
    if column.null_count:
        column = column.drop_null()
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return b""
    starts = np.frombuffer(offsets, np.int32)
    first, last = starts[column.offset], starts[column.offset + len(column)]
    return memoryview(data)[first:last]


def _header_sizes(headers: pa.ListArray) -> np.ndarray:
    """What the headers of each row take."""
    counts = np.maximum(_lengths(headers), 0)
    pairs = headers.flatten()
    names = pairs.field("key").cast(pa.binary())
    sizes = np.maximum(_lengths(names), 0) + np.maximum(_lengths(pairs.field("value")), 0)
    ends = np.cumsum(counts)
    sums = np.concatenate(([0], np.cumsum(sizes + HEADER_OVERHEAD, dtype=np.int64)))
    found: np.ndarray = sums[ends] - sums[ends - counts]
    return found
