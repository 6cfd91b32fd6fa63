"""What nobody writes to costs next to nothing, however many partitions there are.

Goal: who looks at replicas on a timer looks at those that changed, and asks for a sync of those
that have something to sync. Method: replicas on the simulated disk; what is looked at is counted.
"""

from __future__ import annotations

from leaderkit import ME, Here

from hightide_broker.runtime.replication.positions import Positions


async def test_only_replicas_that_changed_are_looked_at_for_their_positions() -> None:
    here = Here()
    await here.create(partitions=3, isr=(ME,), replicas=(ME,))
    positions = Positions(here.replicas, lambda _: None)
    await positions.look_once()
    assert here.replicas.take_changed() == []
    here.append(partition=1)
    assert here.replicas.take_changed() == [here.replicas.get("jade", 1)]


async def test_who_was_removed_is_not_looked_at() -> None:
    here = Here()
    replica = await here.create()
    here.append()
    here.replicas.remove(replica)
    assert here.replicas.take_changed() == []


async def test_of_those_whose_place_another_took_nothing_is_kept() -> None:
    """However many do, where nobody looks: no trace is kept."""
    here = Here()
    replica = await here.create()
    for _ in range(3):
        replica = await here.repair._load_again(replica)
    assert here.replicas.take_changed() == [replica]


async def test_only_what_has_something_to_sync_is_synced_on_the_timer() -> None:
    here = Here()
    await here.create(partitions=3, isr=(ME,), replicas=(ME,), flush="replicated")
    for replica in here.replicas:
        await here.syncer.sync_now(replica)
    here.append(partition=1)
    for replica in here.replicas:
        replica.needs_sync = False
    await here.replicas.sync_all()
    assert [replica.needs_sync for replica in here.replicas] == [False, True, False]
