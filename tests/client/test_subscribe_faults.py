"""Subscribing again where something is in the way: cancelled, gone, made again, at the same moment.

Goal: whatever happens to a change of what is read, the consumer is of use afterwards, nothing that
was handed out is read again where it could be committed, and nobody who left is still a member.
Method: as `test_subscribe.py`.
"""

from functools import partial

import pytest
import trio
from group_world import MANUAL, site, take, virtual
from test_subscribe import ALONE, BOTH, GROUPED, fill, values

from hightide import UsageError
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError
from hightide.protocol.topic_partition import TopicPartition as T


async def read_for(consumer, seconds):
    """The values that come in this time."""
    found = []
    with trio.move_on_after(seconds):
        while True:
            found += [record.value for record in await consumer.poll(timeout_ms=200)]
    return found


async def drop(client, topic):
    await client.ask(m.DeleteTopicsRequest(topics=[topic]))


@virtual
async def test_an_unsubscribe_that_is_cancelled_is_carried_out():
    async with site() as at, at.client() as client:
        await fill(client, "t", b"0")
        async with at.consumer(**GROUPED) as consumer:
            await consumer.subscribe(["t"])
            assert await values(consumer, 1) == [b"0"]
            with trio.CancelScope() as scope:
                scope.cancel()
                await consumer.unsubscribe()
            assert scope.cancelled_caught
            assert (await client.describe()).members == []
            await fill(client, "t", b"1")
            await consumer.subscribe(["t"])
            assert await read_for(consumer, 5) == [b"1"], "what was handed out is committed"


@virtual
async def test_an_unsubscribe_that_is_cancelled_while_its_listener_works_is_carried_out():
    async with site() as at, at.client() as client:
        await fill(client, "t", b"0")
        async with at.consumer(**GROUPED) as consumer:
            await consumer.subscribe(["t"], on_revoked=lambda _: trio.sleep(5))
            assert await values(consumer, 1) == [b"0"]
            with trio.move_on_after(1) as scope:
                await consumer.unsubscribe()
            assert scope.cancelled_caught
            await fill(client, "t", b"1")
            await consumer.subscribe(["t"])
            assert await read_for(consumer, 20) == [b"1"]


@virtual
async def test_who_unsubscribes_while_joining_may_subscribe_again():
    async with site() as at, at.client() as client:
        await fill(client, "t", b"0")
        async with at.consumer(**GROUPED) as consumer:
            await consumer.subscribe(["t"])
            assert await consumer.poll() == []
            await consumer.unsubscribe()
            assert await read_for(consumer, 5) == []
            await consumer.subscribe(["t"])
            assert await read_for(consumer, 5) == [b"0"]


@virtual
async def test_commits_that_were_asked_for_come_before_the_leave():
    told = []
    async with site() as at, at.client() as client:
        await fill(client, "t", b"0", b"1")
        async with at.consumer(**GROUPED, **MANUAL) as consumer:
            await consumer.subscribe(["t"])
            assert len(await take(consumer, 2)) == 2
            for offset in (1, 2):
                consumer.commit_async({("t", 0): offset}, told.append)
            await consumer.unsubscribe()
            (kept,) = (await consumer.committed([("t", 0)])).values()
    assert (told, kept.offset) == ([None, None], 2)


@BOTH
@virtual
async def test_a_topic_of_a_pattern_that_is_made_again_at_once_is_read_again(said):
    said = {**said, "metadata_max_age_ms": 5_000}
    async with site() as at, at.client() as client:
        await client.create("x", partitions=1)
        async with at.consumer(**said) as consumer:
            await consumer.subscribe(pattern="x")
            await read_for(consumer, 2)
            await drop(client, "x")
            await read_for(consumer, 1)
            await client.create("x", partitions=1)
            await fill(client, "x", b"new")
            assert await read_for(consumer, 15) == [b"new"]


