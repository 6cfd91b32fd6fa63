"""One segment: a file of batches that begins at its base offset, with its two sparse indexes.

What this room is: appending, finding, reading and checking bytes inside one file. What it is not:
it does not know the other segments, epochs or watermarks (`log.py` does).

Invariants: batches lie one after the other, offsets rise and start at or above `base_offset`,
epochs do not fall; an index entry names the last offset of a batch and where that batch begins;
`size` is the end of the last whole batch. Every read checks what it is about to serve: header, CRC,
place; a small batch that followers wait for is served from memory, as it was when it came. The CRC
covers neither base offset nor epoch, so a gap in the offsets, which compaction leaves, is believed
only if what follows agrees with it. Source: Kafka's LogSegment, OffsetIndex, TimeIndex.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import (
    HEADER_BYTES,
    NO_LEADER_EPOCH,
    ROWS_MAGIC,
    BatchHeader,
    Buffer,
    check_crc,
    iter_batches,
    parse_header,
)
from hightide_broker.ports import Disk
from hightide_broker.storage.file_slice import FileSlice, Tail
from hightide_broker.storage.segment_indexes import NO_TIMESTAMP, SegmentIndexes
from hightide_broker.storage.times import Dated

CLEANED = ".cleaned"
"""Behind the names of a segment that is being rewritten."""
RELATIVE_OFFSET_MAX = (1 << 31) - 1
SCAN_BYTES = 1 << 20
READ_BATCHES_MAX = 4096
"""Batches that one read brings: each is checked, and nothing else is done meanwhile."""
_HINTS_MAX = 32
_scratch = bytearray(SCAN_BYTES)
"""Where `read` checks bytes; it never awaits, and worker threads do not use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What a log needs to know of its topic's configuration; Kafka's names, bytes and ms."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096


class SegmentDamage(Exception):
    """A batch in a segment failed its checks.

    `is_whole`: its bytes are there and right, its offset or epoch is not what it must be.
    """

    def __init__(self, path: str, position: int, why: str, *, is_whole: bool = False) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {why}")
        self.path = path
        self.position = position
        self.why = why
        self.is_whole = is_whole


def file_name(offset: int, suffix: str) -> str:
    """Kafka's file names: 20 digits and a suffix."""
    return f"{offset:020d}.{suffix}"


