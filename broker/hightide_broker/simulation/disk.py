"""A disk in memory that can crash, tear, fill up and fail: the other implementation of
`ports.Disk`.

Every file keeps its bytes as the process sees them and the prefix that has been synced; every
directory the names that are durable. `crash` makes the durable state the only one, and decides by
the given randomness what happens to bytes that were never synced: all lost, all kept, cut at any
byte, or whole 4 KiB pages lost out of order (they read as zeros).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio
import trio.lowlevel

from hightide.ports import Random
from hightide.records import Buffer
from hightide_broker.ports import DiskError, DiskFile, LockHeld

T = TypeVar("T")
PAGE_BYTES = 4096


class _Inode:
    """A file's bytes. `synced` is what a crash leaves for sure."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""


class SimFile:
    """Implements `ports.DiskFile`."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self.inode = inode

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return len(self.inode.data)

    def read(self, position: int, size: int) -> bytes:
        self._disk.fail_if_told(self._path, "read")
        return bytes(self.inode.data[position : position + size])

    def read_into(self, view: memoryview, position: int) -> int:
        data = self.read(position, len(view))
        view[: len(data)] = data
        return len(data)

    def append(self, data: Buffer) -> None:
        self._disk.fail_if_told(self._path, "write")
        self._disk.take_room(self._path, len(data))
        self.inode.data += data

    def truncate(self, size: int) -> None:
        self._disk.fail_if_told(self._path, "truncate")
        del self.inode.data[size:]

    def duplicate_descriptor(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is held."""


