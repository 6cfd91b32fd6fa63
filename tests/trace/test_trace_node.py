"""A node and its trace: what it tells from its start to its end, and whom it answers.

Goal: somebody who has only the files, or only a connection, learns what the node did; nothing about
the trace keeps a node from starting or serving. Method: whole nodes in this process, on simulated
disks, over real sockets; a group whose member comes and goes; a controller that is told of another
one by hand.
"""

from __future__ import annotations

import pytest
from brokers import DATA, NOW_MS, broker, client_of, crashing_node, new_node, settings
from group_world import Asking
from tracekit import kept, of_kind

from hightide.protocol import node_messages as n
from hightide.protocol.errors import ApiError, ErrorCode
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.trace.events import (
    BrokerChanged,
    CoordinatorBegan,
    GroupChanged,
    LeaderBegan,
    NodeServes,
    NodeStarted,
    NodeStopped,
    PartitionChanged,
    QuorumRole,
    TopicChanged,
)
from hightide_broker.trace.lines import Told, read_lines

TRACE = f"{DATA}/trace"
AT_ONCE = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


async def test_a_node_tells_its_life_in_order() -> None:
    disk = SimDisk()
    async with new_node(disk) as node, client_of(node) as client:
        await client.create()
        address, epoch = node.address, node.broker_epoch
    told = kept(disk)
    assert [each.number for each in told] == [*range(len(told))]
    assert {(each.node, each.ms) for each in told} == {(1, NOW_MS)}
    started, serves, stopped = of_kind(told, NodeStarted, NodeServes, NodeStopped)
    assert (told[0].what, told[-1].what) == (started, stopped)
    assert (started.roles, started.was_clean) == (("broker", "controller"), True)
    assert serves == NodeServes(address=address, broker_epoch=epoch)
    assert stopped.is_clean
    assert "leader" in [role.role for role in of_kind(told, QuorumRole)]
    states = [each.state for each in of_kind(told, BrokerChanged)]
    assert states[:2] == ["registered", "unfenced"]
    assert [each.topic for each in of_kind(told, TopicChanged)] == ["t"]
    (made,) = [each for each in of_kind(told, PartitionChanged) if each.cause == "it is new"]
    assert (made.topic, made.leader, made.leader_epoch) == ("t", 1, 0)
    (led,) = of_kind(told, LeaderBegan)
    assert (led.topic, led.leader_epoch, led.isr) == ("t", 0, (1,))


async def test_the_next_life_says_how_the_last_one_ended() -> None:
    disk = SimDisk()
    for run in (new_node, crashing_node, new_node, new_node):
        async with run(disk):
            pass
    told = kept(disk)
    assert [each.was_clean for each in of_kind(told, NodeStarted)] == [True, True, False, True]
    assert [each.number for each in told] == sorted({each.number for each in told})


async def test_a_trace_of_no_bytes_is_not_kept_and_answers_nothing() -> None:
    disk = SimDisk()
    async with broker(disk, settings({"trace.max.bytes": "0"})) as client:
        await client.create()
        reply = await client.call(n.ReadTraceRequest())
        assert (reply.lines, reply.file, reply.position) == (b"", 0, 0)
    assert not disk.exists(TRACE)


@pytest.mark.parametrize("operation", ["mkdir", "read", "write"])
async def test_a_trace_that_fails_keeps_no_node_from_its_work(operation) -> None:
    disk = SimDisk()
    if operation == "read":
        async with new_node(disk):
            pass
    disk.fail(operation, TRACE)
    async with broker(disk) as client:
        await client.create()
        assert (await client.produce(b"x")).error is None
        assert await client.values() == [b"x"]


async def read_all(client) -> list[Told]:
    """As `hightide trace` does."""
    told, request = [], n.ReadTraceRequest()
    while True:
        reply = await client.call(request)
        assert reply.node == 1
        if not reply.lines:
            return told
        told += read_lines(reply.lines.splitlines())
        request = n.ReadTraceRequest(file=reply.file, position=reply.position)


async def test_who_asks_gets_everything_piece_by_piece_and_goes_on_from_there() -> None:
    disk = SimDisk()
    disk.make_dirs(TRACE)
    disk.replace(f"{TRACE}/events-{1:020d}.jsonl", b"x" * 199 + b"\n" * 3 + b"y\n" * (200 << 10))
    async with broker(disk) as client:
        told = await read_all(client)
        assert isinstance(told[0].what, NodeStarted)
        assert of_kind(told, TopicChanged) == []
        await client.create()
        assert [each.topic for each in of_kind(await read_all(client), TopicChanged)] == ["t"]


@pytest.mark.parametrize(
    "request_",
    [
        n.ReadTraceRequest(kind="secrets"),
        n.ReadTraceRequest(kind="../events"),
        n.ReadTraceRequest(file=-1),
        n.ReadTraceRequest(position=-1),
    ],
)
async def test_what_is_no_place_is_refused(request_) -> None:
    async with broker(SimDisk()) as client:
        with pytest.raises(ApiError) as caught:
            await client.call(request_)
        assert caught.value.code is ErrorCode.INVALID_REQUEST


async def test_a_trace_that_cannot_be_read_is_told_to_who_asks() -> None:
    disk = SimDisk()
    async with broker(disk) as client:
        disk.fail("read", TRACE)
        with pytest.raises(ApiError) as caught:
            await client.call(n.ReadTraceRequest())
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_group_and_its_coordinator_are_told_of() -> None:
    disk = SimDisk()
    async with new_node(disk, settings(AT_ONCE)) as node, client_of(node) as client:
        asking = Asking(client.connection)
        await asking.create()
        await asking.find()
        member = await asking.member()
        await asking.leave(member.member_id)
    told = kept(disk)
    began = of_kind(told, CoordinatorBegan)
    assert {(each.topic, each.leader_epoch, each.groups) for each in began} == {
        ("__consumer_offsets", 0, 0)
    }
    changed = of_kind(told, GroupChanged)
    assert [(each.state, each.members) for each in changed] == [
        ("CompletingRebalance", 1),
        ("Stable", 1),
        ("Empty", 0),
    ]
    joined, settled, left = (each.cause for each in changed)
    assert "joined" in joined
    assert settled == ""
    assert "left: enough" in left
