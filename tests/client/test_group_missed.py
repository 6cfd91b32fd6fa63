"""Static members: one that a generation goes by, and one that joins while another is away.

Goal: what a member read before a generation that it was not part of is nobody's any more: no commit
of it counts, and its listener is told that it is lost; and who joins waits once, not twice.
Method: simulated brokers; a static member is cut off from them while the others go on, or is
closed, which keeps its place for as long as its session is.
"""

from contextlib import suppress

import pytest
import trio
from group_world import MANUAL, Reader, fill, site, take, until, virtual
from tries import few

from hightide.protocol.errors import HightideError

PATIENT = {"session_timeout_ms": 60_000, "max_poll_interval_ms": 10_000}
COOPERATIVE = {"partition_assignment_strategy": ["cooperative-sticky"], **PATIENT}


async def keep_polling(consumer, until_true, **said):
    while not await until_true():
        with suppress(HightideError):
            await consumer.poll(timeout_ms=50, **said)


@pytest.mark.parametrize("commits", few(["by itself", "in its listener"], 1))
@virtual
async def test_what_was_read_before_a_generation_went_by_is_not_committed(commits):
    told = []
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        await fill(client, 5, partitions=2)

        async def revoked(partitions):
            told.append(("revoked", sorted(partitions)))
            if commits == "in its listener":
                await left.commit()

        def lost(partitions):
            told.append(("lost", sorted(partitions)))

        auto = {"auto_commit_interval_ms": 600_000} if commits == "by itself" else MANUAL
        listeners = {"on_revoked": revoked, "on_lost": lost}
        async with at.consumer(group_instance_id="a", **listeners, **auto, **COOPERATIVE) as left:
            await take(left, 10)
            reader = Reader(at, **COOPERATIVE, auto_commit_interval_ms=100)
            other = await nursery.start(reader.run)
            await until(lambda: left._rebalancer._membership.must_join)
            network, broker = at.world.network, at.machines[0].name
            network.cut("client-1", broker)
            network.cut(broker, "client-1")

            async def others_generation():
                return bool(other.places)

            with trio.fail_after(60):
                await keep_polling(left, others_generation)
            (place, *_) = other.places
            await fill(client, 500, partitions=2, start=5)
            await until(lambda: other.consumer.position("t", place) == 505)
            await trio.sleep(1)
            committed = await client.committed()
            assert committed["t", place] == 505
            network.heal()

            async def is_worse():
                found = await client.committed()
                return any(found[tp] < committed[tp] for tp in committed)

            with trio.move_on_after(20) as scope:
                await keep_polling(left, is_worse, max_records=1)
            assert scope.cancelled_caught, "a committed offset went back"
            assert told == [("lost", [("t", 0), ("t", 1)])]
        nursery.cancel_scope.cancel()


@virtual
async def test_who_joins_while_a_static_member_is_away_waits_for_it_once():
    said = {"session_timeout_ms": 600_000, "max_poll_interval_ms": 10_000}
    async with site(topic=2) as at, at.client() as client:
        await fill(client, 5, partitions=2)
        async with at.consumer(group_instance_id="one", **said) as one:
            await take(one, 10)
        async with at.consumer(group_instance_id="two", **said) as two:
            with trio.fail_after(14):
                while not two.assignment():
                    await two.poll(timeout_ms=50)
