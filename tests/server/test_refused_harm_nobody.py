"""Who may do nothing does nothing to others either: by what it sends, holds back, or waits for.

Method: a node on real sockets that asks for permissions, and a clock that stands still.
"""

from functools import partial
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
from hightide.protocol.errors import ApiError, ErrorCode
from hightide_broker.runtime.server import budget, terms
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
    monkeypatch.setattr(terms, "RECEIVE_BYTES_MAX", ROOM)
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


async def is_served(connected, size, pass_time=lambda: None):
    """Whether what somebody produces is taken without waiting; or, once time passed."""
    served = trio.Event()

    async def come():
        answer = await Client(connected).call(produce(acks=1), batch(b"x" * size))
        assert answer.partitions[0].error is None
        served.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        await quiet()
        pass_time()
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
        assert not await is_served(own, 2 * LIMIT), "it may arrive yet"
    async with open_connection(world.admin, *world.address) as own:
        pass_time = partial(mock_clock.jump, budget.GRACE_S + budget.LOOK_AGAIN_S)
        assert await is_served(own, 2 * LIMIT, pass_time)
    await stream.aclose()


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


async def test_a_right_on_all_topics_is_none_on_what_all_groups_committed(world):
    rule = a.AclRule(resource="topic", name="*", principal="User:alice", operation="ALL")
    await world.node.change(a.CreateAclsRequest(acls=[rule]))
    await world.node.coordinators.find("g")
    topic = "__consumer_offsets"
    change = m.ConfigChange(kind="topic", name=topic, set={"max.message.bytes": "100"})
    asked = [
        m.DeleteTopicsRequest(topics=[topic]),
        m.AlterConfigsRequest(resources=[change]),
    ]
    async with (
        open_connection(world.alice, *world.address) as alice,
        open_connection(world.admin, *world.address) as admin,
    ):
        for request in asked:
            with pytest.raises(ApiError) as refused:
                raise_refusal(await Client(alice).call(request))
            assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        raise_refusal(await Client(admin).call(asked[0]))


def raise_refusal(answer):
    (part,) = getattr(answer, "topics", None) or answer.resources
    if part.error is not None:
        raise ApiError(ErrorCode(part.error), part.message)
