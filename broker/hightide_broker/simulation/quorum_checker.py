"""The checker of a simulated world: invariants after every event, and the story of what happened.

It sees every step of every node's quorum and every image, knows what was committed, and raises
`Violation` on the first step that breaks a promise:

* one leader per epoch; nobody votes for two candidates in an epoch, whatever crashes;
* a vote is on disk before it is given;
* epochs and watermarks never fall, and a committed record never changes;
* a majority holds what a leader commits, and every later leader has it, at the same place;
* a leader never cuts its log nor loads a snapshot;
* images at the same offset are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from hightide.protocol import controller_messages as c
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.quorum.progress import majority_of
from hightide_broker.core.quorum.ready import NOBODY, ElectionState, Event, Ready, Requested
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.simulation.replica_checker import ReplicaChecker
from hightide_broker.storage.directory import METADATA_DIRECTORY

EVENTS_MAX = 300_000
"""More than any seed needs: a world that reaches it runs in circles."""


class Violation(AssertionError):
    """A promise was broken."""


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise Violation(why)


class Body(Protocol):
    """What the checker may look into of a machine."""

    id: int
    name: str
    disk: SimDisk
    directory: str
    owes_admission: bool


@dataclass(slots=True)
class _Life:
    """What is known of one node's process."""

    epoch: int = 0
    watermark: int = 0
    synced_end: int = 0


@dataclass(slots=True)
class Story:
    """What happened, line by line, and a fingerprint of all of it."""

    now: Callable[[], float]
    keep: bool = False
    lines: list[str] = field(default_factory=list)
    events: int = 0
    _digest: hashlib.blake2b = field(default_factory=partial(hashlib.blake2b, digest_size=16))

    def note(self, text: str) -> None:
        """Something that only counts for the fingerprint."""
        self.events += 1
        self._digest.update(f"{self.now():.9f} {text}\n".encode())

    def tell(self, text: str) -> None:
        """Something worth telling."""
        self.note(text)
        if self.keep:
            self.lines.append(f"{self.now():9.3f} s  {text}")

    @property
    def fingerprint(self) -> str:
        """Equal for equal histories."""
        return self._digest.hexdigest()


