"""The voters in the metadata log: written, cut off, carried by a snapshot, found by the next life.

Goal: the last record of the voters counts from the moment it is in the log until it is cut off
again, in this life and in the next one, whether it came from a client, from a leader or in a
snapshot. Method: the log on a simulated disk, beside a list of what was written, through everything
that may happen to it. `test_membership.py` has what follows from a record.
"""

from __future__ import annotations

import random

import pytest
import trio
from brokers import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from quorum_node import names_of, voters

from hightide.protocol.columns import batch_at
from hightide_broker.core.cluster.changes import (
    AnyChange,
    Change,
    CreateTopic,
    FenceBroker,
    SetVoters,
    decode_change,
    encode_change,
)
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.quorum.ready import SnapshotId, SnapshotPiece
from hightide_broker.core.quorum.roles import Voter
from hightide_broker.runtime.quorum import metadata_log
from hightide_broker.runtime.quorum.metadata_log import MetadataLog
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.segment import LogConfig
from hightide_broker.storage.synced_end import SYNCED_END

HERE = "data/__cluster_metadata-0"
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=150)


def open_log(disk: SimDisk) -> MetadataLog:
    return MetadataLog(disk, HERE, config=CONFIG, clock=FakeClock())


def next_life(disk: SimDisk) -> MetadataLog:
    """What the next process finds; the one that there is goes on all the same, and so must not find
    what that one noted."""
    found = open_log(disk)
    disk.remove(f"{HERE}/{SYNCED_END}")
    return found


def sync(metadata: MetadataLog, disk: SimDisk) -> None:
    job = metadata.begin_sync()
    if job is not None:
        disk.sync_now(job.files, job.directories)
        metadata.finish_sync(job)


def says(names: str) -> SetVoters:
    return SetVoters(voters=voters(names))


def fence(number: int = 1) -> FenceBroker:
    return FenceBroker(broker=number, broker_epoch=number)


def known_to(metadata: MetadataLog) -> tuple[str | None, int]:
    return names_of(metadata.voters), metadata.voters_end


def test_a_record_counts_as_soon_as_it_is_written() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    assert known_to(metadata) == (None, 0)
    metadata.append([fence(), says("1a 2a"), fence()], 1)
    assert known_to(metadata) == ("1a 2a", 3), "a batch counts as a whole"
    assert metadata.synced_end == 0
    metadata.append([fence()], 1)
    metadata.append([says("1a"), says("1a 3a")], 2)
    assert known_to(metadata) == ("1a 3a", 6)


def test_a_leader_change_names_voters_and_records_none() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    metadata.append_leader_change(1, leader=1, voters=[1, 2, 3])
    metadata.append([CreateTopic(topic="voters", topic_id="voters")], 1)
    for log in (metadata, open_log(disk)):
        assert (known_to(log), log.log_end) == ((None, 0), 2)


def test_a_record_counts_as_soon_as_it_comes_from_the_leader() -> None:
    source_disk, disk = SimDisk(), SimDisk()
    source, metadata = open_log(source_disk), open_log(disk)
    source.append([fence()], 4)
    source.append([says("1a 2a")], 4)
    source.append([fence()], 4)
    source.append([says("1a 2b")], 4)
    read = source.read(0, 1 << 20)
    assert read is not None
    data = bytearray(read.read())
    data[-1] ^= 1
    assert not metadata.replicate(bytes(data), epoch=4)
    assert (known_to(metadata), metadata.log_end) == (("1a 2a", 2), 3), "what was good is kept"
    rest = source.read(3, 1 << 20)
    assert rest is not None
    assert metadata.replicate(rest.read(), epoch=4)
    assert known_to(metadata) == known_to(source) == ("1a 2b", 4)


def test_a_cut_takes_a_record_away() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    for change in (fence(), says("1a"), fence(), says("1a 2a"), says("1a 2a 3a"), fence()):
        metadata.append([change], 1)
    seen = []
    for end in (5, 4, 3, 2, 1):
        metadata.truncate_to(end)
        seen.append(known_to(metadata))
        assert known_to(next_life(disk)) == seen[-1], "and the next life finds the same"
    assert seen == [("1a 2a 3a", 5), ("1a 2a", 4), ("1a", 2), ("1a", 2), (None, 0)]


