"""What becomes of logins is written down, one line each, and nobody's lines hide another's.

Method: nodes in this process and clients of every kind; the lines alone, for what hides what.
"""

import logging
from contextlib import suppress

import pytest
import trio
from brokers import Client, new_node, quiet, settings
from certificates import Authority
from logins import PASSWORD, wish
from patience import PATIENCE_S
from test_doors import client_by, inside, internal_port, outside
from test_login import a_node_with_users, connected

from hightide import AuthenticationFailed
from hightide.net.connection import open_connection
from hightide.net.login import Login, LoginNetwork, said_by
from hightide.net.tcp import TcpNetwork
from hightide.net.tls import Tls
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, BrokerUnreachable
from hightide_broker.runtime.base.call import Peer
from hightide_broker.runtime.base.sparing import LINES_MAX
from hightide_broker.runtime.replication.traffic import TrafficByTopic
from hightide_broker.runtime.server.counts import Counts
from hightide_broker.runtime.server.login import FAILED
from hightide_broker.runtime.server.login_lines import LOGIN_LINES_MAX, LoginLines
from hightide_broker.simulation.disk import SimDisk


@pytest.fixture
def told(caplog):
    """The lines of the audit log so far."""
    caplog.set_level(logging.INFO, "hightide.audit")
    return lambda: [each.getMessage() for each in caplog.records if each.name == "hightide.audit"]


def whose(lines):
    """The same without the port that each came from."""
    return [line.partition(", from 127.0.0.1:")[0] for line in lines]


async def test_logins_are_written_down_whether_they_succeed_or_not(told):
    config = settings({"security.protocol": "SASL_PLAINTEXT", "internal.listen.port": "0"})
    async with new_node(SimDisk(), config) as node:
        await node.change(u.AlterUserScramCredentialsRequest(upsertions=[wish()]))
        for password in (PASSWORD, "no"):
            network = LoginNetwork(TcpNetwork(), Login("SCRAM-SHA-256", "user", password))
            try:
                async with open_connection(network, "127.0.0.1", node.port) as connection:
                    await connection.call(m.MetadataRequest())
            except AuthenticationFailed:
                continue
    assert any("logged in: User:user by SCRAM-SHA-256, from 127.0.0.1:" in line for line in told())
    assert any(line.startswith("turned away: ") and "as 'user'" in line for line in told())
    assert PASSWORD not in "".join(told())


async def test_a_login_that_is_made_again_is_written_down_too(told):
    config = settings({"security.protocol": "SASL_PLAINTEXT", "internal.listen.port": "0"})
    async with new_node(SimDisk(), config) as node:
        await node.change(u.AlterUserScramCredentialsRequest(upsertions=[wish()]))
        right = Login("SCRAM-SHA-256", "user", PASSWORD)
        network = LoginNetwork(TcpNetwork(), right)
        async with open_connection(network, "127.0.0.1", node.port) as connection:

            async def ask(request):
                return (await connection.call(request, timeout_s=PATIENCE_S))[0]

            await said_by(ask, right)
            with pytest.raises(ApiError):
                await said_by(ask, Login("SCRAM-SHA-256", "mallory", PASSWORD))
        assert node.server.counts.logins == {
            ("client", "SCRAM", True): 2,
            ("client", "SCRAM", False): 1,
        }
    assert whose(told())[1:] == [
        "logged in again: User:user",
        f"turned away: {FAILED}, as 'mallory', on a connection of User:user",
    ]


async def test_certificates_are_written_down_as_logins_are(tmp_path, told):
    """Whose they are, and what was agreed about; of who shows none there is nothing to tell."""
    authority = Authority(tmp_path / "authority")
    shown = authority.issue("node-1")
    config = {**inside(shown), **outside(shown), "ssl.client.auth": "requested"}
    async with new_node(SimDisk(), settings(config)) as node:
        by_nodes_door = (authority.issue("node-2"), internal_port(node))
        by_clients = [(files, node.port) for files in (authority.issue("a"), authority.believed)]
        for files, port in (by_nodes_door, *by_clients):
            async with client_by(TlsNetwork(Tls(files)), port) as client:
                await client.call(m.ApiVersionsRequest())
    assert whose(told()) == [
        "logged in: User:node-2 by certificate under TLSv1.3",
        "logged in: User:a by certificate under TLSv1.3",
    ]


