"""The log of one partition: segments in order, epochs, and the offsets that bound them.

What this room is: append, read, find, truncate, roll and delete, in terms of offsets. One engine
for data, metadata and groups. What it is not: it knows no watermark, no role, no producers; it
never awaits (syncing is described by a `SyncJob` that the runtime carries out).

Invariants: log_start ≤ log_end, synced_end ≤ log_end; each segment ends where the next begins and
the last one is active; every batch's epoch is `epochs.epoch_for_offset` of its base offset. A cut
is durable before anything that relies on it is. Source: Kafka's UnifiedLog and LocalLog.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from hightide.protocol.records import BatchHeader, Buffer, stamp
from hightide_broker.ports import Disk, DiskError
from hightide_broker.storage.checkpoint import (
    LEADER_EPOCHS,
    MalformedCheckpoint,
    read_partition_metadata,
    write_partition_metadata,
)
from hightide_broker.storage.epochs import EpochCache
from hightide_broker.storage.file_slice import FileSlice
from hightide_broker.storage.indexing import load_trusted, rebuild_indexes
from hightide_broker.storage.producer_snapshots import ProducerSnapshots
from hightide_broker.storage.recovery import LoadedLog, Recovery, load
from hightide_broker.storage.segment import CLEANED, LogConfig, Segment
from hightide_broker.storage.sync_job import SyncJob
from hightide_broker.storage.times import Dated


class OffsetOutOfRange(Exception):
    """The offset is below the log's start or above its end."""


class UnexpectedAppendOffset(Exception):
    """A replicated batch does not continue the log."""


class SegmentInfo(NamedTuple):
    """What retention and compaction decide by."""

    base_offset: int
    next_base_offset: int
    size: int
    max_timestamp: int


