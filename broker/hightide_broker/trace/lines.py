"""An event as a line of a file: who told it, when, and what. Pure.

A line is JSON, so that any tool reads it. What is no event of ours, a torn line or one of a newer
version, is left out by the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from hightide_broker.trace.events import AnyEvent, Event

LINE_BYTES_MAX = 64 << 10
"""No event of ours is longer."""
MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its circumstances."""

    ms: Annotated[int, msgspec.Meta(ge=0, le=MS_MAX)]
    """The node's time of day."""
    node: int
    number: int
    """Of the node's events, in the order in which they happened."""
    what: AnyEvent


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    ms: int
    node: int
    number: int
    what: Event


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Told).decode


def line_of(ms: int, node: int, number: int, what: Event) -> bytes:
    """A whole line."""
    return _encode(_Line(ms=ms, node=node, number=number, what=what)) + b"\n"


def read_line(line: bytes) -> Told | None:
    """What a line says; None if it is none of ours."""
    if len(line) > LINE_BYTES_MAX:
        return None
    try:
        return _decode(line)
    except msgspec.MsgspecError:
        return None


def read_lines(lines: Iterable[bytes]) -> Iterator[Told]:
    """What can be read of lines."""
    for line in lines:
        told = read_line(line)
        if told is not None:
            yield told
