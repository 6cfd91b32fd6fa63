"""Users prove who they are before they are let in: SASL with SCRAM (KIP-43, KIP-84, RFC 5802).

A handshake names the mechanism, two exchanges carry its words, and whatever else is said before
that ends the connection. Who fails hears one sentence, whatever the reason, after a while; about a
user that there is not, the same is answered as about one that there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import trio

from hightide.net.connection import FrameReader
from hightide.net.outbox import FilePart, send_all
from hightide.net.ports import Stream
from hightide.net.tls_stream import Turn
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST
from hightide.protocol.codecs import at_once
from hightide.protocol.errors import AuthenticationFailed, ErrorCode, Refused
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.names import NAME_CHARACTERS_MAX
from hightide_broker.core.cluster.users import iterations_of, of_nobody
from hightide_broker.runtime.base.call import CloseConnection
from hightide_broker.runtime.server.door import host_of
from hightide_broker.runtime.server.guesses import Guesses, Turnstile
from hightide_broker.runtime.server.native import NativeTicket
from hightide_broker.runtime.server.tongue import (
    Heard,
    Parts,
    Question,
    Ticket,
    Tongue,
    Tongues,
    Unanswerable,
)

LOGIN_BYTES_MAX = 64 << 10
"""The largest frame before somebody is let in."""
WORDS_BYTES_MAX = 4096
"""Of SCRAM, at a time: names are prepared letter by letter, which takes time."""
FAILED = "authentication failed: the user is unknown, or the password is another"
NOT_YET = "this node has not heard of all users yet: it waits for the controllers"
_WORDS = (u.SaslHandshakeRequest, u.SaslAuthenticateRequest, u.SaslAuthenticateRequest)
_SPOKEN = (m.ApiVersionsRequest, u.SaslHandshakeRequest, u.SaslAuthenticateRequest)


Credentials = Callable[[str, str], tuple[bytes, bytes, bytes, int]]
"""What is kept of a user's password, for a mechanism; also of who is none."""
WhyNot = Callable[[], str]


class LoginFailed(AuthenticationFailed):
    """Somebody did not log in."""

    def __init__(self, message: str, account: str) -> None:
        """`account`: the user that there is, by whose name it was tried; empty: there is none."""
        super().__init__(message)
        self.account = account


class LoginOver(CloseConnection):
    """A user did not log in again in time."""

    def __init__(self) -> None:
        super().__init__("it did not log in again (connections.max.reauth.ms)", reason="login")


class Logins:
    """Begins the login of each connection of a node's clients."""

    def __init__(
        self,
        image: Callable[[], ClusterImage],
        why_not: WhyNot,
        is_current: Callable[[], bool],
        tongues: Tongues,
        guesses: Guesses,
        *,
        lifetime_ms: int = 0,
    ) -> None:
        """`why_not` says why the node does not know its users yet, and nothing once it does;
        `is_current` whether it knows all of them; `lifetime_ms` is how long a login is good for, 0:
        for ever."""
        self._guesses = guesses
        self._is_current = is_current
        self._tongues = tongues
        self._sorted: dict[str, list[int]] = {}
        self._sorted_by: tuple[ClusterImage, int] | None = None
        """As of which users."""
        self._image = image
        self._why_not = why_not
        self._lifetime_ms = lifetime_ms
        self._turnstile = Turnstile()

    async def log_in(self, stream: Stream) -> Session:
        """Who is there; raises `AuthenticationFailed`, `RemoteProtocolError` or `OSError`, and the
        other end has been told."""
        session = Session(self._credential, self._why_not, self._lifetime_ms, self._is_user)
        turn = self._turnstile.turn
        await _Login(stream, session, self._is_current, self._tongues, self._guesses, turn).run()
        return session

    def _is_user(self, name: str) -> bool:
        return any((name, mechanism) in self._image().users for mechanism in u.MECHANISMS)

    def _credential(self, user: str, mechanism: str) -> tuple[bytes, bytes, bytes, int]:
        image = self._image()
        known = image.users.get((user, mechanism))
        secret, counts = image.users_secret or b"nobody", self._iterations(image, mechanism)
        # Worked out for everybody: otherwise how long it takes would tell who there is.
        nobody = of_nobody(counts, secret, user, mechanism)
        return tuple(known or nobody)  # type: ignore[return-value]

    def _iterations(self, image: ClusterImage, mechanism: str) -> list[int]:
        """How often the passwords of all users are hashed, sorted once for each change of them."""
        by = self._sorted_by
        if by is None or by[0] is not image or by[1] != image.users_version:
            self._sorted = {each: iterations_of(image.users, each) for each in u.MECHANISMS}
            self._sorted_by = (image, image.users_version)
        return self._sorted[mechanism]


