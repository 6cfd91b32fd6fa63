"""What is known of producers, kept beside the segments: `<offset>.snapshot` says what lies below
that offset. What is in it is the caller's; one that is missing costs a longer replay, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from hightide_broker.ports import Disk
from hightide_broker.storage.segment import file_name


class ProducerSnapshots:
    """The snapshots in the directory of one log."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.newest = -1
        """The one that was written or read last, if it is still there."""

    def offsets(self) -> list[int]:
        """Offsets of the snapshots, rising."""
        names = self._disk.list(self._directory)
        return [
            int(name[:20]) for name in names if name.endswith(".snapshot") and name[:20].isdigit()
        ]

    def write(self, offset: int, data: bytes) -> None:
        """Keep the producers' state up to `offset`."""
        self._disk.replace(self._path(offset), data)
        self.newest = offset

    def read(self, offset: int) -> bytes:
        """A snapshot's bytes."""
        data = self._disk.read_file(self._path(offset))
        self.newest = offset
        return data

    def remove(self, offset: int) -> None:
        """Drop a snapshot, if there is one; a crash may bring it back."""
        self._disk.remove(self._path(offset))
        if self.newest == offset:
            self.newest = -1

    def remove_durably(self, offsets: Iterable[int]) -> None:
        """Drop snapshots so that none comes back: after a cut, it would speak of batches whose
        place others have taken."""
        for offset in offsets:
            self.remove(offset)
        self._disk.sync_now([], [self._directory])

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, 'snapshot')}"