class Log:
    """An open log; made by `Log.create` or `Log.open`."""

    def __init__(self, disk: Disk, directory: str, config: LogConfig, loaded: LoadedLog) -> None:
        self.directory = directory
        self.config = config
        self.producer_snapshots = ProducerSnapshots(disk, directory)
        self.recovery: Recovery = loaded.recovery
        self.epochs = loaded.epochs
        self.log_start = loaded.log_start
        self.log_end = loaded.log_end
        self.synced_end = loaded.log_end
        """Everything below it survives a power loss."""
        self._disk = disk
        self._segments = loaded.segments
        self._names = int(loaded.has_new_names)
        """How often names in the directory changed."""
        self._names_synced = 0
        """How many of these changes are durable."""
        self._cuts = 0
        self._written = self._written_synced = 0
        """Bytes that were appended since it was opened, and how many of them were synced."""

    @classmethod
    def create(cls, disk: Disk, directory: str, *, topic_id: str, config: LogConfig) -> Log:
        """A new, empty log in a directory of its own, durably."""
        if disk.exists(directory):
            # Somebody who did not get further may have made it.
            disk.sync_now([], [directory.rpartition("/")[0] or "."])
        disk.make_dirs(directory)
        segment = Segment(disk, directory, 0, config=config)
        # Last, because this makes the segment's name durable with its own.
        write_partition_metadata(disk, directory, topic_id)
        epochs = EpochCache(disk, f"{directory}/{LEADER_EPOCHS}")
        return cls(disk, directory, config, LoadedLog([segment], epochs, 0, 0, Recovery()))

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        topic_id: str,
        config: LogConfig,
        log_start: int,
        recovery_point: int,
        clean: bool,
        salvage: bool = False,
    ) -> Log:
        """Load a log that is there. A worker thread's work when the last stop was not clean, or
        with `salvage`, which cuts a damaged log where the damage begins.

        Raises `LogDamaged`, `DiskError`, or `MalformedCheckpoint` if the directory's topic id is
        not `topic_id`.
        """
        found = read_partition_metadata(disk, directory)
        if found is None:
            write_partition_metadata(disk, directory, topic_id)
        elif found != topic_id:
            raise MalformedCheckpoint(f"{directory} is of topic id {found}, expected {topic_id}")
        epochs: EpochCache | None
        try:
            epochs = EpochCache.load(disk, f"{directory}/{LEADER_EPOCHS}")
        except MalformedCheckpoint:
            epochs = None
        loaded = load(
            disk,
            directory,
            config=config,
            epochs=epochs,
            log_start=log_start,
            recovery_point=recovery_point,
            clean=clean,
            salvage=salvage,
        )
        log = cls(disk, directory, config, loaded)
        if loaded.was_scanned:
            # What the scan found may be in the page cache only.
            trusted = 0 if salvage else recovery_point
            log.synced_end = min(max(trusted, log.log_start), log.log_end)
        return log

    def __repr__(self) -> str:
        name = self.directory.rsplit("/", 1)[-1]
        return f"<Log {name} {self.log_start}..{self.log_end} synced={self.synced_end}>"

    def check_invariants(self) -> None:
        """Assert what this module's docstring promises."""
        assert self.log_start <= self.log_end, f"{self!r}: start above end"
        assert self.synced_end <= self.log_end, f"{self!r}: synced above end"
        bases = [segment.base_offset for segment in self._segments]
        assert bases == sorted(set(bases)), f"{self!r}: segments {bases}"
        assert bases[0] <= self.log_start, f"{self!r}: starts below the first segment {bases[0]}"

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> list[SegmentInfo]:
        """The segments, oldest first; the last one is active."""
        following = [segment.base_offset for segment in self._segments[1:]] + [self.log_end]
        return [
            SegmentInfo(segment.base_offset, end, segment.size, segment.indexes.max_timestamp)
            for segment, end in zip(self._segments, following, strict=True)
        ]

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the last one that was deleted where none is left; -1
        if that is not known."""
        if self.log_start == self.log_end:
            return self.epochs.latest_epoch
        return self.epochs.epoch_for_offset(self.log_end - 1)

    @property
    def cut_count(self) -> int:
        """How often the log was cut since it was opened."""
        return self._cuts

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any record, -1 if there is none."""
        return max(segment.indexes.max_timestamp for segment in self._segments)

    # -- appending -------------------------------------------------------------------------------

    def append_as_leader(
        self, batch: bytearray | memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> BatchHeader:
        """Stamp a batch with the log end and the epoch, and write it; the header as stored.

        The batch has been validated. Raises `DiskError`, and then nothing changed.
        """
        base_offset = self.log_end
        stamp(batch, base_offset=base_offset, leader_epoch=leader_epoch)
        stored = header._replace(base_offset=base_offset, leader_epoch=leader_epoch)
        self._append(batch, stored, now_ms)
        self._segments[-1].keep_tail(batch, stored)
        return stored

    def forget_tail(self) -> None:
        """Read the last batch from the disk from here on."""
        self._segments[-1].forget_tail()

    def append_as_follower(self, batch: Buffer, header: BatchHeader, *, now_ms: int) -> None:
        """Write a batch as the leader stored it; gaps are fine, overlaps are not.

        Raises `UnexpectedAppendOffset` or `DiskError`.
        """
        if header.base_offset < self.log_end:
            told = f"batch {header.base_offset}..{header.last_offset}"
            raise UnexpectedAppendOffset(f"{told}, the log ends at {self.log_end}")
        self._append(batch, header, now_ms)

    def _append(self, batch: Buffer, header: BatchHeader, now_ms: int) -> None:
        if header.leader_epoch >= 0 and header.leader_epoch > self.epochs.latest_epoch:
            # Where compaction left a gap, the epoch before may have ended anywhere in it: who has
            # more of that epoch fetches it again rather than keep what was never committed.
            self.epochs.assign(header.leader_epoch, self.log_end)
        if self._segments[-1].must_roll(header, now_ms=now_ms):
            self.roll()
        self._segments[-1].append(batch, header, now_ms=now_ms)
        self.log_end = header.next_offset
        self._written += len(batch)

    def roll(self) -> int:
        """Close the active segment and begin a new one at the log end; its base offset.

        Nothing happens if the active segment is empty and begins there already.
        """
        base, active = self.log_end, self._segments[-1]
        if active.base_offset == base:
            assert active.size == 0, f"{self!r}: roll at {base}, where a segment with data begins"
            return base
        assert base > active.base_offset, f"{self!r}: roll at {base} below {active.base_offset}"
        active.indexes.flush(final=True)
        active.forget_tail()
        self._segments.append(Segment(self._disk, self.directory, base, config=self.config))
        self._names += 1
        return base

    def update_config(self, config: LogConfig) -> None:
        """Use a changed configuration from here on."""
        self.config = config
        for segment in self._segments:
            segment.config = config

    # -- syncing ---------------------------------------------------------------------------------

    @property
    def has_unsynced(self) -> bool:
        """Whether anything that was written is not known to be on disk."""
        is_behind = self.synced_end < self.log_end or self._names_synced < self._names
        return is_behind or self.epochs.is_owed(self.log_end)

    def begin_sync(self) -> SyncJob | None:
        """What has to be synced for everything written so far; None if nothing has."""
        if not self.has_unsynced:
            return None
        first, end = self._segment_number(self.synced_end), self.log_end
        files = [segment.file for segment in self._segments[first:]]
        directories = [self.directory] if self._names_synced < self._names else []
        epochs = self.epochs.writing(end) if self.epochs.is_owed(end) else None
        return SyncJob(files, directories, end, self._cuts, epochs, self._names, self._written)

    def finish_sync(self, job: SyncJob) -> int:
        """Take a finished job into account; the new synced end.

        Not if the log was cut meanwhile: what lies there now is not what was synced.
        """
        self._names_synced = max(self._names_synced, job.names)
        if job.cuts != self._cuts:
            return self.synced_end
        self.synced_end = max(self.synced_end, min(job.end, self.log_end))
        self._written_synced = max(self._written_synced, job.written)
        return self.synced_end

    @property
    def unsynced_bytes(self) -> int:
        """What was appended here and may be in the page cache only; after a cut, that at most."""
        return self._written - self._written_synced if self.synced_end < self.log_end else 0

    def flush_indexes(self, *, final: bool = False) -> None:
        """Write gathered index entries, so that a recovery need not build them again; `final`:
        nothing is appended any more."""
        if self._segments[-1].size:
            self._segments[-1].indexes.flush(final=final)

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        limit_offset: int | None = None,
        at_least_one: bool = True,
    ) -> FileSlice | None:
        """Whole batches from the one that holds `offset`, from one segment, below `limit_offset`.

        None if there is nothing (yet). Raises `OffsetOutOfRange` or `SegmentDamage`.
        """
        if offset < self.log_start or offset > self.log_end:
            holds = f"which holds {self.log_start} to {self.log_end}"
            raise OffsetOutOfRange(f"offset {offset} is outside the log, {holds}")
        limit = self.log_end if limit_offset is None else min(limit_offset, self.log_end)
        if offset >= limit:
            return None
        for segment in self._segments[self._segment_number(offset) :]:
            if segment.base_offset >= limit:
                return None
            found = segment.read(
                offset,
                max_bytes=max_bytes,
                limit_offset=limit,
                at_least_one=at_least_one,
                epoch_at=self.epochs.epoch_for_offset,
            )
            # An empty answer inside a segment means that what fits is not there; behind the last
            # batch of a compacted segment the next one goes on.
            if found is not None or segment.locate(offset) is not None:
                return found
        return None

    def rebuild_indexes_at(self, offset: int) -> None:
        """Index again the segment that holds `offset`; raises `SegmentDamage` if its batches are
        damaged themselves, and `DiskError`."""
        rebuild_indexes(self._segments[self._segment_number(offset)])

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of every batch that ends above `offset`."""
        for segment in self._segments[self._segment_number(offset) :]:
            found = segment.locate(offset)
            if found is not None:
                yield from (header for header, _ in segment.headers(found[1]))

    def batches(self, offset: int = 0) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch that ends above `offset`, checked; raises `SegmentDamage`."""
        for segment in self._segments[self._segment_number(offset) :]:
            found = segment.locate(offset)
            if found is not None:
                for header, _, batch in segment.batches(found[1]):
                    yield header, batch

    def batch_since(self, timestamp: int, *, start_offset: int) -> Dated | None:
        """The first batch with a timestamp ≥ `timestamp` that ends at or above `start_offset`."""
        for segment in self._segments[self._segment_number(start_offset) :]:
            if segment.indexes.max_timestamp >= timestamp:
                found = segment.batch_since(timestamp, start_offset=start_offset)
                if found is not None:
                    return found
        return None

    def newest(self) -> tuple[int, Dated | None]:
        """The largest timestamp above the log start, but for the batch that holds it; and that
        batch, if it begins below."""
        first, *others = self._segments[self._segment_number(self.log_start) :]
        newest, cut = first.newest_from(self.log_start)
        return max([newest, *(each.indexes.max_timestamp for each in others)]), cut

    def _segment_number(self, offset: int) -> int:
        """Which segment an offset falls into."""
        above = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset)
        return max(above - 1, 0)

    # -- cutting ---------------------------------------------------------------------------------

    def end_after_cut(self, offset: int) -> int:
        """Where the log would end after `truncate_to(offset)`: before the batch that has it."""
        if offset >= self.log_end:
            return self.log_end
        if offset < self._segments[0].base_offset:
            return offset
        return self._segments[self._segment_number(offset)].end_before_cut(offset)

    def truncate_to(self, offset: int) -> int:
        """Cut the log at the start of the batch that contains `offset`; the new log end, durable.

        The caller has lowered the recovery point checkpoint to `end_after_cut(offset)` first: what
        is appended after the cut must not be taken for durable. Source: Kafka.
        """
        if offset >= self.log_end:
            self._cut_epochs()
            return self.log_end
        if offset < self._segments[0].base_offset:
            self.truncate_fully(offset)
            return self.log_end
        number = self._segment_number(offset)
        self._cuts += 1
        while len(self._segments) > number + 1:
            # The newest first: a crash in between leaves a log without a hole.
            self._drop(self._segments.pop())
        active = self._segments[-1]
        active.truncate_to(offset)
        self._disk.sync_now([active.file], [self.directory])
        self.log_end = active.end_offset
        self.log_start = min(self.log_start, self.log_end)
        self.synced_end = min(self.synced_end, self.log_end)
        if self.synced_end == self.log_end:
            self._written_synced = self._written
        self._cut_epochs()
        return self.log_end

    def _cut_epochs(self) -> None:
        """Forget the epochs that begin at the end or behind it; durable."""
        if self.epochs.truncate_from_end(self.log_end):
            self.epochs.write()

    def truncate_fully(self, offset: int) -> None:
        """Drop everything and begin again, empty, at `offset`; durable."""
        self._cuts += 1
        while self._segments:
            self._drop(self._segments.pop())
            self._disk.sync_now([], [self.directory])
        for known in self.producer_snapshots.offsets():
            self.producer_snapshots.remove(known)
        self._segments = [Segment(self._disk, self.directory, offset, config=self.config)]
        self._disk.sync_now([self._segments[0].file], [self.directory])
        self.log_start = self.log_end = self.synced_end = offset
        self._written_synced = self._written
        self.epochs.clear()
        self.epochs.write()

    def advance_log_start(self, offset: int) -> bool:
        """Records below `offset` are gone for readers; whether that is news."""
        if offset <= self.log_start:
            return False
        assert offset <= self.log_end, f"{self!r}: log start {offset} above the end"
        self.log_start = offset
        self.epochs.truncate_from_start(min(offset, self.log_end - 1))
        return True

    def delete_segments(self, count: int) -> list[str]:
        """Take the `count` oldest segments out, or as many as a full disk has room for to rename;
        their files are named `.deleted` then, and returned."""
        if count == len(self._segments) and self._segments[-1].size:
            self.roll()
        assert count < len(self._segments), f"{self!r}: deleting {count} segments leaves none"
        renamed: list[str] = []
        while len(renamed) < count:
            segment = self._segments[0]
            try:
                self._forget_indexes(segment)
                self._disk.rename(segment.path, f"{segment.path}.deleted")
            except DiskError as error:
                if renamed and error.full:
                    break  # what is gone makes room for the others, the next time
                raise
            # At once: a file that has another name is no part of the log, whatever comes next.
            del self._segments[0]
            renamed.append(f"{segment.path}.deleted")
            self._names += 1
            self.advance_log_start(self._segments[0].base_offset)
            self.producer_snapshots.remove(segment.base_offset)
        return renamed

    def replace_segment(self, base: int, cleaned: str) -> None:
        """Swap the segment at `base` for the cleaned file, whose name ends in `.cleaned`, and which
        is durable; its indexes lie beside it, or are built.

        The rename is the moment of change: a crash leaves either the old one or the new one,
        without indexes if it comes between. Readers of the old one go on with it.
        """
        number = self._segment_number(base)
        old = self._segments[number]
        assert old.base_offset == base, f"{self!r}: no segment begins at {base}"
        assert number < len(self._segments) - 1, f"{self!r}: the active segment is not cleaned"
        self._forget_indexes(old)
        self._disk.rename(cleaned, old.path)
        for index in (old.indexes.offsets, old.indexes.times):
            if self._disk.exists(f"{index.path}{CLEANED}"):
                self._disk.rename(f"{index.path}{CLEANED}", index.path)
        self._names += 1
        segment = Segment(self._disk, self.directory, base, config=self.config)
        load_trusted(segment)
        self._segments[number] = segment

    def _forget_indexes(self, segment: Segment) -> None:
        """Drop a segment's indexes; those who read it still, read what was in it."""
        segment.file.detach()
        segment.indexes.remove()

    def _drop(self, segment: Segment) -> None:
        self._forget_indexes(segment)
        self._disk.remove(segment.path)
        self._names += 1

    def segment_bases(self) -> list[int]:
        """Base offsets, rising."""
        return [segment.base_offset for segment in self._segments]

    def finish(self) -> SyncJob | None:
        """Write the indexes whole, before an orderly stop; what is left to sync."""
        with self._disk.reserve():
            self.flush_indexes(final=True)
        return self.begin_sync()

    def close(self) -> None:
        """Release the files."""
        for segment in self._segments:
            segment.close()
