"""The real disk: with `durable` and `system`, the only file that names `os`, descriptors and worker
threads.

Open descriptors are kept in a bounded cache, least recently used first out, so that a broker with
many segments stays below its limit; a sync works on a duplicate, which the cache cannot close under
it. Every `OSError` becomes a `DiskError` here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TypeVar

import trio

from hightide.protocol.records import Buffer
from hightide_broker.ports import (
    OTHER_DIRECTORY,
    RESERVE_BYTES,
    DiskError,
    DiskFile,
    Done,
    LockHeld,
)
from hightide_broker.runtime.base import system
from hightide_broker.runtime.base.durable import (
    FULL,
    disk_error,
    duplicates,
    make_dirs,
    mapped,
    sync,
    sync_directory,
)
from hightide_broker.runtime.base.handover import begin_in_thread
from hightide_broker.runtime.base.one_at_a_time import OneAtATime
from hightide_broker.runtime.base.system import open_files_limit

T = TypeVar("T")

OPEN_FILES_MAX = 4096
"""Upper bound of the descriptor cache; half of the process's limit if that is lower."""
MODE = 0o600
"""Of files: records, and what is kept of passwords, are for their owner alone."""
LOCK_TRIES, LOCK_PAUSE_S = 20, 0.005
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""What a look for a file meets that no file is behind; a disk that fails proves nothing."""
REWRITE_BYTES = 1 << 20


def _own_share(most: int, limit: int) -> int:
    return max(min(most, limit // 2), 16)


def descriptors_beside_the_disk(limit: int | None = None) -> int:
    """How many descriptors a process that may have `limit` may have beside those of a real disk;
    None: this one, as many as it may have now."""
    limit = open_files_limit() if limit is None else limit
    return limit - _own_share(OPEN_FILES_MAX, limit)


class _Tenancy:
    """The directories that this process has locked, each held open so that no other one can be
    taken for it: while a process sleeps, a volume may be mounted over its directory, or another one
    have its name. What is there then is somebody else's."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[str, os.stat_result]] = {}

    def begin(self, directory: str) -> int:
        """It is this process's now; what `end` wants. Raises `OSError`."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._held[descriptor] = directory, os.fstat(descriptor)
        return descriptor

    def end(self, descriptor: int) -> None:
        del self._held[descriptor]
        os.close(descriptor)

    def check(self, path: str) -> None:
        """Raise `OSError` if a path leads into a directory that has taken another one's place."""
        found = [
            os.path.samestat(os.stat(directory), mine)
            for directory, mine in list(self._held.values())
            if path.startswith(f"{directory}/")
        ]
        if found and not any(found):
            raise OSError(errno.ESTALE, OTHER_DIRECTORY)


class RealFile:
    """Implements `ports.DiskFile`."""

    def __init__(self, cache: _Descriptors, path: str, size: int) -> None:
        self._cache = cache
        self._path = path
        self._size = size
        self._own: _Open | None = None
        """The descriptor of a detached file."""

    def __repr__(self) -> str:
        return f"<RealFile {self._path} {self._size}>"

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._size

    def read(self, position: int, size: int) -> bytes:
        with _Using(self, "read") as descriptor:
            return os.pread(descriptor, size, position)

    def read_into(self, view: memoryview, position: int) -> int:
        with _Using(self, "read") as descriptor:
            return os.preadv(descriptor, [view], position)

    def append(self, data: Buffer) -> None:
        view = memoryview(data)
        written = 0
        with _Using(self, "write") as descriptor:
            try:
                while written < len(view):
                    written += os.pwrite(descriptor, view[written:], self._size + written)
            except OSError:
                # The next append begins where this one did: half of it must not stick out behind.
                os.ftruncate(descriptor, self._size)
                raise
        self._size += written

    def truncate(self, size: int) -> None:
        with _Using(self, "truncate") as descriptor:
            os.ftruncate(descriptor, size)
        self._size = size

    def rewrite(self, position: int) -> None:
        while data := self.read(position, REWRITE_BYTES):
            view = memoryview(data)
            with _Using(self, "write") as descriptor:
                while view:
                    written = os.pwrite(descriptor, view, position)
                    view, position = view[written:], position + written

    def duplicate_descriptor(self) -> int:
        with _Using(self, "open") as descriptor:
            return os.dup(descriptor)

    def take(self) -> _Open:
        """A descriptor, until it is left; raises `OSError`."""
        return self._cache.take(self) if self._own is None else self._own

    def leave(self, taken: _Open) -> None:
        """It was used."""
        if taken is not self._own:
            self._cache.leave(taken)

    def detach(self) -> None:
        if self._own is None:
            own = self.duplicate_descriptor()
            # A reader is in one of our calls, and has this file.
            weakref.finalize(self, os.close, own)
            self._own = _Open(own)
            self._cache.close(self)

    def close(self) -> None:
        self._cache.close(self)


