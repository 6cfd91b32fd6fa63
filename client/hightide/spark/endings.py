"""How Spark's Python processes end: without a traceback when it was Spark that ended them.

Spark ends its processes by closing their sockets: a source's when its query ends, a worker's when
its task is not needed any more. They find out when they write, and end, as they should; a
BrokenPipeError that they print on the way reads as if something had broken.

Run as a program, this is Spark's daemon of workers, which `workers.worker_python` starts instead of
`pyspark.daemon`: for some of them Spark has no setting.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from types import TracebackType

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
