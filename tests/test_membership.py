"""Who votes in the metadata quorum: what a node knows, its log keeps, and a snapshot tells.

Goal: the last record of the voters counts from the moment it is in the log until it is cut off
again, in this life and in the next one, whether it came from a client, from a leader or in a
snapshot; while there is none, the configuration counts, and a disk that was made to join counts for
nothing; voters come and go one at a time. Method: `Membership` on a log in memory; the log on a
simulated disk, beside a list of what was written, through everything that may happen to it.
"""

from __future__ import annotations

import random
from itertools import combinations

import pytest
import trio
from brokers import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from quorum_node import Entry, FakeLog

from hightide.columns import batch_at
from hightide.errors import ErrorCode, Refused
from hightide_broker.core.changes import (
    AnyChange,
    Change,
    CreateTopic,
    FenceBroker,
    SetVoters,
    Voter,
    decode_change,
    encode_change,
)
from hightide_broker.core.image import ClusterImage
from hightide_broker.core.membership import VOTERS_MAX, Membership
from hightide_broker.core.peer import majority_of
from hightide_broker.core.ready import SnapshotId, SnapshotPiece
from hightide_broker.core.roles import QuorumConfig
from hightide_broker.runtime import metadata_log
from hightide_broker.runtime.metadata_log import MetadataLog
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.segment import LogConfig


def voter(directory: str) -> Voter:
    """`2b` is node 2 with its second disk."""
    node = int(directory[:-1])
    return Voter(id=node, directory=directory, host=f"n{node}", port=9000 + node)


def voters(names: str) -> tuple[Voter, ...]:
    return tuple(voter(name) for name in names.split())


def names_of(known: tuple[Voter, ...] | None) -> str | None:
    return None if known is None else " ".join(each.directory for each in known)


def record(names: str) -> Entry:
    return Entry(1, "voters", voters(names))


def member(directory: str, log: FakeLog, *, joining: bool = False) -> Membership:
    """What a node knows, which has nodes 1 to 3 in its configuration."""
    config = QuorumConfig(
        node=int(directory[:-1]),
        voters=(1, 2, 3),
        addresses={node: (f"n{node}", 9000 + node) for node in (1, 2, 3)},
        directory=directory,
        joining=joining,
    )
    return Membership(config, log)


# --- who votes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directory", "joining", "known", "votes"),
    [
        ("1a", False, None, True),
        ("4a", False, None, False),
        ("1b", True, None, False),
        ("1a", False, "1a 2a 3a", True),
        ("1b", False, "1a 2a 3a", False),
        ("1b", True, "1a 2a 3a", False),
        ("1b", True, "1b 2a 3a", True),
        ("4a", True, "1a 2a 3a 4a", True),
        ("1a", False, "2a 3a", False),
    ],
)
def test_a_node_votes_with_the_directory_of_the_record_or_else_by_configuration(
    directory: str, joining: bool, known: str | None, votes: bool
) -> None:
    log = FakeLog([record(known)] if known else [])
    assert member(directory, log, joining=joining).is_voter == votes


def test_a_record_takes_the_place_of_the_configuration() -> None:
    log = FakeLog([Entry(1, "a")])
    mine = member("1a", log)
    assert (mine.voters, mine.others, mine.is_recorded, mine.addresses) == (
        (1, 2, 3),
        (2, 3),
        False,
        {},
    )
    assert not mine.refresh()
    log.append([record("4a 1a 2b")])
    assert mine.voters == (1, 2, 3), "it is looked for by `refresh`"
    assert mine.refresh()
    assert (mine.voters, mine.others, mine.is_recorded) == ((4, 1, 2), (4, 2), True)
    assert mine.addresses == {4: ("n4", 9004), 1: ("n1", 9001), 2: ("n2", 9002)}
    assert [mine.directory_of(node) for node in (1, 2, 3, 4)] == ["1a", "2b", "", "4a"]
    assert mine.sources == (4, 2, 3), "the configuration knows who may know"
    assert not mine.refresh()


def test_a_record_that_is_cut_off_never_was() -> None:
    log = FakeLog([record("1a 2a 3a"), Entry(1, "a"), record("1b 2a 3a"), record("2a 3a")])
    mine = member("1b", log, joining=True)
    seen = []
    for end in (4, 3, 2, 1, 0):
        log.truncate_to(end)
        seen.append((mine.refresh(), mine.voters, mine.is_voter, mine.directory))
    assert seen == [
        (False, (2, 3), False, "1b"),
        (True, (1, 2, 3), True, "1b"),
        (True, (1, 2, 3), False, "1b"),
        (False, (1, 2, 3), False, "1b"),
        (True, (1, 2, 3), False, ""),
    ]


def test_a_record_that_says_the_same_is_no_news() -> None:
    log = FakeLog([record("1a 2a 3a")])
    mine = member("1a", log)
    log.append([record("1a 2a 3a")])
    assert not mine.refresh()
    log.append([record("1a 2a 3b")])
    assert mine.refresh()


def test_a_disk_that_was_made_to_join_hides_until_it_knows_a_record() -> None:
    log = FakeLog()
    joiner, founder = member("2b", log, joining=True), member("2a", log)
    assert (joiner.directory, founder.directory) == ("", "2a")
    log.append([record("1a 2a 3a")])
    assert joiner.refresh()
    assert (joiner.directory, joiner.is_voter) == ("2b", False), "it may be admitted by its name"


