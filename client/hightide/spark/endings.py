"""How Spark's Python processes end, and what a worker does between two tasks.

Spark ends its processes by closing their sockets: a source's when its query ends, a worker's when
its task is not needed any more. They find out when they write, and end, as they should; a
BrokenPipeError that they print on the way reads as if something had broken. So nothing is printed.

Run as a program, this is Spark's daemon of workers, which `workers.worker_python` starts instead of
`pyspark.daemon`: for some of them Spark has no setting.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from subprocess import Popen
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

    for server in servers:
        setattr(server, "handle_error", handle_error)  # noqa: B010
    try:
        with _unlogged(lambda _: told()):
            yield
    finally:
        for server in servers:
            delattr(server, "handle_error")


@contextmanager
def whole_or_none() -> Iterator[None]:
    """End the JVM that Spark starts in this block if it is interrupted before it answers.

    A JVM ends when its stdin does, but it looks at that last: one that is left while it starts, by
    Ctrl-C, would stay for ever. What py4j logs meanwhile it raises as well."""
    from pyspark import SparkContext, java_gateway

    started: list[Popen[bytes]] = []

    class Noted(Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            started.append(self)  # first: an interrupt may come before this returns
            super().__init__(*args, **kwargs)

    launched_by = vars(java_gateway)["Popen"]
    setattr(java_gateway, "Popen", Noted)  # noqa: B010
    try:
        with _unlogged(_is_of_an_error):
            yield
    finally:
        setattr(java_gateway, "Popen", launched_by)  # noqa: B010
        if SparkContext._gateway is None:
            for process in started:
                process.kill()
                process.wait()


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends what is asked of Spark in this block and says nothing more. Spark's own handler
    asks the JVM while it may be asked something already; py4j logs a traceback."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _unlogged(lambda record: _is_of_an_error(record, KeyboardInterrupt)):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _unlogged(expected: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """The root logger, which py4j uses, tells nothing that is expected."""

    def is_news(record: logging.LogRecord) -> bool:
        return not expected(record)

    root = logging.getLogger()
    root.addFilter(is_news)
    try:
        yield
    finally:
        root.removeFilter(is_news)


def _is_of_an_error(record: logging.LogRecord, kind: type[BaseException] = BaseException) -> bool:
    found = record.exc_info[0] if record.exc_info else None
    return found is not None and issubclass(found, kind)


def quiet(worker: Worker) -> Worker:
    """The same worker; when its socket was closed, its exit code says not to use it again."""

    def work(sock: socket.socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except CLOSED:
            return 1

    return work


def settling(worker: Worker) -> Worker:
    """The same worker, which goes through all that it has imported after its first task alone.

    PySpark has a process collect what it does not need any more after each task, before the next:
    with Arrow and NumPy that is 35 ms of a processor, for modules that stay."""
    settled = False

    def work(sock: socket.socket, authenticated: bool) -> int:
        nonlocal settled
        code = worker(sock, authenticated)
        if not code and not settled:
            gc.collect()
            gc.freeze()
            settled = True
        return code

    return work


def _run_daemon() -> None:
    # Here, because it needs Unix; sources do not.
    from pyspark import daemon

    worker = quiet(daemon.worker)
    is_used_again = os.environ.get("SPARK_REUSE_WORKER")  # as PySpark asks
    daemon.worker = settling(worker) if is_used_again else worker  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    _run_daemon()
