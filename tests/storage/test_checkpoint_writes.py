"""Checkpoints that are written while something else happens: a cut, a deletion, another write.

Goal: what `lower_offsets` and `forget` have said is so on the disk from then on, whatever
write is under way; a broker that crashes then opens its logs as they are. Method: a real disk whose
worker threads stop before they replace a file, with every state of that file held against what was
said; then broker 1 with real replicas on the simulated disk, whose next life shows what came of it.
"""

from __future__ import annotations

from functools import partial

import pytest
import trio
from brokers import LoseAll
from faulty_broker import ALL, Frail
from heldkit import HeldDisk
from leaderkit import EPOCH, ME, THREE, TWO, settled
from logkit import contents, follow, make_batch, sync
from replicakit import spans_of, write

from hightide_broker.core.cluster.changes import CreatePartition, CreateTopic, RemoveTopic
from hightide_broker.core.replication.follower import Truncate
from hightide_broker.ports import DiskError
from hightide_broker.runtime.replication.checkpoints import Checkpoints
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.checkpoint import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    parse_entries,
    write_offsets,
)

JADE, ONYX = ("jade", 0), ("onyx", 0)
CUT = 3
"""Where the log of jade is cut."""
KEPT = [2, 6]
"""Its recovery point before: below the cut, above it."""
BEGINNINGS = pytest.mark.parametrize("begin", range(4))
"""How many worker threads have begun when the others wait."""


class Kept:
    """Checkpoints in a directory of the real disk, and every state that their files have had."""

    def __init__(self, directory):
        self.directory = str(directory)
        self.disk = HeldDisk()
        self.checkpoints = Checkpoints(self.disk, self.directory)

    async def keep(self, **points):
        """Recovery points by topic; their logs start one offset below."""
        await self.checkpoints.keep_recovery_points(
            {(topic, 0): offset for topic, offset in points.items()},
            {(topic, 0): offset - 1 for topic, offset in points.items()},
        )

    async def keep_marks(self, **marks):
        await self.checkpoints.keep_high_watermarks({(t, 0): at for t, at in marks.items()})

    def states(self, name, since=0):
        """The states of a file, the one that was there after `since` writes first."""
        found = [parse_entries(*each, 3) for each in self.disk.written if each[0].endswith(name)]
        return [
            {(topic, int(number)): int(offset) for topic, number, offset in entries}
            for entries in found[max(since - 1, 0) :]
        ]

    def points_since(self, count):
        """The recovery points of jade that a crash could have left since then."""
        return [state.get(JADE, 0) for state in self.states(RECOVERY_POINTS, count)]

    def lower(self):
        """How often the file was written when it was said that jade's is lowered."""
        self.checkpoints.lower_offsets(JADE, CUT)
        return len(self.states(RECOVERY_POINTS))

    def next_life(self):
        """What the next process reads."""
        return Checkpoints(self.disk, self.directory)


async def held(nursery, door, keep):
    """Begin a write that a worker thread holds at the door; it is done if it meets no door."""

    async def run():
        try:
            await keep()
        finally:
            door.give_up()

    nursery.start_soon(run)
    await door.reached()


# --- a cut ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", KEPT)
@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS])
async def test_what_is_said_to_be_lowered_is_lowered_on_disk_whatever_is_being_written(
    tmp_path, name, before
):
    at = Kept(tmp_path)
    await at.keep(jade=before, onyx=4)
    door = at.disk.door(name)
    async with trio.open_nursery() as nursery:
        await held(nursery, door, partial(at.keep, jade=8, onyx=8))
        said = at.lower()
        door.open()
    at.checkpoints.forget(ONYX)
    assert max(at.points_since(said)) <= CUT
    assert at.next_life().recovery_points[JADE] <= CUT


@pytest.mark.parametrize("before", KEPT)
async def test_two_writes_at_a_time_are_both_known_to_be_under_way(tmp_path, before):
    at = Kept(tmp_path)
    await at.keep(jade=before)
    door = at.disk.door(RECOVERY_POINTS)
    async with trio.open_nursery() as nursery:
        await held(nursery, door, partial(at.keep, jade=8))
        with trio.move_on_after(1):  # it may wait for the one at the door
            await at.keep(jade=7)
        said = at.lower()
        door.open()
    assert max(at.points_since(said)) <= CUT


