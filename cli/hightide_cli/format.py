"""What `consume -f` prints of a record: kcat's tokens, with rpk's additions.

`%v %k` may have a modifier in braces: `hex`, `base64`, `json` (as `-J` prints it), `msgpack` (what
it says, as JSON), or a number's form like `big32` or `little64`: the bytes are that number. The
tokens that are numbers take `hex` and the same forms: the number becomes those bytes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hightide.protocol.words import counted
from hightide_cli.record_json import encode_bytes

if TYPE_CHECKING:
    from hightide import Record

Piece = Callable[[Any], bytes]
Bounds = Callable[[str, int], tuple[int, int]]
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_FORM = re.compile(r"(big|little)(8|16|32|64)")
_NUMBER_FORMS = [f"{order}{bits}" for order in ("big", "little") for bits in (8, 16, 32, 64)]
_STRFTIME = re.compile(r"strftime\[(.*)\]", re.DOTALL)
_BYTES: dict[str, Callable[[Any], bytes | None]] = {
    "v": lambda record: record.value,
    "s": lambda record: record.value,
    "k": lambda record: record.key,
}
_NUMBERS: dict[str, Callable[[Any], int]] = {
    "S": lambda record: _length(record.value),
    "K": lambda record: _length(record.key),
    "p": lambda record: int(record.partition),
    "o": lambda record: int(record.offset),
    "T": lambda record: int(record.timestamp),
    "e": lambda record: int(record.leader_epoch),
    "x": lambda record: int(record.producer_id),
    "y": lambda record: int(record.producer_epoch),
}
_OTHERS = ("t", "d", "h", "R", "i", "[", "|", "]", "%")


class Formatter:
    """Prints records; raises a usage error for a format that makes no sense. `bounds` tells the log
    start and the high watermark of a partition."""

    def __init__(self, text: str, bounds: Bounds) -> None:
        self._bounds = bounds
        self._count = 0
        self._pieces = self._parsed(text)

    def __call__(self, record: Record) -> bytes:
        self._count += 1
        return b"".join([piece(record) for piece in self._pieces])

    def _parsed(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        plain, at = b"", 0
        while at < len(text):
            if text[at] == "\\" and text[at + 1 : at + 2] in _ESCAPES:
                plain += _ESCAPES[text[at + 1]]
                at += 2
            elif text[at] == "%" and at + 1 < len(text):
                pieces.append(_constant(plain))
                token, modifier, at = _token(text, at + 1)
                pieces.append(self._piece(token, modifier))
                plain = b""
            else:
                plain += text[at].encode(errors="surrogateescape")
                at += 1
        return [*pieces, _constant(plain)]

    def _piece(self, token: str, modifier: str | None) -> Piece:
        if token in _BYTES:
            return _bytes_piece(token, modifier)
        if token in _NUMBERS:
            return _number_piece(token, modifier, _NUMBERS[token])
        if token == "d":
            return _time_piece(modifier)
        if token == "h":
            return _headers_piece(modifier)
        if token in ("[", "|", "]"):
            # Without transactions everything that is committed is stable.
            side = 0 if token == "[" else 1
            number = lambda record: self._bounds(record.topic, record.partition)[side]  # noqa: E731
            return _number_piece(token, modifier, number)
        if token == "i":
            return _number_piece(token, modifier, lambda _: self._count)
        _refuse_modifier(token, modifier)
        if token == "R":
            return _number_piece("R", "big32", lambda record: _length(record.value))
        return _constant(b"%") if token == "%" else lambda record: str(record.topic).encode()


def _token(text: str, at: int) -> tuple[str, str | None, int]:
    """The token at a place, what is in braces behind it, and the place after both."""
    token = text[at]
    if token not in (*_BYTES, *_NUMBERS, *_OTHERS):
        known = " %".join((*_BYTES, *_NUMBERS, *_OTHERS))
        raise click.UsageError(f"format token %{token}, expected one of %{known}")
    at += 1
    if text[at : at + 1] != "{" or token == "%":
        return token, None, at
    depth, end = 0, at
    while end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
        if depth == 0:
            return token, text[at + 1 : end - 1], end
    raise click.UsageError(f"format token %{token}{text[at:]}: a brace is not closed")


def _constant(data: bytes) -> Piece:
    return lambda _: data


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _refuse_modifier(token: str, modifier: str | None, *known: str) -> None:
    if modifier is not None:
        expected = f"expected {', '.join(known)}" if known else "it takes none"
        raise click.UsageError(f"format modifier %{token}{{{modifier}}}, {expected}")


def _bytes_piece(token: str, modifier: str | None) -> Piece:
    find = _BYTES[token]
    show = _shower(token, modifier)
    return lambda record: show(find(record))


def _shower(token: str, modifier: str | None) -> Callable[[bytes | None], bytes]:
    """How bytes are shown; a null is nothing, but `null` in JSON."""
    form = _FORM.fullmatch(modifier or "")
    if modifier is None:
        return lambda data: data or b""
    if modifier == "hex":
        return lambda data: (data or b"").hex().encode()
    if modifier == "base64":
        return lambda data: base64.b64encode(data or b"")
    if modifier == "json":
        return lambda data: json.dumps(encode_bytes(data), ensure_ascii=False).encode()
    if modifier == "msgpack":
        return _unpacked
    if form is None:
        _refuse_modifier(token, modifier, "hex", "base64", "json", "msgpack", *_NUMBER_FORMS)
        raise AssertionError("refused above")
    order, size = form[1], int(form[2]) // 8
    return lambda data: _as_number(data, order, size)


def _unpacked(data: bytes | None) -> bytes:
    if data is None:
        return b"null"
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        return f"<no msgpack: {error}>".encode()


def _as_number(data: bytes | None, order: Any, size: int) -> bytes:
    if data is None:
        return b""
    if len(data) != size:
        return f"<{counted(len(data), 'byte')}, not {size}>".encode()
    return str(int.from_bytes(data, order, signed=True)).encode()


def _number_piece(token: str, modifier: str | None, find: Callable[[Any], int]) -> Piece:
    form = _FORM.fullmatch(modifier or "")
    if modifier is None:
        return lambda record: str(find(record)).encode()
    if modifier == "hex":
        return lambda record: f"{find(record):x}".encode()
    if form is None:
        _refuse_modifier(token, modifier, "hex", *_NUMBER_FORMS)
        raise AssertionError("refused above")
    order: Any = form[1]
    bits = int(form[2])
    # As a C cast does it: what does not fit loses its upper bits.
    return lambda record: (find(record) % (1 << bits)).to_bytes(bits // 8, order)


def _time_piece(modifier: str | None) -> Piece:
    pattern = _STRFTIME.fullmatch(modifier or "")
    if modifier is not None and pattern is None:
        _refuse_modifier("d", modifier, "strftime[…]")
    shape = pattern[1] if pattern else None

    def show(record: Any) -> bytes:
        try:
            time = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            return str(record.timestamp).encode()
        text = time.isoformat(timespec="milliseconds") if shape is None else time.strftime(shape)
        return text.encode()

    return show


def _headers_piece(modifier: str | None) -> Piece:
    if modifier is None:
        return lambda record: b",".join(
            name.encode() + b"=" + (value or b"") for name, value in record.headers
        )
    each = Formatter(modifier, lambda *_: (-1, -1))

    def show(record: Any) -> bytes:
        from hightide import Record

        parts = (Record("", -1, -1, -1, name.encode(), value) for name, value in record.headers)
        return b"".join(map(each, parts))

    return show