class _Using:
    """A block in which a file's descriptor is used; an `OSError` of it becomes a `DiskError`."""

    # Not a generator: every record comes by here, more than once.
    __slots__ = ("_file", "_operation", "_taken")

    def __init__(self, file: RealFile, operation: str) -> None:
        self._file, self._operation = file, operation

    def __enter__(self) -> int:
        try:
            self._taken = self._file.take()
        except OSError as error:
            raise disk_error(self._file.path, self._operation, error) from error
        return self._taken.descriptor

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._file.leave(self._taken)
        except OSError as failure:
            error = error or failure
        if isinstance(error, OSError):
            raise disk_error(self._file.path, self._operation, error) from error


class _Open:
    """An open descriptor, and how many calls use it at this moment."""

    __slots__ = ("closing", "descriptor", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0
        self.closing = False


class _Descriptors:
    """Open descriptors by file, bounded; worker threads use it too, hence the lock and the
    counts."""

    def __init__(self, limit: int, check: Callable[[str], None], flags: int) -> None:
        self._limit = limit
        self._flags = flags | os.O_CLOEXEC
        self._check = check
        self._open: OrderedDict[RealFile, _Open] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, file: RealFile) -> _Open:
        """The file's descriptor, opened if need be; it stays open until it is left. Raises
        `OSError`."""
        with self._lock:
            entry = self._open.get(file)
            if entry is None:
                self._check(file.path)
                entry = _Open(os.open(file.path, self._flags))
                self._open[file] = entry
                self._evict()
            else:
                self._open.move_to_end(file)
            entry.users += 1
            return entry

    def leave(self, taken: _Open) -> None:
        """It was used."""
        with self._lock:
            taken.users -= 1
            if taken.closing and not taken.users:
                os.close(taken.descriptor)

    def _evict(self) -> None:
        """Close the least recently used ones that nobody uses now, down to the limit."""
        excess = len(self._open) - self._limit
        for file in list(self._open)[: max(excess, 0)]:
            if not self._open[file].users:
                os.close(self._open.pop(file).descriptor)

    def close(self, file: RealFile) -> None:
        """Close a file's descriptor, at the latest when its last user is done."""
        with self._lock:
            entry = self._open.pop(file, None)
            if entry is None:
                return
            entry.closing = True
            if not entry.users:
                os.close(entry.descriptor)


