"""The broker's port: whatever comes in, the others are served.

Goal: promise 7 of the design, and §2: any bytes get a typed error or a closed connection. Method:
real sockets to a real node; after each attack another client, connected all the while, writes and
reads, and the server must not have called anything a bug. Time is trio's mock clock, moved by hand.
The order of good requests is `test_requests.py`'s.
"""

import json
import logging
import struct
import typing
from contextlib import asynccontextmanager

import msgpack
import pytest
import trio
from brokers import batch, client_of, hard_of_hearing, new_node, quiet
from brokers import settings as config_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S
from tries import tries

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.apis import APIS
from hightide.protocol.bins import bin_header
from hightide.protocol.errors import ERRORS, ErrorCode
from hightide.protocol.strangers import http_refusal
from hightide_broker.simulation.disk import SimDisk

QUIET = settings(max_examples=tries(60), deadline=None)


class Bugs(logging.Handler):
    """Collects what the server's own log calls an error."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.found = []

    def emit(self, record):
        self.found.append(record.getMessage())


@asynccontextmanager
async def guarded(over=None, disk=None):
    """A node to attack; at the end a bystander must have been served and no bug been met."""
    bugs, log = Bugs(), logging.getLogger("hightide.server")
    log.addHandler(bugs)
    try:
        async with new_node(disk or SimDisk(), config_of(over)) as node, client_of(node) as calm:
            await calm.create("calm")
            await calm.create("t", partitions=2)
            node.calm, node.raw = calm, []
            try:
                yield node
                await assert_calm(node)
            finally:
                for stream in node.raw:
                    await trio.aclose_forcefully(stream)
    finally:
        log.removeHandler(bugs)
    assert bugs.found == []


async def assert_calm(node):
    """The bystander writes and reads on its old connection."""
    sent = await node.calm.produce(b"calm", topic="calm")
    fetched = await node.calm.fetch(sent.base_offset, topic="calm")
    assert (sent.error, fetched.values) == (None, [b"calm"])


async def open_raw(node):
    """A bare connection; closed with the node if not before."""
    node.raw.append(await trio.open_tcp_stream("127.0.0.1", node.port))
    return node.raw[-1]


async def attack(node, data):
    """Send bytes and the end of the stream; the answers that came before it was closed."""
    return answers_in(await exchange(node, data))


async def exchange(node, data):
    """Send bytes and the end of the stream; what came before it was closed."""
    received = bytearray()
    async with await open_raw(node) as stream:
        try:
            await stream.send_all(data)
            await stream.send_eof()
            with trio.fail_after(PATIENCE_S):
                async for chunk in stream:
                    received += chunk
        except trio.BrokenResourceError:
            pass
    return bytes(received)


def answers_in(received):
    """The messages of so many frames."""
    answers = []
    while received:
        length = 4 + int.from_bytes(received[:4], "big")
        answers.append(msgpack.Unpacker(None, max_buffer_size=1 << 24, strict_map_key=False))
        answers[-1].feed(received[4:length])
        received = received[length:]
    return [unpacker.unpack() for unpacker in answers]


def framed(message, *attachments):
    parts = [message]
    for attachment in attachments:
        parts += (bin_header(len(attachment)), bytes(attachment))
    body = b"".join(parts)
    return struct.pack(">I", len(body)) + body


def envelope(api, body, *, version=1, **over):
    fields = {"api": api, "version": version, "id": 7, "client": "x", "body": body}
    return msgpack.packb({**fields, **over})


def request_bytes(request, *attachments):
    return b"".join(wire.encode_request(request, request_id=7, client="x", attachments=attachments))


# --- what is no request -------------------------------------------------------------------------

TLS = bytes.fromhex("16030102000100 01fc0303") + bytes(range(200))
NESTED = b"\x91" * 60_000 + b"\xc0"
NO_FRAMES = {
    "no bytes of a frame": (b"\0\0\0\0", "CORRUPT_FRAME"),
    "a frame of 4 GiB": (b"\xff\xff\xff\xff" + b"x" * 100, "CORRUPT_FRAME"),
    "tls": (TLS, "CORRUPT_FRAME"),
    "ssh": (b"SSH-2.0-OpenSSH_9.6\r\n", "CORRUPT_FRAME"),
    "nested arrays": (framed(NESTED), "INVALID_REQUEST"),
    "nested maps": (framed(b"\x81\xc0" * 60_000 + b"\xc0"), "INVALID_REQUEST"),
    "an array that claims much": (framed(b"\xdd\xff\xff\xff\xff"), "INVALID_REQUEST"),
    "a map that claims much": (framed(b"\xdf\xff\xff\xff\xff"), "INVALID_REQUEST"),
    "bytes that claim much": (framed(b"\xc6\xff\xff\xff\xff"), "INVALID_REQUEST"),
    "no map": (framed(msgpack.packb([1, 2])), "INVALID_REQUEST"),
    "an extension": (framed(msgpack.packb(msgpack.ExtType(5, b"x"))), "INVALID_REQUEST"),
    "an unused byte of msgpack": (framed(b"\xc1"), "INVALID_REQUEST"),
    "a long message": (framed(envelope("metadata", {}, client="x" * 1_100_000)), "INVALID_REQUEST"),
    "many attachments": (framed(envelope("metadata", {}), *[b""] * 10_001), "INVALID_REQUEST"),
    "no attachment": (framed(envelope("metadata", {}) + b"junk"), "INVALID_REQUEST"),
    "a cut attachment": (framed(envelope("metadata", {}) + b"\xc4\x09abc"), "INVALID_REQUEST"),
    "an api that is a number": (framed(envelope(5, {})), "INVALID_REQUEST"),
    "an api that is no text": (
        framed(envelope("metadata", {}).replace(b"metadata", b"\xff" * 8)),
        "INVALID_REQUEST",
    ),
    "an id that is text": (framed(envelope("metadata", {}, id="7")), "INVALID_REQUEST"),
    "a body of the wrong type": (framed(envelope("produce", [1])), "INVALID_REQUEST"),
    "acks that are text": (
        framed(envelope("produce", {"acks": "all", "timeout_ms": 1, "partitions": []})),
        "INVALID_REQUEST",
    ),
    "a body without its fields": (framed(envelope("fetch", {})), "INVALID_REQUEST"),
    "an unknown api": (framed(envelope("drop_everything", {})), "INVALID_REQUEST"),
    "an api of brokers": (
        request_bytes(
            c.RegisterBrokerRequest(broker=1, incarnation="i", cluster_id="c", host="h", port=1)
        ),
        "INVALID_REQUEST",
    ),
    "an unknown version": (framed(envelope("metadata", {}, version=2)), "UNSUPPORTED_VERSION"),
    "a version below all": (framed(envelope("metadata", {}, version=-1)), "UNSUPPORTED_VERSION"),
}


@pytest.mark.parametrize("name", NO_FRAMES)
async def test_bytes_that_are_no_request_get_a_typed_error(name):
    data, code = NO_FRAMES[name]
    async with guarded() as node:
        (answer,) = await attack(node, data)
        assert answer["error"]["code"] == code
        if name in ("tls", "ssh"):
            assert name.upper() in answer["error"]["message"]


async def test_a_browser_is_told_in_words_it_can_show():
    async with guarded() as node, await open_raw(node) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        told = b"".join([piece async for piece in stream]).decode()
    head, _, body = told.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    assert f"Content-Length: {len(body)}" in head
    assert "not HTTP" in body


KAFKA_ASKS_FOR_VERSIONS = bytes.fromhex("0012 0003 00000001 000a") + b"rdkafka-1.\0\0"


async def test_the_log_says_that_a_client_of_kafkas_knocked(caplog):
    caplog.set_level(logging.INFO, "hightide.server")
    async with guarded({"kafka.protocol.enable": "false"}) as node:
        (answer,) = await attack(node, framed(KAFKA_ASKS_FOR_VERSIONS))
    assert answer["error"]["code"] == "INVALID_REQUEST"
    (line,) = [r.getMessage() for r in caplog.records if "closed" in r.getMessage()]
    assert "speaks Kafka's own protocol" in line


@pytest.mark.parametrize("depth", [50, 500, 5000])
@pytest.mark.parametrize("where", ["envelope", "body"])
async def test_unknown_keys_may_hold_anything_or_are_refused(where, depth):
    key = msgpack.packb("unknown")
    junk = key + b"\x91" * depth + b"\xc0"
    body = b"\x81" + junk if where == "body" else b"\x80"
    fields = envelope("metadata", {})[1:].removesuffix(b"\x80") + body
    message = b"\x86" + junk + fields if where == "envelope" else b"\x85" + fields
    async with guarded() as node:
        (answer,) = await attack(node, framed(message))
        known = "topics" in answer["body"]
        assert known or answer["error"]["code"] == "INVALID_REQUEST"
        assert known or depth > 50


@pytest.mark.slow
@given(st.lists(st.binary(max_size=300), max_size=3), st.booleans())
@example([b"GET / HTTP/1.1\r\n\r\n"], False)
@QUIET
async def test_random_bytes_get_a_typed_error_or_a_closed_connection(pieces, as_frames):
    data = b"".join(framed(piece) if as_frames else piece for piece in pieces)
    async with guarded() as node:
        # Bytes that happen to begin as HTTP does are told so in HTTP, and that is the last word.
        received = (await exchange(node, data)).removesuffix(http_refusal())
        for answer in answers_in(received):
            assert ErrorCode(answer["error"]["code"]) in ERRORS


async def test_a_frame_that_is_cut_anywhere_has_no_effect():
    part = m.ProducePartition(topic="t", partition=0, records=0)
    data = request_bytes(
        m.ProduceRequest(acks=1, timeout_ms=1, partitions=[part]), batch(b"never stored")
    )
    async with guarded() as node:
        for end in range(0, len(data), 3):
            answers = await attack(node, data[:end])
            assert [answer["error"]["code"] for answer in answers] in ([], ["CORRUPT_FRAME"])
        assert await node.calm.values() == []
        (answer,) = await attack(node, data)
        assert answer["id"] == 7
        assert await node.calm.values() == [b"never stored"]


# --- requests that mean nothing -----------------------------------------------------------------

EDGES = (-(2**63), -(2**31), -3, -2, -1, 0, 1, 2, 2**15, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1)
WORDS = ("t", "", ".", "..", "../t", "t-0", "__cluster_metadata", "a" * 250, "ü", "t\0", "topic")
CONFIG_WORDS = ("segment.bytes", "retention.ms", "-1", "x", "1e9", "nan", "compact", "")


def of_type(kind):
    """Values of a message's field, mostly of its type and seldom of its meaning."""
    junk = st.sampled_from([None, -1, "x", 1.5, b"x", [], {}, True])
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is int:
        good = st.sampled_from(EDGES)
    elif kind is str:
        good = st.sampled_from(WORDS)
    elif kind is bool:
        good = st.booleans()
    elif origin is list:
        good = st.lists(of_type(args[0]), max_size=3)
    elif origin is dict:
        words = st.sampled_from(CONFIG_WORDS)
        good = st.dictionaries(words, words, max_size=3)
    elif args:
        good = st.one_of(*(of_type(each) for each in args if each is not type(None)))
    else:
        hints = typing.get_type_hints(kind)
        good = st.fixed_dictionaries({name: of_type(hint) for name, hint in hints.items()})
    return st.integers(0, 29).flatmap(lambda n: good if n else junk)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_any_fields_of_a_request_get_an_answer_or_a_typed_error(api):
    @given(st.lists(of_type(api.request), min_size=1, max_size=4))
    @settings(max_examples=tries(25), deadline=None)
    def run(bodies):
        trio.run(ask, api.name, bodies)

    run()