@pytest.mark.parametrize("before", KEPT)
async def test_a_write_that_was_given_up_halfway_is_known_as_far_as_it_went(tmp_path, before):
    at = Kept(tmp_path)
    await at.keep(jade=before)
    door = at.disk.door(RECOVERY_POINTS)
    async with trio.open_nursery() as nursery:
        await held(nursery, door, partial(at.keep, jade=8))
        nursery.cancel_scope.cancel()
        door.open()
    said = at.lower()
    assert max(at.points_since(said)) <= CUT


async def test_the_next_write_after_a_cut_may_say_more_again(tmp_path):
    at = Kept(tmp_path)
    await at.keep(jade=6)
    at.lower()
    await at.keep(jade=9)
    assert at.next_life().recovery_points == {JADE: 9}


def test_a_lowering_that_failed_is_not_taken_for_done():
    disk = SimDisk()
    disk.make_dirs("data")
    write_offsets(disk, f"data/{RECOVERY_POINTS}", {JADE: 8})
    checkpoints = Checkpoints(disk, "data")
    disk.fail("replace", RECOVERY_POINTS)
    with pytest.raises(DiskError):
        checkpoints.lower_offsets(JADE, CUT)
    disk.heal()
    checkpoints.lower_offsets(JADE, CUT)
    assert Checkpoints(disk, "data").recovery_points[JADE] <= CUT


# --- a deletion -----------------------------------------------------------------------------------

WRITES = {
    "watermarks": (HIGH_WATERMARKS, Kept.keep_marks),
    "recovery points": (RECOVERY_POINTS, Kept.keep),
    "log starts": (LOG_STARTS, Kept.keep),
}


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("name", "keep"), WRITES.values(), ids=WRITES)
async def test_what_is_forgotten_stays_so_whatever_is_being_written(tmp_path, name, keep, is_known):
    at = Kept(tmp_path)
    await keep(at, onyx=4, **({"jade": 2} if is_known else {}))
    door = at.disk.door(name)
    async with trio.open_nursery() as nursery:
        await held(nursery, door, partial(keep, at, jade=8, onyx=8))
        at.checkpoints.forget(JADE)
        said = len(at.states(name))
        door.open()
    assert not any(JADE in state for state in at.states(name, said))
    now, then = at.checkpoints, at.next_life()
    for found in (now, then):
        offsets = (found.high_watermarks, found.recovery_points, found.log_starts)
        assert not any(JADE in each for each in offsets)
        assert ONYX in {**found.high_watermarks, **found.recovery_points}


async def test_what_was_never_there_is_forgotten_without_a_write(tmp_path):
    """Whoever makes a partition has it forgotten first, and thousands may be made meanwhile."""
    at = Kept(tmp_path)
    await at.keep_marks(jade=2)
    door = at.disk.door(HIGH_WATERMARKS)
    async with trio.open_nursery() as nursery:
        await held(nursery, door, partial(at.keep_marks, onyx=8))
        before = len(at.states(HIGH_WATERMARKS))
        at.checkpoints.forget(("pearl", 0))
        assert len(at.states(HIGH_WATERMARKS)) == before
        at.checkpoints.forget(JADE)  # the file names it still
        assert len(at.states(HIGH_WATERMARKS)) == before + 1
        door.open()


# --- what comes of it -----------------------------------------------------------------------------


class Pausing(SimDisk):
    """A disk whose worker threads wait for the gate once so many have begun."""

    def __init__(self):
        super().__init__()
        self.gate = trio.Event()
        self.begin = 1000

    async def in_thread(self, function):
        self.begin -= 1
        if self.begin < 0:
            await self.gate.wait()
        return await super().in_thread(function)

    def let_go(self):
        self.begin = 1000
        self.gate.set()


async def keeping(here, nursery, *, begin):
    """The recovery points are being kept; so many worker threads may begin."""
    here.disk.begin = begin
    nursery.start_soon(here.replicas.checkpoint_recovery_points)
    await settled()


