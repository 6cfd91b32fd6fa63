"""What a node tells of its disk, its groups, its connections and its metadata is what happened.

Method: real nodes on simulated disks that fail, fill or stand still where a test wants it; the page
as a strict reader has it, before and after. What takes too long to bring about is done to who
counts it.
"""

import os
import re
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
from brokers import (
    FakeClock,
    GatedDisk,
    LoseAll,
    batch,
    client_of,
    crashing_node,
    new_node,
    quiet,
)
from brokers import settings as config_of
from group_world import Asking, site, virtual
from test_metrics_documents import DOCUMENT
from test_metrics_page import WATCHED, asked, samples
from test_metrics_told import committed

from hightide.net.connection import open_connection
from hightide.net.tcp import TcpNetwork
from hightide.protocol import messages as m
from hightide.protocol import quota_messages as k
from hightide.protocol.records import parse_header
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.core.groups.parts import REASONS
from hightide_broker.core.quorum.roles import Voter
from hightide_broker.core.replication.refusals import CAUSES
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.system import open_files
from hightide_broker.runtime.metrics import of_replicas
from hightide_broker.runtime.metrics.health import STATES, state_of
from hightide_broker.runtime.metrics.of_node import voters_by_kind
from hightide_broker.runtime.metrics.of_requests import WAITING
from hightide_broker.runtime.metrics.watching import Watching
from hightide_broker.runtime.replication.recovering import Recovering
from hightide_broker.runtime.server.counts import PHASES
from hightide_broker.runtime.server.counts import REASONS as CLOSED
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.log import Log
from hightide_broker.storage.recovery import bytes_to_scan
from hightide_broker.storage.segment import LogConfig

CAPACITY = 1 << 30
EIGHT_DAYS_MS = 8 * 86_400_000
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "1"}


def watched(**over):
    """Settings of a node that is looked at; underscores stand for dots."""
    return config_of({"metrics.listen": "0", **{k.replace("_", "."): v for k, v in over.items()}})


# -- the disk --------------------------------------------------------------------------------------


async def test_room_on_the_disk_is_told_with_how_large_it_is():
    async with new_node(SimDisk(capacity=CAPACITY), WATCHED) as node, client_of(node) as client:
        before = await samples(node)
        assert before["disk_bytes", "total"] == CAPACITY
        await client.create()
        await client.produce(b"x" * 100_000)
        used = before["disk_bytes", "free"] - (await samples(node))["disk_bytes", "free"]
        assert 100_000 < used < 200_000


async def test_a_log_that_cannot_be_synced_is_a_failed_directory_and_damage_is_none():
    disk = SimDisk()
    async with new_node(disk, WATCHED) as node, client_of(node) as client:
        await client.create()
        await client.create("other")
        node.replicas.get("other", 0).go_offline("a bit", damaged=True)
        assert (await samples(node))["log_dir_failed",] == 0
        disk.fail("sync", "/t-0/")
        await client.produce(b"x")
        assert (await samples(node))["log_dir_failed",] == 1


async def test_a_disk_of_which_nothing_is_known_has_failed(monkeypatch):
    async with new_node(SimDisk(), WATCHED) as node:

        def gone():
            raise DiskError("data", "statvfs", "Input/output error")

        monkeypatch.setattr(node, "disk_bytes", gone)
        found = await samples(node)
        assert found["log_dir_failed",] == 1
        assert not [name for name in found if name[0] == "disk_bytes"]


async def test_what_is_not_synced_yet_is_told_until_it_is():
    disk = GatedDisk()
    async with new_node(disk, WATCHED) as node, client_of(node) as client:
        await client.create()
        await client.produce(b"x")
        assert (await samples(node))["unsynced_bytes",] == 0
        disk.shut()
        for _ in range(3):
            await client.produce(b"y" * 100, acks=1)
        await quiet()
        assert (await samples(node))["unsynced_bytes",] == 3 * len(batch(b"y" * 100))
        disk.gate.set()
        await quiet()
        assert (await samples(node))["unsynced_bytes",] == 0


