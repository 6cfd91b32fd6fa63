"""Nodes have a door of their own: nobody else acts as one, and none of them as another.

Goal: acceptance of TLS on both listeners, of identities by certificate, of certificates that are
replaced. Method: nodes in this process on simulated disks, real sockets on 127.0.0.1, certificates
of authorities that the test makes.
"""

import logging
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
from brokers import Client, batch, client_of, new_node, one_of_several, settings
from certificates import Authority, replace
from patience import PATIENCE_S
from test_routes import ENVELOPED, rows

from hightide import Admin, AuthenticationFailed, BrokerUnreachable, Consumer, Producer
from hightide.net.connection import open_connection
from hightide.net.ports import SystemClock
from hightide.net.tcp import TcpNetwork, free_ports, listen
from hightide.net.tls import Tls, TlsFiles
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, ErrorCode, Refused, RemoteProtocolError
from hightide_broker.config import ConfigError, make_config
from hightide_broker.core.cluster.image import BrokerState, ClusterImage
from hightide_broker.core.cluster.senders import check_sender
from hightide_broker.core.quorum.leader import METADATA_TOPIC
from hightide_broker.runtime.quorum.peers import NodeAddresses, NotSent, Peers
from hightide_broker.runtime.replication.fetcher import Fetchers
from hightide_broker.runtime.replication.known_brokers import KnownBrokers
from hightide_broker.runtime.server import door
from hightide_broker.simulation.disk import SimDisk

DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.fixture
def nodes(tmp_path):
    """The authority of nodes."""
    return Authority(tmp_path / "nodes")


@pytest.fixture
def clients(tmp_path):
    """The authority of the certificate that clients are shown, and of theirs."""
    return Authority(tmp_path / "clients")


def inside(files, port=0):
    """A listener of nodes under TLS."""
    return {
        "internal.listen.port": str(port),
        "internal.security.protocol": "SSL",
        "internal.ssl.ca.location": files.authorities,
        "internal.ssl.certificate.location": files.certificate,
        "internal.ssl.key.location": files.key,
    }


def outside(files, auth="none"):
    """A listener of clients under TLS."""
    return {
        "security.protocol": "SSL",
        "ssl.client.auth": auth,
        "ssl.ca.location": files.authorities,
        "ssl.certificate.location": files.certificate,
        "ssl.key.location": files.key,
    }


@asynccontextmanager
async def client_by(network, port):
    async with open_connection(network, "127.0.0.1", port) as connection:
        yield Client(connection)


def internal_port(node):
    return node.internal_address[1]


def follower_fetch(node, topic="t"):
    part = m.FetchPartition(topic=topic, partition=0, fetch_offset=0)
    return m.FetchRequest(replica_id=node, max_wait_ms=0, partitions=[part])


BY_NODES = {
    "fetch": follower_fetch,
    "list_offsets": lambda node: m.ListOffsetsRequest(replica_id=node, partitions=[]),
    "vote": lambda node: c.VoteRequest(
        cluster_id="", voter=1, candidate=node, epoch=9, last_epoch=0, log_end=0
    ),
    "begin_quorum_epoch": lambda node: c.BeginQuorumEpochRequest(
        cluster_id="", voter=1, leader=node, epoch=9
    ),
    "end_quorum_epoch": lambda node: c.EndQuorumEpochRequest(
        cluster_id="", voter=1, leader=node, epoch=9
    ),
    "fetch_snapshot": lambda node: c.FetchSnapshotRequest(
        cluster_id="",
        replica_id=node,
        current_leader_epoch=1,
        snapshot=m.EpochEnd(epoch=1, end_offset=1),
        position=0,
    ),
}
"""Requests that only nodes send, by API, from a node of some id."""
OF_NODES = [*BY_NODES.values(), partial(follower_fetch, topic=METADATA_TOPIC)]


