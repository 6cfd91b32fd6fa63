"""The inside of a batch, opened as columns; the payload that stores them, and Python records.

A batch of Kafka's rows is opened by `rows.py`. The payload of all others is one msgpack array,
`[offset_deltas | nil, timestamp_deltas, key_lengths, keys, value_lengths, values, headers | nil]`.
Integer columns are little-endian i32 in a `bin` (timestamps i64 where i32 does not reach); a length
of -1 is a null. `offset_deltas` is nil when they are 0..n-1; compaction writes them.
`headers` is sparse: nil, or `[record_indexes, header_counts, name_lengths, names,
value_lengths, values]` for the records that have any, so that nothing in a batch nests and a small
payload cannot decode into a large one.

Encoding and decoding thousands of records is a handful of C calls; there is no Python per record
here except to make the records a Python caller asked for. Pure. Arrow is `arrow/to_arrow.py`'s.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import accumulate, chain, repeat

import msgspec

from hightide.protocol.bins import bin_header, read_bin
from hightide.protocol.codecs import CODECS, INFLATED_BYTES_MAX, Buffer, Steps, at_once, inflating
from hightide.protocol.errors import CorruptBatch, InflatesTooFar
from hightide.protocol.opened import AS_THEY_ARE as AS_THEY_ARE
from hightide.protocol.opened import Columns as Columns
from hightide.protocol.opened import Headers as Headers
from hightide.protocol.opened import SparseHeaders
from hightide.protocol.records import CODEC_MASK, HEADER_BYTES, BatchHeader, encode_batch
from hightide.protocol.rows import decode_rows

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("hightide's columns are read in place and need a little-endian machine")

_COLUMNS = b"\x97"
HEADER_COLUMNS = b"\x96"
_NIL = b"\xc0"
_I32_MIN, _I32_MAX = -(1 << 31), (1 << 31) - 1


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as a consumer sees it. `timestamp` is in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: int = 0
    """0 = the producer set the timestamp (CreateTime), 1 = the broker did (LogAppendTime)."""
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1


def encode_columns(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Mapping[int, Headers] | None = None,
    *,
    base_timestamp: int,
    offset_deltas: Sequence[int] | None = None,
) -> bytes:
    """The payload for these records. `keys` None: all null; `headers` maps a record's index to
    its."""
    count = len(values)
    assert len(timestamps) == count, f"{len(timestamps)} timestamps for {count} values"
    key_lengths, key_bytes = _blob(keys) if keys is not None else (_nulls(count), b"")
    value_lengths, value_bytes = _blob(values)
    return pack_columns(
        None if offset_deltas is None else array("i", offset_deltas).tobytes(),
        _timestamp_deltas(timestamps, base_timestamp),
        key_lengths,
        key_bytes,
        value_lengths,
        value_bytes,
        encode_headers(headers) if headers else None,
    )


def batch_at(
    time_ms: int,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    *,
    attributes: int = 0,
) -> bytearray:
    """A whole batch of records that are all of one time."""
    payload = encode_columns([time_ms] * len(values), keys, values, base_timestamp=time_ms)
    return encode_batch(
        payload,
        record_count=len(values),
        base_timestamp=time_ms,
        max_timestamp=time_ms,
        attributes=attributes,
    )


def pack_columns(
    offset_deltas: Buffer | None,
    timestamp_deltas: Buffer,
    key_lengths: Buffer,
    keys: Buffer,
    value_lengths: Buffer,
    values: Buffer,
    headers: Buffer | None,
) -> bytes:
    """The payload around columns that are bytes already; `headers` as from `encode_headers`."""
    parts: list[Buffer] = [_COLUMNS]
    if offset_deltas is None:
        parts.append(_NIL)
    else:
        parts += (bin_header(len(offset_deltas)), offset_deltas)
    for column in (timestamp_deltas, key_lengths, keys, value_lengths, values):
        parts += (bin_header(len(column)), column)
    parts.append(_NIL if headers is None else headers)
    return b"".join(parts)


def encode_headers(headers: Mapping[int, Headers]) -> bytes:
    """The header columns; keys of `headers` are record indexes in rising order."""
    indexes = array("i", headers.keys())
    counts = array("i", map(len, headers.values()))
    pairs = list(chain.from_iterable(headers.values()))
    name_lengths, names = _blob([name.encode("utf-8", AS_THEY_ARE) for name, _ in pairs])
    value_lengths, values = _blob([value for _, value in pairs])
    return pack_headers(
        indexes.tobytes(), counts.tobytes(), name_lengths, names, value_lengths, values
    )


def pack_headers(*columns: Buffer) -> bytes:
    """The header columns, as in `SparseHeaders`, as they stand in a payload."""
    return HEADER_COLUMNS + b"".join(chain.from_iterable((bin_header(len(c)), c) for c in columns))


def decode_columns(
    payload: Buffer, count: int, *, check_sums: bool = True, headers_max: int | None = None
) -> Columns:
    """The columns of `count` records, every length and sum checked.

    `check_sums` False leaves key and value lengths for the caller to add up. Raises `CorruptBatch`
    if they do not add up, `InflatesTooFar` for more than `headers_max` headers.
    """
    return at_once(decoding_columns(payload, count, check_sums=check_sums, headers_max=headers_max))


def decoding_columns(
    payload: Buffer, count: int, *, check_sums: bool = True, headers_max: int | None = None
) -> Steps[Columns]:
    """The same in steps."""
    view = memoryview(payload)
    try:
        if view[:1] != _COLUMNS:
            raise ValueError("payload is not an array of 7 columns")
        offset_deltas, position = _read_optional(view, 1)
        timestamps, position = read_bin(view, position)
        key_lengths, position = read_bin(view, position)
        keys, position = read_bin(view, position)
        value_lengths, position = read_bin(view, position)
        values, position = read_bin(view, position)
        headers, position = yield from _reading_headers(view, position, count, headers_max)
        yield
        if position != len(view):
            raise ValueError(f"{len(view) - position} bytes follow the columns")
        if offset_deltas is not None:
            offset_deltas = _integers(offset_deltas, count, "offset_deltas")
        if len(timestamps) not in (4 * count, 8 * count):
            raise ValueError(f"timestamp_deltas has {len(timestamps)} bytes for {count} records")
        wide = count > 0 and len(timestamps) == 8 * count
        return Columns(
            count,
            offset_deltas,
            timestamps.cast("q" if wide else "i"),
            _lengths(key_lengths, count, len(keys), "keys", check_sums),
            keys,
            _lengths(value_lengths, count, len(values), "values", check_sums),
            values,
            headers,
        )
    except ValueError as error:
        raise CorruptBatch(str(error)) from error


def open_batch(
    batch: Buffer,
    header: BatchHeader,
    *,
    check_sums: bool = True,
    inflated_max: int = INFLATED_BYTES_MAX,
) -> Columns:
    """The records of a whole batch whose CRC holds, as columns, be they stored in columns or in
    rows; raises `CorruptBatch`."""
    payload: Buffer = memoryview(batch)[HEADER_BYTES:]
    if header.attributes & CODEC_MASK or len(payload) > inflated_max:
        payload = at_once(payload_of(batch, header, inflated_max=inflated_max))
    if header.has_rows:
        columns = decode_rows(payload, header.record_count)
    else:
        columns = decode_columns(payload, header.record_count, check_sums=check_sums)
    check_offsets(columns, header)
    return columns


def check_offsets(columns: Columns, header: BatchHeader) -> None:
    """Raise `CorruptBatch` unless the records have offsets within their batch, that rise."""
    deltas = columns.offset_deltas
    if deltas is not None and columns.record_count:
        items = deltas.tolist()
        rising = all(map(int.__lt__, items, items[1:]))
        if items[0] < 0 or items[-1] > header.last_offset_delta or not rising:
            raise CorruptBatch(
                f"offsets in the batch at {header.base_offset} do not rise within it"
            )
    elif columns.record_count > header.last_offset_delta + 1:
        raise CorruptBatch(
            f"batch at {header.base_offset} counts {columns.record_count} records "
            f"in {header.last_offset_delta + 1} offsets"
        )


def payload_of(
    batch: Buffer, header: BatchHeader, *, inflated_max: int = INFLATED_BYTES_MAX
) -> Steps[Buffer]:
    """The columns or rows of a batch, inflated in steps; raises `CorruptBatch`."""
    if not header.has_rows and header.codec not in CODECS:
        raise CorruptBatch(f"compression codec {header.codec} is none of {', '.join(CODECS)}")
    compressed = memoryview(batch)[HEADER_BYTES:]
    return (yield from inflating(compressed, header.codec, limit=inflated_max))


def timestamps_of(columns: Columns, header: BatchHeader) -> list[int]:
    """Each record's timestamp in ms."""
    if header.is_log_append_time:
        return [header.max_timestamp] * columns.record_count
    return [header.base_timestamp + delta for delta in columns.timestamp_deltas.tolist()]


