"""A node of `quorum_world` with its disk, and the letters that nodes send. Not a test."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from hightide.protocol import messages as m
from hightide_broker.core.quorum.elections import Elections
from hightide_broker.core.quorum.ready import ElectionState, SnapshotId
from hightide_broker.core.quorum.roles import Role, Voter
from hightide_broker.core.quorum.state_machine import Quorum

NEVER_VOTED = ElectionState()


class Entry(NamedTuple):
    """One record of the log."""

    epoch: int
    value: str
    voters: tuple[Voter, ...] = ()
    """Who votes from here on; empty: this is no record of the voters."""


def pack(entries: list[Entry]) -> memoryview:
    return memoryview(msgspec.msgpack.encode([e if e.voters else e[:2] for e in entries]))


def unpack(data: memoryview | bytes) -> list[Entry]:
    return msgspec.msgpack.decode(data, type=list[Entry])


class FakeLog:
    """A log in memory. What lies below its start is remembered as the snapshot's contents."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        self.log_start = 0
        self.snapshots: list[SnapshotId] = []
        self.records: list[int] = []
        """The offsets of the records of the voters."""
        self.undone = 0
        """How many of them were cut off."""
        self.append(entries)
        self.synced_end = len(self.entries)

    @property
    def log_end(self) -> int:
        return len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else 0

    @property
    def voters(self) -> tuple[Voter, ...] | None:
        return self.entries[self.records[-1]].voters if self.records else None

    @property
    def voters_end(self) -> int:
        return self.records[-1] + 1 if self.records else 0

    @property
    def earlier_voters(self) -> tuple[Voter, ...]:
        records = (self.entries[offset].voters for offset in reversed(self.records))
        return next((voters for voters in records if voters != self.voters), ())

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[0] if self.snapshots else None

    def is_boundary(self, offset: int) -> bool:
        return True  # one entry a batch

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """As the epoch cache of a log on disk has it."""
        if self.log_start == self.log_end or epoch > self.last_epoch:
            return -1, -1
        end = bisect_right(self.entries, epoch, lo=self.log_start, key=lambda entry: entry.epoch)
        return (epoch if end == self.log_start else self.entries[end - 1].epoch), end

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.voters:
                self.records.append(len(self.entries))
            self.entries.append(entry)

    def truncate_to(self, offset: int) -> None:
        assert self.log_start <= offset <= self.log_end, f"cut at {offset}"
        del self.entries[offset:]
        kept = [record for record in self.records if record < offset]
        self.undone, self.records = self.undone + len(self.records) - len(kept), kept
        self.synced_end = min(self.synced_end, offset)

    def snapshot(self, end_offset: int) -> SnapshotId:
        """Take a snapshot of everything below `end_offset`; it is durable."""
        taken = SnapshotId(end_offset, self.entries[end_offset - 1].epoch)
        self.snapshots = sorted({*self.snapshots, taken})
        self.synced_end = max(self.synced_end, end_offset)
        return taken

    def start_at(self, snapshot: SnapshotId) -> None:
        """Forget what a snapshot contains."""
        self.snapshots = [each for each in self.snapshots if each >= snapshot]
        self.log_start = snapshot.end_offset

    def begin_again(self, snapshot: SnapshotId, contents: list[Entry]) -> None:
        """Drop everything and begin behind a fetched snapshot."""
        assert len(contents) == snapshot.end_offset
        self.entries, self.records = [], []
        self.append(contents)
        self.snapshots = [snapshot]
        self.log_start = self.synced_end = snapshot.end_offset

    def contents(self, snapshot: SnapshotId) -> bytes:
        """The bytes of a snapshot."""
        return bytes(pack(self.entries[: snapshot.end_offset]))


def voter(directory: str) -> Voter:
    """`2b` is node 2 with its second disk."""
    node = int(directory[:-1])
    return Voter(id=node, directory=directory, host=f"n{node}", port=9000 + node)


def voters(names: str) -> tuple[Voter, ...]:
    return tuple(voter(name) for name in names.split())


def names_of(known: tuple[Voter, ...] | None) -> str | None:
    return None if known is None else " ".join(each.directory for each in known)


def show_directories(known: tuple[Voter, ...]) -> str:
    """As stories have it: each begins with its node."""
    return ",".join(each.directory for each in known)


@dataclass(eq=False)
class Asked:
    """A request that one node has sent another and waits for."""

    asker: int
    peer: int
    request: m.Message
    sent_at: float


@dataclass(eq=False)
class Letter:
    """A request or its answer on its way."""

    asked: Asked
    response: m.Message | None = None
    attachments: list[memoryview] = field(default_factory=list)

    @property
    def to(self) -> int:
        return self.asked.peer if self.response is None else self.asked.asker

    @property
    def sender(self) -> int:
        return self.asked.asker if self.response is None else self.asked.peer


class WatchedElections(Elections):
    """Elections that remember each role that was taken, from when `taken` is a list."""

    taken: list[Role] | None = None

    @property
    def role(self) -> Role:
        return self.__dict__["role"]

    @role.setter
    def role(self, role: Role) -> None:
        self.__dict__["role"] = role
        if self.taken is not None:
            self.taken.append(role)


class Watched(Quorum):
    """A quorum whose roles are remembered."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._elections.__class__ = WatchedElections

    @property
    def taken(self) -> list[Role] | None:
        return self._elections.taken

    @taken.setter
    def taken(self, taken: list[Role] | None) -> None:
        self._elections.taken = taken


@dataclass(eq=False)
class Node:
    """A node with its disk: `election_state` and `log`, up to `synced_end`, survive a crash."""

    id: int
    log: FakeLog
    election_state: ElectionState = NEVER_VOTED
    directory: str = ""
    """The id of its disk; without one no voter is ever recorded."""
    joining: bool = False
    """Whether the disk was made for a quorum that exists."""
    quorum: Watched | None = None
    waits_for_disk: bool = False
    """Whether a sync has to be told."""
    random: float = 0.0
    wake_at: float = 0.0
    parked: list[Asked] = field(default_factory=list)
    gathered: bytearray = field(default_factory=bytearray)
    """The pieces of a snapshot that is being fetched."""
    changed: bool = False
    """Whether the log waits for a sync."""
    applied: int = 0
    seen: object = None

    @property
    def up(self) -> Watched:
        assert self.quorum is not None, f"node {self.id} is down"
        return self.quorum
