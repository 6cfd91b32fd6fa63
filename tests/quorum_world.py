"""A few nodes of a metadata quorum in memory, for tests; no message arrives unless it is told to.

Not a test. `World` is the driver of each node's `Quorum`: it carries out the duties of a step in
their order, may crash between two of them, and judges what leaves a node: nobody may promise what
is not durable, vote twice in an epoch or lead another's, and what is committed stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from quorum_text import show_request, show_response

from hightide import controller_messages as c
from hightide import messages as m
from hightide.errors import ErrorCode
from hightide_broker.core import ready as r
from hightide_broker.core.peer import majority_of
from hightide_broker.core.quorum import Quorum
from hightide_broker.core.ready import Answered, Ballot, LogSynced, Ready, Requested, SnapshotId
from hightide_broker.core.roles import QuorumConfig, Role

TIMEOUT_S = 5.0
"""How long a node waits for an answer."""
NEVER_VOTED = Ballot()


class Entry(NamedTuple):
    """One record of the log."""

    epoch: int
    value: str


def pack(entries: list[Entry]) -> memoryview:
    return memoryview(msgspec.msgpack.encode(entries))


def unpack(data: memoryview | bytes) -> list[Entry]:
    return msgspec.msgpack.decode(data, type=list[Entry])


class FakeLog:
    """A log in memory. What lies below its start is remembered as the snapshot's contents."""

    voters = None
    """The configuration says who votes."""
    voters_end = 0

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = [*entries]
        self.log_start = 0
        self.synced_end = len(self.entries)
        self.snapshots: list[SnapshotId] = []

    @property
    def log_end(self) -> int:
        return len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else 0

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
        self.entries += entries

    def truncate_to(self, offset: int) -> None:
        assert self.log_start <= offset <= self.log_end, f"cut at {offset}"
        del self.entries[offset:]
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

    def begin_anew(self, snapshot: SnapshotId, contents: list[Entry]) -> None:
        """Drop everything and begin behind a fetched snapshot."""
        assert len(contents) == snapshot.end_offset
        self.entries, self.snapshots = contents, [snapshot]
        self.log_start = self.synced_end = snapshot.end_offset

    def contents(self, snapshot: SnapshotId) -> bytes:
        """The bytes of a snapshot."""
        return bytes(pack(self.entries[: snapshot.end_offset]))


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


class Watched(Quorum):
    """A quorum that remembers each role it took."""

    taken: list[Role] | None = None

    @property
    def role(self) -> Role:
        return self._role

    @role.setter
    def role(self, role: Role) -> None:
        self._role = role
        if self.taken is not None:
            self.taken.append(role)


@dataclass(eq=False)
class Node:
    """A node with its disk: `ballot` and `log`, up to `synced_end`, survive a crash."""

    id: int
    log: FakeLog
    ballot: Ballot = NEVER_VOTED
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


class Crash(Exception):
    """The node died between two duties."""


