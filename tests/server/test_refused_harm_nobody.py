"""Who may do nothing does nothing to others either: by what it sends, holds back, or waits for.

Method: a node on real sockets that asks for permissions, and a clock that stands still.
"""

from typing import NamedTuple

import pytest
import trio
from brokers import Client, batch, new_node, quiet, settings
from certificates import Authority
from test_doors import inside, outside
from test_gate import produce

from hightide.net.connection import open_connection
from hightide.net.outbox import send_all
from hightide.net.tls import Tls
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import access_messages as a
from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide_broker.runtime.server import connection
from hightide_broker.simulation.disk import SimDisk

LIMIT = 100_000
READ = a.AclRule(resource="topic", name="t", principal="User:alice", operation="READ")
ROOM = 1 << 20
"""Of requests on their way in."""


class World(NamedTuple):
    """A node; `admin` may do everything, `alice` what rules say."""

    node: object
    admin: TlsNetwork
    alice: TlsNetwork

    @property
    def address(self):
        return "127.0.0.1", self.node.port


@pytest.fixture
async def world(tmp_path, mock_clock, monkeypatch):
    monkeypatch.setattr(connection, "RECEIVE_BYTES_MAX", ROOM)
    nodes, clients = Authority(tmp_path / "nodes"), Authority(tmp_path / "clients")
    config = settings(
        {
            **inside(nodes.issue("node-1")),
            **outside(clients.issue("broker"), "required"),
            "authorizer.enable": "true",
            "super.users": "User:admin",
            "socket.request.max.bytes": str(ROOM),
        }
    )
    admin, alice = (TlsNetwork(Tls(clients.issue(name))) for name in ("admin", "alice"))
    async with new_node(SimDisk(), config) as node:
        await node.change(m.CreateTopicsRequest(topics=[m.NewTopic(topic="t", partitions=1)]))
        yield World(node, admin, alice)


async def is_served(connected, size):
    """Whether what somebody produces is taken without waiting."""
    served = trio.Event()

    async def come():
        answer = await Client(connected).call(produce(acks=1), batch(b"x" * size))
        assert answer.partitions[0].error is None
        served.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        await quiet()
        nursery.cancel_scope.cancel()
    return served.is_set()


async def test_what_is_refused_is_no_debt_of_a_client_by_whose_name_somebody_comes(
    world, mock_clock
):
    wish = k.QuotaSetting(key=k.PRODUCER_BYTE_RATE, client_id="etl", value=LIMIT)
    await world.node.change(k.AlterClientQuotasRequest(quotas=[wish]))
    async with (
        open_connection(world.alice, *world.address, client="etl") as stranger,
        open_connection(world.admin, *world.address, client="etl") as own,
    ):
        answer = await Client(stranger).call(produce(), batch(b"x" * 9 * LIMIT))
        assert answer.partitions[0].error is not None
        assert await is_served(own, 1)


async def test_half_a_request_of_who_may_do_nothing_holds_up_no_other(world, mock_clock):
    stream = await world.alice.connect(*world.address)
    await send_all(stream, [ROOM.to_bytes(4, "big") + bytes(ROOM - 1)])
    async with open_connection(world.admin, *world.address) as own:
        was_served = await is_served(own, 2 * LIMIT)
    await stream.aclose()
    assert was_served


async def test_a_fetch_that_waits_brings_nothing_once_its_permission_is_gone(world, mock_clock):
    await world.node.change(a.CreateAclsRequest(acls=[READ]))
    part = m.FetchPartition(topic="t", partition=0, fetch_offset=0)
    found = []
    async with (
        open_connection(world.alice, *world.address) as reader,
        open_connection(world.admin, *world.address) as own,
        trio.open_nursery() as nursery,
    ):

        async def read():
            request = m.FetchRequest(max_wait_ms=60_000, partitions=[part])
            found.append(await Client(reader).call(request))

        nursery.start_soon(read)
        await quiet()
        assert found == []
        await world.node.change(a.DeleteAclsRequest(filters=[a.AclFilter(resource=a.ANY)]))
        assert await is_served(own, 1)
        await quiet()
        nursery.cancel_scope.cancel()
    assert all(part.records < 0 for answer in found for part in answer.partitions)
