"""Storms for a `quorum_world`: a seed decides every accident, and calm comes after. Not a test.

What arrives, what is lost or doubled, which disk is done, who dies between two duties and what of
its log survives; with an `Operator`, who is to vote, and whose disk is replaced by an empty one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from quorum_world import TIMEOUT_S, Crash, FakeLog, Letter, Node, QuorumWorld

from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import Refused
from hightide_broker.core.quorum.progress import majority_of
from hightide_broker.core.quorum.roles import Voter

STORM_STEPS = 600
CALM_S = 30.0
"""Virtual seconds in which a quorum that can talk finds a leader and commits."""
LATENCY_S = 0.002


class Storm:
    """A world whose every accident is drawn from one seed."""

    def __init__(self, seed: int, voters: int, observers: int, *, operated: bool = False) -> None:
        """`operated`: the disks have ids, and somebody adds and removes voters."""
        self.rng = random.Random(seed)
        ids = range(1, voters + 1)
        self.world = QuorumWorld(tuple(ids), piece_bytes=self.rng.choice([7, 40, 1 << 20]))
        self.world.draw = lambda node: self.rng.random()
        self.loss = self.rng.choice([0.0, 0.03, 0.15])
        self.pace_s = self.rng.choice([0.02, 0.1, 0.4])
        self.values = 0
        self.cut_off: set[int] = set()
        self.operator = Operator(self) if operated else None
        for number in range(1, voters + observers + 1):
            node = Node(number, FakeLog(), waits_for_disk=True)
            if operated:
                node.directory, node.joining = f"{number}a", number > voters
            self.world.start(node)

    @property
    def up(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.quorum is not None]

    @property
    def down(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.quorum is None]

    # -- one thing happens

    def happen(self) -> None:
        """One accident, or one thing that goes as it should."""
        chance = self.rng.random()
        if self.rng.random() < 0.01:
            self.world.crash_after = self.rng.randrange(1, 5)
        try:
            if self.operator is not None and self.up and self.rng.random() < 0.08:
                self.operator.act()
            elif chance < 0.62:
                self._post()
            elif chance < 0.74:
                self._pass_time(self.rng.uniform(0, 2 * self.pace_s))
            elif chance < 0.84:
                self._sync()
            elif chance < 0.92:
                self._write()
            elif chance < 0.95:
                self._restart()
            elif chance < 0.965:
                self._partition()
            elif chance < 0.98:
                self._snapshot()
            elif chance < 0.985 and self.up:
                self.die(self.rng.choice(self.up))
        except Crash:
            self.die(self.world.stepping)
        self.world.crash_after = None

    def _post(self) -> None:
        if not self.world.letters:
            return self._pass_time(0.05)
        letter = self.rng.choice(self.world.letters[:12])
        if self._is_cut(letter) or self.rng.random() < self.loss:
            self.world.letters.remove(letter)
        elif self.world.nodes[letter.to].quorum is None:
            self._nobody_there(letter)
        else:
            self.world.deliver(letter, again=self.rng.random() < 0.05)
        return None

    def _is_cut(self, letter: Letter) -> bool:
        return (letter.sender in self.cut_off) != (letter.to in self.cut_off)

    def _nobody_there(self, letter: Letter) -> None:
        self.world.letters.remove(letter)
        if letter.asked in self.world.asked and self.rng.random() < 0.5:
            self.world.give_up(letter.asked, gone=True)

    def _pass_time(self, seconds: float) -> None:
        self.world.now += seconds
        for asked in list(self.world.asked):
            if asked.sent_at + TIMEOUT_S <= self.world.now and asked in self.world.asked:
                self.world.give_up(asked)
        for node in self.up:
            self._expire(node)
            if node.wake_at <= self.world.now and self.rng.random() < 0.9:
                self.world.tick(node)

    def _expire(self, node: Node) -> None:
        if any(asked.sent_at + 0.5 <= self.world.now for asked in node.parked):
            self.world.expire(node)

    def _sync(self) -> None:
        waiting = [node for node in self.up if node.changed]
        if waiting:
            self.world.sync(self.rng.choice(waiting))

    def _write(self) -> None:
        leaders = [node for node in self.up if node.up.is_leader]
        if leaders:
            node = self.rng.choice(leaders)
            self.values += 1
            self.world.write(node, [f"{node.id}:{self.values}"] * self.rng.randrange(1, 4))

    def die(self, node: Node) -> None:
        self.world.crash(node, keep=self.rng.randrange(3))

    def _restart(self) -> None:
        if self.down:
            self.world.start(self.rng.choice(self.down))

    def _partition(self) -> None:
        leaders = {node.id for node in self.up if node.up.is_leader}
        some = self.rng.sample(sorted(self.world.nodes), self.rng.randrange(len(self.world.nodes)))
        self.cut_off = self.rng.choice([set(), leaders, set(some)])

    def _snapshot(self) -> None:
        node = self.rng.choice(self.up or [None])
        if node is not None and node.up.high_watermark > node.log.log_start:
            taken = node.log.snapshot(node.up.high_watermark)
            if self.rng.random() < 0.7:
                node.log.start_at(taken)

    # -- the calm before and after

    def begin(self) -> None:
        """Sometimes the voters are on record before anything happens."""
        if self.operator is not None and self.rng.random() < 0.8:
            assert self.calm()
            for node in self.up:
                node.waits_for_disk = True

    def calm(self, *, without: Sequence[int] = ()) -> bool:
        """Whether all who are up hold a new entry as committed in time."""
        world = self.world
        self.cut_off = set()
        for node in self.down:
            if node.id not in without:
                world.start(node)
        for node in world.nodes.values():
            node.waits_for_disk = False
            if node.quorum is not None and node.changed:
                world.sync(node)
        until = world.now + CALM_S
        wanted = ""
        while world.now < until:
            self._round()
            leader = next((node for node in self.up if node.up.is_leader), None)
            if leader and not any(entry.value == wanted for entry in leader.log.entries):
                wanted = f"calm {world.now}"
                world.write(leader, [wanted])
            if self.operator is not None and not self.operator.finish():
                continue
            if wanted and all(self._holds(node, wanted) for node in self.up):
                return True
        return False

    def _holds(self, node: Node, value: str) -> bool:
        known = node.log.entries[: node.up.high_watermark]
        return any(entry.value == value for entry in known)

    def _round(self) -> None:
        """Every letter arrives; if there is none, the next clock rings."""
        world = self.world
        for letter in list(world.letters):
            world.now += LATENCY_S
            if world.nodes[letter.to].quorum is None:
                world.letters.remove(letter)
                if letter.asked in world.asked:
                    world.give_up(letter.asked, gone=True)
            else:
                world.deliver(letter)
        if not world.letters:
            next_at = min(
                *(node.wake_at for node in self.up),
                *(asked.sent_at + TIMEOUT_S for asked in world.asked),
                *(asked.sent_at + 0.5 for node in self.up for asked in node.parked),
                world.now + 1.0,
            )
            world.now = max(world.now + 0.001, next_at)
        self._pass_time(0.0)


class Operator:
    """Somebody who changes who votes, and replaces disks: never another one while a voter has
    forgotten what it knew, nor while it is open who votes."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self.lost_disk: Node | None = None
        """A voter whose disk is empty, until that disk is admitted in place of the old one."""
        self.did: Counter[str] = Counter()

    # -- what is known

    @property
    def voters(self) -> tuple[Voter, ...] | None:
        """Who votes, by what is committed."""
        records = (entry.voters for entry, _ in reversed(self._storm.world.checker.committed))
        return next(filter(None, records), None)

    @property
    def is_settled(self) -> bool:
        """Whether no record of the voters anywhere may still be cut, or come into force."""
        committed = self._storm.world.checker.committed
        logs = [node.log for node in self._storm.world.nodes.values()]
        ends = {(log.voters_end, log.entries[log.voters_end - 1]) for log in logs if log.records}
        return all(
            end <= len(committed) and committed[end - 1][0] == record for end, record in ends
        )

    def _ids(self) -> list[int]:
        voters = self.voters
        return list(self._storm.world.voters) if voters is None else [each.id for each in voters]

    def done(self) -> Counter[str]:
        """What was done, and what of it was undone."""
        undone = sum(node.log.undone for node in self._storm.world.nodes.values())
        return self.did + Counter({"undone": undone})

    # -- what is done

    def act(self) -> None:
        """One thing that an operator may do."""
        chance = self._storm.rng.random()
        if self.lost_disk is not None:
            self._readmit()
        elif chance < 0.3:
            self._replace_disk()
        elif chance < 0.65:
            self._remove(self._storm.rng.choice(self._ids()))
        else:
            self._add(self._storm.rng.choice(sorted(self._storm.world.nodes)))

    def finish(self) -> bool:
        """Bring what was begun to its end; whether it is there. A disk that was lost before all
        voters were recorded cannot be replaced: nobody knows which one it was."""
        if self.lost_disk is not None and self.voters is not None:
            self._readmit()
            return self.lost_disk is None
        return self.lost_disk is not None or self.voters is not None

    def _replace_disk(self) -> None:
        ids = self._ids()
        asks_nobody = len(self._storm.world.voters) == 1
        if asks_nobody or not self.is_settled or len(ids) - 1 < majority_of(len(ids)):
            return
        node = self._storm.world.nodes[self._storm.rng.choice(ids)]
        if node.quorum is not None:
            self._storm.die(node)
        self._storm.world.replace_disk(node)
        self.lost_disk = node
        self.did["replaced" if self.voters else "replaced before all were recorded"] += 1

    def _readmit(self) -> None:
        node = self.lost_disk
        assert node is not None
        known = {voter.id: voter.directory for voter in self.voters or ()}
        if known.get(node.id) == node.directory:
            self.lost_disk = None
            self.did["readmitted"] += 1
        elif node.id in known:
            self._remove(node.id)
        else:
            self._add(node.id)

    def _remove(self, node: int) -> None:
        directory = next((each.directory for each in self.voters or () if each.id == node), "")
        named = self._storm.rng.choice(["", directory])
        self._ask(q.RemoveVoterRequest(id=node, directory=named))

    def _add(self, node: int) -> None:
        directory = self._storm.world.nodes[node].directory
        named = self._storm.rng.choice(["", directory])
        self._ask(q.AddVoterRequest(id=node, directory=named, host=f"n{node}", port=node))

    def _ask(self, request: q.AddVoterRequest | q.RemoveVoterRequest) -> None:
        leaders = [node for node in self._storm.up if node.up.is_leader]
        if not leaders:
            return
        leader = self._storm.rng.choice(leaders)
        what = "added" if isinstance(request, q.AddVoterRequest) else "removed"
        try:
            self._storm.world.change(leader, request)
            self.did["removed the leader" if request.id == leader.id else what] += 1
        except Refused as refusal:
            self.did[f"not {what}: {refusal.code}"] += 1


def survive(
    seeds: int, *, voters: int, observers: int = 0, away: int = 0, operated: bool = False
) -> Counter[str]:
    """Storms, and the calm after each; so many voters stay `away` in it. What operators did."""
    did: Counter[str] = Counter()
    for seed in range(seeds):
        storm = Storm(seed, voters, observers, operated=operated)
        try:
            storm.begin()
            for _ in range(STORM_STEPS):
                storm.happen()
            gone = storm.rng.sample(storm.world.voters, away)
            for node in storm.up:
                if node.id in gone:
                    storm.die(node)
            assert storm.calm(without=gone), [node.quorum for node in storm.up]
            did += storm.operator.done() if storm.operator else Counter()
        except AssertionError as error:
            error.add_note(f"seed {seed} of {voters} voters, {observers} observers, {away} away")
            raise
    return did
