"""The metadata quorum under any weather: what was promised holds, and it finds together again.

Goal: one leader an epoch, one vote a voter and epoch, nothing promised that is not durable, no
watermark that falls, nothing committed that changes or that a later leader lacks; and, once letters
arrive again, a leader who commits and whom all follow. Method: a seed decides what arrives, what is
lost or doubled, which disk is done, who dies between two duties and what of its log survives;
`quorum_world.World` judges every step. A failure names its seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from quorum_world import TIMEOUT_S, Crash, FakeLog, Letter, Node, World

STORM_STEPS = 600
CALM_S = 30.0
"""Virtual seconds in which a quorum that can talk finds a leader and commits."""
LATENCY_S = 0.002


class Storm:
    """A world whose every accident is drawn from one seed."""

    def __init__(self, seed: int, voters: int, observers: int) -> None:
        self.rng = random.Random(seed)
        ids = range(1, voters + 1)
        self.world = World(tuple(ids), piece_bytes=self.rng.choice([7, 40, 1 << 20]))
        self.world.draw = lambda node: self.rng.random()
        self.loss = self.rng.choice([0.0, 0.03, 0.15])
        self.pace_s = self.rng.choice([0.02, 0.1, 0.4])
        self.values = 0
        self.cut_off: set[int] = set()
        for node in range(1, voters + observers + 1):
            self.world.start(Node(node, FakeLog(), waits_for_disk=True))

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
            if chance < 0.62:
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

    # -- the calm after

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


def survive(seeds: int, *, voters: int, observers: int = 0, away: int = 0) -> None:
    """Storms, and the calm after each; so many voters stay `away` in it."""
    for seed in range(seeds):
        storm = Storm(seed, voters, observers)
        try:
            for _ in range(STORM_STEPS):
                storm.happen()
            gone = storm.rng.sample(storm.world.voters, away)
            for node in storm.up:
                if node.id in gone:
                    storm.die(node)
            assert storm.calm(without=gone), [node.quorum for node in storm.up]
        except AssertionError as error:
            error.add_note(f"seed {seed} of {voters} voters, {observers} observers, {away} away")
            raise


@pytest.mark.slow
def test_three_voters_keep_every_promise_and_recover():
    survive(150, voters=3)


@pytest.mark.slow
def test_five_voters_keep_every_promise_and_recover():
    survive(100, voters=5)


@pytest.mark.slow
@pytest.mark.parametrize("voters", [3, 5])
def test_a_majority_does_without_the_others(voters):
    survive(80, voters=voters, away=voters // 2)


@pytest.mark.slow
def test_observers_change_nothing_and_see_all_of_it():
    survive(100, voters=3, observers=2)


def test_a_voter_alone_recovers():
    survive(20, voters=1, observers=1)
