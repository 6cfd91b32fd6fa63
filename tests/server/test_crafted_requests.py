"""Each part of a request is judged by what it would write to, however the request is made up.

Goal: a produce request brings nothing into a topic that its sender may not write to, whatever
stands beside it: parts that are allowed, producers' ids, no acks, keys that nobody knows
(CVE-2018-17196). Method: one node with both doors under TLS, `alice` who may write to `t` and what
begins so; frames as she writes them.
"""

from contextlib import asynccontextmanager, suppress

import msgpack
import pytest
import trio
from brokers import batch
from patience import PATIENCE_MS, PATIENCE_S
from streams import send_all
from test_disclosure import stream_of
from test_gate import TOPIC, guarded, rules

from hightide.net.connection import FrameReader
from hightide.protocol import messages as m
from hightide.protocol import wire

SECRET = "secret"
KNOWN = 77
"""A producer that has written to the secret topic before."""
UNKNOWN = 78
BEFORE = [b"before"]
ALLOWED = {"topic": "t", "partition": 0, "records": 0}
DENIED = {"topic": SECRET, "partition": 0, "records": 1}
ACKS = [0, 1, -1]
AFTER = m.ApiVersionsRequest()
"""Answered after what came before it, on a connection that is still open."""


def body(*parts, acks, **more):
    return {"acks": acks, "timeout_ms": PATIENCE_MS, "partitions": list(parts), **more}


def twice(first, second, *, acks):
    """A map with two lists of partitions, which no library makes."""
    packed = [msgpack.packb(each) for each in ("partitions", [first], "partitions", [second])]
    head = msgpack.packb({"acks": acks, "timeout_ms": PATIENCE_MS})
    return bytes((head[0] + 2,)) + head[1:] + b"".join(packed)


OTHER_WORDS = {
    "transactional_id": "mine",
    "producer_id": KNOWN,
    "producer_epoch": 0,
    "topic": "t",
    "topics": [{"topic": SECRET, "partitions": [{"partition": 0, "records": 1}]}],
    "principal": "User:admin",
    "replica_id": 1,
}
"""Of other protocols, and of other requests."""
BODIES = {
    "the allowed one first": lambda acks: body(ALLOWED, DENIED, acks=acks),
    "the denied one first": lambda acks: body(DENIED, ALLOWED, acks=acks),
    "the denied one alone": lambda acks: body(DENIED, acks=acks),
    "the denied one twice": lambda acks: body(DENIED, ALLOWED, DENIED, acks=acks),
    "the same records": lambda acks: body(ALLOWED, {**DENIED, "records": 0}, acks=acks),
    "records that did not come": lambda acks: body({**DENIED, "records": 9}, acks=acks),
    "a partition that is not there": lambda acks: body({**DENIED, "partition": 9}, acks=acks),
    "words that nobody knows": lambda acks: body(DENIED, acks=acks, **OTHER_WORDS),
    "words in a part": lambda acks: body({**DENIED, "topic_id": "t", "name": "t"}, acks=acks),
    "a list after another": lambda acks: twice(ALLOWED, DENIED, acks=acks),
    "a list before another": lambda acks: twice(DENIED, ALLOWED, acks=acks),
    "a way to it": lambda acks: body({**DENIED, "topic": f"t/../{SECRET}"}, acks=acks),
    "its directory": lambda acks: body({**DENIED, "topic": f"t/../{SECRET}-0"}, acks=acks),
}
PRODUCERS = {
    "nobody": (-1, -1, -1),
    "a new producer": (UNKNOWN, 0, 0),
    "the next of one that is known": (KNOWN, 0, 1),
    "again what is known": (KNOWN, 0, 0),
    "a later epoch of one that is known": (KNOWN, 1, 0),
}


class Crafting:
    """A node with a secret, and whoever looks into it."""

    def __init__(self, world):
        self.world = world

    async def values(self, topic):
        """What is stored, for who may read it by now."""
        await self.world.admin.create_acls(rules(f"READ topic:{topic}"))
        return await self.world.alice.values(topic=topic)

    @property
    def secret(self):
        """The end of the secret topic, and all that is known there of producers."""
        replica = self.world.node.replicas.get(SECRET, 0)
        known = (replica.producers.get(each) for each in (KNOWN, UNKNOWN))
        return replica.log.log_end, repr([*known])

    async def send(self, packed, *attachments, acks):
        """What is answered to a produce request, or without acks to one after it; None if the
        connection is closed instead."""
        envelope = {"api": "produce", "version": 1, "id": 7, "client": "c"}
        head = msgpack.packb(envelope)
        message = bytes((head[0] + 1,)) + head[1:] + msgpack.packb("body") + packed
        frame = None
        async with stream_of(self.world) as stream:
            with suppress(OSError), trio.fail_after(PATIENCE_S):  # closed before all was sent
                await send_all(stream, *wire.frame_buffers(message, attachments))
                if not acks:
                    await send_all(stream, *wire.encode_request(AFTER, request_id=9, client="c"))
                frame = await FrameReader(stream).next_frame()
        return None if frame is None else msgpack.unpackb(frame)


@asynccontextmanager
async def crafting(tmp_path):
    async with guarded(tmp_path) as world:
        await world.admin.create_topic(SECRET)
        await world.only(*rules(f"WRITE topic:{SECRET}"))
        first = batch(*BEFORE, producer=(KNOWN, 0, 0))
        stored = await world.alice.send(first, topic=SECRET, timeout_ms=PATIENCE_MS)
        assert stored.error is None
        await world.only(*rules("WRITE topic:t*"))
        yield Crafting(world)


@pytest.mark.parametrize("acks", ACKS)
async def test_nothing_comes_into_a_topic_beside_what_is_allowed(tmp_path, acks):
    async with crafting(tmp_path) as at:
        before = at.secret
        assert before[0] == len(BEFORE)
        for name, made in BODIES.items():
            for who, producer in PRODUCERS.items():
                wanted = made(acks)
                packed = wanted if isinstance(wanted, bytes) else msgpack.packb(wanted)
                allowed, denied = batch(b"allowed"), batch(b"denied", producer=producer)
                answer = await at.send(packed, allowed, denied, acks=acks)
                assert at.secret == before, f"{name}, by {who}"
                if isinstance(wanted, bytes):
                    continue  # one list or the other was taken
                if acks == 0:
                    assert answer is None, f"{name}, by {who}"
                else:
                    check_refused(answer, f"{name}, by {who}")
        assert await at.values(SECRET) == BEFORE
        assert set(await at.values("t")) == {b"allowed"}


def check_refused(answer, told):
    """Nothing is said of the secret but that it is refused."""
    parts = {each["topic"]: each for each in answer["body"]["partitions"]}
    assert {*parts} - {"t"}, told
    for topic in {*parts} - {"t"}:
        refused = parts[topic]
        assert {*refused} == {"topic", "partition", "error", "message"}, told
        assert refused["error"] == (TOPIC if topic == SECRET else "UNKNOWN_TOPIC_OR_PARTITION")
    assert parts.get("t", {}).get("error") is None, told
