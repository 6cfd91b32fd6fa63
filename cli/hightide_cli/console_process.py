"""The console that `up --console` starts beside a cluster, found again by the file it holds."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from hightide_cli.children import spawn
from hightide_cli.output import say
from hightide_cli.processes import said_by_holder

START_S = 60.0
STOP_S = 10.0
LOOKED_AT_S = 1.0
_POLL_S = 0.05


NEEDS_MORE = "the console needs more: pip install 'hightide[console]'"


def is_installed() -> bool:
    """Whether the extra is there that the console needs."""
    return find_spec("anycorn") is not None and find_spec("starlette") is not None


def held_file(data: Path) -> Path:
    """What a console of this cluster holds, and says in it where it is."""
    return data / "run" / "console.json"


def hold(path: Path) -> TextIO:
    """Hold it for as long as this process lives; raises `BlockingIOError` if another does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    until = time.monotonic() + LOOKED_AT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                file.close()
                raise
            time.sleep(_POLL_S)  # who looks whether one runs holds it for a moment
        else:
            file.truncate(0)
            return file


def running(data: Path) -> dict[str, Any]:
    """`pid` and `address` of the console that runs; empty if none does."""
    try:
        found: dict[str, Any] = json.loads(said_by_holder(held_file(data)) or "{}")
    except ValueError:
        return {}
    return found


class Started(NamedTuple):
    """A console that runs, or does not."""

    address: str
    """Empty: it cannot be started, and why was said."""
    process: subprocess.Popen[bytes] | None = None
    """None: it ran already, or there is none."""


def start_console(data: Path, bootstrap: str, words: Sequence[str]) -> Started:
    """The cluster's console, started if it does not run."""
    if found := running(data):
        return Started(str(found.get("address", "")))
    if not is_installed():
        say(NEEDS_MORE)
        return Started("")
    path, log = held_file(data), data / "logs" / "console.log"
    command = [sys.executable, "-m", "hightide_cli.main", "console", "-b", bootstrap, *words]
    command += ["--listen", "127.0.0.1:0", "--held", str(path.resolve())]
    with log.open("ab") as output:
        process = spawn(command, output)
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        if (found := running(data)).get("pid") == process.pid:
            return Started(str(found["address"]), process)
        time.sleep(_POLL_S)
    say(f"the console did not start, see {log}")
    return Started("", process)


def stop_console(data: Path) -> None:
    """Stop the console of a cluster, if it runs."""
    pid = running(data).get("pid")
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while running(data).get("pid") == pid and time.monotonic() < until:
        time.sleep(_POLL_S)
    say(f"console (process {pid}) {'still runs' if running(data).get('pid') == pid else 'stopped'}")
