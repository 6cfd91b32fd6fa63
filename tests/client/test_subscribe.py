"""Subscribing again: other topics, topics by a pattern, none; alone and in a group.

Method: real consumers and a real node in one process, on the simulation's network, disk and virtual
time; the blocking twin on real threads.
"""

import re
from functools import partial

import pytest
import trio
from group_world import MANUAL, Reader, shared, site, take, until, virtual

from hightide import UsageError, blocking
from hightide.consume.selection import selection
from hightide.protocol import messages as m
from hightide.protocol.topic_partition import TopicPartition as T
from hightide.testing import BlockingCluster

ALONE = {"group_id": "", "topics": (), "metadata_max_age_ms": 1_000}
GROUPED = {"topics": (), "metadata_max_age_ms": 1_000}
BOTH = pytest.mark.parametrize("said", [ALONE, GROUPED], ids=["alone", "grouped"])


async def fill(client, topic, *values, partition=0):
    for value in values:
        assert (await client.produce(value, topic=topic, partition=partition)).error is None


async def values(consumer, count):
    return sorted(record.value for record in await take(consumer, count))


@BOTH
@virtual
async def test_other_topics_take_the_place_of_those_before(said):
    async with site() as at, at.client() as client:
        await client.create("u", partitions=2)
        await fill(client, "t", b"t0")
        await fill(client, "u", b"u0", b"u1", partition=1)
        async with at.consumer(**said) as consumer:
            assert await consumer.poll(timeout_ms=500) == []
            await consumer.subscribe("t")
            assert await values(consumer, 1) == [b"t0"]
            await consumer.subscribe(["u"])
            assert await values(consumer, 2) == [b"u0", b"u1"]
            assert consumer.assignment() == [T("u", 0), T("u", 1)]
            await consumer.subscribe(["t", "u"])
            await fill(client, "t", b"t1")
            assert (await values(consumer, 1))[0] in (b"t0", b"t1", b"u0")


@virtual
async def test_what_was_read_before_is_committed_when_others_are_subscribed_to():
    async with site() as at, at.client() as client:
        await client.create("u", partitions=1)
        await fill(client, "t", b"t0", b"t1")
        async with at.consumer(partition_assignment_strategy="range") as consumer:
            assert len(await take(consumer, 2)) == 2
            await consumer.subscribe(["u"])
            await consumer.poll(timeout_ms=2_000)
            assert consumer.assignment() == [T("u", 0)]
            (kept,) = (await consumer.committed([("t", 0)])).values()
            assert kept.offset == 2


@virtual
async def test_members_of_a_group_may_subscribe_to_different_topics():
    async with site(topic=2) as at, at.client() as client, trio.open_nursery() as nursery:
        await client.create("u", partitions=3)
        one = await nursery.start(Reader(at).run)
        two = await nursery.start(Reader(at).run)
        await shared([one, two], [1, 1], 2)
        await two.consumer.subscribe(["u"])
        await until(lambda: (len(one.places), len(two.places)) == (2, 3))
        await one.stop()
        await two.stop()


@BOTH
@virtual
async def test_a_pattern_takes_in_what_it_matches_whole_also_what_comes_later(said):
    async with site() as at, at.client() as client:
        for topic in ("cat", "cats", "a-cat", "__cat"):
            await client.create(topic, partitions=1)
            await fill(client, topic, topic.encode())
        async with at.consumer(**said) as consumer:
            await consumer.subscribe(pattern="cat.*")
            assert await values(consumer, 2) == [b"cat", b"cats"]
            await client.create("catfish", partitions=1)
            await fill(client, "catfish", b"fish")
            assert await values(consumer, 1) == [b"fish"]
            await client.ask(m.DeleteTopicsRequest(topics=["cats"]))
            await trio.sleep(3)
            await consumer.poll(timeout_ms=3_000)
            assert consumer.assignment() == [T("cat", 0), T("catfish", 0)]
            await consumer.subscribe(pattern=re.compile("A-CAT", re.IGNORECASE))
            assert await values(consumer, 1) == [b"a-cat"]
            await client.create("cat-2", partitions=1)
            await trio.sleep(5)
            assert consumer.assignment() == [T("a-cat", 0)], "the earlier pattern is forgotten"


@BOTH
@virtual
async def test_a_pattern_may_match_nothing_yet(said):
    async with site() as at, at.client() as client, at.consumer(**said) as consumer:
        await consumer.subscribe(pattern="later")
        assert await consumer.poll(timeout_ms=2_000) == []
        await client.create("later", partitions=1)
        await fill(client, "later", b"now")
        assert await values(consumer, 1) == [b"now"]


