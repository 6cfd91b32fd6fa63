"""What keeps strangers out though something looks closed already: sessions that are taken up again,
settings that are half there, certificates that were replaced, logins that come too early.

Method: doors and nodes in this process, real sockets, certificates that the test makes.
"""

import logging
import ssl
from contextlib import suppress

import pytest
import trio
from brokers import client_of, new_node, quiet, settings
from certificates import Authority
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from logins import PASSWORD, wish
from patience import PATIENCE_S
from streams import memory_streams
from test_doors import client_by, inside, internal_port, outside

from hightide import Admin, AuthenticationFailed
from hightide.net.connection import open_connection
from hightide.net.login import Login, LoginNetwork, said_by
from hightide.net.tcp import TcpNetwork, listen
from hightide.net.tls import (
    ClientContext,
    Tls,
    TlsFiles,
    check_resumed,
    client_context,
    server_context,
)
from hightide.net.tls_stream import TlsNetwork, secured
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ApiError, ErrorCode, Refused, UsageError
from hightide_broker.config import ConfigError, check_listeners
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.senders import check_sender
from hightide_broker.runtime.base.sparing import LINES_MAX
from hightide_broker.runtime.server.door import doors_of
from hightide_broker.runtime.server.guesses import Guesses
from hightide_broker.runtime.server.listener import LOGIN_LINES_MAX
from hightide_broker.runtime.server.login import FAILED, NOT_YET, Logins, Session
from hightide_broker.runtime.server.native import NativeTongue
from hightide_broker.runtime.server.tongue import Tongues
from hightide_broker.simulation.disk import SimDisk


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


def encrypted(files, password):
    """The same files, the key under a password."""
    with open(files.key, "rb") as file:
        key = load_pem_private_key(file.read(), None)
    kind = BestAvailableEncryption(password.encode())
    with open(files.key, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, kind))


async def test_a_session_outlives_no_certificate(authority, monkeypatch):
    context = server_context(authority.issue("broker"), asks=ssl.CERT_REQUIRED)
    mine = client_context(authority.issue("alice"), check_host=False)
    mine.maximum_version = ssl.TLSVersion.TLSv1_2
    session = None

    def visit():
        nonlocal session
        near, far = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = mine.wrap_bio(near, far, session=session)
        server = context.wrap_bio(far, near, server_side=True)
        for _ in range(4):
            for end in (client, server):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        session = client.session
        return server

    first, again = visit(), visit()
    assert (first.session_reused, again.session_reused) == (False, True)
    check_resumed(again)
    monkeypatch.setattr("hightide.net.tls.time.time", lambda: 1e12)
    with pytest.raises(AuthenticationFailed, match="has expired"):
        check_resumed(again)
    check_resumed(first)  # OpenSSL looked at it itself


@pytest.mark.parametrize(
    "over",
    [
        {"ssl.client.auth": "required"},
        {"ssl.certificate.location": "a.pem"},
        {"ssl.key.location": "a.pem"},
        {"ssl.ca.location": "a.pem"},
        {"ssl.principal.mapping.rules": "DEFAULT"},
        {"internal.ssl.ca.location": "a.pem"},
        {"internal.ssl.certificate.location": "a.pem"},
        {"super.users": "User:admin"},
        {"connections.max.reauth.ms": "1m"},
        {
            "security.protocol": "SASL_PLAINTEXT",
            "internal.listen.port": "0",
            "ssl.client.auth": "required",
        },
    ],
)
def test_what_would_protect_nothing_as_it_is_set_is_refused(over):
    with pytest.raises(ConfigError, match="is set and without effect, expected"):
        check_listeners(settings(over))


def test_a_door_whose_files_are_not_there_does_not_open(tmp_path):
    over = {
        "internal.listen.port": "0",
        "security.protocol": "SSL",
        "ssl.certificate.location": str(tmp_path / "none.pem"),
    }
    with pytest.raises(ConfigError, match="is no certificate with its key"):
        doors_of(settings(over))


@pytest.mark.parametrize("shown", [ValueError("names that are no text"), {"notAfter": "never"}])
def test_a_certificate_that_cannot_be_read_ends_its_session_alone(shown):
    class End:
        session_reused = True

        def getpeercert(self):
            if isinstance(shown, Exception):
                raise shown
            return shown

    with pytest.raises(AuthenticationFailed, match="cannot be read"):
        check_resumed(End())


def test_an_encrypted_key_needs_its_password(authority, tmp_path):
    files = authority.issue("broker")
    encrypted(files, "secret")
    where = tmp_path / "password"
    where.write_text("secret\n")
    facts = (files.authorities, files.certificate, files.key)
    for good in ({"password": "secret"}, {"password_location": str(where)}):
        server_context(TlsFiles(*facts, **good), asks=ssl.CERT_REQUIRED)
        assert "secret" not in repr(TlsFiles(*facts, **good))
    for bad, why in (
        ({}, "the key is encrypted, expected ssl.key.password.location"),
        ({"password": "another"}, "is no certificate with its key"),
        ({"password": "x" * 5000}, "is no certificate with its key"),
        ({"password_location": str(tmp_path / "none")}, "cannot be read"),
    ):
        with pytest.raises(UsageError, match=why):
            client_context(TlsFiles(*facts, **bad))


