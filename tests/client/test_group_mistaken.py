"""A member that believes what is not so any more: that it is one, or what a topic is.

Goal: what somebody else has committed meanwhile never goes back, listeners hear of what is lost as
lost, and a record of a topic that was made again is not skipped for what was read of the one
before. Method: as in `test_group_consumer.py`.
"""

import pytest
import trio
from group_world import MANUAL, fill, site, take, virtual

from hightide import ApiError
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode

COOPERATIVE = {"partition_assignment_strategy": ["cooperative-sticky"]}


@virtual
async def test_who_hears_with_its_goodbye_that_it_was_thrown_out_keeps_nothing():
    async with site() as at, at.client() as client:
        await client.create("u", partitions=1)
        for topic in "tu":
            await client.produce(*[b"x"] * 100, topic=topic)
        news = []
        options = {"topics": ["t", "u"], **COOPERATIVE}
        slow = at.consumer(
            on_lost=lambda parts: news.append(("lost", sorted(parts))),
            on_revoked=lambda parts: news.append(("revoked", sorted(parts))),
            heartbeat_interval_ms=9_000,
            auto_commit_interval_ms=600_000,
            **options,
        )
        async with slow, at.consumer(**options, **MANUAL) as other:
            read = set()
            while len(read) < 2:
                read |= {r.topic for r in await slow.poll(timeout_ms=500, max_records=5)}
            await client.leave(slow._rebalancer._membership.member_id)
            await take(other, 200)
            await other.commit()
            await slow.subscribe(["t"])
            for _ in range(100):
                await slow.poll(timeout_ms=50, max_records=0)
                await other.poll(timeout_ms=50)
            assert news[:2] == [("lost", [("u", 0)]), ("lost", [("t", 0)])]
            assert await client.committed() == {("t", 0): 100, ("u", 0): 100}


async def make_again(client, count):
    await client.ask(m.DeleteTopicsRequest(topics=["t"]))
    await trio.sleep(0.3)
    await client.create("t", partitions=1)
    await trio.sleep(0.3)
    await fill(client, count)


@virtual
async def test_a_commit_of_what_was_read_of_a_topic_does_not_count_for_the_next_of_its_name():
    async with site() as at, at.client() as client:
        await fill(client, 10)
        async with at.consumer(**MANUAL) as consumer:
            await take(consumer, 10)
            await make_again(client, 30)
            for offsets in (None, {("t", 0): 10}):
                with pytest.raises(ApiError) as refused:
                    await consumer.commit(offsets)
                assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
        async with at.consumer(**MANUAL) as consumer:
            assert (await take(consumer, 1))[0].offset == 0


@virtual
async def test_at_the_end_of_a_block_nothing_is_committed_of_a_topic_that_is_another_now():
    told = []
    async with site() as at, at.client() as client:
        await fill(client, 10)
        async with at.consumer(on_retry=told.append) as consumer:
            await take(consumer, 10)
            await make_again(client, 30)
        assert await client.committed() == {}
        assert ErrorCode.INCONSISTENT_TOPIC_ID in [error.code for error in told]
