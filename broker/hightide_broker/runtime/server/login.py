"""Users prove who they are before they are let in: SASL with SCRAM (KIP-43, KIP-84, RFC 5802).

A handshake names the mechanism, two exchanges carry its words, and whatever else is said before
that ends the connection. Who fails hears one sentence, whatever the reason, after a while; about a
user that there is not, the same is answered as about one that there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from hightide.net.connection import FrameReader
from hightide.net.ports import Stream
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_NAME, API_BY_REQUEST
from hightide.protocol.errors import AuthenticationFailed, ErrorCode, Refused
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.users import of_nobody

LOGIN_BYTES_MAX = 64 << 10
"""The largest frame before somebody is let in."""
FAILED_S = 0.1
"""How long who failed waits to hear so; Kafka: connection.failed.authentication.delay.ms."""
FAILED = "authentication failed: the user is unknown, or the password is another"
_SPOKEN = (m.ApiVersionsRequest, u.SaslHandshakeRequest, u.SaslAuthenticateRequest)


class Logins:
    """Those of a node's clients."""

    def __init__(self, image: Callable[[], ClusterImage], why_not: Callable[[], str]) -> None:
        """`why_not` says why the node does not know its users yet, and nothing once it does."""
        self._image = image
        self._why_not = why_not

    async def log_in(self, stream: Stream) -> str:
        """Who is there; raises `AuthenticationFailed`, `RemoteProtocolError` or `OSError`, and the
        other end has been told."""
        return await _Login(stream, self._credential, self._why_not).run()

    def _credential(self, user: str, mechanism: str) -> tuple[bytes, bytes, bytes, int]:
        image = self._image()
        known = image.users.get((user, mechanism))
        secret = image.users_secret or b"nobody"
        return tuple(known or of_nobody(secret, user, mechanism))  # type: ignore[return-value]


class _Login:
    """One."""

    def __init__(
        self,
        stream: Stream,
        credential: Callable[[str, str], tuple[bytes, bytes, bytes, int]],
        why_not: Callable[[], str],
    ) -> None:
        self._stream = stream
        self._reader = FrameReader(stream, frame_limit=LOGIN_BYTES_MAX)
        self._credential = credential
        self._why_not = why_not
        self._id = -1

    async def run(self) -> str:
        try:
            server = self._begin((await self._request(u.SaslHandshakeRequest)).mechanism)
            await self._answer(u.SaslHandshakeResponse(mechanisms=[*u.MECHANISMS]))
            first = (await self._request(u.SaslAuthenticateRequest)).data
            await self._answer(_words(server.first(first)))
            final = (await self._request(u.SaslAuthenticateRequest)).data
            answer = server.final(final)
            if self._reader.has_more:
                raise Refused(ErrorCode.ILLEGAL_SASL_STATE, "something was said before the answer")
            await self._answer(_words(answer))
        except Refused as refusal:
            if refusal.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                await trio.sleep(FAILED_S)
            await self._send(
                wire.encode_response(
                    None, request_id=self._id, error=refusal.code, message=refusal.message
                )
            )
            raise AuthenticationFailed(refusal.message) from refusal
        return server.user

    def _begin(self, mechanism: str) -> _Scram:
        if why := self._why_not():
            raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, why)
        if mechanism not in u.MECHANISMS:
            raise Refused(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"mechanism {mechanism[:60]!r}, expected one of {', '.join(u.MECHANISMS)}",
            )
        return _Scram(mechanism, self._credential)

    async def _request(self, wanted: type[Any]) -> Any:
        """The next request, which must be of this kind; what may be spoken is told before it."""
        while True:
            body = await self._reader.next_frame()
            if body is None:
                raise OSError("it left without logging in")
            frame = wire.split_frame(body, message_limit=LOGIN_BYTES_MAX)
            envelope = wire.decode_request_envelope(frame)
            self._id = envelope.id
            api = API_BY_NAME.get(envelope.api)
            if api is not None and api.request is m.ApiVersionsRequest:
                await self._answer(_spoken())
                continue
            if api is None or api.request is not wanted:
                raise Refused(
                    ErrorCode.ILLEGAL_SASL_STATE,
                    f"{envelope.api[:60]!r} before it has logged in: users do, here "
                    f"(security.protocol is SASL_SSL or SASL_PLAINTEXT)",
                )
            return wire.decode_body(envelope.body, api.request)

    async def _answer(self, body: m.Message) -> None:
        await self._send(wire.encode_response(body, request_id=self._id))

    async def _send(self, message: bytes) -> None:
        left = [memoryview(buffer) for buffer in wire.frame_buffers(message, ())]
        while left:
            count = self._stream.send_now(left)
            wire.drop_sent(left, count)
            if not count:
                await self._stream.wait_writable()


class _Scram:
    """The broker's side of an exchange; all that goes wrong in it is one refusal."""

    def __init__(
        self,
        mechanism: str,
        credential: Callable[[str, str], tuple[bytes, bytes, bytes, int]],
        nonce: str | None = None,
    ) -> None:
        """`nonce` is drawn by chance, if not given."""
        from scramp import ScramMechanism

        self.user = ""
        """Who says to be there, and has proven it once the last words are answered."""

        def found(user: str) -> tuple[bytes, bytes, bytes, int]:
            self.user = user
            return credential(user, mechanism)

        self._server = ScramMechanism(mechanism).make_server(found, s_nonce=nonce)

    def first(self, words: bytes) -> str:
        """The answer to the client's first words."""
        return self._said(lambda: self._server.set_client_first(words.decode()), "first")

    def final(self, words: bytes) -> str:
        """The answer to the client's last words."""
        return self._said(lambda: self._server.set_client_final(words.decode()), "final")

    def _said(self, hear: Callable[[], None], which: str) -> str:
        from scramp import ScramException

        try:
            hear()
            said = getattr(self._server, f"get_server_{which}")()
        except (ScramException, ValueError) as error:
            raise Refused(ErrorCode.SASL_AUTHENTICATION_FAILED, FAILED) from error
        return str(said)


def _words(said: str) -> u.SaslAuthenticateResponse:
    return u.SaslAuthenticateResponse(data=said.encode())


def _spoken() -> m.ApiVersionsResponse:
    apis = [API_BY_REQUEST[kind] for kind in _SPOKEN]
    ranges = [
        m.ApiRange(name=api.name, min_version=api.min_version, max_version=api.max_version)
        for api in apis
    ]
    return m.ApiVersionsResponse(apis=ranges, broker_version="")
