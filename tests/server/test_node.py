"""A whole broker in this process, asked over a real socket: what it promises, and what survives.

Goal: every answer of the record and admin APIs is Kafka's, also after an orderly restart.
Method: a real node on the simulated disk, on the real one where files are the subject. Crashes are
`test_crashes.py`'s.
"""

import json

import pytest
import trio
from brokers import (
    DATA,
    NOW_MS,
    FakeClock,
    GatedDisk,
    batch,
    broker,
    client_of,
    new_node,
    quiet,
    settings,
)
from patience import PATIENCE_S

from hightide.protocol import messages as m
from hightide_broker.ports import LockHeld
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.directory import WrongDirectory

SMALL_SEGMENTS = {"segment.bytes": "1024"}


def epochs_of(topic="t", partition=0, *, epoch):
    part = m.EpochPartition(topic=topic, partition=partition, leader_epoch=epoch)
    return m.OffsetForLeaderEpochRequest(partitions=[part])


# --- records ------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_what_is_produced_is_fetched(acks, codec):
    async with broker(SimDisk()) as client:
        await client.create()
        data = batch(
            b"one",
            None,
            b"",
            keys=[b"k", None, b""],
            times=[NOW_MS, NOW_MS + 5, NOW_MS - 5],
            headers={1: (("h", b"v"), ("h", None))},
            codec=codec,
        )
        if acks:
            sent = await client.send(data, acks=acks)
            assert (sent.error, sent.base_offset, sent.log_start_offset) == (None, 0, 0)
        else:
            part = m.ProducePartition(topic="t", partition=0, records=0)
            request = m.ProduceRequest(acks=0, timeout_ms=1000, partitions=[part])
            await client.connection.begin(request, [data])
        fetched = await client.fetch(max_wait_ms=5000)
        assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in fetched.records] == [
            (0, NOW_MS, b"k", b"one", ()),
            (1, NOW_MS + 5, None, None, (("h", b"v"), ("h", None))),
            (2, NOW_MS - 5, b"", b"", ()),
        ]
        assert (fetched.result.high_watermark, fetched.result.log_start_offset) == (3, 0)


async def test_offsets_go_on_where_the_last_batch_ended_and_partitions_do_not_mix():
    async with broker(SimDisk()) as client:
        await client.create(partitions=2)
        offsets = [(await client.produce(b"x", b"y")).base_offset for _ in range(3)]
        other = await client.produce(b"z", partition=1)
        assert (offsets, other.base_offset) == ([0, 2, 4], 0)
        assert await client.values(partition=1) == [b"z"]
        assert [r.offset for r in await client.read_all(3)] == [3, 4, 5]


async def test_a_fetch_at_the_end_is_empty_and_above_or_below_it_out_of_range():
    async with broker(SimDisk()) as client:
        await client.create()
        await client.produce(b"a", b"b", b"c")
        await client.delete_records(1)
        assert (await client.fetch(3)).result.error is None
        for offset in (0, 4, -1, 2**63 - 1):
            result = (await client.fetch(offset)).result
            assert (result.error, result.log_start_offset) == ("OFFSET_OUT_OF_RANGE", 1)