async def test_nobody_hides_others_logins_behind_many_of_its_own(told):
    config = settings({"security.protocol": "SASL_PLAINTEXT", "internal.listen.port": "0"})
    async with new_node(SimDisk(), config) as node:

        async def comes(user, password):
            network = LoginNetwork(TcpNetwork(), Login("SCRAM-SHA-256", user, password))
            with suppress(AuthenticationFailed):
                async with open_connection(network, "127.0.0.1", node.port) as connection:
                    await connection.call(m.MetadataRequest())

        users = [wish(user=user) for user in ("mallory", "alice")]
        await node.change(u.AlterUserScramCredentialsRequest(upsertions=users))
        for number in range(LINES_MAX + 1):
            await comes(f"nobody{number}", "no")
            await comes("mallory", "no")
        for _ in range(LOGIN_LINES_MAX + 1):
            await comes("mallory", PASSWORD)
        of_others = len(told())
        await comes("alice", "no")
        await comes("alice", PASSWORD)
    failed, came_in = told()[of_others:]
    assert failed.startswith("turned away: ")
    assert "as 'alice'" in failed
    assert came_in.startswith("logged in: User:alice by SCRAM-SHA-256")


async def test_a_login_that_was_not_made_again_is_written_down_once(tmp_path, mock_clock, told):
    """KIP-368; also where several requests wait for their answers when it is noticed."""
    async with (
        a_node_with_users(tmp_path, {"connections.max.reauth.ms": "60s"}) as served,
        connected(served) as connection,
        trio.open_nursery() as nursery,
    ):
        client = Client(connection)
        await client.create()

        async def waits():
            with pytest.raises(BrokerUnreachable):
                await client.fetch(0, max_wait_ms=70_000)

        for _ in range(3):
            nursery.start_soon(waits)
        await quiet()
        assert sum(served.node.server.waiting().values()) == 3
        mock_clock.jump(80)
        with trio.fail_after(PATIENCE_S):
            while not served.node.server.counts.closed["client", "login"]:
                await quiet()
    over = [line for line in told() if line.startswith("login over")]
    (line,) = over
    whose = "login over: User:admin, it did not log in again (connections.max.reauth.ms), from "
    assert line.startswith(f"{whose}127.0.0.1:")


async def test_strangers_and_routine_hide_nothing_of_who_is_in(told):
    lines, alice = LoginLines(Counts(TrafficByTopic())), Peer("1.2.3.4", "User:alice")
    for number in range(LINES_MAX + 1):
        lines.turned_away("client", "no", "alice", f"stranger:{number}")
        lines.came_again("client", alice, f"routine:{number}")
        lines.over(Peer("1.2.3.5", "User:bob"), "late", f"bob:{number}")
    written = told()
    assert len(written) == 3 * LINES_MAX
    lines.refused_again("client", alice, "no", "mallory\n", "there:1")
    lines.over(alice, "late", "there:2")
    assert told()[len(written) :] == [
        "turned away: no, as 'mallory\\n', on a connection of User:alice, from there:1",
        "login over: User:alice, late, from there:2",
    ]


async def test_so_many_lines_of_a_user_are_written_and_then_their_number(told, mock_clock):
    lines, alice = LoginLines(Counts(TrafficByTopic())), Peer("1.2.3.4", "User:alice")
    for number in range(LINES_MAX + 5):
        lines.over(alice, "late", f"there:{number}")
    assert len(told()) == LINES_MAX
    mock_clock.jump(60)
    lines.over(alice, "late", "there")
    assert told()[LINES_MAX] == "5 lines like the last ones were left out"
