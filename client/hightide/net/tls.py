"""TLS on both ends of a connection: contexts from files, handshakes, and a stream.

A non-blocking `ssl.SSLSocket` under trio's readiness, not `trio.SSLStream`: it sends alerts, so
that who is turned away hears why, and it copies less. A handshake runs once, in one task, under its
caller's deadline. TLS 1.2 or newer; no renegotiation, so that a reader never has to write.

Certificates are reloaded by making a new context and exchanging it whole: one that was loaded into
twice keeps the authorities that were removed, and one whose key does not fit serves nobody.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from hightide.net.tcp import SocketStream, TcpNetwork, TcpStream
from hightide.protocol.errors import AuthenticationFailed, UsageError
from hightide.protocol.records import Buffer

LAST_WORDS_S = 1.0
"""How long who was turned away has to hear why."""
_FLIGHTS_MAX = 8
_ALERT = bytes.fromhex("15030300020246")
"""An alert, for who does not speak TLS: by its first bytes a client of ours knows what it met."""
CHUNK_BYTES = 64 << 10
"""What is handed to TLS at a time: small buffers are joined up to this, each piece is a record or
a few."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where PEM files lie; empty: there is none."""

    authorities: str = ""
    """Whose certificates are believed; for a client, empty: the system's."""
    certificate: str = ""
    """This side's own, and those between it and an authority."""
    key: str = ""
    """The certificate's; empty: in the same file."""

    def stamp(self) -> tuple[object, ...]:
        """Changes when a file is replaced, also behind a link."""
        found = []
        for path in filter(None, (self.authorities, self.certificate, self.key)):
            with suppress(OSError):
                stat = Path(path).stat()
                found.append((path, stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client uses TLS."""

    files: TlsFiles = TlsFiles()
    check_host: bool = True
    """Whether a broker's certificate must be of the host that was asked for."""

    def context(self) -> ssl.SSLContext:
        """For connections; raises `UsageError`."""
        return client_context(self.files, check_host=self.check_host)


def client_context(files: TlsFiles, *, check_host: bool = True) -> ssl.SSLContext:
    """For connections that this side opens. Raises `UsageError` for a file that is of no use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_host
    if files.authorities:
        _authorities(context, files.authorities)
    else:
        context.load_default_certs()
    if files.certificate:
        _own(context, files)
    return _bounded(context)


def server_context(files: TlsFiles, *, asks: ssl.VerifyMode) -> ssl.SSLContext:
    """For connections that others open; `asks`: whether they need a certificate, may have one, or
    are not asked. Raises `UsageError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _own(context, files)
    if asks is not ssl.CERT_NONE:
        _authorities(context, files.authorities)
        # A session that is taken up again is not asked for its certificate again.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    context.verify_mode = asks
    return _bounded(context)


def _bounded(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{path!r} holds no certificates of authorities: {error}") from error


def _own(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        # Without a password there is nobody to ask: an encrypted key is refused.
        context.load_cert_chain(files.certificate, files.key or None, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        named = files.certificate + (f" with {files.key}" if files.key else "")
        raise UsageError(f"{named!r} is no certificate with its key: {error}") from error


class TlsStream(SocketStream):
    """A socket under TLS; implements `ports.Stream`."""

    can_send_file = False
    _socket: ssl.SSLSocket

    @property
    def common_name(self) -> str:
        """Of the other end's certificate; empty if it showed none."""
        return _common_name(self._socket)

    async def receive_into(self, view: memoryview) -> int:
        while True:
            self._check_open()
            if not self._socket.pending():
                await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv_into(view)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                raise failed(error) from error

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        self._check_open()
        sent = 0
        for chunk in _chunks(buffers):
            view = memoryview(chunk)
            while view:
                try:
                    # The same bytes are offered again if they are not taken: so TLS wants it.
                    count = self._socket.send(view)
                except ssl.SSLWantWriteError:
                    return sent
                sent += count
                view = view[count:]
        return sent

    def send_file_now(self, fd: int, position: int, size: int) -> int:
        raise AssertionError("files are read, under TLS")

    def _say_goodbye(self) -> None:
        with suppress(OSError, ValueError):
            self._socket.unwrap()  # nobody waits for the answer


def _common_name(end: ssl.SSLSocket | ssl.SSLObject) -> str:
    try:
        shown: dict[str, Any] = end.getpeercert() or {}
    except ValueError as error:  # names that are no text
        raise AuthenticationFailed(f"its certificate cannot be read: {error}") from error
    parts = [pair for part in shown.get("subject", ()) for pair in part]
    return next((value for name, value in reversed(parts) if name == "commonName"), "")


def _chunks(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The buffers as pieces for TLS: what is small is joined, once for each send."""
    chunks: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) > CHUNK_BYTES and small:
            chunks.append(b"".join(small))
            small, size = [], 0
        if len(buffer) > CHUNK_BYTES:
            chunks.append(buffer)
        else:
            small.append(buffer)
            size += len(buffer)
    if small:
        chunks.append(b"".join(small))
    return chunks


async def secured(
    stream: TcpStream, context: ssl.SSLContext, *, server_side: bool, host: str | None = None
) -> TlsStream:
    """The stream under TLS, once both sides agree; it is closed if they do not. Raises
    `AuthenticationFailed` where one of them turns the other away, or `OSError`."""
    sock = context.wrap_socket(
        stream.detach(),
        server_side=server_side,
        server_hostname=host,
        do_handshake_on_connect=False,
    )
    has_agreed = False
    try:
        await _shake_hands(sock)
        has_agreed = True
    except ssl.SSLError as error:
        if server_side:
            await _leave(sock, _ALERT if error.reason in _PLAIN_PEER else b"")
        raise failed(error) from error
    finally:
        if not has_agreed:
            sock.close()
    return TlsStream(sock, stream.peer)


async def _shake_hands(sock: ssl.SSLSocket) -> None:
    while True:
        try:
            return sock.do_handshake()
        except ssl.SSLWantReadError:
            await trio.lowlevel.wait_readable(sock)
        except ssl.SSLWantWriteError:
            await trio.lowlevel.wait_writable(sock)


async def _leave(sock: ssl.SSLSocket, last_words: bytes) -> None:
    """Close once the other end has, or soon: what it still sends would take our last words away."""
    plain = socket.socket(fileno=sock.detach())
    plain.setblocking(False)
    with plain, suppress(OSError), trio.move_on_after(LAST_WORDS_S):
        plain.send(last_words)
        plain.shutdown(socket.SHUT_WR)
        while True:
            await trio.lowlevel.wait_readable(plain)
            if not plain.recv(CHUNK_BYTES):
                return


_PLAIN_PEER = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE")


def failed(error: ssl.SSLError) -> OSError | AuthenticationFailed:
    """What a failure of TLS means: that somebody is turned away, or that the connection broke."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationFailed(
            f"its certificate is not believed: {error.verify_message} (ssl.ca.location)"
        )
    if reason in _PLAIN_PEER:
        return AuthenticationFailed(
            "it does not speak TLS there: security.protocol is PLAINTEXT on the other side"
        )
    if "ALERT" in reason:
        told = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return AuthenticationFailed(
            f"it turned this side away: {told} (ssl.certificate.location, ssl.ca.location)"
        )
    return OSError(f"TLS failed: {reason or error}")


def check_pair(server: ssl.SSLContext, files: TlsFiles) -> str:
    """The common name of a certificate that those who have these files believe: by a handshake in
    memory, before anybody depends on it. Raises `UsageError` if they do not."""
    client = client_context(files, check_host=False)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    visitor = client.wrap_bio(to_client, to_server)
    waiting = [visitor, server.wrap_bio(to_server, to_client, server_side=True)]
    try:
        for _ in range(_FLIGHTS_MAX):
            waiting = [end for end in waiting if not _has_agreed(end)]
        assert not waiting, "a handshake takes fewer flights"
        return _common_name(visitor)
    except (ssl.SSLError, AuthenticationFailed) as error:
        raise UsageError(
            f"{files.certificate!r} is not believed by {files.authorities!r}: {error}"
        ) from error


def _has_agreed(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def tls_of(*, protocol: str, files: TlsFiles, identification: str) -> Tls | None:
    """What a client is told by Kafka's names: `protocol` is security.protocol, `identification`
    ssl.endpoint.identification.algorithm. None: no TLS. Raises `UsageError`."""
    if identification not in ("https", "none"):
        name = "ssl.endpoint.identification.algorithm"
        raise UsageError(f"{name} is {identification!r}, expected https or none")
    if protocol == "SSL":
        return Tls(files, check_host=identification == "https")
    if protocol != "PLAINTEXT":
        raise UsageError(f"security.protocol is {protocol!r}, expected PLAINTEXT or SSL")
    if files != TlsFiles():
        raise UsageError("certificates are given, and security.protocol is PLAINTEXT: expected SSL")
    return None


class TlsNetwork:
    """Streams under TLS; implements `ports.Network`."""

    def __init__(self, tls: Tls) -> None:
        """Raises `UsageError` for files that are of no use."""
        self._tls = tls
        self.reload()

    def reload(self) -> None:
        """Use the files as they are now for new connections; raises `UsageError`, and goes on with
        what it had."""
        self._context = self._tls.context()

    async def connect(self, host: str, port: int) -> TlsStream:
        plain = await TcpNetwork().connect(host, port)
        return await secured(plain, self._context, server_side=False, host=host)
