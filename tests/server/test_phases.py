"""How long a request was in which phase: it waits its turn, is carried out, waits, is sent.

Goal: time that somebody waits is told as the phase it was spent in, and as no other. Method: a real
node on loopback, and a clock that moves only when a test moves it.
"""

import math

import trio
from brokers import batch, client_of, hard_of_hearing, new_node, quiet
from brokers import settings as config_of

from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide.protocol import wire
from hightide_broker.runtime.base.measures import Course, Histogram
from hightide_broker.runtime.server.counts import (
    FETCH,
    KINDS,
    LOCAL,
    OTHER,
    PHASES,
    PRODUCE,
    QUEUE,
    REMOTE,
    REPLICATION,
    SEND,
    THROTTLE,
)
from hightide_broker.runtime.server.throttle import BYTES_BURST_S
from hightide_broker.simulation.disk import SimDisk

ONE_AT_A_TIME = config_of({"max.in.flight.requests.per.connection": "1"})
QUESTIONS_AT_ONCE = 1_000
LARGE = 200
"""So many partitions make large answers, of which few are more than a connection takes."""
RATE = 100_000


def parked(replica_id=-1):
    part = m.FetchPartition(topic="t", partition=0, fetch_offset=0)
    return m.FetchRequest(max_wait_ms=60_000, partitions=[part], replica_id=replica_id)


def spent(node, kind, phase):
    """How many requests left a phase, and how long they were in it in all."""
    step = node.server.counts.phases[kind][phase]
    return sum(step.counts), step.total_s


async def test_who_waits_for_records_waits_remotely_and_who_is_behind_it_in_the_queue(mock_clock):
    async with (
        new_node(SimDisk(), ONE_AT_A_TIME) as node,
        client_of(node) as calm,
        client_of(node) as waits,
    ):
        await calm.create()
        fetched = await waits.connection.begin(parked())
        behind = await waits.connection.begin(m.MetadataRequest())
        await quiet()
        before = {phase: spent(node, OTHER, phase) for phase in (QUEUE, LOCAL, SEND)}
        assert spent(node, FETCH, QUEUE) == (1, 0.0)
        assert spent(node, FETCH, LOCAL) == (1, 0.0)
        assert spent(node, FETCH, REMOTE) == (0, 0.0)
        mock_clock.jump(5)
        await calm.produce(b"x")
        await fetched.wait(timeout_s=100)
        await behind.wait(timeout_s=100)
        assert spent(node, FETCH, REMOTE) == (1, 5.0)
        assert spent(node, FETCH, SEND) == (1, 0.0)
        for phase, waited in ((QUEUE, 5.0), (LOCAL, 0.0), (SEND, 0.0)):
            count, total_s = before[phase]
            assert spent(node, OTHER, phase) == (count + 1, total_s + waited)
        assert spent(node, PRODUCE, QUEUE)[0] == 1
        assert spent(node, REPLICATION, QUEUE) == (0, 0.0)


async def test_who_waits_for_a_quota_waits_for_no_turn(mock_clock):
    part = [m.ProducePartition(topic="t", partition=0, records=0)]
    produce = m.ProduceRequest(acks=-1, timeout_ms=1000, partitions=part)
    quota = k.QuotaSetting(key=k.PRODUCER_BYTE_RATE, value=RATE, user=k.DEFAULT)
    async with new_node(SimDisk(), ONE_AT_A_TIME) as node, client_of(node) as client:
        await client.create()
        await node.change(k.AlterClientQuotasRequest(quotas=[quota]))
        told = await client.call(produce, batch(bytes(int((BYTES_BURST_S + 5) * RATE))))
        before = {phase: spent(node, OTHER, phase) for phase in (QUEUE, LOCAL, THROTTLE)}
        behind = await client.connection.begin(m.MetadataRequest())
        await quiet()
        for _ in range(math.ceil(told.throttle_time_ms / 1000)):
            mock_clock.jump(1)
            await quiet()
        await behind.wait(timeout_s=100)
        assert spent(node, PRODUCE, THROTTLE) == (0, 0.0)
        assert spent(node, OTHER, QUEUE) == (before[QUEUE][0] + 1, before[QUEUE][1])
        assert spent(node, OTHER, LOCAL) == (before[LOCAL][0] + 1, before[LOCAL][1])
        count, waited_s = spent(node, OTHER, THROTTLE)
        assert count == before[THROTTLE][0] + 1
        assert told.throttle_time_ms / 1000 <= waited_s <= told.throttle_time_ms / 1000 + 1


def test_only_what_was_waited_for_since_it_had_come_is_left_out():
    steps = [Histogram(), Histogram()]
    course = Course(steps, 10.0)
    course.leave_out(1, [(2.0, 5.0), (10.0, 12.0), (13.0, 14.0)])
    course.enter(1, 16.0)
    assert [(sum(step.counts), step.total_s) for step in steps] == [(1, 3.0), (1, 3.0)]


async def test_an_answer_that_is_not_taken_is_on_its_way(mock_clock):
    metadata = b"".join(wire.encode_request(m.MetadataRequest(), request_id=1, client="c"))
    async with new_node(SimDisk(), ONE_AT_A_TIME) as node, client_of(node) as client:
        await client.create(partitions=LARGE)
        async with await hard_of_hearing(node) as stream, trio.open_nursery() as nursery:

            async def ask():
                while True:
                    await stream.send_all(metadata * QUESTIONS_AT_ONCE)

            nursery.start_soon(ask)
            while all(each._answers._outbox.is_empty for each in node.server._inside):
                await quiet()
            before = spent(node, OTHER, SEND)
            mock_clock.jump(3)
            while spent(node, OTHER, SEND) == before:
                await stream.receive_some(1 << 20)
                await quiet()
            nursery.cancel_scope.cancel()
        assert before[1] == 0.0
        assert spent(node, OTHER, SEND)[1] == 3.0


def test_each_phase_has_a_name():
    assert [PHASES[phase] for phase in (QUEUE, THROTTLE, LOCAL, REMOTE, SEND)] == list(PHASES)
    assert len({*KINDS}) == 4
