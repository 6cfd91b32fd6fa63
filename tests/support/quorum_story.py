"""The commands of the stories in `scenarios/quorum`, told to a `QuorumWorld`. Not a test.

Every answer says what the step changed, in the order it was done: a node's new role, what it keeps,
what it answers and asks. `1>2` names the oldest letter on its way from 1 to 2; a kind after it
(pre-vote, vote, begin, end, fetch, piece) chooses among several. A directory is called after its
node: `2b` is the second disk of node 2. Without any, nobody is ever recorded as a voter.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from quorum_node import show_directories
from quorum_world import Asked, Entry, FakeLog, Letter, Node, QuorumWorld

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import Refused
from hightide_broker.core.quorum import ready as r
from hightide_broker.core.quorum.ready import ElectionState
from hightide_broker.core.quorum.roles import Role
from hightide_broker.core.quorum.text import kind, show_role

METADATA = "__cluster_metadata"


class NotLeader(Exception):
    """Only a leader writes."""


class QuorumStory:
    """A quorum of a few nodes and what happens to it."""

    refusals = (NotLeader, Refused)

    def __init__(self) -> None:
        self.reached: set[tuple[Role, Role]] = set()
        self.world = QuorumWorld(())
        self.disks: dict[int, str] = {}

    def check_invariants(self) -> None:
        """`QuorumWorld` checks each step itself."""

    # -- the cast

    def voters(self, *ids: str, pieces: str = "1000000") -> str:
        """Begin: who votes by configuration, maybe with directories (`1a 2a`), and the size of a
        piece of a snapshot."""
        numbers = tuple(int(each.rstrip("abc")) for each in ids)
        self.disks = {n: each for n, each in zip(numbers, ids, strict=True) if each != str(n)}
        self.world = QuorumWorld(numbers, piece_bytes=int(pieces))
        self.world.reached = self.reached
        return f"{len(ids)} voters"

    def start(
        self,
        node: str,
        log: str = "",
        epoch: str = "0",
        leader: str = "-1",
        voted: str = "-1",
        random: str = "",
        joins: str = "",
    ) -> str:
        """Start a node, or start it again; `log` has the epoch of each entry on its disk, `joins`
        is the name of an empty one that was made for a quorum that exists."""
        known = self.world.nodes.get(int(node))
        if known is None:
            disk = joins or self.disks.get(int(node), "")
            known = Node(int(node), FakeLog(), directory=disk, joining=bool(joins))
            known.random = known.id / 10
        assert known.quorum is None, f"{node} is up"
        if log:
            entries = enumerate(map(int, log.split(",")))
            known.log = FakeLog([Entry(of, f"{of}.{offset}") for offset, of in entries])
        if int(epoch):
            known.election_state = ElectionState(int(epoch), int(leader), int(voted))
        known.random = float(random or known.random)
        self.world.start(known)
        return f"{node} {show_role(known.up)}"

    def crash(self, node: str) -> str:
        """What was not synced is lost."""
        lost = self._node(node).log.log_end
        self.world.crash(self._node(node))
        return f"{node} loses {lost - self._node(node).log.log_end}"

    def lose_disk(self, node: str, end: str) -> str:
        """A node that is down comes back with less than it had promised."""
        assert self._node(node).quorum is None
        self._node(node).log.truncate_to(int(end))
        return self._log(node)

    def replace(self, node: str) -> str:
        """A node that is down gets an empty disk, made for a quorum that exists."""
        self.world.replace_disk(self._node(node))
        return self._node(node).directory

    def resign(self, node: str) -> str:
        return told(self.world.step(self._node(node), r.Resign()))

    def elect(self, node: str, *supporters: str) -> str:
        """Let its election timeout pass, and let the others vote for it and follow it."""
        mine = self._node(node)
        while mine.up.role is Role.UNATTACHED:
            self.world.now = max(self.world.now, mine.wake_at)
            self.world.tick(mine)
        for each in ("pre-vote", "vote", "begin"):
            for peer in supporters:
                if any(kind(letter.asked.request) == each for letter in self._way(node, peer)):
                    self.ask(f"{node}>{peer}", each)
        return "; ".join(f"{each} {show_role(self._node(each).up)}" for each in (node, *supporters))

    # -- time

    def tick(self, node: str, at: str = "") -> str:
        """A node looks at the clock, which may have gone on; the others do not."""
        if at:
            assert float(at) >= self.world.now, f"it is {self.world.now}"
            self.world.now = float(at)
        return told(self.world.tick(self._node(node)))

    def wake(self, node: str) -> str:
        """When a node wants to look at the clock."""
        return f"{self._node(node).wake_at:.3f}"

    def expire(self, node: str) -> str:
        """The fetches that wait at a node have waited for long enough."""
        return told(self.world.expire(self._node(node)))

    # -- letters

    def deliver(self, way: str, which: str = "") -> str:
        return told(self.world.deliver(self._letter(way, which)))

    def ask(self, way: str, which: str = "") -> str:
        """Deliver a request, and the answer if there is one at once."""
        letter = self._letter(way, which)
        happened = self.world.deliver(letter)
        for answer in self.world.letters:
            if answer.asked is letter.asked:
                return told(happened + self.world.deliver(answer))
        return told(happened)

    def lose(self, way: str, which: str = "") -> str:
        self.world.letters.remove(self._letter(way, which))
        return "lost"

    def timeout(self, way: str, which: str = "") -> str:
        """The first of the way waits no longer for the answer of the second."""
        return told(self.world.give_up(self._asked(way, which)))

    def gone(self, way: str, which: str = "") -> str:
        """As a timeout, but nobody listens there."""
        return told(self.world.give_up(self._asked(way, which), gone=True))

    def catch_up(self, way: str) -> str:
        """Let one follow the other until a fetch has to wait there."""
        node, leader = way.split(">")
        while any(kind(letter.asked.request) == "fetch" for letter in self._way(node, leader)):
            self.ask(way, "fetch")
        return self._log(node)

    def settle(self, *nodes: str) -> str:
        """Let some nodes talk until they have nothing to say; what their logs have in common."""
        among = set(map(int, nodes))
        while found := [e for e in self.world.letters if {e.sender, e.to} <= among]:
            self.world.deliver(found[0])
        logs = {self._log(node) for node in nodes}
        return " and ".join(sorted(logs))

    def letters(self) -> str:
        """The ways of all letters, the oldest first."""
        ways = [
            f"{letter.sender}>{letter.to} {kind(letter.asked.request)}"
            + (" answer" if letter.response is not None else "")
            for letter in self.world.letters
        ]
        return ", ".join(ways) or "none"

    # -- the log

    def write(self, node: str, *values: str) -> str:
        if not self._node(node).up.is_leader:
            raise NotLeader(f"node {node} is a {self._node(node).up.role.value}")
        return told(self.world.write(self._node(node), values))

    def disk(self, node: str, speed: str) -> str:
        """`slow`: nothing of this node is synced until `sync`."""
        self._node(node).waits_for_disk = speed == "slow"
        return speed

    def sync(self, node: str) -> str:
        return told(self.world.sync(self._node(node)))

    def log(self, node: str) -> str:
        return self._log(node)

    def snapshot(self, node: str, end: str, forget: str = "no") -> str:
        """Take a snapshot, and maybe forget what it contains."""
        log = self._node(node).log
        taken = log.snapshot(int(end))
        if forget == "yes":
            log.start_at(taken)
        return f"{taken.end_offset}@{taken.epoch} start={log.log_start}"

    def drop_snapshot(self, node: str) -> str:
        """Its newest snapshot is gone."""
        self._node(node).log.snapshots.pop()
        return f"{len(self._node(node).log.snapshots)} left"

    def unusable(self, node: str) -> str:
        return told(self.world.step(self._node(node), r.Unusable()))

    def replicas(self, node: str) -> str:
        """Who has how much, as a leader describes it."""
        voters, observers = self._node(node).up.describe(self.world.now)
        shown = [f"{each.id}:{each.log_end_offset} lag={each.lag}" for each in voters]
        return ", ".join(shown) + "; " + (", ".join(str(each.id) for each in observers) or "-")

    # -- who votes

    def members(self, *nodes: str) -> str:
        """Who votes, as far as each of these nodes knows."""
        return "; ".join(f"{node} {self._members(self._node(node))}" for node in nodes)

    def _members(self, node: Node) -> str:
        known = node.up.membership
        does = "votes" if known.is_voter else "observes"
        if not known.is_recorded:
            return f"{does}, by configuration {','.join(map(str, known.voters))}"
        return f"{does}, {show_directories(node.log.voters or ())}"

    def add(self, leader: str, node: str, disk: str = "") -> str:
        """Ask a leader to let an observer vote."""
        request = q.AddVoterRequest(id=int(node), directory=disk, host=f"n{node}", port=int(node))
        return told(self.world.change(self._node(leader), request))

    def remove(self, leader: str, node: str, disk: str = "") -> str:
        """Ask a leader to let a voter vote no more."""
        request = q.RemoveVoterRequest(id=int(node), directory=disk)
        return told(self.world.change(self._node(leader), request))

    # -- what a node may be told by anybody

    def hear(self, node: str, what: str, **options: str) -> str:
        """A request from outside of the story; see the functions below for its options."""
        makers: dict[str, Callable[..., m.Message]] = {
            "vote": vote_request,
            "begin": begin_request,
            "end": end_request,
            "fetch": fetch_request,
            "piece": piece_request,
        }
        options.setdefault("cluster_id", "tide")
        if what in ("vote", "begin", "end"):
            options.setdefault("voter", node)
        request = makers[what](**options)
        return told(self.world.step(self._node(node), r.Requested(request)))

    # -- finding

    def _node(self, node: str) -> Node:
        return self.world.nodes[int(node)]

    def _log(self, node: str) -> str:
        log, quorum = self._node(node).log, self._node(node).quorum
        epochs = ",".join(str(entry.epoch) for entry in log.entries[log.log_start :]) or "-"
        start = f"{log.log_start}: " if log.log_start else ""
        watermark = f" watermark={quorum.high_watermark}" if quorum else ""
        return f"{start}{epochs} end={log.log_end} synced={log.synced_end}{watermark}"

    def _way(self, sender: str, to: str) -> list[Letter]:
        return [
            letter
            for letter in self.world.letters
            if (letter.sender, letter.to) == (int(sender), int(to))
        ]

    def _letter(self, way: str, which: str) -> Letter:
        found = self._way(*way.split(">"))
        chosen = [letter for letter in found if which in ("", kind(letter.asked.request))]
        assert chosen, f"no letter {way} {which}"
        return chosen[0]

    def _asked(self, way: str, which: str) -> Asked:
        asker, peer = map(int, way.split(">"))
        for asked in self.world.asked:
            if (asked.asker, asked.peer) == (asker, peer) and which in ("", kind(asked.request)):
                self.world.letters = [e for e in self.world.letters if e.asked is not asked]
                return asked
        raise AssertionError(f"{asker} does not wait for {peer}")


def tell(story: QuorumStory, *steps: str) -> QuorumStory:
    """How a story goes on after these steps, whatever their answers are."""
    for step in steps:
        command, *words = step.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        method = getattr(story, command.replace("-", "_"))
        method(*(word for word in words if "=" not in word), **options)
    return story


def told(happened: list[str]) -> str:
    """One line of it."""
    return "; ".join(re.sub(r"\s+", " ", each) for each in happened) or "nothing"


def end_of(text: str) -> tuple[int, int]:
    """5@2: a log that ends at 5 with a record of epoch 2."""
    end, _, epoch = text.partition("@")
    return int(end), int(epoch)


def vote_request(
    *,
    epoch: str,
    log: str,
    cluster_id: str,
    voter: str,
    pre: str = "no",
    to: str = "",
    **sender: str,
) -> m.Message:
    """`from=3 epoch=2 log=5@1 pre=yes to=1a`."""
    log_end, last_epoch = end_of(log)
    return c.VoteRequest(
        cluster_id=cluster_id,
        voter=int(voter),
        candidate=int(sender["from"]),
        epoch=int(epoch),
        last_epoch=last_epoch,
        log_end=log_end,
        pre_vote=pre == "yes",
        voter_directory=to,
    )


def begin_request(
    *, epoch: str, cluster_id: str, voter: str, to: str = "", **sender: str
) -> m.Message:
    """`from=3 epoch=2 to=1a`."""
    return c.BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        voter=int(voter),
        leader=int(sender["from"]),
        epoch=int(epoch),
        voter_directory=to,
    )


def end_request(
    *, epoch: str, cluster_id: str, voter: str, successors: str = "", to: str = "", **sender: str
) -> m.Message:
    """`from=3 epoch=2 successors=2,1 to=1a`."""
    return c.EndQuorumEpochRequest(
        cluster_id=cluster_id,
        voter=int(voter),
        leader=int(sender["from"]),
        epoch=int(epoch),
        successors=[int(each) for each in successors.split(",") if each],
        voter_directory=to,
    )


def fetch_request(
    *, log: str, epoch: str, cluster_id: str, partition: str = "0", disk: str = "", **sender: str
) -> m.Message:
    """`from=3 log=5@1 epoch=2 disk=3a`."""
    fetch_offset, last_epoch = end_of(log)
    part = m.FetchPartition(
        topic=METADATA,
        partition=int(partition),
        fetch_offset=fetch_offset,
        current_leader_epoch=int(epoch),
        last_fetched_epoch=last_epoch,
    )
    return m.FetchRequest(
        max_wait_ms=500,
        replica_id=int(sender["from"]),
        replica_directory=disk,
        cluster_id=cluster_id,
        partitions=[part],
    )


def piece_request(
    *, snapshot: str, epoch: str, cluster_id: str, position: str = "0", **sender: str
) -> m.Message:
    """`from=3 snapshot=5@1 epoch=2 position=0`."""
    end_offset, of_epoch = end_of(snapshot)
    return c.FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=int(sender["from"]),
        current_leader_epoch=int(epoch),
        snapshot=m.EpochEnd(epoch=of_epoch, end_offset=end_offset),
        position=int(position),
    )
