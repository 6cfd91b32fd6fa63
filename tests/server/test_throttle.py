"""Who is faster than a quota is slowed down, and nobody else; nothing is refused (KIP-13, KIP-219).

Method: a node on real sockets, on a clock that the test moves.
"""

import socket
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from brokers import Client, batch, client_of, new_node, quiet, settings

from hightide import HightideError
from hightide.net.connection import open_connection
from hightide.net.tcp import TcpNetwork
from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide.protocol.wire import encode_request
from hightide_broker.runtime.server import muted
from hightide_broker.runtime.server.throttle import BYTES_BURST_S
from hightide_broker.simulation.disk import SimDisk

LIMIT = 100_000
BURST = int(BYTES_BURST_S * LIMIT)


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


async def in_debt(client):
    """How long the sender of far more than its quota is told that it is not read."""
    assert await sent(client, BURST - LIMIT) == 0
    return await sent(client, 9 * LIMIT)


async def test_who_sends_too_fast_is_told_and_not_read_on(node, mock_clock):
    async with client_of(node) as client, client_called("other", node) as other:
        await client.create()
        await limited(node, k.PRODUCER_BYTE_RATE, client_id="hightide")
        assert await sent(client, BURST - 1000) == 0
        told = await sent(client, 5 * LIMIT)
        assert 4_900 < told < 5_200
        done = trio.Event()

        async def go_on():
            await client.call(m.MetadataRequest())
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            await quiet()
            assert await sent(other, 3 * LIMIT) == 0, "somebody else's"
            for jump, is_done in ((told / 1000 - 0.5, False), (1, True)):
                mock_clock.jump(jump)
                await quiet()
                assert done.is_set() is is_done


async def test_who_reads_too_fast_gets_little_at_a_time_and_is_told(node, mock_clock):
    async with client_of(node) as client:
        await client.create()
        for _ in range(4):
            await sent(client, 2 * LIMIT)
        await limited(node, k.CONSUMER_BYTE_RATE, user=k.DEFAULT)
        part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=50 << 20)
        request = m.FetchRequest(max_wait_ms=0, max_bytes=50 << 20, partitions=[part])
        sizes, told = [], []
        for _ in range(3):
            mock_clock.jump(0.1)  # batches have heads
            answer, (records,) = await client.connection.call(request)
            sizes.append(len(records))
            told.append(answer.throttle_time_ms)
        assert max(sizes) < 3 * LIMIT, "a batch, which is more than a second's"
        assert told[:2] == [0, pytest.approx(0, abs=300)]
        assert told[2] == pytest.approx(2_000, abs=300)


async def test_a_debt_is_its_holders_whichever_connection_it_came_by(node, mock_clock):
    async with client_of(node) as first, client_of(node) as second:
        await first.create()
        await limited(node, k.PRODUCER_BYTE_RATE, user=k.DEFAULT)
        told = await in_debt(first)
        assert 7_500 < told < 8_500
        done = trio.Event()

        async def go_on():
            await sent(second, 1000)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            for jump, is_done in ((0, False), (told / 1000 - 0.5, False), (1, True)):
                mock_clock.jump(jump)
                await quiet()
                assert done.is_set() is is_done


async def test_who_waits_for_a_quota_is_not_idle_and_a_node_that_stops_does_not_wait(mock_clock):
    over = {"connections.max.idle.ms": "2s"}
    async with new_node(SimDisk(), settings(over)) as node, client_of(node) as client:
        await client.create()
        await limited(node, k.PRODUCER_BYTE_RATE, user=k.DEFAULT)
        await in_debt(client)
        for _ in range(3):
            mock_clock.jump(1.5)
            await quiet()
        assert client.connection.is_open


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


async def test_who_leaves_while_a_quota_has_it_wait_is_not_kept(node, mock_clock):
    async with client_of(node) as client, client_of(node) as other:
        await client.create()
        await limited(node, k.PRODUCER_BYTE_RATE, user=k.DEFAULT)
        await sent(other, 1000)
        await sent(client, BURST - LIMIT)
        await sent(other, 9 * LIMIT)
        await quiet()
        assert node.server.connections().total() == 2
        await other.connection.aclose()
        await quiet()
        assert node.server.connections().total() == 1


