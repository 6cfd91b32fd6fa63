"""Sparse indexes of a segment: offset → position, and timestamp → offset.

Entries are big-endian and fixed in size: `.index` (u32 offset relative to the segment's base, u32
position in the file), `.timeindex` (i64 timestamp in ms, u32 relative offset). Both columns rise.
New entries gather in memory and are written in one append by `flush` (at roll, at a recovery point
checkpoint, on close), so that a log holds one open file, not three. Look-ups are a binary search
over file and memory. Losing an index loses nothing: it is rebuilt from the segment.
"""

from __future__ import annotations

import struct

from hightide_broker.ports import Disk

_OFFSET = struct.Struct(">II")
_TIME = struct.Struct(">qI")


class SparseIndex:
    """An index file of pairs (key, value), keys rising strictly."""

    def __init__(self, disk: Disk, path: str, entry: struct.Struct) -> None:
        self._disk = disk
        self.path = path
        self._entry = entry
        self._tail = bytearray()
        self._stored = 0
        self._has_file = disk.exists(path)
        if self._has_file:
            file = disk.open(path)
            self._stored = file.size() // entry.size
            file.close()
        self.last: tuple[int, int] | None = None
        if len(self):
            self.last = self._at(len(self) - 1)

    def __len__(self) -> int:
        return self._stored + len(self._tail) // self._entry.size

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._has_file

    def has_whole_entries(self) -> bool:
        """Whether the file's size is a multiple of the entry's."""
        file = self._disk.open(self.path)
        size = file.size()
        file.close()
        return size % self._entry.size == 0

    def add(self, key: int, value: int) -> None:
        """Append an entry; `key` is above every key so far."""
        assert self.last is None or key > self.last[0], f"{self.path}: {key} after {self.last}"
        self._tail += self._entry.pack(key, value)
        self.last = (key, value)

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is ≤ `key`; None if there is none."""
        if self.last is not None and key >= self.last[0]:
            return self.last
        low, high = 0, len(self)
        with _Entries(self) as entries:
            while low < high:
                middle = (low + high) // 2
                if entries[middle][0] <= key:
                    low = middle + 1
                else:
                    high = middle
            return entries[low - 1] if low else None

    def entries(self) -> list[tuple[int, int]]:
        """Every entry, oldest first."""
        stored = b""
        if self._stored:
            file = self._disk.open(self.path)
            stored = file.read(0, self._stored * self._entry.size)
            file.close()
        return list(self._entry.iter_unpack(stored + bytes(self._tail)))

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries."""
        if count >= len(self):
            return
        if count >= self._stored:
            del self._tail[(count - self._stored) * self._entry.size :]
        else:
            self._tail.clear()
            file = self._disk.open(self.path)
            file.truncate(count * self._entry.size)
            file.close()
            self._stored = count
        self.last = self._at(count - 1) if count else None

    def truncate_below(self, key: int) -> None:
        """Keep the entries whose key is < `key`."""
        low, high = 0, len(self)
        with _Entries(self) as entries:
            while low < high:
                middle = (low + high) // 2
                if entries[middle][0] < key:
                    low = middle + 1
                else:
                    high = middle
        self.truncate(low)

    def clear(self) -> None:
        """Drop the file and every entry; the next flush makes a new one."""
        self._disk.remove(self.path)
        self._has_file = False
        self._tail.clear()
        self._stored = 0
        self.last = None

    def flush(self) -> None:
        """Write what gathered in memory; makes the file even if there is nothing to write."""
        if not self._tail and self._has_file:
            return
        file = self._disk.open(self.path, create=True)
        self._has_file = True
        file.append(bytes(self._tail))
        file.close()
        self._stored += len(self._tail) // self._entry.size
        self._tail.clear()

    def _at(self, number: int) -> tuple[int, int]:
        with _Entries(self) as entries:
            return entries[number]


class _Entries:
    """Random access to an index's entries with the file opened once."""

    def __init__(self, index: SparseIndex) -> None:
        self._index = index

    def __enter__(self) -> _Entries:
        index = self._index
        self._file = index._disk.open(index.path) if index._stored else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def __getitem__(self, number: int) -> tuple[int, int]:
        index, size = self._index, self._index._entry.size
        if number >= index._stored:
            pair = index._entry.unpack_from(index._tail, (number - index._stored) * size)
        else:
            assert self._file is not None
            pair = index._entry.unpack(self._file.read(number * size, size))
        return pair[0], pair[1]


def offset_index(disk: Disk, path: str) -> SparseIndex:
    """Relative offset → position."""
    return SparseIndex(disk, path, _OFFSET)


def time_index(disk: Disk, path: str) -> SparseIndex:
    """Timestamp in ms → relative offset."""
    return SparseIndex(disk, path, _TIME)
