"""Replicas that are repaired, made later or emptied, and metadata that is not what it was.

Goal: whatever a replica went through, it acts upon the settings of today, waits for room no longer
than there is none, and says how far it really reaches; a controller whose log lost what was on disk
does not vote. Method: broker 1 with real replicas on the simulated disk; a metadata log by itself.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from brokers import DATA, FakeClock
from faulty_broker import DIRECTORY, OURS, RECORDS, SIZE, Frail, SlowDisk
from leaderkit import EPOCH, ME, THREE, TWO
from logkit import path_of

from hightide_broker.core.cluster.changes import ChangePartition, FenceBroker, SetConfig
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.partition_changes import LogEnd
from hightide_broker.core.replication.follower import Truncate
from hightide_broker.ports import DiskError
from hightide_broker.runtime.quorum.metadata_log import MetadataFailed, MetadataLog
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.checkpoint import RECOVERY_POINTS
from hightide_broker.storage.segment import LogConfig
from hightide_broker.storage.synced_end import SYNCED_END, SyncedEnd

# --- replicas -------------------------------------------------------------------------------------


async def test_a_setting_that_changes_while_a_replica_is_repaired_is_seen():
    here = Frail()
    await here.follow_two(isr=(TWO, THREE), flush="replicated", min_insync_replicas="1")
    here.damage(2)
    here.meet(2)
    here.disk.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.repair.look_once)
        await trio.testing.wait_all_tasks_blocked()
        await here.apply(
            SetConfig(kind="topic", name="jade", key="min.insync.replicas", value="2"),
            SetConfig(kind="topic", name="jade", key="flush", value="synced"),
        )
        here.disk.gate.set()
    assert not here.replica.offline
    settings = here.replica.config.values
    assert (settings["min.insync.replicas"], settings["flush"]) == ("2", "synced")


async def test_a_follower_that_waited_for_room_is_made_when_there_is_some():
    here = Frail()
    here.disk.capacity = 0
    await here.create(leader=TWO, isr=(TWO,))
    assert here.replica.offline
    await here.repair.look_once()
    assert here.replica.offline, "there is no room yet"
    here.disk.capacity = 1 << 40
    await here.repair.look_once()
    assert not here.replica.offline
    assert here.replica.follower is not None


async def test_one_that_needs_more_room_than_there_is_keeps_no_other_from_trying():
    here = Frail(Narrow())
    names = ["jade", "agate", "beryl", "coral", "opal", "ruby", "onyx"]
    for name in names:
        await here.create(name, leader=TWO, isr=(TWO,))
    assert all(here.replicas.get(name, 0).offline for name in names)
    assert here.replicas.offline() == [], "they will be there by themselves"
    here.disk.crowded = names[:-1]
    for _ in range(2):
        assert here.replicas.get("onyx", 0).offline
        await here.repair.look_once()
    assert not here.replicas.get("onyx", 0).offline
    here.disk.crowded = []
    for _ in range(2):
        await here.repair.look_once()
    assert not any(here.replicas.get(name, 0).offline for name in names)


async def test_a_replica_that_fails_for_good_while_it_waits_for_room_is_reported():
    here = Frail(Narrow())
    here.disk.crowded = []
    replica = await here.create(leader=TWO, isr=(TWO,))
    replica.lacks_space = True
    replica.go_offline("the disk is gone")
    assert here.replicas.offline() == [OURS]


class Narrow(SlowDisk):
    """A disk with room for some topics, and not for others."""

    crowded = ("",)

    def open(self, path, *, create=False):
        if create and any(name in path for name in self.crowded):
            raise DiskError(path, "open", "No space left on device", full=True)
        return super().open(path, create=create)


async def test_a_log_that_was_cut_below_its_kept_watermark_lost_nothing():
    """An unclean leader ends below it; the process ends before watermarks are kept again."""
    before = Frail()
    replica = await before.follow_two(isr=(TWO, ME), flush="synced")
    replica.committed.advance(RECORDS)
    await before.replicas.checkpoint_high_watermarks()
    before.disk.sync_now([before.disk.open(path_of(0, directory=DIRECTORY))], [DIRECTORY])
    before.following.carry_out(replica, Truncate(3), b"", 0.0)
    await before.apply(ChangePartition(topic_id=replica.topic_id, partition=0, isr=(TWO, ME)))
    here = before.again(clean=False)
    await here.applier.load(here.image)
    assert not here.replica.offline
    assert here.replica.log.log_end == 3


async def test_a_log_whose_records_were_all_deleted_reaches_as_far_as_it_did():
    here = Frail()
    replica = await here.create(leader=ME, isr=(ME,))
    here.append(RECORDS)
    replica.committed.advance(RECORDS)
    replica.delete_records(-1)
    assert replica.log.log_start == replica.log.log_end == RECORDS
    await here.change(leader=-1, isr=(), elr=())
    (told,) = here.replicas.leaderless()
    assert LogEnd(told.last_epoch, told.log_end) == (EPOCH, RECORDS)


# --- metadata -------------------------------------------------------------------------------------

HERE = "data/__cluster_metadata-0"


def open_log(disk):
    return MetadataLog(disk, HERE, config=LogConfig(), clock=FakeClock())


async def written(count):
    """The disk of a controller that stopped in order, with so many records in its log."""
    disk = SimDisk()
    metadata = open_log(disk)
    for number in range(count):
        metadata.append([FenceBroker(broker=number, broker_epoch=number)], 1)
    await metadata.close()
    return disk


@pytest.mark.parametrize("harm", ["zeros", "short"])
async def test_a_controller_whose_metadata_was_on_disk_and_is_not_does_not_vote(harm):
    disk = await written(20)
    (path,) = disk.files(HERE, ".log")
    data = disk.files(HERE, ".log")[path]
    half = data[: len(data) // 2]
    disk.replace(path, half + bytes(len(data) - len(half)) if harm == "zeros" else half)
    for _ in range(2):
        with pytest.raises(MetadataFailed, match="but was on disk up to offset 20"):
            open_log(disk)


async def test_what_is_known_to_be_on_disk_never_hinders_a_cut():
    disk = await written(20)
    metadata = open_log(disk)
    metadata.truncate_to(7)
    disk.kill()
    again = open_log(disk)
    assert again.log_end == 7
    again.append([FenceBroker(broker=1, broker_epoch=1)], 2)
    disk.kill()
    assert open_log(disk).log_end in (7, 8)


async def test_a_mark_that_cannot_be_read_says_nothing():
    disk = await written(20)
    for text in (b"", b"twenty", b"-1\n"):
        disk.replace(f"{HERE}/{SYNCED_END}", text)
        assert open_log(disk).log_end == 20


def test_where_there_is_no_room_for_the_mark_the_last_one_stays():
    disk = SimDisk()
    disk.make_dirs(HERE)
    mark = SyncedEnd(disk, HERE)
    mark.raise_to(20)
    disk.capacity = 0
    mark.raise_to(30)
    assert SyncedEnd(disk, HERE).offset == 20


async def test_a_replica_that_waits_for_room_is_left_alone_once_its_topic_is_gone():
    here = Frail()
    here.disk.capacity = 0
    await here.create(leader=TWO, isr=(TWO,))
    here.applier.image = ClusterImage()  # as `apply` has it, before it removes the replica
    await here.repair.look_once()
    assert here.replica.offline


class NoRoom(SlowDisk):
    """A disk that may have no room for what is made when a log is opened."""

    is_full = False

    def open(self, path, *, create=False):
        if self.is_full and create:
            raise DiskError(path, "open", "No space left on device", full=True)
        return super().open(path, create=create)


async def test_a_log_that_waited_for_room_must_still_reach_what_was_committed():
    here = Frail(NoRoom())
    await here.follow_two(isr=(ME, TWO), flush="synced")
    here.catch_up()
    await here.replicas.sync_all()
    await here.replicas.close()
    here.disk.remove(f"{DATA}/{RECOVERY_POINTS}")
    log = path_of(0, directory=DIRECTORY)
    kept = here.disk.read_file(log)[: 2 * SIZE]
    here.disk.remove(log)
    here.disk.open(log, create=True).append(kept)
    here.disk.is_full = True
    here = here.again(clean=False)
    await here.applier.load(here.image)
    assert "No space left" in here.replica.offline
    here.disk.is_full = False
    await here.repair.look_once()
    assert "committed records up to 6" in here.replica.offline
