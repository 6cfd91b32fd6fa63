"""Clients that are called with what is no number, no text or no time, or as they end: they say so
to the caller, and go on. Each of these was the end of a client, or a wait without one.

Method: as in `test_client_consumer.py`, a node in this process; what an interpreter does at its end
is asked of one.
"""

import asyncio
import json
import subprocess
import sys
from contextlib import suppress

import pytest
import trio
from clients import one_node, take
from patience import PATIENCE_S
from secure_run import blocking_cluster, reaching

from hightide import Consumer, Producer
from hightide.blocking import Admin
from hightide.consume.subscription import OffsetAndMetadata
from hightide.protocol.errors import ClosedError, UsageError

HUGE = 1 << 70


@pytest.fixture
async def one():
    async with one_node() as found:
        await found.client.produce(b"0", b"1")
        yield found


@pytest.mark.parametrize(
    "wrong",
    [
        lambda consumer: consumer.poll(timeout_ms=-5),
        lambda consumer: consumer.poll(timeout_ms=float("nan")),
        lambda consumer: consumer.poll(timeout_ms="x"),
        lambda consumer: consumer.poll(timeout_ms=None),
        lambda consumer: consumer.poll(max_records=-1),
        lambda consumer: consumer.poll(max_records=1.5),
        lambda consumer: consumer.poll_arrow(timeout_ms=float("nan")),
        lambda consumer: consumer.commit(True),
        lambda consumer: consumer.commit({"t": 0}),
        lambda consumer: consumer.commit({("t", 0): HUGE}),
        lambda consumer: consumer.commit({("t", 0): OffsetAndMetadata(1.5)}),
        lambda consumer: consumer.committed([("t", 1.0)]),
        lambda consumer: consumer.committed(5),
        lambda consumer: consumer.assign(["t"]),
        lambda consumer: consumer.seek_to_time(HUGE),
        lambda consumer: trio.to_thread.run_sync(consumer.seek, "t", 0, HUGE),
    ],
    ids=range(16),
)
async def test_a_consumer_that_was_asked_for_nonsense_goes_on(one, wrong):
    async with one.consumer(partitions=[("t", 0)], group_id="g") as consumer:
        with pytest.raises(UsageError):
            await wrong(consumer)
        assert [record.value for record in await take(consumer, 2)] == [b"0", b"1"]


@pytest.mark.parametrize(
    "topic", [5, None, 10**400, "\ud800"], ids=["number", "none", "huge", "half"]
)
async def test_a_topic_is_named_by_a_text(one, topic):
    async with one.producer() as producer:
        with pytest.raises(UsageError):
            await producer.send(topic, b"x")
        await (await producer.send("t", b"2"))
    assert await one.values() == [b"0", b"1", b"2"]


async def test_one_topic_may_be_given_by_its_name(one):
    async with Consumer(one.address, topics="t", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in await take(consumer, 2)] == [b"0", b"1"]


async def test_a_send_that_ends_after_its_producer_has_accepted_nothing(one):
    accepted = []

    async def send(producer):
        with suppress(ClosedError):
            while True:
                accepted.append(await producer.send("t", b"x", partition=0))

    async def send_to_the_end(pause):
        async with trio.open_nursery() as nursery:
            with suppress(ClosedError):  # of what was accepted meanwhile
                async with one.producer(linger_ms=0, batch_size=100) as producer:
                    nursery.start_soon(send, producer)
                    for _ in range(pause):
                        await trio.lowlevel.checkpoint()

    for pause in range(3, 43):
        await send_to_the_end(pause)
    with trio.fail_after(PATIENCE_S):
        for delivery in accepted:
            with suppress(ClosedError):
                await delivery


HELD = """
import json, sys, threading, time
from hightide.blocking import Consumer

consumer = Consumer(**json.loads(sys.argv[1]), topics=["t"]).open()
held = threading.Event()


def hold():
    with consumer._open._portal.token._reentry_queue.lock:  # as trio does whenever it is called
        held.set()
        time.sleep(1)


consumer._open._portal.soon(hold)
held.wait()
"""


@pytest.mark.live
def test_an_interpreter_ends_with_a_client_open_whatever_its_thread_holds():
    with blocking_cluster(1) as cluster:
        way = reaching(cluster.bootstrap)
        with Admin(**way) as admin:
            admin.create_topic("t")
        command = [sys.executable, "-W", "ignore", "-c", HELD, json.dumps(way)]
        assert subprocess.run(command, check=False).returncode == 0


def test_who_opens_a_client_in_another_event_loop_is_told_what_there_is_for_it():
    async def main():
        async with Producer("127.0.0.1:1"):
            raise AssertionError("it was opened")

    with pytest.raises(UsageError, match=r"runs in trio.*hightide\.blocking"):
        asyncio.run(main())


async def test_kafkas_names_given_as_addresses_are_told_where_they_go():
    with pytest.raises(UsageError, match="from_config"):
        async with Producer({"bootstrap.servers": "127.0.0.1:1"}):
            raise AssertionError("it was opened")


async def test_columns_without_their_library_name_what_to_install(one, monkeypatch):
    async with one.consumer(partitions=[("t", 0)], auto_offset_reset="earliest") as consumer:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "numpy", None)
            with pytest.raises(UsageError, match="poll_arrow needs numpy: pip install"):
                await consumer.poll_arrow(timeout_ms=1000)
        assert len(await take(consumer, 2)) == 2
