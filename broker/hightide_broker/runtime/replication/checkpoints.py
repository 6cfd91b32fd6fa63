"""The offset checkpoints of a data directory: watermarks, recovery points, log starts, cleaner
offsets.

One of Kafka's text files for each kind, for all partitions together. A file that is no checkpoint
counts as empty, which is always safe for these: a watermark of 0 is learned again, a recovery point
of 0 makes the next start scan more. A recovery point must never be above what is durable, nor a log
start above where the log ends, so they are lowered, durably, before a log is cut.

Files are written by worker threads, but what must be so at once is written on the loop. Each write
says all there is to say as of its beginning, and an older one never follows a newer one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from functools import partial

from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.ports import Disk, DiskError
from hightide_broker.storage.checkpoint import (
    OFFSET_FILES,
    MalformedCheckpoint,
    read_offsets,
    write_offsets,
)
from hightide_broker.storage.versions import Versions

log = logging.getLogger("hightide.checkpoints")

Offsets = dict[TopicPartition, int]


class OffsetFile:
    """One checkpoint: what is to be in it, and the writes that bring it there."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.offsets: Offsets = {}
        """As they were given last, on the disk already or about to be."""
        self._disk = disk
        self._path = path
        self._versions = Versions()
        self._changing = threading.Lock()
        self._may_name: set[TopicPartition] = set()
        """What the file may name while it is behind: who makes thousands of partitions need not
        write it for each of them."""
        try:
            self.offsets = read_offsets(disk, path)
        except MalformedCheckpoint as error:
            log.warning("ignoring a damaged checkpoint: %s", error)

    def change_now(self, change: Callable[[Offsets], Offsets]) -> None:
        """Make something else of it, durably, before anything else happens; raises `DiskError`."""
        with self._changing:
            offsets = change(self.offsets)
            if offsets == self.offsets and not self._versions.is_behind:
                return
            number = self._give(offsets)
        self._write(number, offsets)

    def forget(self, key: TopicPartition) -> None:
        """Have nothing of it, durably; raises `DiskError`."""
        if key in self.offsets or (self._versions.is_behind and key in self._may_name):
            self.change_now(lambda known: {each: at for each, at in known.items() if each != key})

    def give(self, offsets: Offsets, *, keep: Collection[TopicPartition] = ()) -> int:
        """These are to be had, and what is known of those to `keep`, by a write that is to be begun
        (`bring`)."""
        with self._changing:
            kept = {tp: self.offsets[tp] for tp in keep if tp in self.offsets}
            return self._give({**kept, **offsets})

    async def bring(self, number: int) -> bool:
        """Write what was given under this number, in a worker thread; whether that could be done.
        Nothing is written if it has been overtaken."""
        if number != self._versions.given:
            return not self._versions.is_behind
        try:
            await self._disk.in_thread(partial(self._write, number, self.offsets))
        except DiskError as error:
            log.warning("checkpoint not written, the last one stays: %s", error)
            return False
        return True

    async def put(self, offsets: Offsets, *, keep: Collection[TopicPartition] = ()) -> bool:
        """Have these, in a worker thread; whether that could be done."""
        return await self.bring(self.give(offsets, keep=keep))

    def _give(self, offsets: Offsets) -> int:
        if not self._versions.is_behind:
            self._may_name = set(self.offsets)
        self._may_name |= offsets.keys()
        self.offsets = offsets
        return self._versions.give()

    def _write(self, number: int, offsets: Offsets) -> None:
        self._versions.write(
            number, lambda unless: write_offsets(self._disk, self._path, offsets, unless=unless)
        )


class Checkpoints:
    """What was kept last, and how to keep more."""

    def __init__(self, disk: Disk, directory: str) -> None:
        files = [OffsetFile(disk, f"{directory}/{name}") for name in OFFSET_FILES]
        self._files = files
        self._marks, self._points, self._starts, self._cleaned = files

    @property
    def high_watermarks(self) -> Offsets:
        """Where consumers may read to at once after a restart."""
        return self._marks.offsets

    @property
    def recovery_points(self) -> Offsets:
        """What is durable."""
        return self._points.offsets

    @property
    def log_starts(self) -> Offsets:
        """Where logs start that begin inside a segment."""
        return self._starts.offsets

    @property
    def cleaner_offsets(self) -> Offsets:
        """How far each partition has been compacted."""
        return self._cleaned.offsets

    def had_records(self, key: TopicPartition) -> bool:
        """Whether a log had anything in it when it was last kept track of."""
        return self.high_watermarks.get(key, 0) > 0 or self.recovery_points.get(key, 0) > 0

    def forget(self, key: TopicPartition) -> None:
        """A new log must not inherit the offsets of a deleted one of the same name; raises
        `DiskError`."""
        for file in self._files:
            file.forget(key)

    def forget_all_but(self, keys: Collection[TopicPartition]) -> None:
        """Nothing else is here any more; raises `DiskError`."""
        for file in self._files:
            file.change_now(lambda known: {each: at for each, at in known.items() if each in keys})

    def forget_cleaned(self, key: TopicPartition) -> None:
        """Its log ends below what was compacted: what comes there instead was not, and must not
        count as compacted once the log has grown past it. Raises `DiskError`."""
        self._cleaned.forget(key)

    def lower_offsets(self, key: TopicPartition, offset: int) -> None:
        """A log is about to be cut at `offset`: nothing above may be taken for durable, for deleted
        or for compacted, whatever comes there, and that is kept before the cut. Raises
        `DiskError`."""

        def lowered(offsets: Offsets) -> Offsets:
            return {**offsets, key: offset} if offsets.get(key, 0) > offset else offsets

        for file in (self._marks, self._points, self._starts, self._cleaned):
            file.change_now(lowered)

    async def keep_high_watermarks(
        self, marks: Offsets, *, keep: Collection[TopicPartition] = ()
    ) -> bool:
        """After a restart they are where consumers may read to at once; whether they are kept.
        `keep` are the replicas that are offline, of which nothing newer is known."""
        return await self._marks.put(marks, keep=keep)

    async def keep_recovery_points(
        self, points: Offsets, starts: Offsets, *, keep: Collection[TopicPartition] = ()
    ) -> bool:
        """What is durable, and where logs start; whether that is kept. `keep` as above."""
        # Both as of this moment: what is forgotten from now on stays so.
        number = self._points.give(points, keep=keep)
        start_number = self._starts.give(starts, keep=keep)
        points_kept = await self._points.bring(number)
        return await self._starts.bring(start_number) and points_kept

    async def keep_cleaner_offset(self, key: TopicPartition, offset: int) -> bool:
        """How far a log is compacted by now; whether that is kept."""
        return await self._cleaned.put({key: offset}, keep=[*self._cleaned.offsets])
