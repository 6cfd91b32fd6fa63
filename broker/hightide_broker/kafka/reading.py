"""Requests of Kafka's protocol, from bytes: nothing is made before there is room for it.

Functions for each version of a message are put together once, when the first one of it comes. A
message is a dict by the names of `fields.py`; record batches are slices of the frame, topic ids the
text that hightide has for them. What bytes may cost is bounded three times: a length by the bytes
that are left, elements and text by how many of them a message may have. Whatever is wrong is a
`RemoteProtocolError`, and the connection's end. A message of many elements is read in steps, for
who must not hold its event loop for long. Pure.

Bytes behind the last field are nobody's, and not looked at, as in Kafka.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hightide.protocol.codecs import Steps
from hightide.protocol.errors import RemoteProtocolError
from hightide.protocol.words import counted
from hightide_broker.kafka.fields import STRUCT, Field, in_version

ELEMENTS_MAX = 20_000
"""Elements of arrays, and tagged fields, in one message: 10 000 topics with a partition each."""
ELEMENTS_AT_ONCE = 500
"""Elements that are read, or written, without a pause: a few ms."""
TEXT_BYTES_MAX = 8 << 20
"""Everything in one message that is not numbers or records."""
STRING_BYTES_MAX = (1 << 15) - 1
"""One string (Kafka's own limit)."""
VARINT_BYTES_MAX = 5
_ID_BYTES = 16
NUMBERS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
}
"""Types of a fixed size, with their letters in `struct`."""
Fields = dict[str, Any]


class Pausing:
    """What is read or written element by element, some at a time."""

    _until_pause = ELEMENTS_AT_ONCE

    def pauses(self) -> bool:
        """Another element is done: whether it is the turn of others."""
        self._until_pause -= 1
        if self._until_pause:
            return False
        self._until_pause = ELEMENTS_AT_ONCE
        return True


