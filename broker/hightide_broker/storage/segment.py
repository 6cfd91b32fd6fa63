"""One segment: a file of batches that begins at its base offset, with its two sparse indexes.

What this room is: appending, finding, reading and checking bytes inside one file. What it is not: it
does not know the other segments, epochs or watermarks (`log.py` does).

Invariants: batches lie one after the other, offsets rise and start at or above `base_offset`; an
index entry names the last offset of a batch and where that batch begins; `size` is the end of the
last whole batch. Every read checks what it is about to serve: header, CRC, place.
Source: KAFKA LogSegment, OffsetIndex, TimeIndex.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hightide.columns import offsets_of, open_batch, timestamps_of
from hightide.errors import CorruptBatch
from hightide.records import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    check_crc,
    iter_batches,
    parse_header,
)
from hightide_broker.ports import Disk, DiskFile
from hightide_broker.storage.index import SparseIndex, offset_index, time_index

RELATIVE_OFFSET_MAX = (1 << 31) - 1
SCAN_BYTES = 1 << 20
_HINTS_MAX = 32
_NO_TIMESTAMP = -1
_scratch = bytearray(SCAN_BYTES)
"""Where `read` checks bytes; it never awaits, and worker threads do not use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What a log needs to know of its topic's configuration; Kafka's names, bytes and ms."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096


class FileSlice(NamedTuple):
    """Checked batches, as a range of a file: sent by `sendfile` or read when they are needed."""

    file: DiskFile
    position: int
    size: int
    next_offset: int
    """The offset after the last batch of the slice."""

    def read(self) -> bytes:
        """The bytes of the slice."""
        return self.file.read(self.position, self.size)


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


