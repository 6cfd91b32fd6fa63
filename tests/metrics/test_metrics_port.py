"""A node's HTTP port: alive and ready by its own lights, and no way to harm it.

Method: real nodes with the port on loopback; what strangers say is sent as bytes.
"""

from types import SimpleNamespace

import pytest
import trio
from brokers import client_of, new_node, quiet
from brokers import settings as config_of
from http_attacks import STRANGE

from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.config import ConfigError, make_config, open_metrics
from hightide_broker.runtime.metrics import http
from hightide_broker.runtime.metrics.health import why_not_ready
from hightide_broker.runtime.metrics.http import Answer, Port
from hightide_broker.runtime.replication.recovering import Recovering
from hightide_broker.simulation.disk import SimDisk
from hightide_cli.serving import warn_of_metrics

WATCHED = config_of({"metrics.listen": "127.0.0.1:0"})
ATTACKS = {
    **STRANGE,
    "half a request": b"GET /metrics HTT",
    "a head without end": b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 10_000,
    "no host": b"GET /metrics HTTP/1.1\r\n\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a body": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    "a huge body": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 99,
    "chunks": b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    "a way up": b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    "a change": b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "hightide's own": b"\x00\x00\x00\x05\x85\xa3api",
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


async def said(node, request, *, half_closed=True):
    """All that is answered until the connection is closed."""
    stream = await trio.open_tcp_stream("127.0.0.1", node.metrics_port)
    found = b""
    async with stream:
        try:
            await stream.send_all(request)
            if half_closed:
                await stream.send_eof()
            async for data in stream:
                found += data
        except trio.BrokenResourceError:
            """Closed while we still spoke."""
    return found


async def get(node, path):
    """A status and a body."""
    asked = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    head, _, body = (await said(node, asked, half_closed=False)).partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def test_a_node_that_serves_is_alive_and_ready():
    async with new_node(SimDisk(), WATCHED) as node:
        assert (await get(node, "/healthz"))[0] == (await get(node, "/livez"))[0] == 200
        assert (await get(node, "/readyz"))[0] == 200
        status, words = await get(node, "/readyz?verbose")
        assert status == 200
        assert "state running" in words
        assert (await get(node, "/nowhere"))[0] == 404


async def test_without_a_quorum_a_node_is_alive_and_not_ready_and_says_why():
    alone = {
        "metrics.listen": "0",
        "controller.quorum.voters": "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3",
        "cluster.id": "c",
    }
    async with new_node(SimDisk(), config_of(alone), wait=False) as node:
        await quiet()
        assert (await get(node, "/healthz"))[0] == 200
        status, words = await get(node, "/readyz")
        assert status == 503
        assert "is starting" in words
        assert "controller_active 0" in (await get(node, "/metrics"))[1]


def standing(
    *,
    serving=True,
    stopping=False,
    draining=False,
    fenced=False,
    leader=2,
    is_broker=True,
    to_scan=(),
):
    """A node, as far as its health goes; `to_scan`: bytes of each partition that it has to open."""
    event, recovering = trio.Event(), Recovering()
    recovering.begin({TopicPartition("t", number): size for number, size in enumerate(to_scan)})
    if serving:
        event.set()
    return SimpleNamespace(
        id=1,
        serving=event,
        stopping=stopping,
        draining=draining,
        replicas=SimpleNamespace(recovering=recovering),
        lifecycle=object() if is_broker else None,
        image=SimpleNamespace(brokers={1: SimpleNamespace(fenced=fenced)}),
        quorum=SimpleNamespace(leader=leader),
    )


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (standing(), ""),
        (standing(is_broker=False, fenced=True), ""),
        (standing(serving=False), "is starting"),
        (standing(serving=False, leader=-1), "is starting"),
        (standing(fenced=True), "is fenced"),
        (standing(leader=-1), ""),
        (standing(is_broker=False, leader=-1), "knows no active controller"),
        (standing(stopping=True), "stops"),
        (standing(stopping=True, draining=True), "stops: it hands what it leads to others"),
        (
            standing(serving=False, to_scan=[0, 7]),
            "recovers its logs: 2 of 2 partitions are left, with 7 bytes to look at, at most",
        ),
        (standing(serving=False, to_scan=[0, 0]), "is starting"),
    ],
)
def test_why_a_node_is_not_ready(node, why):
    assert why in why_not_ready(node)
    assert bool(why) == bool(why_not_ready(node))