class RealLock:
    """A locked file; implements `ports.Lock`."""

    def __init__(self, descriptor: int, end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._end = end

    def release(self) -> None:
        os.close(self._descriptor)
        self._end()


def _put(path: str, temporary: str, data: bytes) -> None:
    """Write a file beside another one, sync it, and have it take the other one's place."""
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            system.sync_all(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.remove(temporary)
        raise


def _free_bytes(path: str | int) -> int:
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


class _Reserve:
    """A file that holds room, and is emptied for as long as there is no other; worker threads use
    it, too. It is held open: another one of its name is not this process's. What cannot be done
    about it is left: it is no worse than to have none."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._is_short = False
        self._lock = threading.RLock()

    @property
    def is_kept(self) -> bool:
        """Whether there is such a file."""
        return self._descriptor is not None

    def keep(self, path: str) -> None:
        with self._lock, suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, MODE)
            weakref.finalize(self, os.close, descriptor)
            self._descriptor = descriptor
            self._fill(descriptor)

    @contextmanager
    def used(self) -> Iterator[None]:
        with self._lock:
            descriptor = self._descriptor
            if descriptor is not None and _free_bytes(descriptor) < RESERVE_BYTES:
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
                self._is_short = True
            try:
                yield
            finally:
                if descriptor is not None and self._is_short:
                    self._fill(descriptor)

    def left(self) -> int:
        """What is left, as far as that can be found out."""
        with self._lock, suppress(OSError):
            if (descriptor := self._descriptor) is not None:
                left = os.fstat(descriptor).st_size + _free_bytes(descriptor)
                return min(left, RESERVE_BYTES)
        return RESERVE_BYTES

    def _fill(self, descriptor: int) -> None:
        """As large as it is to be, or as there is room for."""
        self._is_short = True
        with suppress(OSError):
            size = min(RESERVE_BYTES, os.fstat(descriptor).st_size + _free_bytes(descriptor))
            if size:
                system.allocate(descriptor, size)
            self._is_short = size < RESERVE_BYTES


class RealDisk:
    """Implements `ports.Disk`; with `writes` False, files that are there are only read, also where
    they could not be written."""

    def __init__(self, open_files_max: int = OPEN_FILES_MAX, *, writes: bool = True) -> None:
        self._tenancy = _Tenancy()
        limit = _own_share(open_files_max, open_files_limit())
        flags = os.O_RDWR if writes else os.O_RDONLY
        self._descriptors = _Descriptors(limit, self._tenancy.check, flags)
        self._replacing = OneAtATime()
        self._reserve = _Reserve()

    def open(self, path: str, *, create: bool = False) -> RealFile:
        with self._changing(path, "open") if create else mapped(path, "open"):
            if create and not os.path.exists(path):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE))
            return RealFile(self._descriptors, path, os.stat(path).st_size)

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except OSError as error:
            if error.errno in NOT_THERE:
                return False
            raise DiskError(path, "look", str(error.strerror)) from error  # it may be there
        return True

    def list(self, path: str) -> list[str]:
        with mapped(path, "list"):
            return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        with self._changing(path, "mkdir"):
            make_dirs(path)

    def rename(self, old: str, new: str) -> None:
        with self._changing(old, "rename"):
            os.replace(old, new)

    def remove(self, path: str) -> None:
        with self._changing(path, "remove"), suppress(FileNotFoundError):
            os.remove(path)

    def remove_tree(self, path: str) -> None:
        with self._changing(path, "remove"), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read_file(self, path: str) -> bytes:
        with mapped(path, "read"), open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, data: bytes, *, unless: Callable[[], bool] | None = None) -> None:
        temporary = f"{path}.tmp"
        with self._changing(path, "replace"), self._replacing.of(path):
            if unless is not None and unless():
                return
            try:
                _put(path, temporary, data)
            except OSError as error:
                if error.errno not in FULL or not self._reserve.is_kept:
                    raise
                with self._reserve.used():
                    _put(path, temporary, data)
            sync_directory(os.path.dirname(path) or ".")

    def keep_reserve(self, path: str) -> None:
        self._reserve.keep(path)

    def reserve(self) -> AbstractContextManager[None]:
        return self._reserve.used()

    def room_left(self) -> int:
        return self._reserve.left()

    def sync_now(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        sync(duplicates(files), directories)

    async def sync(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        # Duplicated here, on the loop: in the thread the cache might close them meanwhile.
        held = duplicates(files)
        await trio.to_thread.run_sync(sync, held, directories)

    def begin_sync(
        self,
        nursery: trio.Nursery,
        files: Sequence[DiskFile],
        directories: Sequence[str],
        what: T,
        done: Done[T],
    ) -> None:
        begin_in_thread(partial(sync, duplicates(files), directories), what, done)

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function)

    def free_bytes(self, path: str) -> int:
        with mapped(path, "statvfs"):
            return _free_bytes(path)

    def total_bytes(self, path: str) -> int:
        with mapped(path, "statvfs"):
            facts = os.statvfs(path)
            return facts.f_blocks * facts.f_frsize

    def lock(self, path: str) -> RealLock:
        with mapped(path, "open"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            begun = self._tenancy.begin(os.path.dirname(path) or ".")
        except OSError as error:
            os.close(descriptor)
            raise DiskError(path, "lock", str(error)) from error
        try:
            _flock_soon(descriptor)
        except OSError as error:
            self._tenancy.end(begun)
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            why = f"process {owner} uses this data directory" if owner else "it is in use"
            raise LockHeld(path, "lock", why) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return RealLock(descriptor, partial(self._tenancy.end, begun))

    @contextmanager
    def _changing(self, path: str, operation: str) -> Iterator[None]:
        with mapped(path, operation):
            self._tenancy.check(path)
            yield


def _flock_soon(descriptor: int) -> None:
    """Lock a file. Who only looks whether it is locked holds it for an instant, and is waited
    for; a process that uses the directory is not."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
