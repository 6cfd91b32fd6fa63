"""The real network: TCP sockets under trio, with scatter sends and `sendfile`."""

from __future__ import annotations

import errno
import os
import platform
import random
import re
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

import trio

from hightide.protocol.records import Buffer
from hightide.protocol.words import counted

R = TypeVar("R")

_IOV_MAX = 512
"""Buffers handed to one sendmsg call; the kernel's own limit is 1024."""
_SENDFILE_BYTES = 1 << 20
WAKE_BYTES_MAX = 512 << 10
"""Who wants much is woken for so much of it, not for each packet."""


def wakes_in_time(system: str, release: str) -> bool:
    """Whether a kernel with SO_RCVLOWAT wakes who waits for more than its buffers can hold. Linux
    before 5.12 did not where packets hold little of what they take, or memory is short; what only
    calls itself Linux (gVisor, the first WSL) says that it is older."""
    version = re.match(r"(\d+)\.(\d+)", release)
    return (
        system == "linux" and version is not None and (int(version[1]), int(version[2])) >= (5, 12)
    )


MAY_SLEEP_LONGER = wakes_in_time(sys.platform, platform.release())
"""Whether readers wait for much at a time."""
LASTING_PORTS = range(15_000, 32_000)
"""Below what systems give to those who ask for any port."""


def wake_at(sock: socket.socket, count: int) -> None:
    """The socket is readable once so many bytes are there, or as many as it can hold; or at its
    end."""
    if MAY_SLEEP_LONGER:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


class SocketStream:
    """What every stream over a socket has in common; it does not block."""

    turn_bytes = 1 << 20
    """What may be read of one connection while others wait."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._socket = sock
        self._peer = peer
        self._without_turn = 0
        """Bytes that were read since the event loop had a turn."""
        self._woken_at = 1
        self.has_spoken = False
        """Whether anything has come from the other end."""

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def common_name(self) -> str:
        return ""

    async def wait_writable(self) -> None:
        self._check_open()
        await trio.lowlevel.wait_writable(self._socket)

    async def _read(self, read: Callable[[], R], wanted: int) -> R:
        """What `read` brings, once it does; `wanted` as `receive_into` has it."""
        # Tried first only where more is to come: of anything else, mostly nothing has come yet.
        must_wait = wanted == 1 or self._without_turn >= self.turn_bytes
        while True:
            self._check_open()
            if must_wait:
                self._wake_at(min(wanted, WAKE_BYTES_MAX))
                await trio.lowlevel.wait_readable(self._socket)
                self._without_turn = 0
            try:
                found = read()
            except BlockingIOError:
                must_wait = True
            else:
                self.has_spoken = True
                return found

    def _wake_at(self, count: int) -> None:
        if count != self._woken_at:
            wake_at(self._socket, count)
            self._woken_at = count

    def _check_open(self) -> None:
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError("this end was closed")

    def shut_down(self) -> None:
        """Both ends see the end of the stream, also those that are reading."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._say_goodbye()
            self._socket.close()

    def _say_goodbye(self) -> None:
        """What the other end is told before the socket is closed: nothing."""


class TcpStream(SocketStream):
    """A connected socket; implements `ports.Stream`."""

    can_send_file = hasattr(os, "sendfile")

    def __init__(self, sock: trio.socket.SocketType) -> None:
        # The plain socket: what can be done at once is done without a turn of the event loop.
        plain = socket.socket(fileno=sock.detach())
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            host, port = plain.getpeername()[:2]
            peer = f"{host}:{port}"
        except OSError:
            peer = "gone"
        super().__init__(plain, peer)

    async def receive_into(self, view: memoryview, wanted: int = 1) -> int:
        count = await self._read(partial(self._socket.recv_into, view), wanted)
        self._without_turn += count
        return count

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        self._check_open()
        try:
            return self._socket.sendmsg(buffers[:_IOV_MAX])
        except BlockingIOError:
            return 0

    def send_file_now(self, fd: int, position: int, size: int) -> int:
        self._check_open()
        try:
            sent = os.sendfile(self._socket.fileno(), fd, position, min(size, _SENDFILE_BYTES))
        except BlockingIOError:
            return 0
        if sent == 0:
            raise OSError(f"file ended {counted(size, 'byte')} early while it was being sent")
        return sent

    def detach(self) -> socket.socket:
        """The socket, for another stream; this one is over."""
        sock = socket.socket(fileno=self._socket.detach())
        sock.setblocking(False)  # a new object does not know it
        return sock


class TcpNetwork:
    """Implements `ports.Network`."""

    async def connect(self, host: str, port: int) -> TcpStream:
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError as error:
            tried = getattr(error.__cause__, "exceptions", ())
            if tried and all(isinstance(one, ConnectionRefusedError) for one in tried):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused") from error
            raise
        except (ValueError, OverflowError) as error:  # a name or a number that cannot be one
            raise OSError(errno.EINVAL, f"{host!r}:{port} is no address: {error}") from error
        return TcpStream(stream.socket)


class TcpListener:
    """A listening socket."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._socket.getsockname()[1])

    async def accept(self) -> TcpStream:
        """The next connection."""
        sock, _ = await self._socket.accept()
        return TcpStream(sock)

    async def aclose(self) -> None:
        """Take no more connections."""
        self._socket.close()


async def listen(host: str, port: int) -> TcpListener:
    """A bound, listening socket; raises `OSError` (address in use, no such address)."""
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=512)
    return TcpListener(listeners[0].socket)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has now. None of those that systems give to those who ask for
    any, so that a node that comes back finds its own still free. Raises `OSError` if there are not
    so many."""
    found: list[int] = []
    with ExitStack() as held:
        for port in random.SystemRandom().sample(LASTING_PORTS, k=len(LASTING_PORTS)):
            if len(found) == count:
                break
            one = held.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(port)
    if len(found) < count:
        raise OSError(f"{count} free ports are wanted, there are {len(found)}")
    return found
