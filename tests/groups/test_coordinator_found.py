"""Who was told of a coordinator finds it at work, however new the groups' topic is.

A member that hears NOT_COORDINATOR waits for seconds before it asks again (librdkafka: three). And
who asks it again about what is past hears the same.
Method: whole nodes of the simulation on virtual time.
"""

import pytest
import trio
from brokers import client_of, new_node, settings
from group_world import site, virtual
from patience import PATIENCE_S

from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC
from hightide_broker.runtime.groups.coordinator import Coordinator
from hightide_broker.simulation.disk import SimDisk

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
        assert coordinators.states() == {"loading": 0, "active": 1, "failed": 0}


async def test_groups_that_cannot_be_read_take_their_partition_offline_alone(
    monkeypatch,
):
    """The disk fails from the moment on in which they are read."""
    disk, load = SimDisk(), Coordinator._load
    config = settings({"offsets.topic.num.partitions": "1"})
    async with new_node(disk, config) as node, client_of(node) as client:
        await client.create("t")
        await client.call(g.FindCoordinatorRequest(group="g"))
        commit = g.CommitPartition(topic="t", partition=0, offset=7)
        answer = await client.call(g.OffsetCommitRequest(group="g", partitions=[commit]))
        assert [part.error for part in answer.partitions] == [None]

    async def load_from_a_broken_disk(coordinator):
        disk.fail("read", OFFSETS_TOPIC)
        await load(coordinator)

    monkeypatch.setattr(Coordinator, "_load", load_from_a_broken_disk)
    async with new_node(disk, config) as node, client_of(node) as client:
        replica = node.replicas[TopicPartition(OFFSETS_TOPIC, 0)]
        with trio.fail_after(PATIENCE_S):
            while not replica.offline:
                await trio.sleep(0.01)
            while node.coordinators.states() != {"loading": 0, "active": 0, "failed": 1}:
                await trio.sleep(0.01)
        assert (await client.produce(b"v")).error is None


@virtual
async def test_a_past_rebalance_has_the_same_time_whenever_it_is_told():
    """At whatever part of a millisecond it is asked; but for a clock that was set."""
    async with site() as at, at.client() as client:
        await client.find()
        await client.leave((await client.member()).member_id)
        told = (await client.describe()).rebalances
        assert len(told) == 2
        for _ in range(20):
            await trio.sleep(0.3337)
            assert (await client.describe()).rebalances == told
        at.machines[0].clock.ahead_ms += 3_600_000
        later = [each.at_ms for each in (await client.describe()).rebalances]
        assert later == pytest.approx([each.at_ms + 3_600_000 for each in told], abs=1)