class SegmentDamage(Exception):
    """A batch in a segment failed its checks."""

    def __init__(self, path: str, position: int, why: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {why}")
        self.path = path
        self.position = position
        self.why = why


def file_name(offset: int, suffix: str) -> str:
    """Kafka's file names: 20 digits and a suffix."""
    return f"{offset:020d}.{suffix}"


class Segment:
    """An open segment; made by `Segment.create` or by `recovery.py`."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, *, config: LogConfig) -> None:
        self.base_offset = base_offset
        self.config = config
        self.path = f"{directory}/{file_name(base_offset, 'log')}"
        self.file = disk.open(self.path, create=True)
        self.size = self.file.size()
        self.offsets: SparseIndex = offset_index(
            disk, f"{directory}/{file_name(base_offset, 'index')}"
        )
        self.times: SparseIndex = time_index(
            disk, f"{directory}/{file_name(base_offset, 'timeindex')}"
        )
        self.max_timestamp = _NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.first_timestamp: int | None = None
        self.created_ms: int | None = None
        self._unindexed_bytes = 0
        self._hints: OrderedDict[int, int] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset} size={self.size}>"

    # -- writing ---------------------------------------------------------------------------------

    def must_roll(self, header: BatchHeader, *, now_ms: int) -> bool:
        """Whether a batch like this belongs into a new segment: size, age, indexes, offsets."""
        if header.last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if self.size == 0:
            return False
        if self.size + header.size > self.config.segment_bytes:
            return True
        limit = self.config.segment_index_bytes
        if (len(self.offsets) + 1) * 8 > limit or (len(self.times) + 2) * 12 > limit:
            return True
        if self.first_timestamp is not None:
            return header.max_timestamp - self.first_timestamp > self.config.segment_ms
        return self.created_ms is not None and now_ms - self.created_ms > self.config.segment_ms

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> None:
        """Write one batch at the end; raises `DiskError`, and then nothing changed."""
        position = self.size
        self.file.append(batch)
        if self.created_ms is None:
            self.created_ms = now_ms
        self.note(header, position)
        self.size = position + len(batch)

    def note(self, header: BatchHeader, position: int) -> None:
        """Take a batch that lies at `position` into account: indexes and largest timestamp."""
        if self.first_timestamp is None and header.max_timestamp >= 0:
            self.first_timestamp = header.max_timestamp
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self._unindexed_bytes > self.config.index_interval_bytes:
            self.offsets.add(header.last_offset - self.base_offset, position)
            self._index_time()
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size

    def _index_time(self) -> None:
        last = self.times.last
        if self.max_timestamp > (last[0] if last else _NO_TIMESTAMP):
            self.times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def flush_indexes(self, *, final: bool = False) -> None:
        """Write gathered index entries; `final` closes the time index with the largest timestamp."""
        if final:
            self._index_time()
        self.offsets.flush()
        self.times.flush()

    # -- finding and reading ---------------------------------------------------------------------

    def locate(self, offset: int) -> tuple[BatchHeader, int] | None:
        """The first batch whose last offset is ≥ `offset`, with its position; None if there is none.

        Raises `SegmentDamage` if a header on the way cannot be one.
        """
        position = self._hints.get(offset, -1)
        if position < 0:
            entry = self.offsets.floor(offset - self.base_offset)
            position = entry[1] if entry else 0
        while position < self.size:
            header = self.header_at(position)
            if header.last_offset >= offset:
                return header, position
            position += header.size
        return None

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch that begins at `position`; raises `SegmentDamage`."""
        try:
            header = parse_header(self.file.read(position, HEADER_BYTES))
        except CorruptBatch as error:
            raise SegmentDamage(self.path, position, str(error)) from error
        if header.base_offset < self.base_offset or position + header.size > self.size:
            raise SegmentDamage(
                self.path,
                position,
                f"batch of {header.size} bytes at offset {header.base_offset} does not fit in "
                f"a segment of {self.size} bytes from offset {self.base_offset}",
            )
        return header

    def read(
        self, offset: int, *, max_bytes: int, limit_offset: int, at_least_one: bool
    ) -> FileSlice | None:
        """Whole checked batches from the one that holds `offset`, below `limit_offset`.

        At most `max_bytes`, but the first batch comes whole if `at_least_one` (KIP-74). None if no
        batch fits. Raises `SegmentDamage`; the batches before the damage are served first.
        """
        found = self.locate(offset)
        if found is None:
            return None
        first, position = found
        size = max_bytes if first.size <= max_bytes or not at_least_one else first.size
        size = min(size, self.size - position)
        if first.size > size:
            return None
        buffer = memoryview(_scratch)[:size] if size <= SCAN_BYTES else memoryview(bytearray(size))
        got = self.file.read_into(buffer, position)
        end, next_offset = self._check_run(buffer[:got], position, limit_offset)
        if end == 0:
            return None
        self._remember(next_offset, position + end)
        return FileSlice(self.file, position, end, next_offset)

    def _check_run(self, buffer: memoryview, position: int, limit_offset: int) -> tuple[int, int]:
        """How many bytes of `buffer` are whole, good batches below the limit, and what follows."""
        end, next_offset = 0, -1
        try:
            for header, batch in iter_batches(buffer):
                if header.next_offset > limit_offset:
                    break
                if header.base_offset < next_offset:
                    raise CorruptBatch(f"offset {header.base_offset} follows {next_offset - 1}")
                check_crc(batch, header)
                end += header.size
                next_offset = header.next_offset
        except CorruptBatch as error:
            if end == 0:
                raise SegmentDamage(self.path, position + end, str(error)) from error
        return end, next_offset

    def _remember(self, offset: int, position: int) -> None:
        self._hints[offset] = position
        if len(self._hints) > _HINTS_MAX:
            self._hints.popitem(last=False)

    def batches(self, position: int = 0) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """Every batch from `position` with where it lies and its bytes, CRC checked.

        Raises `SegmentDamage` at the first one that is not whole and right.
        """
        expected = self.base_offset
        while position < self.size:
            chunk = memoryview(self.file.read(position, SCAN_BYTES))
            consumed = 0
            try:
                for header, batch in iter_batches(chunk):
                    expected = _check_next(header, batch, expected)
                    yield header, position + consumed, batch
                    consumed += header.size
                if consumed == 0:
                    header, batch = self._large_batch(chunk, position)
                    expected = _check_next(header, batch, expected)
                    yield header, position, batch
                    consumed = header.size
            except CorruptBatch as error:
                raise SegmentDamage(self.path, position + consumed, str(error)) from error
            position += consumed

    def _large_batch(self, chunk: memoryview, position: int) -> tuple[BatchHeader, memoryview]:
        """A batch that is larger than one read."""
        header = parse_header(chunk)
        if position + header.size > self.size:
            raise CorruptBatch(f"batch of {header.size} bytes ends behind the file")
        return header, memoryview(self.file.read(position, header.size))

    def headers(self, position: int = 0) -> Iterator[tuple[BatchHeader, int]]:
        """Every batch's header from `position`, without its payload."""
        while position < self.size:
            header = self.header_at(position)
            yield header, position
            position += header.size

    def find_timestamp(self, timestamp: int, *, start_offset: int) -> TimestampOffset | None:
        """The first record with a timestamp ≥ `timestamp` at or above `start_offset`."""
        # Up to the entry's offset nothing is newer than the entry: look behind older entries only.
        entry = self.times.floor(timestamp - 1)
        found = self.locate(self.base_offset + (entry[1] if entry else 0))
        if found is None:
            return None
        for header, _, batch in self.batches(found[1]):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            columns = open_batch(batch, header)
            for offset, value in zip(
                offsets_of(columns, header), timestamps_of(columns, header), strict=True
            ):
                if value >= timestamp and offset >= start_offset:
                    return TimestampOffset(value, offset, header.leader_epoch)
        return None

    # -- cutting ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cut at the start of the batch that contains `offset`."""
        found = self.locate(offset)
        if found is None:
            return
        position = found[1]
        self.file.truncate(position)
        self.size = position
        self._hints.clear()
        self.offsets.truncate_below(max(found[0].base_offset - self.base_offset, 0))
        self._rebuild_times(found[0].base_offset)

    def _rebuild_times(self, end_offset: int) -> None:
        """Forget timestamps of records at or above `end_offset`."""
        kept = [entry for entry in self.times.entries() if self.base_offset + entry[1] < end_offset]
        self.times.truncate(len(kept))
        self.max_timestamp, self.max_timestamp_offset = _NO_TIMESTAMP, self.base_offset
        if kept:
            self.max_timestamp = kept[-1][0]
            self.max_timestamp_offset = self.base_offset + kept[-1][1]
        start = self.locate(self.max_timestamp_offset) if kept else None
        for header, _ in self.headers(start[1] if start else 0):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
        if self.size == 0:
            self.first_timestamp = None

    def reset_indexes(self) -> None:
        """Forget both indexes and what was learned from batches, before a scan notes them again."""
        self.offsets.clear()
        self.times.clear()
        self.max_timestamp, self.max_timestamp_offset = _NO_TIMESTAMP, self.base_offset
        self.first_timestamp = None
        self._unindexed_bytes = 0
        self._hints.clear()

    def close(self) -> None:
        """Release the file; nothing is written."""
        self.file.close()


def _check_next(header: BatchHeader, batch: memoryview, expected: int) -> int:
    """Raise `CorruptBatch` unless a batch is whole and at or above `expected`; the offset after it."""
    check_crc(batch, header)
    if header.base_offset < expected:
        raise CorruptBatch(f"offset {header.base_offset} where {expected} or more is expected")
    return header.next_offset