@pytest.mark.parametrize(
    ("topic", "partition", "acks", "error"),
    [
        ("nowhere", 0, 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("t", 7, 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("t", -1, -1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("t", 0, 2, "INVALID_REQUIRED_ACKS"),
        ("t", 0, -2, "INVALID_REQUIRED_ACKS"),
    ],
)
async def test_a_produce_that_cannot_be_is_refused_and_stores_nothing(
    topic, partition, acks, error
):
    async with broker(SimDisk()) as client:
        await client.create()
        sent = await client.produce(b"x", topic=topic, partition=partition, acks=acks)
        assert (sent.error, sent.base_offset) == (error, -1)
        assert await client.values() == []


@pytest.mark.parametrize("bad", ["topic", "crc", "attachment"])
async def test_of_two_partitions_in_one_produce_one_may_fail_and_the_other_is_stored(bad):
    async with broker(SimDisk()) as client:
        await client.create()
        broken = batch(b"broken")
        broken[-1] ^= bad == "crc"
        parts = [
            m.ProducePartition(
                topic="gone" if bad == "topic" else "t",
                partition=0,
                records=9 if bad == "attachment" else 0,
            ),
            m.ProducePartition(topic="t", partition=0, records=1),
        ]
        for acks in (1, -1):
            request = m.ProduceRequest(acks=acks, timeout_ms=1000, partitions=parts)
            failed, stored = (await client.call(request, broken, batch(b"good"))).partitions
            assert (failed.error is not None, stored.error) == (True, None)
        assert await client.values() == [b"good", b"good"]


async def test_offsets_are_listed_by_place_and_by_timestamp():
    async with broker(SimDisk()) as client:
        await client.create()
        for times in ([100, 300], [200, 300], [50, 60]):
            await client.send(batch(b"a", b"b", times=times))
        await client.delete_records(1)
        found = {}
        for at in (m.EARLIEST, m.LATEST, m.MAX_TIMESTAMP, 0, 101, 300, 301):
            result = await client.offset(at)
            found[at] = (result.error, result.offset, result.timestamp)
        assert found == {
            m.EARLIEST: (None, 1, -1),
            m.LATEST: (None, 6, -1),
            m.MAX_TIMESTAMP: (None, 1, 300),
            0: (None, 1, 300),
            101: (None, 1, 300),
            300: (None, 1, 300),
            301: (None, -1, -1),
        }
        assert (await client.offset(-4)).error == "INVALID_REQUEST"
        assert (await client.offset(0, topic="gone")).error == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_the_largest_timestamp_is_that_of_a_record_which_is_still_there():
    async with broker(SimDisk()) as client:
        await client.create()
        for time in (900, 100, 200):
            await client.send(batch(b"x", times=[time]))
        await client.delete_records(1)
        result = await client.offset(m.MAX_TIMESTAMP)
        assert (result.offset, result.timestamp) == (2, 200)


async def test_with_log_append_time_the_broker_says_when():
    clock = FakeClock(5_000)
    async with broker(SimDisk(), clock=clock) as client:
        await client.create(configs={"message.timestamp.type": "LogAppendTime"})
        sent = await client.send(batch(b"a", b"b", times=[1, 2]))
        assert sent.log_append_time_ms == 5_000
        assert [(r.timestamp, r.timestamp_type) for r in await client.read_all()] == [(5000, 1)] * 2
        found = await client.offset(4_999)
        assert (found.offset, found.timestamp) == (0, 5_000)


async def test_delete_records_moves_the_start_up_and_never_past_the_watermark():
    async with broker(SimDisk()) as client:
        await client.create()
        await client.create("c", configs={"cleanup.policy": "compact"})
        await client.produce(b"a", b"b", b"c", b"d")
        assert (await client.delete_records(2)).low_watermark == 2
        assert (await client.delete_records(1)).low_watermark == 2
        assert [r.offset for r in await client.read_all(2)] == [2, 3]
        for offset in (5, -2):
            assert (await client.delete_records(offset)).error == "OFFSET_OUT_OF_RANGE"
        assert (await client.delete_records(-1)).low_watermark == 4
        assert (await client.delete_records(0, topic="c")).error == "POLICY_VIOLATION"
        assert (await client.produce(b"e")).base_offset == 4


# --- topics and the cluster ---------------------------------------------------------------------


async def test_more_partitions_can_be_used_at_once_and_fewer_are_refused():
    async with broker(SimDisk()) as client:
        await client.create(partitions=2)
        for count, error in ((4, None), (4, "INVALID_PARTITIONS"), (1, "INVALID_PARTITIONS")):
            more = m.MorePartitions(topic="t", count=count)
            reply = await client.call(m.CreatePartitionsRequest(topics=[more]))
            assert reply.topics[0].error == error
        assert (await client.produce(b"x", partition=3)).base_offset == 0
        described = await client.call(m.MetadataRequest(topics=["t", "gone"]))
        known, gone = described.topics
        assert [(p.partition, p.leader, p.isr) for p in known.partitions] == [
            (number, 1, [1]) for number in range(4)
        ]
        assert gone.error == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_configs_are_altered_described_and_taken_back():
    async with broker(SimDisk()) as client:
        await client.create(configs={"retention.ms": "5000"})
        await client.alter({"max.message.bytes": "100"}, unset=("retention.ms",))
        resource = m.ConfigResource(kind="topic", name="t")
        reply = await client.call(m.DescribeConfigsRequest(resources=[resource]))
        entries = {entry.name: entry for entry in reply.resources[0].entries}
        assert (entries["max.message.bytes"].value, entries["max.message.bytes"].default) == (
            "100",
            False,
        )
        assert entries["retention.ms"].default
        assert (await client.produce(b"x" * 100)).error == "MESSAGE_TOO_LARGE"
        for wrong in ({"retention": "1"}, {"retention.ms": "soon"}):
            assert (await client.alter(wrong)).error == "INVALID_CONFIG"
        assert (await client.alter({}, topic="gone")).error == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_the_cluster_and_its_disks_are_described():
    async with new_node(SimDisk()) as node, client_of(node) as client:
        await client.create(partitions=2)
        await client.produce(b"a", b"b", partition=1)
        cluster = await client.call(m.DescribeClusterRequest())
        (info,) = cluster.brokers
        assert (info.id, info.port, info.fenced) == (1, node.port, False)
        assert (cluster.cluster_id, cluster.controller) == (node.cluster_id, 1)
        empty, filled = (await client.log_dirs()).values()
        assert (empty.log_end_offset, empty.size_bytes, empty.error) == (0, 0, "")
        assert (filled.log_end_offset, filled.high_watermark, filled.synced_offset) == (2, 2, 2)


async def test_a_deleted_topic_is_gone_and_a_new_one_of_its_name_has_no_data_of_the_old():
    disk = SimDisk()
    async with broker(disk) as client:
        old = await client.create(configs=SMALL_SEGMENTS)
        for number in range(5):
            await client.send(batch(b"x" * 500, producer=(9, 0, number)))
        await client.delete_records(3)
        await client.call(m.DeleteTopicsRequest(topics=["t"]))
        assert (await client.fetch()).result.error == "UNKNOWN_TOPIC_OR_PARTITION"
        assert (await client.produce(b"x")).error == "UNKNOWN_TOPIC_OR_PARTITION"
        new = await client.create()
        assert new.topic_id != old.topic_id
        assert (await client.fetch()).result.log_start_offset == 0
        assert await client.values() == []
        assert (await client.send(batch(b"new", producer=(9, 0, 77)))).base_offset == 0
    async with broker(disk) as client:
        assert await client.values() == [b"new"]
        assert (await client.alter({})).error is None


async def test_a_fetch_that_waits_learns_that_its_topic_was_deleted():
    async with broker(SimDisk()) as client, trio.open_nursery() as nursery:
        await client.create()
        results = []

        async def wait():
            results.append((await client.fetch(max_wait_ms=60_000)).result.error)

        nursery.start_soon(wait)
        await quiet()
        await client.call(m.DeleteTopicsRequest(topics=["t"]))
        with trio.fail_after(PATIENCE_S):
            while not results:
                await trio.lowlevel.checkpoint()
        assert results == ["UNKNOWN_TOPIC_OR_PARTITION"]


@pytest.mark.parametrize("configs", [{"retention.ms": "1000"}, {"retention.bytes": "1300"}])
async def test_old_segments_go_and_their_files_a_while_later(configs):
    disk, clock = SimDisk(), FakeClock()
    async with new_node(disk, clock=clock) as node, client_of(node) as client:
        configs = {**configs, **SMALL_SEGMENTS, "file.delete.delay.ms": "100"}
        await client.create(configs=configs)
        for number in range(6):
            await client.send(batch(b"%d" % number * 600, times=[NOW_MS + 400 * number]))
        clock.ms = NOW_MS + 2300
        await node._housekeeping.look_once()
        assert (await client.offset(m.EARLIEST)).offset == 4
        assert (await client.fetch(3)).result.error == "OFFSET_OUT_OF_RANGE"
        assert [r.offset for r in await client.read_all(4)] == [4, 5]
        gone = [name for name in disk.list(f"{DATA}/t-0") if name.endswith(".deleted")]
        assert len(gone) == 4
        clock.ms += 100
        await node._housekeeping.look_once()
        assert not set(gone) & set(disk.list(f"{DATA}/t-0"))
    async with broker(disk, clock=clock) as client:
        assert [r.offset for r in await client.read_all(4)] == [4, 5]


# --- an orderly restart -------------------------------------------------------------------------


async def test_after_a_clean_restart_everything_is_as_it_was_and_epochs_have_risen(tmp_path):
    disk, config = RealDisk(), settings(data=f"{tmp_path}/b")
    async with broker(disk, config) as client:
        await client.create(partitions=2, configs=SMALL_SEGMENTS)
        for number in range(8):
            await client.produce(b"%d" % number * 300, b"and")
        await client.delete_records(3)
        before = await client.read_all(3)
        (first,) = (await client.call(epochs_of(epoch=0))).partitions
        metadata = await client.call(m.MetadataRequest())
    async with broker(disk, config) as client:
        assert await client.read_all(3) == before
        assert (await client.offset(m.EARLIEST)).offset == 3
        assert (await client.fetch(2)).result.error == "OFFSET_OUT_OF_RANGE"
        (after,) = (await client.call(epochs_of(epoch=first.leader_epoch))).partitions
        assert (after.leader_epoch, after.end_offset) == (0, 16)
        later = await client.call(m.MetadataRequest())
        assert later.topics[0].topic_id == metadata.topics[0].topic_id
        for old, new in zip(metadata.topics[0].partitions, later.topics[0].partitions, strict=True):
            assert new.leader_epoch > old.leader_epoch
        sent = await client.produce(b"more")
        assert sent.base_offset == 16
        assert (await client.fetch(16)).records[0].leader_epoch > first.leader_epoch


async def test_an_orderly_stop_leaves_kafkas_files_byte_for_byte(tmp_path):
    disk, config = RealDisk(), settings(data=f"{tmp_path}/b")
    async with new_node(disk, config) as node, client_of(node) as client:
        created = await client.create("a-b", partitions=2)
        await client.create("b")
        await client.produce(b"x", b"y", topic="a-b", partition=1)
        await client.produce(b"z", topic="b")
        await client.delete_records(1, topic="a-b", partition=1)
        broker_epoch = node.broker_epoch
        (partition,) = (await client.call(m.MetadataRequest(topics=["b"]))).topics[0].partitions
        assert not disk.exists(f"{tmp_path}/b/.clean_shutdown")

    def text(name):
        return (tmp_path / "b" / name).read_text()

    assert text("replication-offset-checkpoint") == "0\n3\na-b 0 0\na-b 1 2\nb 0 1\n"
    assert text("recovery-point-offset-checkpoint") == "0\n3\na-b 0 0\na-b 1 2\nb 0 1\n"
    assert text("log-start-offset-checkpoint") == "0\n1\na-b 1 1\n"
    marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch})
    assert text(".clean_shutdown") == marker
    assert text("b-0/leader-epoch-checkpoint") == f"0\n1\n{partition.leader_epoch} 0\n"
    assert text("a-b-1/partition.metadata") == f"version: 0\ntopic_id: {created.topic_id}\n"
    async with new_node(disk, config) as node:
        assert not disk.exists(f"{tmp_path}/b/.clean_shutdown")
        assert node.broker_epoch > broker_epoch


# --- whose directory ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "words"),
    [({"node.id": "2"}, "node 1, this node is 2"), ({"cluster.id": "other"}, "cluster other")],
)
async def test_the_directory_of_another_node_or_cluster_is_refused_and_left_alone(over, words):
    disk = SimDisk()
    async with broker(disk, settings({"cluster.id": "mine"})) as client:
        await client.create()
    marker = disk.read_file(f"{DATA}/.clean_shutdown")
    with pytest.raises(WrongDirectory, match=words):
        async with new_node(disk, settings({"cluster.id": "mine", **over})):
            pass
    assert disk.read_file(f"{DATA}/.clean_shutdown") == marker
    async with broker(disk, settings({"cluster.id": "mine"})) as client:
        assert await client.values() == []