def append(log, value):
    """How many bytes that is."""
    data = batch(value)
    log.append_as_leader(data, parse_header(data), leader_epoch=0, now_ms=0)
    return len(data)


@pytest.mark.parametrize("cut", [lambda log: log.truncate_to(1), lambda log: log.truncate_fully(9)])
def test_what_was_cut_is_not_to_be_synced_and_a_sync_of_before_counts_for_nothing(cut):
    log = Log.create(SimDisk(), "t-0", topic_id="id", config=LogConfig())
    append(log, b"x")
    log.finish_sync(log.begin_sync())
    size = append(log, b"y" * 100)
    late = log.begin_sync()
    assert log.unsynced_bytes == size
    cut(log)
    assert log.unsynced_bytes == 0
    size = append(log, b"zz")
    log.finish_sync(late)
    assert log.unsynced_bytes == size
    log.finish_sync(log.begin_sync())
    assert log.unsynced_bytes == 0


def test_descriptors_are_counted(tmp_path):
    (tmp_path / "file").touch()
    before = open_files()
    held = [os.open(tmp_path / "file", os.O_RDONLY) for _ in range(5)]
    assert open_files() == before + 5
    for each in held:
        os.close(each)
    assert open_files() == before


async def test_the_page_has_the_descriptors_of_the_process():
    async with new_node(SimDisk(), WATCHED) as node:
        assert (await samples(node))["open_files",] > 3


async def test_what_waits_for_compaction_is_told_and_then_does_not():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create(configs={**COMPACTED, "min.compaction.lag.ms": "1000000"})
        for number in range(6):
            await client.send(batch(b"x" * 700, keys=[b"%d" % (number % 2)]))
        assert (await samples(node))["cleaner_backlog_ratio",] == 0, "nobody has looked"
        await node._housekeeping.look_once()
        assert (await samples(node))["cleaner_backlog_ratio",] == 1
        await client.alter({"min.compaction.lag.ms": "0"})
        await node._housekeeping.look_once()
        found = await samples(node)
        assert found["cleaner_backlog_ratio",] == 0
        assert found["cleaner_seconds_count",] == 1
        assert found["cleaner_deleted_bytes_total", "t"] > 0
        assert found["retention_deleted_bytes_total", "t"] == 0
        await client.alter({"cleanup.policy": "delete"})
        await node._housekeeping.look_once()
        assert node.replicas.uncleaned == {}


async def test_what_retention_gave_up_is_told_by_topic():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create(configs={"segment.bytes": "1024", "retention.bytes": "1024"})
        for _ in range(6):
            await client.produce(b"x" * 700)
        await node._housekeeping.look_once()
        found = await samples(node)
        assert found["retention_deleted_bytes_total", "t"] > 2000
        assert found["cleaner_deleted_bytes_total", "t"] == 0


async def test_a_deleted_partition_waits_for_no_compaction():
    async with new_node(SimDisk()) as node, client_of(node) as client:
        await client.create(configs=COMPACTED)
        await node._housekeeping.look_once()
        assert [*node.replicas.uncleaned] == [TopicPartition("t", 0)]
        node.replicas.remove(node.replicas.get("t", 0))
        assert node.replicas.uncleaned == {}


async def test_others_have_their_turn_while_many_logs_are_added_up(monkeypatch):
    monkeypatch.setattr(of_replicas, "REPLICAS_AT_ONCE", 2)
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create(partitions=5)
        for number in range(5):
            await client.produce(b"x", partition=number)
        found = [*Watching(node).respond("/metrics", "").lines]
        assert found.count("") == 2
        assert (await samples(node))["log_bytes", "t"] == 5 * len(batch(b"x"))


# -- a start ---------------------------------------------------------------------------------------


