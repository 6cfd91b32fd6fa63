"""Who has a port, and who a data directory, as far as this system tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hightide_broker.storage.directory import LOCK
from hightide_cli.processes import said_by_holder

PROC = Path("/proc")
_LISTENS = "0A"
"""A socket's state in /proc/net/tcp."""


class Taken(NamedTuple):
    """A process that listens."""

    process: int
    command: str

    def __str__(self) -> str:
        return f"process {self.process} ({self.command})"


def who_listens(port: int) -> Taken | None:
    """A process that listens on a port; None if that cannot be found out: it is another user's, or
    this is no Linux."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for entry in PROC.glob("[0-9]*") if sockets else ():
        with suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                if os.readlink(descriptor) in sockets:
                    return Taken(int(entry.name), (entry / "comm").read_text().strip())
    return None


def _inodes(port: int) -> Iterator[str]:
    """Of the sockets that listen on a port."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                    yield inode


def owner_of(directory: Path) -> int | None:
    """The process that uses a data directory now; None if nobody does."""
    with suppress(ValueError):
        return int(said_by_holder(directory / LOCK) or 0) or None
    return None
