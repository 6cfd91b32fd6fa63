"""What a consumer reads and how far it is: positions, pauses, what has been fetched. Pure.

A partition's `position` is the offset of the next record that the caller gets; `fetch_offset` is
where the next fetch begins, further on when batches wait in `fetched`. A fetch's answer counts only
if the fetch offset is still the one it was asked for: after a seek it is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hightide.net.retries import NEW_TOPIC_GRACE_S
from hightide.protocol.errors import UsageError, whole
from hightide.protocol.records import BatchHeader
from hightide.protocol.topic_partition import TopicPartition

RESETS = ("earliest", "latest", "none")


def checked_reset(policy: str) -> str:
    """A reset policy; raises `UsageError` if it is none."""
    if policy not in RESETS:
        raise UsageError(f"auto_offset_reset is {policy!r}, expected one of {', '.join(RESETS)}")
    return policy


Listener = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""Told of partitions that come or go."""


def checked_places(partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """Partitions by name; raises `UsageError` for what are none."""
    try:
        pairs = [(topic, number) for topic, number in partitions]
    except (TypeError, ValueError) as error:
        raise UsageError(f"partitions are {partitions!r}, expected (topic, partition)") from error
    return [TopicPartition(topic, whole("partition", number)) for topic, number in pairs]


class OffsetAndMetadata(NamedTuple):
    """Where a group goes on in a partition."""

    offset: int
    """The next record to read."""
    leader_epoch: int = -1
    """Of the record before it; -1: not known. By it a log that was cut is told from the one that
    was read (KIP-320)."""
    metadata: str = ""
    """Whatever the committer wants to keep beside it."""
    topic_id: str = ""
    """Of the topic that was read, which may have been made again since; empty: whichever has the
    name."""


class OffsetAndTimestamp(NamedTuple):
    """A record by its place and time; offset -1: there is none."""

    offset: int
    timestamp: int
    """In ms; -1 where it was not asked for."""
    leader_epoch: int
    """-1: not known."""


class FetchedBatch(NamedTuple):
    """A batch that waits to be handed out: its bytes, checked, not decoded."""

    header: BatchHeader
    data: memoryview


@dataclass(slots=True)
class Assignment:
    """One partition that is read."""

    tp: TopicPartition
    position: int | None = None
    """None: to be found by the reset policy."""
    position_epoch: int = -1
    """The leader epoch of the record before the position; -1: not known."""
    moves: int = 0
    """How often it went on elsewhere than behind what was handed out."""
    fetch_offset: int = -1
    fetch_epoch: int = -1
    """The same for the fetch offset: the log that is fetched from must have it (KIP-320)."""
    topic_id: str = ""
    """What is read; empty before the first answer. A topic may be deleted and made again."""
    topic_told_at: float | None = None
    """When a commit told which topic it is, of which nothing was fetched since: what is known of
    the cluster may be older than that."""
    high_watermark: int = -1
    log_start: int = -1
    paused: bool = False
    is_held: bool = False
    """Nothing is handed out before somebody who was told of it is done."""
    is_added: bool = False
    """The topic got it while it was read: it begins with its first record."""
    is_damaged: bool = False
    """What came of it last was no batch: it is fetched again once the caller was told."""
    fetching: bool = False
    finding_since: float | None = None
    """When somebody began to look up its position, who still does."""
    backoff_until: float = 0.0
    nearby: int | None = None
    """The follower that the leader wants this consumer to read from, until the next metadata
    (KIP-392)."""
    nearby_failed: bool = False
    """It could not: until the next metadata only the leader is asked."""
    failing_since: float | None = None
    """When the trouble began that no fetch has ended yet."""
    told_at: float | None = None
    """When the caller was told of it last."""
    fetched: deque[FetchedBatch] = field(default_factory=deque)
    fetched_bytes: int = 0
    lent_bytes: int = 0
    """So much of it is in the caller's hands, or on its way there."""

    @property
    def ahead_bytes(self) -> int:
        """Bytes that were fetched ahead of the caller."""
        return self.fetched_bytes - self.lent_bytes

    @property
    def lag(self) -> int | None:
        """Committed records not handed out yet; None while that is not known."""
        if self.position is None or self.high_watermark < 0:
            return None
        return max(self.high_watermark - self.position, 0)

    def leave_nearby(self) -> None:
        """The follower cannot serve this: ask the leader, without a rack."""
        self.nearby, self.nearby_failed = None, True

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Go on at `offset`; what was fetched from elsewhere is dropped."""
        if offset < 0:
            raise UsageError(f"offset {offset} of {self.tp}, expected 0 or more")
        self.forget_position()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = epoch

    def begin_at(self, committed: OffsetAndMetadata, now: float) -> None:
        """Go on where the group is, in the topic that it has read."""
        self.seek(committed.offset, committed.leader_epoch)
        self.topic_id, self.topic_told_at = committed.topic_id, now

    def take_topic(self, topic_id: str) -> None:
        """This topic was fetched from."""
        self.topic_id, self.topic_told_at = topic_id, None

    def take_news(self, now: float) -> None:
        """A broker was asked for what it knows of the topic. One that is behind may be so for a
        while."""
        if self.topic_told_at is not None and now >= self.topic_told_at + NEW_TOPIC_GRACE_S:
            self.topic_told_at = None

    def fetch_again(self) -> None:
        """What was fetched and not handed out is fetched once more, of the same topic."""
        assert self.position is not None, f"{self.tp} has data and no position"
        topic_id, told_at = self.topic_id, self.topic_told_at
        self.seek(self.position, self.position_epoch)
        self.topic_id, self.topic_told_at = topic_id, told_at

    def forget_position(self) -> None:
        """Where to go on is to be found by the reset policy."""
        self.position, self.fetch_offset, self.is_damaged = None, -1, False
        self.topic_id, self.topic_told_at = "", None
        self.moves += 1
        self.position_epoch = self.fetch_epoch = -1
        self.fetched.clear()
        self.fetched_bytes = self.lent_bytes = 0

    def advance(self, offset: int, epoch: int) -> None:
        """Everything below `offset` was handed out; the last record of it is of `epoch`."""
        self.position, self.position_epoch = offset, epoch

    def add(self, batch: FetchedBatch) -> None:
        """A batch arrived at the fetch offset."""
        self.fetched.append(batch)
        self.fetched_bytes += len(batch.data)
        self.fetch_offset = batch.header.next_offset
        self.fetch_epoch = batch.header.leader_epoch

    def take(self) -> FetchedBatch:
        """The next batch to hand out; the position moves behind it when it is `consumed`."""
        batch = self.fetched.popleft()
        self.fetched_bytes -= len(batch.data)
        return batch


class Subscription:
    """Every partition of a consumer, served in turn so that none starves."""

    def __init__(self) -> None:
        self._assignments: dict[TopicPartition, Assignment] = {}
        self._turn: deque[TopicPartition] = deque()

    def __len__(self) -> int:
        return len(self._assignments)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read exactly these; positions of those that stay are kept."""
        wanted = dict.fromkeys(partitions)
        self._assignments = {tp: self._assignments.get(tp) or Assignment(tp) for tp in wanted}
        self._turn = deque(self._assignments)

    def add(self, tp: TopicPartition) -> None:
        """Read this one, too, from its first record on."""
        self.assign([*self._assignments, tp])
        self._assignments[tp].is_added = True

    def hand_out(self, partitions: Sequence[TopicPartition]) -> None:
        """Those of these that are still read are held back no longer."""
        for tp in partitions:
            if (found := self._assignments.get(tp)) is not None:
                found.is_held = False

    def all(self) -> list[Assignment]:
        """Every assignment, in order."""
        return list(self._assignments.values())

    def get(self, tp: TopicPartition) -> Assignment:
        """One assignment; raises `UsageError` if the partition is not assigned."""
        found = self._assignments.get(tp)
        if found is None:
            raise UsageError(f"{tp} is not assigned to this consumer")
        return found

    def find(self, tp: TopicPartition) -> Assignment | None:
        """One assignment, None if it is gone."""
        return self._assignments.get(tp)

    def next_with_data(self) -> Assignment | None:
        """An assignment that has fetched batches and is not paused; they take turns."""
        for _ in range(len(self._turn)):
            tp = self._turn[0]
            self._turn.rotate(-1)
            found = self._assignments[tp]
            if _is_ready(found):
                return found
        return None

    @property
    def has_data(self) -> bool:
        """Whether `next_with_data` would find something."""
        return any(map(_is_ready, self._assignments.values()))

    def ahead_bytes(self) -> int:
        """Bytes that were fetched ahead of the caller."""
        return sum(found.ahead_bytes for found in self._assignments.values())


def _is_ready(found: Assignment) -> bool:
    return bool(found.fetched) and not found.paused and not found.is_held
