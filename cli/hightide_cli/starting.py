"""One `hightide up` at a time for each directory."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import click

from hightide_cli.output import say


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
