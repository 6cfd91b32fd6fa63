"""What groups committed stays: nothing but its time, its topic's end or a human takes it away.

Goal: neither the timer that forgets old offsets, nor what clients may ask of `__consumer_offsets`,
takes a commit along that was acknowledged. Method: one whole node, by requests.
"""

import pytest
import trio
from brokers import FakeClock, GatedDisk, batch, client_of, new_node, quiet, settings

from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC

ONE = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"}
EIGHT_DAYS_MS = 8 * 24 * 3600 * 1000
PLACE = g.GroupPartition(topic="t", partition=0)


async def commit(client, offset):
    part = g.CommitPartition(topic="t", partition=0, offset=offset)
    answer = await client.call(g.OffsetCommitRequest(group="g", partitions=[part]))
    return answer.partitions[0].error


async def committed(client):
    answer = await client.call(g.OffsetFetchRequest(group="g", partitions=[PLACE]))
    return answer.partitions[0].offset


async def test_a_commit_that_is_under_way_is_not_followed_by_the_old_ones_end():
    disk, clock = GatedDisk(), FakeClock()
    async with new_node(disk, settings(ONE), clock) as node, client_of(node) as client:
        await client.create()
        await client.call(g.FindCoordinatorRequest(group="g"))
        assert await commit(client, 5) is None
        clock.ms += EIGHT_DAYS_MS
        disk.shut()
        async with client_of(node) as other, trio.open_nursery() as nursery:
            nursery.start_soon(commit, other, 6)
            await quiet()
            nursery.start_soon(node.coordinators._expire)
            await quiet()
            disk.gate.set()
        assert await committed(client) == 6
        clock.ms += EIGHT_DAYS_MS
        await node.coordinators._expire()
        assert await committed(client) == -1


@pytest.fixture
async def client():
    async with new_node(GatedDisk(), settings(ONE)) as node, client_of(node) as opened:
        await opened.create()
        await opened.call(g.FindCoordinatorRequest(group="g"))
        assert await commit(opened, 5) is None
        yield opened
        assert await committed(opened) == 5


async def test_no_client_writes_to_the_topic_of_the_coordinators(client):
    sent = await client.send(batch(b"v", keys=[b"k"]), topic=OFFSETS_TOPIC)
    assert sent.error == "INVALID_TOPIC"
    assert "coordinators" in sent.message


async def test_it_keeps_its_number_of_partitions(client):
    more = m.MorePartitions(topic=OFFSETS_TOPIC, count=4)
    answer = await client.call(m.CreatePartitionsRequest(topics=[more]))
    assert answer.topics[0].error == "INVALID_PARTITIONS"
    assert "offsets.topic.num.partitions" in answer.topics[0].message


@pytest.mark.parametrize("configs", [{}, {"cleanup.policy": "delete", "retention.ms": "1000"}])
async def test_nobody_makes_it_another_kind_of_topic(configs):
    async with new_node(GatedDisk(), settings(ONE)) as node, client_of(node) as client:
        made = await client.create(OFFSETS_TOPIC, configs=configs)
        assert made.error == "INVALID_CONFIG"
        await client.create()
        await client.call(g.FindCoordinatorRequest(group="g"))
        assert await commit(client, 5) is None


@pytest.mark.parametrize(
    "change",
    [
        {"set": {"cleanup.policy": "delete"}},
        {"set": {"cleanup.policy": "compact,delete"}},
        {"unset": ["cleanup.policy"]},
    ],
    ids=str,
)
async def test_it_stays_compacted_and_nothing_else(client, change):
    resource = m.ConfigChange(kind="topic", name=OFFSETS_TOPIC, **change)
    answer = await client.call(m.AlterConfigsRequest(resources=[resource]))
    assert answer.resources[0].error == "INVALID_CONFIG"
    allowed = m.ConfigChange(kind="topic", name=OFFSETS_TOPIC, set={"segment.bytes": "2048"})
    answer = await client.call(m.AlterConfigsRequest(resources=[allowed]))
    assert answer.resources[0].error is None


async def test_what_needs_more_than_one_batch_is_kept_all_the_same():
    """A consumer of thousands of partitions could never commit."""
    disk, count, note = GatedDisk(), 100, "n" * 4000
    parts = [
        g.CommitPartition(topic="t", partition=number, offset=number, metadata=note)
        for number in range(count)
    ]
    every = g.OffsetFetchRequest(group="g")
    async with new_node(disk, settings(ONE)) as node, client_of(node) as client:
        await client.create(partitions=count)
        await client.call(g.FindCoordinatorRequest(group="g"))
        small = {"max.message.bytes": "250000"}
        change = m.ConfigChange(kind="topic", name=OFFSETS_TOPIC, set=small)
        await client.call(m.AlterConfigsRequest(resources=[change]))
        await quiet()
        answer = await client.call(g.OffsetCommitRequest(group="g", partitions=parts))
        assert {each.error for each in answer.partitions} == {None}
        replica = node.replicas.get(OFFSETS_TOPIC, 0)
        assert len([*replica.log.batches(0)]) == 2
        assert len((await client.call(every)).partitions) == count
    async with new_node(disk, settings(ONE)) as node, client_of(node) as client:
        found = (await client.call(every)).partitions
        assert {each.partition: each.offset for each in found} == {n: n for n in range(count)}
        await client.call(g.DeleteGroupsRequest(groups=["g"]))
        assert (await client.call(every)).partitions == []


async def test_of_groups_that_are_gone_nothing_is_kept():
    """Whatever has a name of its own each time, as a console has, grew a broker for ever."""
    disk, clock = GatedDisk(), FakeClock()
    async with new_node(disk, settings(ONE), clock) as node, client_of(node) as client:
        await client.create()
        await client.call(g.FindCoordinatorRequest(group="g"))
        (coordinator,) = await node.coordinators.all()
        assert await commit(client, 5) is None
        await client.call(g.DeleteGroupsRequest(groups=["g"]))
        assert coordinator.offsets == {}
        assert await commit(client, 5) is None
        clock.ms += EIGHT_DAYS_MS
        await node.coordinators._expire()
        assert (coordinator.offsets, coordinator.groups) == ({}, {})
    async with new_node(disk, settings(ONE), clock) as node:
        (coordinator,) = await node.coordinators.all()
        assert (coordinator.offsets, coordinator.groups) == ({}, {}), "tombstones are none"


async def test_to_look_for_old_offsets_does_not_hold_the_loop():
    """Not even where all of them stay: one look for each group, with others' turns between."""
    async with new_node(GatedDisk(), settings(ONE)) as node, client_of(node) as client:
        await client.create()
        await client.call(g.FindCoordinatorRequest(group="g"))
        part = g.CommitPartition(topic="t", partition=0, offset=1)
        for number in range(20):
            await client.call(g.OffsetCommitRequest(group=f"g{number}", partitions=[part]))
        turns = 0
        async with trio.open_nursery() as nursery:

            async def count_turns():
                nonlocal turns
                while True:
                    turns += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(count_turns)
            await trio.lowlevel.checkpoint()
            before = turns
            await node.coordinators._expire()
            nursery.cancel_scope.cancel()
        assert turns - before > 10, "in a round of turns either may be first"
