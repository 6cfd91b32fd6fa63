"""Messages of Kafka's protocol, to bytes. Pure.

The other half of `reading.py`: functions for each version of a message are put together once, for
dicts of the same names. Records are not copied: they stay what they are, and are sent between what
is written around them. A field that is missing has its default. One without a default, a null where
there is none, and a number that has no place, are bugs of ours; but answers have in them what
strangers said, so they are no asserts: a bug costs one connection, and not the node. A message of
many elements is written in steps.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hightide.protocol.codecs import Steps
from hightide_broker.kafka.fields import REQUIRED, STRUCT, Field, in_version
from hightide_broker.kafka.reading import NUMBERS, STRING_BYTES_MAX, Fields, Pausing

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NO_ID = bytes(16)


class Attached(NamedTuple):
    """Records that are not copied into a message: where they are, and how many bytes."""

    part: object
    size: int


class Target(Pausing, bytearray):
    """The bytes of one message so far, and what comes between them."""

    def __init__(self) -> None:
        super().__init__()
        self.attached: list[tuple[int, Attached]] = []
        """What is to be sent before which of the bytes, in order."""

    def varint(self, value: int) -> None:
        """An unsigned number, 7 bits a byte, the low ones first."""
        while value >= 0x80:
            self.append(value & 0x7F | 0x80)
            value >>= 7
        self.append(value)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self) + sum(attached.size for _, attached in self.attached)

    def parts(self) -> list[object]:
        """Everything, in order."""
        found: list[object] = []
        view, start = memoryview(self), 0
        for end, attached in self.attached:
            found += (view[start:end], attached.part)
            start = end
        return [*found, view[start:]]


Write = Callable[[Target, Any], None]
WriteInSteps = Callable[[Target, Any], Steps[None]]
Length = Callable[[Target, int], None]
Put = Callable[[Target, Any, Length], None]
"""Writes something with its length before it."""


Places = list[tuple[str, object, Write, WriteInSteps | None]]
"""Fields that have their places: name, default, and how one is written; in steps, if it is an
array."""
Tags = Callable[[Target, Fields], None]
"""Writes those that are tagged."""


def writer(fields: Sequence[Field], version: int, *, flexible: bool) -> WriteInSteps:
    """Writes the fields of a message or struct, in this version, a few ms at a time."""
    places, tags = _parts(fields, version, flexible)

    def write(out: Target, values: Fields) -> Steps[None]:
        for name, default, one, many in places:
            value = values[name] if default is REQUIRED else values.get(name, default)
            if many is not None and value:
                yield from many(out, value)
            else:
                one(out, value)
        tags(out, values)

    return write


def _struct_writer(fields: Sequence[Field], version: int, flexible: bool) -> Write:
    """The same at once."""
    places, tags = _parts(fields, version, flexible)

    def write(out: Target, values: Fields) -> None:
        for name, default, one, _ in places:
            one(out, values[name] if default is REQUIRED else values.get(name, default))
        tags(out, values)

    return write


def _parts(fields: Sequence[Field], version: int, flexible: bool) -> tuple[Places, Tags]:
    active = [*in_version(fields, version)]
    places: Places = [
        (
            field.name,
            field.default,
            _of_field(field, version, flexible),
            _in_steps(field, version, flexible),
        )
        for field in active
        if field.tag is None
    ]
    tagged = [
        (field.name, field.default, field.tag, _of_field(field, version, flexible))
        for field in sorted(active, key=lambda field: -1 if field.tag is None else field.tag)
        if field.tag is not None
    ]

    def tags(out: Target, values: Fields) -> None:
        if flexible:
            _write_tagged(out, values, tagged)

    return places, tags


def _in_steps(field: Field, version: int, flexible: bool) -> WriteInSteps | None:
    """Writes an array of one element or more, a few hundred at a time; None: it is none."""
    if not field.is_array:
        return None
    length = _length_of(_INT32, flexible)
    if field.kind == STRUCT and any(each.is_array for each in in_version(field.fields, version)):
        slow: WriteInSteps = writer(field.fields, version, flexible=flexible)

        def write_all(out: Target, values: Sequence[Any]) -> Steps[None]:
            length(out, len(values))
            for value in values:
                yield from slow(out, value)
                if out.pauses():
                    yield

        return write_all
    one = _one(field, version, flexible, nullable=False)

    def write_plain(out: Target, values: Sequence[Any]) -> Steps[None]:
        length(out, len(values))
        for value in values:
            one(out, value)
            if out.pauses():
                yield

    return write_plain


def _write_tagged(
    out: Target, values: Fields, tagged: Sequence[tuple[str, object, int, Write]]
) -> None:
    """Those that differ from their default."""
    present = [each for each in tagged if values.get(each[0], each[1]) != each[1]]
    out.varint(len(present))
    for name, _, tag, one in present:
        inner = Target()
        one(inner, values[name])
        assert not inner.attached, "records are never tagged"
        out.varint(tag)
        out.varint(len(inner))
        out += inner


def _of_field(field: Field, version: int, flexible: bool) -> Write:
    nullable = version in field.nullable
    one = _one(field, version, flexible, nullable and not field.is_array)
    return _array(one, flexible, nullable) if field.is_array else one


def _one(field: Field, version: int, flexible: bool, nullable: bool) -> Write:
    if field.kind == STRUCT:
        write = _struct_writer(field.fields, version, flexible)
        return _nullable_struct(write) if nullable else write
    if field.kind == "uuid":
        return _id
    if field.kind in NUMBERS:
        return _number(struct.Struct(f">{NUMBERS[field.kind]}"))
    length = _length_of(_INT16 if field.kind == "string" else _INT32, flexible)
    puts: dict[str, Put] = {"string": _text, "bytes": _bytes, "records": _records}
    put = puts[field.kind]

    def write_sized(out: Target, value: Any) -> None:
        if value is None:
            if not nullable:
                raise ValueError(f"{field.name} is null")
            length(out, -1)
        else:
            put(out, value, length)

    return write_sized


def _number(kind: struct.Struct) -> Write:
    def write(out: Target, value: Any) -> None:
        out += kind.pack(value)

    return write


def _length_of(old: struct.Struct, flexible: bool) -> Length:
    """Writes a length; below zero is null."""
    if flexible:
        return lambda out, length: out.varint(length + 1)

    def write(out: Target, length: int) -> None:
        out += old.pack(length)

    return write


def _array(one: Write, flexible: bool, nullable: bool) -> Write:
    length = _length_of(_INT32, flexible)

    def write(out: Target, values: Sequence[Any] | None) -> None:
        if values is None and not nullable:
            raise ValueError("an array is null")
        length(out, -1 if values is None else len(values))
        for value in values or ():
            one(out, value)

    return write


def _text(out: Target, value: str, length: Length) -> None:
    """What is too long for a string is cut: a sentence to a user may be."""
    raw = value.encode()
    if len(raw) > STRING_BYTES_MAX:
        raw = raw[:STRING_BYTES_MAX].decode(errors="ignore").encode()
    length(out, len(raw))
    out += raw


def _bytes(out: Target, value: bytes, length: Length) -> None:
    length(out, len(value))
    out += value


def _records(out: Target, value: Attached, length: Length) -> None:
    length(out, value.size)
    if value.size:
        out.attached.append((len(out), value))


def _id(out: Target, value: str) -> None:
    out += urlsafe_b64decode(f"{value}==") if value else _NO_ID


def _nullable_struct(write: Write) -> Write:
    def write_if(out: Target, value: Fields | None) -> None:
        out.append(0xFF if value is None else 1)
        if value is not None:
            write(out, value)

    return write_if