async def ask(api, bodies):
    async with guarded() as node:
        await node.calm.produce(b"x" * 50)
        data = b"".join(framed(envelope(api, body), batch(b"x"), b"junk") for body in bodies)
        for answer in await attack(node, data):
            assert answer["id"] == 7
            error = answer.get("error")
            assert error is None or error["code"] != "UNKNOWN_SERVER_ERROR"
            json.dumps(answer["body"], default=bytes.hex)


def lying(at, kind, value, *, crc=True):
    """A batch with one header field changed, and the CRC made right again."""
    data = batch(b"a", b"b", keys=[b"k", b"l"])
    struct.pack_into(kind, data, at, value)
    if crc:
        struct.pack_into(">I", data, 17, wire_crc(data))
    return data


def wire_crc(data):
    from hightide.protocol.records import crc32c

    return crc32c(memoryview(data)[21:])


def with_payload(payload, *, count=1, codec="none"):
    from hightide.protocol.records import encode_batch

    return encode_batch(payload, record_count=count, base_timestamp=0, max_timestamp=0, codec=codec)


NO_BATCHES = {
    "nothing": (b"", "CORRUPT_MESSAGE"),
    "a cut header": (batch(b"x")[:60], "CORRUPT_MESSAGE"),
    "a cut batch": (batch(b"x")[:-1], "CORRUPT_MESSAGE"),
    "a byte more": (batch(b"x") + b"\0", "CORRUPT_MESSAGE"),
    "two batches": (batch(b"x") + batch(b"y"), "CORRUPT_MESSAGE"),
    "another magic": (lying(16, ">b", 3), "CORRUPT_MESSAGE"),
    "a bad crc": (lying(17, ">I", 1, crc=False), "CORRUPT_MESSAGE"),
    "an unknown codec": (lying(21, ">h", 2), "CORRUPT_MESSAGE"),
    "a control batch": (lying(21, ">h", 0x20), "INVALID_RECORD"),
    "more offsets than records": (lying(23, ">i", 5), "INVALID_RECORD"),
    "fewer offsets than records": (lying(23, ">i", 0), "INVALID_RECORD"),
    "a negative delta": (lying(23, ">i", -1), "CORRUPT_MESSAGE"),
    "a wrong count": (lying(57, ">i", 3), "INVALID_RECORD"),
    "a negative count": (lying(57, ">i", -2), "CORRUPT_MESSAGE"),
    "a count of 2 billion": (lying(57, ">i", 2**31 - 1), "CORRUPT_MESSAGE"),
    "an offset of its own": (lying(0, ">q", 9), "INVALID_RECORD"),
    "no columns": (with_payload(b"junk"), "CORRUPT_MESSAGE"),
    "no payload": (with_payload(b""), "CORRUPT_MESSAGE"),
    "columns of 5 records for 1": (
        with_payload(bytes(batch(*[b"x"] * 5))[61:]),
        "CORRUPT_MESSAGE",
    ),
    "junk for lz4": (lying(21, ">h", 3), "CORRUPT_MESSAGE"),
    "junk for zstd": (lying(21, ">h", 4), "CORRUPT_MESSAGE"),
    "a bomb of zstd": (with_payload(bytes(20 << 20), codec="zstd"), "MESSAGE_TOO_LARGE"),
    "a bomb of lz4": (with_payload(bytes(20 << 20), codec="lz4"), "MESSAGE_TOO_LARGE"),
}


