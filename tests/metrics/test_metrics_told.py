"""Numbers of groups, of elections, of damage, of who is let in; and the same as kafka_exporter has
them.

Method: a node whose clock a test moves; the page as a strict reader has it; counts of what happened
by events of every kind.
"""

import struct

import msgspec
import pytest
from brokers import NOW_MS, FakeClock, batch, client_of, new_node, quiet
from patience import PATIENCE_S
from test_login import a_node_with_users, connected
from test_metrics_page import WATCHED, samples

from hightide import HightideError
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol.records import crc32c
from hightide_broker.core.replication.refusals import CAUSES
from hightide_broker.runtime.metrics.happened import Happened
from hightide_broker.runtime.metrics.of_requests import WAITING
from hightide_broker.runtime.metrics.watching import Watching
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.trace import events as e

HALF_A_MINUTE_MS = 30_000
JOIN = g.JoinGroupRequest(
    group="g",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    client_id="c",
    protocols=[g.Protocol(name="range", metadata=b"")],
)


async def committed(client, group, offset, topic="t"):
    """A commit, as often as it takes until the coordinator is there."""
    await client.call(g.FindCoordinatorRequest(group=group))
    part = g.CommitPartition(topic=topic, partition=0, offset=offset)
    answer = await client.call(g.OffsetCommitRequest(group=group, partitions=[part]))
    assert [each.error for each in answer.partitions] == [None]


async def behind_ms(client, group, *, wants_age=True):
    """As its coordinator tells who asks for offsets."""
    answer = await client.call(g.OffsetFetchRequest(group=group, wants_age=wants_age))
    return [each.behind_ms for each in answer.partitions]


async def test_a_group_that_stands_still_is_as_far_behind_as_time_and_records_say():
    clock = FakeClock()
    async with new_node(SimDisk(), WATCHED, clock) as node, client_of(node) as client:
        await client.create()
        await committed(client, "g", 0)
        for _ in range(10):
            now = clock.now_ms()
            await client.call(
                m.ProduceRequest(
                    acks=-1,
                    timeout_ms=1000,
                    partitions=[m.ProducePartition(topic="t", partition=0, records=0)],
                ),
                batch(b"x", times=[now]),
            )
            clock.ms += 100
        clock.ms += HALF_A_MINUTE_MS
        found = await samples(node)
        assert found["group_lag_records", "g", "t", "0"] == 10
        assert found["coordinator_partitions", "active"] == 1
        assert found["group_lag_seconds", "g", "t", "0"] == pytest.approx(31.0)
        await committed(client, "g", 4)
        found = await samples(node)
        assert found["group_lag_records", "g", "t", "0"] == 6
        assert found["group_lag_seconds", "g", "t", "0"] == pytest.approx(30.6)
        assert await behind_ms(client, "g") == [30_600]
        assert await behind_ms(client, "g", wants_age=False) == [-1]
        await committed(client, "g", 10)
        assert await behind_ms(client, "g") == [0]
        found = await samples(node)
        assert found["group_lag_records", "g", "t", "0"] == 0
        assert found["group_lag_seconds", "g", "t", "0"] == 0


async def test_a_group_is_never_behind_by_less_than_nothing():
    """What it committed is gone, or lies behind the end."""
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create()
        for _ in range(5):
            await client.produce(b"x")
        await committed(client, "old", 0)
        await committed(client, "beyond", 99)
        gone = m.DeleteRecordsPartition(topic="t", partition=0, offset=3)
        await client.call(m.DeleteRecordsRequest(partitions=[gone], timeout_ms=1000))
        found = await samples(node)
        assert found["group_lag_records", "old", "t", "0"] == 2
        assert found["group_lag_records", "beyond", "t", "0"] == 0
        assert found["group_lag_seconds", "beyond", "t", "0"] == 0
        assert await behind_ms(client, "beyond") == [0]
        (replica,) = [each for each in node.replicas if each.tp.topic == "t"]
        replica.offline = "its disk failed"
        assert await behind_ms(client, "old") == [-1]


async def test_how_old_a_record_is_that_cannot_be_read_is_not_told():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create()
        await client.produce(b"x")
        await committed(client, "g", 0)
        assert ("group_lag_seconds", "g", "t", "0") in await samples(node)
        (replica,) = [each for each in node.replicas if each.tp.topic == "t"]
        replica.log.batches = lambda _: iter(())
        found = await samples(node)
        assert found["group_lag_records", "g", "t", "0"] == 1
        assert ("group_lag_seconds", "g", "t", "0") not in found


async def test_what_the_controller_decides_is_counted():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create()
        found = await samples(node)
        assert found["quorum_elections_total",] == 1
        assert found["quorum_commit_seconds_count",] > 0
        assert found["quorum_replica_lag_records", "1"] == 0
        kinds = {name[1] for name in found if name[0] == "leader_elections_total"}
        assert kinds == {"isr", "preferred", "elr", "last_known", "unclean"}
        assert found["listener_insecure", "client"] == 1
        assert found["replica_max_lag_records",] == 0


def logins_at(node):
    """(listener, mechanism, result) → how many."""
    told = filter(None, Watching(node).measured(in_detail=False))
    return next(dict(values) for each, values in told if each.name == "authentications")