class Session:
    """A login that is being made, or was; and is made again in time (KIP-368)."""

    def __init__(
        self,
        credential: Credentials,
        why_not: WhyNot,
        lifetime_ms: int,
        is_user: Callable[[str], bool] = bool,
    ) -> None:
        self.user = ""
        """Who has logged in; empty: nobody has."""
        self.said = ""
        """Who somebody says to be, proven or not."""
        self.mechanism = ""
        self.tongue: Tongue | None = None
        """What is spoken on its connection; None: nothing has been said."""
        self._credential = credential
        self._why_not = why_not
        self._is_user = is_user
        self._lifetime_ms = lifetime_ms
        self._until = math.inf
        self._server: _Scram | None = None
        self._is_final = False

    @property
    def account(self) -> str:
        """The user that there is, who somebody says to be; empty: there is none."""
        return self.said if self._is_user(self.said) else ""

    @property
    def is_made(self) -> bool:
        """Whether somebody has logged in, and is not just doing so again."""
        return bool(self.user) and self._server is None

    @property
    def is_over(self) -> bool:
        """Whether it was to be made again before now."""
        return trio.current_time() > self._until

    def require_time(self) -> None:
        """Raise `LoginOver` if it is over."""
        if self.is_over:
            raise LoginOver

    def answer(self, request: m.Message) -> m.Message:
        """The answer to the next word of it. Raises `Refused`."""
        if isinstance(request, u.SaslHandshakeRequest):
            self._begin(request.mechanism)
            return u.SaslHandshakeResponse(mechanisms=[*u.MECHANISMS])
        server = self._server
        if server is None or not isinstance(request, u.SaslAuthenticateRequest):
            raise Refused(ErrorCode.ILLEGAL_SASL_STATE, "a handshake comes first (sasl_handshake)")
        if len(request.data) > WORDS_BYTES_MAX:
            raise Refused(ErrorCode.SASL_AUTHENTICATION_FAILED, FAILED)
        if not self._is_final:
            self._is_final = True
            said = server.first(request.data)
            self.said = server.user
            if self.user not in ("", server.user):
                raise Refused(ErrorCode.SASL_AUTHENTICATION_FAILED, FAILED)
            return u.SaslAuthenticateResponse(data=said.encode())
        self._server = None
        said = server.final(request.data)
        self.user = server.user
        if self._lifetime_ms:
            self._until = trio.current_time() + self._lifetime_ms / 1000
        return u.SaslAuthenticateResponse(data=said.encode(), session_lifetime_ms=self._lifetime_ms)

    def _begin(self, mechanism: str) -> None:
        if why := self._why_not():
            raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, why)
        if mechanism not in u.MECHANISMS:
            raise Refused(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"mechanism {mechanism[:60]!r}, expected one of {', '.join(u.MECHANISMS)}",
            )
        if self.mechanism not in ("", mechanism):
            raise Refused(
                ErrorCode.ILLEGAL_SASL_STATE,
                f"mechanism {mechanism}, expected {self.mechanism} again",
            )
        self.mechanism = mechanism
        self._server, self._is_final = _Scram(mechanism, self._credential), False