class World:
    """Every node, every letter, and what has been promised."""

    def __init__(self, voters: tuple[int, ...], *, piece_bytes: int = 1 << 20) -> None:
        self.voters = voters
        self.piece_bytes = piece_bytes
        self.now = 0.0
        self.nodes: dict[int, Node] = {}
        self.letters: list[Letter] = []
        self.asked: list[Asked] = []
        self.reached: set[tuple[Role, Role]] = set()
        self.votes: dict[tuple[int, int], int] = {}
        self.leaders: dict[int, int] = {}
        self.committed: list[tuple[Entry, int]] = []
        """What is committed, and in which epoch it was."""
        self.written: dict[tuple[int, int], str] = {}
        """By (offset, epoch): there is one value for each, ever."""
        self.draw: Callable[[Node], float] = lambda node: node.random
        self.stepping: Node
        self.crash_after: int | None = None
        """Crash the node after this many duties of the next step."""

    # -- what happens to a node

    def start(self, node: Node) -> None:
        """Start or restart it from what is on its disk."""
        config = QuorumConfig(
            node=node.id, voters=self.voters, cluster_id="tide", first_pause_s=None
        )
        self.nodes[node.id] = node
        before = node.ballot.epoch
        node.quorum = Watched(
            config, node.log, node.ballot, random=lambda: self.draw(node), now=self.now
        )
        assert node.quorum.epoch >= before
        node.quorum.taken = []
        node.wake_at, node.applied = self.now, node.quorum.high_watermark

    def crash(self, node: Node, *, keep: int = 0) -> None:
        """Everything in memory is lost, and what was not synced but for `keep` entries of it."""
        node.log.truncate_to(min(node.log.log_end, node.log.synced_end + keep))
        node.log.synced_end = node.log.log_end
        node.quorum, node.parked, node.gathered = None, [], bytearray()
        node.changed = False
        self.asked = [asked for asked in self.asked if asked.asker != node.id]

    def step(self, node: Node, event: r.Event, asked: Asked | None = None) -> list[str]:
        """Step a node and do what it says; what it did."""
        told = self._step(node, event, asked)
        if node.changed and not node.waits_for_disk:
            told += self.sync(node)
        while (mark := (node.log.log_end, node.up.high_watermark, repr(node.quorum))) != node.seen:
            node.seen = mark
            parked, node.parked = node.parked, []
            for each in parked:
                told += self._step(node, Requested(each.request, parked=True), each)
        return told

    def tick(self, node: Node) -> list[str]:
        return self.step(node, r.Tick())

    def sync(self, node: Node) -> list[str]:
        """The log's disk is done."""
        node.log.synced_end, node.changed = node.log.log_end, False
        return self.step(node, LogSynced())

    def write(self, node: Node, values: Iterable[str]) -> list[str]:
        """Append as the leader."""
        assert node.up.is_leader
        start = node.log.log_end
        self._append(node, [Entry(node.up.epoch, value) for value in values])
        return [f"{node.id} writes {span(start, node.log.log_end)}", *self.tick(node)]

    def _step(self, node: Node, event: r.Event, asked: Asked | None) -> list[str]:
        self.stepping, quorum = node, node.up
        before = (quorum.role, quorum.epoch, quorum.high_watermark)
        quorum.taken = [quorum.role]
        ready = quorum.step(event, self.now)
        self.reached |= {*zip(quorum.taken, quorum.taken[1:], strict=False)}
        if ready.committed >= 0:
            self._commit(node, ready.committed)
        assert quorum.epoch >= before[1], "the epoch fell"
        assert quorum.high_watermark >= before[2], "the watermark fell"
        told = [show_role(quorum)] if (quorum.role, quorum.epoch) != before[:2] else []
        for number, duty in enumerate(self._duties(node, ready, event, asked), 1):
            told.append(duty)
            if number == self.crash_after:
                raise Crash
        self._check_leader(node)
        node.wake_at = ready.wake_at
        return [text if text[0].isdigit() else f"{node.id} {text}" for text in told]

    # -- duties, in order

    def _duties(
        self, node: Node, ready: Ready, event: r.Event, asked: Asked | None
    ) -> Iterator[str]:
        if ready.ballot is not None:
            assert ready.ballot.epoch >= node.ballot.epoch
            node.ballot = ready.ballot
            yield "keeps {}/{}/{}".format(*ready.ballot).replace("-1", "-")
        yield from self._change_log(node, ready)
        if ready.reply is not None:
            yield self._reply(node, ready.reply, event, asked)
        elif ready.serve:
            yield self._serve(node, event, asked)
        for peer, request in ready.send:
            self._check_promise(node, request)
            self.asked.append(Asked(node.id, peer, request, self.now))
            self.letters.append(Letter(self.asked[-1]))
            yield f"{node.id}>{peer} {show_request(request)}"
        if ready.committed >= 0:
            yield f"commits {ready.committed}"

    def _change_log(self, node: Node, ready: Ready) -> Iterator[str]:
        log = node.log
        if ready.truncate_to is not None:
            assert ready.truncate_to >= node.up.high_watermark, "what is committed would be cut"
            log.truncate_to(ready.truncate_to)
            node.changed = True
            yield f"cuts {ready.truncate_to}"
        for data in ready.append:
            start = log.log_end
            self._append(node, unpack(data))
            yield f"appends {span(start, log.log_end)}"
        if ready.begin_epoch:
            self._check_history(node)
            self._append(node, [Entry(node.up.epoch, f"leader {node.id}")])
            yield f"begins its epoch at {log.log_end - 1}"
        if ready.piece is not None:
            if not ready.piece.position:
                node.gathered.clear()
            assert ready.piece.position == len(node.gathered), "a piece is missing"
            node.gathered += ready.piece.data
            node.changed = True
            yield f"keeps bytes {span(ready.piece.position, len(node.gathered))}"
        if ready.install is not None:
            assert not node.up.is_leader
            log.begin_anew(ready.install, unpack(bytes(node.gathered)))
            node.changed = True
            yield "installs {}@{}".format(*ready.install)

    def _append(self, node: Node, entries: list[Entry]) -> None:
        for offset, entry in enumerate(entries, node.log.log_end):
            assert entry.epoch >= node.log.last_epoch, "epochs fall in the log"
            known = self.written.setdefault((offset, entry.epoch), entry.value)
            assert known == entry.value, f"{offset}@{entry.epoch} is {known} and {entry.value}"
        node.log.append(entries)
        node.changed = True

    # -- answers

    def _reply(self, node: Node, reply: m.Message, event: r.Event, asked: Asked | None) -> str:
        assert isinstance(event, Requested)
        if isinstance(reply, c.VoteResponse) and reply.granted and not event.request.pre_vote:
            self._check_vote(node, event.request.candidate, event.request.epoch)
        return self._answer(node, asked, reply, [])

    def _answer(
        self, node: Node, asked: Asked | None, response: m.Message, attachments: list[memoryview]
    ) -> str:
        if asked is not None:
            self.letters.append(Letter(asked, response, attachments))
        return f"answers {show_response(response)}"

    def _serve(self, node: Node, event: r.Event, asked: Asked | None) -> str:
        assert isinstance(event, Requested)
        assert node.up.role in (Role.LEADER, Role.RESIGNED), "only a leader serves"
        if isinstance(event.request, c.FetchSnapshotRequest):
            return self._serve_snapshot(node, event.request, asked)
        (part,) = event.request.partitions
        found = node.log.entries[part.fetch_offset :]
        is_news = -1 < part.high_watermark < node.up.high_watermark
        if found or is_news or not event.request.max_wait_ms or asked is None:
            return self.give(node, asked, part.fetch_offset)
        node.parked.append(asked)
        return f"parks {show_request(event.request)}"

    def give(self, node: Node, asked: Asked | None, offset: int) -> str:
        """Answer a fetch with what there is."""
        found = node.log.entries[offset:]
        result = m.FetchResult(
            topic="__cluster_metadata",
            partition=0,
            high_watermark=node.up.high_watermark,
            log_start_offset=node.log.log_start,
            current_leader=m.LeaderHint(leader=node.id, leader_epoch=node.up.epoch),
            records=0 if found else -1,
        )
        packed = [pack(found)] if found else []
        text = f"records {span(offset, node.log.log_end)}" if found else "no records"
        self._answer(node, asked, m.FetchResponse(partitions=[result]), packed)
        return f"answers {text} watermark={node.up.high_watermark}"

    def expire(self, node: Node) -> list[str]:
        """The time of the fetches that wait here is over: answer them, with nothing."""
        parked, node.parked = node.parked, []
        return [
            f"{node.id} {self.give(node, asked, asked.request.partitions[0].fetch_offset)}"
            for asked in parked
        ]

    def _serve_snapshot(
        self, node: Node, request: c.FetchSnapshotRequest, asked: Asked | None
    ) -> str:
        told = {"epoch": node.up.epoch, "leader": node.id}
        snapshot = SnapshotId(request.snapshot.end_offset, request.snapshot.epoch)
        if snapshot not in node.log.snapshots:
            reply = c.FetchSnapshotResponse(**told, error=ErrorCode.SNAPSHOT_NOT_FOUND)
            return self._answer(node, asked, reply, [])
        whole = node.log.contents(snapshot)
        if request.position >= len(whole):
            reply = c.FetchSnapshotResponse(**told, error=ErrorCode.POSITION_OUT_OF_RANGE)
            return self._answer(node, asked, reply, [])
        piece = whole[request.position :][: self.piece_bytes]
        reply = c.FetchSnapshotResponse(**told, size=len(whole), position=request.position, data=0)
        return self._answer(node, asked, reply, [memoryview(piece)])

    # -- letters

    def deliver(self, letter: Letter, *, again: bool = False) -> list[str]:
        """It arrives, if anybody is there; `again`: and arrives once more later."""
        if not again:
            self.letters.remove(letter)
        node = self.nodes[letter.to]
        if node.quorum is None:
            return [f"{node.id} is down"]
        if letter.response is None:
            return self.step(node, Requested(letter.asked.request), letter.asked)
        if letter.asked not in self.asked:
            return [f"{node.id} has given up"]
        if not again:
            self.asked.remove(letter.asked)
        answer = Answered(
            letter.asked.peer, letter.asked.request, letter.response, letter.attachments
        )
        return self.step(node, answer)

    def give_up(self, asked: Asked, *, gone: bool = False) -> list[str]:
        """No answer came in time, or nobody listens there."""
        self.asked.remove(asked)
        answer = Answered(asked.peer, asked.request, None, gone=gone)
        return self.step(self.nodes[asked.asker], answer)

    # -- what must hold

    def _check_promise(self, node: Node, request: m.Message) -> None:
        match request:
            case c.VoteRequest(pre_vote=False):
                self._check_vote(node, node.id, request.epoch)
            case c.BeginQuorumEpochRequest():
                assert node.ballot[:2] == (request.epoch, node.id), "not durable, but announced"
            case m.FetchRequest():
                (part,) = request.partitions
                assert part.fetch_offset == node.log.log_end == node.log.synced_end, "not synced"

    def _check_vote(self, node: Node, candidate: int, epoch: int) -> None:
        assert (node.ballot.epoch, node.ballot.voted) == (epoch, candidate), "not durable"
        given = self.votes.setdefault((node.id, epoch), candidate)
        assert given == candidate, f"{node.id} votes for {given} and {candidate} in {epoch}"

    def _check_leader(self, node: Node) -> None:
        quorum = node.up
        if quorum.is_leader:
            first = self.leaders.setdefault(quorum.epoch, node.id)
            assert first == node.id, f"{first} and {node.id} lead epoch {quorum.epoch}"
        if quorum.role is Role.FOLLOWER:
            assert self.leaders.setdefault(quorum.epoch, quorum.leader) == quorum.leader

    def _check_history(self, node: Node) -> None:
        """Whatever was committed in an earlier epoch is in a new leader's log."""
        for offset, (entry, epoch) in enumerate(self.committed):
            if epoch < node.up.epoch:
                assert node.log.entries[offset : offset + 1] == [entry], f"{offset} is not there"

    def _commit(self, node: Node, watermark: int) -> None:
        assert watermark <= node.log.log_end
        since, node.applied = node.applied, watermark
        both = zip(self.committed[since:], node.log.entries[since:watermark], strict=False)
        for (known, _), entry in both:
            assert known == entry, f"{node.id} commits {entry}, but {known} is committed"
        news = node.log.entries[len(self.committed) : watermark]
        if not news:
            return
        was_leader = node.up.taken and node.up.taken[0] is Role.LEADER
        assert was_leader, f"{node.id} commits {news} before a leader does"
        holders = [
            other
            for other in self.nodes.values()
            if other.id in self.voters
            and other.log.synced_end >= watermark
            and other.log.entries[watermark - 1] == news[-1]
        ]
        assert len(holders) >= majority_of(len(self.voters)), f"few hold {news}: {holders}"
        self.committed += [(entry, node.up.epoch) for entry in news]


def span(start: int, end: int) -> str:
    """Both ends included."""
    return f"{start}..{end - 1}"


def show_role(quorum: Quorum) -> str:
    """A node's standing; who is not known is not mentioned."""
    known = [(name, getattr(quorum, name)) for name in ("leader", "voted")]
    words = [f"{name}={node}" for name, node in known if node >= 0]
    return " ".join([quorum.role.value, f"epoch={quorum.epoch}", *words])
