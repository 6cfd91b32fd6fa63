"""A secure cluster keeps its rules through a restart of all, and its replicas through a flood.

Method: three processes that `up --secure` started; users and rules made as an administrator makes
them. Who knocks while the nodes come up is let in or turned away by what was decided before, from
the first answer on.
"""

import json
from contextlib import suppress

import pytest
import tries
import trio
from brokers import Client
from commands import hightide
from crowds import Crowd, many_files
from patience import POLL_S, Patience, size_of
from three_nodes import Nodes

from hightide import AuthenticationFailed, BrokerUnreachable, Producer, read_client_config
from hightide.net.connection import open_connection
from hightide.net.login import Login, LoginNetwork
from hightide.net.outbox import send_all
from hightide.net.tcp import TcpNetwork
from hightide.net.tls import Tls, TlsFiles
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol.errors import ApiError, ErrorCode, HightideError
from hightide_broker.runtime.server.login import FAILED

pytestmark = [pytest.mark.live, pytest.mark.slow]

NODES = (1, 2, 3)
NO_DECISIONS = ("producer_ids",)
"""Of what the controllers' log has, what is no business of partitions and brokers."""


@pytest.fixture
def secure(tmp_path):
    made = Nodes(tmp_path / "data", "-n", "3", "--secure")
    try:
        yield Secure(made)
    finally:
        made.end()


class Secure:
    """Three nodes, and how their users come."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.file = nodes.data / "client.toml"
        self.options = read_client_config(self.file)
        self.network = TlsNetwork(Tls(TlsFiles(authorities=self.options["ssl_ca_location"])))
        self.ports = {row["node"]: row["port"] for row in nodes.ps()}

    def run(self, *words, stdin=b""):
        return hightide(*words, config=self.file, stdin=stdin)

    def of(self, user, password):
        """The options of another user."""
        options = {**self.options, "sasl_username": user, "sasl_password": password}
        del options["sasl_password_location"]
        return options

    def set_password(self, what, user, password):
        self.run("users", what, user, "--password-file", "-", stdin=password.encode())

    def partitions(self, topic):
        """Who leads, in which epoch, and who is in sync, of each."""
        (row,) = json.loads(self.run("topics", "describe", topic, "-o", "json").out)
        return [
            (each["leader"], each["leader_epoch"], sorted(each["isr"]))
            for each in row["partitions"]
        ]

    def decided(self):
        """All that was ever decided about partitions and brokers, what came and went included: the
        controllers' log, as the node knows it that knows most."""
        found = []
        for node in NODES:
            directory = self.nodes.data / f"broker-{node}" / "__cluster_metadata-0"
            lines = hightide("log", "dump", directory, "--records", "-J").lines
            records = [each for line in lines for each in json.loads(line).get("records", ())]
            values = [record["value"] for record in records if isinstance(record["value"], dict)]
            found.append([each for each in values if each["type"] not in NO_DECISIONS])
        return max(found, key=len)


# -- all of them stop and start --------------------------------------------------------------------

LET_IN = "let in"
DENIED = "TOPIC_AUTHORIZATION_FAILED"
WHO = {
    "alice": ("alice", "right", LET_IN),
    "alice by another password": ("alice", "wrong", FAILED),
    "bob, who was deleted": ("bob", "right", FAILED),
    "carol by her old password": ("carol", "old", FAILED),
    "carol by her new one": ("carol", "new", LET_IN),
    "who never was": ("mallory", "right", FAILED),
}
MAY_WRITE = {"logs": True, "logs-secret": False, "other": False, "was-allowed": False}
"""What alice may."""


def make_rules(secure):
    for user, password in (("alice", "right"), ("bob", "right"), ("carol", "old")):
        secure.set_password("create", user, password)
    secure.set_password("alter", "carol", "new")
    secure.run("users", "delete", "bob")
    for topic in MAY_WRITE:
        secure.run("topics", "create", topic, "-p", "1", "-r", "3")
    secure.run("acls", "allow", "alice", "write", "topic:logs*")
    secure.run("acls", "deny", "alice", "write", "topic:logs-secret")
    secure.run("acls", "allow", "alice", "write", "topic:was-allowed")
    secure.run("acls", "delete", "--user", "alice", "--resource", "topic:was-allowed", "--yes")


async def first_word(client, topic):
    """How a node first answers who wants to write: it may know nothing yet, and say so."""
    while True:
        try:
            return (await client.produce(b"x", topic=topic, acks=1)).error
        except ApiError as error:
            if error.code != ErrorCode.BROKER_NOT_AVAILABLE:
                return error.code
            await trio.sleep(POLL_S)


