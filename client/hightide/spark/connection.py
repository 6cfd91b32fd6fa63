"""One blocking socket to a broker. A request may be on its way while the caller does other work."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hightide import messages as m
from hightide import wire
from hightide.apis import API_BY_REQUEST
from hightide.errors import (
    ApiError,
    BrokerUnreachable,
    RemoteProtocolError,
    RequestTimedOut,
    error_code,
)
from hightide.records import Buffer

CLIENT_ID = "hightide-spark"
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0

Answer = tuple[Any, list[memoryview]]
"""A response and its attachments."""


class Asked(NamedTuple):
    """A request whose answer nobody has fetched yet."""

    connection: BlockingConnection
    id: int
    kind: type[m.Message]
    """The response's."""


class BlockingConnection:
    """One socket; after any failure but a refusal it is to be closed."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        except OSError as error:
            raise BrokerUnreachable(f"no connection: {error}", broker=self.address) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next_id = 0
        self._unanswered: set[int] = set()

    def ask(
        self,
        request: m.Message,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attachments: Sequence[Buffer] = (),
    ) -> Asked:
        """Send a request; raises `BrokerUnreachable` or `RequestTimedOut`."""
        self._next_id += 1
        buffers = wire.encode_request(
            request, request_id=self._next_id, client=CLIENT_ID, attachments=attachments
        )
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(b"".join(buffers))
        except TimeoutError as error:
            raise self._timed_out(timeout_s) from error
        except OSError as error:
            raise self._broken(error) from error
        self._unanswered.add(self._next_id)
        return Asked(self, self._next_id, API_BY_REQUEST[type(request)].response)

    def answer(self, asked: Asked, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Answer:
        """Wait for an answer. What comes before it is dropped: its reader was abandoned, as with a
        LIMIT. Raises as `ask`, `ApiError` and `RemoteProtocolError`."""
        if asked.id not in self._unanswered:
            raise BrokerUnreachable("the answer was dropped", broker=self.address)
        while True:
            frame = self._receive_frame(timeout_s)
            envelope = wire.decode_response_envelope(frame)
            if envelope.id != asked.id and envelope.id in self._unanswered:
                self._unanswered.remove(envelope.id)
                continue
            self._unanswered.discard(asked.id)
            if envelope.error is not None:
                code = error_code(envelope.error.code)
                raise ApiError(code, envelope.error.message, broker=self.address)
            if envelope.id != asked.id:
                raise RemoteProtocolError(f"answer {envelope.id} to request {asked.id}")
            return wire.decode_body(envelope.body, asked.kind), frame.attachments

    def _receive_frame(self, timeout_s: float) -> wire.Frame:
        try:
            self._socket.settimeout(timeout_s)
            length = wire.frame_length(self._receive(wire.LENGTH_BYTES))
            body = self._receive(length)
        except TimeoutError as error:
            raise self._timed_out(timeout_s) from error
        except OSError as error:
            raise self._broken(error) from error
        return wire.split_frame(body, message_limit=wire.RESPONSE_MESSAGE_BYTES_MAX)

    def _receive(self, count: int) -> memoryview:
        data = view = np.empty(count, np.uint8).data
        while view:
            got = self._socket.recv_into(view)
            if got == 0:
                raise BrokerUnreachable("the broker closed the connection", broker=self.address)
            view = view[got:]
        return data

    def _timed_out(self, timeout_s: float) -> RequestTimedOut:
        return RequestTimedOut(
            f"no answer within {timeout_s:g} s", broker=self.address, elapsed_s=timeout_s
        )

    def _broken(self, error: OSError) -> BrokerUnreachable:
        return BrokerUnreachable(f"connection broke: {error}", broker=self.address)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
