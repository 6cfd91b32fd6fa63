"""What the broker needs of a disk, as Protocols.

Reads, appends, truncation and renames are plain calls on the page cache. Only `Disk.sync` and
`Disk.in_thread` await: whatever can block long goes through them. The small durable files
(checkpoints, quorum state) are written by `replace`, which blocks for one sync and is meant for
rare events or for a worker thread.

The file system's failures leave here as `DiskError`, and nowhere else: `full` says that there was
no room, and then the file is as it was before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from hightide.protocol.records import Buffer

if TYPE_CHECKING:
    from trio import Nursery

T = TypeVar("T")

Outcomes = list[tuple[T, BaseException | None]]
"""What has ended, and what each failed with."""
Done = Callable[[Outcomes[T]], None]
"""Told of it."""


RESERVE_BYTES = 4 << 20
"""Enough for thousands of elections on a disk that data has filled."""
OTHER_DIRECTORY = "another directory has taken the place of the one that this process locked"


class DiskError(Exception):
    """The disk failed. After a failed sync nothing of that file may be trusted or acknowledged."""

    def __init__(self, path: str, operation: str, why: str, *, full: bool = False) -> None:
        super().__init__(f"{operation} of {path} failed: {why}")
        self.path = path
        self.operation = operation
        self.why = why
        self.full = full
        """No room was left; nothing of the call took effect."""


class NodeMustStop(Exception):
    """This node can keep no promise any more; it stops, and says why."""


class LockHeld(DiskError):
    """Another process uses the data directory."""


class DiskFile(Protocol):
    """An open file that only grows at its end or is cut."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer at the end of the file."""
        ...

    def read_into(self, view: memoryview, position: int) -> int:
        """Fill `view` from `position`; how many bytes were there."""
        ...

    def append(self, data: Buffer) -> None:
        """Write at the end, wholly or not at all."""
        ...

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes."""
        ...

    def rewrite(self, position: int) -> None:
        """Write what is there from `position` on once more: after a sync that failed the system may
        call pages clean that never reached the disk, and no later sync would write them."""
        ...

    def duplicate_descriptor(self) -> int | None:
        """A descriptor of its own for `sendfile`, to be closed by the caller; None where there are
        no descriptors."""
        ...

    def detach(self) -> None:
        """Keep to the bytes that are there, whatever becomes of the name: it is about to be removed
        or given to another file. Released when nobody has this file any more."""
        ...

    def close(self) -> None:
        """Release what the open file holds."""
        ...


class Lock(Protocol):
    """A lock on a data directory."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are plain strings with `/`."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and appending; `create` makes an empty file if there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents, durably; fine if it is there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomically, over `new` if it is there; durable after `sync` of the directory."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; fine if it is gone."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it; fine if it is gone."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace(self, path: str, data: bytes, *, unless: Callable[[], bool] | None = None) -> None:
        """Write a small file durably and all at once: tmp, sync, rename, sync the directory. Others
        may replace it at the same time; the last one stays. Not if `unless` says so, which is asked
        when nobody else is at work on this file any more."""
        ...

    def keep_reserve(self, path: str) -> None:
        """Set room aside for what must be written on a full disk, too: `RESERVE_BYTES`, or as much
        as there is, held by a file of this name."""
        ...

    def reserve(self) -> AbstractContextManager[None]:
        """What is appended for the block may use that room, as every `replace` may; it is set aside
        again as soon as there is some."""
        ...

    def room_left(self) -> int:
        """What is left of that room, and free beside it, `RESERVE_BYTES` at most."""
        ...

    def sync_now(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        """Make files and directories durable, blocking; for worker threads and start-up."""
        ...

    async def sync(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        """Make files and directories durable without blocking other tasks."""
        ...

    def begin_sync(
        self,
        nursery: Nursery,
        files: Sequence[DiskFile],
        directories: Sequence[str],
        what: T,
        done: Done[T],
    ) -> None:
        """Make files and directories durable, as they are now: in a thread, or in a task of the
        nursery. `done` is called in the event loop with `what` and what failed, and with those that
        ended beside it; it raises nothing. Raises `DiskError` if it cannot be begun."""
        ...

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run something that may block long without blocking other tasks."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """Of the file system that holds `path`, free or not."""
        ...

    def lock(self, path: str) -> Lock:
        """Take a lock file; raises `LockHeld`. Nothing is made, renamed or removed by name in a
        directory that took the place of the lock's while that is held: `DiskError`."""
        ...


def size_of(disk: Disk, path: str) -> int:
    """Bytes of a file; raises `DiskError`."""
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()
