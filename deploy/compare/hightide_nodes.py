"""Three brokers of hightide as everybody starts them: `hightide up -n 3 --detach`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from compare.processes import ENDING_S, Failed, end, free_ports, run, start, undisturbed

NODES = 3
DATA = "cluster"
START_S = 300.0
HIGHTIDE = (sys.executable, "-m", "hightide_cli.main")


class HightideNodes:
    """Brokers of a directory; `start` makes and starts them."""

    def __init__(self, directory: Path, log: str, settings: Sequence[str] = ()) -> None:
        """`settings`: KEY=VALUE of all nodes."""
        self._data = directory / DATA
        self._settings = [word for each in settings for word in ("--set", each)]
        self._log = log
        self._first = free_ports(NODES)[0]
        self._up: subprocess.Popen[str] | None = None
        self._pids: dict[int, int] = {}

    @property
    def address(self) -> str:
        """host:port of every broker."""
        return ",".join(f"127.0.0.1:{self._first + number}" for number in range(NODES))

    @property
    def pids(self) -> dict[int, int]:
        """Process ids, by the broker's id."""
        return self._pids

    def start(self) -> None:
        """Have `hightide up` start them."""
        command = [*HIGHTIDE, "up", "-n", str(NODES), "--detach", "--data", str(self._data)]
        command += ["--port", str(self._first), *self._settings]
        self._up = start(command, log=f"{self._log}-up")

    def wait(self) -> None:
        """Until `hightide up` says that they serve; raises `Failed`."""
        assert self._up is not None, "after `start`"
        if code := self._up.wait(START_S):
            raise Failed(f"`hightide up` ended with exit code {code}: see {self._log}-up.log")
        command = [*HIGHTIDE, "ps", "--data", str(self._data), "-o", "json"]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        self._pids = {int(row["node"]): int(row["pid"]) for row in json.loads(told.stdout)}

    def end(self) -> None:
        """Kill them: their data is of no use to anybody."""
        if self._up is None:
            return
        self._up.send_signal(signal.SIGINT)  # it ends what it has started so far
        with suppress(subprocess.TimeoutExpired):
            self._up.wait(ENDING_S)
        end([self._up])
        end_hightide(self._data.parent, self._log)


def end_hightide(directory: Path, log: str) -> None:
    """Kill the brokers of a cluster's directory: the locks in it tell their process ids."""
    command = [*HIGHTIDE, "down", "--data", str(directory / DATA), "--kill"]
    run(command, log=f"{log}-down", timeout_s=ENDING_S)


@contextmanager
def hightide_nodes(
    directory: Path, log: str, settings: Sequence[str] = ()
) -> Iterator[HightideNodes]:
    """Brokers that do not run yet; at the end of the block none does."""
    nodes = HightideNodes(directory, log, settings)
    try:
        yield nodes
    finally:
        with undisturbed():
            nodes.end()
