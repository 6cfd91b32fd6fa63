"""Before a node may vote, it has to answer where it is to be recorded.

Goal: a voter that nobody reaches counts in every majority, and may be elected. Method: a leader and
a controller that observes, nodes under TLS, users by certificate, every wrong address there is.
"""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from brokers import Client, one_of_several
from certificates import Authority
from patience import Patience, wait_until_true
from test_doors import client_by, inside, outside

from hightide.net.tcp import free_ports
from hightide.net.tls import Tls
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ApiError, ErrorCode


class Two:
    """The leader and a controller that has no vote yet, with clients of the leader."""

    def __init__(self, leader, newcomer, admin: Client, stranger: Client):
        self.leader, self.newcomer, self.admin, self.stranger = leader, newcomer, admin, stranger

    def voters(self):
        return self.leader.quorum.core.membership.voters

    async def add(self, port, client=None):
        """As often as it takes until the leader has heard that it keeps up."""
        request = q.AddVoterRequest(id=2, host="127.0.0.1", port=port)
        patience = Patience("the newcomer keeps up")
        while True:
            try:
                return await (client or self.admin).call(request)
            except ApiError as error:
                if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                    raise
            patience.check()
            await trio.sleep(0.05)

    async def refused(self, port, client=None):
        with pytest.raises(ApiError) as caught:
            await self.add(port, client)
        assert self.voters() == (1,)
        return caught.value


@asynccontextmanager
async def two(tmp_path):
    nodes, clients = Authority(tmp_path / "nodes"), Authority(tmp_path / "clients")
    ports = dict(zip((1, 2), free_ports(2), strict=True))

    def facts(node):
        return {
            "node.id": str(node),
            "process.roles": "broker,controller" if node == 1 else "controller",
            "cluster.id": "two",
            "controller.quorum.voters": ",".join(
                f"{each}@127.0.0.1:{ports[each]}" for each in range(1, node + 1)
            ),
            "shutdown.timeout.ms": "100",
            "authorizer.enable": "true",
            "super.users": "User:admin",
            **inside(nodes.issue(f"node-{node}"), ports[node]),
            **outside(clients.issue("broker"), "required"),
        }

    def network(user):
        return TlsNetwork(Tls(clients.issue(user)))

    async with one_of_several(1, facts(1)) as leader:
        await leader.serving.wait()
        async with (
            one_of_several(2, facts(2), joining=True) as newcomer,
            client_by(network("admin"), leader.port) as admin,
            client_by(network("eve"), leader.port) as stranger,
        ):
            core = leader.quorum.core
            await wait_until_true(lambda: core.membership.is_recorded, "a record of the voters")
            await wait_until_true(lambda: newcomer.quorum.is_current(core.high_watermark), "it")
            yield Two(leader, newcomer, admin, stranger)


async def test_a_voter_is_recorded_only_where_it_answers_other_nodes(tmp_path):
    async with two(tmp_path) as pair:
        for port, why in (
            (pair.newcomer.port, "its door for clients"),
            (free_ports(1)[0], "nobody listens"),
            (pair.leader.internal_address[1], "another node"),
        ):
            no = await pair.refused(port)
            assert no.code is ErrorCode.INVALID_REQUEST, why
            assert f"node 2 does not answer other nodes at 127.0.0.1:{port} (" in str(no), why
        assert "node-1 answers there, expected node 2" in str(no)

        port = pair.newcomer.internal_address[1]
        added = await pair.add(port)
        assert added.directory == pair.newcomer.quorum.core.config.directory
        assert pair.voters() == (1, 2)
        assert pair.leader.quorum.core.membership.addresses[2] == ("127.0.0.1", port)


async def test_who_may_not_add_voters_has_no_node_call_anybody(tmp_path):
    calls = 0

    async def count(stream):
        nonlocal calls
        calls += 1
        await stream.aclose()

    async with two(tmp_path) as pair, trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, count, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        no = await pair.refused(port, pair.stranger)
        assert no.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert calls == 0
        await pair.refused(port)
        assert calls > 0, "who may has it try"
        nursery.cancel_scope.cancel()
