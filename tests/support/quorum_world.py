"""A few nodes of a metadata quorum in memory, for tests; no message arrives unless it is told to.

Not a test. `QuorumWorld` is the driver of each node's `Quorum`: it carries out the duties of a step
in their order, may crash between two of them, and lets a `QuorumChecker` see what leaves a
node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from quorum_checker import Disk, QuorumChecker
from quorum_node import (
    NEVER_VOTED,
    Asked,
    Entry,
    FakeLog,
    Letter,
    Node,
    Watched,
    pack,
    show_directories,
    unpack,
)

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.quorum import ready as r
from hightide_broker.core.quorum.ready import Answered, LogSynced, Ready, Requested, SnapshotId
from hightide_broker.core.quorum.roles import QuorumConfig, Role, Voter
from hightide_broker.core.quorum.text import show_request, show_response, show_role

TIMEOUT_S = 5.0
"""How long a node waits for an answer."""


class Crash(Exception):
    """The node died between two duties."""


class QuorumWorld:
    """Every node, every letter, and what has been promised."""

    def __init__(self, voters: tuple[int, ...], *, piece_bytes: int = 1 << 20) -> None:
        self.voters = voters
        self.piece_bytes = piece_bytes
        self.now = 0.0
        self.nodes: dict[int, Node] = {}
        self.letters: list[Letter] = []
        self.asked: list[Asked] = []
        self.reached: set[tuple[Role, Role]] = set()
        self.checker = QuorumChecker(voters)
        self.draw: Callable[[Node], float] = lambda node: node.random
        self.stepping: Node
        self.crash_after: int | None = None
        """Crash the node after this many duties of the next step."""

    # -- what happens to a node

    def start(self, node: Node) -> None:
        """Start or restart it from what is on its disk."""
        config = QuorumConfig(
            node=node.id,
            voters=self.voters,
            addresses={voter: (f"n{voter}", voter) for voter in self.voters},
            directory=node.directory,
            joining=node.joining,
            cluster_id="tide",
            first_pause_s=None,
        )
        if not node.joining:
            self.checker.founders.setdefault(node.id, node.directory)
        self.nodes[node.id] = node
        before = node.election_state.epoch
        node.quorum = Watched(
            config, node.log, node.election_state, random=lambda: self.draw(node), now=self.now
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

    def replace_disk(self, node: Node) -> None:
        """A node that is down comes back with an empty disk, made for a quorum that exists."""
        assert node.quorum is None, f"node {node.id} is up"
        self.checker.lost.append(Disk(node.id, node.directory, node.log))
        node.directory = f"{node.id}{chr(ord(node.directory[-1]) + 1)}"
        node.log, node.election_state, node.joining = FakeLog(), NEVER_VOTED, True

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

    def change(self, node: Node, request: q.AddVoterRequest | q.RemoveVoterRequest) -> list[str]:
        """Let a leader add or remove a voter; raises `Refused`."""
        if isinstance(request, q.AddVoterRequest):
            voters = node.up.adding(request, self.now)
        else:
            voters = node.up.removing(request, self.now - 2 * node.up.config.fetch_timeout_s)
        return [f"{node.id} {self._set_voters(node, voters)}", *self.tick(node)]

    def _step(self, node: Node, event: r.Event, asked: Asked | None) -> list[str]:
        self.stepping, quorum = node, node.up
        before = (quorum.role, quorum.epoch, quorum.high_watermark)
        was_voter = quorum.membership.is_voter
        quorum.taken = [quorum.role]
        ready = quorum.step(event, self.now)
        self.reached |= {*zip(quorum.taken, quorum.taken[1:], strict=False)}
        if ready.committed >= 0:
            self.checker.commit(node, ready.committed, list(self.nodes.values()))
        assert quorum.epoch >= before[1], "the epoch fell"
        assert quorum.high_watermark >= before[2], "the watermark fell"
        told = []
        if quorum.membership.is_voter != was_voter:
            told.append("observes" if was_voter else "is a voter")
        if (quorum.role, quorum.epoch) != before[:2]:
            told.append(show_role(quorum))
        for number, duty in enumerate(self._duties(node, ready, event, asked), 1):
            told.append(duty)
            if number == self.crash_after:
                raise Crash
        self.checker.check_leader(node)
        node.wake_at = ready.wake_at
        return [text if text[0].isdigit() else f"{node.id} {text}" for text in told]

    # -- duties, in order

    def _duties(
        self, node: Node, ready: Ready, event: r.Event, asked: Asked | None
    ) -> Iterator[str]:
        if ready.election_state is not None:
            assert ready.election_state.epoch >= node.election_state.epoch
            node.election_state = ready.election_state
            yield "keeps {}/{}/{}".format(*ready.election_state).replace("-1", "-")
        yield from self._change_log(node, ready)
        if ready.reply is not None:
            yield self._reply(node, ready.reply, event, asked)
        elif ready.serve:
            yield self._serve(node, event, asked)
        for peer, request in ready.send:
            self.checker.check_promise(node, request)
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
            self.checker.check_election(node)
            self._append(node, [Entry(node.up.epoch, f"leader {node.id}")])
            yield f"begins its epoch at {log.log_end - 1}"
        if ready.set_voters:
            yield self._set_voters(node, ready.set_voters)
        if ready.piece is not None:
            if not ready.piece.position:
                node.gathered.clear()
            assert ready.piece.position == len(node.gathered), "a piece is missing"
            node.gathered += ready.piece.data
            node.changed = True
            yield f"keeps bytes {span(ready.piece.position, len(node.gathered))}"
        if ready.install is not None:
            assert not node.up.is_leader
            log.begin_again(ready.install, unpack(bytes(node.gathered)))
            node.changed = True
            yield "installs {}@{}".format(*ready.install)

    def _set_voters(self, node: Node, voters: tuple[Voter, ...]) -> str:
        self.checker.check_voters(node, voters)
        self._append(node, [Entry(node.up.epoch, "voters", voters)])
        return f"writes {node.log.log_end - 1} voters {show_directories(voters)}"

    def _append(self, node: Node, entries: list[Entry]) -> None:
        self.checker.check_entries(node, entries)
        node.log.append(entries)
        node.changed = True

    # -- answers

    def _reply(self, node: Node, reply: m.Message, event: r.Event, asked: Asked | None) -> str:
        assert isinstance(event, Requested)
        if isinstance(reply, c.VoteResponse):
            assert reply.granted != bool(reply.message), "a no has a reason, a yes needs none"
        if isinstance(reply, c.VoteResponse) and reply.granted and not event.request.pre_vote:
            vote = event.request
            candidate = (vote.candidate, vote.candidate_directory)
            self.checker.check_vote(node, candidate, vote.epoch)
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


def span(start: int, end: int) -> str:
    """Both ends included."""
    return f"{start}..{end - 1}"
