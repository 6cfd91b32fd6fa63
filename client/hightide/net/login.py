"""A client's side of logging in: the words of SCRAM, and streams on which they have been said.

The words are apart from what carries them, so that the blocking connections of Spark say the
same. A password is salted and hashed here, and never leaves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import trio

from hightide.net.connection import Connection, FrameReader
from hightide.net.outbox import send_all
from hightide.net.ports import Network, Stream
from hightide.net.tls import Tls, TlsFiles, read_password, tls_of
from hightide.protocol import login_messages as u
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_REQUEST
from hightide.protocol.errors import (
    AnotherProtocol,
    ApiError,
    AuthenticationFailed,
    ErrorCode,
    HightideError,
    RemoteProtocolError,
    UsageError,
    error_code,
)
from hightide.protocol.messages import Message

_LOGIN_BYTES_MAX = 64 << 10
AGAIN_S_MIN = 1.0
AGAIN = (0.85, 0.95)
"""After what part of its time a login is made again, by chance: clients do not come all at once."""
_ITERATIONS = re.compile(r"(?:^|,)i=([0-9]{1,9})(?:,|$)")
_FATAL = (
    ErrorCode.SASL_AUTHENTICATION_FAILED,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    ErrorCode.ILLEGAL_SASL_STATE,
)


@dataclass(frozen=True, slots=True)
class Login:
    """Who logs in, and how."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    password_location: str = ""
    """Where the password is read, if it is not given here."""

    def words(self) -> Words:
        """A new exchange. Raises `UsageError` where it cannot be made."""
        return Words(self)


@dataclass(frozen=True, slots=True)
class Way:
    """How a client comes to brokers, and as whom."""

    tls: Tls | None = None
    login: Login | None = None


DIRECT = Way()
"""In clear text, as nobody."""


def login_of(
    *, protocol: str, mechanism: str, user: str, password: str, password_location: str
) -> Login | None:
    """What a client is told by Kafka's names: `protocol` is security.protocol. None: it does not
    log in. Raises `UsageError`."""
    if not protocol.startswith("SASL_"):
        if mechanism or user or password or password_location:
            raise UsageError(
                f"a user is named, and security.protocol is {protocol}: expected SASL_SSL, or "
                f"SASL_PLAINTEXT"
            )
        return None
    mechanism = mechanism or u.MECHANISMS[-1]
    if mechanism not in u.MECHANISMS:
        raise UsageError(f"sasl.mechanism is {mechanism!r}, expected {' or '.join(u.MECHANISMS)}")
    if password and password_location:
        raise UsageError("sasl.password and sasl.password.location exclude each other")
    if not user or not (password or password_location):
        raise UsageError(
            f"security.protocol is {protocol}, and sasl.username or sasl.password is empty"
        )
    return Login(mechanism, user, password, password_location)


def way_of(said: Callable[[str], str]) -> Way:
    """What a client is told by Kafka's names, empty where it is told nothing. Raises
    `UsageError`."""
    protocol = said("security.protocol") or "PLAINTEXT"
    files = TlsFiles(
        authorities=said("ssl.ca.location"),
        certificate=said("ssl.certificate.location"),
        key=said("ssl.key.location"),
        password=said("ssl.key.password"),
        password_location=said("ssl.key.password.location"),
    )
    identification = said("ssl.endpoint.identification.algorithm") or "https"
    return Way(
        tls_of(protocol=protocol, files=files, identification=identification),
        login_of(
            protocol=protocol,
            mechanism=said("sasl.mechanism"),
            user=said("sasl.username"),
            password=said("sasl.password"),
            password_location=said("sasl.password.location"),
        ),
    )


class Words:
    """What one exchange says: `first`, then `final`, and `check` of the last answer. Each raises
    `AuthenticationFailed` where the other end does not know the password, or asks for too much."""

    def __init__(self, login: Login) -> None:
        try:
            from scramp import ScramClient, ScramException
        except ImportError as error:
            raise UsageError(
                "users log in with the extra: pip install 'hightide[secure]'"
            ) from error
        self._error: type[Exception] = ScramException
        # Read each time: a password that is changed is changed in its file.
        password = login.password or read_password(
            login.password_location, "sasl.password.location"
        )
        try:
            self._client = ScramClient([login.mechanism], login.user, password)
        except ScramException as error:
            raise UsageError(f"sasl.username or sasl.password cannot be: {error}") from error

    def first(self) -> bytes:
        """Who is there."""
        return str(self._client.get_client_first()).encode()

    def final(self, answer: bytes) -> bytes:
        """The proof, for what the broker answered."""
        text = self._text(answer)
        found = _ITERATIONS.search(text)
        if found is None or int(found[1]) > u.ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"the broker asks for more than {u.ITERATIONS_MAX} iterations, or for none"
            )
        try:
            self._client.set_server_first(text)
            return str(self._client.get_client_final()).encode()
        except (self._error, ValueError) as error:
            raise AuthenticationFailed(f"the broker's answer is none of SCRAM: {error}") from error

    def check(self, answer: bytes) -> None:
        """Whether the broker knew the password as well."""
        try:
            self._client.set_server_final(self._text(answer))
        except (self._error, ValueError) as error:
            raise AuthenticationFailed(
                "the broker did not prove that it knows the user: it is another one"
            ) from error

    def _text(self, answer: bytes) -> str:
        try:
            return answer.decode()
        except UnicodeDecodeError as error:
            raise AuthenticationFailed("the broker's answer is no text") from error