async def test_a_broker_that_starts_tells_what_it_has_still_to_open(autojump_clock):
    disk, partitions, payload = SimDisk(), 70, 10_000  # more than are opened in one go
    async with crashing_node(disk) as node, client_of(node) as client:
        await client.create(partitions=partitions)
        await client.produce(b"x" * payload)
    disk.crash(LoseAll())
    left, states = [], []
    async with new_node(disk, wait=False) as node:
        recovering = node.replicas.recovering
        disk.thread_pause = lambda: 0.1
        while not node.serving.is_set():
            left.append((recovering.partitions, recovering.bytes))
            states.append(state_of(node))
            assert recovering.bytes == 0 or "recovers its logs: " in node.why_not()
            await trio.sleep(0.01)
        states.append(state_of(node))
        disk.thread_pause = None
        assert (recovering.partitions, recovering.bytes) == (0, 0)
        assert len(node.replicas) == partitions
    numbers = [count for count, _ in left]
    assert max(numbers) == partitions
    assert any(0 < count < partitions for count in numbers), "it goes on step by step"
    assert payload < max(size for _, size in left) < payload + 1000
    in_turn = [state for number, state in enumerate(states) if states[:number][-1:] != [state]]
    assert in_turn == ["starting", "recovering", "starting", "running"]


@virtual
async def test_a_broker_that_stops_drains_first_where_there_is_another():
    """Who is left alone has nobody to drain to."""
    async with site(brokers=2) as at:
        for number, drains in ((1, True), (0, False)):
            machine, seen = at.machines[number], []
            node = machine.node
            async with trio.open_nursery() as nursery:
                nursery.start_soon(machine.stop)
                while machine.node is not None:
                    await trio.sleep(0.0001)
                    seen.append(state_of(node))
            in_turn = [state for place, state in enumerate(seen) if seen[:place][-1:] != [state]]
            assert in_turn == [*["draining"] * drains, "stopping"]


async def test_after_an_orderly_stop_nothing_is_to_be_looked_at():
    disk = SimDisk()
    async with new_node(disk) as node, client_of(node) as client:
        await client.create()
        await client.produce(b"x" * 1000)
    begun = []
    async with new_node(disk, WATCHED, wait=False) as node:
        begin = node.replicas.recovering.begin

        def note(found):
            begun.append(dict(found))
            begin(found)

        node.replicas.recovering.begin = note
        await node.serving.wait()
        found = await samples(node)
    assert begun == [{TopicPartition("t", 0): 0}]
    assert found["recovery_remaining_partitions",] == found["recovery_remaining_bytes",] == 0


def test_only_segments_from_the_recovery_point_on_are_to_be_scanned():
    disk = SimDisk()
    disk.make_dirs("d")
    for base, size in ((0, 10), (5, 20), (9, 30)):
        disk.open(f"d/{base:020d}.log", create=True).append(b"x" * size)
    disk.open(f"d/{0:020d}.index", create=True).append(b"x" * 1000)
    found = [bytes_to_scan(disk, "d", point) for point in (0, 4, 5, 8, 9, 99)]
    assert found == [60, 60, 50, 50, 30, 30]
    assert bytes_to_scan(disk, "nowhere", 0) == 0
    disk.fail("read", "d/")
    assert bytes_to_scan(disk, "d", 0) == 60, "of a disk that says how large files are, and no more"


def test_what_is_left_falls_with_each_partition():
    recovering = Recovering()
    places = [TopicPartition("t", number) for number in range(3)]
    recovering.begin(dict(zip(places, (1, 10, 100), strict=True)))
    found = []
    for place in (*places, places[0]):
        recovering.ended(place)
        found.append((recovering.partitions, recovering.bytes))
    assert found == [(2, 110), (1, 100), (0, 0), (0, 0)]


# -- groups ----------------------------------------------------------------------------------------


@asynccontextmanager
async def asking(node):
    """A client that asks about groups."""
    async with open_connection(TcpNetwork(), "127.0.0.1", node.port) as connection:
        yield Asking(connection)


