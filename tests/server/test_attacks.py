"""No connection ends a node, or anybody else's: what peers of ill will say at each of its doors.

Goal: promise 7 of the design where something comes before requests, TLS and logins: whatever a peer
says before, during or after them, who was in is served on, and so are those who come next, clients
and nodes. Method: a node in this process, real sockets; each script comes to each place, and ends
by leaving in order, by closing one direction, or by a reset. Every second script comes to a place,
in one way that is another one at the next; each in each way to each place where all is tried
(`tries.py`). The bytes that are no requests are those of `test_server.py`, and more.
"""

import logging
import random
import socket
import ssl
import struct
from contextlib import asynccontextmanager, suppress

import msgpack
import pytest
import trio
from brokers import Client, new_node, quiet, settings
from certificates import Authority
from logins import PASSWORD, wish
from patience import PATIENCE_S, Patience
from test_doors import inside, internal_port, outside
from test_server import NO_FRAMES, Bugs, envelope, framed, request_bytes
from tries import ALL, some

from hightide.net.connection import FrameReader, open_connection
from hightide.net.login import Login, LoginNetwork, Words
from hightide.net.outbox import send_all
from hightide.net.ports import SystemClock
from hightide.net.tcp import TcpNetwork
from hightide.net.tls import Tls
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide_broker.simulation.disk import SimDisk

# -- what is said ----------------------------------------------------------------------------------

RANDOM = random.Random(29)