@pytest.mark.parametrize("name", NO_BATCHES)
async def test_a_batch_that_lies_is_refused_and_nothing_is_stored(name):
    data, code = NO_BATCHES[name]
    async with guarded({"message.inflated.max.bytes": "1MiB"}) as node:
        for acks in (1, -1):
            refused = await node.calm.send(data, acks=acks)
            assert (refused.error, refused.base_offset) == (code, -1)
        assert await node.calm.values() == []


@pytest.mark.slow
@given(st.data())
@settings(max_examples=tries(80), deadline=None)
async def test_a_batch_with_any_bytes_changed_is_refused_or_can_be_read(data):
    good = batch(b"a", b"bb", None, keys=[b"k", None, b""], headers={1: (("h", b"v"),)})
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    if len(bad) == len(good):
        struct.pack_into(">I", bad, 17, wire_crc(bad))
    async with guarded() as node:
        sent = await node.calm.send(bad)
        records = await node.calm.read_all()
        assert len(records) == (0 if sent.error else 3)


@pytest.mark.parametrize("records", [-1, 1, 2**31])
async def test_records_that_did_not_come_along_are_refused(records):
    part = m.ProducePartition(topic="t", partition=0, records=records)
    async with guarded() as node:
        request = m.ProduceRequest(acks=1, timeout_ms=1, partitions=[part])
        reply = await node.calm.call(request, batch(b"x"))
        assert reply.partitions[0].error == "INVALID_REQUEST"