def test_the_voters_before_are_known_while_their_record_is():
    disk = SimDisk()
    metadata = open_log(disk)
    assert metadata.earlier_voters == ()
    seen = []
    for change in (says("1a"), fence(), says("1a 2a"), says("1a 2a"), says("2a")):
        metadata.append([change], 1)
        seen.append(names_of(metadata.earlier_voters))
        assert next_life(disk).earlier_voters == metadata.earlier_voters
    assert seen == ["", "", "1a", "1a", "1a 2a"]
    sync(metadata, disk)
    metadata.truncate_to(4)
    assert names_of(metadata.earlier_voters) == names_of(next_life(disk).earlier_voters) == "1a"


def test_a_record_that_was_not_synced_is_gone_with_the_power() -> None:
    found = set()
    for seed in range(20):
        disk = SimDisk()
        metadata = open_log(disk)
        metadata.append([says("1a")], 1)
        sync(metadata, disk)
        metadata.append([says("1a 2a")], 1)
        disk.crash(random.Random(seed))
        found.add(known_to(open_log(disk)))
    assert found == {("1a", 1), ("1a 2a", 2)}, "or it survives, and counts"


def snapshot_of(metadata: MetadataLog, end: int, changes: list[Change]) -> SnapshotId:
    snapshot = metadata.snapshot_id(end)
    trio.run(metadata.write_snapshot, snapshot, changes)
    return snapshot


def test_a_snapshot_carries_the_voters_when_the_log_begins_behind_it() -> None:
    disk = SimDisk()
    metadata = open_log(disk)
    metadata.append([says("1a")], 1)
    metadata.append([says("1a 2a")], 1)
    for each in range(20):
        metadata.append([fence(each)], 1)
    sync(metadata, disk)
    snapshot_of(metadata, 10, [says("1a 2a"), fence()])
    snapshot_of(metadata, 22, [says("1a 2a"), fence()])
    metadata.append([fence()], 1)
    assert known_to(metadata) == known_to(next_life(disk)) == ("1a 2a", 2)
    metadata.prune(0)
    assert metadata.log_start == 22
    assert names_of(metadata.voters) == "1a 2a"
    again = open_log(disk)
    assert known_to(again) == ("1a 2a", 22), "where the snapshot ends: it is committed"
    again.append([says("1a 2a 3a")], 1)
    assert known_to(again) == known_to(next_life(disk)) == ("1a 2a 3a", 24)
    again.truncate_to(23)
    assert known_to(again) == known_to(next_life(disk)) == ("1a 2a", 22)


@pytest.mark.parametrize("carried", [None, "1a 2a"])
def test_a_snapshot_from_the_leader_says_who_votes(carried: str | None) -> None:
    """Whatever the log said that it takes the place of."""
    source_disk, disk = SimDisk(), SimDisk()
    source, metadata = open_log(source_disk), open_log(disk)
    for each in range(30):
        source.append([fence(each)], 3)
    changes: list[Change] = [says(carried)] if carried else []
    snapshot = snapshot_of(source, 30, [*changes, fence()])
    metadata.append([says("1a 2a 9a")], 1)
    metadata.append([says("1a 9a")], 1)
    size, data = source.snapshot_piece(snapshot, 0, 1 << 20)
    assert size == len(data)
    assert metadata.gather(SnapshotPiece(snapshot, 0, memoryview(data)))
    assert known_to(metadata) == ("1a 9a", 2), "it is not loaded yet"
    assert metadata.install(snapshot)
    expected = (carried, 30 if carried else 0)
    assert known_to(metadata) == known_to(open_log(disk)) == expected


