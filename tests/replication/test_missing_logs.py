"""A log that held records and is gone: never made new, empty, where others rely on it.

Goal: somebody who removed a directory, or put another topic's there, loses nothing that another
replica still has; and what was never written, or nobody relies on, is simply made. Method: a second
process on the disk of the first one, with the metadata it had.
"""

from __future__ import annotations

import pytest
from faulty_broker import DIRECTORY, OURS, RECORDS, SIZE, Frail
from leaderkit import EPOCH, ME, THREE, TWO
from logkit import path_of, sync
from mutants import planted
from replicakit import write

from hightide_broker.core.cluster.changes import CreatePartition, CreateTopic, RemoveTopic
from hightide_broker.ports import DiskError
from hightide_broker.runtime.replication.checkpoints import Checkpoints
from hightide_broker.runtime.replication.log_loader import LogLoader
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.checkpoint import PARTITION_METADATA
from hightide_broker.storage.log import Log

EVERYBODY = (ME, TWO, THREE)


def lose(disk):
    """The directory is gone."""
    disk.remove_tree(DIRECTORY)


def confuse(disk):
    """The directory says that it is of another topic."""
    disk.replace(f"{DIRECTORY}/{PARTITION_METADATA}", b"version: 0\ntopic_id: id-of-onyx\n")


async def stopped(*, leader, isr, records=RECORDS, committed=None, kept=True, clean=True, **config):
    """A process that had these records, and kept its checkpoints; the next one on its disk."""
    before = Frail()
    replica = await before.create(leader=leader, isr=isr, **config)
    write(replica.log, *[(EPOCH, 1)] * records)
    replica.committed.advance(max(replica.committed.value, committed or records))
    if kept:
        await before.replicas.checkpoint_high_watermarks()
    return before, before.again(clean=clean)


@pytest.mark.parametrize("harm", [lose, confuse])
@pytest.mark.parametrize(("leader", "isr"), [(ME, EVERYBODY), (TWO, EVERYBODY), (ME, (ME,))])
async def test_who_is_relied_on_does_not_begin_again(harm, leader, isr):
    _, here = await stopped(leader=leader, isr=isr)
    harm(here.disk)
    await here.applier.load(here.image)
    assert here.replicas.offline() == [OURS]
    assert "held records of jade (id id-of-jade) before" in here.replica.offline
    assert here.replica.is_damaged
    await here.repair.look_once()
    assert here.replicas.offline() == [OURS], "somebody may still need it"


@pytest.mark.parametrize("harm", [lose, confuse])
async def test_it_is_fetched_again_once_nobody_relies_on_it(harm):
    _, here = await stopped(leader=TWO, isr=EVERYBODY)
    harm(here.disk)
    await here.applier.load(here.image)
    await here.change(isr=(TWO, THREE))
    await here.repair.look_once()
    here.catch_up()
    assert here.is_whole


@pytest.mark.parametrize("harm", [lose, confuse])
async def test_a_replica_that_nobody_relies_on_is_made_again_at_once(harm):
    _, here = await stopped(leader=TWO, isr=(TWO, THREE))
    harm(here.disk)
    await here.applier.load(here.image)
    here.catch_up()
    assert here.is_whole


@pytest.mark.parametrize("isr", [EVERYBODY, (ME,)])
@pytest.mark.parametrize(
    "damaged",
    [
        b"version: 0\ntopic_id: id-of-jAde\n",
        b"version: 0\ntopic_id: id-of-j\xe1\xe4e\n",
        b"version: 0\ntopic\x1fid: id-of-jade\n",
        b"version: 1\ntopic_id: id-of-jade\n",
        b"version: 0\ntopic_id: id-of-jade\x0b",
    ],
)
async def test_a_byte_or_two_that_turned_make_no_other_topic_of_it(isr, damaged):
    """The only replica was set aside, as one of a topic that is deleted, and began again, empty."""
    _, here = await stopped(leader=ME, isr=isr)
    path = f"{DIRECTORY}/{PARTITION_METADATA}"
    here.disk.replace(path, damaged)
    await here.applier.load(here.image)
    assert here.replicas.offline() == []
    assert here.replica.log.log_end == RECORDS
    assert here.disk.read_file(path) == b"version: 0\ntopic_id: id-of-jade\n"


@pytest.mark.parametrize(("records", "kept"), [(0, True), (RECORDS, False)])
async def test_a_log_that_nothing_is_known_of_is_made(records, kept):
    """So is the one that a crash kept from being made at all."""
    _, here = await stopped(leader=ME, isr=EVERYBODY, records=records, kept=kept)
    lose(here.disk)
    await here.applier.load(here.image)
    assert here.replicas.offline() == []
    assert here.replica.log.log_end == 0


def another(replicas):
    """The next topic of the name."""
    place = {"topic_id": "id-of-another", "partition": 0, "leader": ME, "leader_epoch": 0}
    return (
        CreateTopic(topic="jade", topic_id="id-of-another"),
        CreatePartition(replicas=replicas, isr=(ME,), **place),
    )