async def cut(here, *, begin, finishes):
    """Broker 1 has six synced records, of which two are known to be. While it keeps the six, its
    leader has it cut the log, and sends others that are not synced."""
    replica = await here.follow_two(records=2, flush="synced")
    sync(here.disk, replica.log)
    await here.replicas.checkpoint_recovery_points()
    write(replica.log, *[(EPOCH, 1)] * 4)
    sync(here.disk, replica.log)
    async with trio.open_nursery() as nursery:
        await keeping(here, nursery, begin=begin)
        here.following.carry_out(replica, Truncate(CUT), b"", 0.0)
        if finishes:
            here.disk.let_go()
            await settled()
        nursery.cancel_scope.cancel()
    here.disk.let_go()
    assert (replica.log.log_end, replica.log.synced_end) == (CUT, CUT)
    for number in range(CUT, 6):
        follow(replica.log, make_batch(base_offset=number, epoch=EPOCH, value=b"other"))


@BEGINNINGS
@pytest.mark.parametrize("finishes", [True, False])
async def test_a_log_that_was_cut_opens_after_a_loss_of_power(begin, finishes):
    before = Frail(Pausing())
    await cut(before, begin=begin, finishes=finishes)
    before.disk.crash(LoseAll())
    here = before.again(clean=False)
    await here.applier.load(here.image)
    assert here.replicas.offline() == []
    assert spans_of(contents(here.replica.log)) == ALL[:CUT]


@BEGINNINGS
@pytest.mark.parametrize("finishes", [True, False])
async def test_what_was_not_synced_after_a_cut_is_not_taken_for_synced_later(begin, finishes):
    before = Frail(Pausing())
    await cut(before, begin=begin, finishes=finishes)
    here = before.again(clean=False)
    await here.applier.load(here.image)
    assert here.replicas.offline() == []
    assert (here.replica.log.synced_end <= CUT, here.replica.log.log_end) == (True, 6)


@BEGINNINGS
async def test_a_topic_inherits_nothing_from_a_deleted_one_of_its_name(nursery, begin):
    before = Frail(Pausing())
    replica = await before.create(replicas=(ME, TWO, THREE))
    before.append(6)
    sync(before.disk, replica.log)
    await keeping(before, nursery, begin=begin)
    before.disk.begin = 1000  # those that wait go on waiting
    new = {"topic_id": "id-of-another", "partition": 0, "leader": ME, "leader_epoch": 0}
    await before.apply(RemoveTopic(topic_id="id-of-jade"))
    await before.apply(
        CreateTopic(topic="jade", topic_id="id-of-another"),
        CreatePartition(replicas=(ME, TWO), isr=(ME, TWO), **new),
    )
    before.disk.let_go()
    await settled()
    before.disk.crash(LoseAll())
    here = before.again(clean=False)
    await here.applier.load(here.image)
    assert [replica.offline for replica in here.replicas] == [""]
    assert here.replica.topic_id == "id-of-another"


async def test_what_is_known_of_an_offline_replica_is_what_was_said_last():
    """It may be made again in a worker thread while the others are looked at."""
    checkpoints = Checkpoints(SimDisk(), ".")
    await checkpoints.keep_recovery_points({JADE: 9, ONYX: 9}, {JADE: 4})
    await checkpoints.keep_high_watermarks({JADE: 9, ONYX: 9})
    checkpoints.lower_offsets(JADE, CUT)
    await checkpoints.keep_recovery_points({ONYX: 10}, {}, keep=[JADE])
    await checkpoints.keep_high_watermarks({ONYX: 10}, keep=[JADE])
    assert checkpoints.recovery_points == {JADE: CUT, ONYX: 10}
    assert checkpoints.high_watermarks == {JADE: CUT, ONYX: 10}
    assert checkpoints.log_starts == {JADE: CUT}
    checkpoints.forget(JADE)
    await checkpoints.keep_recovery_points({ONYX: 10}, {}, keep=[JADE])
    assert checkpoints.recovery_points == {ONYX: 10}
