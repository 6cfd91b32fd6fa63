"""Both indexes of one segment, and the timestamps that its batches told.

An entry of either is written after each `index.interval.bytes` of batches; the time index has one
for each new largest timestamp, the last of them when the segment is closed. Source: Kafka's
LogSegment.
"""

from __future__ import annotations

from hightide.protocol.records import BatchHeader
from hightide_broker.ports import Disk
from hightide_broker.storage.index import SparseIndex, offset_index, time_index

NO_TIMESTAMP = -1


class SegmentIndexes:
    """The indexes beside the segment that begins at `base_offset`; `stem` is its path without
    `.log`, and `suffix` stands behind the names of the files."""

    def __init__(self, disk: Disk, stem: str, base_offset: int, *, suffix: str) -> None:
        self.base_offset = base_offset
        self.offsets: SparseIndex = offset_index(disk, f"{stem}.index{suffix}")
        """Last offset of a batch, relative → where the batch begins."""
        self.times: SparseIndex = time_index(disk, f"{stem}.timeindex{suffix}")
        """Largest timestamp so far → the offset it was first seen at, relative."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.first_timestamp: int | None = None
        self._unindexed_bytes = 0

    def is_full(self, limit_bytes: int) -> bool:
        """Whether one more entry, or the last of the times, would pass the limit of a file."""
        return (len(self.offsets) + 1) * 8 > limit_bytes or (len(self.times) + 2) * 12 > limit_bytes

    def note(self, header: BatchHeader, position: int, *, interval_bytes: int) -> None:
        """Take the next batch into account, which lies at `position`."""
        if self.first_timestamp is None and header.max_timestamp >= 0:
            self.first_timestamp = header.max_timestamp
        self.note_timestamp(header)
        if self._unindexed_bytes > interval_bytes:
            self.offsets.add(header.last_offset - self.base_offset, position)
            self._add_time()
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size

    def note_timestamp(self, header: BatchHeader) -> None:
        """A batch that is indexed already, or need not be, may have the largest timestamp."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset

    def _add_time(self) -> None:
        last = self.times.last
        if self.max_timestamp > (last[0] if last else NO_TIMESTAMP):
            self.times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def flush(self, *, final: bool = False) -> None:
        """Write what gathered in memory; `final` closes the time index with the largest
        timestamp."""
        if final:
            self._add_time()
        self.offsets.flush()
        self.times.flush()

    def believe_times(self) -> None:
        """The last entry of the time index, if there is one, has the largest timestamp known."""
        if (last := self.times.last) is not None:
            self.max_timestamp = last[0]
            self.max_timestamp_offset = self.base_offset + last[1]

    def cut(self, offset: int, *, position: int) -> None:
        """Forget what lies at or above `offset`; the next batch will lie at `position`."""
        self.offsets.truncate_below(max(offset - self.base_offset, 0))
        kept = [entry for entry in self.times.entries() if self.base_offset + entry[1] < offset]
        self.times.truncate(len(kept))
        self._forget_timestamps()
        self.believe_times()
        self.go_on_at(position)

    def go_on_at(self, position: int) -> None:
        """The next batch lies at `position`, and all before it are indexed as they are to be."""
        last = self.offsets.last
        self._unindexed_bytes = position - (last[1] if last else 0)

    def remove(self) -> None:
        """Remove both files; what batches told is still so."""
        self.offsets.clear()
        self.times.clear()

    def clear(self) -> None:
        """Remove both files, and forget what batches told."""
        self.remove()
        self._forget_timestamps()
        self.first_timestamp = None
        self._unindexed_bytes = 0

    def _forget_timestamps(self) -> None:
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