def enveloped(request, api):
    body = c.msgspec.Raw(c.msgspec.msgpack.encode(request))
    return c.EnvelopeRequest(api=api, body=body)


IN_ENVELOPES = {
    "broker_heartbeat": lambda node: c.BrokerHeartbeatRequest(
        broker=node, broker_epoch=1, metadata_offset=0
    ),
    "alter_partition": lambda node: c.AlterPartitionRequest(
        broker=node, broker_epoch=1, partitions=[]
    ),
    "allocate_producer_ids": lambda node: c.AllocateProducerIdsRequest(broker=node, broker_epoch=1),
    "register_broker": lambda node: c.RegisterBrokerRequest(
        broker=node, incarnation="i", cluster_id="", host="h", port=1
    ),
}


async def code_of(client, request):
    """How a request is refused; None if it is not."""
    try:
        await client.call(request)
    except ApiError as error:
        return error.code
    return None


def test_every_request_of_nodes_names_its_sender_or_is_an_envelope():
    """Otherwise a node could speak for another in it."""
    assert {row.api.name for row in rows() if not row.is_for_clients} == {*BY_NODES, "envelope"}
    assert {*IN_ENVELOPES} == ENVELOPED
    for each in (*OF_NODES, *IN_ENVELOPES.values()):
        check_sender(each(2), 2)
        with pytest.raises(Refused, match="a node speaks for itself alone"):
            check_sender(each(2), 3)


async def test_by_the_door_of_clients_nobody_is_a_node(nodes):
    """CVE-2018-1288: who fetches as a replica moves the watermark."""
    config = settings(inside(nodes.issue("node-1")))
    async with new_node(SimDisk(), config) as node, client_of(node) as client:
        await client.create()
        assert (await client.produce(b"x")).error is None
        assert await client.values() == [b"x"]
        named = {each.name for each in (await client.call(m.ApiVersionsRequest())).apis}
        assert {"fetch", "list_offsets"} == named & {*BY_NODES, "envelope"}
        for request in (each(2) for each in OF_NODES):
            assert await code_of(client, request) is DENIED, type(request)
        for api, each in IN_ENVELOPES.items():
            async with client_by(TcpNetwork(), node.port) as other:
                with pytest.raises(BrokerUnreachable, match="closed the connection"):
                    await other.call(enveloped(each(1), api))


async def test_a_node_speaks_for_itself_alone(nodes):
    config = settings(inside(nodes.issue("node-1")))
    second = TlsNetwork(Tls(nodes.issue("node-2")))
    async with (
        new_node(SimDisk(), config) as node,
        client_by(second, internal_port(node)) as client,
    ):
        for each in OF_NODES:
            assert await code_of(client, each(3)) is DENIED, each
            assert await code_of(client, each(2)) is not DENIED, each
        for api, each in IN_ENVELOPES.items():
            assert await code_of(client, enveloped(each(3), api)) is DENIED, api
            assert await code_of(client, enveloped(each(2), api)) is not DENIED, api


