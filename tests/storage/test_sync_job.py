"""What a sync makes durable: records, names, and the epochs that are not in their file yet.

Goal: nothing is called durable before the epochs that came with it are in their file, unless the
disk is full; a file that cannot be written takes its replica offline, and a full disk nothing; an
epoch is written by a sync and never on the loop. Method: jobs carried out on the simulated disk at
the worst moment, by hand and by the syncer of a follower's replica; a broker whose disk fails.
"""

from __future__ import annotations

import pytest
from brokers import LoseAll, broker
from logkit import DIRECTORY, create, fill, finish, follow, make_batch, path_of, reopen, sync
from replicakit import EPOCH, Place, batch
from trio.testing import wait_all_tasks_blocked

from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.epochs import EpochCache
from hightide_broker.storage.log import Log
from hightide_broker.storage.sync_job import carry_out

PATH = f"{DIRECTORY}/leader-epoch-checkpoint"


def in_file(disk: SimDisk) -> dict[int, int]:
    return dict(EpochCache.load(disk, PATH).entries)


async def carried_out(disk: SimDisk, log: Log) -> None:
    """One sync, as a broker does it."""
    job = log.begin_sync()
    assert job is not None
    await carry_out(job, disk)
    log.finish_sync(job)


# --- what a job has -----------------------------------------------------------------------------


def test_a_sync_job_covers_what_was_appended_before_it_began():
    disk = SimDisk()
    log = create(disk)
    fill(log, 2)
    job = log.begin_sync()
    fill(log, 2, epoch=1)
    finish(disk, log, job)
    assert log.synced_end == 2
    assert in_file(disk) == {0: 0}
    sync(disk, log)
    assert (log.synced_end, log.begin_sync()) == (4, None)
    assert in_file(disk) == {0: 0, 1: 2}
    fill(log, 1, epoch=1)
    assert log.begin_sync().epochs is None, "there is no more to write"


def test_a_sync_job_has_every_segment_that_was_not_synced():
    disk = SimDisk()
    log = create(disk)
    fill(log, 1)
    sync(disk, log)
    fill(log, 25)
    names = [file.path for file in log.begin_sync().files]
    assert names == [path_of(base) for base in log.segment_bases()]
    assert len(names) > 2


def test_a_sync_that_began_before_a_cut_does_not_vouch_for_what_came_after_it():
    disk = SimDisk()
    log = create(disk)
    fill(log, 10)
    job = log.begin_sync()
    disk.sync_now(job.files, job.directories)
    # While the worker thread syncs, a new leader makes this replica cut and append.
    log.truncate_to(5)
    fill(log, 5, epoch=1)
    log.finish_sync(job)
    assert log.synced_end <= 5


def test_an_epoch_without_records_is_not_written_before_its_first_record_is():
    """A leader that has written nothing yet; a thousand are elected at a time."""
    disk = SimDisk()
    log = create(disk)
    fill(log, 2)
    sync(disk, log)
    before = disk.read_file(PATH)
    log.epochs.assign(3, 2)
    assert log.begin_sync() is None
    assert log.finish() is None
    fill(log, 1, epoch=5)  # the next leader of it
    assert disk.read_file(PATH) == before
    sync(disk, log)
    assert in_file(disk) == {0: 0, 5: 2}
    assert log.begin_sync() is None


def test_names_are_owed_until_a_job_that_has_them_is_finished():
    """An orderly stop may come while one is under way, and waits for its own alone."""
    disk = SimDisk()
    log = create(disk)
    fill(log, 1)
    sync(disk, log)
    log.roll()
    under_way = log.begin_sync()
    last = log.finish()
    assert under_way.directories == last.directories == [log.directory]
    finish(disk, log, last)
    disk.crash(LoseAll())
    assert reopen(disk, clean=True, recovery_point=1).segment_bases() == [0, 1]
    log.finish_sync(under_way)
    assert log.begin_sync() is None


async def test_what_could_not_be_written_is_owed_until_it_is():
    disk = SimDisk()
    log = create(disk)
    fill(log, 1)
    fill(log, 1, epoch=1)
    disk.fail("replace", PATH)
    with pytest.raises(DiskError, match="leader-epoch-checkpoint"):
        await carried_out(disk, log)
    disk.heal()
    log.epochs.truncate_from_end(1)
    assert log.epochs.is_owed(1), "the file may say either"
    assert log.begin_sync() is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda log: fill(log, 1, epoch=1),
        lambda log: follow(log, make_batch(base_offset=log.log_end, epoch=1)),
        lambda log: log.advance_log_start(2),
        lambda log: log.delete_segments(1),
    ],
    ids=["the leader of a new epoch", "its follower", "records deleted", "a segment deleted"],
)
def test_a_change_of_the_epochs_is_written_by_the_next_sync_and_not_on_the_loop(change):
    disk = SimDisk()
    log = create(disk)
    fill(log, 15)
    sync(disk, log)
    before = in_file(disk)
    disk.fail("replace", PATH)
    disk.fail("sync", "")
    change(log)
    disk.heal()
    assert dict(log.epochs.entries) != before
    assert in_file(disk) == before
    sync(disk, log)
    assert in_file(disk) == dict(log.epochs.entries)