def hello():
    """The first flight of somebody who speaks TLS."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="a")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def spoilt(data, count):
    """The same with so many bytes changed."""
    changed = bytearray(data)
    for _ in range(count):
        changed[RANDOM.randrange(len(changed))] = RANDOM.randrange(256)
    return bytes(changed)


HELLO = hello()
UPGRADE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
ANYWHERE = {
    "nothing": b"",
    "one byte": b"\x16",
    "a hello": HELLO,
    "half a hello": HELLO[: len(HELLO) // 2],
    "a hello and junk": HELLO + RANDOM.randbytes(500),
    "a hello, twice": HELLO * 2,
    "a hello of SSL 2": bytes.fromhex("802e0100020015000000100100800200800300800400800500800600"),
    "a record that claims much": bytes.fromhex("160303ffff") + bytes(500),
    "empty records": bytes.fromhex("1603030000") * 500,
    "data before all": bytes.fromhex("1703030010") + bytes(16),
    "a heartbeat": bytes.fromhex("180302000301ffff"),
    "a fatal alert": bytes.fromhex("15030300020228"),
    "warnings": bytes.fromhex("15030300020100") * 500,
    "changes of ciphers": bytes.fromhex("140303000101") * 500,
    "CONNECT": b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "an upgrade": UPGRADE,
    "an upgrade and more": UPGRADE + b"\x81\x85\0\0\0\0hello" + bytes(500),
    "HTTP 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(20),
    "a proxy": b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r\n",
    **{f"a spoilt hello, {each}": spoilt(HELLO, 5) for each in range(5)},
    **{f"junk, {each}": RANDOM.randbytes(1 << each) for each in range(1, 15)},
    **{name: data for name, (data, _) in NO_FRAMES.items()},
}


def authenticate(words):
    return request_bytes(u.SaslAuthenticateRequest(data=words))


def anything(depth=4):
    """A value that msgpack can say, of no meaning."""
    kind = RANDOM.randrange(8 if depth else 6)
    if kind == 6:
        return [anything(depth - 1) for _ in range(RANDOM.randrange(5))]
    if kind == 7:
        return {str(anything(0)): anything(depth - 1) for _ in range(RANDOM.randrange(5))}
    word = RANDOM.randbytes(RANDOM.randrange(20))
    return (None, True, -1.5, RANDOM.randrange(-(2**63), 2**64), word, word.hex())[kind]


API_VERSIONS = request_bytes(m.ApiVersionsRequest())
METADATA = request_bytes(m.MetadataRequest())
HANDSHAKE = request_bytes(u.SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
FIRST = authenticate(b"n,,n=admin,r=rOprNGfwEbeRWgbNEkqO")
LAST = authenticate(b"c=biws,r=rOprNGfwEbeRWgbNEkqO,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
LOGINS = {
    "first words": FIRST,
    "first words, twice": FIRST * 2,
    "last words": LAST,
    "a handshake": HANDSHAKE,
    "handshakes without end": HANDSHAKE * 500,
    "questions without end": API_VERSIONS * 500,
    "questions between the words": API_VERSIONS + HANDSHAKE + API_VERSIONS + FIRST + API_VERSIONS,
    "a handshake between the words": HANDSHAKE + FIRST + HANDSHAKE + LAST,
    "another mechanism between the words": HANDSHAKE
    + FIRST
    + request_bytes(u.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"))
    + LAST,
    "all at once": HANDSHAKE + FIRST + LAST,
    "all at once, and a request": HANDSHAKE + FIRST + LAST + METADATA,
    "a request": METADATA,
    "a request after the handshake": HANDSHAKE + METADATA,
    "a request after the words": HANDSHAKE + FIRST + METADATA,
    "a handshake with more behind it": request_bytes(
        u.SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), b"more", bytes(1000)
    ),
    "a handshake that is cut": HANDSHAKE[:-1],
    "words that are cut": HANDSHAKE + FIRST[:-3],
    "a frame of the largest length": HANDSHAKE + framed(bytes(64 << 10)),
    "a frame of one byte more": HANDSHAKE + framed(bytes((64 << 10) + 1)),
    "a frame of 64 MiB": HANDSHAKE + (64 << 20).to_bytes(4) + bytes(1 << 20),
    "no words": HANDSHAKE + authenticate(b""),
    "words that are no text": HANDSHAKE + authenticate(b"\xff" * 100),
    "words that are long": HANDSHAKE + authenticate(b"n,,n=" + b"x" * 60_000 + b",r=abc"),
    "words for somebody else": HANDSHAKE + authenticate(b"n,a=bob,n=admin,r=abc"),
    "words that are a number": HANDSHAKE + framed(envelope("sasl_authenticate", {"data": 5})),
    "words that are a text": HANDSHAKE + framed(envelope("sasl_authenticate", {"data": "n,,"})),
    "words that are missing": HANDSHAKE + framed(envelope("sasl_authenticate", {})),
    "a mechanism that is a number": framed(envelope("sasl_handshake", {"mechanism": 5})),
    "an answer": b"".join(
        wire.frame_buffers(
            wire.encode_response(u.SaslAuthenticateResponse(data=b"v=x"), request_id=7), ()
        )
    ),
    **{
        f"the mechanism {each[:20]!r}": request_bytes(u.SaslHandshakeRequest(mechanism=each)) * 2
        for each in ("", "PLAIN", "scram-sha-256", "SCRAM-SHA-256\0", "x" * 10_000)
    },
    **{f"anything, {each}": framed(msgpack.packb(anything())) for each in range(20)},
    **{
        f"anything in a word, {each}": framed(envelope(api, anything())) * 2
        for each in range(20)
        for api in ("sasl_handshake", "sasl_authenticate")
    },
}
AT_THE_END = {
    "the right words": lambda last: last,
    "the right words, cut": lambda last: last[:-1],
    "the right words, twice": lambda last: last * 2,
    "the right words and a request": lambda last: last + METADATA,
    "the right words and part of a request": lambda last: last + METADATA[:3],
    "a question, and the right words": lambda last: API_VERSIONS + last,
    "a handshake, and the right words": lambda last: HANDSHAKE + last,
}
"""What only who knows the password can say."""


# -- how it ends -----------------------------------------------------------------------------------


async def in_order(stream):
    await stream.aclose()


async def in_one_direction(stream):
    """And then it waits for the node to end it."""
    with suppress(OSError):
        stream._socket.shutdown(socket.SHUT_WR)
    while True:
        await trio.lowlevel.wait_readable(stream._socket)
        try:
            if not stream._socket.recv(1 << 16):
                return
        except BlockingIOError:
            continue
        except OSError:
            return


async def by_reset(stream):
    stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    trio.lowlevel.notify_closing(stream._socket)
    stream._socket.close()


ENDS = (in_order, in_one_direction, by_reset)


# -- where -----------------------------------------------------------------------------------------


class Target:
    """A node, how honest clients come to it, and one that is in all the while."""

    def __init__(self, node, network, users, nodes):
        self.node = node
        self.under = network
        """How anybody comes to the clients' door."""
        self.users = users
        """How a user comes."""
        self.nodes = nodes
        """How a node comes."""
        self.calm = None

    async def plain(self):
        return await TcpNetwork().connect("127.0.0.1", self.node.port), None

    async def before(self):
        return await self.under.connect("127.0.0.1", self.node.port), None

    async def after_the_handshake(self):
        stream, _ = await self.before()
        await asked(stream, HANDSHAKE)
        return stream, None

    async def after_the_first_words(self):
        stream, _ = await self.after_the_handshake()
        words = Words(Login("SCRAM-SHA-256", "admin", PASSWORD))
        answer = await asked(stream, authenticate(words.first()))
        return stream, authenticate(words.final(answer["data"]))

    async def inside(self):
        return await self.users.connect("127.0.0.1", self.node.port), None

    async def plain_to_nodes(self):
        return await TcpNetwork().connect("127.0.0.1", internal_port(self.node)), None

    async def as_a_node(self):
        return await self.nodes.connect("127.0.0.1", internal_port(self.node)), None

    async def assert_serves_the_calm_one(self):
        """And has let go of everybody else."""
        assert (await self.calm.produce(b"calm")).error is None
        patience, server = Patience("all others have left"), self.node.server
        while server.connections().total() > 1 or any(server._at_the_door.values()):
            patience.check()
            await trio.sleep(0)

    async def assert_serves_who_comes(self):
        """A client, and another node."""
        async with open_connection(self.users, "127.0.0.1", self.node.port) as connection:
            assert (await Client(connection).produce(b"new")).error is None
        async with open_connection(self.nodes, "127.0.0.1", internal_port(self.node)) as connection:
            await Client(connection).call(m.ApiVersionsRequest())