async def test_a_node_at_another_ones_address_is_not_listened_to(nodes):
    """One authority, one more node, and an address that is wrong, or was redirected."""
    config = settings({**inside(nodes.issue("node-1")), "node.id": "1"})
    async with new_node(SimDisk(), config) as node, trio.open_nursery() as nursery:
        where = ("127.0.0.1", internal_port(node))
        network = TlsNetwork(Tls(nodes.issue("node-2")))
        peers = Peers(network, NodeAddresses({1: where, 3: where}), node=2)
        nursery.start_soon(peers.run)
        await trio.testing.wait_all_tasks_blocked()
        asked = m.ApiVersionsRequest()
        await peers.call(1, asked, timeout_s=PATIENCE_S)
        with pytest.raises(NotSent, match="node-1 answers there, expected node 3"):
            await peers.call(3, asked, timeout_s=PATIENCE_S)

        one, three = (BrokerState(each, 1, "i", *where, "", (), fenced=False) for each in (1, 3))
        known = KnownBrokers()
        known.update(ClusterImage(brokers={1: one, 3: three}))
        fetchers = Fetchers(network, known, None, None, None, broker=2, config=config)
        nursery.start_soon(fetchers.run, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert (await fetchers.connect(1)).common_name == "node-1"
        assert fetchers.connection_now(1) is not None
        assert fetchers.connection_now(3) is None
        with pytest.raises(BrokerUnreachable, match="node-1 answers there, expected broker 3"):
            await fetchers.connect(3)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "name", ["", "client", "node-", "node-01", "node-x", "nodes-1", "node-1 ", "node-" + "9" * 40]
)
async def test_a_certificate_that_is_no_nodes_does_not_come_in(nodes, name, caplog):
    caplog.set_level(logging.INFO)
    config = settings(inside(nodes.issue("node-1")))
    async with new_node(SimDisk(), config) as node:
        network = TlsNetwork(Tls(nodes.issue(name)))
        async with open_connection(network, "127.0.0.1", internal_port(node)) as connection:
            with pytest.raises(RemoteProtocolError, match="only nodes come in here"):
                await connection.call(m.ApiVersionsRequest(), timeout_s=PATIENCE_S)
    assert "only nodes come in here" in caplog.text


async def test_a_certificate_of_another_authority_does_not_come_in(nodes, clients):
    config = settings(inside(nodes.issue("node-1")))
    stranger = clients.issue("node-2")
    network = TlsNetwork(Tls(TlsFiles(nodes.file, stranger.certificate, stranger.key)))
    async with (
        new_node(SimDisk(), config) as node,
        open_connection(network, "127.0.0.1", internal_port(node)) as connection,
    ):
        with pytest.raises(AuthenticationFailed, match="turned this side away: unknown ca"):
            await connection.call(m.ApiVersionsRequest(), timeout_s=PATIENCE_S)


async def test_a_client_under_tls_does_all_that_clients_do(nodes, clients):
    """Produce, read, look: by names, by the certificate that it shows."""
    config = settings(
        {**inside(nodes.issue("node-1")), **outside(clients.issue("broker"), "required")}
    )
    mine = clients.issue("alice")
    options = {
        "security_protocol": "SSL",
        "ssl_ca_location": mine.authorities,
        "ssl_certificate_location": mine.certificate,
        "ssl_key_location": mine.key,
    }
    async with new_node(SimDisk(), config, SystemClock()) as node:
        address = f"127.0.0.1:{node.port}"
        async with Admin(address, **options) as admin:
            await admin.create_topic("t")
        async with Producer(address, **options) as producer:
            await (await producer.send("t", b"x" * 500_000))
            await (await producer.send("t", b"y"))
        reading = {"topics": ["t"], "auto_offset_reset": "earliest", **options}
        async with Consumer(address, **reading) as consumer:
            found = [len((await anext(consumer)).value) for _ in range(2)]
        assert found == [500_000, 1]


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("", "User:alice"),
        ("RULE:^CN=(.*?),.*$/$1/U,DEFAULT", "User:ALICE"),
        ("RULE:^CN=bob.*$/bob/", None),
    ],
)
async def test_rules_say_who_a_certificate_is_of_and_nobody_comes_in_by_none(
    nodes, clients, rules, principal
):
    over = {"ssl.principal.mapping.rules": rules}
    shown = {**inside(nodes.issue("node-1")), **outside(clients.issue("broker"), "required")}
    doors = door.doors_of(settings({**shown, **over}))
    network, listener = TlsNetwork(Tls(clients.issue("alice"))), await listen("127.0.0.1", 0)
    found = []

    async def admit():
        try:
            stream, peer = await doors.all[0].admit(await listener.accept())
            found.append(peer.principal)
            await stream.aclose()
        except AuthenticationFailed as error:
            found.append(None if "ssl.principal.mapping.rules" in error.message else error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(admit)
        stream = await network.connect("127.0.0.1", listener.port)
    await stream.aclose()
    await listener.aclose()
    assert found == [principal]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "the peer seems to speak TLS"),
        ({"security_protocol": "SSL"}, "its certificate is not believed"),
        ({"security_protocol": "SSL", "ssl_ca_location": "theirs"}, "certificate required"),
    ],
)
async def test_a_client_that_is_turned_away_hears_why_at_once(nodes, clients, options, said):
    files = clients.issue("broker")
    if "ssl_ca_location" in options:
        options = {**options, "ssl_ca_location": clients.file}
    config = settings({**inside(nodes.issue("node-1")), **outside(files, "required")})
    async with (
        new_node(SimDisk(), config) as node,
        Admin(f"127.0.0.1:{node.port}", **options) as admin,
    ):
        with pytest.raises((AuthenticationFailed, RemoteProtocolError), match=said):
            await admin.list_topics()


