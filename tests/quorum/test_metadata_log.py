"""The metadata log with its snapshots: whatever happens, nothing that was synced is lost.

Goal: a log that does not begin at 0 begins where its earliest snapshot ends; snapshot and log
together say all that was ever appended, after every operation, every restart and every power loss;
what cannot be trusted is refused aloud or, if the log still has it, dropped. Method: the "image" of
these tests is the list of all changes, so that what a snapshot and the log behind it say can be
compared with what was appended; the power fails before every change of the disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import trio
from brokers import FakeClock
from logkit import BreakingDisk, PowerFailure
from tries import few

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.changes import AnyChange, FenceBroker
from hightide_broker.core.quorum.ready import SnapshotId, SnapshotPiece
from hightide_broker.ports import DiskError
from hightide_broker.runtime.quorum.metadata_log import MetadataFailed, MetadataLog
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.recovery import LogDamaged
from hightide_broker.storage.segment import LogConfig
from hightide_broker.storage.snapshots import (
    SnapshotDamaged,
    encode_snapshot,
    list_snapshots,
    snapshot_path,
)

HERE = "data/__cluster_metadata-0"
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=150)
FATES = few([None, *range(4)], 3)
"""How the process ends: None is `kill -9`, a number is a power loss with this seed."""


def open_log(disk: SimDisk) -> MetadataLog:
    return MetadataLog(disk, HERE, config=CONFIG, clock=FakeClock())


def change(number: int) -> FenceBroker:
    return FenceBroker(broker=number, broker_epoch=number)


def changes_to(end: int) -> list[FenceBroker]:
    return [change(number) for number in range(end)]


def sync(metadata: MetadataLog, disk: SimDisk) -> None:
    job = metadata.begin_sync()
    if job is not None:
        disk.sync_now(job.files, job.directories)
        metadata.finish_sync(job)
    assert metadata.synced_end == metadata.log_end


def grow(metadata: MetadataLog, disk: SimDisk, end: int, *, epoch: int = 1) -> None:
    """Append changes up to `end`, three to a batch, the change at an offset being its number."""
    while metadata.log_end < end:
        upto = min(metadata.log_end + 3, end)
        metadata.append([change(n) for n in range(metadata.log_end, upto)], epoch)
    sync(metadata, disk)


def snapshot_at(metadata: MetadataLog, end: int) -> SnapshotId:
    """Write one of everything below `end`."""
    snapshot = metadata.snapshot_id(end)
    trio.run(metadata.write_snapshot, snapshot, changes_to(end))
    return snapshot


def after(metadata: MetadataLog, offset: int) -> list[AnyChange]:
    """What the log says from an offset on, whole."""
    batches = list(metadata.batches(offset, metadata.log_end))
    found = [(at, each) for batch in batches for at, each in batch.changes]
    assert [at for at, _ in found] == list(range(offset, metadata.log_end))
    assert not batches or batches[-1].next_offset == metadata.log_end
    return [each for _, each in found]


def ids(disk: SimDisk) -> list[int]:
    """The ends of the snapshots on the disk."""
    return [end for end, _ in list_snapshots(disk, HERE)]


def check(metadata: MetadataLog, disk: SimDisk) -> int:
    """Everything that was ever said can be told from each snapshot on; up to where."""
    earliest, latest = metadata.earliest_snapshot, metadata.latest_snapshot
    if metadata.log_start > 0:
        assert earliest is not None
        assert metadata.log_start == earliest.end_offset
    assert not [name for name in disk.list(HERE) if name.endswith(".part")]
    if latest is None:
        assert after(metadata, 0) == changes_to(metadata.log_end)
    for snapshot in map(SnapshotId._make, list_snapshots(disk, HERE)):
        assert latest is not None
        assert snapshot.end_offset <= latest.end_offset <= metadata.log_end
        known = metadata.load_snapshot(snapshot)
        assert known + after(metadata, snapshot.end_offset) == changes_to(metadata.log_end)
    return metadata.log_end


def gather(metadata: MetadataLog, snapshot: SnapshotId, data: bytes, *, size: int = 100) -> None:
    for position in range(0, len(data), size):
        piece = memoryview(data)[position : position + size]
        assert metadata.gather(SnapshotPiece(snapshot, position, piece))


def snapshot_bytes(end: int, epoch: int) -> bytes:
    """The leader's file."""
    disk = SimDisk()
    other = open_log(disk)
    grow(other, disk, end, epoch=epoch)
    snapshot = snapshot_at(other, end)
    assert snapshot == (end, epoch)
    size, data = other.snapshot_piece(snapshot, 0, 1 << 30)
    assert size == len(data)
    return data


