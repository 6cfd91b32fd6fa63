"""Topics of a group that get partitions, or come, while it reads: whoever leads it shares them out.

Goal: no committed record stays unread because a group's leader has nothing of that topic itself, or
came back to its place. Method: as in `test_group_consumer.py`.
"""

import trio
from group_world import site, virtual

from hightide.protocol import messages as m

FRESH = {"metadata_max_age_ms": 2_000}
LATER_S = 30


async def poll(*consumers, seconds):
    end = trio.current_time() + seconds
    while trio.current_time() < end:
        for consumer in consumers:
            await consumer.poll(timeout_ms=100)


async def grow(client, topic, *consumers):
    """It gets a second partition while they have been reading for a while, and go on."""
    await poll(*consumers, seconds=5)
    more = m.MorePartitions(topic=topic, count=2)
    await client.ask(m.CreatePartitionsRequest(topics=[more]))
    await poll(*consumers, seconds=LATER_S)


def shared(*consumers):
    return sorted((tp.topic, tp.partition) for each in consumers for tp in each.assignment())


@virtual
async def test_a_leader_that_came_back_to_its_place_sees_what_is_added():
    async with site() as at, at.client() as client:
        async with at.consumer(group_instance_id="i", **FRESH) as consumer:
            await poll(consumer, seconds=5)
            generation = consumer.generation
        async with at.consumer(group_instance_id="i", **FRESH) as consumer:
            await poll(consumer, seconds=5)
            assert consumer.generation == generation
            await grow(client, "t", consumer)
            assert shared(consumer) == [("t", 0), ("t", 1)]


@virtual
async def test_a_leader_that_has_nothing_sees_what_is_added():
    async with (
        site() as at,
        at.client() as client,
        at.consumer(client_id="z", **FRESH) as leader,
    ):
        await poll(leader, seconds=3)
        async with at.consumer(client_id="a", **FRESH) as other:
            await grow(client, "t", leader, other)
            assert shared(leader, other) == [("t", 0), ("t", 1)]


@virtual
async def test_a_leader_sees_what_is_added_to_topics_that_only_others_read():
    async with site() as at, at.client() as client, at.consumer(**FRESH) as leader:
        await client.create("y", partitions=1)
        await poll(leader, seconds=3)
        async with at.consumer(topics=["y"], **FRESH) as other:
            await grow(client, "y", leader, other)
            assert shared(other) == [("y", 0), ("y", 1)]


@virtual
async def test_a_topic_that_was_named_before_it_is_made_is_read_when_it_is():
    async with (
        site() as at,
        at.client() as client,
        at.consumer(topics=["t", "later"], **FRESH) as consumer,
    ):
        await poll(consumer, seconds=5)
        assert shared(consumer) == [("t", 0)]
        await client.create("later", partitions=1)
        await poll(consumer, seconds=LATER_S)
        assert shared(consumer) == [("later", 0), ("t", 0)]