async def test_rebalances_are_told_by_why_and_how_long_they_took():
    once = watched(group_initial_rebalance_delay_ms="0", offsets_topic_num_partitions="1")
    async with new_node(SimDisk(), once) as node, client_of(node) as plain:
        await plain.create()
        async with asking(node) as client:
            await client.find()
            member = await client.member()
            found = await samples(node)
            assert found["group_rebalances_total", "joined"] == 1
            assert found["group_rebalance_seconds_count",] == 1
            again = await client.join(member.member_id, topics=("t", "u"))
            await client.sync(again)
            await client.leave(member.member_id)
            found = await samples(node)
    begun = {name[1]: value for name, value in found.items() if name[0] == "group_rebalances_total"}
    assert {*begun} == {*REASONS}
    assert {why for why, count in begun.items() if count} == {"joined", "changed", "left"}
    assert found["group_rebalance_seconds_count",] == 2, "nobody was left for the third"


async def test_a_group_that_is_found_too_large_begins_to_rebalance():
    disk, once = SimDisk(), {"group_initial_rebalance_delay_ms": "0"}
    async with new_node(disk, watched(**once)) as node, client_of(node) as plain:
        await plain.create()
        async with asking(node) as first, asking(node) as second, trio.open_nursery() as nursery:
            await first.find()
            member = await first.member()
            nursery.start_soon(second.member)
            await quiet()
            await first.sync(await first.join(member.member_id))
    async with new_node(disk, watched(**once, group_max_size="1")) as node, asking(node) as client:
        assert len((await client.describe()).members) == 2
        found = await samples(node)
    begun = {name[1]: value for name, value in found.items() if name[0] == "group_rebalances_total"}
    assert {why for why, count in begun.items() if count} == {"size"}
    assert found["group_rebalance_seconds_count",] == 0


async def test_offsets_that_are_committed_and_forgotten_are_counted():
    clock = FakeClock()
    one = watched(offsets_topic_num_partitions="1")
    async with new_node(SimDisk(), one, clock) as node, client_of(node) as client:
        await client.create()
        for offset in (0, 3):
            await committed(client, "g", offset)
        found = await samples(node)
        assert (found["offset_commits_total",], found["offset_expirations_total",]) == (2, 0)
        clock.ms += EIGHT_DAYS_MS
        await node.coordinators._expire()
        found = await samples(node)
        assert (found["offset_commits_total",], found["offset_expirations_total",]) == (2, 1)


# -- connections -----------------------------------------------------------------------------------


async def test_connections_that_end_are_told_by_why():
    async with new_node(SimDisk(), watched(max_connections="1")) as node:
        for said in (b"\0\0\0\4abcd", b""):
            stream = await trio.open_tcp_stream("127.0.0.1", node.port)
            await stream.send_all(said)
            await stream.send_eof()
            await quiet()
            await stream.aclose()
            await quiet()
        async with await trio.open_tcp_stream("127.0.0.1", node.port):
            await quiet()
            async with await trio.open_tcp_stream("127.0.0.1", node.port) as second:
                assert await second.receive_some() == b""
            found = await samples(node)
    closed = {name[2]: found[name] for name in found if name[0] == "connections_closed_total"}
    assert closed == {"invalid": 1, "left": 1, "full": 1}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("connections_closed_total", CLOSED),
        ("group_rebalances_total", REASONS),
        ("rejected_batches_total", CAUSES),
        ("request_phase_seconds", PHASES),
        ("waiting_requests", WAITING),
        ("node_state", STATES),
    ],
)
def test_each_value_of_a_label_is_explained(name, values):
    (row,) = [line for line in DOCUMENT.splitlines() if re.match(rf"\| `{name}\b", line)]
    assert {*values} <= {*re.findall(r"`([a-z_]+)`", row)}


