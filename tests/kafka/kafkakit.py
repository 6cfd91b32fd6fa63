"""A bare client of Kafka's protocol, for tests: it says exactly what it is told to, and reads the
answers by the tables. No test lives here."""

import ssl
import struct
import warnings
from contextlib import asynccontextmanager, contextmanager

import trio
from brokers import batch, client_of, new_node, settings
from patience import PATIENCE_S

from hightide.protocol.codecs import at_once
from hightide.protocol.conversion import to_rows
from hightide.protocol.records import parse_header
from hightide_broker.kafka.fields import fields_of
from hightide_broker.kafka.reading import Source, reader
from hightide_broker.kafka.tables import API_BY_KEY
from hightide_broker.kafka.writing import Attached, Target, writer
from hightide_broker.simulation.disk import SimDisk

API_BY_NAME = {api.name: api for api in API_BY_KEY.values()}
CLIENT_ID = "kit"
ANSWERED_MAX = 1_000_000
"""Elements of an answer: what is told has no limit but what may be asked."""


def records(data):
    """A batch, as it goes into a request."""
    return Attached(bytes(data), len(data))


def rows(*values, **kind):
    """A batch of rows, as a client of Kafka's sends it."""
    made = batch(*values, **kind)
    return bytes(to_rows(made, parse_header(made)))


def request_bytes(name, version, fields, *, correlation_id=1, client_id=CLIENT_ID):
    """The frame of a request."""
    api, out = API_BY_NAME[name], Target()
    out += struct.pack(">hhih", api.key, version, correlation_id, len(client_id))
    out += client_id.encode()
    if api.is_flexible(version):
        out.varint(0)
    write = writer(fields_of(api.request), version, flexible=api.is_flexible(version))
    at_once(write(out, fields))
    return struct.pack(">i", out.size) + b"".join(map(bytes, out.parts()))


def answer_in(name, version, body):
    """An answer's correlation id and fields."""
    api, source = API_BY_NAME[name], Source(memoryview(body), 4)
    if api.is_flexible(version) and name != "api_versions":
        assert source.varint() == 0
    read = reader(fields_of(api.response), version, flexible=api.is_flexible(version))
    source.elements_left = ANSWERED_MAX
    found = at_once(read(source))
    assert source.at == len(body)
    return int.from_bytes(body[:4], "big"), found


class KafkaClient:
    """One connection. Methods fill in what a test does not care about."""

    def __init__(self, stream):
        self.stream = stream
        self._sent = 0
        self._unread = b""

    async def send(self, name, version, **fields):
        """Ask, and do not wait; the correlation id."""
        self._sent += 1
        await self.stream.send_all(request_bytes(name, version, fields, correlation_id=self._sent))
        return self._sent

    async def receive(self, name, version):
        """The next answer, with its correlation id."""
        return answer_in(name, version, await self.body())

    async def body(self):
        """The next answer's bytes."""
        with trio.fail_after(PATIENCE_S):
            (length,) = struct.unpack(">i", await self._exactly(4))
            return await self._exactly(length)

    async def call(self, name, version, **fields):
        sent = await self.send(name, version, **fields)
        correlation_id, answer = await self.receive(name, version)
        assert correlation_id == sent
        return answer

    async def _exactly(self, count):
        while len(self._unread) < count:
            piece = await self.stream.receive_some(65536)
            if not piece:
                raise trio.EndOfChannel
            self._unread += piece
        found, self._unread = self._unread[:count], self._unread[count:]
        return found

    async def is_closed(self):
        """Whether the other side ends it without a word."""
        with trio.fail_after(PATIENCE_S):
            try:
                return await self.stream.receive_some(1) == b""
            except trio.BrokenResourceError:
                return True


@asynccontextmanager
async def kafka_client(node, authorities=None):
    """A bare connection to a node, for the block; under TLS if authorities are believed."""
    stream = await trio.open_tcp_stream("127.0.0.1", node.port)
    if authorities is not None:
        context = ssl.create_default_context(cafile=authorities)
        stream = trio.SSLStream(stream, context, server_hostname="127.0.0.1")
    try:
        yield KafkaClient(stream)
    finally:
        await trio.aclose_forcefully(stream)


@asynccontextmanager
async def both(over=None, *, partitions=1):
    """A node with a topic `t`, a client of ours and one of Kafka's protocol, for the block."""
    async with (
        new_node(SimDisk(), settings(over)) as node,
        client_of(node) as ours,
        kafka_client(node) as theirs,
    ):
        await ours.create("t", partitions=partitions)
        yield ours, theirs


@contextmanager
def quiet_clients():
    """For clients that others wrote, in the block: what they are warned of is not about us."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
