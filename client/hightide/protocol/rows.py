"""The inside of Kafka's batches: records in rows, read into columns and written from them.

Rows are read in spans of some thousand records, so that who must not hold an event loop can pause
between. Where numpy was imported (`make_ready`), a large batch takes a third of the time. Pure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Literal

from hightide.protocol.codecs import Buffer
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.opened import AS_THEY_ARE, Columns, Headers
from hightide.protocol.row_spans import SPAN_RECORDS, RowHeaders, Span, read_span
from hightide.protocol.words import counted

NUMPY_FROM = 200
"""Records from which on numpy is worth its calls."""

_SMALL = 1 << 14
"""Numbers that are written from a table."""


def decode_rows(payload: Buffer, count: int) -> Columns:
    """The columns of `count` records; raises `CorruptBatch` if the rows are not that many, or one
    is not as long as it says."""
    data = bytes(payload)
    headers = RowHeaders()
    spans: list[Span] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    is_dense = True
    done = 0
    for span in row_spans(data, count, headers):
        keys.append(_joined(data, span.key_starts, span.key_lengths))
        values.append(_joined(data, span.value_starts, span.value_lengths))
        is_dense = is_dense and span.offset_deltas.tolist() == [
            *range(done, done + span.record_count)
        ]
        spans.append(span)
        done += span.record_count
    return Columns(
        count,
        None if is_dense else _column([span.offset_deltas for span in spans], "i"),
        _column([span.timestamp_deltas for span in spans], "q"),
        _column([span.key_lengths for span in spans], "i"),
        memoryview(b"".join(keys)),
        _column([span.value_lengths for span in spans], "i"),
        memoryview(b"".join(values)),
        headers.columns(),
    )


def row_spans(
    data: bytes | bytearray, count: int, headers: RowHeaders | None = None
) -> Iterator[Span]:
    """Where the fields of `count` records are, some thousand records at a time; their headers are
    gathered in `headers`, if somebody wants them. Raises `CorruptBatch`."""
    headers = RowHeaders() if headers is None else headers
    fast = _numpy_reader() if count >= NUMPY_FROM else None
    position = done = 0
    while done < count:
        limit = min(SPAN_RECORDS, count - done)
        found = None
        if fast is not None:
            found = fast(data, position, first=done, limit=limit, headers=headers)
        if found is None:
            found = read_span(data, position, first=done, limit=limit, headers=headers)
        span, position = found
        done += span.record_count
        yield span
    if position != len(data):
        more = counted(len(data) - position, "byte follows", "bytes follow")
        raise CorruptBatch(f"{more} the {counted(count, 'record')}")


def _numpy_reader() -> Callable[..., tuple[Span, int] | None] | None:
    """Never imports it: that takes a tenth of a second, which no event loop has."""
    if "numpy" not in sys.modules:
        return None
    from hightide.protocol import row_spans_numpy

    return row_spans_numpy.read_span


def make_ready() -> bool:
    """Import numpy, if it is installed, so that large batches are read faster from now on; whether
    it is there."""
    with suppress(ImportError):
        import numpy  # noqa: F401
    return "numpy" in sys.modules


def _joined(data: bytes, starts: memoryview, lengths: memoryview) -> bytes:
    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    return b"".join([data[start : start + length] for start, length in pairs if length > 0])


def _column(pieces: Sequence[memoryview], kind: Literal["i", "q"]) -> memoryview:
    return memoryview(b"".join(pieces)).cast(kind)


# -- writing -------------------------------------------------------------------------------------


def encode_rows(
    timestamp_deltas: Sequence[int],
    offset_deltas: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Mapping[int, Headers],
) -> bytes:
    """The payload for these records, or a part of it; `headers` maps a record's index to its."""
    rows: list[bytes] = []
    small = _small_numbers()
    columns = zip(timestamp_deltas, offset_deltas, keys, values, strict=True)
    for index, (time, offset, key, value) in enumerate(columns):
        row = b"".join(
            (
                b"\0",
                small[time] if 0 <= time < _SMALL else _varint(time),
                small[offset] if offset < _SMALL else _varint(offset),
                b"\1" if key is None else _blob(key),
                b"\1" if value is None else _blob(value),
                _headers(headers[index]) if index in headers else b"\0",
            )
        )
        rows += (_varint(len(row)), row)
    return b"".join(rows)


@cache
def _small_numbers() -> list[bytes]:
    return [*map(_written, range(_SMALL))]


def _varint(number: int) -> bytes:
    return _small_numbers()[number] if 0 <= number < _SMALL else _written(number)


def _written(number: int) -> bytes:
    raw = number << 1 if number >= 0 else ~(number << 1)
    written = bytearray()
    while raw > 0x7F:
        written.append(raw & 0x7F | 0x80)
        raw >>= 7
    written.append(raw)
    return bytes(written)


def _blob(blob: bytes) -> bytes:
    return _varint(len(blob)) + blob


def _headers(headers: Headers) -> bytes:
    parts = [_varint(len(headers))]
    for name, value in headers:
        parts += (
            _blob(name.encode("utf-8", AS_THEY_ARE)),
            b"\1" if value is None else _blob(value),
        )
    return b"".join(parts)