async def test_a_second_node_on_a_directory_is_refused_while_the_first_one_runs(tmp_path):
    config = settings(data=f"{tmp_path}/b")
    async with broker(RealDisk(), config) as client:
        with pytest.raises(LockHeld):
            async with new_node(RealDisk(), config):
                pass
        assert (await client.create()).error is None
    async with broker(RealDisk(), config) as client:
        assert await client.values() == []


# --- the watermark ------------------------------------------------------------------------------


async def test_consumers_never_see_what_is_not_synced_yet():
    disk = GatedDisk()
    async with broker(disk) as client:
        await client.create()
        await client.produce(b"old")
        disk.shut()
        assert (await client.produce(b"new", acks=1)).base_offset == 1
        waiting = await client.begin(batch(b"all"))
        fetched = await client.fetch()
        assert (fetched.values, fetched.result.high_watermark) == ([b"old"], 1)
        assert (await client.fetch(1)).values == []
        assert (await client.offset(m.LATEST)).offset == 1
        assert (await client.offset(NOW_MS + 1)).offset == -1
        assert (await client.delete_records(2)).error == "OFFSET_OUT_OF_RANGE"
        disk.gate.set()
        body, _ = await waiting.wait(PATIENCE_S)
        assert body.partitions[0].base_offset == 2
        assert await client.values() == [b"old", b"new", b"all"]


async def test_acks_all_times_out_while_nothing_is_synced_and_the_record_may_still_come():
    disk = GatedDisk()
    async with broker(disk) as client:
        await client.create()
        await client.create("fast", configs={"flush": "replicated"})
        disk.shut()
        assert (await client.send(batch(b"x"), timeout_ms=20)).error == "REQUEST_TIMED_OUT"
        assert (await client.produce(b"y", topic="fast")).error is None
        disk.gate.set()
        assert (await client.produce(b"z")).base_offset == 1
        assert await client.values() == [b"x", b"z"]


async def test_who_produced_what_was_deleted_is_known_after_an_orderly_restart():
    disk = SimDisk()
    async with broker(disk) as client:
        await client.create()
        for number in range(2):
            await client.send(batch(b"v", producer=(4, 0, number)))
        await client.delete_records(2)
    async with broker(disk) as client:
        again = await client.send(batch(b"v", producer=(4, 0, 1)))
        assert (again.error, again.base_offset) == (None, 1)
        assert (await client.offset(m.LATEST)).offset == 2