@BOTH
@virtual
async def test_unsubscribed_a_consumer_reads_nothing_until_it_subscribes(said):
    async with site() as at, at.client() as client:
        await fill(client, "t", b"0", b"1")
        async with at.consumer(**said) as consumer:
            await consumer.subscribe(["t"])
            assert await values(consumer, 2) == [b"0", b"1"]
            await consumer.unsubscribe()
            await fill(client, "t", b"2")
            assert (consumer.assignment(), await consumer.poll(timeout_ms=3_000)) == ([], [])
            await consumer.subscribe(["t"])
            again = [b"2"] if said is GROUPED else [b"0", b"1", b"2"]
            assert await values(consumer, len(again)) == again


@virtual
async def test_who_unsubscribes_leaves_the_group_and_tells_its_listener():
    told = []
    async with site(topic=2) as at, trio.open_nursery() as nursery:
        other = await nursery.start(Reader(at).run)
        async with at.consumer(**GROUPED, **MANUAL) as consumer:
            await consumer.subscribe(["t"], on_revoked=told.extend)
            nursery.start_soon(partial(consumer.poll, timeout_ms=2_000))
            await until(lambda: len(other.places) == 1)
            while not consumer.assignment():
                await trio.sleep(0.1)
            (mine,) = consumer.assignment()
            await consumer.unsubscribe()
            assert told == [mine]
            await shared([other], [2], 2)
            nursery.cancel_scope.cancel()


@virtual
async def test_listeners_that_are_given_take_the_place_of_all_before():
    told = []
    async with site() as at, at.client() as client:
        await client.create("u", partitions=1)
        first, second = (lambda _: told.append("first")), (lambda _: told.append("second"))
        async with at.consumer(on_assigned=first) as consumer:
            await consumer.poll(timeout_ms=1_000)
            await consumer.subscribe(["t", "u"])
            await consumer.poll(timeout_ms=1_000)
            await consumer.subscribe(["u"], on_assigned=second)
            await consumer.poll(timeout_ms=1_000)
    assert (set(told[:-1]), told[-1]) == ({"first"}, "second")


@virtual
async def test_partitions_that_were_chosen_by_hand_are_let_go_of_first():
    async with site() as at, at.client() as client:
        await fill(client, "t", b"0")
        async with at.consumer(partitions=[("t", 0)]) as consumer:
            assert await values(consumer, 1) == [b"0"]
            with pytest.raises(UsageError, match="unsubscribe first"):
                await consumer.subscribe(["t"])
            await consumer.unsubscribe()
            await consumer.subscribe(["t"])
            await fill(client, "t", b"1")
            assert await values(consumer, 1) == [b"1"], "the first one was committed"


@BOTH
@virtual
async def test_a_consumer_that_is_opened_again_reads_what_its_options_say(said):
    async with site() as at, at.client() as client:
        await client.create("u", partitions=1)
        await fill(client, "u", b"u0")
        consumer = at.consumer(**{**said, "topics": ["t"]})
        async with consumer:
            await consumer.subscribe(pattern="u")
            assert await values(consumer, 1) == [b"u0"]
        async with consumer:
            await consumer.poll(timeout_ms=2_000)
            assert consumer.assignment() == [T("t", 0)]


@pytest.mark.parametrize(
    ("topics", "pattern", "said"),
    [
        ((), None, "give topics, or a pattern"),
        (["t"], "t", "give topics, or a pattern"),
        ([3], None, "topic is 3"),
        ([""], None, "topic is ''"),
        ((), "(", "pattern is '('"),
        ((), 7, "pattern is 7"),
    ],
)
def test_what_names_nothing_is_refused(topics, pattern, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        selection(topics, pattern)


def test_a_thread_subscribes_as_a_task_does():
    told = []
    with BlockingCluster(brokers=1) as cluster:
        where = cluster.bootstrap
        with blocking.Admin(where) as admin, blocking.Producer(where) as producer:
            admin.create_topic("t", partitions=1, replication_factor=1)
            producer.send("t", b"v").result()
        with blocking.Consumer(where, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe("t", on_assigned=told.extend)
            assert [r.value for r in consumer.poll(timeout_ms=60_000)] == [b"v"]
            assert told == [T("t", 0)] == consumer.assignment()
            consumer.unsubscribe()
            assert consumer.assignment() == []
            consumer.subscribe(pattern="t")
            assert consumer.poll(timeout_ms=1_000) == []
