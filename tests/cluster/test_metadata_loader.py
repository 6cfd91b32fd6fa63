"""A node's image of the cluster: what is committed, in order, in whole batches, and nothing else.

Goal: anybody who waits for `applied` finds everything below it in the image and carried out; a
start or a node that fell behind goes on from a snapshot as if it had followed the log; snapshots
are written when they are due, and a full disk only delays them. Method: a real metadata log on a
simulated disk under virtual time; the follower writes down what it is told and when.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing
from brokers import FakeClock
from logkit import place_of
from patience import PATIENCE_S

from hightide_broker.config import make_config
from hightide_broker.core.cluster.changes import (
    AnyChange,
    ChangePartition,
    CreateTopic,
    RemoveTopic,
    SetConfig,
)
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.quorum.ready import SnapshotPiece
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.cluster.metadata_loader import ROUND_BYTES, MetadataLoader
from hightide_broker.runtime.quorum.metadata_log import MetadataFailed, MetadataLog
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.segment import LogConfig

HERE = "data/__cluster_metadata-0"
HOUR_S = 3600.0


class Recorder:
    """Implements `metadata_loader.Follower`."""

    def __init__(self, metadata_loader: MetadataLoader) -> None:
        self.loaded: list[ClusterImage] = []
        self.applied: list[list[AnyChange]] = []
        self.load_s = 0.0
        self._metadata_loader = metadata_loader

    async def load(self, image: ClusterImage) -> None:
        await trio.sleep(self.load_s)
        self.loaded.append(image.copy())

    async def apply(self, image: ClusterImage, changes: Sequence[AnyChange]) -> None:
        if not changes:
            return
        before = self._metadata_loader.applied.value
        await trio.sleep(0.1)
        assert self._metadata_loader.applied.value == before, "not before it is done"
        assert before < image.offset or not self.applied, "but for what came while it was loaded"
        self.applied.append(list(changes))

    @property
    def told(self) -> list[AnyChange]:
        return [change for batch in self.applied for change in batch]


class Node:
    """A metadata log, what is committed of it, and the image."""

    def __init__(self, disk: SimDisk, **config: str) -> None:
        named = {key.replace("_", "."): value for key, value in config.items()}
        clock, segments = FakeClock(), LogConfig(segment_bytes=1000)
        self.disk = disk
        self.metadata = MetadataLog(disk, HERE, config=segments, clock=clock)
        latest = self.metadata.latest_snapshot
        self.committed = Watermark(latest.end_offset if latest is not None else 0)
        self.metadata_loader = MetadataLoader(
            self.metadata, self.committed, node=1, config=make_config(named)
        )
        self.recorder = Recorder(self.metadata_loader)

    def append(self, *changes: AnyChange) -> None:
        self.metadata.append(list(changes), 1)

    def commit(self) -> None:
        self.committed.advance(self.metadata.log_end)

    async def settle(self) -> None:
        """Until everything committed is applied."""
        with trio.fail_after(PATIENCE_S):
            await self.metadata_loader.applied.wait_for(self.committed.value)
        await trio.testing.wait_all_tasks_blocked()

    @property
    def image(self) -> ClusterImage:
        return self.metadata_loader.image

    @property
    def snapshots(self) -> list[str]:
        return [name for name in self.disk.list(HERE) if name.endswith(".checkpoint")]


def topic(number: int) -> CreateTopic:
    return CreateTopic(topic=f"t{number}", topic_id=f"id-{number}")


def setting(number: int, value: str) -> SetConfig:
    return SetConfig(kind="topic", name=f"t{number}", key="segment.ms", value=value)


SNAPSHOT_AFTER = {"metadata_log_max_record_bytes_between_snapshots": "500"}


# Following.


async def test_only_what_is_committed_is_applied(autojump_clock, nursery) -> None:
    node = Node(SimDisk())
    nursery.start_soon(node.metadata_loader.run)
    await node.metadata_loader.attach(node.recorder)
    node.append(topic(0), topic(1))
    node.append(topic(2))
    await trio.sleep(1)
    assert (node.metadata_loader.applied.value, node.image.topics) == (0, {})
    node.committed.advance(2)
    await node.settle()
    assert (list(node.image.topics), node.metadata_loader.applied.value) == (["t0", "t1"], 2)
    node.commit()
    await node.settle()
    assert (list(node.image.topics), node.image.offset) == (["t0", "t1", "t2"], 3)
    assert node.recorder.told == [topic(0), topic(1), topic(2)]


async def test_a_batch_of_the_quorums_own_is_passed_over(autojump_clock, nursery) -> None:
    node = Node(SimDisk())
    nursery.start_soon(node.metadata_loader.run)
    node.metadata.append_leader_change(1, leader=1, voters=[1])
    node.append(topic(0))
    node.metadata.append_leader_change(2, leader=1, voters=[1])
    node.commit()
    await node.settle()
    assert (node.metadata_loader.applied.value, node.image.offset) == (3, 3)
    assert len(node.image.topics) == 1


async def test_who_is_attached_gets_the_image_and_then_the_changes(autojump_clock, nursery) -> None:
    node = Node(SimDisk())
    nursery.start_soon(node.metadata_loader.run)
    node.append(topic(0))
    node.commit()
    await node.settle()
    await node.metadata_loader.attach(node.recorder)
    node.append(topic(1))
    node.commit()
    await node.settle()
    assert [list(image.topics) for image in node.recorder.loaded] == [["t0"]]
    assert node.recorder.told == [topic(1)]


async def test_the_image_goes_on_while_logs_are_recovered(autojump_clock, nursery) -> None:
    """A node whose recovery takes minutes may have been elected: nobody would be decided for."""
    node = Node(SimDisk())
    nursery.start_soon(node.metadata_loader.run)
    node.append(topic(0), topic(1))
    node.commit()
    await node.settle()
    node.recorder.load_s = 600.0
    nursery.start_soon(node.metadata_loader.attach, node.recorder)
    await trio.sleep(1)
    node.append(RemoveTopic(topic_id="id-1"), setting(0, "1000"))
    node.commit()
    await node.settle()
    assert [*node.image.topics] == ["t0"]
    assert node.recorder.applied == []
    await trio.sleep(node.recorder.load_s)
    assert [[*image.topics] for image in node.recorder.loaded] == [["t0", "t1"]]
    told = RemoveTopic(topic_id="id-1"), SetConfig(kind="topic", name="t0", key="", value=None)
    assert node.recorder.told == [*told]
    node.append(topic(2))
    node.commit()
    await node.settle()
    assert node.recorder.told == [*told, topic(2)]


async def test_a_long_log_is_carried_out_in_rounds(autojump_clock, nursery) -> None:
    node = Node(SimDisk())
    big = "x" * (ROUND_BYTES // 3)
    for number in range(7):
        node.append(topic(number), setting(number, big))
    node.commit()
    await node.metadata_loader.attach(node.recorder)
    nursery.start_soon(node.metadata_loader.run)
    await node.settle()
    assert [len(changes) for changes in node.recorder.applied] == [6, 6, 2]
    assert len(node.image.topics) == 7


# Snapshots.


async def test_a_snapshot_is_written_after_so_many_bytes(autojump_clock, nursery) -> None:
    node = Node(SimDisk(), **SNAPSHOT_AFTER)
    nursery.start_soon(node.metadata_loader.run)
    written = []
    for number in range(12):
        node.append(topic(number))
        node.commit()
        await node.settle()
        latest = node.metadata.latest_snapshot
        written.append(latest.end_offset if latest is not None else 0)
    assert written[0] == 0, "not after every batch"
    assert 1 < len(set(written)) < 10
    assert all(end <= number + 1 for number, end in enumerate(written)), "nothing uncommitted"


async def test_a_snapshot_is_written_after_so_much_time_with_news(autojump_clock, nursery) -> None:
    node = Node(SimDisk())
    nursery.start_soon(node.metadata_loader.run)
    await trio.sleep(3 * HOUR_S)
    assert node.snapshots == [], "there was nothing new"
    node.append(topic(0))
    node.commit()
    await trio.sleep(HOUR_S - 1)
    assert node.snapshots == []
    await trio.sleep(2)
    assert len(node.snapshots) == 1
    node.metadata.append_leader_change(2, leader=1, voters=[1])
    node.commit()
    await trio.sleep(3 * HOUR_S)
    assert len(node.snapshots) == 1, "the quorum's own records are no news"


async def test_a_start_goes_on_from_the_latest_snapshot(autojump_clock, nursery) -> None:
    disk = SimDisk()
    node = Node(disk, **SNAPSHOT_AFTER, metadata_max_retention_bytes="1")
    nursery.start_soon(node.metadata_loader.run)
    for number in range(20):
        node.append(topic(number), setting(number, str(number + 1)))
        node.commit()
        await node.settle()
    assert node.metadata.log_start > 0
    assert len(node.snapshots) == 1, "the older ones and the log before are gone"
    again = Node(disk, **SNAPSHOT_AFTER)
    latest = again.metadata.latest_snapshot
    assert latest is not None
    assert again.metadata_loader.applied.value == again.image.offset == latest.end_offset > 0
    await again.metadata_loader.attach(again.recorder)
    assert again.recorder.loaded == [again.image]
    nursery.start_soon(again.metadata_loader.run)
    again.commit()
    await again.settle()
    assert again.image == node.image
    assert list(again.image.topics) == list(node.image.topics)


async def test_a_full_disk_delays_a_snapshot_and_nothing_else(autojump_clock, nursery) -> None:
    node = Node(SimDisk(), **SNAPSHOT_AFTER)
    nursery.start_soon(node.metadata_loader.run)
    node.disk.fail("write", ".part", "No space left on device")
    node.append(*[topic(number) for number in range(30)])
    node.commit()
    await node.settle()
    assert (len(node.image.topics), node.snapshots) == (30, [])
    node.disk.heal()
    await trio.sleep(HOUR_S + 1)
    assert node.metadata.latest_snapshot == (30, 1)


async def test_the_quorums_own_records_make_no_snapshot_due(autojump_clock, nursery) -> None:
    node = Node(SimDisk(), **SNAPSHOT_AFTER)
    nursery.start_soon(node.metadata_loader.run)
    for epoch in range(1, 20):
        node.metadata.append_leader_change(epoch, leader=1, voters=[1])
        node.commit()
        await node.settle()
    assert node.metadata.log_end == 19
    assert node.snapshots == []


# A node that fell behind.


def leaders_snapshot(metadata: MetadataLog) -> SnapshotPiece:
    snapshot = metadata.latest_snapshot
    assert snapshot is not None
    _, data = metadata.snapshot_piece(snapshot, 0, 1 << 30)
    return SnapshotPiece(snapshot, 0, memoryview(data))


async def leader_with(*changes: AnyChange) -> MetadataLog:
    node = Node(SimDisk())
    node.append(*changes)
    image = ClusterImage()
    for offset, change in enumerate(changes):
        image.replay(change, offset)
    snapshot = node.metadata.snapshot_id(len(changes))
    await node.metadata.write_snapshot(snapshot, image.changes())
    return node.metadata


async def test_who_fell_behind_is_told_of_what_differs(autojump_clock, nursery) -> None:
    common = [topic(0), topic(1)]
    later = [setting(1, "5"), setting(0, "7"), setting(0, "8"), topic(2)]
    leader = await leader_with(*common, *later)
    node = Node(SimDisk())
    nursery.start_soon(node.metadata_loader.run)
    await node.metadata_loader.attach(node.recorder)
    node.append(*common)
    node.commit()
    await node.settle()
    piece = leaders_snapshot(leader)
    assert node.metadata.gather(piece)
    assert node.metadata.install(piece.snapshot)
    node.commit()
    await node.settle()
    assert node.image.offset == node.metadata_loader.applied.value == 6
    assert list(node.image.topics) == ["t0", "t1", "t2"]
    assert node.image.topic_config("t0") == {"segment.ms": "8"}
    assert node.recorder.told[:2] == common
    named = {change.name for change in node.recorder.told[2:] if isinstance(change, SetConfig)}
    assert named == {"t0", "t1"}
    assert not any(isinstance(change, ChangePartition) for change in node.recorder.told)


class SlowDisk(SimDisk):
    """A disk whose worker threads wait until the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = trio.Event()

    async def in_thread(self, function):
        await self.gate.wait()
        return function()