async def test_a_node_and_a_client_take_keys_with_passwords(authority, tmp_path):
    inside, shown, mine = (authority.issue(name) for name in ("node-1", "broker", "alice"))
    where = tmp_path / "password"
    where.write_text("secret")
    for files in (inside, shown, mine):
        encrypted(files, "secret")
    config = {
        "internal.listen.port": "0",
        "internal.security.protocol": "SSL",
        "internal.ssl.ca.location": inside.authorities,
        "internal.ssl.certificate.location": inside.certificate,
        "internal.ssl.key.location": inside.key,
        "internal.ssl.key.password.location": str(where),
        "security.protocol": "SSL",
        "ssl.client.auth": "required",
        "ssl.ca.location": shown.authorities,
        "ssl.certificate.location": shown.certificate,
        "ssl.key.location": shown.key,
        "ssl.key.password.location": str(where),
    }
    options = {
        "security.protocol": "SSL",
        "ssl.ca.location": mine.authorities,
        "ssl.certificate.location": mine.certificate,
        "ssl.key.location": mine.key,
    }
    async with new_node(SimDisk(), settings(config)) as node:
        address = {"bootstrap.servers": f"127.0.0.1:{node.port}", **options}
        for password in ({"ssl.key.password": "secret"}, {"ssl.key.password.location": str(where)}):
            async with Admin.from_config(address | password) as admin:
                assert await admin.list_topics() == []


async def test_a_client_shows_the_certificate_that_replaced_its_own(authority):
    context = server_context(authority.issue("broker"), asks=ssl.CERT_REQUIRED)
    mine = authority.issue("alice")
    network, listener = TlsNetwork(Tls(mine)), await listen("127.0.0.1", 0)

    async def shown():
        async def call():
            stream = await network.connect("127.0.0.1", listener.port)
            await stream.aclose()

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                plain = await listener.accept()
                stream = await secured(plain, context, server_side=True)
            await stream.aclose()
        return stream.common_name

    assert await shown() == "alice"
    authority.issue("bob", at=mine)
    assert await shown() == "bob"
    with open(mine.certificate, "w") as half:
        half.write("half a")
    assert await shown() == "bob"
    await listener.aclose()


async def test_a_node_shows_no_certificate_that_its_own_door_refuses(authority, tmp_path):
    files = authority.issue("node-1")
    over = {
        "internal.listen.port": "0",
        "internal.security.protocol": "SSL",
        "internal.ssl.ca.location": files.authorities,
        "internal.ssl.certificate.location": files.certificate,
        "internal.ssl.key.location": files.key,
    }
    doors, listener = doors_of(settings(over)), await listen("127.0.0.1", 0)
    context = server_context(authority.issue("node-3"), asks=ssl.CERT_REQUIRED)

    async def shown():
        async def call():
            stream = await doors.network.connect("127.0.0.1", listener.port)
            await stream.aclose()

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                stream = await secured(await listener.accept(), context, server_side=True)
            await stream.aclose()
        return stream.common_name

    authority.issue("node-2", at=files)
    doors.renew()
    assert await shown() == "node-1"
    authority.issue("node-1", at=files)
    doors.renew()
    assert await shown() == "node-1"
    await listener.aclose()


def test_a_context_is_the_same_until_files_change(authority):
    files = authority.issue("alice")
    kept = ClientContext(Tls(files))
    before = kept.current()
    assert kept.current() is before
    authority.issue("alice", at=files)
    assert kept.current() is not before


@pytest.mark.parametrize("knows_all", [False, True])
async def test_who_fails_before_all_users_are_known_may_try_again(knows_all, autojump_clock):
    image = ClusterImage()
    tongues = Tongues(NativeTongue(), None)
    logins = Logins(lambda: image, lambda: "", lambda: knows_all, tongues, Guesses(0.1))
    near, far = memory_streams()
    login = Login("SCRAM-SHA-256", "user", PASSWORD)

    class There:
        async def connect(self, _host, _port):
            return near

    async def serve():
        with pytest.raises(AuthenticationFailed, match=", as 'user'"):
            await logins.log_in(far)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        kind = AuthenticationFailed if knows_all else OSError
        with pytest.raises(kind, match=FAILED if knows_all else NOT_YET) as failed:
            await LoginNetwork(There(), login).connect("here", 1)
    assert isinstance(failed.value, AuthenticationFailed) is knows_all


