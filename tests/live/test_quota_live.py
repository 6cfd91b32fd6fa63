"""A producer that could be ten times as fast as its quota is as fast as its quota, and nobody else
is slower for it (KIP-13, KIP-219).

Method: a node's process where users log in; one user's producer has more to send all the while than
its quota allows. Bytes, waits that were told and connections that are not read on are the node's
own numbers, times those by which it stamps records. A machine that is slow makes the producer
slower, and its waits shorter by as much: so the waits are held against the bytes.
"""

import re
import time
from collections import Counter
from contextlib import asynccontextmanager

import pytest
import trio
from brokers import batch
from patience import PATIENCE_S
from test_secure_live import Secure
from three_nodes import Nodes

from hightide import Producer
from hightide.net.connection import open_connection
from hightide.net.login import Login, LoginNetwork
from hightide.protocol import messages as m
from hightide_broker.runtime.server.throttle import BYTES_BURST_S
from hightide_cli.metrics import page_at

pytestmark = [pytest.mark.live, pytest.mark.slow]

QUOTA = 200_000
"""Bytes a second."""
FOR_S = 30
TOLERANCE = 0.15
BATCH_BYTES_MAX = 20_000
ROUNDING_S = 0.01
SENT = 'topic_bytes_total{topic="greedy",direction="in"}'
WAITS = 'throttle_seconds_total{quota="producer_byte_rate"}'
MUTED = "throttled_connections"


@pytest.fixture
def secure(tmp_path):
    made = Nodes(tmp_path / "data", "-n", "1", "--secure")
    try:
        yield Secure(made)
    finally:
        made.end()


def numbers(secure):
    """The node's metrics, by name and labels as they are written."""
    (row,) = secure.nodes.ps()
    page = page_at(row["metrics"], "/metrics").decode()
    found = re.findall(r"^hightide_(\S+) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


def prepare(secure):
    for user in ("greedy", "modest"):
        secure.set_password("create", user, "pw")
        secure.run("topics", "create", user, "--config", "message.timestamp.type=LogAppendTime")
        secure.run("acls", "allow", user, "write", f"topic:{user}")
    secure.run("quotas", "set", "--user", "greedy", f"producer_byte_rate={QUOTA}")


class Greedy:
    """Who sends whatever is taken, for so long by the node's clock; for each record that is stored,
    somebody else sends one."""

    def __init__(self, secure, other):
        self._secure = secure
        self._other = other
        self.seen_muted = False
        """Whether a connection was seen that is not read on."""
        self._began_ms = int(time.time() * 1000)
        self._stored_ms = 0
        self.told_others = Counter()
        """What somebody else is answered: errors and waits."""

    @property
    def took_s(self):
        """From before the first record until the last one was stored."""
        return (self._stored_ms - self._began_ms) / 1000

    async def run(self, producer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            while self.took_s < FOR_S:
                nursery.start_soon(self._hear, await producer.send("greedy", b"x" * 9_000))

    async def _look(self):
        while self.took_s < FOR_S and not self.seen_muted:
            found = await trio.to_thread.run_sync(numbers, self._secure)
            self.seen_muted = found[MUTED] == 1

    async def _hear(self, delivery):
        self._stored_ms = max((await delivery).timestamp, self._stored_ms)
        part = m.ProducePartition(topic="modest", partition=0, records=0)
        request = m.ProduceRequest(acks=-1, timeout_ms=5000, partitions=[part])
        answer, _ = await self._other.call(request, [batch(b"y")], timeout_s=PATIENCE_S)
        self.told_others[answer.partitions[0].error, answer.throttle_time_ms] += 1


@asynccontextmanager
async def modest(secure):
    network = LoginNetwork(secure.network, Login("SCRAM-SHA-256", "modest", "pw"))
    async with open_connection(network, "127.0.0.1", secure.ports[1]) as connection:
        yield connection


async def test_a_producer_that_could_be_ten_times_as_fast_is_held_to_its_quota(secure):
    prepare(secure)
    sizes = {"batch_size": BATCH_BYTES_MAX, "buffer_memory": QUOTA}
    async with (
        modest(secure) as other,
        Producer(**secure.of("greedy", "pw"), **sizes, acks="all") as producer,
    ):
        greedy = Greedy(secure, other)
        await greedy.run(producer)
    found, took_s = numbers(secure), greedy.took_s
    sent, waits_s = found[SENT], found[WAITS]
    print(f"\n{sent / took_s / QUOTA:.3f} of the quota, {waits_s / took_s:.3f} of the time waited")
    assert sent <= (took_s + BYTES_BURST_S) * QUOTA + BATCH_BYTES_MAX
    assert sent <= (1 + TOLERANCE) * took_s * QUOTA
    assert waits_s <= sent / QUOTA - BYTES_BURST_S + ROUNDING_S, "no longer than for what it sent"
    assert waits_s <= took_s + BATCH_BYTES_MAX / QUOTA, "what it was told came to pass"
    assert waits_s > 0
    assert greedy.seen_muted
    assert [*greedy.told_others] == [(None, 0)]