def offsets_of(columns: Columns, header: BatchHeader) -> Sequence[int]:
    """Each record's offset."""
    if columns.offset_deltas is None:
        return range(header.base_offset, header.base_offset + columns.record_count)
    return [header.base_offset + delta for delta in columns.offset_deltas.tolist()]


def keys_of(columns: Columns) -> list[bytes | None]:
    """Each record's key."""
    return _values_of(columns.key_lengths, columns.keys)


def values_of(columns: Columns) -> list[bytes | None]:
    """Each record's value."""
    return _values_of(columns.value_lengths, columns.values)


def headers_of(columns: Columns, *, errors: str = "replace") -> dict[int, Headers]:
    """The headers of the records that have any, by index. `errors`: what becomes of names that are
    no UTF-8; `AS_THEY_ARE` for who writes them again."""
    sparse = columns.headers
    if sparse is None:
        return {}
    names = [bytes(name or b"").decode("utf-8", errors) for name in _header_names(sparse)]
    pairs = list(zip(names, _values_of(sparse.value_lengths, sparse.values), strict=True))
    ends = list(accumulate(sparse.header_counts))
    starts = [0, *ends[:-1]]
    return {
        index: tuple(pairs[start:end])
        for index, start, end in zip(sparse.indexes, starts, ends, strict=True)
    }


