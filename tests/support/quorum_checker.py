"""What the nodes of `quorum_world` promised, and whether it holds. Not a test.

Nobody may promise what is not durable, vote twice in an epoch, or lead another's; a leader has the
votes of a majority of the voters in force, what it commits is on the disks of a majority of them,
and what is committed stays. A voter is a node with a directory: a disk that was lost has voted and
held what it held, and the empty one in its place has not; a vote for the one is none for the other.
"""

from __future__ import annotations

from typing import NamedTuple

from quorum_node import Entry, FakeLog, Node

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide_broker.core.quorum.progress import majority_of
from hightide_broker.core.quorum.roles import Role, Voter


class Disk(NamedTuple):
    """A disk, whether it is still there or not."""

    node: int
    directory: str
    log: FakeLog


class QuorumChecker:
    """Everything that was promised in a world, from its beginning."""

    def __init__(self, voters: tuple[int, ...]) -> None:
        self.voters = voters
        """By configuration."""
        self.founders: dict[int, str] = {}
        """The directories of nodes that were not made to join."""
        self.lost: list[Disk] = []
        self.votes: dict[tuple[int, str, int], tuple[int, str]] = {}
        """By (node, directory, epoch): the node, and its directory, that was voted for."""
        self.leaders: dict[int, int] = {}
        self.seats: dict[int, str] = {}
        """The directory of the leader of each epoch."""
        self.committed: list[tuple[Entry, int]] = []
        """What is committed, and in which epoch it was."""
        self.written: dict[tuple[int, int], Entry] = {}
        """By (offset, epoch): there is one entry for each, ever."""

    # -- who counts

    def is_voter(self, voters: tuple[Voter, ...] | None, node: int, directory: str) -> bool:
        """Whether a disk is a voter's, by a record or else by configuration."""
        if voters is None:
            return node in self.voters and self.founders.get(node) == directory
        return any((voter.id, voter.directory) == (node, directory) for voter in voters)

    def majority(self, voters: tuple[Voter, ...] | None) -> int:
        return majority_of(len(self.voters if voters is None else voters))

    # -- promises

    def check_promise(self, node: Node, request: m.Message) -> None:
        match request:
            case c.VoteRequest():
                candidate = (request.candidate, request.candidate_directory)
                assert candidate == (node.id, node.directory), "it stands for another"
                if not request.pre_vote:
                    self.check_vote(node, candidate, request.epoch)
            case c.BeginQuorumEpochRequest():
                assert node.election_state[:2] == (request.epoch, node.id), (
                    "not durable, but announced"
                )
            case m.FetchRequest():
                (part,) = request.partitions
                assert part.fetch_offset == node.log.log_end == node.log.synced_end, "not synced"

    def check_vote(self, node: Node, candidate: tuple[int, str], epoch: int) -> None:
        known = node.election_state
        assert (known.epoch, known.voted, known.voted_directory) == (epoch, *candidate), (
            "not durable"
        )
        given = self.votes.setdefault((node.id, node.directory, epoch), candidate)
        assert given == candidate, f"{node.id} votes for {given} and {candidate} in {epoch}"

    def check_leader(self, node: Node) -> None:
        quorum = node.up
        if quorum.is_leader:
            first = self.leaders.setdefault(quorum.epoch, node.id)
            assert first == node.id, f"{first} and {node.id} lead epoch {quorum.epoch}"
            seat = self.seats.setdefault(quorum.epoch, node.directory)
            assert seat == node.directory, f"{seat}, {node.directory} lead epoch {quorum.epoch}"
        if quorum.role is Role.FOLLOWER:
            assert self.leaders.setdefault(quorum.epoch, quorum.leader) == quorum.leader

    def check_election(self, node: Node) -> None:
        """Who begins an epoch was elected, and has whatever was committed in an earlier one."""
        epoch, voters, me = node.up.epoch, node.log.voters, (node.id, node.directory)
        ayes = {key[:2] for key, given in self.votes.items() if key[2] == epoch and given == me}
        assert node.election_state[2:] == me
        counted = [each for each in ayes | {me} if self.is_voter(voters, *each)]
        assert len(counted) >= self.majority(voters), f"{node.id} leads {epoch} by {counted}"
        for offset, (entry, of) in enumerate(self.committed):
            if of < epoch:
                assert node.log.entries[offset : offset + 1] == [entry], f"{offset} is not there"

    # -- the log

    def check_entries(self, node: Node, entries: list[Entry]) -> None:
        """Entries for the end of a log."""
        for offset, entry in enumerate(entries, node.log.log_end):
            assert entry.epoch >= node.log.last_epoch, "epochs fall in the log"
            known = self.written.setdefault((offset, entry.epoch), entry)
            assert known == entry, f"{offset}@{entry.epoch} is {known} and {entry}"

    def check_voters(self, node: Node, new: tuple[Voter, ...]) -> None:
        """A leader writes who votes from here on: one more or one less, and one at a time."""
        quorum, old = node.up, node.log.voters
        assert quorum.is_leader, f"{node.id} does not lead and says who votes"
        assert quorum.high_watermark > quorum.epoch_start, "nothing of this epoch is committed"
        assert quorum.high_watermark >= node.log.voters_end, "two changes of the voters at once"
        assert len({voter.id for voter in new}) == len(new), f"{new} name a node twice"
        if old is None:
            assert {voter.id for voter in new} == {*self.voters}
            for voter in new:
                assert self.founders[voter.id] == voter.directory, f"{voter} is to be recorded"
        else:
            others = {(voter.id, voter.directory) for voter in old}
            others ^= {(voter.id, voter.directory) for voter in new}
            assert len(others) == 1, f"{others} change at once"

    def commit(self, node: Node, watermark: int, nodes: list[Node]) -> None:
        """A node learns, or decides, what is committed."""
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
        voters = node.log.voters
        disks = [*self.lost, *(Disk(each.id, each.directory, each.log) for each in nodes)]
        holders = [
            disk.directory or disk.node
            for disk in disks
            if self.is_voter(voters, disk.node, disk.directory)
            and disk.log.synced_end >= watermark
            and disk.log.entries[watermark - 1] == news[-1]
        ]
        assert len(holders) >= self.majority(voters), f"few hold {news}: {holders}"
        self.committed += [(entry, node.up.epoch) for entry in news]