@pytest.mark.parametrize("by_hand", [False, True])
@virtual
async def test_a_member_whose_pattern_matches_nothing_any_more_leaves_as_any_other(by_hand):
    async with site() as at, at.client() as client:
        await client.create("x", partitions=1)
        await fill(client, "t", b"0")
        async with at.consumer(**GROUPED) as consumer:
            await consumer.subscribe(pattern="x")
            await read_for(consumer, 3)
            assert consumer.assignment() == [T("x", 0)]
            await drop(client, "x")
            await read_for(consumer, 5)
            assert consumer.assignment() == []
            with pytest.raises(UsageError, match="give no topics"):
                await consumer.assign([("t", 0)])
            await consumer.unsubscribe()
            assert (await client.describe()).members == []
            if by_hand:
                await consumer.assign([("t", 0)])
                assert await read_for(consumer, 10) == [b"0"]


@virtual
async def test_partitions_chosen_by_hand_end_a_pattern():
    async with site() as at, at.client() as client, at.consumer(**ALONE) as consumer:
        await consumer.subscribe(pattern="t.*")
        await consumer.assign([("t", 0)])
        await client.create("tb", partitions=1)
        await read_for(consumer, 5)
        assert consumer.assignment() == [T("t", 0)]


@virtual
async def test_a_subscription_that_fails_changes_nothing():
    async with site() as at, at.client() as client, at.consumer(**ALONE) as consumer:
        await consumer.subscribe(pattern="t.*")
        with pytest.raises(ApiError, match="nowhere"):
            await consumer.subscribe(["nowhere"])
        await client.create("tb", partitions=1)
        await read_for(consumer, 5)
        assert consumer.assignment() == [T("t", 0), T("tb", 0)], "the pattern goes on"


@BOTH
@virtual
async def test_a_search_for_topics_that_comes_late_undoes_nothing(said, monkeypatch):
    async with site() as at, at.client() as client:
        await client.create("u", partitions=1)
        async with at.consumer(**said) as consumer:
            await consumer.subscribe(pattern="t.*")
            cluster = consumer._cluster
            refresh, found = cluster.refresh, trio.Event()

            async def slow(topics=None, **more):
                answer = await refresh(topics, **more)
                if topics is None and not found.is_set():
                    found.set()
                    await client.create("tb", partitions=1)
                    await refresh(None)
                    await consumer.subscribe(["u"])
                return answer

            monkeypatch.setattr(cluster, "refresh", slow)
            with trio.fail_after(60):
                await found.wait()
            await read_for(consumer, 5)
            assert consumer.assignment() == [T("u", 0)]


@virtual
async def test_nothing_of_topics_that_are_not_subscribed_to_any_more_is_handed_out():
    said = {**GROUPED, "partition_assignment_strategy": "cooperative-sticky"}
    async with site() as at, at.client() as client:
        await client.create("u", partitions=1)
        await fill(client, "t", *(b"t%d" % n for n in range(20)))
        async with at.consumer(**said, max_poll_records=3) as consumer:
            await consumer.subscribe(["t"])
            assert len(await take(consumer, 3)) == 3
            await consumer.subscribe(["u"])
            assert await read_for(consumer, 5) == []
            assert consumer.assignment() == [T("u", 0)]
            (kept,) = (await consumer.committed([("t", 0)])).values()
            assert kept.offset == 3


@virtual
async def test_what_stood_in_the_way_before_is_not_told_afterwards():
    async with site() as at, at.client() as client:
        await client.create("u", partitions=1)
        await fill(client, "u", b"u")
        async with at.consumer(**ALONE) as consumer:
            await consumer.subscribe(["t"])
            await read_for(consumer, 0.5)
            await drop(client, "t")
            with pytest.raises(ApiError, match="'t' does not exist"):
                await read_for(consumer, 60)
            await trio.sleep(1)
            await consumer.subscribe(["u"])
            assert await read_for(consumer, 5) == [b"u"]


@BOTH
@virtual
async def test_records_of_a_topic_that_is_gone_are_in_nobodys_way(said):
    pytest.importorskip("pyarrow")
    async with site() as at, at.client() as client:
        await client.create("x", partitions=1)
        assert (await client.produce(b"a", b"b", topic="x", partition=0)).error is None
        async with at.consumer(**said) as consumer:
            await consumer.subscribe(pattern="x")
            await take(consumer, 1)
            await drop(client, "x")
            await trio.sleep(10)
            await partial(consumer.poll_arrow, timeout_ms=1_000)()
