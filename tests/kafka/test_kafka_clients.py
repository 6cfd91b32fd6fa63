"""Clients that nobody here wrote, against a node: each writes, each reads, and they share groups.

Goal: the same keys, values, headers, times and offsets, whoever wrote and whoever reads, in every
codec. Method: a node in this process, on the real time of day, its clients in threads.
"""

from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio
from brokers import new_node, settings
from confluent_kafka import KafkaException, Producer
from others import EVERY, LARGEST, THEIRS, WAIT_S, name_of
from tries import few, tries
from trio.to_thread import run_sync

from hightide.net.ports import SystemClock
from hightide_broker.simulation.disk import SimDisk

pytestmark = [
    pytest.mark.slow,
    # Others leave sockets to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NOW_MS = 1_790_000_000_000
RECORDS = [
    (b"key", b"value", [("h", b"1"), ("h", b"2")], NOW_MS),
    (None, b"", [], NOW_MS + 5),
    (b"", None, [("null", None)], NOW_MS + 3),
    (b"k" * 300, b"v" * 5000, [("\u00e9", b"")], NOW_MS + 9),
]


@asynccontextmanager
async def address(over=None):
    """Where a node is."""
    more = {"auto.create.topics.enable": "true", "offsets.topic.num.partitions": "1"}
    config = settings({**more, "group.initial.rebalance.delay.ms": "0", **(over or {})})
    async with new_node(SimDisk(), config, SystemClock()) as node:
        yield f"127.0.0.1:{node.port}"


async def in_thread(function, *arguments):
    """What a blocking client does comes to an end, or the test does without it."""
    return await run_sync(partial(function, *arguments), abandon_on_cancel=True)


@pytest.mark.parametrize("writer", EVERY, ids=name_of)
async def test_what_one_writes_everybody_reads(writer):
    has_nulls = name_of(writer) != "KafkaPython"  # in headers
    records = [record for record in RECORDS if has_nulls or ("null", None) not in record[2]]
    expected = [(offset, *record) for offset, record in enumerate(records)]
    async with address() as there:
        for codec in writer.codecs:
            topic = f"in-{codec}"
            await in_thread(writer.write, there, topic, records, codec)
            for reader in EVERY:
                if codec not in reader.reads:
                    continue
                found = await in_thread(reader.read, there, topic, len(records))
                assert found == expected, (codec, name_of(reader))


@pytest.mark.parametrize("writer", few(EVERY, 2), ids=name_of)
async def test_a_record_of_ten_mebibytes_is_written_and_read(writer):
    value = Random(7).randbytes(10 << 20)
    records = [(b"large", value, [], NOW_MS), (b"small", b"v", [], NOW_MS + 1)]
    expected = [(offset, *record) for offset, record in enumerate(records)]
    async with address({"message.max.bytes": str(LARGEST)}) as there:
        await in_thread(writer.write, there, "large", records, "lz4")
        for reader in EVERY:
            assert await in_thread(reader.read, there, "large", 2) == expected, name_of(reader)


@pytest.mark.parametrize("client", EVERY, ids=name_of)
async def test_topics_are_listed(client):
    async with address() as there:
        await in_thread(THEIRS[0].write, there, "one", RECORDS, "none")
        assert await in_thread(client.topics, there) >= {"one"}


@pytest.mark.parametrize("writer", THEIRS, ids=name_of)
async def test_many_records_are_written_and_read_in_order(writer):
    many = [(b"%d" % n, b"v" * 100, [], NOW_MS + n) for n in range(tries(20_000))]
    async with address() as there:
        await in_thread(writer.write, there, "many", many, "lz4")
        for reader in EVERY:
            found = await in_thread(reader.read, there, "many", len(many))
            assert [record[0] for record in found] == [*range(len(many))]
            assert [record[1] for record in found] == [key for key, *_ in many]


async def test_a_transactional_librdkafka_is_told_at_once_that_there_are_no_transactions():
    async with address() as there:
        producer = Producer({"bootstrap.servers": there, "transactional.id": "t"})
        with pytest.raises(KafkaException) as failed:
            await in_thread(producer.init_transactions, WAIT_S)
    assert failed.value.args[0].fatal()
    assert "there are no transactions here" in failed.value.args[0].str()


async def test_clients_of_all_kinds_share_a_group():
    """They come one after the other, each is given partitions; together they read everything."""
    async with address({"num.partitions": "6"}) as there:
        found = [[] for _ in EVERY]
        some = [(b"%d" % n, b"v", [], NOW_MS) for n in range(60)]
        written, is_over = 0, False

        def distinct():
            return {record for its in found for record in its}

        async with trio.open_nursery() as nursery:
            for client, its in zip(EVERY, found, strict=True):
                join = client.read_in_group
                nursery.start_soon(in_thread, join, there, "shared", its, lambda: is_over)
                while not its:
                    await in_thread(THEIRS[0].write, there, "shared", some, "none")
                    written += len(some)
            while len(distinct()) < written:
                await trio.sleep(0.05)
            is_over = True
        for partition in range(6):
            offsets = sorted(offset for number, offset in distinct() if number == partition)
            assert offsets == [*range(len(offsets))]
            assert offsets
        assert len(distinct()) == written