@pytest.mark.parametrize(
    ("known", "node", "directory", "counts"),
    [
        (None, 2, "2a", True),
        (None, 2, "", False),
        (None, 4, "4a", False),
        ("1a 2a", 2, "2a", True),
        ("1a 2a", 2, "2b", False),
        ("1a 2a", 2, "", False),
        ("1a 2a", 3, "3a", False),
    ],
)
def test_what_a_node_holds_counts_if_its_directory_is_a_voters(
    known: str | None, node: int, directory: str, counts: bool
) -> None:
    mine = member("1a", FakeLog([record(known)] if known else []))
    assert mine.counts(node, directory) == counts


def test_where_nobody_has_a_directory_the_node_is_enough() -> None:
    mine = Membership(QuorumConfig(node=1, voters=(1, 2, 3)), FakeLog())
    assert [mine.counts(node, "") for node in (1, 2, 3, 4)] == [True, True, True, False]
    assert mine.first_record({2: "", 3: ""}) == ()


# --- the first record ---------------------------------------------------------------------------


def test_the_voters_are_recorded_once_all_their_directories_are_known() -> None:
    log = FakeLog()
    mine = member("1a", log)
    for known in ({}, {2: "2a"}, {3: "3a"}, {2: "2a", 3: ""}, {2: "2a", 4: "4a"}):
        assert mine.first_record(known) == ()
    assert mine.first_record({2: "2a", 3: "3a"}) == voters("1a 2a 3a")
    assert mine.first_record({1: "1b", 2: "2b", 3: "3a", 4: "4a"}) == voters("1a 2b 3a")
    log.append([record("1a 2a 3a")])
    mine.refresh()
    assert mine.first_record({2: "2b", 3: "3b"}) == (), "once"


# --- changes ------------------------------------------------------------------------------------


def refusal(function: object, *args: object) -> str:
    assert callable(function)
    with pytest.raises(Refused) as caught:
        function(*args)
    return caught.value.code


def test_one_voter_comes_or_goes() -> None:
    mine = member("1a", FakeLog([record("1a 2a 3a")]))
    assert mine.with_voter(voter("4a")) == voters("1a 2a 3a 4a")
    assert mine.without(2, "2a") == mine.without(2, "") == voters("1a 3a")
    assert mine.without(1, "1a") == voters("2a 3a"), "itself, too"
    assert mine.voters == (1, 2, 3), "that is for the log to say"


def test_a_change_that_makes_no_sense_is_refused() -> None:
    mine = member("1a", FakeLog([record("1a 2a 3a")]))
    assert refusal(mine.with_voter, voter("2a")) == ErrorCode.DUPLICATE_VOTER
    assert refusal(mine.with_voter, voter("2b")) == ErrorCode.DUPLICATE_VOTER, "first the old one"
    assert refusal(mine.without, 2, "2b") == ErrorCode.VOTER_NOT_FOUND
    assert refusal(mine.without, 4, "") == ErrorCode.VOTER_NOT_FOUND
    alone = member("1a", FakeLog([record("1a")]))
    assert refusal(alone.without, 1, "") == ErrorCode.INVALID_REQUEST
    unrecorded = member("1a", FakeLog())
    assert refusal(unrecorded.with_voter, voter("4a")) == ErrorCode.INVALID_REQUEST
    assert refusal(unrecorded.without, 2, "") == ErrorCode.INVALID_REQUEST


def test_there_are_only_so_many_voters() -> None:
    all_but_one = " ".join(f"{node}a" for node in range(1, VOTERS_MAX))
    log = FakeLog([record(all_but_one)])
    mine = member("1a", log)
    log.append([Entry(1, "voters", mine.with_voter(voter("500a")))])
    mine.refresh()
    assert len(mine.voters) == VOTERS_MAX
    assert refusal(mine.with_voter, voter("501a")) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("size", range(1, 7))
def test_a_majority_before_a_change_and_one_after_it_have_a_voter_in_common(size: int) -> None:
    before = " ".join(f"{node}a" for node in range(1, size + 1))
    mine = member("1a", FakeLog([record(before)]))
    changed = [mine.with_voter(voter("9a"))]
    changed += [mine.without(node, "") for node in mine.voters if size > 1]
    for after in changed:
        for one in combinations(voters(before), majority_of(size)):
            for other in combinations(after, majority_of(len(after))):
                assert {*one} & {*other}


# --- the record in the log ----------------------------------------------------------------------

HERE = "data/__cluster_metadata-0"
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=150)


def open_log(disk: SimDisk) -> MetadataLog:
    return MetadataLog(disk, HERE, config=CONFIG, clock=FakeClock())


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
        assert known_to(open_log(disk)) == seen[-1], "and the next life finds the same"
    assert seen == [("1a 2a 3a", 5), ("1a 2a", 4), ("1a", 2), ("1a", 2), (None, 0)]


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
    assert known_to(metadata) == known_to(open_log(disk)) == ("1a 2a", 2)
    metadata.prune(0)
    assert metadata.log_start == 22
    assert names_of(metadata.voters) == "1a 2a"
    again = open_log(disk)
    assert known_to(again) == ("1a 2a", 22), "where the snapshot ends: it is committed"
    again.append([says("1a 2a 3a")], 1)
    assert known_to(again) == known_to(open_log(disk)) == ("1a 2a 3a", 24)
    again.truncate_to(23)
    assert known_to(again) == known_to(open_log(disk)) == ("1a 2a", 22)


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