@pytest.mark.parametrize("name", ATTACKS)
async def test_whatever_is_said_the_next_one_is_answered(name):
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        for _ in range(3):
            answer = await said(node, ATTACKS[name])
            status = answer[:12].decode("latin-1")
            assert status in ("", "HTTP/1.1 404", "HTTP/1.1 405") or status.startswith("HTTP/1.1 4")
        assert (await get(node, "/healthz"))[0] == 200
        await client.create()


async def test_silent_ones_are_closed_and_keep_nobody_out_for_long(autojump_clock):
    streams = [trio.testing.memory_stream_pair() for _ in range(http.CONNECTIONS_MAX + 1)]
    port = Port(lambda *_: Answer(200, "text/plain", ["here\n"]))
    ended = []

    class Silent:
        """Somebody who says nothing."""

        peer = "nobody"

        def __init__(self, number):
            self.number = number

        async def receive_into(self, view):
            await trio.sleep_forever()

        async def aclose(self):
            ended.append((self.number, trio.current_time()))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(len(streams)):
            nursery.start_soon(port.serve, Silent(number))
    waited = sorted(at - began for _, at in ended)
    assert waited[0] == 0, "one too many is closed at once"
    assert waited[1:] == pytest.approx([http.REQUEST_S] * http.CONNECTIONS_MAX)


async def test_a_long_page_gives_others_their_turn():
    count, turns = 20_000, 0
    port = Port(lambda *_: Answer(200, "text/plain", (f"line {n}\n" for n in range(count))))

    class Reader:
        """Takes all that is sent at once."""

        peer = "reader"
        sent = 0

        def __init__(self):
            self.left = [b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"]

        async def receive_into(self, view):
            data = self.left.pop() if self.left else b""
            view[: len(data)] = data
            return len(data)

        def send_now(self, buffers):
            return sum(map(len, buffers))

        async def aclose(self):
            """Nothing is held."""

    async def other():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await port.serve(Reader())
        nursery.cancel_scope.cancel()
    assert turns >= count / http.SLICE_LINES - 2


@pytest.mark.parametrize("value", ["here", "127.0.0.1:", "127.0.0.1:70000", "-1", "[::1]:x"])
def test_an_address_that_is_none_is_refused(value):
    with pytest.raises(ConfigError, match=r"metrics.listen is .* expected HOST:PORT"):
        make_config({"metrics.listen": value})


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("", ""),
        ("9404", ""),
        ("127.0.0.1:9404", ""),
        ("[::1]:9404", ""),
        ("localhost:9404", ""),
        ("0.0.0.0:9404", "0.0.0.0:9404"),
        ("[::]:9404", "[::]:9404"),
        ("db1:0", "db1:0"),
    ],
)
def test_a_port_that_others_reach_is_warned_of_as_it_asks_nobody_who_they_are(value, place, caplog):
    config = make_config({"metrics.listen": value})
    assert open_metrics(config) == place
    warn_of_metrics(config)
    assert [f"all who reach {place} are told" in each for each in caplog.messages] == (
        [True] if place else []
    )


async def test_a_port_that_is_taken_is_named():
    async with new_node(SimDisk(), WATCHED) as node:
        taken = config_of({"metrics.listen": str(node.metrics_port), "log.dirs": "other"})
        with pytest.raises(OSError, match=f"^metrics.listen 127.0.0.1:{node.metrics_port}: "):
            async with new_node(SimDisk(), taken):
                """It does not start."""


async def test_who_says_nothing_keeps_nobody_from_asking():
    async with new_node(SimDisk(), WATCHED) as node:
        silent = [
            await trio.open_tcp_stream("127.0.0.1", node.metrics_port)
            for _ in range(http.CONNECTIONS_MAX)
        ]
        await quiet()
        assert (await get(node, "/healthz"))[0] == 200
        for stream in silent:
            await stream.aclose()