class SimLock:
    """Implements `ports.Lock`."""

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class SimDisk:
    """Implements `ports.Disk`. Directories exist when they were made; paths are keys."""

    def __init__(self, *, capacity: int = 1 << 40, sync_latency_s: float = 0.0) -> None:
        self.capacity = capacity
        self.sync_latency_s = sync_latency_s
        self.sync_count = 0
        self._files: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._directories: dict[str, None] = {}
        self._locks: set[str] = set()
        self._failures: dict[tuple[str, str], str] = {}

    # -- faults ----------------------------------------------------------------------------------

    def fail(self, operation: str, path_part: str, why: str = "Input/output error") -> None:
        """From now on `operation` (read, write, sync, truncate, replace) on such paths fails."""
        self._failures[(operation, path_part)] = why

    def heal(self) -> None:
        """No more failures."""
        self._failures.clear()

    def files(self, path_part: str, suffix: str) -> dict[str, bytes]:
        """The files with such paths that are not empty, and what is in them."""
        found = [p for p in sorted(self._files) if path_part in p and p.endswith(suffix)]
        return {path: bytes(self._files[path].data) for path in found if self._files[path].data}

    def flip(self, path: str, at: int, bit: int) -> None:
        """One bit of a file is not what was written."""
        inode = self._files[path]
        inode.data[at] ^= 1 << bit
        if at < len(inode.synced):
            inode.synced = bytes(inode.data[: len(inode.synced)])

    def fail_if_told(self, path: str, operation: str) -> None:
        """Raise the failure that was asked for."""
        for (failing, part), why in self._failures.items():
            if failing == operation and part in path:
                raise DiskError(path, operation, why)

    def take_room(self, path: str, size: int) -> None:
        """Raise `DiskError` with `full` if `size` more bytes do not fit."""
        if self.used_bytes() + size > self.capacity:
            raise DiskError(path, "write", "No space left on device", full=True)

    def _require_directory(self, path: str, operation: str) -> None:
        """Raise unless the directory of `path` was made."""
        parent = path.rpartition("/")[0]
        if parent not in ("", ".") and parent not in self._directories:
            raise DiskError(path, operation, "No such file or directory")

    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(inode.data) for inode in self._files.values())

    def corrupt(self, path: str, position: int, bit: int = 0) -> None:
        """Flip one bit, durably."""
        inode = self._files[path]
        inode.data[position] ^= 1 << bit
        if position < len(inode.synced):
            synced = bytearray(inode.synced)
            synced[position] ^= 1 << bit
            inode.synced = bytes(synced)

    def durable_file(self, path: str) -> bytes | None:
        """What a crash leaves of a file for sure; None if there may be no such file."""
        inode = self._durable.get(path)
        return None if inode is None else inode.synced

    def kill(self) -> None:
        """The process is gone: its locks are free, the page cache stays."""
        self._locks.clear()

    def crash(self, random: Random) -> None:
        """Lose power: what was synced stays, the rest is up to `random`."""
        self._locks.clear()
        survivors: dict[str, _Inode] = {}
        for path in sorted(self._durable.keys() | self._files.keys()):
            inode = self._durable.get(path)
            if inode is None:
                # Never synced into its directory: the name may or may not have made it.
                inode = self._files[path]
                if random.random() < 0.5:
                    continue
            inode.data = _after_crash(inode, random)
            inode.synced = bytes(inode.data)
            survivors[path] = inode
        self._files = survivors
        self._durable = dict(survivors)

    # -- ports.Disk ------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        inode = self._files.get(path)
        if inode is None:
            if not create:
                raise DiskError(path, "open", "No such file or directory")
            self._require_directory(path, "open")
            inode = self._files[path] = _Inode()
        return SimFile(self, path, inode)

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def list(self, path: str) -> list[str]:
        self._require_directory(f"{path}/", "list")
        prefix = f"{path}/"
        below = [name for name in (*self._files, *self._directories) if name.startswith(prefix)]
        return sorted({name[len(prefix) :].split("/", 1)[0] for name in below})

    def make_dirs(self, path: str) -> None:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            self._directories["/".join(parts[:count])] = None

    def rename(self, old: str, new: str) -> None:
        if old in self._directories:
            for table in (self._files, self._durable):
                for path in [p for p in table if p.startswith(f"{old}/")]:
                    table[new + path[len(old) :]] = table.pop(path)
            for name in [d for d in self._directories if d == old or d.startswith(f"{old}/")]:
                del self._directories[name]
                self._directories[new + name[len(old) :]] = None
            return
        if old not in self._files:
            raise DiskError(old, "rename", "No such file or directory")
        self._files[new] = self._files.pop(old)

    def remove(self, path: str) -> None:
        self._files.pop(path, None)

    def remove_tree(self, path: str) -> None:
        for table in (self._files, self._durable):
            for name in [n for n in table if n.startswith(f"{path}/")]:
                del table[name]
        for name in [n for n in self._directories if n == path or n.startswith(f"{path}/")]:
            del self._directories[name]

    def read_file(self, path: str) -> bytes:
        self.fail_if_told(path, "read")
        if path not in self._files:
            raise DiskError(path, "read", "No such file or directory")
        return bytes(self._files[path].data)

    def replace(self, path: str, data: bytes) -> None:
        self.fail_if_told(path, "replace")
        self._require_directory(path, "replace")
        before = len(self._files[path].data) if path in self._files else 0
        self.take_room(path, len(data) - before)
        inode = _Inode()
        inode.data = bytearray(data)
        inode.synced = bytes(data)
        self._files[path] = inode
        self._sync_directory(path.rsplit("/", 1)[0])

    def sync_now(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        for file in files:
            assert isinstance(file, SimFile)
            self.fail_if_told(file.path, "sync")
            file.inode.synced = bytes(file.inode.data)
        for directory in directories:
            self.fail_if_told(directory, "sync")
            self._require_directory(f"{directory}/", "sync")
            self._sync_directory(directory)
        self.sync_count += 1

    def _sync_directory(self, directory: str) -> None:
        """Make the names in a directory durable: new ones stay, removed ones are gone."""
        prefix = f"{directory}/"
        for path in [p for p in self._durable if _is_in(p, prefix)]:
            del self._durable[path]
        for path, inode in self._files.items():
            if _is_in(path, prefix):
                self._durable[path] = inode

    async def sync(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        # What is durable after the latency is what was there before it.
        seen = [(file, bytes(file.inode.data)) for file in files if isinstance(file, SimFile)]
        await trio.sleep(self.sync_latency_s)
        for file, data in seen:
            self.fail_if_told(file.path, "sync")
            file.inode.synced = data
        self.sync_now([], directories)

    async def in_thread(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return function()

    def free_bytes(self, path: str) -> int:
        return self.capacity - self.used_bytes()

    def lock(self, path: str) -> SimLock:
        self._require_directory(path, "lock")
        if path in self._locks:
            raise LockHeld(path, "lock", "it is in use")
        self._locks.add(path)
        return SimLock(self._locks, path)


def _is_in(path: str, prefix: str) -> bool:
    return path.startswith(prefix) and "/" not in path[len(prefix) :]


def _after_crash(inode: _Inode, random: Random) -> bytearray:
    """What remains of a file: its synced bytes, and some of what was appended after them."""
    data = inode.data
    if not data.startswith(inode.synced):
        return bytearray(inode.synced)
    fresh = len(data) - len(inode.synced)
    if fresh == 0:
        return bytearray(data)
    fate = random.randrange(4)
    if fate == 0:
        return bytearray(inode.synced)
    if fate == 1:
        return bytearray(data)
    if fate == 2:
        return data[: len(inode.synced) + random.randrange(fresh + 1)]
    return _with_holes(data, len(inode.synced), random)


def _with_holes(data: bytearray, synced: int, random: Random) -> bytearray:
    """Some pages of the unsynced part never reached the disk and read as zeros."""
    torn = bytearray(data)
    position = synced
    while position < len(torn):
        upto = min((position // PAGE_BYTES + 1) * PAGE_BYTES, len(torn))
        if random.random() < 0.5:
            torn[position:upto] = bytes(upto - position)
        position = upto
    return torn