class QuorumChecker:
    """Implements `instrument.Instrument` for all nodes of a world."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.machines: dict[int, Body] = {}
        self.committed_end = 0
        self.commits = 0
        self.elections = 0
        self.snapshots_loaded = 0
        self.replica_checker = ReplicaChecker(_require)
        self._committed: dict[int, tuple[int, int, int]] = {}
        """Base offset → (next offset, epoch, CRC) of every committed batch."""
        self._ends: dict[int, int] = {}
        """Epoch → what its leader committed."""
        self._leaders: dict[int, tuple[int, str]] = {}
        """Epoch → the node that leads it, and its directory."""
        self._written: dict[int, dict[int, float]] = {}
        """Epoch → where its leader's log ended → when it did so first."""
        self._votes: dict[tuple[int, str, int], tuple[int, str]] = {}
        """(node, directory, epoch) → the node, and its directory, that it voted for."""
        self._lives: dict[int, _Life] = {}
        self._images: dict[int, tuple[int, bytes]] = {}

    def born(self, machine: Body) -> None:
        """A machine's process begins: what it learned before, it may learn again."""
        self.machines[machine.id] = machine
        life = self._lives.setdefault(machine.id, _Life())
        life.watermark = 0

    def forgot(self, machine: Body) -> None:
        """A machine's disk is another one, or an older copy: what it knew is gone with it."""
        self._lives.pop(machine.id, None)

    def died(self, machine: Body) -> None:
        """A machine's process is gone."""
        self.replica_checker.died(machine.id)

    def decided_at(self, offset: int) -> float:
        """When the leader wrote it that did, of what is committed from this offset on; not later,
        if it was gone before its next step."""
        after = min(base for base in self._committed if base >= offset)
        end, epoch, _ = self._committed[after]
        steps = self._written[epoch]
        return min(
            (at for written, at in steps.items() if written >= end), default=max(steps.values())
        )

    # -- instrument.Instrument -----------------------------------------------------------------

    def quorum_stepped(self, driver: QuorumDriver, event: Event, ready: Ready) -> None:
        core, node = driver.core, driver.node
        life = self._lives[node]
        log = driver.metadata
        self._check_spin(node)
        self.story.note(
            f"{node} {type(event).__name__} {core.role.value} {core.epoch} {core.leader} "
            f"{core.voted} {core.high_watermark} {log.log_start} {log.log_end} {log.synced_end} "
            f"{len(ready.send)}"
        )
        self._check(core.epoch >= life.epoch, f"{node}: epoch fell from {life.epoch}", driver)
        self._check(
            core.high_watermark >= life.watermark,
            f"{node}: watermark fell from {life.watermark}",
            driver,
        )
        if core.epoch != life.epoch or ready.election_state is not None:
            self.story.tell(
                f"node {node}: {core.role.value} epoch={core.epoch} leader={core.leader} "
                f"voted={core.voted} log={log.log_start}..{log.log_end} hw={core.high_watermark}"
            )
        life.epoch, life.synced_end = core.epoch, log.synced_end
        self._check_election_state(driver, event, ready)
        self._check_leader(driver, event, ready)
        if ready.install is not None:
            self.snapshots_loaded += 1
            self.story.tell(f"node {node}: loads snapshot {tuple(ready.install)}")
        if core.high_watermark > life.watermark:
            self._check_commit(driver, life.watermark)
            life.watermark = core.high_watermark

    def image_applied(self, node: int, image: ClusterImage) -> None:
        state = (image.brokers, image.topics, [*image.configs.items()], image.next_producer_id)
        digest = hashlib.blake2b(msgspec.msgpack.encode(state), digest_size=16).digest()
        first = self._images.setdefault(image.offset, (node, digest))
        if first[1] != digest:
            raise Violation(f"images of nodes {first[0]} and {node} differ at {image.offset}")
        self.story.note(f"{node} applied {image.offset} {digest.hex()}")
        self.replica_checker.metadata(image)

    def replica_changed(self, node: int, replica: Replica) -> None:
        self.story.note(f"{node} {replica!r}")
        self._check_spin(node)
        self.replica_checker.replica_changed(node, replica, self.machines[node].name)

    def _check_spin(self, node: int) -> None:
        _require(self.story.events < EVENTS_MAX, f"{EVENTS_MAX} events: {node} spins")

    # -- invariants ------------------------------------------------------------------------------

    def _check(self, holds: bool, why: str, driver: QuorumDriver) -> None:
        if not holds:
            raise Violation(f"{why}; now {driver.core!r}, {driver.metadata!r}")

    def _check_election_state(self, driver: QuorumDriver, event: Event, ready: Ready) -> None:
        core, node = driver.core, driver.node
        known = core.election_state
        if known.voted != NOBODY:
            voter = (node, core.config.directory, known.epoch)
            vote = (known.voted, known.voted_directory)
            first = self._votes.setdefault(voter, vote)
            self._check(first == vote, f"{node} voted for {first} and {vote}", driver)
        gave_vote = isinstance(ready.reply, c.VoteResponse) and ready.reply.granted
        if gave_vote and isinstance(event, Requested):
            assert isinstance(event.request, c.VoteRequest)
            gave_vote = not event.request.pre_vote
        asks_votes = any(isinstance(sending.request, c.VoteRequest) for sending in ready.send)
        if ready.election_state is not None or gave_vote or asks_votes:
            durable = self._durable_election_state(self.machines[node])
            self._check(
                durable == known,
                f"{node} has (epoch, leader, vote) {durable} on disk",
                driver,
            )

    def _durable_election_state(self, machine: Body) -> ElectionState | None:
        path = f"{machine.directory}/{METADATA_DIRECTORY}/quorum-state"
        data = machine.disk.durable_file(path)
        if data is None:
            return None
        fields = json.loads(data)
        told = (fields[name] for name in ("leaderEpoch", "leaderId", "votedId", "votedDirectoryId"))
        return ElectionState(*told)

    def _check_leader(self, driver: QuorumDriver, event: Event, ready: Ready) -> None:
        core, node = driver.core, driver.node
        if core.is_leader:
            me = (node, core.config.directory)
            first = self._leaders.setdefault(core.epoch, me)
            self._check(first == me, f"{first} and {me} lead epoch {core.epoch}", driver)
            cut = ready.truncate_to is not None or ready.install is not None
            self._check(not cut, f"leader {node} cut its log", driver)
            written = self._written.setdefault(core.epoch, {})
            written.setdefault(driver.metadata.log_end, self.story.now())
        if ready.begin_epoch:
            self.elections += 1
            # One that hears late of its election need not have what later leaders committed.
            ends = [end for epoch, end in self._ends.items() if epoch < core.epoch]
            who = f"leader {node} of epoch {core.epoch}"
            self.check_holds(driver, who, end=max(ends, default=0))

    def check_holds(self, driver: QuorumDriver, who: str, *, end: int | None = None) -> None:
        """Everything that was ever committed, or what is below `end` of it, is in this log or its
        snapshot, at its place."""
        log, end = driver.metadata, self.committed_end if end is None else end
        self._check(log.log_end >= end, f"{who} lacks up to {end}", driver)
        held = {h.base_offset: (h.next_offset, h.leader_epoch, h.crc) for h in log.headers()}
        for base, batch in self._committed.items():
            if log.log_start <= base < end:
                found = held.get(base)
                self._check(found == batch, f"{who} has {found} at {base}, not {batch}", driver)

    def _check_commit(self, driver: QuorumDriver, before: int) -> None:
        """What this node now takes for committed is what everybody else does."""
        log, end = driver.metadata, driver.core.high_watermark
        last_epoch = driver.core.epoch
        for header in log.headers(max(before, log.log_start)):
            if header.next_offset > end:
                break
            batch = (header.next_offset, header.leader_epoch, header.crc)
            last_epoch = header.leader_epoch
            first = self._committed.setdefault(header.base_offset, batch)
            self._check(
                first == batch, f"committed {first} at {header.base_offset} became {batch}", driver
            )
        if end > self.committed_end:
            self.committed_end = self._ends[driver.core.epoch] = end
            self.commits += 1
            self._check_majority(driver, end)
            if driver.core.is_leader:
                own = last_epoch == driver.core.epoch
                self._check(own, f"a leader commits {end} without an entry of its epoch", driver)

    def _check_majority(self, driver: QuorumDriver, end: int) -> None:
        """A majority holds it; of voters whose disks were lost after they had it, so many more that
        no majority of the others can elect without one of them."""
        voters = driver.core.membership.voters
        holding = [v for v in voters if v in self._lives and self._lives[v].synced_end >= end]
        lost = [v for v in voters if self.machines[v].owes_admission]
        majority = majority_of(len(voters))
        enough = len(holding) >= majority or (
            bool(lost) and len(voters) - len(lost) - len(holding) < majority
        )
        self._check(enough, f"{end} is committed, and only {holding} of {voters} hold it", driver)