async def test_a_refused_produce_without_acks_closes_its_connection():
    part = m.ProducePartition(topic="gone", partition=0, records=0)
    request = m.ProduceRequest(acks=0, timeout_ms=1, partitions=[part])
    async with guarded() as node:
        assert await attack(node, request_bytes(request, batch(b"x")) * 2) == []


# --- who takes too long -------------------------------------------------------------------------


async def settle(mock_clock, seconds):
    """Let everything happen that can, then let time pass."""
    await quiet()
    mock_clock.jump(seconds)
    await quiet()


async def test_a_client_that_says_nothing_is_closed_and_one_that_does_or_waits_is_not(mock_clock):
    async with guarded({"connections.max.idle.ms": "10s"}) as node, trio.open_nursery() as nursery:
        waiting = await open_raw(node)
        part = m.FetchPartition(topic="t", partition=1, fetch_offset=0)
        fetch = m.FetchRequest(max_wait_ms=30_000, partitions=[part])
        await waiting.send_all(request_bytes(fetch))
        quiet, dribbling = await open_raw(node), await open_raw(node)
        nursery.start_soon(dribbling.send_all, b"\0\0")
        await settle(mock_clock, 6)
        await assert_calm(node)
        assert node.server.connections().total() == 4
        await settle(mock_clock, 6)
        assert node.server.connections().total() == 2
        assert [node.server.most_since(), node.server.most_since()] == [4, 2]
        assert node.server.counts.closed["client", "idle"] == 2
        for stream in (quiet, dribbling):
            assert await stream.receive_some() == b""
            await stream.aclose()
        for seconds in (0, 6, 6, 7):
            await settle(mock_clock, seconds)
            await assert_calm(node)
        assert len(await waiting.receive_some()) > 10
        await waiting.aclose()