@pytest.mark.parametrize("acks", [0, -1])
async def test_what_came_is_taken_in_its_turn_though_its_sender_has_left(node, mock_clock, acks):
    async with client_of(node) as client:
        await client.create()
        await limited(node, k.PRODUCER_BYTE_RATE, user=k.DEFAULT)
        told = await in_debt(client)
        part = [m.ProducePartition(topic="t", partition=0, records=0)]
        request = m.ProduceRequest(acks=acks, timeout_ms=1000, partitions=part)
        frame = encode_request(request, request_id=1, client="gone", attachments=[batch(b"x")])
        with socket.create_connection(("127.0.0.1", node.port)) as sender:
            sender.sendall(b"".join(frame))
            sender.shutdown(socket.SHUT_WR)
            for _ in range(0 if acks == 0 else 3):
                await goes_by(told / 2000, mock_clock)
        for _ in range(3):
            await goes_by(told / 2000, mock_clock)
        assert node.replicas.get("t", 0).log.log_end == 3


async def goes_by(seconds, mock_clock):
    await quiet()
    mock_clock.jump(seconds)
    await quiet()


async def test_a_fetch_that_waits_counts_what_it_holds(node, mock_clock, monkeypatch):
    monkeypatch.setattr(muted, "MUTED_BYTES_MAX", 10_000)
    async with client_of(node) as client, client_of(node) as first, client_of(node) as second:
        await client.create()
        for _ in range(4):
            await sent(client, 5 * LIMIT)
        await limited(node, k.CONSUMER_BYTE_RATE, user=k.DEFAULT)
        part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=50 << 20)
        await client.connection.call(m.FetchRequest(max_wait_ms=0, partitions=[part]))
        gone = []

        async def ask(who):
            try:
                await who.connection.call(m.FetchRequest(max_wait_ms=0, partitions=[part] * 500))
            except HightideError:
                gone.append(who)

        async with trio.open_nursery() as nursery:
            for who in (first, second):
                nursery.start_soon(ask, who)
            await quiet()
            assert len(gone) == 1
            nursery.cancel_scope.cancel()


async def test_who_waits_for_a_quota_leaves_room_for_others(node, mock_clock, monkeypatch):
    monkeypatch.setattr(muted, "MUTED_BYTES_MAX", 5 * LIMIT)
    async with AsyncExitStack() as stack:
        first, *others = [await stack.enter_async_context(client_of(node)) for _ in range(6)]
        await first.create()
        await limited(node, k.PRODUCER_BYTE_RATE, client_id="hightide")
        told = await in_debt(first)
        assert told > 0
        gone = []

        async def send(client):
            try:
                await sent(client, 2 * LIMIT)
            except HightideError:
                gone.append(client)

        async with trio.open_nursery() as nursery:
            for client in others:
                nursery.start_soon(send, client)
            await quiet()
            assert len(gone) == 3, "two hold what may be held"
            assert node.server.counts.closed == {("client", "quota"): 3}
            monkeypatch.setattr(muted, "MUTED_BYTES_MAX", LIMIT)  # as if one were larger
            nursery.start_soon(first.call, m.MetadataRequest())
            async with client_called("other", node) as free:
                assert await sent(free, 2 * LIMIT) == 0
            assert first.connection.is_open, "it holds nothing"
            nursery.cancel_scope.cancel()


async def test_who_reads_by_many_connections_gets_what_one_would(node, mock_clock):
    """Nobody is kept waiting for more than 20 s: of those who have waited so long, none gets more
    than the quota has left."""
    minutes, readers = 2, 30
    async with AsyncExitStack() as stack:
        first, *others = [await stack.enter_async_context(client_of(node)) for _ in range(readers)]
        await first.create()
        for _ in range(4):
            await sent(first, 2 * LIMIT)
        await limited(node, k.CONSUMER_BYTE_RATE, user=k.DEFAULT)
        part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=50 << 20)
        request = m.FetchRequest(max_wait_ms=0, partitions=[part])
        sizes, told = [], []

        async def read(client):
            while True:
                answer, records = await client.connection.call(request)
                sizes.append(sum(map(len, records)))
                told.append(answer.partitions[0].high_watermark)

        async with trio.open_nursery() as nursery:
            for client in (first, *others):
                nursery.start_soon(read, client)
            for _ in range(minutes * 60):
                await goes_by(1, mock_clock)
            nursery.cancel_scope.cancel()
    allowed = (minutes * 60 + BYTES_BURST_S) * LIMIT
    assert 0.9 * allowed < sum(sizes) < allowed + 3 * LIMIT, "a batch more, and what goes by"
    assert {*told} == {4}, "and who gets none still hears how far there is something"