def turned_away(error: ApiError) -> Exception:
    """What a refusal means to who wanted to log in."""
    said = error.message.removeprefix(f"{error.code}: ")
    return AuthenticationFailed(said) if error.code in _FATAL else OSError(said)


class LoginNetwork:
    """Streams on which a user has logged in; implements `ports.Network`."""

    def __init__(self, network: Network, login: Login) -> None:
        """Raises `UsageError` for a login that cannot be."""
        self._network = network
        self._login = login
        self._lifetimes_s: WeakKeyDictionary[Stream, float] = WeakKeyDictionary()
        login.words()

    async def connect(self, host: str, port: int) -> Stream:
        """Raises `OSError`, or `AuthenticationFailed` where one end turns the other away."""
        stream = await self._network.connect(host, port)
        is_in = False
        try:
            self._lifetimes_s[stream] = await said_by(_Exchange(stream).ask, self._login)
            is_in = True
            return stream
        except ApiError as error:
            raise turned_away(error) from error
        except AnotherProtocol as error:
            raise AuthenticationFailed(str(error)) from error
        except RemoteProtocolError as error:
            raise OSError(str(error)) from error
        except UsageError as error:  # the file with the password is gone, or spoilt
            raise AuthenticationFailed(str(error)) from error
        finally:
            if not is_in:
                await stream.aclose()

    async def keep(self, connection: Connection) -> None:
        """Log in again on a connection before its login is over, as long as it is open; one that
        is not let in again is closed."""

        async def ask(request: Message) -> Any:
            return (await connection.call(request))[0]

        lifetime_s = self._lifetimes_s.pop(connection.stream, 0.0)
        try:
            while lifetime_s and connection.is_open:
                await trio.sleep(max(lifetime_s * random.uniform(*AGAIN), AGAIN_S_MIN))
                lifetime_s = await said_by(ask, self._login)
        except HightideError:
            await connection.aclose()


Ask = Callable[[Message], Awaitable[Any]]
"""Sends a request, and waits for its answer."""


async def said_by(ask: Ask, login: Login) -> float:
    """Log in; how long that is good for, in seconds, 0: as long as the connection. Raises as
    `Words`, and what `ask` raises."""
    words = login.words()
    await ask(u.SaslHandshakeRequest(mechanism=login.mechanism))
    first = await ask(u.SaslAuthenticateRequest(data=words.first()))
    last = await ask(u.SaslAuthenticateRequest(data=words.final(first.data)))
    words.check(last.data)
    return good_for_s(last)


def good_for_s(last: u.SaslAuthenticateResponse) -> float:
    """How long a login is good for by its last answer, 0: as long as the connection. Raises
    `RemoteProtocolError`."""
    if last.session_lifetime_ms < 0:
        raise RemoteProtocolError(f"a login is good for {last.session_lifetime_ms} ms")
    return last.session_lifetime_ms / 1000


class _Exchange:
    """Requests on a stream that nobody else uses yet, one after the other."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._reader = FrameReader(stream, frame_limit=_LOGIN_BYTES_MAX)
        self._count = 0

    async def ask(self, request: Message) -> Any:
        """The answer; raises `ApiError`, `OSError`, `RemoteProtocolError`."""
        self._count += 1
        buffers = wire.encode_request(request, request_id=self._count, client="")
        await send_all(self._stream, buffers)
        body = await self._reader.next_frame()
        if body is None:
            raise OSError("the broker closed the connection while a user logged in")
        frame = wire.split_frame(body, message_limit=_LOGIN_BYTES_MAX)
        envelope = wire.decode_response_envelope(frame)
        if envelope.error is not None:
            raise ApiError(error_code(envelope.error.code), envelope.error.message)
        if self._reader.has_more:
            raise RemoteProtocolError("something came behind the answer to a login")
        return wire.decode_body(envelope.body, API_BY_REQUEST[type(request)].response)