async def test_the_leaders_snapshot_outruns_one_that_is_being_written(
    autojump_clock, nursery
) -> None:
    leader = await leader_with(*[topic(number) for number in range(6)])
    disk = SlowDisk()
    node = Node(disk)
    node.append(topic(0), topic(1))
    write = node.metadata.write_snapshot
    nursery.start_soon(write, node.metadata.snapshot_id(2), [topic(0), topic(1)])
    await trio.testing.wait_all_tasks_blocked()
    piece = leaders_snapshot(leader)
    assert node.metadata.gather(piece)
    assert node.metadata.install(piece.snapshot)
    disk.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert node.metadata.latest_snapshot == node.metadata.earliest_snapshot == (6, 1)
    assert len(node.snapshots) == 1
    assert (node.metadata.log_start, node.metadata.log_end) == (6, 6)


# What cannot be read.


def damaged_at(node: Node, *, record: int, byte: int) -> None:
    """One bit turns in the batch with this record."""
    ((path, data),) = node.disk.files(HERE, ".log").items()
    node.disk.flip(path, place_of(data, record) + byte, 0)


@pytest.mark.parametrize("byte", [10, 16, 70], ids=["length", "magic", "record"])
async def test_what_is_committed_and_damaged_ends_the_node_with_a_reason(byte: int) -> None:
    node = Node(SimDisk())
    for number in range(3):
        node.append(topic(number))
    damaged_at(node, record=1, byte=byte)
    node.commit()
    with pytest.raises(MetadataFailed, match="what is committed cannot be read"):
        await node.metadata_loader.run()


async def test_a_cut_through_what_is_damaged_ends_the_node_with_a_reason() -> None:
    node = Node(SimDisk())
    node.append(topic(0), topic(1))
    damaged_at(node, record=0, byte=70)
    with pytest.raises(MetadataFailed, match="damaged"):
        node.metadata.truncate_to(1)