async def test_a_request_that_does_not_arrive_in_time_is_given_up(mock_clock):
    async with guarded({"request.timeout.ms": "5s"}) as node:
        stream = await open_raw(node)
        await stream.send_all(b"\0\0\x10\0")
        for _ in range(4):
            await settle(mock_clock, 1)
            await stream.send_all(b"x")
        assert node.server.connections().total() == 2
        await settle(mock_clock, 2)
        assert node.server.connections().total() == 1
        assert node.server.counts.closed == {("client", "slow"): 1}
        await stream.aclose()


async def test_announced_requests_that_do_not_come_hold_nobody_up(mock_clock):
    async with guarded() as node:
        streams = [await open_raw(node) for _ in range(4)]
        for stream in streams:
            await stream.send_all(struct.pack(">I", 64 << 20))
        await quiet()
        served = trio.Event()

        async def call():
            await assert_calm(node)
            served.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await quiet()
            in_time = served.is_set()
            for stream in streams:
                await stream.aclose()
        assert in_time


async def test_a_client_that_does_not_take_its_answer_is_dropped(mock_clock):
    async with guarded({"write.timeout.ms": "5s"}) as node:
        for _ in range(20):
            await node.calm.produce(b"x" * 1_000_000)
        async with await hard_of_hearing(node) as stream:
            part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=50 << 20)
            await stream.send_all(request_bytes(m.FetchRequest(max_wait_ms=0, partitions=[part])))
            await settle(mock_clock, 5)
            assert node.server.connections().total() == 2
            await assert_calm(node)
            await settle(mock_clock, 25_000_000 / (256 << 10))
            assert node.server.connections().total() == 1
            assert node.server.counts.closed == {("client", "slow"): 1}


async def test_connections_above_the_limit_are_closed_until_one_goes():
    async with guarded({"max.connections": "2"}) as node:
        first = await open_raw(node)
        await quiet()
        async with await open_raw(node) as refused:
            with trio.fail_after(PATIENCE_S):
                assert await refused.receive_some() == b""
        await first.aclose()
        await quiet()
        (answer,) = await attack(node, framed(envelope("metadata", {})))
        assert answer["id"] == 7
