"""The metadata log of one node: `__cluster_metadata-0` with its snapshots.

An ordinary log of ordinary batches whose values are changes (`core/cluster/changes.py`), and the
snapshots that let its beginning go. It knows no roles and no watermark: `driver.py` tells it what
to do. Every start scans all of it: it is small, and everything hangs on it.

Invariants: a log that does not begin at 0 begins where its earliest snapshot ends; every snapshot
that is listed was whole when it got its name. Sources: KIP-595, KIP-630.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from hightide.net.ports import WallClock
from hightide.protocol.columns import batch_at, open_batch, values_of
from hightide.protocol.errors import CorruptBatch, ErrorCode, Refused
from hightide.protocol.records import (
    CONTROL,
    BatchHeader,
    Buffer,
    check_crc,
    iter_batches,
    parse_header,
)
from hightide.protocol.words import counted
from hightide_broker.core.cluster.changes import (
    AnyChange,
    Change,
    SetVoters,
    decode_change,
    encode_change,
)
from hightide_broker.core.quorum.ready import SnapshotId, SnapshotPiece
from hightide_broker.core.quorum.roles import Voter
from hightide_broker.ports import Disk, DiskError, NodeMustStop
from hightide_broker.runtime.quorum.batches import MetadataBatch, read_batches
from hightide_broker.storage.aside import has_records
from hightide_broker.storage.checkpoint import PARTITION_METADATA
from hightide_broker.storage.file_slice import FileSlice
from hightide_broker.storage.log import Log, UnexpectedAppendOffset
from hightide_broker.storage.segment import LogConfig, SegmentDamage
from hightide_broker.storage.snapshots import (
    SnapshotDamaged,
    SnapshotWriter,
    encode_snapshot,
    list_snapshots,
    read_piece,
    read_snapshot,
    remove_parts,
    remove_snapshot,
    written_at_ms,
)
from hightide_broker.storage.sync_job import SyncJob, carry_out
from hightide_broker.storage.synced_end import SyncedEnd

log = logging.getLogger("hightide.metadata")

METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""Kafka's fixed id of the metadata topic."""


_VOTERS_TAG = b"\xa6voters"
"""In the bytes of every record of the voters; a batch without it is not decoded to look for one."""
CHANGES_BYTES_MAX = 32 << 20
"""Of one batch: well below what readers take."""


class MetadataFailed(NodeMustStop):
    """The metadata could not be read, written or synced."""


