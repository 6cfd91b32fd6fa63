"""One blocking socket to a broker. A request may be on its way while the caller does other work."""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from hightide.net.login import AGAIN, Login, good_for_s, turned_away
from hightide.net.tcp import WAKE_BYTES_MAX, wake_at
from hightide.net.tls import failed
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_REQUEST
from hightide.protocol.errors import (
    ApiError,
    AuthenticationFailed,
    BrokerUnreachable,
    RemoteProtocolError,
    RequestTimedOut,
    error_code,
    no_connection,
)
from hightide.protocol.records import Buffer

CLIENT_ID = "hightide-spark"
CONNECT_TIMEOUT_S = 10.0
EARLY_MAX = 64
"""Answers that are kept for later, the last ones."""
REQUEST_TIMEOUT_S = 30.0
"""The most that one request may take, whatever its caller would wait."""

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

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        """Under TLS with a context, as a user with a login. Raises `BrokerUnreachable`;
        `AuthenticationFailed` where one side turns the other away."""
        self.address = f"{host}:{port}"
        try:
            sock = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        except OSError as error:
            raise no_connection(error, self.address) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock if context is None else self._secured(sock, context, host)
        self._woken_at = 1
        self._next_id = 0
        self._unanswered: dict[int, bool] = {}
        """Requests, and whether the answer is kept if it comes while another one is waited for."""
        self._early: dict[int, wire.Frame] = {}
        """Such answers."""
        self._login = login
        self._login_again_at = -math.inf
        self._look_at_login()

    def _look_at_login(self) -> None:
        """Log in if it is time to, and no answer is on its way that would be dropped by that."""
        is_due = time.monotonic() > self._login_again_at
        if self._login is not None and is_due and all(self._unanswered.values()):
            self._login_again_at = math.inf  # what is said now is the login
            self._log_in(self._login)

    def _log_in(self, login: Login) -> None:
        is_in = False
        try:
            words = login.words()
            self._call(u.SaslHandshakeRequest(mechanism=login.mechanism))
            answer = self._call(u.SaslAuthenticateRequest(data=words.first()))
            answer = self._call(u.SaslAuthenticateRequest(data=words.final(answer.data)))
            words.check(answer.data)
            if lifetime_s := good_for_s(answer):
                self._login_again_at = time.monotonic() + AGAIN[0] * lifetime_s
            is_in = True
        except ApiError as error:
            meant = turned_away(error)
            raise self._broken(meant) if isinstance(meant, OSError) else meant from error
        finally:
            if not is_in:
                self.close()

    def _call(self, request: m.Message) -> Any:
        return self.answer(self.ask(request, timeout_s=CONNECT_TIMEOUT_S))[0]

    def ask(
        self,
        request: m.Message,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attachments: Sequence[Buffer] = (),
        is_kept: bool = False,
    ) -> Asked:
        """Send a request; raises `BrokerUnreachable` or `RequestTimedOut`. `is_kept`: its answer is
        to be waited for in the end, whatever is asked and answered before."""
        self._look_at_login()
        self._next_id += 1
        buffers = wire.encode_request(
            request, request_id=self._next_id, client=CLIENT_ID, attachments=attachments
        )
        pending = [memoryview(buffer) for buffer in buffers if len(buffer)]
        with self._within(timeout_s) as deadline:
            while pending:
                self._limit_to(deadline)
                wire.drop_sent(pending, self._send(pending))
        self._unanswered[self._next_id] = is_kept
        return Asked(self, self._next_id, API_BY_REQUEST[type(request)].response)

    def _secured(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
        has_agreed = False
        try:
            inside = context.wrap_socket(sock, server_hostname=host)
            has_agreed = True
            return inside
        except OSError as error:
            raise self._broken(error) from error
        finally:
            if not has_agreed:
                sock.close()

    def _broken(self, error: OSError) -> BrokerUnreachable:
        """What a failure of the socket means."""
        found = failed(error) if isinstance(error, ssl.SSLError) else error
        if isinstance(found, AuthenticationFailed):
            found.broker = self.address
            return found
        return BrokerUnreachable(f"connection broke: {found}", broker=self.address)

    def _send(self, pending: list[memoryview]) -> int:
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.send(pending[0])
        return self._socket.sendmsg(pending)

    def answer(self, asked: Asked, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Answer:
        """Wait for an answer. What comes before it is dropped unless it is to be kept: its reader
        was abandoned, as with a LIMIT. Raises as `ask`, `ApiError` and `RemoteProtocolError`."""
        if asked.id not in self._unanswered and asked.id not in self._early:
            raise BrokerUnreachable("the answer was dropped", broker=self.address)
        while True:
            frame = self._early.pop(asked.id, None) or self._receive_frame(timeout_s)
            envelope = wire.decode_response_envelope(frame)
            if envelope.id != asked.id and envelope.id in self._unanswered:
                if self._unanswered.pop(envelope.id):
                    self._keep(envelope.id, frame)
                continue
            self._unanswered.pop(asked.id, None)
            if envelope.error is not None:
                code = error_code(envelope.error.code)
                raise ApiError(code, envelope.error.message, broker=self.address)
            if envelope.id != asked.id:
                raise RemoteProtocolError(f"answer {envelope.id} to request {asked.id}")
            return wire.decode_body(envelope.body, asked.kind), frame.attachments

    def _keep(self, number: int, frame: wire.Frame) -> None:
        self._early[number] = frame
        if len(self._early) > EARLY_MAX:  # whoever asked first has died meanwhile
            del self._early[next(iter(self._early))]

    def _receive_frame(self, timeout_s: float) -> wire.Frame:
        with self._within(timeout_s) as deadline:
            length = wire.frame_length(self._receive(wire.LENGTH_BYTES, deadline))
            body = self._receive(length, deadline)
        return wire.split_frame(body, message_limit=wire.RESPONSE_MESSAGE_BYTES_MAX)

    def _receive(self, count: int, deadline: float) -> memoryview:
        data = view = np.empty(count, np.uint8).data
        while view:
            self._limit_to(deadline)
            self._wake_at(min(len(view), WAKE_BYTES_MAX) if count > WAKE_BYTES_MAX else 1)
            got = self._socket.recv_into(view)
            if got == 0:
                raise BrokerUnreachable("the broker closed the connection", broker=self.address)
            view = view[got:]
        return data

    def _wake_at(self, count: int) -> None:
        if count != self._woken_at and not isinstance(self._socket, ssl.SSLSocket):
            wake_at(self._socket, count)
            self._woken_at = count

    def _limit_to(self, deadline: float) -> None:
        """Before each piece: the socket's own limit is for one, and a byte now and then would never
        reach it."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)

    @contextmanager
    def _within(self, timeout_s: float) -> Iterator[float]:
        """A deadline for all that is done with the socket; what ends it is raised as ours."""
        timeout_s = min(timeout_s, REQUEST_TIMEOUT_S)
        try:
            yield time.monotonic() + timeout_s
        except TimeoutError as error:
            why = f"no answer within {timeout_s:g} s"
            raise RequestTimedOut(why, broker=self.address, elapsed_s=timeout_s) from error
        except OSError as error:
            raise self._broken(error) from error

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
