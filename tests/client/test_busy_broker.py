"""Batches to a broker that owes answers grow until one comes, and do not wait for ever.

Goal: a loop over many partitions does not send each record by itself, and a partition that is slow
does not hold up the others. Method: `FakeBroker` in memory on trio's autojump clock.
"""

import random
from contextlib import asynccontextmanager

import pytest
import trio
from brokers import FakeClock
from fake_broker import STORE_AND_SAY_NOTHING, FakeBroker, in_memory

from hightide import Producer
from hightide.produce.line import BUSY_PAUSE_S, BUSY_REQUESTS
from hightide.protocol import messages as m

ANSWER_S = BUSY_PAUSE_S / 4
BATCH = 1000
PARTITIONS = 10


class SlowBroker(FakeBroker):
    """It stores at once, and says so a while later."""

    async def _answer(self, link, number, request, reply, trick):
        if isinstance(request, m.ProduceRequest):
            await trio.sleep(ANSWER_S)
        await super()._answer(link, number, request, reply, trick)


def producer_of(broker, network):
    return Producer(
        broker.address,
        network=network,
        random=random.Random(3),
        clock=FakeClock(),
        linger_ms=0,
        batch_size=BATCH,
    )


@asynccontextmanager
async def busy(broker, *others, is_silent=True):
    """A producer whose broker owes it as many answers as it may; and the time. The partitions are
    known: the first batch of each goes alone."""
    async with (
        in_memory(broker, *others) as network,
        producer_of(broker, network) as producer,
    ):
        for partition in range(PARTITIONS):
            await (await producer.send("t", b"first", partition=partition))
        await trio.sleep(1)
        if is_silent:
            broker.will(m.ProduceRequest, *[STORE_AND_SAY_NOTHING] * BUSY_REQUESTS)
        for partition in range(BUSY_REQUESTS):
            await producer.send("t", b"x", partition=partition)
            await trio.sleep(0)
        await trio.testing.wait_all_tasks_blocked()
        assert producer.metrics()["requests_in_flight"] == BUSY_REQUESTS
        yield producer, trio.current_time()


async def test_a_loop_over_many_partitions_shares_its_requests(autojump_clock):
    partitions, records, loop_s = 100, 2000, 0.2
    broker = SlowBroker({"t": partitions})
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        for number in range(records):
            await producer.send("t", b"%d" % number, partition=number % partitions)
            await trio.sleep(loop_s / records)
        await producer.flush()
    in_turns = BUSY_REQUESTS * loop_s / ANSWER_S
    assert broker.count(m.ProduceRequest) <= 1.5 * in_turns
    for partition in range(partitions):
        expected = [b"%d" % number for number in range(partition, records, partitions)]
        assert broker.values("t", partition) == expected


async def test_what_a_slow_partition_holds_up_goes_after_a_pause(autojump_clock):
    broker = FakeBroker({"t": PARTITIONS})
    async with busy(broker) as (producer, began):
        others = [await producer.send("t", b"y", partition=p) for p in range(5, 10)]
        asked = broker.count(m.ProduceRequest)
        for other in others:
            await other
        assert trio.current_time() - began == pytest.approx(BUSY_PAUSE_S)
        assert broker.count(m.ProduceRequest) == asked + 1, "they share one"


async def test_a_full_batch_waits_for_no_answer_and_takes_others_along(autojump_clock):
    broker = FakeBroker({"t": PARTITIONS})
    async with busy(broker) as (producer, began):
        small = await producer.send("t", b"y", partition=6)
        await (await producer.send("t", b"y" * BATCH, partition=7))
        await small
        assert trio.current_time() == began


async def test_what_cannot_grow_waits_for_no_answer(autojump_clock):
    pa = pytest.importorskip("pyarrow")
    broker = FakeBroker({"t": PARTITIONS})
    async with busy(broker) as (producer, began):
        await (await producer.send_arrow(pa.table({"value": [b"y"]}), "t", partition=6))
        assert trio.current_time() == began


async def test_an_answer_frees_the_next_request_at_once(autojump_clock):
    broker = SlowBroker({"t": PARTITIONS})
    async with busy(broker, is_silent=False) as (producer, began):
        await (await producer.send("t", b"y", partition=7))
        assert trio.current_time() - began == pytest.approx(2 * ANSWER_S)


async def test_brokers_do_not_wait_for_each_other(autojump_clock):
    silent = FakeBroker({"t": PARTITIONS}, id=1, port=1, leaders={("t", 9): 2})
    other = FakeBroker({"t": PARTITIONS}, id=2, port=2)
    silent.others.append(m.BrokerInfo(id=2, host=other.host, port=other.port))
    async with busy(silent, other) as (producer, began):
        await (await producer.send("t", b"y", partition=9))
        assert trio.current_time() == began
    assert other.values("t", 9) == [b"first", b"y"]
