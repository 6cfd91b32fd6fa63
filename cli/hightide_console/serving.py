"""The server of the console, from its port to its end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
from anycorn import Config, serve

from hightide_console.app import Console
from hightide_console.sessions import COOKIE, Sessions

BACKLOG = 100
HEAD_BYTES_MAX = 16 << 10
STOP_S = 2.0


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    return found


def names_of(listener: socket.socket, more: Sequence[str]) -> list[str]:
    """What a browser may call it: loopback by its names, and others that were allowed, with their
    own port, with ours, or with none, as behind a proxy."""
    port = listener.getsockname()[1]
    names = ["127.0.0.1", "localhost", "[::1]", *more]
    return [f"{name}:{port}" for name in names] + (["localhost"] if port == 80 else []) + [*more]


async def run_console(
    listener: socket.socket,
    bootstrap: str,
    options: Mapping[str, Any],
    *,
    users_sign_in: bool,
    allows_changes: bool,
    hosts: Sequence[str] = (),
    ready: Callable[[], None] = lambda: None,
    stop: trio.Event,
) -> None:
    """Serve until told to stop: who looks is let go first, so that nothing is torn off."""
    sessions = Sessions(bootstrap, options, users_sign_in=users_sign_in)
    # Cookies do not know ports: two consoles of one machine would end each other's sessions.
    cookie = f"{COOKIE}_{listener.getsockname()[1]}"
    console = Console(sessions, allows_changes=allows_changes, cookie=cookie)
    app: Any = console.app(names_of(listener, hosts))
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    config.include_server_header = False
    config.graceful_timeout = config.shutdown_timeout = STOP_S
    config.accesslog = None
    config.loglevel = "WARNING"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sessions.run)
        nursery.start_soon(_end_after, stop, sessions)
        ready()
        await serve(app, config, shutdown_trigger=stop.wait, mode="asgi")
        nursery.cancel_scope.cancel()


async def _end_after(stop: trio.Event, sessions: Sessions) -> None:
    await stop.wait()
    sessions.end_all()