async def test_a_client_that_speaks_tls_to_a_plain_port_hears_that_it_is_plain():
    async with (
        new_node(SimDisk()) as node,
        Admin(f"127.0.0.1:{node.port}", security_protocol="SSL") as admin,
    ):
        with pytest.raises(AuthenticationFailed, match="does not speak TLS there"):
            await admin.list_topics()


# -- certificates that are replaced ----------------------------------------------------------------


async def test_new_certificates_are_shown_to_new_connections_and_useless_ones_to_nobody(
    nodes, clients, tmp_path, caplog
):
    """Who is in stays in; a key that does not fit changes nothing; the next good one is taken."""
    shown = clients.issue("first")
    config = settings({**inside(nodes.issue("node-1")), **outside(shown)})
    doors = door.doors_of(config)
    network = TlsNetwork(Tls(clients.believed))

    async def name():
        arrived = await network.connect("127.0.0.1", listener.port)
        try:
            return arrived.common_name
        finally:
            await arrived.aclose()

    async def serve():
        while True:
            stream, _ = await doors.all[0].admit(await listener.accept())
            await stream.aclose()

    listener = await listen("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with trio.fail_after(PATIENCE_S):
            assert await name() == "first"
            replace(shown.key, (tmp_path / "clients" / "ca.pem").read_bytes())
            doors.renew()
            assert "of no use" in caplog.text
            assert await name() == "first"
            clients.issue("second", at=shown)
            doors.renew()
            assert await name() == "second"
        nursery.cancel_scope.cancel()
    await listener.aclose()


async def test_an_authority_that_was_removed_is_not_believed_any_more(nodes, clients, tmp_path):
    files = clients.issue("broker")
    believed = tmp_path / "believed.pem"
    believed.write_bytes((tmp_path / "clients" / "ca.pem").read_bytes())
    shown = TlsFiles(str(believed), files.certificate, files.key)
    doors = door.doors_of(settings({**inside(nodes.issue("node-1")), **outside(shown, "required")}))
    network = TlsNetwork(Tls(clients.issue("alice")))
    listener = await listen("127.0.0.1", 0)

    async def call():
        stream = await network.connect("127.0.0.1", listener.port)
        await stream.aclose()

    async def ask():
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                stream, peer = await doors.all[0].admit(await listener.accept())
            await stream.aclose()
            return peer.principal

    assert await ask() == "User:alice"
    replace(believed, (tmp_path / "nodes" / "ca.pem").read_bytes())
    doors.renew()
    with pytest.raises(BaseExceptionGroup) as failed:
        await ask()
    assert failed.group_contains(AuthenticationFailed)
    await listener.aclose()


def test_a_certificate_that_has_expired_is_taken_by_no_door(nodes, clients):
    """Neither at the start, nor in place of one that is still good."""
    for config in (
        {**inside(nodes.issue("node-1")), **outside(clients.issue("broker", expired=True))},
        inside(nodes.issue("node-1", expired=True)),
    ):
        with pytest.raises(ConfigError, match="certificate has expired"):
            door.doors_of(settings(config))
    shown = clients.issue("broker")
    found = door.doors_of(settings({**inside(nodes.issue("node-1")), **outside(shown)}))
    before = found._certificates[0].context
    clients.issue("broker", expired=True, at=shown)
    found.renew()
    assert found._certificates[0].context is before


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"internal.listen.port": "-1"}, "internal.listen.port is -1, expected a port of their"),
        ({"internal.ssl.ca.location": ""}, "internal.ssl.ca.location is empty"),
        ({"internal.ssl.key.location": "{other}"}, "is no certificate with its key"),
        ({"internal.ssl.certificate.location": "/none"}, "/none"),
        ({"node.id": "2"}, "is of 'node-1', expected node-2"),
        ({"security.protocol": "SSL"}, "ssl.certificate.location is empty"),
        ({"security.protocol": "SSL", "ssl.client.auth": "required"}, "is empty"),
    ],
)
def test_a_node_whose_settings_cannot_be_does_not_start(nodes, over, said):
    other = nodes.issue().key
    filled = {name: value.format(other=other) for name, value in over.items()}
    config = make_config({**inside(nodes.issue("node-1")), **filled})
    with pytest.raises(ConfigError) as refused:
        door.doors_of(config)
    assert said in str(refused.value)


