"""What blocks the event loop on the disk: how often, as roles change and segments are swapped.

Goal: a node that gets many partitions to lead or to follow at once, or compacts a long log, does
not stand still meanwhile: the durable writes of it are few, or a worker thread's. Method: broker 1
with real replicas on a disk that counts the calls which sync on the spot, unless a worker thread
makes them; how many partitions there are must not show in the count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
import trio
from brokers import NOW_MS, FakeClock, LoseAll, batch
from faulty_broker import Frail
from leaderkit import EPOCH, ME, TWO, settled
from logkit import make_batch, sync
from replicakit import joined, write

from hightide.protocol import messages as m
from hightide_broker.core.cluster.changes import ChangePartition
from hightide_broker.core.replication.follower import next_fetch
from hightide_broker.ports import DiskFile, Done
from hightide_broker.runtime.replication.following import own_log
from hightide_broker.runtime.replication.housekeeping import Housekeeping
from hightide_broker.simulation.disk import SimDisk

T = TypeVar("T")
PARTITIONS = 100
FEW = 4
"""Durable writes that one batch of metadata may make on the loop, whatever it says."""


class CountingDisk(SimDisk):
    """A disk that remembers what blocked the loop until it was durable."""

    def __init__(self) -> None:
        super().__init__()
        self.in_worker = False
        self.blocked: list[str] = []
        """Paths that were replaced or synced on the loop."""
        self.reads = 0
        """Reads of files on the loop."""

    def start(self) -> None:
        """Count from here on."""
        self.blocked, self.reads = [], 0

    def fail_if_told(self, path: str, operation: str) -> None:
        self.reads += operation == "read" and not self.in_worker
        super().fail_if_told(path, operation)

    def replace(self, path: str, data: bytes, *, unless: Callable[[], bool] | None = None) -> None:
        if not self.in_worker:
            self.blocked.append(path)
        super().replace(path, data, unless=unless)

    def sync_now(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        if not self.in_worker:
            self.blocked += [*(file.path for file in files), *directories]
        super().sync_now(files, directories)

    async def sync(self, files: Sequence[DiskFile], directories: Sequence[str] = ()) -> None:
        await self.in_thread(lambda: self.sync_now(files, directories))

    def begin_sync(
        self,
        nursery: trio.Nursery,
        files: Sequence[DiskFile],
        directories: Sequence[str],
        what: T,
        done: Done[T],
    ) -> None:
        async def sync() -> None:
            await self.sync(files, directories)
            done([(what, None)])

        nursery.start_soon(sync)

    async def in_thread(self, function: Callable[[], T]) -> T:
        def work() -> T:
            self.in_worker = True
            try:
                return function()
            finally:
                self.in_worker = False

        return await super().in_thread(work)


def to(leader: int) -> list[ChangePartition]:
    """Every partition gets this leader, in a new epoch."""
    return [
        ChangePartition(topic_id="id-of-jade", partition=number, leader=leader)
        for number in range(PARTITIONS)
    ]


@pytest.mark.parametrize("records", [0, 2])
async def test_a_hundred_partitions_get_this_leader_with_a_few_durable_writes(records):
    disk = CountingDisk()
    here = Frail(disk)
    await here.create(leader=ME, partitions=PARTITIONS)
    for number in range(PARTITIONS):
        here.append(records, partition=number)
    await here.apply(*to(TWO))
    disk.start()
    await here.apply(*to(ME))
    assert all(replica.leader.epoch == EPOCH + 2 for replica in here.replicas)
    assert len(disk.blocked) <= FEW, f"{len(disk.blocked)}, the first: {disk.blocked[:4]}"


async def test_a_hundred_new_partitions_are_led_with_a_few_durable_writes():
    disk = CountingDisk()
    here = Frail(disk)
    disk.start()
    await here.create(leader=ME, partitions=PARTITIONS)
    assert all(replica.leader is not None for replica in here.replicas)
    assert len(disk.blocked) <= FEW, f"{len(disk.blocked)}, the first: {disk.blocked[:4]}"


async def test_a_start_leads_a_hundred_partitions_with_a_few_durable_writes():
    before = Frail(CountingDisk())
    await before.create(leader=TWO, partitions=PARTITIONS)
    before.replay(*to(ME))
    here = before.again(clean=True)
    here.disk.start()
    await here.applier.load(here.image)
    assert all(replica.leader is not None for replica in here.replicas)
    assert len(here.disk.blocked) <= FEW, f"{len(here.disk.blocked)}: {here.disk.blocked[:4]}"


async def test_a_hundred_partitions_follow_another_leader_with_a_few_durable_writes():
    disk = CountingDisk()
    here = Frail(disk)
    await here.create(leader=ME, partitions=PARTITIONS)
    disk.start()
    await here.apply(*to(TWO))
    assert all(replica.follower is not None for replica in here.replicas)
    assert len(disk.blocked) <= FEW, f"{len(disk.blocked)}, the first: {disk.blocked[:4]}"


async def test_a_hundred_followers_take_a_new_epochs_first_records_with_a_few_durable_writes():
    disk = CountingDisk()
    here = Frail(disk)
    await here.create(leader=TWO, partitions=PARTITIONS)
    disk.start()
    for replica in here.replicas:
        asked = next_fetch(
            *(replica.topic, replica.topic_id, replica.partition),
            *(replica.follower, own_log(replica)),
            high_watermark=0,
            max_bytes=1 << 20,
        )
        answer = m.FetchResult(topic="jade", partition=replica.partition)
        sent = joined(make_batch(1, base_offset=0, epoch=EPOCH))
        here.following.take(replica, asked, answer, sent, 0.0)
        assert (replica.log.log_end, replica.log.epochs.latest_epoch) == (1, EPOCH)
    assert len(disk.blocked) <= FEW, f"{len(disk.blocked)}, the first: {disk.blocked[:4]}"


async def test_the_epochs_of_records_that_are_durable_survive_a_loss_of_power(nursery):
    """No matter who writes them, and when: no recovery point passes an epoch that is not on
    disk."""
    disk = CountingDisk()
    here = Frail(disk)
    here.run_agenda(nursery)
    nursery.start_soon(here.replicas._syncer.run)
    await here.create(leader=TWO, partitions=3)
    for replica in here.replicas:
        write(replica.log, (EPOCH - 2, 1), (EPOCH, 2))
    await here.apply(*to(ME)[:3])
    for number in range(3):
        here.append(2, partition=number)
    known = [replica.log.epochs.entries for replica in here.replicas]
    assert known == [((EPOCH - 2, 0), (EPOCH, 1), (EPOCH + 1, 3))] * 3
    await here.replicas.sync_all()
    await settled()
    await here.replicas.checkpoint_recovery_points()
    disk.crash(LoseAll())
    again = here.again(clean=False)
    again.replay(*to(TWO)[:3])
    await again.applier.load(again.image)
    assert [replica.log.log_end for replica in again.replicas] == [5, 5, 5]
    assert [replica.log.epochs.entries for replica in again.replicas] == known


# --- segments that are swapped ------------------------------------------------------------------

COMPACTED = {"cleanup_policy": "compact", "segment_bytes": "65536"}
BATCHES = 3000
"""About 270 in a segment; an index entry for each 17th."""


async def compacted(disk: CountingDisk) -> int:
    """A pass of compaction over a replica with a record too much here and there, which is counted;
    how many segments there are."""
    here = Frail(disk)
    replica = await here.create(replicas=(ME,), **COMPACTED)
    for number in range(BATCHES):
        key = b"shared" if number % 8 == 0 else b"own %d" % number
        data = memoryview(batch(b"v" * 100, keys=[key], times=[NOW_MS + number]))
        replica.append(data, acks_all=False, now_ms=NOW_MS + number)
    chores = Housekeeping(
        here.replicas,
        here.pending_deletes,
        config=here.config,
        disk=disk,
        clock=FakeClock(2 * NOW_MS),
    )
    sync(disk, replica.log)
    disk.start()
    assert await chores.compact(replica)
    return replica.log.segment_count


async def test_a_pass_of_compaction_does_not_index_segments_on_the_loop():
    disk = CountingDisk()
    segments = await compacted(disk)
    assert segments > 8
    assert disk.reads <= 80 * segments, f"{disk.reads // segments} reads for each segment"


async def test_a_pass_of_compaction_syncs_next_to_nothing_on_the_loop():
    disk = CountingDisk()
    assert await compacted(disk) > 8
    assert len(disk.blocked) <= FEW, f"{len(disk.blocked)}, the first: {disk.blocked[:4]}"