class Segment:
    """An open segment; made by `Segment.create` or by `recovery.py`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        config: LogConfig,
        suffix: str = "",
        create: bool = True,
    ) -> None:
        """`suffix` comes behind the names of its three files, `CLEANED` while it is rewritten;
        without `create`, a file that is not there is a `DiskError`."""
        self.base_offset = base_offset
        self.config = config
        self.path = f"{directory}/{file_name(base_offset, 'log')}{suffix}"
        self.file = disk.open(self.path, create=create)
        self.size = self.file.size()
        stem = f"{directory}/{base_offset:020d}"
        self.indexes = SegmentIndexes(disk, stem, base_offset, suffix=suffix)
        self.created_ms: int | None = None
        self.end_offset = base_offset
        """The offset after the last batch; `recovery.py` sets it for files that are there."""
        self._hints: OrderedDict[int, int] = OrderedDict()
        self._tail: Tail | None = None

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
        if self.indexes.is_full(self.config.segment_index_bytes):
            return True
        first = self.indexes.first_timestamp
        if first is not None:
            return header.max_timestamp - first > self.config.segment_ms
        return self.created_ms is not None and now_ms - self.created_ms > self.config.segment_ms

    def append(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> None:
        """Write one batch at the end; raises `DiskError`, and then nothing changed."""
        position = self.size
        self.file.append(batch)
        if self.created_ms is None:
            self.created_ms = now_ms
        self.note(header, position)
        self.size = position + len(batch)
        self.end_offset = header.next_offset
        self._tail = None

    def note(self, header: BatchHeader, position: int) -> None:
        """Index a batch that lies at `position`, behind all that were noted before."""
        self.indexes.note(header, position, interval_bytes=self.config.index_interval_bytes)

    def keep_tail(self, batch: Buffer, header: BatchHeader) -> None:
        """Read the batch that was just appended from memory, if it is small, until the next one
        comes or it is cut away or forgotten."""
        self._tail = Tail.of(batch, header, self.file, self.size - len(batch))

    def forget_tail(self) -> None:
        """Read it from the disk."""
        self._tail = None

    # -- finding and reading ---------------------------------------------------------------------

    def locate(self, offset: int) -> tuple[BatchHeader, int] | None:
        """The first batch whose last offset is ≥ `offset`, with its position; None if there is
        none.

        Raises `SegmentDamage` if a header on the way cannot be what it says.
        """
        position = self._hints.get(offset, -1)
        expected = offset if position >= 0 else self.base_offset
        if position < 0:
            position = self.indexed_position(offset)
        start = position
        for header, at in self.headers(position, expected=expected):
            if header.last_offset >= offset:
                if header.base_offset > offset and start < at:
                    self._check_walk(start, at)
                self._confirm_gap(header, at, offset)
                return header, at
        return None

    def indexed_position(self, offset: int) -> int:
        """Where the search for an offset begins: at a batch that the index names, or at 0."""
        entry = self.indexes.offsets.floor(offset - self.base_offset)
        if entry is None or entry[1] + HEADER_BYTES > self.size:
            return 0
        try:
            header = parse_header(self.file.read(entry[1], HEADER_BYTES))
        except CorruptBatch:
            return 0
        return entry[1] if header.last_offset == self.base_offset + entry[0] else 0

    def _check_walk(self, start: int, end: int) -> int:
        """Batches claim to hold these offsets and no others: is that what was stored? The offset
        after the last one, 0 if there is none."""
        next_offset = 0
        for header, at in self.headers(start):
            if at >= end:
                break
            try:
                check_crc(self.file.read(at, header.size), header)
            except CorruptBatch as error:
                raise SegmentDamage(self.path, at, str(error)) from error
            next_offset = header.next_offset
        return next_offset

    def _confirm_gap(self, header: BatchHeader, position: int, expected: int) -> None:
        """Raise `SegmentDamage` if a batch above `expected` is not confirmed by what follows it."""
        if header.base_offset > expected and not self._is_followed(header, position):
            why = f"offset {header.base_offset} where {expected} is expected"
            raise SegmentDamage(self.path, position, why, is_whole=True)

    def _is_followed(self, header: BatchHeader, position: int) -> bool:
        """Whether what comes behind a batch agrees with where it ends."""
        following = position + header.size
        if following < self.size:
            return self.header_at(following).base_offset >= header.next_offset
        return header.next_offset == self.end_offset

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch that begins at `position`; raises `SegmentDamage`."""
        try:
            header = parse_header(self.file.read(position, HEADER_BYTES))
        except CorruptBatch as error:
            raise SegmentDamage(self.path, position, str(error)) from error
        last = header.last_offset - self.base_offset
        if (
            header.base_offset < self.base_offset
            or last > RELATIVE_OFFSET_MAX
            or position + header.size > self.size
        ):
            raise SegmentDamage(
                self.path,
                position,
                f"batch of {header.size} bytes at offset {header.base_offset} does not fit in "
                f"a segment of {self.size} bytes from offset {self.base_offset}",
            )
        return header

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        limit_offset: int,
        at_least_one: bool,
        epoch_at: Callable[[int], int],
    ) -> FileSlice | None:
        """Whole checked batches from the one that holds `offset`, below `limit_offset`.

        `epoch_at` says of which leader epoch an offset is, -1 where that is not known: no checksum
        covers what a batch says of it.
        At most `max_bytes`, but the first batch comes whole if `at_least_one` (KIP-74), and at most
        `READ_BATCHES_MAX`. None if no batch fits. Raises `SegmentDamage`; the batches before the
        damage are served first.
        """
        if self._tail is not None and self._tail.holds(offset):
            self._remember(self.end_offset, self.size)
            return self._tail.within(max_bytes, limit_offset, at_least_one=at_least_one)
        found = self.locate(offset)
        if found is None:
            return None
        first, position = found
        size = max_bytes if first.size <= max_bytes or not at_least_one else first.size
        size = min(size, self.size - position)
        if first.size > size:
            return None
        end, next_offset, count = 0, min(offset, first.base_offset), 0
        has_rows = has_columns = False
        try:
            for header in self._checked(position, size, first.size, next_offset):
                if why := self._why_misplaced(header, epoch_at(header.base_offset)):
                    raise CorruptBatch(f"batch at offset {header.base_offset}: {why}")
                if header.next_offset > limit_offset or count == READ_BATCHES_MAX:
                    break
                count += 1
                end += header.size
                next_offset = header.next_offset
                if header.magic == ROWS_MAGIC:
                    has_rows = True
                else:
                    has_columns = True
        except (CorruptBatch, SegmentDamage) as error:
            if end == 0:
                raise SegmentDamage(self.path, position, str(error)) from error
        if end == 0:
            return None
        self._remember(next_offset, position + end)
        return FileSlice(self.file, position, end, next_offset, has_rows, has_columns, count)

    def _why_misplaced(self, header: BatchHeader, epoch: int) -> str:
        if header.next_offset > self.end_offset:
            return f"it ends at {header.next_offset}, its segment at {self.end_offset}"
        if epoch not in (header.leader_epoch, NO_LEADER_EPOCH):
            return f"it is of leader epoch {header.leader_epoch}, its place of {epoch}"
        return ""

    def _checked(
        self, position: int, size: int, first_size: int, expected: int
    ) -> Iterator[BatchHeader]:
        """The batches that lie whole in `size` bytes, the first of which has `first_size`; raises
        `CorruptBatch` or `SegmentDamage` at one that is not good, or below the `expected` offset.
        """
        end = position + size
        while position < end:
            room = min(end - position, max(SCAN_BYTES, first_size))
            whole = memoryview(_scratch if room <= SCAN_BYTES else bytearray(room))
            got = self.file.read_into(whole[:room], position)
            if got < first_size:
                raise CorruptBatch(f"the file ends {room - got} bytes too early")
            read = first_size = 0
            for header, batch in iter_batches(whole[:got]):
                check_crc(batch, header)
                if header.base_offset < expected:
                    raise CorruptBatch(f"offset {header.base_offset} follows {expected - 1}")
                self._confirm_gap(header, position + read, expected)
                yield header
                read += header.size
                expected = header.next_offset
            if read == 0 or position + room == end:
                return
            position += read

    def _remember(self, offset: int, position: int) -> None:
        self._hints[offset] = position
        if len(self._hints) > _HINTS_MAX:
            self._hints.popitem(last=False)

    def batches(self, position: int = 0) -> Iterator[tuple[BatchHeader, int, memoryview]]:
        """Every batch from `position` with where it lies and its bytes, CRC checked.

        Raises `SegmentDamage` at the first one that is not whole and right.
        """
        order = _Order(self.base_offset)
        while position < self.size:
            chunk = memoryview(self.file.read(position, SCAN_BYTES))
            consumed = 0
            try:
                for header, batch in iter_batches(chunk):
                    order.check(header, batch)
                    yield header, position + consumed, batch
                    consumed += header.size
                if consumed == 0:
                    header, batch = self._large_batch(chunk, position)
                    order.check(header, batch)
                    yield header, position, batch
                    consumed = header.size
            except _OutOfOrder as error:
                at = position + consumed
                raise SegmentDamage(self.path, at, str(error), is_whole=True) from error
            except CorruptBatch as error:
                raise SegmentDamage(self.path, position + consumed, str(error)) from error
            position += consumed

    def _large_batch(self, chunk: memoryview, position: int) -> tuple[BatchHeader, memoryview]:
        """A batch that is larger than one read."""
        header = parse_header(chunk)
        if position + header.size > self.size:
            raise CorruptBatch(f"batch of {header.size} bytes ends behind the file")
        return header, memoryview(self.file.read(position, header.size))

    def headers(
        self, position: int = 0, *, expected: int | None = None
    ) -> Iterator[tuple[BatchHeader, int]]:
        """Every batch's header from `position`, without its payload; offsets must rise."""
        next_offset = self.base_offset if expected is None else expected
        while position < self.size:
            header = self.header_at(position)
            if header.base_offset < next_offset:
                why = f"offset {header.base_offset} where {next_offset} or more is expected"
                raise SegmentDamage(self.path, position, why, is_whole=True)
            next_offset = header.next_offset
            yield header, position
            position += header.size

    def batch_since(self, timestamp: int, *, start_offset: int) -> Dated | None:
        """The first batch that has a timestamp ≥ `timestamp`, of those that end at or above
        `start_offset`."""
        # Up to the entry's offset nothing is newer than the entry: look behind older entries only.
        entry = self.indexes.times.floor(timestamp - 1)
        found = self.locate(max(self.base_offset + (entry[1] if entry else 0), start_offset))
        for header, _, batch in self.batches(found[1]) if found else ():
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                return Dated(header, batch)
        return None

    def newest_from(self, offset: int) -> tuple[int, Dated | None]:
        """The largest timestamp of the batches that begin at or above `offset`, -1 if none does;
        and the batch that holds it, if that begins below."""
        if offset <= self.base_offset:
            return self.indexes.max_timestamp, None
        if (found := self.locate(offset)) is None:
            return NO_TIMESTAMP, None
        header, position = found
        largest, cut = NO_TIMESTAMP, None
        if header.base_offset < offset:
            _, _, batch = next(self.batches(position))
            position, cut = position + header.size, Dated(header, batch)
        if self.indexes.max_timestamp_offset > header.last_offset:
            return self.indexes.max_timestamp, cut
        for each, _ in self.headers(position):
            largest = max(largest, each.max_timestamp)
        return largest, cut

    # -- cutting ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cut at the start of the batch that contains `offset`; raises `SegmentDamage`."""
        found, self.end_offset = self._cut_at(offset)
        if found is None:
            return
        position = found[1]
        self._tail = None
        self.file.truncate(position)
        self.size = position
        self._hints.clear()
        self.indexes.cut(found[0].base_offset, position=position)
        self.learn(until=position)
        if position == 0:
            self.indexes.first_timestamp = None

    def end_before_cut(self, offset: int) -> int:
        """Where the log would end after `truncate_to(offset)`; raises `SegmentDamage`."""
        return self._cut_at(offset)[1]

    def _cut_at(self, offset: int) -> tuple[tuple[BatchHeader, int] | None, int]:
        """The first batch to be cut away, with its position, None if there is none; and where the
        log ends without it.

        A batch that lies about its offsets would have the log cut elsewhere, and nobody would ever
        read it and notice: those around the cut are checked. Raises `SegmentDamage`.
        """
        found = self.locate(offset)
        if found is None:
            self._check_walk(self.indexed_position(offset), self.size)
            return None, self.end_offset
        header, position = found
        if not self._is_followed(header, position):
            why = f"offsets {header.base_offset} to {header.last_offset} reach too far"
            raise SegmentDamage(self.path, position, why, is_whole=True)
        before = self.indexed_position(header.base_offset - 1)
        self._check_walk(position, position + header.size)
        return found, self._check_walk(before, position) or self.base_offset

    def learn(self, *, until: int) -> None:
        """Find the largest timestamp and the end offset of the first `until` bytes.

        Only what lies behind the last entry of either index is looked at: those are believed.
        """
        indexes, start = self.indexes, 0
        indexes.believe_times()
        if indexes.times.last is not None:
            found = self.locate(indexes.max_timestamp_offset)
            start = found[1] if found else 0
            if indexes.offsets.last is not None:
                start = min(start, indexes.offsets.last[1])
        for header, at in self.headers(start):
            if at >= until:
                break
            self.end_offset = header.next_offset
            indexes.note_timestamp(header)

    def forget_indexes(self) -> None:
        """Remove both, and forget what was learned from batches, before a scan notes them again."""
        self.indexes.clear()
        self._hints.clear()

    def close(self) -> None:
        """Release the file; nothing is written."""
        self.file.close()


class _OutOfOrder(CorruptBatch):
    """A whole batch whose offset or epoch cannot follow what lies before it."""


class _Order:
    """What the next batch of a segment must be: whole, further on, of no older epoch."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._next_offset = base_offset
        self._epoch = NO_LEADER_EPOCH

    def check(self, header: BatchHeader, batch: memoryview) -> None:
        """Raise `CorruptBatch` unless the batch may come next."""
        check_crc(batch, header)
        if header.base_offset < self._next_offset:
            raise _OutOfOrder(
                f"offset {header.base_offset} where {self._next_offset} or more is expected"
            )
        if header.last_offset - self._base_offset > RELATIVE_OFFSET_MAX:
            raise _OutOfOrder(f"offset {header.last_offset} is too far from {self._base_offset}")
        if header.leader_epoch < self._epoch:
            raise _OutOfOrder(f"leader epoch {header.leader_epoch} after {self._epoch}")
        self._next_offset, self._epoch = header.next_offset, header.leader_epoch
