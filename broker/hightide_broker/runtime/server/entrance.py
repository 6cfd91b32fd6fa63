"""Where connections come from: a node's listeners, each with its door."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio

from hightide.net.ports import Stream
from hightide_broker.core.cluster.rates import Rate
from hightide_broker.runtime.server.door import Door, Doors

log = logging.getLogger("hightide.server")

RETRY_S = 0.1
Serve = Callable[[Stream, Door], Awaitable[None]]
"""Serve a connection that came by this door, until it ends."""


class Listener(Protocol):
    """Where connections come from."""

    @property
    def port(self) -> int:
        """The port that is listened on."""
        ...

    async def accept(self) -> Stream:
        """The next connection; raises `OSError` when this one failed, not the listener."""
        ...

    async def aclose(self) -> None:
        """Take no more connections."""
        ...


class Listen(Protocol):
    """How to listen."""

    async def __call__(self, host: str, port: int) -> Listener: ...


class Entrance:
    """A node's listeners; made by `open_entrance`."""

    def __init__(self, doors: Doors, listeners: Sequence[Listener]) -> None:
        self.doors = doors
        self._listeners = listeners
        self._accepting = trio.CancelScope()

    @property
    def port(self) -> int:
        """Where clients come in."""
        return self._listeners[0].port

    @property
    def internal_port(self) -> int:
        """Where nodes come in; the same if there is one door for everybody."""
        return self._listeners[-1].port

    async def run(self, serve: Serve, nursery: trio.Nursery) -> None:
        """Serve each connection in a task of its own, until this is closed."""
        with self._accepting:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self.doors.watch)
                for listener, door in zip(self._listeners, self.doors.all, strict=True):
                    accepting.start_soon(_accept, listener, door, serve, nursery)

    async def aclose(self) -> None:
        """Take no more connections; those that are there are served on."""
        self._accepting.cancel()
        for listener in self._listeners:
            await listener.aclose()


async def next_stream(listener: Listener) -> Stream:
    """The next connection, however many fail before it."""
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            # Out of descriptors, or the peer is gone already: the listener lives on.
            log.warning("a connection could not be accepted: %s", error)
            await trio.sleep(RETRY_S)


async def _accept(listener: Listener, door: Door, serve: Serve, nursery: trio.Nursery) -> None:
    pace = Rate()
    while True:
        nursery.start_soon(serve, await next_stream(listener), door)
        if door.rate is not None:
            pace.record(1, door.rate, trio.current_time())
            # Those who come meanwhile wait outside.
            await trio.sleep(pace.delay_s(door.rate, trio.current_time()))


async def open_entrance(doors: Doors, listen: Listen) -> Entrance:
    """Listen at every door; raises `OSError` that names the one where nobody can."""
    listeners: list[Listener] = []
    for door in doors.all:
        try:
            listeners.append(await listen(door.host, door.port))
        except OSError as error:
            for listener in listeners:
                await listener.aclose()
            why = error.strerror or error
            raise OSError(f"cannot listen on {door.host}:{door.port}: {why}") from error
    return Entrance(doors, listeners)