# -- a cluster -------------------------------------------------------------------------------------


@asynccontextmanager
async def three(nodes, clients):
    """Three nodes, every door under TLS."""
    ports = dict(enumerate(free_ports(3), 1))
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
    async with AsyncExitStack() as stack:
        running = {}
        for node, port in ports.items():
            facts = {
                "node.id": str(node),
                "cluster.id": "tls",
                "controller.quorum.voters": voters,
                "shutdown.timeout.ms": "100",
                **inside(nodes.issue(f"node-{node}"), port),
                **outside(clients.issue("broker")),
            }
            running[node] = await stack.enter_async_context(one_of_several(node, facts))
        for node in running.values():
            await node.serving.wait()
        yield running


async def test_three_nodes_replicate_under_tls_and_tell_clients_the_clients_doors(nodes, clients):
    options = {"security_protocol": "SSL", "ssl_ca_location": clients.file}
    with trio.fail_after(PATIENCE_S):
        async with three(nodes, clients) as running:
            address = f"127.0.0.1:{running[1].port}"
            async with Admin(address, **options) as admin:
                await admin.create_topic("t", partitions=3, replication_factor=3)
                found = (await admin.describe_cluster()).brokers
                told = {broker.id: broker.port for broker in found}
                assert told == {node: each.port for node, each in running.items()}
            async with Producer(address, acks="all", **options) as producer:
                sent = [await producer.send("t", b"%d" % n, partition=n % 3) for n in range(30)]
                assert sorted([(await each).offset for each in sent]) == sorted([*range(10)] * 3)
            for each in running.values():
                assert all(each.replicas.get("t", p).log.log_end == 10 for p in range(3))


async def test_a_silent_peer_at_the_door_is_closed_and_holds_up_nobody(nodes, clients, monkeypatch):
    monkeypatch.setattr(door, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr("hightide_broker.runtime.server.listener.HANDSHAKE_S", 0.2)
    config = settings({**inside(nodes.issue("node-1")), **outside(clients.issue("broker"))})
    async with new_node(SimDisk(), config) as node:
        silent = [await TcpNetwork().connect("127.0.0.1", node.port) for _ in range(100)]
        async with client_by(TlsNetwork(Tls(clients.believed)), node.port) as client:
            await client.create()
            assert (await client.send(batch(b"x"))).error is None
        with trio.fail_after(PATIENCE_S):
            for each in silent:
                assert await each.receive_into(memoryview(bytearray(1))) == 0
                await each.aclose()
