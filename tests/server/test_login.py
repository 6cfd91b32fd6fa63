"""Users log in with a password that nobody else ever sees; who does not know it learns nothing.

Goal: every way to get an exchange wrong with one and the same answer, the state of a connection
before somebody is let in, and what is kept. Method: the broker's side against words that the test
writes; one node under TLS where users log in, with clients of every kind.
"""

import base64
import hashlib
import hmac
import logging
import re
import socket
from contextlib import asynccontextmanager, closing

import pytest
import trio
import trio.testing
from brokers import Client, new_node, quiet, settings
from certificates import Authority
from logins import PASSWORD, wish
from patience import PATIENCE_S
from scram_vectors import EXCHANGES, SERVER_NONCE
from test_doors import inside, outside

import hightide
from hightide import Acl, Admin, AuthenticationFailed, BrokerUnreachable, Consumer, Producer
from hightide.net.connection import FrameReader, open_connection
from hightide.net.login import Login, LoginNetwork, Way, Words, said_by
from hightide.net.pool import ConnectionPool
from hightide.net.ports import SystemClock
from hightide.net.tcp import TcpNetwork
from hightide.net.tls import Tls
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.errors import (
    ApiError,
    ErrorCode,
    Refused,
    RemoteProtocolError,
    UsageError,
)
from hightide.spark.client import BlockingClient
from hightide.spark.connection import BlockingConnection
from hightide_broker.config import ConfigError, check_listeners, check_open, make_config
from hightide_broker.core.cluster import users
from hightide_broker.runtime.server.login import FAILED, Session, _Scram
from hightide_broker.simulation.disk import SimDisk

SAID = EXCHANGES["SCRAM-SHA-256"]


def exchange(known=True, nonce=SERVER_NONCE):
    kept = users.credential_of(wish())
    nobody = users.of_nobody([], b"secret", "user", "SCRAM-SHA-256")
    return _Scram("SCRAM-SHA-256", lambda *_: tuple(kept if known else nobody), nonce)


def signed(without_proof, password=PASSWORD):
    """Last words with the right proof for what they say otherwise."""
    salted = wish(password=password).salted_password
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored = hashlib.sha256(client_key).digest()
    message = f"{SAID.first[3:]},{SAID.answer},{without_proof}".encode()
    signature = hmac.digest(stored, message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}"


NONCE = SAID.answer.split(",")[0]
WRONG = {
    "another password": signed(f"c=biws,{NONCE}", "pencils"),
    "a proof that was changed": SAID.final.replace("p=dH", "p=dh"),
    "another nonce, well signed": signed(f"c=biws,{NONCE}x"),
    "the end of the nonce alone, well signed": signed(f"c=biws,r={SERVER_NONCE}"),
    "another channel, well signed": signed(f"c=eSws,{NONCE}"),
    "no proof": f"c=biws,{NONCE}",
    "an empty proof": f"c=biws,{NONCE},p=",
    "nothing": "",
    "no text": b"\xff\xfe",
    "commas": ",,,,",
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_last_words_that_are_wrong_have_one_answer(words):
    server = exchange()
    server.first(SAID.first.encode())
    with pytest.raises(Refused) as refused:
        server.final(words if isinstance(words, bytes) else words.encode())
    assert (refused.value.code, refused.value.message) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        FAILED,
    )


@pytest.mark.parametrize(
    "words",
    [
        "n,a=admin,n=user,r=rOprNGfwEbeRWgbNEkqO",
        "p=tls-unique,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        "n,,n=user",
        "n,,r=rOprNGfwEbeRWgbNEkqO",
        "n,,m=x,n=user,r=rOprNGfwEbeRWgbNEkqO",
        "",
        "x" * 60_000,
        f"n,,n={'a' * 257},r=rOprNGfwEbeRWgbNEkqO",
    ],
)
def test_first_words_that_are_wrong_have_one_answer_too(words):
    """CVE-2017-12610: who asks to be another one is refused."""
    with pytest.raises(Refused, match=re.escape(FAILED)):
        exchange().first(words.encode())


