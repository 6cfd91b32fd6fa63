"""How Spark's Python processes end: without a traceback when it was Spark that ended them.

Spark ends its processes by closing their sockets: a source's when its query ends, a worker's when
its task is not needed any more. They find out when they write, and end, as they should; a
BrokenPipeError that they print on the way reads as if something had broken.

Run as a program, this is Spark's daemon of workers, which `workers.worker_python` starts instead of
`pyspark.daemon`: for some of them Spark has no setting.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from types import TracebackType
from typing import Any

CLOSED = (BrokenPipeError, ConnectionResetError)
"""What a process meets that writes when nobody reads any more."""
Worker = Callable[[socket.socket, bool], int]


def expect_to_be_left() -> None:
    """From now on it is no news in this process that Spark has closed its socket."""
    sys.excepthook = _but_for_a_closed_socket


def _but_for_a_closed_socket(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, CLOSED):
        sys.__excepthook__(kind, error, trace)


@contextmanager
def expecting_its_end(told: Callable[[], bool]) -> Iterator[None]:
    """Once this process was `told` to stop, it is no news that Spark's JVM has ended, which may
    have been told as well: py4j and PySpark's server of accumulators say nothing of it."""
    from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer

    servers = (AccumulatorTCPServer, AccumulatorUnixServer)

    def handle_error(server: BaseServer, request: Any, address: Any) -> None:
        if not told():
            BaseServer.handle_error(server, request, address)

    def is_news(_: logging.LogRecord) -> bool:
        return not told()

    root = logging.getLogger()  # which py4j uses for that
    root.addFilter(is_news)
    for server in servers:
        setattr(server, "handle_error", handle_error)  # noqa: B010
    try:
        yield
    finally:
        for server in servers:
            delattr(server, "handle_error")
        root.removeFilter(is_news)


def quiet(worker: Worker) -> Worker:
    """The same worker; when its socket was closed, its exit code says not to use it again."""

    def work(sock: socket.socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except CLOSED:
            return 1

    return work


def _run_daemon() -> None:
    # Here, because it needs Unix; sources do not.
    from pyspark import daemon

    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    _run_daemon()