def every_interruption(
    build: Callable[[BreakingDisk], MetadataLog],
    operation: Callable[[MetadataLog], object],
    fate: int | None,
) -> Iterator[tuple[BreakingDisk, bool]]:
    """The disk after the operation was interrupted before each of its changes, and run through."""
    for changes in range(1000):
        disk = BreakingDisk()
        metadata = build(disk)
        disk.changes_left = changes
        finished = True
        try:
            operation(metadata)
        except PowerFailure:
            finished = False
        disk.repair()
        if fate is not None:
            disk.crash(random.Random(fate))
        yield disk, finished
        if finished:
            assert changes > 0, "the operation changes nothing"
            return


# The log.


def test_what_is_appended_is_read_back_and_found_again() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    assert metadata.append([change(0), change(1)], 1) == 0
    metadata.append_leader_change(2, leader=1, voters=[1, 2])
    assert metadata.append([change(3)], 2) == 3
    for log in (metadata, open_log(disk)):
        found = list(log.batches(0, log.log_end))
        assert [batch.changes for batch in found] == [
            [(0, change(0)), (1, change(1))],
            [],
            [(3, change(3))],
        ], "the quorum's own record is no change"
        assert [batch.next_offset for batch in found] == [2, 3, 4]
        assert (log.log_start, log.log_end, log.last_epoch) == (0, 4, 2)
        assert (log.end_offset_for(1), log.end_offset_for(2)) == ((1, 2), (2, 4))
        assert [b.next_offset for b in log.batches(1, 3)] == [2, 3], "whole batches up to the end"
        assert next(log.batches(1, 2)).changes == [(1, change(1))]


def test_a_full_disk_refuses_changes_and_loses_nothing() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    grow(metadata, disk, 6)
    disk.capacity = disk.used_bytes() + 10
    with pytest.raises(Refused) as caught:
        metadata.append([change(6)], 1)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert metadata.log_end == 6
    disk.capacity = 1 << 30
    grow(metadata, disk, 8)
    assert check(open_log(disk), disk) == 8


def test_a_disk_that_fails_stops_the_node() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    disk.fail("write", HERE)
    with pytest.raises(MetadataFailed):
        metadata.append([change(0)], 1)


