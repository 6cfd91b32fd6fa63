"""Syncs of the simulated disk: what is durable at their end is what was there when they began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hightide_broker.ports import DiskError, DiskFile
from hightide_broker.simulation.disk_files import SimFile
from hightide_broker.simulation.disk_inodes import Directory


class Home(Protocol):
    """The disk that syncs."""

    sync_count: int

    def exists(self, path: str) -> bool: ...

    def directory(self, path: str, operation: str) -> Directory: ...

    def fail_if_told(self, path: str, operation: str) -> None: ...

    def sync_directory(self, path: str, marks: Mapping[Directory, int] | None = None) -> None: ...


class Sync:
    """One that has begun; `end` or `drop` must follow."""

    def __init__(
        self, disk: Home, files: Sequence[DiskFile], directories: Sequence[str] = ()
    ) -> None:
        """Raises `DiskError`."""
        self._disk = disk
        self._flushes = []
        for file in files:
            assert isinstance(file, SimFile), f"{file.path} is no file of the simulated disk"
            inode = file.held("open")
            self._flushes.append((file, inode, inode.begin_sync()))
        self._directories = directories
        seen = [disk.directory(path, "sync") for path in directories if disk.exists(path)]
        self._marks = {directory: directory.mark() for directory in seen}

    def end(self) -> None:
        """In order; the first that fails leaves those after it as they were. Raises `DiskError`."""
        while self._flushes:
            file, inode, flush = self._flushes.pop(0)
            try:
                self._disk.fail_if_told(file.path, "sync")
            except DiskError:
                inode.fail_sync(flush)
                self.drop()
                raise
            inode.end_sync(flush)
        for path in self._directories:
            self._disk.fail_if_told(path, "sync")
            self._disk.sync_directory(path, self._marks)
        self._disk.sync_count += 1

    def drop(self) -> None:
        """Nobody waits for it any more: what was not durable is not."""
        for _, inode, flush in self._flushes:
            inode.drop_sync(flush)
        self._flushes = []