class Source(Pausing):
    """The bytes of one message, and how far they were read."""

    __slots__ = ("at", "data", "elements_left", "end", "text_left")

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.end = len(data)
        self.elements_left = ELEMENTS_MAX
        self.text_left = TEXT_BYTES_MAX

    def take(self, size: int) -> int:
        """Where the next `size` bytes begin, which are read now."""
        start = self.at
        if size > self.end - start:
            needed = counted(size, "byte is", "bytes are")
            raise RemoteProtocolError(
                f"{needed} needed at byte {start}, {self.end - start} are left"
            )
        self.at = start + size
        return start

    def take_text(self, size: int) -> memoryview:
        """The next `size` bytes, to be copied."""
        start = self.take(size)
        self.text_left -= size
        if self.text_left < 0:
            raise RemoteProtocolError(
                f"more than {TEXT_BYTES_MAX} bytes of text and opaque data in one message"
            )
        return self.data[start : self.at]

    def count(self, elements: int) -> int:
        """There are so many elements here: each has a byte at least."""
        if elements > self.end - self.at:
            raise RemoteProtocolError(
                f"{elements} elements at byte {self.at}, {counted(self.end - self.at, 'byte')} left"
            )
        self.elements_left -= elements
        if self.elements_left < 0:
            raise RemoteProtocolError(f"more than {ELEMENTS_MAX} elements in one message")
        return elements

    def varint(self) -> int:
        """An unsigned number, 7 bits a byte, the low ones first."""
        value: int = self.data[self.take(1)]
        if value < 0x80:
            return value
        value &= 0x7F
        for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
            byte = self.data[self.take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 32:
                    break
                return value
        raise RemoteProtocolError(f"the number before byte {self.at} has more than 32 bits")


Read = Callable[[Source], Any]
ReadInSteps = Callable[[Source], Steps[Any]]
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class _Step(NamedTuple):
    """What is read at once of a message or struct."""

    names: list[str]
    numbers: struct.Struct | None
    """Of numbers that stand side by side; None: it is one field, and something else."""
    one: Read
    many: ReadInSteps | None
    """The same where it may be long: an array; None: it is none."""


def reader(fields: Sequence[Field], version: int, *, flexible: bool) -> ReadInSteps:
    """Reads the fields of a message or struct, in this version, a few ms at a time."""
    steps, tags = _parts(fields, version, flexible)

    def read(source: Source) -> Steps[Fields]:
        found: Fields = {}
        for names, numbers, one, many in steps:
            if numbers is not None:
                at = source.take(numbers.size)
                found.update(zip(names, numbers.unpack_from(source.data, at), strict=True))
            elif many is not None:
                found[names[0]] = yield from many(source)
            else:
                found[names[0]] = one(source)
        tags(source, found)
        return found

    return read


def _struct_reader(fields: Sequence[Field], version: int, flexible: bool) -> Read:
    """The same at once."""
    steps, tags = _parts(fields, version, flexible)

    def read(source: Source) -> Fields:
        found: Fields = {}
        for names, numbers, one, _ in steps:
            if numbers is not None:
                at = source.take(numbers.size)
                found.update(zip(names, numbers.unpack_from(source.data, at), strict=True))
            else:
                found[names[0]] = one(source)
        tags(source, found)
        return found

    return read


def _parts(
    fields: Sequence[Field], version: int, flexible: bool
) -> tuple[list[_Step], Callable[[Source, Fields], None]]:
    """The fields that have their places, and what reads those that are tagged."""
    tagged = {
        field.tag: (field.name, _of_field(field, version, flexible))
        for field in in_version(fields, version)
        if field.tag is not None
    }
    defaults = {
        field.name: field.default for field in in_version(fields, version) if field.tag is not None
    }
    steps = _steps([f for f in in_version(fields, version) if f.tag is None], version, flexible)

    def tags(source: Source, found: Fields) -> None:
        if flexible:
            found.update(defaults)
            _read_tagged(source, tagged, found)

    return steps, tags


def _steps(fields: Sequence[Field], version: int, flexible: bool) -> list[_Step]:
    """Numbers that stand side by side are read at once."""
    steps: list[_Step] = []
    names: list[str] = []
    letters = ""
    for field in [*fields, None]:
        if field is not None and field.kind in NUMBERS and not field.is_array:
            names.append(field.name)
            letters += NUMBERS[field.kind]
            continue
        if names:
            steps.append(_Step(names, struct.Struct(f">{letters}"), _nothing, None))
            names, letters = [], ""
        if field is not None:
            one = _of_field(field, version, flexible)
            steps.append(_Step([field.name], None, one, _in_steps(field, version, flexible)))
    return steps


def _nothing(_: Source) -> None:
    raise AssertionError("numbers are read many at a time")


def _of_field(field: Field, version: int, flexible: bool) -> Read:
    nullable = version in field.nullable
    if not field.is_array:
        return _one(field, version, flexible, nullable)
    if field.kind in NUMBERS:
        several = _several(NUMBERS[field.kind])
    else:
        several = _each(_one(field, version, flexible, nullable=False))
    return _array(field.name, several, flexible, nullable)


def _one(field: Field, version: int, flexible: bool, nullable: bool) -> Read:
    if field.kind == STRUCT:
        read = _struct_reader(field.fields, version, flexible)
        return _nullable_struct(read) if nullable else read
    if field.kind == "uuid":
        return _id
    if field.kind in NUMBERS:  # of a tag; all others stand in a row
        kind = struct.Struct(f">{NUMBERS[field.kind]}")
        return lambda source: kind.unpack_from(source.data, source.take(kind.size))[0]
    length = _length_of(_INT16 if field.kind == "string" else _INT32, flexible)
    take = {"string": _text, "bytes": _bytes, "records": _slice}[field.kind]

    def read_sized(source: Source) -> Any:
        size = length(source)
        if size >= 0:
            return take(source, size)
        if not nullable:
            raise RemoteProtocolError(f"{field.name} before byte {source.at} is null")
        return None

    return read_sized


def _length_of(old: struct.Struct, flexible: bool) -> Callable[[Source], int]:
    """Reads a length; below zero is null."""
    if flexible:
        return lambda source: source.varint() - 1
    return lambda source: int(old.unpack_from(source.data, source.take(old.size))[0])


ReadSeveral = Callable[[Source, int], list[Any]]


def _each(one: Read) -> ReadSeveral:
    return lambda source, count: [one(source) for _ in range(count)]


def _several(letter: str) -> ReadSeveral:
    size = struct.calcsize(f">{letter}")

    def read(source: Source, count: int) -> list[Any]:
        at = source.take(count * size)
        return [*struct.unpack_from(f">{count}{letter}", source.data, at)]

    return read


def _array(name: str, several: ReadSeveral, flexible: bool, nullable: bool) -> Read:
    count_of = _count_of(name, flexible, nullable)

    def read(source: Source) -> list[Any] | None:
        count = count_of(source)
        return None if count is None else several(source, count)

    return read


def _count_of(name: str, flexible: bool, nullable: bool) -> Callable[[Source], int | None]:
    """Reads how many elements there are; None is null."""
    length = _length_of(_INT32, flexible)

    def read(source: Source) -> int | None:
        count = length(source)
        if count >= 0:
            return source.count(count)
        if not nullable:
            raise RemoteProtocolError(f"{name} before byte {source.at} is null")
        return None

    return read


def _in_steps(field: Field, version: int, flexible: bool) -> ReadInSteps | None:
    """Reads an array a few hundred elements at a time; None: it is none, or one of numbers, which
    are read all at once."""
    if not field.is_array or field.kind in NUMBERS:
        return None
    count_of = _count_of(field.name, flexible, version in field.nullable)
    if field.kind == STRUCT and any(each.is_array for each in in_version(field.fields, version)):
        slow: ReadInSteps = reader(field.fields, version, flexible=flexible)

        def read_all(source: Source) -> Steps[list[Any] | None]:
            if (count := count_of(source)) is None:
                return None
            found = []
            for _ in range(count):
                found.append((yield from slow(source)))
                if source.pauses():
                    yield
            return found

        return read_all
    one = _one(field, version, flexible, nullable=False)

    def read_plain(source: Source) -> Steps[list[Any] | None]:
        if (count := count_of(source)) is None:
            return None
        found = []
        for _ in range(count):
            found.append(one(source))
            if source.pauses():
                yield
        return found

    return read_plain


def _text(source: Source, size: int) -> str:
    if size > STRING_BYTES_MAX:
        raise RemoteProtocolError(
            f"a string of {counted(size, 'byte')}, {STRING_BYTES_MAX} are the most"
        )
    try:
        return str(source.take_text(size), "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"the string before byte {source.at} is no UTF-8") from error


def _bytes(source: Source, size: int) -> bytes:
    return bytes(source.take_text(size))


def _slice(source: Source, size: int) -> memoryview:
    start = source.take(size)
    return source.data[start : source.at]


def _id(source: Source) -> str:
    start = source.take(_ID_BYTES)
    raw = bytes(source.data[start : source.at])
    return urlsafe_b64encode(raw).decode().rstrip("=") if any(raw) else ""


def _nullable_struct(read: Read) -> Read:
    return lambda source: read(source) if source.data[source.take(1)] < 0x80 else None


def _read_tagged(source: Source, known: dict[int, tuple[str, Read]], found: Fields) -> None:
    """Tagged fields; those that nobody here knows are skipped: that is how newer ones talk."""
    last = -1
    for _ in range(source.count(source.varint())):
        tag, size = source.varint(), source.varint()
        if tag <= last:
            raise RemoteProtocolError(f"tag {tag} behind {last} at byte {source.at}")
        last, start = tag, source.take(size)
        if tag not in known:
            continue
        name, read = known[tag]
        end, source.at, source.end = source.end, start, source.at
        found[name] = read(source)
        if source.at != source.end:
            raise RemoteProtocolError(f"{name} ends at byte {source.at}, its tag at {source.end}")
        source.end = end
