"""What is removed, deleted or compacted, and a loss of power before every name of it is on disk.

Goal: what a broker has given up does not come back in part, and a checkpoint never says more than
the names and bytes beside it. Method: broker 1 with real replicas on the simulated disk; the power
fails right after each step, with every fate of what was not synced, and the next process looks.
"""

from __future__ import annotations

import random
from functools import partial

import pytest
from brokers import DATA, FakeClock, LoseAll, batch
from faulty_broker import DIRECTORY, Frail
from leaderkit import EPOCH, ME, THREE, TWO
from logkit import contents, lead, make_batch, sync
from replicakit import write

from hightide.protocol.columns import to_records
from hightide.protocol.records import iter_batches
from hightide_broker.core.cluster.changes import RemoveTopic
from hightide_broker.core.replication.follower import Truncate
from hightide_broker.runtime.replication.housekeeping import Housekeeping
from hightide_broker.simulation.disk import SimDisk

JADE = ("jade", 0)
FATES = [LoseAll(), *map(random.Random, range(40))]
"""The worst luck, and others."""
SMALL = {"segment_bytes": str(2 * len(make_batch()))}
"""Two batches of `write` to a segment."""


def housekeeping(here):
    return Housekeeping(
        here.replicas, here.pending_deletes, config=here.config, disk=here.disk, clock=FakeClock()
    )


# --- the directories of a deleted topic -----------------------------------------------------------


async def deleted():
    """Six durable records of a topic that was deleted; its directory has its new name already."""
    here = Frail()
    replica = await here.create()
    here.append(6)
    sync(here.disk, replica.log)
    here.disk.sync_now([], [DATA])
    await here.apply(RemoveTopic(topic_id="id-of-jade"))
    return here


@pytest.mark.parametrize("fate", FATES, ids=range(len(FATES)))
async def test_what_is_left_of_a_deleted_topic_is_not_found_under_its_old_name(fate):
    here = await deleted()
    await here.pending_deletes.carry_out()
    here.disk.crash(fate)
    assert not here.disk.exists(DIRECTORY), here.disk.list(DIRECTORY)


async def test_a_deleted_topic_is_whole_until_its_new_name_is_durable():
    here = await deleted()
    before = sorted(here.disk.files(DATA, "").values())
    here.disk.fail_once("sync", DATA)
    await here.pending_deletes.carry_out()
    assert sorted(here.disk.files(DATA, "").values()) == before
    await here.pending_deletes.carry_out()
    assert not [name for name in here.disk.list(DATA) if name.startswith("jade")]


# --- where a log starts ---------------------------------------------------------------------------


@pytest.mark.parametrize("fate", FATES, ids=range(len(FATES)))
@pytest.mark.parametrize("start", [3, 4])
async def test_records_that_were_deleted_are_not_there_again_after_a_loss_of_power(start, fate):
    """Their segments may be: the log starts inside the second one, or where the third begins."""
    before = Frail()
    replica = await before.create(cleanup_policy="delete", retention_ms="-1", **SMALL)
    write(replica.log, *[(EPOCH, 1)] * 6)
    sync(before.disk, replica.log)
    replica.committed.advance(6)
    replica.log.advance_log_start(start)
    assert housekeeping(before).apply_retention(replica) == start // 2
    assert replica.log.segment_bases()[0] == start // 2 * 2
    await before.replicas.checkpoint_recovery_points()
    before.disk.crash(fate)
    here = before.again(clean=False)
    await here.applier.load(here.image)
    assert here.replicas.offline() == []
    assert (here.replica.log.log_start, here.replica.log.log_end) == (start, 6)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("start", [7, 8])