async def test_who_waits_for_a_quota_is_told_of_while_it_does(mock_clock):
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        await client.create()
        wish = k.QuotaSetting(key=k.PRODUCER_BYTE_RATE, value=1000, client_id="hightide")
        await node.change(k.AlterClientQuotasRequest(quotas=[wish]))
        await client.produce(b"x" * 9000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, m.MetadataRequest())
            await quiet()
            assert (await samples(node))["throttled_connections",] == 1
            mock_clock.jump(100)
        assert (await samples(node))["throttled_connections",] == 0


# -- the controller and its log --------------------------------------------------------------------


async def test_decisions_are_counted_whether_they_change_something_or_not():
    async with new_node(SimDisk(), WATCHED) as node, client_of(node) as client:
        before = (await samples(node))["controller_event_seconds_count",]
        await client.create()
        once = (await samples(node))["controller_event_seconds_count",]
        assert before < once
        await client.create()  # it is there already
        assert (await samples(node))["controller_event_seconds_count",] > once


VOTERS = tuple(Voter(id=each, directory=f"d{each}", host="h", port=1) for each in (1, 2, 3))


@pytest.mark.parametrize(
    ("log", "committed", "uncommitted"),
    [
        ({"voters": None, "voters_end": 0, "earlier_voters": ()}, 5, 0),
        ({"voters": VOTERS, "voters_end": 9, "earlier_voters": VOTERS[:2]}, 3, 0),
        ({"voters": VOTERS, "voters_end": 10, "earlier_voters": VOTERS[:2]}, 2, 3),
        ({"voters": VOTERS, "voters_end": 10, "earlier_voters": ()}, 5, 3),
    ],
    ids=["configured", "committed", "on its way", "the first record"],
)
def test_who_votes_is_told_with_what_is_on_its_way(log, committed, uncommitted):
    found = voters_by_kind(SimpleNamespace(**log), (1, 2, 3, 4, 5), 9)
    assert found == {"committed": committed, "uncommitted": uncommitted}


async def test_a_node_alone_has_one_voter():
    async with new_node(SimDisk(), WATCHED) as node:
        found = await samples(node)
    assert (found["quorum_voters", "committed"], found["quorum_voters", "uncommitted"]) == (1, 0)


async def test_a_snapshot_grows_old_and_one_that_there_is_not_has_no_age():
    disk, clock = SimDisk(), FakeClock()
    async with new_node(disk, WATCHED, clock) as node:
        _, text = await trio.to_thread.run_sync(asked, node, "/metrics")
        assert "# TYPE hightide_snapshot_age_seconds gauge\n" in text
        assert ("snapshot_age_seconds",) not in await samples(node)
    async with new_node(disk, watched(**SNAPSHOTS), clock) as node, client_of(node) as client:
        await client.create()
        await quiet()
        assert (await samples(node))["snapshot_age_seconds",] == 0
        clock.ms += 90_000
        assert (await samples(node))["snapshot_age_seconds",] == 90
        clock.ms -= 200_000
        assert (await samples(node))["snapshot_age_seconds",] == 0


async def test_a_snapshot_whose_file_is_spoilt_has_no_age_and_the_page_goes_on():
    disk = SimDisk()
    async with new_node(disk, watched(**SNAPSHOTS)) as node, client_of(node) as client:
        await client.create()
        await quiet()
        latest = [*disk.files("__cluster_metadata-0", ".checkpoint")][-1]
        disk.flip(latest, 16, 0)
        found = await samples(node)
    assert ("snapshot_age_seconds",) not in found
    assert found["controller_active",] == 1


async def test_metadata_that_cannot_be_stored_is_counted():
    disk = SimDisk()
    async with new_node(disk, watched(**SNAPSHOTS)) as node, client_of(node) as client:
        await quiet()
        assert (await samples(node))["metadata_errors_total",] == 0
        disk.fail("write", ".checkpoint.part")
        await client.create()
        await quiet()
        failed = (await samples(node))["metadata_errors_total",]
        assert failed > 0, "snapshots"
        disk.heal()
        assert not node.quorum.metadata.replicate(b"x" * 100, epoch=1)
        assert (await samples(node))["metadata_errors_total",] == failed + 1