class Beside:
    """A log, and a list of the records in it; what happens to one happens to both."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk()
        self.metadata = open_log(self.disk)
        self.records: list[tuple[int, str]] = []
        self.epoch = 1
        self.floor = 0
        """What a snapshot contains is never cut."""

    def _changes(self) -> list[Change]:
        return [self._change() for _ in range(self.rng.randint(1, 4))]

    def _change(self) -> Change:
        if self.rng.random() < 0.3:
            return says(" ".join(self.rng.sample(["1a", "2a", "2b", "3a", "4a"], 3)))
        return CreateTopic(topic=self.rng.choice(["voters", "a"]), topic_id="id")

    def act(self) -> None:
        metadata = self.metadata
        match self.rng.choice(["append", "append", "lead", "cut", "snapshot", "again", "crash"]):
            case "append":
                changes = self._changes()
                metadata.append(changes, self.epoch)
                said = [names_of(c.voters) for c in changes if isinstance(c, SetVoters)]
                self.records += [(metadata.log_end, name or "") for name in said]
            case "lead":
                self.epoch += 1
                metadata.append_leader_change(self.epoch, leader=1, voters=[1, 2])
            case "cut":
                ends = [header.next_offset for header in metadata.headers(metadata.log_start)]
                ends = [end for end in ends if end >= self.floor]
                metadata.truncate_to(self.rng.choice([*ends, metadata.log_end]))
                self._forget()
            case "snapshot" if metadata.log_end > self.floor:
                sync(metadata, self.disk)
                self.floor = metadata.log_end
                latest: list[Change] = [says(self.records[-1][1])] if self.records else []
                snapshot_of(metadata, self.floor, [*latest, fence()])
                metadata.prune(self.rng.choice([0, 1 << 20]))
            case "again":
                self.disk.kill()
                self.metadata = open_log(self.disk)
            case "crash":
                self.disk.crash(self.rng)
                self.metadata = open_log(self.disk)
                self._forget()

    def _forget(self) -> None:
        self.records = [each for each in self.records if each[0] <= self.metadata.log_end]

    def check(self) -> None:
        end, expected = self.records[-1] if self.records else (0, None)
        assert names_of(self.metadata.voters) == expected
        assert end <= self.metadata.voters_end <= max(end, self.floor), "or a snapshot's end"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_to_the_log_its_last_record_counts(seed: int) -> None:
    beside = Beside(seed)
    for _ in range(40):
        beside.act()
        beside.check()


texts = st.text(max_size=40)
some_voters = st.builds(
    Voter,
    id=st.integers(0, 2**31 - 1),
    directory=texts,
    host=texts,
    port=st.integers(0, 65535),
)


@given(st.lists(some_voters, max_size=6), st.integers(0, 3))
def test_the_mark_of_a_record_is_in_the_bytes_of_every_one(known: list[Voter], place: int) -> None:
    """A batch without it is not even looked into."""
    change = SetVoters(voters=tuple(known))
    value = encode_change(change)
    assert decode_change(value) == change
    values = [encode_change(fence(number)) for number in range(3)]
    values.insert(place, value)
    assert metadata_log._VOTERS_TAG in value
    assert metadata_log._VOTERS_TAG in bytes(batch_at(1, values))
    assert metadata_log._VOTERS_TAG not in encode_change(fence())


# --- the record in the image --------------------------------------------------------------------


def test_the_voters_are_in_a_snapshot_of_the_image_and_in_a_copy() -> None:
    image = ClusterImage()
    assert (image.voters, image.changes()) == ((), [])
    changes: list[AnyChange] = [says("1a 2a"), CreateTopic(topic="a", topic_id="1"), says("1a 3b")]
    for offset, change in enumerate(changes):
        image.replay(change, offset)
    assert names_of(image.voters) == "1a 3b"
    values = [encode_change(change) for change in image.changes()]
    again = ClusterImage.of_snapshot(map(decode_change, values), image.offset)
    assert again == image
    copy = image.copy()
    image.replay(says("1a"), 3)
    assert (names_of(copy.voters), names_of(again.voters)) == ("1a 3b", "1a 3b")
