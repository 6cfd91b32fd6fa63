"""Open files of the simulated disk, and locks on them."""

from __future__ import annotations

from typing import Protocol

from hightide.protocol.records import Buffer
from hightide_broker.simulation.disk_inodes import Inode


class Home(Protocol):
    """The disk that files are on."""

    evictions: int
    page_bytes: int

    def inode(self, path: str, operation: str) -> Inode: ...

    def fail_if_told(self, path: str, operation: str) -> None: ...

    def take_room(self, path: str, size: int) -> None: ...

    def resized(self, inode: Inode, by: int) -> None: ...


class SimFile:
    """Implements `ports.DiskFile`."""

    def __init__(self, disk: Home, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._evictions: int | None = disk.evictions
        """None: it was detached."""

    @property
    def path(self) -> str:
        return self._path

    def held(self, operation: str) -> Inode:
        """What is open here."""
        if self._evictions is not None and self._evictions != self._disk.evictions:
            self._inode = self._disk.inode(self._path, operation)
            self._evictions = self._disk.evictions
        return self._inode

    def size(self) -> int:
        return len(self._inode.data)

    def read(self, position: int, size: int) -> bytes:
        self._disk.fail_if_told(self._path, "read")
        return bytes(self.held("read").data[position : position + size])

    def read_into(self, view: memoryview, position: int) -> int:
        data = self.read(position, len(view))
        view[: len(data)] = data
        return len(data)

    def append(self, data: Buffer) -> None:
        self._disk.fail_if_told(self._path, "write")
        self._disk.take_room(self._path, len(data))
        inode = self.held("write")
        start = len(inode.data)
        inode.append(data)
        inode.rewrite(self._page_of(start))
        self._disk.resized(inode, len(data))

    def truncate(self, size: int) -> None:
        self._disk.fail_if_told(self._path, "truncate")
        inode = self.held("truncate")
        cut = len(inode.data) - size
        assert cut >= 0, f"{self._path} has {len(inode.data)} bytes and is cut to {size}"
        inode.truncate(size)
        self._disk.resized(inode, -cut)

    def rewrite(self, position: int) -> None:
        self._disk.fail_if_told(self._path, "write")
        self.held("write").rewrite(self._page_of(position))

    def _page_of(self, position: int) -> int:
        """Where the page begins that a byte is in: who writes one byte has all of it written."""
        return position - position % self._disk.page_bytes

    def duplicate_descriptor(self) -> None:
        return None

    def detach(self) -> None:
        self.held("open")
        self._evictions = None

    def close(self) -> None:
        """Nothing is held."""


class SimLock:
    """Implements `ports.Lock`; what is locked is the file, whatever becomes of its name."""

    def __init__(self, inode: Inode) -> None:
        self._inode = inode
        inode.holder = self

    def release(self) -> None:
        if self._inode.holder is self:
            self._inode.holder = None
