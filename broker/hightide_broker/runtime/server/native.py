"""Hightide's own protocol on a connection: msgpack, and answers as they complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hightide.net.outbox import FilePart
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_NAME, Api
from hightide.protocol.bins import bin_header
from hightide.protocol.codecs import Steps, settled
from hightide.protocol.errors import ErrorCode, Refused, RemoteProtocolError
from hightide.protocol.messages import Message, RequestEnvelope
from hightide.protocol.records import Buffer
from hightide.protocol.strangers import speaks_kafka
from hightide_broker.core.replication.validation import takes_long
from hightide_broker.runtime.base.call import Reply
from hightide_broker.runtime.server.tongue import (
    Heard,
    Misheard,
    Parts,
    Question,
    Unanswerable,
)

KAFKA_SPOKEN = (
    "it speaks Kafka's own protocol, and this port hightide's: msgpack over TCP "
    "(kafka.protocol.enable)"
)


class NativeTicket(NamedTuple):
    """A request by its id; -1: it has none that is known. Implements `tongue.Ticket`."""

    id: int

    def framing(self, body: Message, parts: Sequence[Buffer | FilePart]) -> Steps[Parts]:
        sizes = [*map(len, parts)]
        payload = wire.encode_response(body, request_id=self.id)
        frame: Parts = [wire.frame_head(payload, sizes)]
        for size, part in zip(sizes, parts, strict=True):
            frame += (bin_header(size), part)
        return settled(frame)

    def refusing(self, refusal: Refused) -> Steps[Parts]:
        return settled(_told(self.id, refusal.code, refusal.message))

    def rest(self, reply: Reply) -> None:
        return None


class NativeTongue:
    """Implements `tongue.Tongue`."""

    in_order = False

    def hearing(self, body: bytearray) -> Steps[Heard]:
        """At once: msgspec does it, and a message is small."""
        return settled(self.hear(body))

    def hear(self, body: bytearray) -> Heard:
        """What a frame asks. Raises `Misheard`."""
        request_id = -1
        try:
            frame = wire.split_frame(body, message_limit=wire.MESSAGE_BYTES_MAX)
            envelope = wire.decode_request_envelope(frame)
            request_id = envelope.id
            api = _api_of(envelope)
            request = wire.decode_body(envelope.body, api.request)
        except Refused as refusal:
            return Unanswerable(NativeTicket(request_id), refusal)
        except RemoteProtocolError as error:
            said = _told(request_id, ErrorCode.INVALID_REQUEST, str(error))
            why = KAFKA_SPOKEN if speaks_kafka(body) else str(error)
            raise Misheard(why, said) from error
        ticket = NativeTicket(request_id)
        looks = isinstance(request, m.ProduceRequest) and takes_long(frame.attachments)
        return Question(ticket, api, request, frame.attachments, envelope.client, looks)

    def may_follow(self, start: bytes | bytearray) -> bool:
        """Each is begun when it comes, and answered when it is done."""
        return True

    def check_length(self, length: int, start: bytes) -> None:
        """Every frame may be as long as any (socket.request.max.bytes)."""

    def farewell(self, why: str) -> Parts:
        """The answer to no request."""
        return _told(-1, ErrorCode.CORRUPT_FRAME, why)


def _told(request_id: int, code: ErrorCode, message: str) -> Parts:
    payload = wire.encode_response(None, request_id=request_id, error=code, message=message)
    return wire.frame_buffers(payload, ())  # type: ignore[return-value]


def _api_of(envelope: RequestEnvelope) -> Api:
    api = API_BY_NAME.get(envelope.api)
    if api is None:
        raise Refused(ErrorCode.INVALID_REQUEST, f"unknown API {envelope.api[:60]!r}")
    if not api.min_version <= envelope.version <= api.max_version:
        raise Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{api.name} version {envelope.version}, "
            f"this broker speaks {api.min_version} to {api.max_version}",
        )
    return api