async def test_a_log_that_is_cut_below_its_start_keeps_what_comes_after(start, power):
    """An unclean leader ends below it: the checkpoint of the start says nothing of the new log."""
    before = Frail()
    replica = await before.create(leader=TWO, isr=(ME, TWO, THREE), flush="synced", **SMALL)
    write(replica.log, *[(EPOCH, 1)] * 12)
    sync(before.disk, replica.log)
    replica.committed.advance(12)
    replica.log.advance_log_start(start)
    replica.log.delete_segments(start // 2)
    sync(before.disk, replica.log)
    await before.replicas.checkpoint_recovery_points()
    await before.replicas.checkpoint_high_watermarks()
    await before.replicas.checkpoints.keep_cleaner_offset(JADE, 9)
    await before.change(leader=THREE, isr=(THREE,))
    before.following.carry_out(replica, Truncate(2), b"", 0.0)
    write(replica.log, *[(EPOCH + 1, 1)] * 5)
    sync(before.disk, replica.log)
    if power:
        before.disk.crash(LoseAll())
    here = before.again(clean=False)
    await here.applier.load(here.image)
    assert here.replicas.offline() == []
    assert (here.replica.log.log_start, here.replica.log.log_end) == (2, 7)
    assert here.replicas.checkpoints.cleaner_offsets[JADE] == 2


# --- compaction -----------------------------------------------------------------------------------


class Compacting(SimDisk):
    """A disk that does something else once a worker thread is done, and before that is known."""

    def __init__(self):
        super().__init__()
        self.then = []

    async def in_thread(self, function):
        found = await super().in_thread(function)
        while self.then:
            self.then.pop()()
        return found


COMPACTED = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0",
}


def offsets(log):
    """Of every record that a reader gets."""
    return [
        record.offset
        for stored in contents(log)
        for header, data in iter_batches(stored.data)
        for record in to_records(data, header, "jade", 0)
    ]


async def of_two_keys(here, *, leader=ME):
    """Six durable and committed records, of the keys a and b in turn; two to a segment."""
    made = [batch(b"v" * 40, keys=[key]) for key in (b"a", b"b") * 3]
    replica = await here.create(leader=leader, segment_bytes=str(2 * len(made[0])), **COMPACTED)
    for each in made:
        lead(replica.log, each, epoch=EPOCH)
    sync(here.disk, replica.log)
    assert replica.log.segment_bases() == [0, 2, 4]
    replica.committed.advance(6)
    return replica


@pytest.mark.parametrize("fate", FATES, ids=range(len(FATES)))
async def test_what_counts_as_compacted_is_so_after_a_loss_of_power(fate):
    before = Frail()
    replica = await of_two_keys(before)
    assert await housekeeping(before).compact(replica)
    assert before.replicas.checkpoints.cleaner_offsets == {JADE: 4}
    assert offsets(replica.log) == [2, 3, 4, 5]
    before.disk.crash(fate)
    here = before.again(clean=False)
    await here.applier.load(here.image)
    assert here.replicas.offline() == []
    assert here.replicas.checkpoints.cleaner_offsets == {JADE: 4}
    assert offsets(here.replica.log) == [2, 3, 4, 5]


async def test_nothing_goes_for_what_is_not_on_disk_yet():
    """The newer value of a key may be lost with the power, and the older one must be there then."""
    here = Frail()
    replica = await of_two_keys(here)
    for key in (b"a", b"b", b"c"):
        lead(replica.log, batch(b"w" * 40, keys=[key]), epoch=EPOCH)
    replica.committed.advance(9)
    chores = housekeeping(here)
    assert await chores.compact(replica)
    assert offsets(replica.log) == [4, 5, 6, 7, 8], "of the six that are durable"
    assert not await chores.compact(replica)
    sync(here.disk, replica.log)
    assert await chores.compact(replica)
    assert offsets(replica.log) == [6, 7, 8]


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 5])
async def test_a_log_that_is_cut_while_it_is_compacted_is_compacted_again_later(cut):
    here = Frail(Compacting())
    replica = await of_two_keys(here, leader=TWO)
    chores = housekeeping(here)
    here.disk.then.append(partial(here.following.carry_out, replica, Truncate(cut), b"", 0.0))
    assert not await chores.compact(replica)
    replica.log.check_invariants()
    assert here.replicas.checkpoints.cleaner_offsets == {}
    assert (offsets(replica.log), replica.log.log_end) == ([*range(cut)], cut)
    for _ in range(cut, 6):
        lead(replica.log, batch(b"w" * 40, keys=[b"c"]), epoch=EPOCH + 1)
    sync(here.disk, replica.log)
    replica.committed.advance(6)
    before = contents(replica.log)[-1]
    assert await chores.compact(replica)
    replica.log.check_invariants()
    assert contents(replica.log)[-1] == before
