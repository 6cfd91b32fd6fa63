"""Who is faster than a quota is slowed down, and nobody else; nothing is refused (KIP-13, KIP-219).

Method: a node on real sockets, on a clock that the test moves.
"""

from contextlib import asynccontextmanager

import pytest
import trio
from brokers import Client, batch, client_of, new_node, quiet, settings

from hightide.net.connection import open_connection
from hightide.net.tcp import TcpNetwork
from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide_broker.simulation.disk import SimDisk

LIMIT = 100_000


@pytest.fixture
async def node(mock_clock):
    async with new_node(SimDisk(), settings()) as made:
        yield made


async def limited(node, key, **holder):
    wish = k.QuotaSetting(key=key, value=LIMIT, **holder)
    await node.change(k.AlterClientQuotasRequest(quotas=[wish]))


@asynccontextmanager
async def client_called(name, node):
    async with open_connection(TcpNetwork(), "127.0.0.1", node.port, client=name) as connection:
        yield Client(connection)


async def sent(client, size):
    """How long the sender is told that it is not read."""
    part = [m.ProducePartition(topic="t", partition=0, records=0)]
    request = m.ProduceRequest(acks=-1, timeout_ms=1000, partitions=part)
    answer = await client.call(request, batch(b"x" * size))
    assert answer.partitions[0].error is None
    return answer.throttle_time_ms


async def test_who_sends_too_fast_is_told_and_not_read_on(node, mock_clock):
    async with client_of(node) as client, client_called("other", node) as other:
        await client.create()
        await limited(node, k.PRODUCER_BYTE_RATE, client_id="hightide")
        assert await sent(client, 10 * LIMIT - 1000) == 0
        told = await sent(client, 5 * LIMIT)
        assert 4_900 < told < 5_200
        done = trio.Event()

        async def go_on():
            await client.call(m.MetadataRequest())
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            await quiet()
            assert await sent(other, 9 * LIMIT) == 0, "somebody else's"
            for jump, is_done in ((told / 1000 - 0.5, False), (1, True)):
                mock_clock.jump(jump)
                await quiet()
                assert done.is_set() is is_done


async def test_who_reads_too_fast_is_told_and_still_gets_what_it_asked_for(node, mock_clock):
    async with client_of(node) as client:
        await client.create()
        for _ in range(4):
            await sent(client, 5 * LIMIT)
        await limited(node, k.CONSUMER_BYTE_RATE, user=k.DEFAULT)
        part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=50 << 20)
        request = m.FetchRequest(max_wait_ms=0, max_bytes=50 << 20, partitions=[part])
        answer, (records,) = await client.connection.call(request)
        assert len(records) > 20 * LIMIT
        assert 9_900 < answer.throttle_time_ms < 10_300


async def test_replication_is_never_slowed_down(node):
    async with client_of(node) as client:
        await client.create()
        for _ in range(4):
            await sent(client, 5 * LIMIT)
        await limited(node, k.CONSUMER_BYTE_RATE, user=k.DEFAULT)
        part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=50 << 20)
        request = m.FetchRequest(replica_id=1, max_wait_ms=0, max_bytes=50 << 20, partitions=[part])
        body, _ = await client.connection.call(request)
        assert body.throttle_time_ms == 0
