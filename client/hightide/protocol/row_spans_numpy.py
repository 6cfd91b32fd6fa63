"""The same reading as `row_spans.py`, a field of all records at a time.

Only where a record begins is found one after the other. What is not as usual is left to the plain
reading: it knows better, and says what is wrong. Pure.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from hightide.protocol.errors import CorruptBatch
from hightide.protocol.row_spans import SPAN_HEADERS, RowHeaders, Span, varint

if TYPE_CHECKING:
    import numpy as np

_VARINT_BYTES_MAX = 5
_I32_MAX = (1 << 31) - 1


def read_span(
    data: bytes | bytearray, position: int, *, first: int, limit: int, headers: RowHeaders
) -> tuple[Span, int] | None:
    """As there, but None if the plain reading has to look at it."""
    import numpy as np

    found = _bounds(data, position, limit)
    if found is None:
        return None
    starts, ends = (np.frombuffer(column, np.int64) for column in found)
    raw = np.frombuffer(data, np.uint8)
    if raw.take(starts, mode="clip").any():
        return None
    at = starts + 1
    # A position only ever moves on: one that leaves its record, or the payload, misses the end.
    deltas = []
    for _ in range(2):
        numbers = _varints(raw, at)
        if numbers is None:
            return None
        deltas.append(numbers)
    blobs = []
    for _ in range(2):
        lengths = _varints(raw, at)
        if lengths is None or lengths.min() < -1:
            return None
        blobs += [at.astype(np.int32), lengths.astype(np.int32)]
        at += np.maximum(lengths, 0)
    counts = _varints(raw, at)
    if counts is None or counts.min() < 0 or counts.sum() > SPAN_HEADERS:
        return None
    offsets = deltas[1]
    if np.abs(offsets).max() > _I32_MAX or ((at != ends) & (counts == 0)).any():
        return None
    for index in np.flatnonzero(counts).tolist():
        where = int(at[index]), int(ends[index])
        headers.read(data, *where, count=int(counts[index]), record=first + index)
    columns = (deltas[0], offsets.astype(np.int32), *blobs)
    return Span(*(column.data for column in columns)), int(ends[-1])


def _bounds(
    data: bytes | bytearray, position: int, limit: int
) -> tuple[array[int], array[int]] | None:
    """Where each record begins behind its length, and where it ends; None if one is cut off."""
    starts, ends = array("q"), array("q")
    begin, end = starts.append, ends.append
    try:
        for _ in range(limit):
            byte = data[position]
            if byte < 0x80:
                length = byte >> 1 if not byte & 1 else -1
                position += 1
            elif (high := data[position + 1]) < 0x80:
                length = (byte & 0x7F | high << 7) >> 1 if not byte & 1 else -1
                position += 2
            else:
                length, position = varint(data, position)
            if length < 0:
                return None
            begin(position)
            position += length
            end(position)
    except (IndexError, CorruptBatch):
        return None
    return (starts, ends) if position <= len(data) else None


def _varints(raw: np.ndarray, at: np.ndarray) -> np.ndarray | None:
    """The numbers at these positions, which move behind them; None if one is long."""
    import numpy as np

    byte = raw.take(at, mode="clip")
    at += 1
    numbers = (byte & 0x7F).astype(np.int64)
    more = np.flatnonzero(byte >= 0x80)
    size = 1
    while len(more):
        if size == _VARINT_BYTES_MAX:
            return None
        byte = raw.take(at[more], mode="clip")
        numbers[more] |= (byte & 0x7F).astype(np.int64) << 7 * size
        at[more] += 1
        more = more[byte >= 0x80]
        size += 1
    return (numbers >> 1) ^ -(numbers & 1)