def test_words_that_take_long_to_prepare_are_not_prepared():
    """The letters of a name are put in order one by one: 60 kB held the loop for seconds."""
    session = Session(lambda *_: pytest.fail("it was looked for"), str, 0)
    session.answer(u.SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
    slow = "a" + "\u0300" * 15_000 + "\u0316" * 15_000
    with pytest.raises(Refused, match=re.escape(FAILED)):
        session.answer(u.SaslAuthenticateRequest(data=f"n,,n={slow},r=abc".encode()))


def test_about_somebody_unknown_the_same_is_answered_always_and_everywhere():
    shape = re.compile(r"r=rOprNGfwEbeRWgbNEkqO[^,]+,s=[A-Za-z0-9+/]{22}==,i=4096")
    told = [exchange(known, nonce=None).first(SAID.first.encode()) for known in (0, 0, 1)]
    assert all(map(shape.fullmatch, told))
    salts = [each.split(",")[1] for each in told]
    assert salts[0] == salts[1] != salts[2]
    server = exchange(known=False)
    server.first(SAID.first.encode())
    with pytest.raises(Refused, match=re.escape(FAILED)):
        server.final(SAID.final.encode())


@pytest.mark.parametrize("iterations", [16_385, 10_000_000, 999_999_999])
def test_a_broker_does_not_keep_a_client_busy(iterations):
    words = Words(Login("SCRAM-SHA-256", "user", PASSWORD))
    words.first()
    with pytest.raises(AuthenticationFailed, match="more than 16384 iterations"):
        words.final(f"r=abc,s=W22ZaJ0SNY7soEsUEjb6gQ==,i={iterations}".encode())


# -- a node ----------------------------------------------------------------------------------------


class NodeWithUsers:
    """A node where users log in; `admin` came in by the nodes' side before."""

    def __init__(self, node, files, of_nodes):
        self.node = node
        self.address = f"127.0.0.1:{node.port}"
        self.files, self.of_nodes = files, of_nodes

    def options(self, user, password=PASSWORD, mechanism="SCRAM-SHA-256"):
        return {
            "security_protocol": "SASL_SSL",
            "ssl_ca_location": self.files.authorities,
            "sasl_username": user,
            "sasl_password": password,
            "sasl_mechanism": mechanism,
        }

    @asynccontextmanager
    async def raw(self):
        """A stream that nobody has logged in on, and its frames."""
        stream = await TlsNetwork(Tls(self.files)).connect("127.0.0.1", self.node.port)
        try:
            yield stream, FrameReader(stream)
        finally:
            await stream.aclose()


@asynccontextmanager
async def a_node_with_users(tmp_path, over=None):
    nodes, clients = Authority(tmp_path / "nodes"), Authority(tmp_path / "clients")
    shown = clients.issue("broker")
    config = settings(
        {
            **inside(nodes.issue("node-1")),
            **outside(shown),
            "security.protocol": "SASL_SSL",
            "authorizer.enable": "true",
            "super.users": "User:admin",
            **(over or {}),
        }
    )
    async with new_node(SimDisk(), config, SystemClock()) as node:
        made = [wish(user="admin", mechanism=mechanism) for mechanism in u.MECHANISMS]
        await node.change(u.AlterUserScramCredentialsRequest(upsertions=made))
        yield NodeWithUsers(node, clients.believed, nodes)


@pytest.fixture
async def served(tmp_path):
    async with a_node_with_users(tmp_path) as made:
        yield made


@pytest.mark.parametrize("mechanism", u.MECHANISMS)
async def test_a_user_logs_in_and_may_do_what_rules_say(served, mechanism):
    async with Admin(served.address, **served.options("admin", mechanism=mechanism)) as admin:
        await admin.create_topic("t")
        await admin.set_password("alice", "pässwörd", iterations=5000)
        rules = [("topic", "t", "WRITE"), ("topic", "t", "READ"), ("group", "g", "READ")]
        await admin.create_acls(
            Acl(kind, name, "LITERAL", "User:alice", "*", operation, "ALLOW")
            for kind, name, operation in rules
        )
        (admin_too, alice) = await admin.list_users()
        assert [each.user for each in (admin_too, alice)] == ["admin", "alice"]
        assert {each.iterations for each in alice.credentials} == {5000}
    options = served.options("alice", "pässwörd", mechanism)
    async with Producer(served.address, acks="all", **options) as producer:
        await (await producer.send("t", b"x" * 200_000))
    reading = {"topics": ["t"], "group_id": "g", "auto_offset_reset": "earliest", **options}
    async with Consumer(served.address, **reading) as consumer:
        assert len((await anext(consumer)).value) == 200_000


async def test_sparks_blocking_client_logs_in_too(served, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\n")
    login = Login("SCRAM-SHA-512", "admin", "", str(secret))

    def look(way):
        with closing(BlockingClient(served.address, way)) as client:
            client.refresh([], timeout_s=PATIENCE_S)
            return client.metadata.brokers

    way = Way(Tls(served.files), login)
    assert PASSWORD not in repr(way)
    assert list(await trio.to_thread.run_sync(look, way)) == [1]
    secret.write_text("another")
    with pytest.raises(AuthenticationFailed, match=re.escape(FAILED)):
        await trio.to_thread.run_sync(look, way)


@pytest.mark.parametrize(("user", "password"), [("admin", "pencils"), ("nobody", PASSWORD)])
async def test_who_does_not_know_the_password_hears_one_sentence_at_once(served, user, password):
    with trio.fail_after(PATIENCE_S), pytest.raises(AuthenticationFailed) as failed:
        async with Admin(served.address, **served.options(user, password)) as admin:
            await admin.list_topics()
    assert failed.value.message == FAILED


async def test_before_somebody_is_in_only_a_login_is_spoken(served):
    async with served.raw() as (stream, frames):
        stream.send_now(wire.encode_request(m.ApiVersionsRequest(), request_id=1, client=""))
        answer = await frames.next_frame()
        envelope = wire.decode_response_envelope(wire.split_frame(answer, message_limit=1 << 20))
        found = wire.decode_body(envelope.body, m.ApiVersionsResponse)
        assert [api.name for api in found.apis] == [
            *("api_versions", "sasl_handshake", "sasl_authenticate")
        ]
        stream.send_now(wire.encode_request(m.MetadataRequest(), request_id=2, client=""))
        answer = await frames.next_frame()
        envelope = wire.decode_response_envelope(wire.split_frame(answer, message_limit=1 << 20))
        assert envelope.error.code == "ILLEGAL_SASL_STATE"
        assert await frames.next_frame() is None


async def test_a_frame_that_is_too_large_ends_a_login(served):
    async with served.raw() as (stream, frames):
        stream.send_now([(64 << 20).to_bytes(4)])
        with trio.fail_after(PATIENCE_S):
            assert await frames.next_frame() is None


async def test_an_unknown_mechanism_is_told_those_that_there_are(served):
    login = Login("SCRAM-SHA-1", "admin", PASSWORD)
    network = LoginNetwork(TlsNetwork(Tls(served.files)), login)
    with pytest.raises(AuthenticationFailed, match="expected one of SCRAM-SHA-256, SCRAM-SHA-512"):
        await network.connect("127.0.0.1", served.node.port)


def network_of(served, user="admin", password=PASSWORD, mechanism="SCRAM-SHA-256"):
    return LoginNetwork(TlsNetwork(Tls(served.files)), Login(mechanism, user, password))


@asynccontextmanager
async def connected(served, **who):
    network = network_of(served, **who)
    async with open_connection(network, "127.0.0.1", served.node.port) as connection:
        yield connection


async def again(connection, user="admin", password=PASSWORD, mechanism="SCRAM-SHA-256"):
    """Log in on a connection that is open."""

    async def ask(request):
        return (await connection.call(request, timeout_s=PATIENCE_S))[0]

    return await said_by(ask, Login(mechanism, user, password))


async def test_a_user_logs_in_again_on_the_same_connection(served):
    async with connected(served) as connection:
        for _ in range(2):
            assert await again(connection) == 0, "as long as the connection"
            await Client(connection).call(m.MetadataRequest())


@pytest.mark.parametrize(
    ("who", "code"),
    [
        ({"password": "pencils"}, ErrorCode.SASL_AUTHENTICATION_FAILED),
        ({"user": "bob"}, ErrorCode.SASL_AUTHENTICATION_FAILED),
        ({"mechanism": "SCRAM-SHA-512"}, ErrorCode.ILLEGAL_SASL_STATE),
    ],
)
async def test_a_connection_stays_one_users_and_ends_with_a_login_that_fails(served, who, code):
    await served.node.change(u.AlterUserScramCredentialsRequest(upsertions=[wish(user="bob")]))
    async with connected(served) as connection:
        with pytest.raises(ApiError) as refused:
            await again(connection, **who)
        assert refused.value.code is code
        with pytest.raises(BrokerUnreachable):
            await Client(connection).call(m.MetadataRequest())


async def test_words_of_a_login_without_their_handshake_are_refused(served):
    async with connected(served) as connection:
        with pytest.raises(ApiError, match="a handshake comes first"):
            await Client(connection).call(u.SaslAuthenticateRequest(data=b"n,,n=admin,r=abc"))


async def test_what_keeps_a_login_ends_with_its_connection(served):
    network = network_of(served)
    async with trio.open_nursery() as nursery:
        pool = ConnectionPool(network, nursery, client_id="c")
        before = len(nursery.child_tasks)
        for _ in range(5):
            connection = await pool.connection("127.0.0.1", served.node.port)
            network._lifetimes_s[connection.stream] = 3600.0
            await quiet()
            await connection.aclose()
            await quiet()
        assert len(nursery.child_tasks) == before
        await pool.aclose()


async def test_where_nobody_logs_in_there_is_nothing_to_log_in_to():
    async with new_node(SimDisk(), settings()) as node:
        network = LoginNetwork(TcpNetwork(), Login("SCRAM-SHA-256", "admin", PASSWORD))
        with pytest.raises(AuthenticationFailed, match="is open, as User:ANONYMOUS"):
            await network.connect("127.0.0.1", node.port)


async def test_a_login_that_is_good_for_less_than_no_time_is_no_login(monkeypatch):
    kept = users.credential_of(wish(user="admin"))
    login = Login("SCRAM-SHA-256", "admin", PASSWORD)
    session = Session(lambda *_: tuple(kept), str, -1)

    async def ask(request):
        return session.answer(request)

    with pytest.raises(RemoteProtocolError, match="good for -1 ms"):
        await said_by(ask, login)
    monkeypatch.setattr(BlockingConnection, "_call", lambda _, request: session.answer(request))
    listener = socket.create_server(("127.0.0.1", 0))
    with closing(listener), pytest.raises(RemoteProtocolError, match="good for -1 ms"):
        BlockingConnection(*listener.getsockname(), login=login)


def test_a_login_is_over_when_its_time_is_up_and_made_again_it_is_not():
    kept = users.credential_of(wish(user="admin"))

    async def main():
        session = Session(lambda *_: tuple(kept), str, 60_000)

        async def ask(request):
            return session.answer(request)

        login = Login("SCRAM-SHA-256", "admin", PASSWORD)
        assert await said_by(ask, login) == 60
        for late_s, is_over in ((59, False), (59, True)):
            await trio.sleep(late_s)
            assert session.is_over is is_over
        await said_by(ask, login)
        assert not session.is_over

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_who_does_not_log_in_again_in_time_is_closed_and_who_does_stays(tmp_path, mock_clock):
    async with a_node_with_users(tmp_path, {"connections.max.reauth.ms": "60s"}) as served:
        network = network_of(served)
        async with trio.open_nursery() as nursery:
            pool = ConnectionPool(network, nursery, client_id="c")
            kept = await pool.connection("127.0.0.1", served.node.port)
            async with connected(served) as left:
                for _ in range(20):
                    await quiet()
                    mock_clock.jump(9)
                await quiet()
                assert (await Client(kept).call(m.MetadataRequest())).controller == 1
                with pytest.raises(BrokerUnreachable):
                    await Client(left).call(m.MetadataRequest())
            assert served.node.server.counts.closed["client", "login"] == 1
            await pool.aclose()
            nursery.cancel_scope.cancel()


async def test_a_user_that_is_deleted_does_not_come_in_again(served):
    async with Admin(served.address, **served.options("admin")) as admin:
        await admin.set_password("bob", "first")
        await admin.set_password("bob", "second")
        for password, is_in in (("first", False), ("second", True)):
            options = served.options("bob", password)
            async with Admin(served.address, **options) as bob:
                if is_in:
                    await bob.describe_cluster()
                else:
                    with pytest.raises(AuthenticationFailed):
                        await bob.describe_cluster()
        await admin.delete_user("bob")
        with pytest.raises(AuthenticationFailed):
            async with Admin(served.address, **served.options("bob", "second")) as bob:
                await bob.describe_cluster()
        with pytest.raises(ApiError, match="there is no user 'bob'"):
            await admin.delete_user("bob")


async def test_no_secret_is_in_the_log(served, caplog):
    caplog.set_level(logging.DEBUG)
    async with Admin(served.address, **served.options("admin")) as admin:
        await admin.set_password("carol", "very-secret-indeed")
    async with Admin(served.address, **served.options("carol", "very-secret-indeed")) as carol:
        await carol.describe_cluster()
    image = served.node.image
    secrets = {"very-secret-indeed", image.users_secret.hex()}
    for kept in image.users.values():
        secrets |= {shown for key in kept[1:3] for shown in (key.hex(), repr(key)[2:-1])}
        secrets |= {base64.b64encode(key).decode() for key in kept[1:3]}
    assert "the SCRAM-SHA-256 password of user 'carol' is set" in caplog.text
    assert not [secret for secret in secrets if secret in caplog.text]


async def test_a_client_in_clear_text_says_what_the_other_side_wants(served):
    with pytest.raises(Exception, match=r"SSL|TLS"):
        async with open_connection(TcpNetwork(), "127.0.0.1", served.node.port) as connection:
            await Client(connection).call(m.MetadataRequest())


async def test_a_login_in_clear_text_where_tls_is_spoken_is_not_tried_again(served):
    options = served.options("admin") | {"security_protocol": "SASL_PLAINTEXT"}
    del options["ssl_ca_location"]
    tries = []
    async with Admin(served.address, on_retry=tries.append, **options) as admin:
        with pytest.raises(AuthenticationFailed, match="the peer seems to speak TLS"):
            await admin.list_topics()
    assert tries == []
    client = BlockingClient(served.address, Way(None, Login("SCRAM-SHA-256", "admin", PASSWORD)))
    with closing(client), pytest.raises(RemoteProtocolError, match="seems to speak TLS"):
        await trio.to_thread.run_sync(lambda: client.refresh(None, timeout_s=PATIENCE_S))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"security_protocol": "SASL_SSL"}, "sasl.username or sasl.password is empty"),
        ({"sasl_username": "a"}, "security.protocol is PLAINTEXT: expected SASL_SSL"),
        ({"security_protocol": "SASL"}, "expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
async def test_settings_that_do_not_fit_are_told(options, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        async with Admin("127.0.0.1:1", **options):
            pass


def test_a_password_is_not_shown_with_the_options():
    assert "hush" not in repr(hightide.AdminOptions(sasl_password="hush", sasl_username="a"))
    with pytest.raises(UsageError) as refused:
        hightide.AdminOptions(sasl_password=b"hush")
    assert "hush" not in str(refused.value)


def test_where_users_log_in_nodes_have_a_door_of_their_own_and_others_may_reach_it():
    with pytest.raises(ConfigError, match=r"internal\.listen\.port is -1"):
        check_listeners(make_config({"security.protocol": "SASL_PLAINTEXT"}))
    inside = {"internal.listen.port": "1", "internal.security.protocol": "SSL"}
    check_open(make_config({"listen.host": "db1", "security.protocol": "SASL_SSL", **inside}))