def test_a_node_joins_for_itself_alone():
    asked = q.AddVoterRequest(id=7, host="here", port=1)
    check_sender(asked, 2)  # somebody asked it to pass that on
    check_sender(asked, 7, is_its_own=True)
    with pytest.raises(Refused) as caught:
        check_sender(asked, 2, is_its_own=True)
    assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_logins_are_written_down_whether_they_succeed_or_not(caplog):
    caplog.set_level(logging.INFO, "hightide.audit")
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
    told = [record.getMessage() for record in caplog.records if record.name == "hightide.audit"]
    assert any("logged in: User:user by SCRAM-SHA-256, from 127.0.0.1:" in line for line in told)
    assert any(line.startswith("turned away: ") and "as 'user'" in line for line in told)
    assert PASSWORD not in "".join(told)


async def test_a_bug_that_somebody_meets_before_it_is_in_ends_its_connection_alone(
    caplog, monkeypatch
):
    config = settings({"security.protocol": "SASL_PLAINTEXT", "internal.listen.port": "0"})
    async with new_node(SimDisk(), config) as node:
        await node.change(u.AlterUserScramCredentialsRequest(upsertions=[wish()]))
        network = LoginNetwork(TcpNetwork(), Login("SCRAM-SHA-256", "user", PASSWORD))
        monkeypatch.setattr(Session, "answer", lambda *_: {}["of ours"])
        with pytest.raises(OSError, match="closed the connection"):
            await network.connect("127.0.0.1", node.port)
        monkeypatch.undo()
        async with open_connection(network, "127.0.0.1", node.port) as connection:
            await connection.call(m.MetadataRequest())
        assert node.server.counts.closed["client", "bug"] == 1
    assert "met a bug; its connection was closed" in caplog.text


async def test_a_login_that_is_made_again_is_written_down_too(caplog):
    config = settings({"security.protocol": "SASL_PLAINTEXT", "internal.listen.port": "0"})
    async with new_node(SimDisk(), config) as node:
        await node.change(u.AlterUserScramCredentialsRequest(upsertions=[wish()]))
        right = Login("SCRAM-SHA-256", "user", PASSWORD)
        network = LoginNetwork(TcpNetwork(), right)
        async with open_connection(network, "127.0.0.1", node.port) as connection:

            async def ask(request):
                return (await connection.call(request, timeout_s=PATIENCE_S))[0]

            caplog.set_level(logging.INFO, "hightide.audit")
            caplog.clear()
            await said_by(ask, right)
            with pytest.raises(ApiError):
                await said_by(ask, Login("SCRAM-SHA-256", "mallory", PASSWORD))
        assert node.server.counts.logins == {
            ("client", "SCRAM", True): 2,
            ("client", "SCRAM", False): 1,
        }
    told = [record.getMessage() for record in caplog.records if record.name == "hightide.audit"]
    assert [line.partition(", from 127.0.0.1:")[0] for line in told] == [
        "logged in again: User:user",
        f"turned away: {FAILED}, as 'mallory', on a connection of User:user",
    ]


async def test_certificates_are_written_down_as_logins_are(authority, caplog):
    """Whose they are, and what was agreed about; of who shows none there is nothing to tell."""
    caplog.set_level(logging.INFO, "hightide.audit")
    shown = authority.issue("node-1")
    config = {**inside(shown), **outside(shown), "ssl.client.auth": "requested"}
    async with new_node(SimDisk(), settings(config)) as node:
        by_nodes_door = (authority.issue("node-2"), internal_port(node))
        by_clients = [(files, node.port) for files in (authority.issue("a"), authority.believed)]
        for files, port in (by_nodes_door, *by_clients):
            async with client_by(TlsNetwork(Tls(files)), port) as client:
                await client.call(m.ApiVersionsRequest())
    told = [record.getMessage() for record in caplog.records if record.name == "hightide.audit"]
    assert [line.partition(", from 127.0.0.1:")[0] for line in told] == [
        "logged in: User:node-2 by certificate under TLSv1.3",
        "logged in: User:a by certificate under TLSv1.3",
    ]


async def test_nobody_hides_others_logins_behind_many_of_its_own(caplog):
    caplog.set_level(logging.INFO, "hightide.audit")
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
        caplog.clear()
        await comes("alice", "no")
        await comes("alice", PASSWORD)
    told = [record.getMessage() for record in caplog.records if record.name == "hightide.audit"]
    assert [line.split(",")[0].split(":")[0] for line in told] == ["turned away", "logged in"]
    assert "as 'alice'" in told[0]
    assert "User:alice" in told[1]


async def test_an_address_has_no_more_connections_than_it_may():
    async with new_node(SimDisk(), settings({"connections.max.per.ip": "2"})) as node:
        async with client_of(node), client_of(node) as second:
            stream = await TcpNetwork().connect("127.0.0.1", node.port)
            with trio.fail_after(PATIENCE_S):
                assert await stream.receive_into(memoryview(bytearray(1))) == 0
            await stream.aclose()
            assert await second.create() is not None
        await quiet()
        async with client_of(node) as again:
            await again.call(m.MetadataRequest())
