"""Who was told of a coordinator finds it at work, however new the groups' topic is.

A member that hears NOT_COORDINATOR waits for seconds before it asks again (librdkafka: three).
Method: whole nodes of the simulation on virtual time.
"""

import pytest
import trio
from group_world import site, virtual

from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC

E = ErrorCode


@virtual
@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("name", ["g", "x"])
async def test_who_was_just_told_of_a_coordinator_finds_it_at_work(asked, name):
    async with (
        site(brokers=2, offsets_topic_num_partitions="50") as at,
        at.client(0) as one,
        at.client(1) as two,
    ):
        found = await (one, two)[asked].find(name)
        its = {at.machines[0].id: one, at.machines[1].id: two}[found.broker]
        assert (await its.join(group=name)).error == E.MEMBER_ID_REQUIRED


@virtual
async def test_who_hears_of_a_coordinator_before_its_logs_are_made_finds_it_at_work():
    async with (
        site(offsets_topic_num_partitions="50") as at,
        at.client() as first,
        at.client() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(first.find, "g")
        node = at.machines[0].node
        while OFFSETS_TOPIC not in node.image.topics:
            await trio.sleep(0.0001)
        await client.find("g")
        assert (await client.join(group="g")).error == E.MEMBER_ID_REQUIRED


@virtual
async def test_groups_of_a_restarted_coordinator_are_read_before_anybody_asks():
    """So that how far they lag is told, also of those that have no member any more."""
    async with site(offsets_topic_num_partitions="3") as at:
        async with at.client() as client:
            await client.find()
            assert await client.commit(7, group="g") is None
        await at.again(power=False)
        coordinators = at.machines[0].node.coordinators
        with trio.fail_after(60):
            while "g" not in dict(coordinators.offsets()):
                await trio.sleep(0.01)
        assert coordinators.states() == {"loading": 0, "active": 1}
