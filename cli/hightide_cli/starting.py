"""One `hightide up` at a time for each directory, and what is left of one that fails: nothing."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import BinaryIO

import click

from hightide_cli.children import Child
from hightide_cli.output import say
from hightide_cli.processes import NodeProcess, forget_plan, stop_started
from hightide_cli.signals import told_to_stop


def stopping(data: Path) -> str:
    """What stops a cluster, to be pasted."""
    return f"hightide down --data {quote(str(data))}"


class Starting:
    """The right to start the nodes of a directory, which one command has at a time: who comes
    second waits, and finds them there. It ends with the command that is run, if not before."""

    def __init__(self, data: Path) -> None:
        self._path = data / "up.lock"
        self._file: BinaryIO | None = None
        while True:
            self._made = [each for each in (data, *data.parents) if not each.exists()]
            data.mkdir(parents=True, exist_ok=True)
            try:
                self._file = self._path.open("ab")
            except FileNotFoundError:
                continue  # another one has just taken the directory along
            except PermissionError:
                return  # who may not write here starts nothing
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another `hightide up` starts what is in {data}: waiting for it")
                fcntl.flock(self._file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                    break
            self._file.close()  # of one that has ended, and took the file along
        click.get_current_context().call_on_close(self.end)

    def end(self) -> None:
        """Let others; directories that were made for it and have nothing in them go."""
        if self._file is None:
            return
        self._path.unlink(missing_ok=True)
        self._file.close()
        self._file = None
        with suppress(OSError):
            for each in self._made:
                each.rmdir()


class Begun:
    """What an `up` has started, as a block: it is stopped again if the block ends in an error, as
    by Ctrl-C, unless it is to stay."""

    def __init__(self, data: Path, *, is_new: bool) -> None:
        """`is_new`: there is no plan of a cluster in `data` yet."""
        self.processes: dict[NodeProcess, Child] = {}
        self.serves = False
        """Whether all nodes do."""
        self.stays = False
        """Whether what serves is left alone, whatever goes wrong."""
        self._data = data
        self._is_new = is_new

    def __enter__(self) -> Begun:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        if self.serves and self.stays:
            say(f"it serves all the same; stop it with: {stopping(self._data)}")
        else:
            self._stop_again()
        if self._is_new and not self.serves:
            forget_plan(self._data)

    def start(self, start: Callable[[NodeProcess], Child], nodes: Iterable[NodeProcess]) -> None:
        """Start nodes, each of which is known before a signal is heard."""
        with told_to_stop(signal.SIGINT, signal.SIGTERM) as told:
            for node in nodes:
                self.processes[node] = start(node)
        if told.is_set():
            raise KeyboardInterrupt

    def _stop_again(self) -> None:
        ran = [node.name for node, process in self.processes.items() if process.poll() is None]
        for left in stop_started(self.processes):
            say(f"{left.name} (process {self.processes[left].pid}) still runs")
        if ran:
            say(f"stopped again what this had started: {', '.join(ran)}")
