"""What a consumer says it waits for: the sentence, since when, and whether that is well.

Goal: anybody who wonders why nothing comes finds out by asking the consumer. Method: `FakeBroker`
in memory on trio's autojump clock; and a group on brokers in virtual time.
"""

import random

import pytest
import trio
from brokers import batch
from fake_broker import IGNORE, FakeBroker, in_memory, refuse
from group_world import later, site, take, virtual

from hightide import ApiError, BrokerUnreachable, Consumer
from hightide.consume.health import View, health_of
from hightide.consume.subscription import Assignment
from hightide.protocol import messages as m
from hightide.protocol.errors import RequestTimedOut
from hightide.protocol.topic_partition import TopicPartition


def consumer_of(broker, network, **options):
    plain = {"topics": ["t"], "auto_offset_reset": "earliest", "request_timeout_ms": 5_000}
    return Consumer(broker.address, network=network, random=random.Random(5), **(plain | options))


async def test_it_waits_for_records_and_then_for_its_caller(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        assert await consumer.poll(timeout_ms=60_000) == []
        health = consumer.health()
        assert (health.waits_for, health.is_well) == ("records of t-0", True)
        assert 60 <= health.since_s < 61
        broker.append(batch(b"a"))
        await trio.sleep(7)
        health = consumer.health()
        size = len(batch(b"a"))
        assert health.waits_for == f"its caller to poll: {size} bytes of records are here"
        assert (health.is_well, health.since_s) == (True, 7)
        await consumer.poll()
        await trio.sleep(3)
        health = consumer.health()
        assert (health.waits_for, health.since_s) == ("records of t-0", pytest.approx(10, abs=0.1))


async def test_a_partition_without_a_leader_is_named(autojump_clock):
    broker = FakeBroker({"t": 3}, leaders={("t", 1): -1})
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        await consumer.poll(timeout_ms=30_000)
        health = consumer.health()
        assert (health.waits_for, health.is_well) == ("a leader of t-1", False)
        assert 29 < health.since_s <= 30
        broker.leaders.clear()
        await consumer.poll(timeout_ms=30_000)
        assert consumer.health().waits_for == "records of t-0, t-1, t-2"


async def test_what_is_refused_again_and_again_is_told_with_the_refusal(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        await consumer.poll(timeout_ms=1_000)
        broker.always(m.FetchRequest, refuse("KAFKA_STORAGE_ERROR"))
        with pytest.raises(ApiError):
            await consumer.poll(timeout_ms=60_000)
        health = consumer.health()
        assert (health.waits_for, health.is_well) == ("an answer about t-0", False)
        assert "KAFKA_STORAGE_ERROR" in str(health.error)
        assert 5 <= health.since_s < 7
        broker.always(m.FetchRequest, None)
        await consumer.poll(timeout_ms=2_000)
        assert consumer.health().is_well
        assert consumer.health().error is None


async def test_an_offset_that_cannot_be_found_is_what_it_waits_for(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(m.ListOffsetsRequest, IGNORE)
    async with in_memory(broker) as network, consumer_of(broker, network) as consumer:
        with trio.move_on_after(1):
            await consumer.poll(timeout_ms=2_000)
        assert consumer.health().waits_for == "the offset to begin at in t-0"


@virtual
async def test_a_member_that_cannot_join_says_so():
    async with site() as at, trio.open_nursery() as nursery, at.consumer() as consumer:
        assert consumer.health().waits_for == "partitions: it has none"
        at.gate.shut()
        polling = await later(nursery, consumer.poll, timeout_ms=4_000)
        await trio.sleep(2)
        health = consumer.health()
        assert (health.waits_for, health.is_well) == ("group 'g' to let it join", False)
        assert 2 <= health.since_s < 2.5
        at.gate.open_again()
        await take_nothing(consumer, polling)
        assert consumer.health().waits_for == "records of t-0"


async def take_nothing(consumer, polling):
    while not polling:
        await trio.sleep(0.1)
    assert await consumer.poll(timeout_ms=1_000) == []


@virtual
async def test_after_the_first_records_a_member_is_well():
    async with site() as at:
        async with at.client() as client:
            await client.produce(b"a")
        async with at.consumer() as consumer:
            await take(consumer, 1)
            assert consumer.health().is_well


def test_many_partitions_are_counted():
    assignments = [Assignment(TopicPartition("t", n), position=0) for n in range(5)]
    view = View(assignments=assignments, leaderless=[], polled_at=0, arrived_at=1)
    assert health_of(view, 4.0) == ("records of t-0, t-1, t-2 and 2 more", 3.0, True, None)


def test_a_group_comes_first():
    error = RequestTimedOut("silence")
    lost = Assignment(TopicPartition("t", 0), failing_since=2)
    view = View([lost], [lost], 0, 0, group="g", joins_since=1.0, last_error=error)
    assert health_of(view, 4.0) == ("group 'g' to let it join", 3.0, False, error)
    view = view._replace(joins_since=None)
    assert health_of(view, 4.0) == ("a leader of t-0", 2.0, False, error)


async def test_a_group_whose_brokers_are_not_there_says_so(autojump_clock):
    async with in_memory(FakeBroker({"t": 1})) as network:
        consumer = Consumer("elsewhere:1", network=network, group_id="g", topics=["t"])
        async with consumer:
            assert await consumer.poll(timeout_ms=2_000) == []
            health = consumer.health()
    assert (health.waits_for, health.is_well) == ("group 'g' to let it join", False)
    assert isinstance(health.error, BrokerUnreachable)