class _Login:
    """The first one on a stream: nothing else is spoken before its end."""

    def __init__(
        self,
        stream: Stream,
        session: Session,
        is_current: Callable[[], bool],
        tongues: Tongues,
        guesses: Guesses,
        turn: Turn,
    ) -> None:
        self._guesses = guesses
        self._host = host_of(stream)
        self._turn = turn
        self._is_current = is_current
        self._tongues = tongues
        self._stream = stream
        self._session = session
        self._reader = FrameReader(stream, frame_limit=LOGIN_BYTES_MAX)
        self._ticket: Ticket = NativeTicket(-1)
        """Of the request that is answered next."""
        self._is_understood = True
        """Whether that is one of those that are spoken here."""

    async def run(self) -> None:
        try:
            for kind in _WORDS:
                request = await self._request(kind)
                await self._turn()
                answer = self._session.answer(request)
                if self._session.user and self._reader.has_more:
                    raise Refused(ErrorCode.ILLEGAL_SASL_STATE, "it did not wait for the answer")
                await self._answer(answer)
        except Refused as refused:
            refusal = refused
            if refusal.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                self._guesses.failed(self._host)
                await trio.sleep(self._guesses.hears_s(self._host))
                if not self._is_current():
                    refusal = Refused(ErrorCode.BROKER_NOT_AVAILABLE, NOT_YET)
            await self._send(self._refused(refusal))
            said = f", as {self._session.said[:60]!r}" if self._session.said else ""
            raise LoginFailed(refusal.message + said, self._session.account) from refusal

    async def _request(self, wanted: type[Any]) -> Any:
        """The next request, which must be of this kind; what may be spoken is told before it."""
        while True:
            body = await self._reader.next_frame()
            if body is None:
                raise OSError("it left without logging in")
            if self._session.tongue is None:
                self._session.tongue = self._tongues.of(body, by_node_door=False)
            heard = at_once(self._session.tongue.hearing(body))
            self._ticket = heard.ticket
            request = heard.request if isinstance(heard, Question) else None
            if isinstance(request, m.ApiVersionsRequest):
                await self._answer(_spoken())
                continue
            if not isinstance(request, wanted):
                self._is_understood = isinstance(request, _SPOKEN)
                raise Refused(
                    ErrorCode.ILLEGAL_SASL_STATE,
                    f"{_named(heard)} before it has logged in: users do, here "
                    f"(security.protocol is SASL_SSL or SASL_PLAINTEXT)",
                )
            return request

    def _refused(self, refusal: Refused) -> Parts:
        # Kafka's other answers name what was asked, some by what is known of it here: who is not in
        # hears none of them, and is closed, as Kafka does it. Ours have a sentence, and no more.
        is_ours = self._session.tongue is self._tongues.native
        refusing = self._ticket.refusing(refusal)
        if refusing is None or not (is_ours or self._is_understood):
            return []
        return at_once(refusing)

    async def _answer(self, body: m.Message) -> None:
        await self._send(at_once(self._ticket.framing(body, ())))

    async def _send(self, frame: Parts) -> None:
        await send_all(self._stream, [part for part in frame if not isinstance(part, FilePart)])


def _named(heard: Heard) -> str:
    """What somebody asked, for a sentence."""
    if isinstance(heard, Question):
        return repr(heard.api.name)
    return heard.refusal.message if isinstance(heard, Unanswerable) else "a request"


class _Scram:
    """The broker's side of an exchange; all that goes wrong in it is one refusal."""

    def __init__(
        self,
        mechanism: str,
        credential: Credentials,
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

        def hear() -> None:
            text = words.decode()
            if len(max(text.split(","), key=len)) > NAME_CHARACTERS_MAX:
                raise ValueError("a name, or a nonce, that is too long")
            self._server.set_client_first(text)

        return self._said(hear, "first")

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


def _spoken() -> m.ApiVersionsResponse:
    apis = [API_BY_REQUEST[kind] for kind in _SPOKEN]
    ranges = [
        m.ApiRange(name=api.name, min_version=api.min_version, max_version=api.max_version)
        for api in apis
    ]
    return m.ApiVersionsResponse(apis=ranges, broker_version="")
