"""No counter falls while its process lives, whatever clients, disks and clocks do to it.

Goal: a rate of any of them is of things that happened. Method: Hypothesis draws what befalls a
node, good and bad; after each of it the whole page is read. What is told of one topic
may end with the topic; all else must still be there, and be no less.
"""

import re
from contextlib import suppress

import pytest
import trio
from brokers import FakeClock, batch, client_of, new_node
from brokers import settings as config_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_metrics_told import JOIN
from tries import tries

from hightide import HightideError
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide_broker.runtime.metrics.page import lines
from hightide_broker.runtime.metrics.watching import Watching
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.trace import events as e

TOPICS = st.sampled_from(["t", "u"])
AT_ONCE = config_of({"group.initial.rebalance.delay.ms": "0"})
A_DAY_MS = 86_400_000
DAMAGED = batch(b"x")
DAMAGED[-1] ^= 1


class Place:
    """A node, who talks to it, and what its page said last."""

    def __init__(self, node, client, disk, clock):
        self.node, self.client, self.disk, self.clock = node, client, disk, clock
        self._watching = Watching(node)

    def counted(self):
        """Whatever may only rise: its name with its labels → value."""
        found, rises = {}, False
        for line in lines(self._watching.measured(in_detail=True), is_open=True):
            if line.startswith("#"):
                rises = line.endswith((" counter\n", " histogram\n"))
            elif rises:
                series, _, value = line.rpartition(" ")
                found[series] = float(value)
        return found


async def create(place, topic):
    await place.client.create(topic)


async def delete(place, topic):
    await place.client.call(m.DeleteTopicsRequest(topics=[topic]))


async def produce(place, topic):
    await place.client.produce(b"x", b"y", topic=topic)


async def produce_damaged(place, topic):
    await place.client.send(DAMAGED, topic=topic)


async def produce_twice(place, topic):
    producer = await place.client.call(p.InitProducerIdRequest())
    data = batch(b"x", producer=(producer.producer_id, 0, 0))
    for _ in range(2):
        await place.client.send(data, topic=topic)


async def fetch(place, topic):
    for offset in (0, 99):
        part = m.FetchPartition(topic=topic, partition=0, fetch_offset=offset)
        await place.client.call(m.FetchRequest(max_wait_ms=0, partitions=[part]))


async def delete_records(place, topic):
    await place.client.delete_records(-1, topic=topic)


async def commit(place, topic):
    part = g.CommitPartition(topic=topic, partition=0, offset=0)
    await place.client.call(g.FindCoordinatorRequest(group="g"))
    await place.client.call(g.OffsetCommitRequest(group="g", partitions=[part]))


async def join(place, _):
    await place.client.call(g.FindCoordinatorRequest(group="g"))
    told = await place.client.call(JOIN)
    told = await place.client.call(replace(JOIN, member_id=told.member_id))
    gone = g.LeaveGroupRequest(
        group="g", members=[g.LeavingMember(reason="done", member_id=told.member_id)]
    )
    await place.client.call(gone)


async def say_nonsense(place, _):
    stream = await trio.open_tcp_stream("127.0.0.1", place.node.port)
    async with stream:
        await stream.send_all(b"\0\0\0\1\xc1")
        async for _ in stream:
            pass  # until it is cut off


async def lose_the_disk(place, topic):
    place.disk.fail_once("write", f"{topic}-0")
    await place.client.produce(b"lost", topic=topic)


async def wait(place, _):
    place.clock.ms += A_DAY_MS


async def happen(place, topic):
    of = {"topic": topic, "partition": 0, "leader_epoch": 1}
    cut = {"leader": 1, "epoch_before": 0, "epoch_after": 0, "high_watermark": 0}
    for what in (
        e.Truncated(**of, **cut, before=9, after=4),
        e.Truncated(**of, **cut, before=4, after=40, is_whole=True),
        e.ReplicaOffline(**of, why="", is_damaged=True),
        e.RepairEnded(**of, log_end=3),
        e.RepairEnded(**of, log_end=-1),
        e.QuorumRole(role="leader", epoch=1),
    ):
        place.node.happened.count(what)


ACTS = [
    create,
    delete,
    produce,
    produce_damaged,
    produce_twice,
    fetch,
    delete_records,
    commit,
    join,
    say_nonsense,
    lose_the_disk,
    wait,
    happen,
]


def of_topic(series):
    """The topic that it is told of; None: of none."""
    named = re.search(r'topic="(\w+)"', series)
    return named and named[1]


@given(st.lists(st.tuples(st.sampled_from(ACTS), TOPICS), min_size=5, max_size=20))
@settings(max_examples=tries(80))
async def test_no_counter_ever_falls(acts):
    disk, clock = SimDisk(), FakeClock()
    async with new_node(disk, AT_ONCE, clock) as node, client_of(node) as client:
        place = Place(node, client, disk, clock)
        before = place.counted()
        for act, topic in acts:
            with suppress(HightideError):  # who is refused is counted, too
                await act(place, topic)
            now = place.counted()
            ended = {"t", "u"} - {*node.image.topics} | ({topic} if act is delete else set())
            fallen = {
                series: (value, now.get(series))
                for series, value in before.items()
                if of_topic(series) not in ended and now.get(series, -1) < value
            }
            assert not fallen, f"after {act.__name__} {topic}"
            before = now


MOVED = {
    create: "controller_event_seconds_count quorum_commit_seconds_count fsync_seconds_count",
    produce: "topic_records_in_total topic_bytes_total requests_total request_seconds_count",
    produce_damaged: "rejected_batches_total",
    produce_twice: "request_phase_seconds_count",
    fetch: "topic_failures_total",
    commit: "offset_commits_total",
    join: "group_rebalances_total",
    say_nonsense: "connections_closed_total",
    happen: "truncated_records_total corruptions_total quorum_elections_total",
}


@pytest.mark.parametrize("act", MOVED)
async def test_what_is_drawn_moves_counters(act):
    """Of counters that stand still it would prove nothing that they do not fall."""
    disk, clock = SimDisk(), FakeClock()
    async with new_node(disk, AT_ONCE, clock) as node, client_of(node) as client:
        place = Place(node, client, disk, clock)
        if act is not create:
            await client.create()
        first = place.counted()
        await act(place, "t")
        now = place.counted()
    moved = {
        series.partition("{")[0].removeprefix("hightide_")
        for series, value in now.items()
        if value > first.get(series, 0)
    }
    assert {*MOVED[act].split()} <= moved
