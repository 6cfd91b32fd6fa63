"""A crowd at the door keeps nobody out: peers that say nothing, or half of it, or wrong passwords.

Method: a node in this process, real sockets on 127.0.0.1, and a clock that stands still until the
test moves it: what is served meanwhile is served while all of the crowd are there. What crowds cost
a process of its own is measured by `tests/live/test_strangers_live.py`.
"""

import pytest
import trio
from brokers import Client, quiet
from crowds import Crowd, many_files
from logins import PASSWORD
from patience import Patience
from test_doors import client_by, internal_port
from test_login import a_node_with_users, connected, network_of
from test_server import request_bytes

from hightide.net.tcp import TcpNetwork
from hightide.net.tls import Tls
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol.errors import AuthenticationFailed
from hightide_broker.runtime.server.door import HANDSHAKE_S
from hightide_broker.runtime.server.login import FAILED
from hightide_broker.runtime.server.room import Room

CROWD = 500
SMALL_CROWD = 60
"""Where each costs milliseconds."""
WRONG = 100
FAILED_S = 0.1
"""connection.failed.authentication.delay.ms."""
HALF_A_HELLO = bytes.fromhex("16030102000100 01fc0303")
HANDSHAKE = request_bytes(u.SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))


@pytest.fixture(autouse=True)
def files():
    with many_files():
        yield


def door_for(monkeypatch, count):
    """So many may wait at each door."""
    room = Room(clients=100, nodes=100, at_the_door=count, files=10)
    monkeypatch.setattr("hightide_broker.runtime.server.listener.room_for", lambda **_: room)


def waiting(node):
    return sum(map(len, node.server._at_the_door.values()))


async def until(true, what):
    """As `patience.wait_until_true`, where the clock stands still."""
    patience = Patience(what)
    while not true():
        patience.check()
        await quiet()


async def until_waiting(node, count):
    await until(lambda: waiting(node) == count, f"{count} wait at the door")


async def until_left(crowd, count):
    await until(lambda: crowd.left == count, f"{count} of the crowd are left")


async def assert_let_in(served):
    """A user who comes now logs in, and gets a record acknowledged; so does a node."""
    async with connected(served) as connection:
        client = Client(connection)
        if "t" not in served.node.image.topics:
            await client.create()
        assert (await client.produce(b"x")).error is None
    node = TlsNetwork(Tls(served.of_nodes.issue("node-2")))
    async with client_by(node, internal_port(served.node)) as client:
        await client.call(m.ApiVersionsRequest())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "under_tls", "count"),
    [
        (b"", False, CROWD),
        (HALF_A_HELLO, False, CROWD),
        (b"", True, SMALL_CROWD),
        (HANDSHAKE, True, SMALL_CROWD),
        (HANDSHAKE[:-1], True, SMALL_CROWD),
    ],
    ids=["nothing", "half a hello", "TLS alone", "a login's first word", "most of a word"],
)
async def test_a_crowd_that_says_too_little_holds_up_nobody_and_is_closed_at_its_deadline(
    tmp_path, monkeypatch, mock_clock, said, under_tls, count
):
    door_for(monkeypatch, 2 * CROWD)
    async with a_node_with_users(tmp_path) as served, Crowd() as crowd:
        network = TlsNetwork(Tls(served.files)) if under_tls else TcpNetwork()
        await crowd.come(network, served.node.port, count, said)
        await until_waiting(served.node, count)
        for passes_s in (HANDSHAKE_S - 0.1, 0.2):
            await assert_let_in(served)
            await quiet()
            assert (crowd.left, waiting(served.node)) == (count, count)
            mock_clock.jump(passes_s)
        await until_left(crowd, 0)
        assert waiting(served.node) == 0
        await assert_let_in(served)


@pytest.mark.slow
async def test_a_crowd_that_the_door_cannot_hold_holds_up_nobody(tmp_path, monkeypatch, mock_clock):
    """Some of it make way, also for who comes last; the rest are closed at their deadline."""
    room = CROWD // 2
    door_for(monkeypatch, room)
    async with a_node_with_users(tmp_path) as served, Crowd() as crowd:
        await crowd.come(TcpNetwork(), served.node.port, CROWD)
        await until_left(crowd, room)
        await assert_let_in(served)
        await until_left(crowd, room - 1)
        mock_clock.jump(HANDSHAKE_S + 0.1)
        await until_left(crowd, 0)


@pytest.mark.slow
async def test_a_hundred_wrong_passwords_at_once_hear_one_sentence_and_hold_up_nobody(
    tmp_path, monkeypatch, mock_clock
):
    """While none of them has been answered, who is in and who comes in have records acknowledged;
    it is not told whether a user is known, which mechanism it has, or what was wrong."""
    heard = []

    async def guess(number):
        who = {"user": "admin" if number % 2 else f"nobody-{number}"}
        who |= {"password": f"{PASSWORD}-{number}", "mechanism": u.MECHANISMS[number // 2 % 2]}
        with pytest.raises(AuthenticationFailed) as failed:
            await network_of(served, **who).connect("127.0.0.1", served.node.port)
        heard.append(failed.value.message)

    async with a_node_with_users(tmp_path) as served, connected(served) as connection:
        calm = Client(connection)
        await calm.create()
        async with trio.open_nursery() as nursery:
            for number in range(WRONG):
                nursery.start_soon(guess, number)
            await until_waiting(served.node, WRONG)
            await quiet()
            for number in range(10):
                assert (await calm.produce(b"%d" % number)).error is None
            await assert_let_in(served)
            await quiet()
            assert (heard, waiting(served.node)) == ([], WRONG)
            mock_clock.jump(FAILED_S)
        assert heard == [FAILED] * WRONG
        assert (await calm.produce(b"later")).error is None
        await assert_let_in(served)
