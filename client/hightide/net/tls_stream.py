"""A stream under TLS: handshakes, records, and what is said to who is turned away.

TLS works in memory here, and the socket is used as without it. So everything has a measure: how
much a turn of the event loop decrypts, and how much a peer may send that brings nothing. OpenSSL
over the socket itself reads for as long as there is something to read: who sends it one change of
keys after the other would hold the loop. Alerts leave before a connection ends, so that who is
turned away hears why.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import trio

from hightide.net.tcp import SocketStream, TcpNetwork, TcpStream
from hightide.net.tls import (
    PLAIN_PEER,
    ClientContext,
    Tls,
    check_resumed,
    common_name,
    failed,
    subject,
)
from hightide.protocol.errors import RemoteProtocolError
from hightide.protocol.records import Buffer
from hightide.protocol.words import counted

LAST_WORDS_S = 1.0
"""How long who was turned away has to hear why."""
TURN_BYTES = 16 << 10
"""What is taken in at a time: about a record. Of large frames it is `CHUNK_BYTES`."""
FRUITLESS_BYTES_MAX = 64 << 10
"""How much may come, or wait to be sent for TLS itself, between two pieces of data. A record has
16 KiB at most; a change of keys has 27 bytes and costs more than all of them."""
CHUNK_BYTES = 64 << 10
"""What is encrypted at a time: small buffers are joined up to this, large ones cut."""
HELD_BYTES_MAX = 17 << 10
"""What TLS may keep of a record that is not whole: so much of what is wanted may have come."""
_SEND_BYTES = 1 << 20
"""What of a file leaves in one call."""
Turn = Callable[[], Awaitable[None]]
_ALERT = bytes.fromhex("15030300020246")
"""An alert, for who does not speak TLS: by its first bytes a client of ours knows what it met."""


class TlsStream(SocketStream):
    """A socket under TLS; implements `ports.Stream`. Made by `secured`."""

    can_send_file = True
    turn_bytes = 256 << 10

    def __init__(
        self,
        stream: TcpStream,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        host: str | None = None,
    ) -> None:
        """Takes the socket of `stream`; `host` is whose certificate is expected."""
        super().__init__(stream.detach(), stream.peer)
        self._plain = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=host
        )
        self._leaving = memoryview(b"")
        """Encrypted, and not taken by the socket yet."""
        self._promised = 0
        """How many bytes of the caller's were encrypted and have not left: they are offered again,
        and count once they have."""
        self._fruitless = 0
        """How much came since there was data."""

    @property
    def common_name(self) -> str:
        """Of the other end's certificate; empty if it showed none."""
        return common_name(self._tls)

    @property
    def subject(self) -> list[tuple[str, str]]:
        """Of the other end's certificate; empty if it showed none."""
        return subject(self._tls)

    @property
    def version(self) -> str:
        """What both ends agreed about, as `TLSv1.3`."""
        return self._tls.version() or ""

    def check_resumed(self) -> None:
        """Raise `AuthenticationFailed` for an old session whose certificate has expired since."""
        check_resumed(self._tls)

    async def agree(self, turn: Turn = trio.lowlevel.checkpoint) -> None:
        """Shake hands; `turn` is awaited before each step of it. Raises `ssl.SSLError` or
        `OSError`."""
        while True:
            await turn()
            try:
                self._tls.do_handshake()
                self._fruitless = 0
                return await self._send_flight()
            except ssl.SSLWantReadError:
                await self._send_flight()
                await self._take_in()

    async def receive_into(self, view: memoryview, wanted: int = 1) -> int:
        while True:
            self._check_open()
            try:
                count = self._tls.read(len(view), view)
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    self._flush()  # the other end changed its keys, and asks for others of this one
                self._check_fruit()
                await self._take_in(wanted)
            except ssl.SSLEOFError:
                return 0  # frames have lengths: an end inside of one is seen there
            except ssl.SSLError as error:
                raise failed(error) from error
            else:
                self._fruitless = 0
                return int(count)

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        self._check_open()
        sent = 0
        for chunk in _chunks(buffers):
            if not self._has_left(chunk):
                break
            sent += len(chunk)
        return sent

    def send_file_now(self, fd: int, position: int, size: int) -> int:
        self._check_open()
        sent, most = 0, min(size, _SEND_BYTES)
        while sent < most:
            chunk = min(CHUNK_BYTES, most - sent)
            if not self._has_left(b"" if self._promised else _read(fd, position + sent, chunk)):
                break
            sent += chunk
        return sent

    def _has_left(self, chunk: Buffer) -> bool:
        """Whether the socket took all of it; what it did not take is offered again."""
        if not self._promised:
            self._encrypt(chunk)
            self._promised = len(chunk)
        if not self._flush():
            return False
        self._promised = 0
        return True

    def _encrypt(self, chunk: Buffer) -> None:
        try:
            count = self._tls.write(chunk)
        except ssl.SSLError as error:
            raise OSError(f"TLS failed: {error.reason or error}") from error
        assert count == len(chunk), "memory takes everything"

    def _flush(self) -> bool:
        """Send what is encrypted; whether the socket took all of it."""
        while self._leaving or self._outgoing.pending:
            if not self._leaving:
                self._leaving = memoryview(self._outgoing.read())
            try:
                self._leaving = self._leaving[self._socket.send(self._leaving) :]
            except BlockingIOError:
                return False
        return True

    async def _send_flight(self) -> None:
        while not self._flush():
            await self.wait_writable()

    async def _take_in(self, wanted: int = 1) -> None:
        """Wait for bytes of the other end, and give TLS as many as it works on in one turn."""
        size = min(max(wanted, TURN_BYTES), CHUNK_BYTES)
        to_come = max(wanted - HELD_BYTES_MAX, 1)
        data = await self._read(partial(self._socket.recv, size), min(to_come, size))
        self._without_turn += len(data)
        self._fruitless += len(data)
        self._plain.has_spoken = True
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _check_fruit(self) -> None:
        if max(self._fruitless, self._outgoing.pending) > FRUITLESS_BYTES_MAX:
            raise RemoteProtocolError(
                f"more than {FRUITLESS_BYTES_MAX} bytes came under TLS, and nothing in them"
            )

    async def leave(self, error: ssl.SSLError) -> None:
        """Say why, and close once the other end has, or soon: what it still sends would take our
        last words away."""
        with suppress(OSError), trio.move_on_after(LAST_WORDS_S):
            if error.reason in PLAIN_PEER:
                self._socket.send(_ALERT)
            self._flush()
            self._socket.shutdown(socket.SHUT_WR)
            while True:
                await trio.lowlevel.wait_readable(self._socket)
                if not self._socket.recv(TURN_BYTES):
                    break
        await self.aclose()

    def _say_goodbye(self) -> None:
        with suppress(OSError, ValueError):
            self._tls.unwrap()  # nobody waits for the answer
        with suppress(OSError):
            self._flush()