def to_records(batch: Buffer, header: BatchHeader, topic: str, partition: int) -> list[Record]:
    """Every record of a batch; raises `CorruptBatch`."""
    columns = open_batch(batch, header)
    headers = headers_of(columns)
    every: Iterable[Headers] = repeat(())
    if headers:
        every = [headers.get(index, ()) for index in range(columns.record_count)]
    return list(
        map(
            Record,
            repeat(topic),
            repeat(partition),
            offsets_of(columns, header),
            timestamps_of(columns, header),
            keys_of(columns),
            values_of(columns),
            every,
            repeat(1 if header.is_log_append_time else 0),
            repeat(header.leader_epoch),
            repeat(header.producer_id),
            repeat(header.producer_epoch),
        )
    )


def _blob(items: Sequence[bytes | None]) -> tuple[bytes, bytes]:
    try:
        return array("i", map(len, items)).tobytes(), b"".join(items)  # type: ignore[arg-type]
    except TypeError:
        lengths = array("i", (-1 if item is None else len(item) for item in items))
        return lengths.tobytes(), b"".join([item for item in items if item is not None])


def _nulls(count: int) -> bytes:
    return b"\xff\xff\xff\xff" * count


def _are_nulls(lengths: memoryview) -> bool:
    return lengths.tobytes() == _nulls(len(lengths))


def _timestamp_deltas(timestamps: Sequence[int], base: int) -> bytes:
    if timestamps and min(timestamps) - base >= _I32_MIN and max(timestamps) - base <= _I32_MAX:
        return array("i", map(base.__rsub__, timestamps)).tobytes()
    return array("q", map(base.__rsub__, timestamps)).tobytes()


def _read_optional(view: memoryview, position: int) -> tuple[memoryview | None, int]:
    if view[position : position + 1] == _NIL:
        return None, position + 1
    return read_bin(view, position)


def _integers(column: memoryview, count: int, name: str) -> memoryview:
    if len(column) != 4 * count:
        raise ValueError(f"{name} has {len(column)} bytes for {count} records")
    return column.cast("i")


def _lengths(
    column: memoryview, count: int, size: int, name: str, check_sums: bool = True
) -> memoryview:
    lengths = _integers(column, count, f"{name} lengths")
    if not check_sums or (not size and _are_nulls(lengths)):
        return lengths
    if size <= _I32_MAX and sum(column.cast("I")) == size:  # a negative one counts 2 GiB or more
        return lengths
    items = lengths.tolist()
    nulls = items.count(-1)
    if items and min(items) < -1:
        raise ValueError(f"a length of {name} is {min(items)}")
    if sum(items) + nulls != size:
        raise ValueError(
            f"lengths of {name} add up to {sum(items) + nulls}, {size} bytes are there"
        )
    return lengths


def _reading_headers(
    view: memoryview, position: int, count: int, most: int | None
) -> Steps[tuple[SparseHeaders | None, int]]:
    marker = view[position : position + 1]
    if marker == _NIL:
        return None, position + 1
    if marker != HEADER_COLUMNS:
        raise ValueError("headers are neither nil nor an array of 6 columns")
    columns = []
    position += 1
    for _ in range(6):
        column, position = read_bin(view, position)
        columns.append(column)
    raw_indexes, raw_counts, raw_names, names, raw_values, values = columns
    if most is not None and len(raw_names) > 4 * most:
        raise InflatesTooFar(f"{len(raw_names) // 4} headers in one batch, expected {most} or less")
    if len(raw_indexes) % 4:
        raise ValueError(f"header indexes have {len(raw_indexes)} bytes")
    indexes = raw_indexes.cast("i")
    counts = _integers(raw_counts, len(indexes), "header counts")
    items = indexes.tolist()
    if not items or items[0] < 0 or items[-1] >= count:
        bounds = f"{items[0]}..{items[-1]}" if items else "of no record"
        raise ValueError(f"header indexes {bounds} for {count} records")
    if not all(map(int.__lt__, items, items[1:])):
        raise ValueError("header indexes do not rise")
    if min(counts) < 1:
        raise ValueError("a header count is below 1")
    total = sum(counts)
    if len(raw_names) != 4 * total:
        raise ValueError(f"{len(raw_names) // 4} header names for {total} headers")
    yield
    name_lengths = _lengths(raw_names, total, len(names), "header names")
    yield
    value_lengths = _lengths(raw_values, total, len(values), "header values")
    return SparseHeaders(indexes, counts, name_lengths, names, value_lengths, values), position


def _header_names(sparse: SparseHeaders) -> list[bytes | None]:
    return _values_of(sparse.name_lengths, sparse.names)


def _values_of(lengths: memoryview, blob: memoryview) -> list[bytes | None]:
    """One bytes object for each length, which add up. To read on costs less than to slice."""
    if not blob and _are_nulls(lengths):
        return [None] * len(lengths)
    items, read = lengths.tolist(), BytesIO(blob).read
    if -1 in items:
        return [None if length < 0 else read(length) for length in items]
    return list(map(read, items))
