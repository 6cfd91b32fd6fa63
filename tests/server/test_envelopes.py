"""What a node passes on to the active controller is judged there, as its sender's; and envelopes
are for nodes, one request in each.

Goal: acceptance of forwarded requests. Method: a controller that is no broker and a broker that is
no controller, every door under TLS, users by certificate, requests on the wire. The broker's own
settings let `alice` and `bob` do everything, the controller's do not: what they are refused is
refused by the controller.
"""

import logging
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest
from brokers import one_of_several
from certificates import Authority
from patience import wait_until_true
from test_doors import BY_NODES, client_by, enveloped, inside, internal_port, outside
from test_gate import CLUSTER, SAMPLES, TOPIC, rules

from hightide import Admin, BrokerUnreachable
from hightide.net.tcp import free_ports
from hightide.net.tls import Tls
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST
from hightide.protocol.errors import ApiError, ErrorCode

PASSED_ON = {
    "add_voter",
    "alter_client_quotas",
    "alter_configs",
    "alter_user_scram_credentials",
    "create_acls",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_topics",
    "describe_quorum",
    "elect_leaders",
    "remove_voter",
}
"""By brokers, to the active controller."""
ROLES = {1: "controller", 2: "broker"}


def new_topic(name):
    return m.CreateTopicsRequest(topics=[m.NewTopic(topic=name)])


def api_of(request):
    return API_BY_REQUEST[type(request)].name


class Pair:
    """A controller and a broker."""

    def __init__(self, nodes, clients, running):
        self._nodes, self._clients = nodes, clients
        self.controller, self.broker = running[1], running[2]

    def user(self, name, node=None):
        """By the clients' door of a node, the broker's if no other is named."""
        network = TlsNetwork(Tls(self._clients.issue(name)))
        return client_by(network, (node or self.broker).port)

    def node(self, number):
        """One that comes to the controller by the nodes' door."""
        network = TlsNetwork(Tls(self._nodes.issue(f"node-{number}")))
        return client_by(network, internal_port(self.controller))

    async def allow(self, *made):
        """Rules that the admin makes, and both nodes know."""
        mine = self._clients.issue("admin")
        options = {
            "security_protocol": "SSL",
            "ssl_ca_location": mine.authorities,
            "ssl_certificate_location": mine.certificate,
            "ssl_key_location": mine.key,
        }
        async with Admin(f"127.0.0.1:{self.broker.port}", **options) as admin:
            await admin.create_acls(made)


@asynccontextmanager
async def pair(tmp_path, **over):
    nodes, clients = Authority(tmp_path / "nodes"), Authority(tmp_path / "clients")
    ports = dict(zip(ROLES, free_ports(2), strict=True))
    async with AsyncExitStack() as stack:
        running = {}
        for node, roles in ROLES.items():
            facts = {
                "node.id": str(node),
                "process.roles": roles,
                "cluster.id": "pair",
                "controller.quorum.voters": f"1@127.0.0.1:{ports[1]}",
                "shutdown.timeout.ms": "100",
                "authorizer.enable": "true",
                "super.users": "User:admin" + ("; User:alice; User:bob" if node == 2 else ""),
                **inside(nodes.issue(f"node-{node}"), ports[node]),
                **outside(clients.issue("broker"), "required"),
                **over,
            }
            running[node] = await stack.enter_async_context(one_of_several(node, facts))
        for node in running.values():
            await node.serving.wait()
        yield Pair(nodes, clients, running)


async def refusal(client, request):
    """The code that a request is refused with, whole or in its parts; None if it is not."""
    try:
        answer = await client.call(request)
    except ApiError as error:
        return error.code
    parts = next(getattr(answer, each) for each in ("topics", "resources") if hasattr(answer, each))
    return parts[0].error


async def topics_of(node):
    """Those that it knows, once it knows of any."""
    await wait_until_true(lambda: node.image.topics, "a topic")
    return {*node.image.topics}


