"""Who creates too many partitions is told when to come again, and who connects too often is not let
in (KIP-599, KIP-612).

Method: nodes on real sockets, on a clock that the test moves.
"""

import pytest
import trio
from brokers import client_of, new_node, quiet, settings

from hightide import Admin
from hightide.net.tcp import TcpNetwork
from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide.protocol.errors import ApiError, ErrorCode
from hightide_broker.core.cluster.rates import TOLD_MS_MAX
from hightide_broker.runtime.server.arrivals import KEPT_S_MAX
from hightide_broker.simulation.disk import SimDisk

LATE = ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.fixture
async def node(mock_clock):
    async with new_node(SimDisk(), settings()) as made:
        yield made


async def limited(node, key, value, **holder):
    wish = k.QuotaSetting(key=key, value=value, **holder)
    (result,) = (await node.change(k.AlterClientQuotasRequest(quotas=[wish]))).quotas
    assert result.error is None, result.message


def admin_of(node, **options):
    return Admin(f"127.0.0.1:{node.port}", **options)


async def test_an_administrator_waits_as_told_and_asks_again(node, mock_clock):
    await limited(node, k.CONTROLLER_MUTATION_RATE, 1, client_id="hightide-admin")
    async with admin_of(node) as admin, admin_of(node, client_id="other") as other:
        await admin.create_topic("a", partitions=15)
        done = trio.Event()

        async def create():
            await admin.create_topic("b")
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await quiet()
            await other.create_topic("c", partitions=100)
            for jump, is_done in ((4.5, False), (1, True)):
                mock_clock.jump(jump)
                await quiet()
                assert done.is_set() is is_done


async def test_a_rate_that_is_next_to_none_is_a_wait_without_end_and_no_bug(node):
    await limited(node, k.CONTROLLER_MUTATION_RATE, 5e-324, user=k.DEFAULT)
    async with client_of(node) as client:
        assert (await client.create("a")).error is None
        late = await client.create("b")
        assert (late.error, late.throttle_time_ms) == (LATE, TOLD_MS_MAX)


async def test_who_cannot_wait_so_long_hears_it_at_once(node, mock_clock):
    await limited(node, k.CONTROLLER_MUTATION_RATE, 1, user=k.DEFAULT)
    async with admin_of(node, default_api_timeout_ms=5_000) as admin:
        await admin.create_topic("a", partitions=40)
        for refused in (admin.delete_topic("a"), admin.create_partitions("a", 41)):
            before = trio.current_time()
            with pytest.raises(ApiError, match="ask again in 30") as caught:
                await refused
            assert caught.value.code == LATE
            assert trio.current_time() == before


async def test_a_topic_that_is_made_by_the_way_counts_and_nodes_have_no_quota(mock_clock):
    over = {"auto.create.topics.enable": "true"}
    async with new_node(SimDisk(), settings(over)) as node, client_of(node) as client:
        await limited(node, k.CONTROLLER_MUTATION_RATE, 1, client_id=k.DEFAULT)
        await client.create("a", partitions=11)
        answer = await client.call(m.MetadataRequest(topics=["b"], auto_create=True))
        assert [topic.error for topic in answer.topics] == [LATE]
        await node.change(m.CreateTopicsRequest(topics=[m.NewTopic(topic="own", partitions=50)]))


async def visits(node, count):
    """How many connections of so many, one after the other, are let in."""
    taken = 0
    for _ in range(count):
        stream = await TcpNetwork().connect("127.0.0.1", node.port)
        try:
            await quiet()
            taken += node.server.connections().total()
        finally:
            await stream.aclose()
            await quiet()
    return taken


async def test_an_address_that_comes_too_often_is_turned_away_after_a_while(node, mock_clock):
    await limited(node, k.CONNECTION_CREATION_RATE, 1, ip=k.DEFAULT)
    assert await visits(node, 14) == 11
    mock_clock.jump(2.1)
    assert await visits(node, 5) == 2, "those in vain were not counted"
    stream = await TcpNetwork().connect("127.0.0.1", node.port)
    told = trio.Event()

    async def hear():
        assert await stream.receive_into(memoryview(bytearray(9))) == 0
        told.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear)
        await quiet()
        assert not told.is_set()
        mock_clock.jump(KEPT_S_MAX)
        await quiet()
        assert told.is_set()
        assert node.server.counts.closed["client", "early"] > 0
    await stream.aclose()
    await limited(node, k.CONNECTION_CREATION_RATE, 9, ip="127.0.0.2")
    await limited(node, k.CONNECTION_CREATION_RATE, None, ip=k.DEFAULT)
    assert await visits(node, 5) == 5


async def test_a_node_takes_so_many_connections_a_second_and_the_others_wait(mock_clock):
    over = {"max.connection.creation.rate": "1"}
    async with new_node(SimDisk(), settings(over)) as node:
        streams = [await TcpNetwork().connect("127.0.0.1", node.port) for _ in range(14)]
        try:
            for jump, inside in ((0, 11), (1, 12), (2, 14)):
                mock_clock.jump(jump)
                await quiet()
                assert node.server.connections().total() == inside
        finally:
            for stream in streams:
                await stream.aclose()