PLACES = [*vars(Target)]


async def asked(stream, data):
    """The body of the answer to a request."""
    await send_all(stream, [data])
    return msgpack.unpackb(await FrameReader(stream).next_frame())["body"]


@asynccontextmanager
async def target(protocol, tmp_path):
    nodes, clients = Authority(tmp_path / "nodes"), Authority(tmp_path / "clients")
    over = {**inside(nodes.issue("node-1"))}
    network, log_in = TcpNetwork(), "SASL" in protocol
    if protocol.endswith("SSL"):
        over |= outside(clients.issue("broker"))
        network = TlsNetwork(Tls(clients.believed))
    over |= {"security.protocol": protocol}
    if log_in:
        over |= {"authorizer.enable": "true", "super.users": "User:admin"}
    bugs, log = Bugs(), logging.getLogger("hightide.server")
    log.addHandler(bugs)
    try:
        async with new_node(SimDisk(), settings(over), SystemClock()) as node:
            if log_in:
                made = u.AlterUserScramCredentialsRequest(upsertions=[wish(user="admin")])
                await node.change(made)
            login = LoginNetwork(network, Login("SCRAM-SHA-256", "admin", PASSWORD))
            users = login if log_in else network
            made = Target(node, network, users, TlsNetwork(Tls(nodes.issue("node-2"))))
            async with open_connection(users, "127.0.0.1", node.port) as connection:
                made.calm = Client(connection)
                await made.calm.create()
                yield made
    finally:
        log.removeHandler(bugs)
    assert bugs.found == []


ROWS = [
    ("SSL", Target.plain, ANYWHERE),
    ("SSL", Target.before, ANYWHERE),
    ("SSL", Target.plain_to_nodes, ANYWHERE),
    ("SSL", Target.as_a_node, ANYWHERE),
    *(
        (protocol, place, scripts)
        for number, (place, scripts) in enumerate(
            (
                (Target.before, ANYWHERE | LOGINS),
                (Target.after_the_handshake, ANYWHERE | LOGINS),
                (Target.after_the_first_words, ANYWHERE | LOGINS | AT_THE_END),
                (Target.inside, ANYWHERE | LOGINS),
            )
        )
        for protocol in some(("SASL_SSL", "SASL_PLAINTEXT"), number)
    ),
]
"""Where what is said. Two of the first four are under TLS, two of the last four of each protocol:
if not all is tried, one of the two hears every second script, and the other one the rest."""


def said(scripts, half):
    """Those of them that come to a place."""
    names = enumerate(scripts)
    return [name for number, name in names if ALL or name in AT_THE_END or number % 2 == half]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "place", "scripts", "half"),
    [(*row, number // 2 % 2) for number, row in enumerate(ROWS)],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else ""),
)
async def test_whatever_is_said_the_next_one_is_served(tmp_path, protocol, place, scripts, half):
    async with target(protocol, tmp_path) as world:
        for number, name in enumerate(said(scripts, half), PLACES.index(place.__name__)):
            script = scripts[name]
            for end in ENDS if name in AT_THE_END else some(ENDS, number):
                try:
                    with trio.fail_after(PATIENCE_S):
                        stream, last = await place(world)
                        with suppress(OSError):
                            await send_all(stream, [script(last) if callable(script) else script])
                        await quiet()
                        await end(stream)
                        await stream.aclose()
                        await world.assert_serves_the_calm_one()
                        if end is by_reset:
                            await world.assert_serves_who_comes()
                except BaseException as error:
                    error.add_note(f"after {name!r}, which ended {end.__name__}")
                    raise