async def test_a_user_is_judged_as_himself_by_the_controller_that_his_broker_asks(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with pair(tmp_path) as nodes, nodes.user("alice") as alice, nodes.user("bob") as bob:
        await nodes.allow(*rules("CREATE topic:his", user="bob"))
        caplog.clear()
        with pytest.raises(ApiError, match="User:alice may not CREATE topic:'hers'") as refused:
            await alice.call(new_topic("hers"))
        assert refused.value.code is TOPIC
        assert await refusal(bob, new_topic("hers")) is TOPIC
        assert await refusal(bob, new_topic("his")) is None
        for node in (nodes.controller, nodes.broker):
            assert await topics_of(node) == {"his"}
    told = [each.getMessage() for each in caplog.records if each.name == "hightide.audit"]
    assert [each for each in told if each.startswith("denied")] == [
        f"denied: User:{name} may not CREATE topic:'hers' (create_topics: no rule allows it), "
        "from 127.0.0.1"
        for name in ("alice", "bob")
    ]
    assert not [each for each in told if "node-" in each]
    made = [each for each in caplog.messages if each.startswith("topic his is created")]
    assert [each.endswith(", for User:bob") for each in made] == [True]


async def test_all_that_is_passed_on_is_judged_where_it_is_decided(tmp_path):
    """Whatever the broker thinks of its sender."""
    passed_on = [each for each in SAMPLES if api_of(each.request) in PASSED_ON]
    assert {api_of(each.request) for each in passed_on} == PASSED_ON
    async with pair(tmp_path) as nodes, nodes.user("alice") as alice:
        for request, code, _ in passed_on:
            assert await refusal(alice, request) is code, request


async def test_a_topic_that_is_made_by_asking_is_made_by_who_asked(tmp_path):
    over = {"auto.create.topics.enable": "true"}
    async with pair(tmp_path, **over) as nodes, nodes.user("alice") as alice:
        asked = m.MetadataRequest(topics=["new"], auto_create=True)
        assert await refusal(alice, asked) is TOPIC
        assert not nodes.controller.image.topics
        await nodes.allow(*rules("CREATE topic:new"))
        assert await refusal(alice, asked) is None
        assert await topics_of(nodes.controller) == {"new"}


async def test_who_is_no_node_and_sends_an_envelope_is_cut_off_whoever_it_is(tmp_path, caplog):
    """Not even a super user says whose request it is. KIP-590: there is no answer."""
    caplog.set_level(logging.INFO)
    async with pair(tmp_path) as nodes:
        for name in ("alice", "admin"):
            for node in (nodes.controller, nodes.broker):
                for principal in ("", "User:admin"):
                    envelope = enveloped(new_topic("t"), "create_topics")
                    envelope = msgspec.structs.replace(envelope, principal=principal)
                    async with nodes.user(name, node) as client:
                        for request in (envelope, m.DescribeClusterRequest()):
                            with pytest.raises(BrokerUnreachable, match="closed the connection"):
                                await client.call(request)
        assert not nodes.controller.image.topics
    said = [each for each in caplog.records if "EnvelopeRequest is for nodes" in each.getMessage()]
    assert {each.name for each in said} == {"hightide.audit", "hightide.server"}


async def test_there_is_no_envelope_in_an_envelope(tmp_path):
    once = enveloped(new_topic("t"), "create_topics")
    async with pair(tmp_path) as nodes, nodes.node(2) as node:
        for principal, code in (
            ("", ErrorCode.INVALID_REQUEST),
            ("User:admin", ErrorCode.INVALID_REQUEST),
            ("User:alice", CLUSTER),
        ):
            inner = msgspec.structs.replace(once, principal="User:admin")
            for _ in range(3):
                inner = msgspec.structs.replace(enveloped(inner, "envelope"), principal=principal)
                assert await refusal(node, inner) is code, principal
        assert not nodes.controller.image.topics
        assert (await node.call(once)).metadata_offset > 0, "one that is as it should be"
        assert await topics_of(nodes.controller) == {"t"}


async def test_what_a_node_passes_on_and_nobody_can_read_ends_no_connection(tmp_path):
    """Others' requests are on it. A Kafka client's list of no replicas was passed on so."""
    more = {"topic": "t", "count": 2, "assignment": [[]]}
    body = msgspec.Raw(msgspec.msgpack.encode({"topics": [more]}))
    wrong = c.EnvelopeRequest(api="create_partitions", body=body, principal="User:admin")
    async with pair(tmp_path) as nodes, nodes.node(2) as node:
        assert await refusal(node, wrong) is ErrorCode.INVALID_REQUEST
        assert (await node.call(enveloped(new_topic("t"), "create_topics"))).metadata_offset > 0


async def test_an_envelope_carries_nothing_but_what_a_controller_decides(tmp_path):
    others = [each.request for each in SAMPLES if api_of(each.request) not in PASSED_ON]
    others += [each(2) for each in BY_NODES.values()]
    refused = (ErrorCode.INVALID_REQUEST, CLUSTER)  # the second: one that names no node
    async with pair(tmp_path) as nodes, nodes.node(2) as node:
        for request in others:
            envelope = enveloped(request, api_of(request))
            for principal in ("", "User:admin"):
                asked = msgspec.structs.replace(envelope, principal=principal)
                assert await refusal(node, asked) in refused, request