def test_batches_of_the_leader_are_taken_up_to_the_first_bad_one() -> None:
    source_disk, disk = SimDisk(), SimDisk()
    source, metadata = open_log(source_disk), open_log(disk)
    grow(source, source_disk, 9, epoch=4)
    read = source.read(0, 1 << 20)
    assert read is not None
    data = bytearray(read.read())
    assert not metadata.replicate(bytes(data), epoch=3), "of an epoch that its leader cannot know"
    assert metadata.log_end == 0
    data[2 * len(data) // 3 + 70] ^= 1
    assert not metadata.replicate(bytes(data), epoch=4)
    assert metadata.log_end == 6
    assert not metadata.replicate(read.read(), epoch=4), "it does not go on where the log ends"
    rest = source.read(6, 1 << 20)
    assert rest is not None
    assert metadata.replicate(rest.read(), epoch=4)
    assert (check(metadata, disk), metadata.last_epoch) == (9, 4)


def test_a_damaged_log_is_refused() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    grow(metadata, disk, 60)
    disk.corrupt(f"{HERE}/{0:020d}.log", 80)
    with pytest.raises(LogDamaged):
        open_log(disk)


# Snapshots of one's own.


def test_a_snapshot_is_of_the_epoch_of_its_last_record_and_lets_the_log_roll() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    grow(metadata, disk, 4, epoch=1)
    grow(metadata, disk, 5, epoch=7)
    assert metadata.snapshot_id(4) == (4, 1)
    assert metadata.snapshot_id(5) == (5, 7)
    assert (metadata.latest_snapshot, metadata.earliest_snapshot) == (None, None)
    snapshot_at(metadata, 5)
    assert metadata.latest_snapshot == metadata.earliest_snapshot == (5, 7)
    assert f"{5:020d}.log" in disk.list(HERE)
    assert check(metadata, disk) == check(open_log(disk), disk) == 5


def test_a_snapshot_that_is_there_is_not_written_again() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    grow(metadata, disk, 5)
    snapshot = snapshot_at(metadata, 5)
    assert trio.run(metadata.write_snapshot, snapshot, changes_to(5)) == 0
    assert ids(disk) == [5]


def test_a_snapshot_that_cannot_be_written_leaves_nothing() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    grow(metadata, disk, 5)
    before = disk.list(HERE)
    disk.fail("sync", ".part")
    with pytest.raises(DiskError):
        snapshot_at(metadata, 5)
    disk.heal()
    assert (disk.list(HERE), metadata.latest_snapshot) == (before, None)
    disk.capacity = disk.used_bytes() + 100
    with pytest.raises(DiskError):
        snapshot_at(metadata, 5)
    assert (disk.list(HERE), metadata.latest_snapshot) == (before, None)


def test_pruning_keeps_the_latest_snapshot_and_the_log_behind_the_earliest() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    for end in (20, 40, 60):
        grow(metadata, disk, end)
        snapshot_at(metadata, end)
    grow(metadata, disk, 65)
    metadata.prune(1 << 30)
    assert (ids(disk), metadata.log_start) == ([20, 40, 60], 0)
    metadata.prune(metadata.size_bytes - 1)
    assert (ids(disk), metadata.log_start) == ([40, 60], 40)
    check(metadata, disk)
    size = metadata.size_bytes
    metadata.prune(0)
    assert (ids(disk), metadata.log_start) == ([60], 60)
    assert metadata.size_bytes < size
    assert not [name for name in disk.list(HERE) if name.endswith(".deleted")]
    for log in (metadata, open_log(disk)):
        assert (check(log, disk), log.log_start) == (65, 60)
        assert log.end_offset_for(1) == (1, 65)


def test_all_that_a_node_has_may_be_a_snapshot() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    for end, epoch in ((20, 3), (40, 5)):
        grow(metadata, disk, end, epoch=epoch)
        snapshot_at(metadata, end)
    metadata.prune(0)
    for log in (metadata, open_log(disk), open_log(disk)):
        assert (log.log_start, log.log_end, log.last_epoch) == (40, 40, 5)
        assert log.snapshot_id(40) == (40, 5)
        assert check(log, disk) == 40
    grow(metadata, disk, 44, epoch=6)
    assert check(open_log(disk), disk) == 44


@pytest.mark.parametrize("fate", FATES)
def test_writing_and_pruning_can_be_interrupted_anywhere(fate: int | None) -> None:
    def build(disk: BreakingDisk) -> MetadataLog:
        metadata = open_log(disk)
        for end in (20, 40):
            grow(metadata, disk, end)
            snapshot_at(metadata, end)
        grow(metadata, disk, 60)
        return metadata

    def operation(metadata: MetadataLog) -> None:
        snapshot_at(metadata, 60)
        metadata.prune(0)

    outcomes = set()
    for disk, finished in every_interruption(build, operation, fate):
        for _ in range(2):
            metadata = open_log(disk)
            assert check(metadata, disk) == 60
        latest = metadata.latest_snapshot
        assert latest is not None
        assert latest.end_offset == 60 if finished else latest.end_offset in (40, 60)
        outcomes.add((metadata.log_start, latest.end_offset))
    assert (0, 40) in outcomes
    assert {end for _, end in outcomes} == {40, 60}


# A snapshot of the leader's.


def test_a_snapshot_from_the_leader_takes_the_place_of_the_log() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    grow(metadata, disk, 20)
    snapshot_at(metadata, 10)
    snapshot = SnapshotId(50, 3)
    gather(metadata, snapshot, snapshot_bytes(50, 3))
    assert (metadata.latest_snapshot, metadata.log_end) == ((10, 1), 20), "it is not whole yet"
    assert metadata.install(snapshot)
    for log in (metadata, open_log(disk)):
        assert (log.log_start, log.log_end, log.synced_end, log.last_epoch) == (50, 50, 50, 3)
        assert (log.latest_snapshot, ids(disk)) == (snapshot, [50])
        assert check(log, disk) == 50
    grow(metadata, disk, 55, epoch=3)
    assert check(open_log(disk), disk) == 55


def test_gathering_may_begin_again() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    data = snapshot_bytes(50, 3)
    gather(metadata, SnapshotId(30, 2), data[:150])
    gather(metadata, SnapshotId(50, 3), data[:150])
    gather(metadata, SnapshotId(50, 3), data)
    assert metadata.install(SnapshotId(50, 3))
    assert check(metadata, disk) == 50


def test_a_full_disk_makes_gathering_wait() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    data, snapshot = snapshot_bytes(50, 3), SnapshotId(50, 3)
    gather(metadata, snapshot, data[:100])
    disk.capacity = disk.used_bytes() + 10
    assert not metadata.gather(SnapshotPiece(snapshot, 100, memoryview(data)[100:]))
    disk.capacity = 1 << 30
    assert metadata.gather(SnapshotPiece(snapshot, 100, memoryview(data)[100:]))
    assert metadata.install(snapshot)
    assert check(metadata, disk) == 50


@pytest.mark.parametrize("fate", FATES)
def test_installing_can_be_interrupted_anywhere(fate: int | None) -> None:
    snapshot, data = SnapshotId(90, 3), snapshot_bytes(90, 3)

    def build(disk: BreakingDisk) -> MetadataLog:
        metadata = open_log(disk)
        grow(metadata, disk, 40)
        snapshot_at(metadata, 30)
        return metadata

    def operation(metadata: MetadataLog) -> None:
        gather(metadata, snapshot, data, size=1000)
        assert metadata.install(snapshot)

    outcomes = set()
    for disk, finished in every_interruption(build, operation, fate):
        end = check(open_log(disk), disk)
        assert end == 90 if finished else end in (40, 90)
        again = open_log(disk)
        assert check(again, disk) == end, "the next start finds the same"
        outcomes.add(end)
    assert outcomes == {40, 90}


@pytest.mark.parametrize("fate", FATES)
def test_a_snapshot_that_does_not_pass_its_checks_never_harms_the_log(fate: int | None) -> None:
    """Whatever the leader sent, and whenever the power fails, the node starts with what it had."""
    snapshot, data = SnapshotId(90, 3), snapshot_bytes(90, 3)[:-1]

    def build(disk: BreakingDisk) -> MetadataLog:
        metadata = open_log(disk)
        grow(metadata, disk, 40)
        snapshot_at(metadata, 30)
        return metadata

    def operation(metadata: MetadataLog) -> None:
        gather(metadata, snapshot, data, size=1000)
        assert not metadata.install(snapshot)
        assert (metadata.latest_snapshot, metadata.log_end) == ((30, 1), 40)

    for disk, _ in every_interruption(build, operation, fate):
        assert check(open_log(disk), disk) == 40


def test_pieces_are_served_of_the_snapshots_that_are_there() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    grow(metadata, disk, 20)
    snapshot = snapshot_at(metadata, 20)
    size, whole = metadata.snapshot_piece(snapshot, 0, 1 << 30)
    pieces = [metadata.snapshot_piece(snapshot, at, 7)[1] for at in range(0, size, 7)]
    assert b"".join(pieces) == whole
    for wrong in (SnapshotId(20, 2), SnapshotId(19, 1)):
        with pytest.raises(Refused) as caught:
            metadata.snapshot_piece(wrong, 0, 7)
        assert caught.value.code == ErrorCode.SNAPSHOT_NOT_FOUND
    for position in (size, size + 1):
        with pytest.raises(Refused) as caught:
            metadata.snapshot_piece(snapshot, position, 7)
        assert caught.value.code == ErrorCode.POSITION_OUT_OF_RANGE


# Damaged snapshots.


def damage(disk: SimDisk, end: int, epoch: int = 1) -> None:
    disk.corrupt(snapshot_path(HERE, (end, epoch)), 100)


def three_snapshots(disk: SimDisk, *, prune: bool) -> None:
    """At 20, 40 and 60; pruned: at 40 and 60, and the log begins at 40."""
    metadata = open_log(disk)
    for end in (20, 40, 60):
        grow(metadata, disk, end)
        snapshot_at(metadata, end)
    grow(metadata, disk, 65)
    if prune:
        metadata.prune(metadata.size_bytes - 1)
        assert ids(disk) == [40, 60]


@pytest.mark.parametrize("end", [20, 40, 60])
def test_a_damaged_snapshot_is_dropped_while_the_log_has_what_it_contained(end: int) -> None:
    disk = SimDisk()
    three_snapshots(disk, prune=False)
    damage(disk, end)
    metadata = open_log(disk)
    assert ids(disk) == sorted({20, 40, 60} - {end})
    assert (check(metadata, disk), metadata.log_start) == (65, 0)


def test_a_damaged_snapshot_is_dropped_while_an_earlier_one_is_whole() -> None:
    disk = SimDisk()
    three_snapshots(disk, prune=True)
    damage(disk, 60)
    metadata = open_log(disk)
    assert (check(metadata, disk), metadata.log_start, ids(disk)) == (65, 40, [40])


def test_a_damaged_snapshot_is_refused_when_the_log_begins_behind_it() -> None:
    disk = SimDisk()
    three_snapshots(disk, prune=True)
    damage(disk, 40)
    damage(disk, 60)
    for _ in range(2):
        with pytest.raises(SnapshotDamaged, match="restore it from a copy"):
            open_log(disk)
        assert ids(disk) == [40, 60], "it is left as it is for anybody who looks into it"


def test_a_log_without_its_beginning_and_without_a_snapshot_is_refused() -> None:
    disk = SimDisk()
    three_snapshots(disk, prune=True)
    for end in (40, 60):
        disk.remove(snapshot_path(HERE, (end, 1)))
    with pytest.raises(SnapshotDamaged, match="no snapshot of what came before"):
        open_log(disk)


def test_what_a_crash_left_of_a_snapshot_is_removed() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    grow(metadata, disk, 20)
    gather(metadata, SnapshotId(50, 3), b"".join(encode_snapshot([b"x"], epoch=3, now_ms=1)))
    assert [name for name in disk.list(HERE) if name.endswith(".part")]
    assert check(open_log(disk), disk) == 20