class MetadataLog:
    """Implements `core.ready.LogView`."""

    def __init__(self, disk: Disk, directory: str, *, config: LogConfig, clock: WallClock) -> None:
        """Open the log, or make it; raises `LogDamaged`, `SnapshotDamaged`, or `DiskError`."""
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._gathering: SnapshotWriter | None = None
        self.errors = 0
        """What could not be appended, for want of room or because it is not what it must be."""
        self._voters: list[tuple[int, tuple[Voter, ...]]] = []
        """(where the record ends, the voters from then on), oldest first."""
        disk.make_dirs(directory)
        remove_parts(disk, directory)
        self._snapshots = [SnapshotId(*each) for each in list_snapshots(disk, directory)]
        self._floor = SyncedEnd(disk, directory)
        self._log = self._open(config)
        self._drop_unusable_snapshots()
        latest = self.latest_snapshot
        end = max(self._log.log_end, latest.end_offset if latest else 0)
        if why := self._floor.missed_by(end):
            raise MetadataFailed(why)
        if latest is not None and not self._contains(latest):
            self._begin_behind(latest)
        earliest = self.earliest_snapshot
        if self._log.segment_bases()[0] > 0:
            if earliest is None:
                raise SnapshotDamaged(
                    f"{directory} begins at offset {self._log.segment_bases()[0]} and has no "
                    f"snapshot of what came before; restore it from a copy"
                )
            self._log.advance_log_start(earliest.end_offset)
        job = self._log.begin_sync()
        if job is not None:
            disk.sync_now(job.files, job.directories)
            self._log.epochs.write()
            self._log.finish_sync(job)
        self._floor.raise_to(self._log.synced_end)
        self._find_voters()

    def _open(self, config: LogConfig) -> Log:
        disk, directory = self._disk, self._directory
        if not disk.exists(f"{directory}/{PARTITION_METADATA}"):
            if self._snapshots or has_records(disk, directory):
                raise MetadataFailed(
                    f"{directory}/{PARTITION_METADATA} is lost, and the log is there: restore it "
                    f"from a copy; this node must not vote as if it knew nothing"
                )
            return Log.create(disk, directory, topic_id=METADATA_TOPIC_ID, config=config)
        with disk.reserve():
            return Log.open(
                disk,
                directory,
                topic_id=METADATA_TOPIC_ID,
                config=config,
                log_start=0,
                recovery_point=0,
                clean=False,
            )

    def _drop_unusable_snapshots(self) -> None:
        """Forget snapshots from before the log's beginning, and damaged ones that it can do
        without."""
        base = self._log.segment_bases()[0]
        damaged: dict[SnapshotId, SnapshotDamaged] = {}
        for snapshot in list(self._snapshots):
            if snapshot.end_offset < base:
                self._remove(snapshot)
                continue
            try:
                read_snapshot(self._disk, self._directory, snapshot)
            except SnapshotDamaged as error:
                damaged[snapshot] = error
        none_is_whole = len(damaged) == len(self._snapshots)
        for snapshot, why in damaged.items():
            if base > 0 and none_is_whole:
                raise SnapshotDamaged(f"{why}; restore it from a copy")
            log.warning("%s; there is another one, or the whole log: it is removed", why)
            self._remove(snapshot)

    def _contains(self, snapshot: SnapshotId) -> bool:
        """Whether the log goes on from a snapshot; not if a crash came between the snapshot of a
        leader and the cut of a log that differs."""
        end, log_ = snapshot.end_offset, self._log
        if end > log_.log_end:
            return False
        is_below = end <= log_.segment_bases()[0]
        return is_below or log_.epochs.epoch_for_offset(end - 1) == snapshot.epoch

    def _remove(self, snapshot: SnapshotId) -> None:
        remove_snapshot(self._disk, self._directory, snapshot)
        self._snapshots.remove(snapshot)

    def __repr__(self) -> str:
        return f"<MetadataLog {self._log!r} snapshots={[*map(tuple, self._snapshots)]}>"

    # -- core.ready.LogView ----------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        return self._log.log_start

    @property
    def log_end(self) -> int:
        return self._log.log_end

    @property
    def synced_end(self) -> int:
        return self._log.synced_end

    @property
    def last_epoch(self) -> int:
        latest = self.latest_snapshot
        of_snapshot = latest.epoch if latest and latest.end_offset == self.log_end else 0
        return max(self._log.epochs.latest_epoch, of_snapshot, 0)

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset) of those in the log, oldest first."""
        return self._log.epochs.entries

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self._snapshots[-1] if self._snapshots else None

    @property
    def snapshot_ms(self) -> int:
        """When the latest snapshot was made, in ms since 1970; -1: there is none. Raises
        `DiskError`."""
        latest = self.latest_snapshot
        return -1 if latest is None else written_at_ms(self._disk, self._directory, latest)

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self._snapshots[0] if self._snapshots else None

    @property
    def voters(self) -> tuple[Voter, ...] | None:
        return self._voters[-1][1] if self._voters else None

    @property
    def voters_end(self) -> int:
        return self._voters[-1][0] if self._voters else 0

    @property
    def earlier_voters(self) -> tuple[Voter, ...]:
        last = self.voters
        return next((voters for _, voters in reversed(self._voters) if voters != last), ())

    def _find_voters(self) -> None:
        """Every record of the voters, in the latest snapshot and in the log."""
        self._voters = []
        latest = self.latest_snapshot
        if latest is not None:
            self._note_voters(self.load_snapshot(latest), latest.end_offset)
        for header, batch in self._log.batches(self.log_start):
            self._note_batch(header, batch)

    def _note_batch(self, header: BatchHeader, batch: Buffer) -> None:
        if _VOTERS_TAG in bytes(batch) and not header.is_control:
            values = values_of(open_batch(batch, header))
            self._note_voters([decode_change(value or b"") for value in values], header.next_offset)

    def _note_voters(self, changes: Sequence[Change], end: int) -> None:
        self._voters += [(end, each.voters) for each in changes if isinstance(each, SetVoters)]

    def is_boundary(self, offset: int) -> bool:
        if offset in (self.log_start, self.log_end):
            return True
        return next(self._log.headers(offset)).base_offset == offset

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        return self._log.epochs.end_offset_for(epoch, self.log_end)

    # -- writing ---------------------------------------------------------------------------------

    def append_leader_change(self, epoch: int, *, leader: int, voters: Sequence[int]) -> None:
        """Begin a leader's epoch: its first record."""
        fields = {"type": "leader_change", "leader": leader, "voters": list(voters)}
        self._log.epochs.assign(epoch, self.log_end)
        try:
            self._log.epochs.write()
            self._write([msgspec.msgpack.encode(fields)], epoch, attributes=CONTROL)
        except DiskError as error:
            raise MetadataFailed(str(error)) from error

    def append(self, changes: Sequence[Change], epoch: int) -> int:
        """Write changes as one batch, atomically; the offset of the first one.

        Raises `Refused` if the disk has no room.
        """
        values = [encode_change(change) for change in changes]
        assert values, "a batch of no changes"
        if (size := sum(map(len, values))) > CHANGES_BYTES_MAX:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"the request would write {counted(size, 'byte')} of metadata at once, expected "
                f"{CHANGES_BYTES_MAX} at most: ask for less at a time",
            )
        try:
            first = self._write(values, epoch).base_offset
            self._note_voters(changes, self.log_end)
            return first
        except DiskError as error:
            if not error.full:
                raise MetadataFailed(str(error)) from error
            self.errors += 1
            raise Refused(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the controller's disk is full: {error}; nothing was changed, free some room",
            ) from error

    def _write(self, values: list[bytes], epoch: int, *, attributes: int = 0) -> BatchHeader:
        now = self._clock.now_ms()
        batch = batch_at(now, values, attributes=attributes)
        with self._disk.reserve():
            header = parse_header(batch)
            return self._log.append_as_leader(batch, header, leader_epoch=epoch, now_ms=now)

    def replicate(self, data: Buffer, *, epoch: int) -> bool:
        """Append batches of the leader of `epoch`; False if some were not what they must be: whole
        ones before a bad one are kept. Raises `MetadataFailed`."""
        try:
            for header, batch in iter_batches(data):
                check_crc(batch, header)
                if header.base_offset != self.log_end or header.leader_epoch > epoch:
                    raise UnexpectedAppendOffset(
                        f"batch {header.base_offset}..{header.last_offset} of epoch "
                        f"{header.leader_epoch}, the log ends at {self.log_end} in epoch {epoch}"
                    )
                with self._disk.reserve():
                    self._log.append_as_follower(batch, header, now_ms=self._clock.now_ms())
                self._note_batch(header, batch)
        except (CorruptBatch, UnexpectedAppendOffset) as error:
            return self._failed("the leader sent what cannot be appended: %s", error)
        except DiskError as error:
            return self._failed("the metadata log waits for room on the disk: %s", error)
        return True

    def _failed(self, message: str, error: Exception) -> bool:
        """It is tried again: False. Raises `MetadataFailed` where that would be in vain."""
        if isinstance(error, DiskError) and not error.full:
            raise MetadataFailed(str(error)) from error
        self.errors += 1
        log.error(message, error)
        return False

    def truncate_to(self, offset: int) -> None:
        """Cut the log, durably."""
        try:
            self._floor.lower_to(offset)
            self._log.truncate_to(offset)
        except (DiskError, SegmentDamage) as error:
            raise MetadataFailed(str(error)) from error
        self._voters = [each for each in self._voters if each[0] <= self.log_end]

    # -- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> FileSlice | None:
        """Batches from `offset` on, whether committed or not; None if there are none."""
        return self._log.read(offset, max_bytes=max_bytes)

    def headers(self, offset: int = 0) -> Iterator[BatchHeader]:
        """The header of every batch that ends above `offset`."""
        return self._log.headers(offset)

    def batches(self, offset: int, end: int) -> Iterator[MetadataBatch]:
        """Every batch from `offset` on that ends at or below `end`."""
        return read_batches(self._log, offset, end)

    def last_voters(self) -> tuple[int, ...] | None:
        """The voters of the last leader change in the log; None if there is none in it."""
        last: BatchHeader | None = None
        for header in self._log.headers(self.log_start):
            last = header if header.is_control else last
        if last is None:
            return None
        _, batch = next(self._log.batches(last.base_offset))
        (value,) = values_of(open_batch(batch, last))
        return tuple(sorted(msgspec.msgpack.decode(value or b"\x80").get("voters", ())))

    # -- syncing ---------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """What is to be synced now; None if everything is durable."""
        return self._log.begin_sync()

    def finish_sync(self, job: SyncJob) -> None:
        """What a sync of `begin_sync` covers is durable."""
        self._log.finish_sync(job)

    async def close(self) -> None:
        """Flush and close."""
        if (job := self._log.finish()) is not None:
            await carry_out(job, self._disk)
            self._log.finish_sync(job)
        self._floor.raise_to(self._log.synced_end)
        self._log.close()

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot_id(self, end_offset: int) -> SnapshotId:
        """The id of a snapshot of everything below `end_offset`."""
        latest = self.latest_snapshot
        epoch = self._log.epochs.epoch_for_offset(end_offset - 1)
        if epoch < 0 and latest is not None and latest.end_offset == end_offset:
            epoch = latest.epoch
        return SnapshotId(end_offset, max(epoch, 0))

    async def write_snapshot(self, snapshot: SnapshotId, changes: Sequence[Change]) -> int:
        """Write a snapshot and let the log roll, so that what is below can go; its size.

        Raises `DiskError`; then there is no snapshot.
        """
        if snapshot in self._snapshots:
            return 0
        values = [encode_change(change) for change in changes]
        writing = partial(self._write_snapshot, snapshot, values, self._clock.now_ms())
        size = await self._disk.in_thread(writing)
        latest = self.latest_snapshot
        if latest is not None and latest.end_offset >= snapshot.end_offset:
            # One came from the leader meanwhile, and the log begins behind it.
            remove_snapshot(self._disk, self._directory, snapshot)
            return 0
        self._snapshots.append(snapshot)
        self._log.roll()
        self._floor.raise_to(self._log.synced_end)
        return size

    def _write_snapshot(self, snapshot: SnapshotId, values: list[bytes], now_ms: int) -> int:
        writer = SnapshotWriter(self._disk, self._directory, snapshot)
        try:
            for batch in encode_snapshot(values, epoch=snapshot.epoch, now_ms=now_ms):
                writer.append(batch)
            size = writer.size
            writer.finish()
        except DiskError:
            writer.discard()
            raise
        return size

    def prune(self, retention_bytes: int) -> None:
        """Delete the oldest snapshots while all takes more than `retention_bytes`, and the log
        before the oldest that stays; the latest one always stays."""
        while len(self._snapshots) > 1 and self.size_bytes > retention_bytes:
            oldest, following = self._snapshots[:2]
            self._log.advance_log_start(following.end_offset)
            bases = self._log.segment_bases()
            below = sum(base <= following.end_offset for base in bases) - 1
            if below > 0:
                for path in self._log.delete_segments(below):
                    self._disk.remove(path)
            self._remove(oldest)

    @property
    def size_bytes(self) -> int:
        """Bytes of the log and its snapshots."""
        sizes = (read_piece(self._disk, self._directory, s, 0, 0)[0] for s in self._snapshots)
        return self._log.size_bytes + sum(sizes)

    def load_snapshot(self, snapshot: SnapshotId) -> list[AnyChange]:
        """What a snapshot says; raises `MetadataFailed`."""
        try:
            values = read_snapshot(self._disk, self._directory, snapshot)
        except SnapshotDamaged as error:
            raise MetadataFailed(str(error)) from error
        return [decode_change(value) for value in values]

    def snapshot_piece(
        self, snapshot: SnapshotId, position: int, max_bytes: int
    ) -> tuple[int, bytes]:
        """(size of the snapshot, bytes from `position`); raises `Refused`."""
        if snapshot not in self._snapshots:
            raise Refused(
                ErrorCode.SNAPSHOT_NOT_FOUND,
                f"no snapshot {snapshot.end_offset}-{snapshot.epoch} here, the latest is "
                f"{self.latest_snapshot}",
            )
        size, data = read_piece(self._disk, self._directory, snapshot, position, max_bytes)
        if position >= size:
            raise Refused(
                ErrorCode.POSITION_OUT_OF_RANGE,
                f"position {position} of a snapshot of {counted(size, 'byte')}",
            )
        return size, data

    def gather(self, piece: SnapshotPiece) -> bool:
        """Keep a piece of a snapshot that comes from the leader; False if there is no room."""
        try:
            if piece.position == 0:
                if self._gathering is not None:
                    self._gathering.discard()
                self._gathering = SnapshotWriter(self._disk, self._directory, piece.snapshot)
            assert self._gathering is not None, "a snapshot begins at position 0"
            assert self._gathering.size == piece.position, f"a gap before {piece.position}"
            self._gathering.append(piece.data)
        except DiskError as error:
            return self._failed("the metadata snapshot waits for room on the disk: %s", error)
        return True

    def install(self, snapshot: SnapshotId) -> bool:
        """Begin the log again behind a gathered snapshot; False if it does not pass its checks."""
        assert self._gathering is not None, "nothing was gathered"
        gathered, self._gathering = self._gathering, None
        try:
            gathered.finish()
            if snapshot not in self._snapshots:
                self._snapshots.append(snapshot)
            self._begin_behind(snapshot)
            self._find_voters()
        except SnapshotDamaged as error:
            return self._failed("the leader sent a snapshot that is none: %s", error)
        except DiskError as error:
            raise MetadataFailed(str(error)) from error
        log.info("loaded snapshot %d-%d from the leader", *snapshot)
        return True

    def _begin_behind(self, snapshot: SnapshotId) -> None:
        """An empty log that goes on where a snapshot ends."""
        self._floor.lower_to(snapshot.end_offset)
        self._log.truncate_fully(snapshot.end_offset)
        for older in [s for s in self._snapshots if s != snapshot]:
            self._remove(older)
