"""A disk in memory that can crash, tear, fill up, fail and be replaced: the other implementation of
`ports.Disk`.

`crash` makes the durable state the only one, and decides by the given randomness what happens to
the rest. Bytes that were never synced: all lost, all kept, cut at any byte, or whole 4 KiB pages
lost out of order (they read as zeros). Names: what was done to a directory (a name made, renamed,
removed) and not synced is kept up to any place in its order; a directory whose own name is lost is
lost with all in it. After a failed sync there are bytes that no later sync makes durable. How files
and directories do all that is in `disk_inodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TypeVar

import trio
import trio.lowlevel

from hightide.net.ports import Random
from hightide_broker.ports import (
    OTHER_DIRECTORY,
    RESERVE_BYTES,
    DiskError,
    DiskFile,
    Done,
    LockHeld,
)
from hightide_broker.simulation.disk_files import SimFile, SimLock
from hightide_broker.simulation.disk_inodes import (
    A_DIRECTORY,
    MISSING,
    NO_DIRECTORY,
    PAGE_BYTES,
    Directory,
    DiskCopy,
    Inode,
    Node,
    directory_of,
    entry,
    find,
    names_in,
    require_movable,
    require_short,
)
from hightide_broker.simulation.disk_syncs import Sync

__all__ = ["PAGE_BYTES", "DiskCopy", "SimDisk", "SimFile", "SimLock"]

T = TypeVar("T")
TEMPORARY_SUFFIX = ".tmp"
"""`replace` writes beside its file first, under a name that ends so."""


class SimDisk:
    """Implements `ports.Disk`. Paths begin at the root or, without a `/`, at the place where the
    process runs; both are directories that are always there."""

    def __init__(
        self,
        *,
        capacity: int = 1 << 40,
        sync_latency_s: float = 0.0,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self.capacity = capacity
        self.page_bytes = page_bytes
        self.sync_latency_s = sync_latency_s
        self.thread_pause: Callable[[], float] | None = None
        """How many seconds until a thread's work is done, and again until that is heard of."""
        self.sync_count = 0
        self.evictions = 0
        self._starts = {"/": Directory(), "": Directory()}
        self._used = 0
        """Bytes of all files that have a name."""
        self._reserve = self._reserve_wanted = 0
        """Room that is set aside, which no file has, and how much of it there is to be."""
        self._spends_reserve = False
        self._emptied = 0
        """Directories so far; no two are emptied in the same order."""
        self._locked: dict[Inode, tuple[str, Directory]] = {}
        """Lock files, each with its directory."""
        self._failures: dict[tuple[str, str], str] = {}
        self._failures_once: list[tuple[str, str, str]] = []

    # -- faults ----------------------------------------------------------------------------------

    def fail(self, operation: str, path_part: str, why: str = "Input/output error") -> None:
        """From now on `operation` (read, write, sync, truncate, replace, or mkdir of a new one) on
        such paths fails. A sync that fails leaves bytes that no later one makes durable."""
        self._failures[(operation, path_part)] = why

    def fail_once(self, operation: str, path_part: str, why: str = "Input/output error") -> None:
        """The next such operation on such a path fails, and only that one."""
        self._failures_once.append((operation, path_part, why))

    def heal(self) -> None:
        """No more failures; what a failed sync dropped stays dropped."""
        self._failures.clear()
        self._failures_once.clear()

    def fail_if_told(self, path: str, operation: str) -> None:
        """Raise the failure that was asked for."""
        for planted in self._failures_once:
            failing, part, why = planted
            if failing == operation and part in path:
                self._failures_once.remove(planted)
                raise DiskError(path, operation, why)
        for (failing, part), why in self._failures.items():
            if failing == operation and part in path:
                raise DiskError(path, operation, why)

    def take_room(self, path: str, size: int) -> None:
        """Raise `DiskError` with `full` if `size` more bytes do not fit."""
        kept = 0 if self._spends_reserve else self._reserve
        if self._used + size > self.capacity - kept:
            raise DiskError(path, "write", "No space left on device", full=True)

    def used_bytes(self) -> int:
        """Bytes of all files, and of the room that is set aside."""
        return self._used + self._reserve

    def _refill_reserve(self) -> None:
        self._reserve = max(min(self._reserve_wanted, self.capacity - self._used), 0)

    def files(self, path_part: str, suffix: str) -> dict[str, bytes]:
        """The files with such paths that are not empty, and what is in them."""
        found = {
            path: node for start, top in self._starts.items() for path, node in top.files(start)
        }
        paths = [path for path in sorted(found) if path_part in path and path.endswith(suffix)]
        return {path: bytes(found[path].data) for path in paths if found[path].data}

    def flip(self, path: str, at: int, bit: int) -> None:
        """One bit of a file is not what was written, durably."""
        self.inode(path, "flip").flip(at, bit)

    def corrupt(self, path: str, position: int, bit: int = 0) -> None:
        """Flip one bit, durably."""
        self.flip(path, position, bit)

    def durable_file(self, path: str) -> bytes | None:
        """What is durable of a file, as a crash leaves it that keeps nothing it need not keep; None
        if there is no such file then."""
        node: Node | None = self._start(path)
        for name in names_in(path):
            node = node.durable.get(name) if isinstance(node, Directory) else None
        return node.synced if isinstance(node, Inode) else None

    def evict(self) -> None:
        """Descriptors are short: a file that is not detached finds its bytes by its path again."""
        self.evictions += 1

    def kill(self) -> None:
        """The process is gone: its locks are free, the page cache stays."""
        for inode in self._locked:
            inode.holder = None
        self._locked.clear()

    def crash(self, random: Random) -> None:
        """Lose power: what was synced stays, the rest is up to `random`."""
        self.kill()
        seen: set[Node] = set()
        for top in self._starts.values():
            self._unlink_all(top)
            top.crash(random, seen)
        for top in self._starts.values():
            self._link_all(top)

    def lose(self, path: str) -> None:
        """The disk that is mounted there is replaced by an empty one."""
        self.restore(path, DiskCopy({}, {}))

    def copy(self, path: str) -> DiskCopy:
        """What is durable under a directory now, for `restore`."""
        return DiskCopy.of(self.directory(path, "copy"))

    def restore(self, path: str, copy: DiskCopy) -> None:
        """The disk that is mounted there is replaced by one that holds the copy. The place where it
        is mounted is durable; what the old one held is gone, but for those who have it open."""
        place = self._start(path)
        *above, last = names_in(path)
        for name in above:
            below = place.entries.get(name) or Directory()
            assert isinstance(below, Directory), f"{path} lies below a file"
            place.put(name, below)
            place = below
        old, new = place.entries.get(last), copy.unfold()
        assert not isinstance(old, Inode), f"{path} is a file"
        if old is not None:
            self._unlink_all(old)
        place.put(last, new)
        self._link_all(new)

    # -- ports.Disk ------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        if create:
            self._check_tenancy(path, "open")
        inode = self._made_file(path) if create else self.inode(path, "open")
        return SimFile(self, path, inode)

    def exists(self, path: str) -> bool:
        try:
            find(self._start(path), path, "exists")
        except DiskError:
            return False
        return True

    def list(self, path: str) -> list[str]:
        return sorted(self.directory(path, "list").entries)

    def make_dirs(self, path: str) -> None:
        self._check_tenancy(path, "mkdir")
        place, names = self._start(path), names_in(path)
        for number, name in enumerate(names, 1):
            node = entry(place, name, path, "mkdir")
            if node is None:
                node = Directory()
                place.change({name: node})
                # It is there, but not durable, for who fails or loses its power here.
                self.fail_if_told(path, "mkdir")
                place.settle()
            if isinstance(node, Inode):
                why = "File exists" if number == len(names) else NO_DIRECTORY
                raise DiskError(path, "mkdir", why)
            place = node

    def rename(self, old: str, new: str) -> None:
        self._check_tenancy(old, "rename")
        source, name = self._place(old, "rename")
        target, new_name = self._place(new, "rename", named=old)
        node = entry(source, name, old, "rename")
        if node is None:
            raise DiskError(old, "rename", MISSING)
        there = entry(target, new_name, old, "rename")
        if there is node:
            return
        require_movable(old, new, node, there)
        if isinstance(there, Inode):
            self._unlink(there)
        if source is target:
            source.change({name: None, new_name: node})
        else:
            target.change({new_name: node})
            source.change({name: None})

    def remove(self, path: str) -> None:
        self._check_tenancy(path, "remove")
        node = self._if_there(path, "remove")
        if isinstance(node, Directory):
            raise DiskError(path, "remove", A_DIRECTORY)
        if node is not None:
            self._unlink(node)
            place, name = self._place(path, "remove")
            place.change({name: None})

    def remove_tree(self, path: str) -> None:
        self._check_tenancy(path, "remove")
        node = self._if_there(path, "remove")
        if isinstance(node, Inode):
            raise DiskError(path, "remove", NO_DIRECTORY)
        if node is not None:
            self._empty(node)
            place, name = self._place(path, "remove")
            place.change({name: None})

    def read_file(self, path: str) -> bytes:
        self.fail_if_told(path, "read")
        return bytes(self.inode(path, "read").data)

    def replace(self, path: str, data: bytes, *, unless: Callable[[], bool] | None = None) -> None:
        if unless is not None and unless():
            return
        self.fail_if_told(path, "replace")
        self._check_tenancy(path, "replace")
        place, name = self._place(path, "replace")
        require_short(name + TEMPORARY_SUFFIX, path, "replace")
        there = place.entries.get(name)
        if isinstance(there, Directory):
            raise DiskError(path, "replace", A_DIRECTORY)
        with self.reserve():
            self.take_room(path, len(data) - (0 if there is None else len(there.data)))
            if there is not None:
                self._unlink(there)
            inode = Inode(bytes(data))
            self._link(inode)
            place.change({name: inode})
            self.sync_directory(directory_of(path))

    def keep_reserve(self, path: str) -> None:
        self.directory(directory_of(path), "open")
        self._reserve_wanted = RESERVE_BYTES
        self._refill_reserve()

    def room_left(self) -> int:
        return min(self.capacity - self._used, RESERVE_BYTES)

    @contextmanager
    def reserve(self) -> Iterator[None]:
        before, self._spends_reserve = self._spends_reserve, True
        try:
            yield
        finally:
            self._spends_reserve = before
            self._refill_reserve()

    def sync_now(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        Sync(self, files, directories).end()

    async def sync(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        await self._end_later(Sync(self, files, directories), files)

    def begin_sync(
        self,
        nursery: trio.Nursery,
        files: Sequence[DiskFile],
        directories: Sequence[str],
        what: T,
        done: Done[T],
    ) -> None:
        sync = Sync(self, files, directories)

        async def end() -> None:
            try:
                await self._end_later(sync, files)
            except DiskError as error:
                done([(what, error)])
            else:
                done([(what, None)])

        nursery.start_soon(end)

    async def _end_later(self, sync: Sync, files: Sequence[DiskFile]) -> None:
        try:
            await self.while_syncing(files)
        except trio.Cancelled:
            sync.drop()
            raise
        sync.end()

    async def while_syncing(self, _files: Sequence[DiskFile]) -> None:
        """How long a sync takes."""
        await trio.sleep(self.sync_latency_s)

    async def in_thread(self, function: Callable[[], T]) -> T:
        pause_s = self.thread_pause
        if pause_s is None:
            await trio.lowlevel.checkpoint()
            return function()
        await trio.sleep(pause_s())
        try:
            return function()
        finally:
            # What a thread has done is done: nobody is cancelled who waits for its end.
            with trio.CancelScope(shield=True):
                await trio.sleep(pause_s())

    def free_bytes(self, path: str) -> int:
        find(self._start(path), path, "statvfs")
        return self.capacity - self._used

    def total_bytes(self, path: str) -> int:
        find(self._start(path), path, "statvfs")
        return self.capacity

    def lock(self, path: str) -> SimLock:
        inode = self._made_file(path)
        if inode.holder is not None:
            raise LockHeld(path, "lock", "it is in use")
        directory = directory_of(path)
        self._locked[inode] = directory, self.directory(directory, "lock")
        return SimLock(inode)

    # -- paths -----------------------------------------------------------------------------------

    def _start(self, path: str) -> Directory:
        return self._starts["/" if path.startswith("/") else ""]

    def _if_there(self, path: str, operation: str) -> Node | None:
        try:
            return find(self._start(path), path, operation)
        except DiskError as error:
            if error.why == MISSING:
                return None
            raise

    def inode(self, path: str, operation: str) -> Inode:
        """The file of a path; raises `DiskError`."""
        node = find(self._start(path), path, operation)
        if isinstance(node, Directory):
            raise DiskError(path, operation, A_DIRECTORY)
        return node

    def directory(self, path: str, operation: str, *, named: str | None = None) -> Directory:
        node = find(self._start(path), path, operation, named=named)
        if isinstance(node, Inode):
            raise DiskError(named or path, operation, NO_DIRECTORY)
        return node

    def _place(
        self, path: str, operation: str, *, named: str | None = None
    ) -> tuple[Directory, str]:
        """The directory that a path's last name is in or would be, and that name."""
        place = self.directory(directory_of(path), operation, named=named or path)
        return place, names_in(path)[-1]

    def _check_tenancy(self, path: str, operation: str) -> None:
        """Another directory may have the name of one that is locked."""
        found = [
            self.directory(directory, operation, named=path) is mine
            for inode, (directory, mine) in self._locked.items()
            if inode.holder is not None and path.startswith(f"{directory}/")
        ]
        if found and not any(found):
            raise DiskError(path, operation, OTHER_DIRECTORY)

    def _made_file(self, path: str) -> Inode:
        """The file of a path, an empty one if there is none."""
        place, name = self._place(path, "open")
        node = entry(place, name, path, "open")
        if node is None:
            node = Inode()
            self._link(node)
            place.change({name: node})
        if isinstance(node, Directory):
            raise DiskError(path, "open", A_DIRECTORY)
        return node

    # -- changes ---------------------------------------------------------------------------------

    def resized(self, inode: Inode, by: int) -> None:
        """A file has so many bytes more."""
        if inode.links:
            self._used += by

    def _link(self, inode: Inode) -> None:
        """One more name leads to a file."""
        if not inode.links:
            self._used += len(inode.data)
        inode.links += 1

    def _unlink(self, inode: Inode) -> None:
        inode.links -= 1
        if not inode.links:
            self._used -= len(inode.data)

    def _link_all(self, directory: Directory) -> None:
        for _, inode in directory.files():
            self._link(inode)

    def _unlink_all(self, directory: Directory) -> None:
        for _, inode in directory.files():
            self._unlink(inode)

    def _empty(self, directory: Directory) -> None:
        """Remove all that is in a directory, one by one and, as on real disks, in no order."""
        self._emptied += 1
        salt = self._emptied.to_bytes(8)
        for name in sorted(
            directory.entries, key=lambda n: blake2b(n.encode(), salt=salt).digest()
        ):
            node = directory.entries[name]
            if isinstance(node, Directory):
                self._empty(node)
            else:
                self._unlink(node)
            directory.change({name: None})

    def sync_directory(self, path: str, marks: Mapping[Directory, int] | None = None) -> None:
        """Make the names in a directory durable: new ones stay, removed ones are gone. All changes
        count, or those up to its mark."""
        directory = self.directory(path, "sync")
        directory.settle(None if marks is None else marks.get(directory, 0))
