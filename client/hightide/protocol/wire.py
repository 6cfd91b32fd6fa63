"""Frames: a 4-byte big-endian length, a msgpack message, then its attachments, each one a `bin`.

What this room is: bytes to typed messages and back, with every limit checked before memory is
spent. What it is not: it reads no socket (`connection.py` and the broker's server do) and keeps no
state. Pure.

The message is first skipped by the msgpack library, which says where it ends without building
anything, and then decoded straight into its Struct: unknown keys cost nothing, and a message cannot
grow in memory beyond what its type has room for. Record batches travel as attachments and come back
as slices of the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import msgpack
import msgspec

from hightide.protocol.apis import API_BY_REQUEST, Api
from hightide.protocol.bins import bin_header, read_bin
from hightide.protocol.errors import AnotherProtocol, ErrorCode, RemoteProtocolError, UsageError
from hightide.protocol.messages import ErrorBody, Message, RequestEnvelope, ResponseEnvelope
from hightide.protocol.records import Buffer
from hightide.protocol.strangers import speaks
from hightide.protocol.words import counted

LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 100 << 20
"""Default of socket.request.max.bytes, and the largest answer a client takes."""
MESSAGE_BYTES_MAX: Final = 1 << 20
"""The message part of a request."""
RESPONSE_MESSAGE_BYTES_MAX: Final = 16 << 20
"""The message part of a response: metadata of many partitions is larger than any request."""
ATTACHMENTS_MAX: Final = 10_000
_FIRST_BITE: Final = 4096

M = TypeVar("M", bound=Message)

# msgspec lets the last two through: text that is no UTF-8, and nesting deeper than Python's stack.
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(RequestEnvelope)
_response_decoder = msgspec.msgpack.Decoder(ResponseEnvelope)


class Frame(NamedTuple):
    """One decoded frame: where its message lies and its attachments, slices of the frame."""

    message: memoryview
    attachments: list[memoryview]


def frame_length(prefix: Buffer, *, limit: int = FRAME_BYTES_MAX) -> int:
    """The length a frame's first 4 bytes announce; beyond `limit` raises `AnotherProtocol` if they
    are those of one, or else `RemoteProtocolError`."""
    length = int(_LENGTH.unpack_from(prefix)[0])
    if length == 0:
        raise RemoteProtocolError("frame of 0 bytes")
    if length > limit:
        spoken = speaks(bytes(prefix[:LENGTH_BYTES]))
        hint = f"; the peer seems to speak {spoken}" if spoken else ""
        hint += ": security.protocol is SSL on the other side" if spoken == "TLS" else ""
        kind = AnotherProtocol if spoken else RemoteProtocolError
        raise kind(
            f"frame of {counted(length, 'byte')}, the limit is {limit} "
            f"(socket.request.max.bytes){hint}"
        )
    return length


def split_frame(body: Buffer, *, message_limit: int) -> Frame:
    """Find the message and the attachments of a frame's `body` (the bytes after the length).

    Raises `RemoteProtocolError`.
    """
    view = memoryview(body)
    end = _message_end(view, message_limit)
    attachments: list[memoryview] = []
    position = end
    while position < len(view):
        if len(attachments) == ATTACHMENTS_MAX:
            raise RemoteProtocolError(f"more than {ATTACHMENTS_MAX} attachments")
        try:
            attachment, position = read_bin(view, position)
        except ValueError as error:
            raise RemoteProtocolError(f"attachment {len(attachments)}: {error}") from error
        attachments.append(attachment)
    return Frame(view[:end], attachments)


def _message_end(view: memoryview, limit: int) -> int:
    # Fed in growing bites: a produce frame is a short message before a megabyte of records.
    unpacker = msgpack.Unpacker(max_buffer_size=limit + _FIRST_BITE)
    fed, bite = 0, _FIRST_BITE
    while fed < len(view) and fed < limit:
        upto = min(fed + bite, len(view), limit)
        unpacker.feed(view[fed:upto])
        fed, bite = upto, bite * 2
        try:
            unpacker.skip()
        except msgpack.OutOfData:
            continue
        except (msgpack.UnpackException, ValueError) as error:
            why = str(error) or type(error).__name__
            raise RemoteProtocolError(f"message is no msgpack: {why}") from error
        return int(unpacker.tell())
    most = counted(limit, "byte")
    why = f"the message limit is {most}" if fed >= limit else "the message is cut off"
    raise RemoteProtocolError(why)


def decode_request_envelope(frame: Frame) -> RequestEnvelope:
    """The envelope of a request; its body is still raw. Raises `RemoteProtocolError`."""
    try:
        return _request_decoder.decode(frame.message)
    except _UNDECODABLE as error:
        raise RemoteProtocolError(f"request envelope: {error}") from error


def decode_response_envelope(frame: Frame) -> ResponseEnvelope:
    """The envelope of a response; its body is still raw. Raises `RemoteProtocolError`."""
    try:
        return _response_decoder.decode(frame.message)
    except _UNDECODABLE as error:
        raise RemoteProtocolError(f"response envelope: {error}") from error


def decode_body(raw: msgspec.Raw, kind: type[M]) -> M:
    """The typed body of an envelope; raises `RemoteProtocolError` naming the wrong field."""
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except _UNDECODABLE as error:
        raise RemoteProtocolError(f"{kind.__name__}: {error}") from error


def encode_request(
    request: Message, *, request_id: int, client: str, attachments: Sequence[Buffer] = ()
) -> list[Buffer]:
    """The frame of a request, as buffers to send one after the other. Raises `UsageError` for a
    number that has no place in it."""
    api: Api = API_BY_REQUEST[type(request)]
    try:
        body = _encoder.encode(request)
    except OverflowError as error:
        name = type(request).__name__
        raise UsageError(f"a number of this {name} does not fit into 64 bits") from error
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r} of {type(request).__name__} is no text") from error
    envelope = RequestEnvelope(
        api=api.name,
        version=api.max_version,
        id=request_id,
        client=client,
        body=msgspec.Raw(body),
    )
    return frame_buffers(_encoder.encode(envelope), attachments)


def encode_response(
    response: Message | None,
    *,
    request_id: int,
    error: ErrorCode | None = None,
    message: str = "",
) -> bytes:
    """The message part of a response; `frame_head` goes before it and attachments after."""
    envelope = ResponseEnvelope(
        id=request_id,
        error=None if error is None else ErrorBody(code=error, message=message),
        body=msgspec.Raw(b"\x80" if response is None else _encoder.encode(response)),
    )
    return _encoder.encode(envelope)


def frame_head(message: bytes, attachment_sizes: Sequence[int]) -> bytes:
    """Length and message of a frame whose attachments follow, each after its `bin_header`."""
    length = len(message) + sum(len(bin_header(size)) + size for size in attachment_sizes)
    return _LENGTH.pack(length) + message


def drop_sent(pending: list[memoryview], sent: int) -> None:
    """Leave of `pending` what a scatter send has not sent yet."""
    for done, buffer in enumerate(pending):
        size = len(buffer)
        if sent < size:
            pending[: done + 1] = [buffer[sent:]]
            return
        sent -= size
    assert not sent, f"{counted(sent, 'byte')} too many were sent"
    pending.clear()


def frame_buffers(message: bytes, attachments: Sequence[Buffer]) -> list[Buffer]:
    """A whole frame as buffers; the attachments are not copied."""
    buffers: list[Buffer] = [frame_head(message, [len(a) for a in attachments])]
    for attachment in attachments:
        buffers += (bin_header(len(attachment)), attachment)
    return buffers