NEXT = another(EVERYBODY)
"""A topic of the same name, made while this broker was away: others wait for what it has of it."""


async def test_the_next_topic_of_a_name_is_not_held_to_what_the_deleted_one_had():
    before, _ = await stopped(leader=ME, isr=EVERYBODY)
    await before.apply(RemoveTopic(topic_id="id-of-jade"))
    here = before.again(clean=False)
    here.replay(*NEXT)
    await here.applier.load(here.image)
    assert here.replicas.offline() == []
    assert here.replica.log.log_end == 0


async def test_nor_to_what_one_had_that_was_deleted_while_this_broker_was_away():
    _, here = await stopped(leader=ME, isr=EVERYBODY)
    here.replay(RemoveTopic(topic_id="id-of-jade"))
    await here.applier.load(here.image)
    again = here.again(clean=False)
    again.replay(*NEXT)
    await again.applier.load(again.image)
    assert again.replicas.offline() == []
    assert again.replica.log.log_end == 0


async def torn(**facts):
    """The next process, and a log whose last batches are gone, as after a loss of power."""
    _, here = await stopped(leader=TWO, isr=EVERYBODY, clean=False, **facts)
    path = path_of(0, directory=DIRECTORY)
    here.disk.replace(path, here.disk.read_file(path)[: 4 * SIZE + 7])
    await here.applier.load(here.image)
    return here


async def made_again_meanwhile():
    """The next process, after its only replica's topic was deleted and made again."""
    _, here = await stopped(leader=ME, isr=(ME,), clean=False)
    here.replay(RemoveTopic(topic_id="id-of-jade"), *another((ME,)))
    return here


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["forget", "_set_aside", "create"])
async def test_a_process_that_dies_while_it_makes_a_topic_again_has_the_next_one_do_it(step):
    here = await made_again_meanwhile()
    owner = {"forget": Checkpoints, "_set_aside": LogLoader, "create": Log}[step]
    do = getattr(owner, step)

    def done_and_killed(*args, **kwargs):
        do(*args, **kwargs)
        raise Killed

    with planted(owner, step, done_and_killed), pytest.raises((Killed, BaseExceptionGroup)):
        await here.applier.load(here.image)
    again = here.again(clean=False)
    await again.applier.load(again.image)
    assert again.replicas.offline() == []
    assert again.replica.log.log_end == 0


async def test_nor_is_it_offline_for_good_if_there_was_no_room_for_a_moment():
    here, replace, full = await made_again_meanwhile(), SimDisk.replace, []

    def once_full(self, path, data, *, unless=None):
        if path.endswith("replication-offset-checkpoint") and not full:
            full.append(path)
            raise DiskError(path, "replace", "No space left on device", full=True)
        replace(self, path, data, unless=unless)

    with planted(SimDisk, "replace", once_full):
        await here.applier.load(here.image)
    assert full
    assert here.replicas.offline() == []


async def test_a_log_that_ends_before_what_was_committed_is_not_relied_on():
    here = await torn(flush="synced")
    assert here.replicas.offline() == [OURS]
    assert f"ends at offset 4, but held committed records up to {RECORDS}" in here.replica.offline
    await here.replicas.checkpoint_high_watermarks()
    again = here.again(clean=False)
    await again.applier.load(again.image)
    assert again.replicas.offline() == [OURS], "it is still known what was committed"
    await again.change(isr=(TWO, THREE))
    await again.repair.look_once()
    again.catch_up()
    assert again.is_whole


async def test_what_was_not_on_disk_may_be_missing():
    here = await torn(flush="replicated")
    assert here.replicas.offline() == []
    assert here.replica.log.log_end == 4


async def test_what_was_not_committed_may_be_missing():
    here = await torn(committed=4, flush="synced")
    assert here.replicas.offline() == []
    assert here.replica.log.log_end == 4


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_log_is_held_to_what_was_on_disk_if_that_had_not_always_to_be_so(is_held):
    """`flush` became synced at 50, and how far the log was durable is known or not."""
    before, here = await stopped(leader=ME, isr=EVERYBODY, flush="synced", clean=False)
    if is_held:
        sync(before.disk, before.replica.log)
        await before.replicas.checkpoint_recovery_points()
        here = before.again(clean=False)
    log = path_of(0, directory=DIRECTORY)
    kept = here.disk.read_file(log)[: 2 * SIZE]
    here.disk.remove(log)
    here.disk.open(log, create=True).append(kept)
    here.image.topics["jade"].synced_since = 50
    await here.applier.load(here.image)
    assert here.replicas.offline() == ([OURS] if is_held else [])
    # The next process holds it to no more than it was found with.
    again = here.again(clean=False)
    await again.applier.load(again.image)
    assert again.replicas.offline() == ([OURS] if is_held else [])
