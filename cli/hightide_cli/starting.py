"""One `hightide up` at a time for each directory."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import click

from hightide_cli.output import say


class Starting:
    """The right to start the nodes of a directory, which one command has at a time: who comes
    second waits, and finds them there. It ends with the command that is run, if not before."""

    def __init__(self, data: Path) -> None:
        self._path = data / "up.lock"
        self._made = not data.exists()
        while True:
            data.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
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
        """Let others; a directory that was made for it and has nothing in it goes."""
        if not self._file.closed:
            self._path.unlink(missing_ok=True)
            self._file.close()
            if self._made:
                with suppress(OSError):
                    self._path.parent.rmdir()