async def test_logins_are_told_of_before_there_are_any(tmp_path):
    """The first ones that fail are a rise, and not the beginning of a series."""
    async with a_node_with_users(tmp_path) as served:
        before = logins_at(served.node)
        assert before["client", "SCRAM", "failed"] == 0
        assert {*before} == {
            (*way, result)
            for way in (("client", "TLS"), ("client", "SCRAM"), ("internal", "TLS"))
            for result in ("ok", "failed")
        }
        async with connected(served):
            now = logins_at(served.node)
        assert now["client", "SCRAM", "ok"] == before["client", "SCRAM", "ok"] + 1
        assert {*now} == {*before}


def changed(at, value, *, crc=True):
    """A batch with one byte changed, and its checksum made right again."""
    data = batch(b"x")
    data[at] = value
    if crc:
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


REFUSED_FOR = {
    "crc": changed(-1, 1, crc=False),
    "magic": changed(16, 3),
    "sequence": batch(b"x", producer=(7, 1, 9)),
    "epoch": batch(b"x", producer=(7, 0, 1)),
    "size": batch(bytes(2000)),
    "timestamp": batch(b"x", times=[NOW_MS + (1 << 40)]),
    "record": changed(7, 1),
}


async def test_refused_batches_are_counted_by_what_is_wrong_with_them():
    """Those without acks, too, which hear of it by losing their connection."""
    configs = {"max.message.bytes": "1000"}
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create(configs=configs)
        assert (await client.send(batch(b"x", producer=(7, 1, 0)))).error is None
        for number, data in enumerate(REFUSED_FOR.values()):
            assert (await client.send(data)).error is not None
            found = await samples(node)
            told = {cause: found["rejected_batches_total", cause] for cause in REFUSED_FOR}
            assert [*told.values()] == [int(each <= number) for each in range(len(told))]
        part = m.ProducePartition(topic="t", partition=0, records=0)
        without = m.ProduceRequest(acks=0, timeout_ms=1000, partitions=[part])
        async with client_of(node) as hasty:
            answer = await hasty.connection.begin(without, [REFUSED_FOR["crc"]])
            with pytest.raises(HightideError):
                await answer.wait(timeout_s=PATIENCE_S)
        assert (await samples(node))["rejected_batches_total", "crc"] == 2
        assert (await client.send(batch(b"x"), partition=9)).error is not None
        found = await samples(node)
        assert sum(found["rejected_batches_total", each] for each in CAUSES) == 8
    assert {*REFUSED_FOR} == {*CAUSES}


async def test_who_waits_is_counted_by_what_for():
    async with (
        new_node(SimDisk(), WATCHED) as node,
        client_of(node) as reader,
        client_of(node) as member,
    ):
        await member.create()
        await committed(member, "g", 0)
        before = await samples(node)
        assert [before["waiting_requests", kind] for kind in WAITING] == [0] * len(WAITING)
        part = m.FetchPartition(topic="t", partition=0, fetch_offset=0)
        await reader.connection.begin(m.FetchRequest(max_wait_ms=60_000, partitions=[part]))
        told = await member.call(JOIN)
        await member.connection.begin(msgspec.structs.replace(JOIN, member_id=told.member_id))
        await quiet()
        found = await samples(node)
        now = {kind: found["waiting_requests", kind] for kind in WAITING}
        assert now == {"produce": 0, "fetch": 1, "join": 1, "sync": 0, "delete_records": 0}


async def test_the_page_of_kafka_exporter_says_the_same():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create()
        for _ in range(5):
            await client.produce(b"x")
        await committed(client, "g", 2)
        found = await samples(node, "/metrics/kafka_exporter")
    assert found["kafka_brokers",] == 1
    assert found["kafka_broker_info", "1", f"127.0.0.1:{node.port}"] == 1
    assert found["kafka_topic_partitions", "t"] == 1
    assert found["kafka_topic_partition_current_offset", "t", "0"] == 5
    assert found["kafka_topic_partition_oldest_offset", "t", "0"] == 0
    assert found["kafka_topic_partition_leader", "t", "0"] == 1
    assert found["kafka_topic_partition_leader_is_preferred", "t", "0"] == 1
    assert found["kafka_topic_partition_replicas", "t", "0"] == 1
    assert found["kafka_topic_partition_in_sync_replica", "t", "0"] == 1
    assert found["kafka_topic_partition_under_replicated_partition", "t", "0"] == 0
    assert found["kafka_consumergroup_current_offset", "g", "t", "0"] == 2
    assert found["kafka_consumergroup_current_offset_sum", "g", "t"] == 2
    assert found["kafka_consumergroup_lag", "g", "t", "0"] == 3
    assert found["kafka_consumergroup_lag_sum", "g", "t"] == 3
    assert found["kafka_consumergroup_members", "g"] == 0


# -- counts of events ------------------------------------------------------------------------------

PLACE = {"topic": "t", "partition": 0, "leader_epoch": 1}


def counted(happened):
    damages = happened.damages
    return (
        happened.truncated_records,
        damages["detected"],
        damages["repaired"],
        happened.quorums_led,
    )


def test_what_is_counted_is_what_happened():
    happened = Happened()
    cut = {"leader": 1, "epoch_before": 1, "epoch_after": 0, "high_watermark": 3}
    happened.count(e.Truncated(**PLACE, **cut, before=9, after=4))
    happened.count(e.ReplicaOffline(**PLACE, why="its disk", is_damaged=False))
    happened.count(e.ReplicaOffline(**PLACE, why="a bit", is_damaged=True))
    happened.count(e.RepairEnded(**PLACE, log_end=4))
    happened.count(e.QuorumRole(role="leader", epoch=3))
    assert counted(happened) == (5, 1, 1, 1)