class Knocking:
    """Everybody at every node, from before it starts until it has answered."""

    def __init__(self, secure):
        self._secure = secure
        self.let_in = {}
        """{(node, who): the first answer to a login}."""
        self.may_write = {}
        """{(node, topic): the first answer to alice}."""

    async def run(self):
        async with trio.open_nursery() as nursery:
            for node in NODES:
                for who in WHO:
                    nursery.start_soon(self._knock, node, who)

    async def _knock(self, node, who):
        user, password, _ = WHO[who]
        network = LoginNetwork(self._secure.network, Login("SCRAM-SHA-256", user, password))
        log = self._secure.nodes.data / "logs" / f"broker-{node}.log"
        patience = Patience(f"node {node} answers {who}", lambda: size_of(log))
        while (node, who) not in self.let_in:
            patience.check()
            try:
                port = self._secure.ports[node]
                async with open_connection(network, "127.0.0.1", port) as connection:
                    self.let_in[node, who] = LET_IN
                    if who == "alice":
                        await self._write(node, Client(connection))
            except AuthenticationFailed as error:
                self.let_in[node, who] = error.message
            except (OSError, BrokerUnreachable):
                await trio.sleep(POLL_S)

    async def _write(self, node, client):
        for topic in MAY_WRITE:
            self.may_write[node, topic] = await first_word(client, topic)


async def test_rules_are_in_force_for_the_first_who_comes_after_all_nodes_were_stopped(secure):
    make_rules(secure)
    secure.nodes.down()
    knocking = Knocking(secure)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(knocking.run)
        await trio.to_thread.run_sync(secure.nodes.up_again)
    assert knocking.let_in == {(node, who): WHO[who][-1] for node in NODES for who in WHO}
    allowed = {key: error != DENIED for key, error in knocking.may_write.items()}
    assert allowed == {(node, topic): MAY_WRITE[topic] for node in NODES for topic in MAY_WRITE}
    async with Producer(acks="all", **secure.of("alice", "right")) as alice:
        assert (await (await alice.send("logs", b"x"))).topic == "logs"
        with pytest.raises(HightideError, match="may not WRITE topic:'logs-secret'"):
            await (await alice.send("logs-secret", b"x"))


# -- a flood ---------------------------------------------------------------------------------------

FLOOD_S = 24.0 if tries.ALL else 12.0
"""How long it goes on at least: a broker that controllers do not hear is fenced before."""
SILENT = 300
"""At each node, all the while; more than its door holds."""
COME_AND_GO = 60
"""At each node in each round."""
AT_A_TIME = 20
HALF_A_HELLO = bytes.fromhex("16030102000100 01fc0303")


class Flood:
    """Strangers at every client door: those that stay and say nothing, those that come and go."""

    def __init__(self, secure, silent):
        self._secure = secure
        self._silent = silent
        self._pace = trio.CapacityLimiter(AT_A_TIME)
        self.count = 0
        """Rounds."""
        self.is_over = False

    async def run(self):
        until = trio.current_time() + FLOOD_S
        while trio.current_time() < until:
            async with trio.open_nursery() as nursery:
                for port, silent in zip(self._secure.ports.values(), self._silent, strict=True):
                    missing = SILENT - await silent.prune()
                    nursery.start_soon(silent.come, TcpNetwork(), port, missing)
                    for number in range(COME_AND_GO):
                        nursery.start_soon(self._come_and_go, port, number)
            self.count += 1
        self.is_over = True

    async def _come_and_go(self, port, number):
        async with self._pace:
            network = (TcpNetwork(), TcpNetwork(), self._secure.network)[number % 3]
            said = (b"", HALF_A_HELLO, b"\x7f\xff\xff\xff")[number % 3]
            with suppress(OSError, AuthenticationFailed):
                stream = await network.connect("127.0.0.1", port)
                try:
                    await send_all(stream, [said])
                finally:
                    await stream.aclose()


async def test_a_flood_at_the_doors_of_clients_changes_no_isr_and_loses_nothing(secure):
    secure.run("topics", "create", "t", "-p", "3", "-r", "3", "--config", "min.insync.replicas=3")
    acknowledged = []

    async def produce(producer, flood):
        while not flood.is_over:
            value = b"%d" % len(acknowledged)
            await (await producer.send("t", value, partition=len(acknowledged) % 3))
            acknowledged.append(value)

    with many_files():
        async with (
            Producer(acks="all", **secure.options) as producer,
            Crowd() as first,
            Crowd() as second,
            Crowd() as third,
        ):
            await (await producer.send("t", b"first"))
            before = secure.partitions("t"), secure.decided()
            flood = Flood(secure, (first, second, third))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood.run)
                nursery.start_soon(produce, producer, flood)
            assert (secure.partitions("t"), secure.decided()) == before
    assert [isr for _, _, isr in before[0]] == [[*NODES]] * 3
    rows = secure.run("consume", "t", "--from", "start", "-e", "-J").rows
    found = sorted(row["value"] for row in rows)
    assert found == sorted(["first", *(value.decode() for value in acknowledged)])
    print(f"\n{flood.count} rounds of a flood, {len(acknowledged)} records acknowledged", end="")
    assert acknowledged
