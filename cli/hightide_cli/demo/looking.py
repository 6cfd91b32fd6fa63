"""A console beside the demo's cluster, for who wants to see what happens to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hightide_cli.console_process import NEEDS_MORE, is_installed, start_console, stop_console
from hightide_cli.output import say
from hightide_cli.secure_cluster import CLIENT_FILE

if TYPE_CHECKING:
    from pathlib import Path

POLL_S = 0.5


@contextmanager
def console_beside(data: Path, way: dict[str, Any]) -> Iterator[str]:
    """Where the console of the cluster in a directory is, for the block; empty, and why is said,
    if there is none. `way`: how clients come to the cluster, as `Admin` takes it."""
    if not is_installed():
        say(f"it goes on without one: {NEEDS_MORE}")
        yield ""
        return
    words = ["--config", str(data / CLIENT_FILE)] if "sasl_username" in way else []
    started = start_console(data, way["bootstrap_servers"], words)
    try:
        if started.address:
            say(f"the console: {started.address}{_by_whom(way)}")
        yield started.address
    finally:
        stop_console(data)
        if started.process is not None:
            started.process.kill()  # one that did not stop in time
            started.process.wait()


def _by_whom(way: dict[str, Any]) -> str:
    if "sasl_username" not in way:
        return ""
    return f", for {way['sasl_username']} with the password in {way['sasl_password_location']}"


def let_look(address: str, topic: str) -> None:
    """Until Ctrl-C."""
    try:
        say(f"what happened to the flights: {address}#/timeline/{topic}/0")
        say(f"the cluster and its console ({address}) stay until Ctrl-C; then they are removed")
        while True:
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        say("stopping")
