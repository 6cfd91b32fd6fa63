"""A member that believes what is not so any more: that it is one, or what a topic is.

Goal: what somebody else has committed meanwhile never goes back, listeners hear of what is lost as
lost, and a record of a topic that was made again is not skipped for what was read of the one
before. Method: as in `test_group_consumer.py`.
"""

import pytest
import trio
from group_world import MANUAL, fill, site, take, virtual
from msgspec.structs import replace

from hightide.net.metadata import Metadata
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


@virtual
async def test_a_commit_of_what_was_read_of_a_topic_does_not_count_for_the_next_of_its_name():
    async with site() as at, at.client() as client:
        await fill(client, 10)
        async with at.consumer(**MANUAL) as consumer:
            await take(consumer, 10)
            rebalancer = consumer._rebalancer
            late = [rebalancer._request(rebalancer.wanted(told)) for told in (None, {("t", 0): 10})]
        await client.ask(m.DeleteTopicsRequest(topics=["t"]))
        await trio.sleep(0.3)
        await client.create("t", partitions=1)
        await fill(client, 30)
        for each in late:
            as_nobody = replace(each, member_id="", generation=-1)
            (result,) = (await client.ask(as_nobody)).partitions
            assert result.error == ErrorCode.INCONSISTENT_TOPIC_ID
        async with at.consumer(**MANUAL) as consumer:
            assert (await take(consumer, 1))[0].offset == 0


@pytest.mark.parametrize("how", [{"pattern": "t.*"}, {"topics": ["t"]}])
@virtual
async def test_a_topic_that_a_broker_has_not_heard_of_is_read_on(how, monkeypatch):
    """Said once, by one that is behind: everybody else knows it."""
    learn, answers = Metadata.learn, iter([True])

    def of_old(metadata, answer, *, is_complete, now):
        if metadata.topics and not is_complete and next(answers, False):
            gone = m.TopicMetadata(topic="t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            answer.topics[:] = [gone]
        return learn(metadata, answer, is_complete=is_complete, now=now)

    async with site() as at, at.client() as client:
        await fill(client, 10)
        options = {"auto_offset_reset": "latest", "metadata_max_age_ms": 1_000}
        async with at.consumer(group_id="", topics=[], **options) as consumer:
            await consumer.subscribe(**how)
            await consumer.poll(timeout_ms=500)
            await fill(client, 5)
            await take(consumer, 5)
            monkeypatch.setattr(Metadata, "learn", of_old)
            for _ in range(25):
                await trio.sleep(0.2)
                await fill(client, 1)
            assert next(answers, None) is None
            assert [record.offset for record in await take(consumer, 25)] == [*range(15, 40)]