@pytest.mark.parametrize(
    "cut", [lambda log: log.truncate_to(12), lambda log: log.truncate_fully(9)]
)
def test_what_a_cut_takes_from_the_epochs_is_durable_when_it_returns(cut):
    disk = SimDisk()
    log = create(disk)
    fill(log, 12)
    fill(log, 3, epoch=1)
    sync(disk, log)
    cut(log)
    disk.crash(LoseAll())
    assert in_file(disk) == dict(log.epochs.entries)
    assert 1 not in in_file(disk)


@pytest.mark.parametrize("synced_again", [True, False])
def test_a_job_that_is_carried_out_after_a_cut_does_not_write_over_what_the_cut_wrote(
    synced_again,
):
    """What the worker thread was given is older than that."""
    disk = SimDisk()
    log = create(disk)
    fill(log, 4)
    fill(log, 4, epoch=1)
    job = log.begin_sync()
    log.truncate_to(4)
    fill(log, 4, epoch=2)
    finish(disk, log, job)
    assert in_file(disk) == {0: 0}
    assert log.epochs.is_owed(log.log_end)
    if synced_again:
        sync(disk, log)
        assert in_file(disk) == {0: 0, 2: 4}
    disk.sync_now([disk.open(path_of(0))])
    disk.crash(LoseAll())
    log = reopen(disk, recovery_point=4)
    assert dict(log.epochs.entries) == {0: 0, 2: 4}
    sync(disk, log)
    assert in_file(disk) == {0: 0, 2: 4}


# --- a disk without room, or that fails ---------------------------------------------------------


async def test_epochs_and_records_are_durable_once_a_job_is_carried_out():
    disk = SimDisk()
    log = create(disk)
    fill(log, 3)
    fill(log, 3, epoch=1)
    await carried_out(disk, log)
    assert log.synced_end == 6
    disk.crash(LoseAll())
    assert in_file(disk) == {0: 0, 1: 3}
    assert reopen(disk, recovery_point=6).log_end == 6


async def test_nothing_is_called_durable_if_its_epochs_cannot_be_written():
    disk = SimDisk()
    log = create(disk)
    fill(log, 3)
    sync(disk, log)
    fill(log, 3, epoch=1)
    disk.fail("replace", PATH)
    with pytest.raises(DiskError, match="leader-epoch-checkpoint"):
        await carried_out(disk, log)
    assert (log.synced_end, log.epochs.is_owed(log.log_end)) == (3, True)


async def test_on_a_full_disk_records_are_durable_without_their_epochs_which_come_later():
    disk = SimDisk()
    log = create(disk)
    fill(log, 3)
    sync(disk, log)
    fill(log, 3, epoch=1)
    roomy, disk.capacity = disk.capacity, disk.used_bytes()
    await carried_out(disk, log)
    assert log.synced_end == 6
    assert (in_file(disk), log.epochs.is_owed(log.log_end)) == ({0: 0}, True)
    disk.capacity = roomy
    await carried_out(disk, log)
    assert in_file(disk) == {0: 0, 1: 3}
    assert log.begin_sync() is None


async def test_epochs_that_found_no_room_are_found_in_the_batches_again():
    disk = SimDisk()
    log = create(disk)
    fill(log, 3)
    sync(disk, log)
    fill(log, 3, epoch=1)
    roomy, disk.capacity = disk.capacity, disk.used_bytes()
    await carried_out(disk, log)
    disk.capacity = roomy
    disk.crash(LoseAll())
    assert in_file(disk) == {0: 0}
    assert dict(reopen(disk, recovery_point=6).epochs.entries) == {0: 0, 1: 3}


@pytest.mark.parametrize("flush", ["replicated", "synced"])
async def test_a_full_disk_takes_no_replica_offline_for_its_epochs(nursery, flush):
    place = Place((1, 1), flush=flush)
    sync(place.disk, place.log)
    agenda = Agenda()
    syncer = Syncer(place.disk, agenda)
    nursery.start_soon(agenda.run)
    nursery.start_soon(syncer.run)
    place.answer(batch(1), watermark=1)
    roomy, place.disk.capacity = place.disk.capacity, place.disk.used_bytes()
    syncer.mark(place.replica)
    await wait_all_tasks_blocked()
    assert (place.replica.offline, place.log.synced_end) == ("", 2)
    assert in_file(place.disk) == {1: 0}
    place.disk.capacity = roomy
    syncer.mark(place.replica)
    await wait_all_tasks_blocked()
    assert in_file(place.disk) == {1: 0, EPOCH: 1}


# --- a broker -----------------------------------------------------------------------------------


async def test_a_disk_that_fails_does_not_keep_records_from_being_deleted():
    """Nothing is written before the next checkpoint of log starts, and the next sync."""
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create()
        await client.produce(b"x", b"y")
        disk.fail("replace", "t-0/leader-epoch")
        result = await client.delete_records(1)
        assert (result.error, result.low_watermark) == (None, 1)
        assert [record.value for record in await client.read_all(1)] == [b"y"]
        assert (await client.produce(b"z")).error == "KAFKA_STORAGE_ERROR"
