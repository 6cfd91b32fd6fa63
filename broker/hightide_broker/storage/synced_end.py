"""`synced-end`: up to which offset a metadata log was certainly on disk.

A log that ends below it was not torn by a crash, it was damaged: who votes with less than it has
acknowledged may elect a leader that lacks what was committed. It is raised now and then, after a
sync, and lowered before each cut, so that it never says too much. One number as text; a file that
is none says nothing, as one from before there were any.
"""

from __future__ import annotations

from hightide_broker.ports import Disk, DiskError

SYNCED_END = "synced-end"


class SyncedEnd:
    """The file of one log."""

    def __init__(self, disk: Disk, directory: str) -> None:
        """Raises `DiskError`."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{SYNCED_END}"
        text = disk.read_file(self._path) if disk.exists(self._path) else b""
        self.offset = int(text) if text.strip().isdigit() else 0
        """Everything below it was on disk."""

    def missed_by(self, end: int) -> str:
        """What is wrong with a log that ends there; empty if nothing is."""
        if end >= self.offset:
            return ""
        return (
            f"{self._directory} ends at offset {end}, but was on disk up to offset {self.offset}: "
            f"restore it from a copy, or make it again (hightide storage format --join); "
            f"this node must not vote with less than it knew"
        )

    def raise_to(self, offset: int) -> None:
        """All below is on disk now. Where there is no room, what was known before stays; raises
        `DiskError` for anything else."""
        if offset <= self.offset:
            return
        # First: of a write that failed the name may be there, and a cut is to lower what it says.
        self.offset = offset
        try:
            self._write(offset)
        except DiskError as error:
            if not error.full:
                raise

    def lower_to(self, offset: int) -> None:
        """The log is about to be cut there; raises `DiskError`."""
        if offset < self.offset:
            self._write(offset)
            self.offset = offset

    def _write(self, offset: int) -> None:
        self._disk.replace(self._path, f"{offset}\n".encode())
