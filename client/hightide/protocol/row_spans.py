"""Kafka's records, one after the other: where each field is, every length checked.

A record is `varint length`, then, as long as that says: `i8 attributes` (0), `varlong timestamp
delta`, `varint offset delta`, `varint key length` and the key, `varint value length` and the value,
`varint header count`, and for each header `varint name length`, the name, `varint value length` and
the value. Varints are zigzag, low group first; a length of -1 is a null. This is the reading in
plain Python, which says what is wrong; `row_spans_numpy.py` reads the same, faster. Pure.

Source: Kafka's DefaultRecord; KIP-82 for headers.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from hightide.protocol.errors import CorruptBatch
from hightide.protocol.opened import SparseHeaders
from hightide.protocol.words import counted

SPAN_RECORDS = 2000
"""Records read in one stretch: one to three ms."""
SPAN_HEADERS = 4000
"""A stretch ends at the record that brings it to so many headers."""
HEADERS_MAX = 10_000
"""Headers of one record; bounds the stretch."""

_SIGNED = [(byte >> 1) ^ -(byte & 1) for byte in range(0x80)]
"""What a varint of one byte says."""
_BITS_OF_INT = 32
_BITS_OF_LONG = 64


class Span(NamedTuple):
    """Some records in a row; their bytes are left where they are."""

    timestamp_deltas: memoryview
    """Items of 8 bytes; those of the others have 4."""
    offset_deltas: memoryview
    key_starts: memoryview
    key_lengths: memoryview
    value_starts: memoryview
    value_lengths: memoryview

    @property
    def record_count(self) -> int:
        """How many they are."""
        return len(self.offset_deltas)


class RowHeaders:
    """The headers of a batch's records, gathered while those are read."""

    def __init__(self) -> None:
        self._indexes, self._counts = array("i"), array("i")
        self._name_lengths, self._names = array("i"), bytearray()
        self._value_lengths, self._values = array("i"), bytearray()

    @property
    def total(self) -> int:
        """How many so far."""
        return len(self._name_lengths)

    def read(
        self, data: bytes | bytearray, position: int, end: int, *, count: int, record: int
    ) -> None:
        """Those of a record, whose bytes end at `end`; raises `CorruptBatch`."""
        if not 0 <= count <= HEADERS_MAX:
            raise CorruptBatch(
                f"record {record} says {counted(count, 'header')}, 0 to {HEADERS_MAX} may be"
            )
        try:
            position = self._gather(data, position, end, count=count, record=record)
        except IndexError as error:
            raise _cut_off(record) from error
        if position != end:
            raise _wrong_length(record, end - position)
        self._indexes.append(record)
        self._counts.append(count)

    def _gather(
        self, data: bytes | bytearray, position: int, end: int, *, count: int, record: int
    ) -> int:
        for _ in range(count):
            name_length, position = varint(data, position)
            name_end = position + name_length
            if name_length < 0 or name_end > end:
                raise CorruptBatch(f"a header name of record {record} has length {name_length}")
            self._names += data[position:name_end]
            value_length, position = varint(data, name_end)
            value_end = position + max(0, value_length)
            if value_length < -1 or value_end > end:
                raise CorruptBatch(f"a header value of record {record} has length {value_length}")
            self._values += data[position:value_end]
            self._name_lengths.append(name_length)
            self._value_lengths.append(value_length)
            position = value_end
        return position

    def columns(self) -> SparseHeaders | None:
        """All of them; None if there are none."""
        if not self._indexes:
            return None
        return SparseHeaders(
            memoryview(self._indexes),
            memoryview(self._counts),
            memoryview(self._name_lengths),
            memoryview(self._names),
            memoryview(self._value_lengths),
            memoryview(self._values),
        )


def read_span(
    data: bytes | bytearray, position: int, *, first: int, limit: int, headers: RowHeaders
) -> tuple[Span, int]:
    """Up to `limit` records from `position`, the first of which has that number in the batch, and
    where they end. Raises `CorruptBatch` if a field is not possible, or a length not met.
    """
    timestamps, offsets = array("q"), array("i")
    key_starts, key_lengths = array("i"), array("i")
    value_starts, value_lengths = array("i"), array("i")
    headers_max = headers.total + SPAN_HEADERS
    record = first
    try:
        while record < first + limit and headers.total < headers_max:
            length, position = varint(data, position)
            end = position + length
            if data[position]:
                raise CorruptBatch(f"record {record} has attributes 0x{data[position]:02x}, not 0")
            delta, position = varint(data, position + 1, _BITS_OF_LONG)
            timestamps.append(delta)
            delta, position = varint(data, position)
            offsets.append(delta)
            length, position = varint(data, position)
            if length < -1:
                raise CorruptBatch(f"the key of record {record} has length {length}")
            key_starts.append(position)
            key_lengths.append(length)
            length, position = varint(data, position + length if length > 0 else position)
            if length < -1:
                raise CorruptBatch(f"the value of record {record} has length {length}")
            value_starts.append(position)
            value_lengths.append(length)
            count, position = varint(data, position + length if length > 0 else position)
            if count:
                headers.read(data, position, end, count=count, record=record)
            elif position != end:
                raise _wrong_length(record, end - position)
            position = end
            record += 1
    except IndexError as error:
        raise _cut_off(record) from error
    columns = (timestamps, offsets, key_starts, key_lengths, value_starts, value_lengths)
    return Span(*(memoryview(column) for column in columns)), position


def varint(data: bytes | bytearray, position: int, bits: int = _BITS_OF_INT) -> tuple[int, int]:
    """A signed number of up to so many bits, and where it ends. Raises `CorruptBatch` if it is
    longer, `IndexError` if it is cut off."""
    byte = data[position]
    if byte < 0x80:
        return _SIGNED[byte], position + 1
    raw, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise CorruptBatch(f"a number at byte {position} has more than {bits} bits")
    if raw >> bits:
        raise CorruptBatch(f"a number at byte {position} has more than {bits} bits")
    return (raw >> 1) ^ -(raw & 1), position + 1


def _cut_off(record: int) -> CorruptBatch:
    return CorruptBatch(f"record {record} is cut off")


def _wrong_length(record: int, rest: int) -> CorruptBatch:
    how = f"{counted(abs(rest), 'byte')} too {'long' if rest > 0 else 'short'}"
    return CorruptBatch(f"the length of record {record} is {how} for its fields")