def _read(fd: int, position: int, size: int) -> bytes:
    data = os.pread(fd, size, position)
    if len(data) < size:
        raise OSError(
            f"file ended {counted(size - len(data), 'byte')} early while it was being sent"
        )
    return data


def _chunks(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """The buffers as pieces for TLS; the same buffers make the same pieces."""
    small: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) > CHUNK_BYTES and small:
            yield b"".join(small)
            small, size = [], 0
        if len(buffer) > CHUNK_BYTES:
            view = memoryview(buffer)
            yield from (view[at : at + CHUNK_BYTES] for at in range(0, len(view), CHUNK_BYTES))
        elif len(buffer):
            small.append(buffer)
            size += len(buffer)
    if small:
        yield b"".join(small)


async def secured(
    stream: TcpStream,
    context: ssl.SSLContext,
    *,
    server_side: bool,
    host: str | None = None,
    turn: Turn = trio.lowlevel.checkpoint,
) -> TlsStream:
    """The stream under TLS, once both sides agree; it is closed if they do not. `turn` is awaited
    before what takes a processor milliseconds. Raises
    `AuthenticationFailed` where one of them turns the other away, or `OSError`."""
    inside = TlsStream(stream, context, server_side=server_side, host=host)
    has_agreed = False
    try:
        await inside.agree(turn)
        has_agreed = True
    except ssl.SSLError as error:
        if server_side:
            await inside.leave(error)
        raise failed(error) from error
    finally:
        if not has_agreed:
            await inside.aclose()
    return inside


class TlsNetwork:
    """Streams under TLS; implements `ports.Network`."""

    def __init__(self, tls: Tls, *, follows_files: bool = True) -> None:
        """`follows_files`: whether replaced files are taken with the next connection, or by
        `reload` alone. Raises `UsageError` for files that are of no use."""
        self._context = ClientContext(tls, follows_files=follows_files)

    def reload(self) -> None:
        """Use the files as they are now for new connections; raises `UsageError`, and goes on with
        what it had."""
        self._context.renew()

    async def connect(self, host: str, port: int) -> TlsStream:
        """Raises `OSError`, or `AuthenticationFailed` where one end turns the other away."""
        plain = await TcpNetwork().connect(host, port)
        return await secured(plain, self._context.current(), server_side=False, host=host)
