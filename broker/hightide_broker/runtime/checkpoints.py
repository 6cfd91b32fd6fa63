"""The offset checkpoints of a data directory: watermarks, recovery points, log starts, cleaner
offsets.

One of Kafka's text files for each kind, for all partitions together. A file that is no checkpoint
counts as empty, which is always safe for these: a watermark of 0 is learned again, a recovery point
of 0 makes the next start scan more. A recovery point must never be above what is durable, so it is
lowered, durably, before a log is cut.
"""

from __future__ import annotations

import logging
from functools import partial

from hightide_broker.ports import Disk, DiskError
from hightide_broker.storage.checkpoint import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    MalformedCheckpoint,
    TopicPartition,
    read_offsets,
    write_offsets,
)

log = logging.getLogger("hightide.checkpoints")


class Checkpoints:
    """What was kept last, and how to keep more."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.high_watermarks = self._read(HIGH_WATERMARKS)
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.log_starts = self._read(LOG_STARTS)
        self.cleaner_offsets = self._read(CLEANER_OFFSETS)
        """How far each partition has been compacted; housekeeping's to move."""
        self._writing_points = False

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self._disk, f"{self._directory}/{name}")
        except MalformedCheckpoint as error:
            log.warning("ignoring a damaged checkpoint: %s", error)
            return {}

    def had_records(self, key: TopicPartition) -> bool:
        """Whether a log had anything in it when it was last kept track of."""
        return self.high_watermarks.get(key, 0) > 0 or self.recovery_points.get(key, 0) > 0

    def forget(self, key: TopicPartition) -> None:
        """A new log must not inherit the offsets of a deleted one of the same name."""
        for name, offsets in (
            (RECOVERY_POINTS, self.recovery_points),
            (LOG_STARTS, self.log_starts),
            (HIGH_WATERMARKS, self.high_watermarks),
            (CLEANER_OFFSETS, self.cleaner_offsets),
        ):
            if offsets.pop(key, None) is not None:
                write_offsets(self._disk, f"{self._directory}/{name}", offsets)

    def lower_recovery_point(self, key: TopicPartition, offset: int) -> bool:
        """A log is about to be cut at `offset`: nothing above may be taken for durable, and that is
        kept before the cut. False: not now, an older state is just being written. Raises
        `DiskError`."""
        if self._writing_points:
            return False
        if self.recovery_points.get(key, 0) > offset:
            points = {**self.recovery_points, key: offset}
            write_offsets(self._disk, f"{self._directory}/{RECOVERY_POINTS}", points)
            self.recovery_points = points
        return True

    async def keep_high_watermarks(self, marks: dict[TopicPartition, int]) -> None:
        """After a restart they are where consumers may read to at once."""
        await self._write(HIGH_WATERMARKS, marks)
        self.high_watermarks = marks

    async def keep_recovery_points(
        self, points: dict[TopicPartition, int], starts: dict[TopicPartition, int]
    ) -> None:
        """What is durable, and where logs start."""
        self._writing_points = True
        try:
            await self._write(RECOVERY_POINTS, points)
        finally:
            self._writing_points = False
        await self._write(LOG_STARTS, starts)
        self.recovery_points, self.log_starts = points, starts

    async def _write(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        path = f"{self._directory}/{name}"
        try:
            await self._disk.in_thread(partial(write_offsets, self._disk, path, offsets))
        except DiskError as error:
            log.warning("checkpoint not written, the last one stays: %s", error)
