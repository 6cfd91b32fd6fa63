"""What messages of Kafka's protocol are made of, by version: tables of text, one line a field.

A line is `name type [versions] [?nullable versions] [#tag] [=default]`. Lines that are indented
below one of type `[]` or `{}` are the fields of its structs. Versions are `3+`, `2-7` or `4`; none
stands for all those of the field around it. A field without a default must be given by who encodes
it. Names are Kafka's, in small letters. Pure.

Source: the message definitions of Apache Kafka 4.1 (KIP-482 for tags, KIP-893 for null structs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

STRUCT = "{}"
"""The type of a field with fields of its own."""
ARRAY = "[]"
"""Before the type of what it is an array of; alone, of structs."""
REQUIRED = object()
"""In place of a default."""
VERSION_MAX = 1 << 15

_ZEROS: dict[str, object] = {
    "null": None,
    "true": True,
    "false": False,
    '""': "",
    "[]": [],
    "{}": {},
}


class Versions(NamedTuple):
    """A range of versions, both ends in it."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NEVER = Versions(1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a message or of a struct in it."""

    name: str
    kind: str
    """The type; of an array, that of its elements."""
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    """Its number among the tagged fields; None: it has its place."""
    default: object
    fields: tuple[Field, ...]


class KafkaApi(NamedTuple):
    """One kind of request, as far as it is offered here."""

    key: int
    name: str
    versions: Versions
    first_flexible: int | None
    """From this version on lengths are varints, and fields may be tagged; None: never."""
    request: str
    response: str

    def is_flexible(self, version: int) -> bool:
        """Whether messages of this version have tagged fields."""
        return self.first_flexible is not None and version >= self.first_flexible


def kafka_api(
    key: int,
    name: str,
    first: int,
    last: int,
    *,
    flexible: int | None,
    request: str,
    response: str,
) -> KafkaApi:
    """A row of the tables."""
    return KafkaApi(key, name, Versions(first, last), flexible, request, response)


@cache
def fields_of(table: str) -> tuple[Field, ...]:
    """The fields that a table lists."""
    lines = [line for line in table.splitlines() if line.strip()]
    return _parsed(lines, 0, Versions(0, VERSION_MAX))


def in_version(fields: Sequence[Field], version: int) -> Iterator[Field]:
    """Those that there are in a version."""
    return (field for field in fields if version in field.versions)


def _parsed(lines: Sequence[str], depth: int, around: Versions) -> tuple[Field, ...]:
    starts = [at for at, line in enumerate(lines) if _depth(line) == depth]
    ends = [*starts, len(lines)][1:]
    return tuple(
        _field(lines[start], lines[start + 1 : end], depth, around)
        for start, end in zip(starts, ends, strict=True)
    )


def _field(line: str, below: Sequence[str], depth: int, around: Versions) -> Field:
    name, kind, *rest = line.split()
    versions, nullable, tag, default = around, NEVER, None, REQUIRED
    for word in rest:
        if word.startswith("?"):
            nullable = _versions(word[1:], versions)
        elif word.startswith("#"):
            tag = int(word[1:])
        elif word.startswith("="):
            default = _ZEROS[word[1:]] if word[1:] in _ZEROS else int(word[1:])
        else:
            versions = _versions(word, around)
    assert tag is None or default is not REQUIRED, f"{name} may be left out: it needs a default"
    return Field(
        name=name,
        kind=kind.removeprefix(ARRAY) or STRUCT,
        is_array=kind.startswith(ARRAY),
        versions=versions,
        nullable=nullable,
        tag=tag,
        default=default,
        fields=_parsed(below, depth + 1, versions),
    )


def _depth(line: str) -> int:
    return (len(line) - len(line.lstrip())) // 2


def _versions(word: str, around: Versions) -> Versions:
    if not word:
        return around
    first, _, last = word.rstrip("+").partition("-")
    if word.endswith("+"):
        return Versions(int(first), around.last)
    return Versions(int(first), int(last or first))
