"""A log that held records and is gone: never made anew, empty, where others rely on it.

Goal: somebody who removed a directory, or a bit that turned a topic's id into another one, loses
nothing that another replica still has; and what was never written, or nobody relies on, is simply
made. Method: a second process on the disk of the first one, with the metadata it had.
"""

from __future__ import annotations

import pytest
from frailkit import DIRECTORY, OURS, RECORDS, Frail
from leaderkit import EPOCH, ME, THREE, TWO
from replicakit import write

from hightide_broker.storage.checkpoint import PARTITION_METADATA

EVERYBODY = (ME, TWO, THREE)


def lose(disk):
    """The directory is gone."""
    disk.remove_tree(DIRECTORY)


def confuse(disk):
    """The directory says that it is of another topic."""
    disk.replace(f"{DIRECTORY}/{PARTITION_METADATA}", b"version: 0\ntopic_id: id-of-jAde\n")


async def stopped(*, leader, isr, records=RECORDS, kept=True):
    """A process that had these records, and kept its checkpoints; the next one on its disk."""
    before = Frail()
    replica = await before.create(leader=leader, isr=isr)
    write(replica.log, *[(EPOCH, 1)] * records)
    replica.committed.advance(max(replica.committed.value, records))
    if kept:
        await before.replicas.checkpoint_high_watermarks()
    return before, before.again(clean=True)


@pytest.mark.parametrize("harm", [lose, confuse])
@pytest.mark.parametrize(("leader", "isr"), [(ME, EVERYBODY), (TWO, EVERYBODY), (ME, (ME,))])
async def test_whoever_is_relied_on_does_not_begin_anew(harm, leader, isr):
    _, here = await stopped(leader=leader, isr=isr)
    harm(here.disk)
    await here.replicas.load(here.image)
    assert here.replicas.offline() == [OURS]
    assert "held records of jade (id id-of-jade) before" in here.replica.offline
    assert here.replica.is_damaged
    await here.replicas.mend()
    assert here.replicas.offline() == [OURS], "somebody may still need it"


@pytest.mark.parametrize("harm", [lose, confuse])
async def test_it_is_fetched_again_once_nobody_relies_on_it(harm):
    _, here = await stopped(leader=TWO, isr=EVERYBODY)
    harm(here.disk)
    await here.replicas.load(here.image)
    await here.change(isr=(TWO, THREE))
    await here.replicas.mend()
    here.catch_up()
    assert here.is_whole


@pytest.mark.parametrize("harm", [lose, confuse])
async def test_a_replica_that_nobody_relies_on_is_made_anew_at_once(harm):
    _, here = await stopped(leader=TWO, isr=(TWO, THREE))
    harm(here.disk)
    await here.replicas.load(here.image)
    here.catch_up()
    assert here.is_whole


@pytest.mark.parametrize(("records", "kept"), [(0, True), (RECORDS, False)])
async def test_a_log_that_nothing_is_known_of_is_made(records, kept):
    """So is the one that a crash kept from being made at all."""
    _, here = await stopped(leader=ME, isr=EVERYBODY, records=records, kept=kept)
    lose(here.disk)
    await here.replicas.load(here.image)
    assert here.replicas.offline() == []
    assert here.replica.log.log_end == 0
