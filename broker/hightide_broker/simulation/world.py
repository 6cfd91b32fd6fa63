"""A world of real nodes on virtual time: machines that crash, a network, clients, and a checker.

A world is made from a seed alone. It lives in two phases: in the first one anything may happen, and
nothing may be broken; then everything is healed and must work again within a bounded time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import trio

from hightide.net.ports import Stream
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig, make_config
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.quorum.ready import Event, Ready
from hightide_broker.formatting import format_node
from hightide_broker.node import Node
from hightide_broker.opening import open_node
from hightide_broker.ports import NodeMustStop
from hightide_broker.runtime.base.call import Peer
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.server.door import Door, Doors
from hightide_broker.simulation.disk import DiskCopy, SimDisk
from hightide_broker.simulation.network import SimNetwork, Weather
from hightide_broker.simulation.quorum_checker import QuorumChecker, Story, Violation
from hightide_broker.simulation.tracing import Book, SimTrace

PORT = 9000
STOP_PATIENCE_S = 20.0
CLUSTER_ID = "simulated-cluster-0000"
PAGE_BYTES = 512
"""Small, as the files are: a failed sync leaves holes within them."""
WALL_MS = 1_700_000_000_000


_MACHINE = re.compile(r"machine-(\d+)b*")


class SimClock:
    """The time of day of a simulated world, as one machine has it."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return WALL_MS + self.ahead_ms + int(trio.current_time() * 1000)


@dataclass(slots=True)
class Knobs:
    """What a seed decides about a world before it begins."""

    controllers: int = 3
    combined: bool = False
    """Whether the controllers are brokers, too."""
    observers: int = 0
    """Brokers that are no voters."""
    config: dict[str, str] = field(default_factory=dict)
    weather: Weather = field(default_factory=Weather)
    sync_latency_s: float = 0.002
    fault_interval_s: float = 2.0
    loses_power: bool = True
    """Whether machines may lose what they have not synced."""
    replicated: bool = False
    """Whether there are partitions, whose leaders may be struck."""
    rots: bool = False
    """Whether one machine's disk flips bits of stored records."""
    loses_disks: bool = False
    """Whether one machine's disk is lost now and then, and replaced by an empty one."""
    rolls_back: bool = False
    """Whether it is an older copy of it that comes back."""
    joins_by_itself: bool = False
    """Whether a voter whose disk was replaced lets itself in again."""
    syncs_fail: bool = False
    """Whether a sync of some partition fails now and then, and calls its pages clean."""
    forlorn: bool = False
    """Whether what is on one machine only may count, so that its disk takes it along."""
    freezes_out: bool = False
    """Whether one machine's process is frozen until another one has taken its place."""
    alters: bool = False
    """Whether `min.insync.replicas` of topics is changed now and then."""
    alters_flush: bool = False
    """Whether `flush` of topics is changed now and then; one machine only loses power then."""
    unsynced: bool = False
    """Whether nothing is synced before it is acknowledged, and power is lost all the same."""
    thread_pause_s: float = 0.0
    """How long worker threads take, at most; two of them may be at work at once."""
    strikes_cut: bool = False
    """Whether leaders are stranded, and die when they cut what they have alone."""
    clock_jumps: bool = False
    """Whether the wall clocks of machines jump."""
    clients: int = 2
    think_s: float = 0.3

    @classmethod
    def draw(cls, rng: random.Random) -> Knobs:
        """The knobs of a seed."""
        election_ms = rng.choice([300, 1000])
        return cls(
            controllers=rng.choice([1, 3, 3, 3, 3, 5]),
            combined=rng.random() < 0.25,
            observers=rng.choice([0, 0, 1, 2]),
            config={
                "controller.quorum.election.timeout.ms": str(election_ms),
                "controller.quorum.fetch.timeout.ms": str(2 * election_ms),
                "controller.quorum.election.backoff.max.ms": str(election_ms),
                "controller.quorum.request.timeout.ms": str(rng.choice([500, 2000])),
                "metadata.log.max.record.bytes.between.snapshots": str(
                    rng.choice([1500, 3000, 6000, 1 << 20])
                ),
                "metadata.log.max.snapshot.interval.ms": rng.choice(["3s", "1h"]),
                "metadata.max.retention.bytes": str(rng.choice([1, 1, 8000, 1 << 20])),
                "metadata.log.segment.bytes": str(rng.choice([1024, 1 << 20])),
                "request.timeout.ms": "5s",
            },
            weather=Weather(
                jitter_s=rng.choice([0.001, 0.02, 0.1]), loss=rng.choice([0.0, 0.0, 0.02, 0.1])
            ),
            sync_latency_s=rng.choice([0.0, 0.002, 0.03]),
            fault_interval_s=rng.choice([1.0, 2.0, 5.0]),
            think_s=rng.choice([0.2, 0.5, 1.5]),
        )

    @property
    def session_s(self) -> float:
        """How long a broker may be silent."""
        return float(self.config.get("broker.session.timeout.ms", "9s").removesuffix("s"))

    @property
    def risks_a_disk(self) -> bool:
        """Whether what is on one machine may go: then what counts has to be on two."""
        some = self.rots or self.loses_disks or self.rolls_back or self.freezes_out
        return (some and not self.forlorn) or self.alters_flush

    @property
    def may_lose(self) -> bool:
        """Whether what was committed may be lost, so that nobody reads it."""
        return self.forlorn or self.unsynced

    @property
    def may_give_up(self) -> bool:
        """Whether nobody may be left who certainly has all that was committed: one disk is lost,
        and the others that had the same could not sync it."""
        return self.forlorn or (self.freezes_out and self.syncs_fail)

    def with_fate(self, seed: int) -> Knobs:
        """What may happen to disks and clocks of a world of controllers; drawn apart."""
        fate = random.Random(f"fate-{seed}").random()
        return replace(
            self,
            loses_disks=self.controllers >= 3 and fate < 0.4,
            joins_by_itself=fate < 0.15,
            clock_jumps=fate > 0.7,
            thread_pause_s=draw_thread_pause(seed),
        )


def draw_thread_pause(seed: int) -> float:
    """In most worlds a worker thread's work is done at once."""
    return random.Random(f"threads-{seed}").choice([0.0, 0.0, 0.0, 0.05, 1.0])


class Machine:
    """One node's machine: its disk, and the process that runs on it or does not."""

    def __init__(self, world: World, node: int, *, is_voter: bool, config: BrokerConfig) -> None:
        self.id = node
        self.name = config[keys.LISTEN_HOST]
        self._who = self.name.removeprefix("machine-")
        self.is_voter = is_voter
        self.is_broker = "broker" in config.roles
        self.directory = config[keys.LOG_DIRS]
        self.disk = SimDisk(sync_latency_s=world.knobs.sync_latency_s, page_bytes=PAGE_BYTES)
        if longest_s := world.knobs.thread_pause_s:
            dice = random.Random(f"{world.seed}-{self.name}-threads")
            self.disk.thread_pause = lambda: dice.random() * longest_s
        self.clock = SimClock()
        self.owes_admission = False
        """Whether it is a voter whose disk was replaced, and that has not been admitted again."""
        self.was_replaced = False
        """Whether another machine is this node now."""
        self.node: Node | None = None
        self._world = world
        self._config = config
        self._lives = 0
        self._nursery: trio.Nursery | None = None
        self._scope: trio.CancelScope | None = None
        self._ended = trio.Event()
        self._stop_asked = trio.Event()
        self._made = trio.Event()

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self._scope is not None

    def start(self, nursery: trio.Nursery) -> None:
        """Start the process; fine if it runs."""
        self._nursery = nursery
        if self._scope is None:
            self._world.network.boot(self.name)
            self._scope = trio.CancelScope()
            self._ended, self._stop_asked = trio.Event(), trio.Event()
            self._made = trio.Event()
            self._lives += 1
            self._world.checker.born(self)
            nursery.start_soon(self._live, self._scope, self._ended)

    def start_again(self) -> None:
        """Start the process in the nursery it was started in, if it is down."""
        if self._nursery is not None:
            self.start(self._nursery)

    async def serves(self) -> None:
        """Until its node answers clients."""
        await self._made.wait()
        assert self.node is not None
        await self.node.serving.wait()

    async def _live(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        world = self._world
        host = world.network.host(self.name)
        with scope:
            try:
                async with open_node(
                    self._config,
                    disk=self.disk,
                    clock=self.clock,
                    random=random.Random(f"{world.seed}-{self._who}-{self._lives}"),
                    listen=host.listen,
                    doors=Doors([Door(self.name, PORT, self._prove)], host),
                    instrument=_Eyes(world.checker, self, world.book),
                    trace=SimTrace(world.book, self.id, self.clock.now_ms),
                    wait=False,
                ) as self.node:
                    self._made.set()
                    await self._stop_asked.wait()
            except* NodeMustStop:
                if not self.was_replaced:
                    raise
                world.story.tell(f"{self.name} finds that it was replaced, and ends")
                world.network.drop(self.name, silently=False)
                self._scope = None
            finally:
                # Those who wait for its end do so even if it ends by a bug.
                self.node = None
                ended.set()

    async def _prove(self, stream: Stream) -> tuple[Stream, Peer]:
        """As certificates would: a machine is its node, whichever of its machines it is. Nobody
        else is one, but where the clients of a world play brokers."""
        found = _MACHINE.fullmatch(stream.peer)
        if found is None:
            return stream, Peer(stream.peer, may_be_node=not self._world.knobs.replicated)
        return stream, Peer(stream.peer, f"node-{found[1]}", int(found[1]))

    async def crash(self, *, power: bool) -> None:
        """The process is gone at once; with `power`, so is what was not synced."""
        scope = self._scope
        if scope is None:
            return
        self._world.network.drop(self.name, silently=power)
        scope.cancel()
        await self._ended.wait()
        if self._scope is not scope:
            return  # somebody else ended it as well, and the next life may have begun
        self._scope = None
        if not self.was_replaced:
            self._world.checker.died(self)
        if power:
            self.lose_power()
        else:
            self.disk.kill()

    def lose_power(self) -> None:
        """What was not synced is gone, though its process may have been so for longer."""
        assert self._scope is None, f"{self.name} is up"
        self._world.power_losses += 1
        self.disk.crash(self._world.rng)
        self._world.power_went(self)

    def lose_disk(self) -> None:
        """Its disk is gone, and an operator puts an empty one in its place, while it is down."""
        assert self._scope is None, f"{self.name} is up"
        self.disk.lose(self.directory)
        self.begin_empty()
        self.owes_admission = self.is_voter

    def begin_empty(self) -> None:
        """An operator makes its directory, for the cluster that exists."""
        self._world.checker.forgot(self)
        dice = random.Random(f"{self._world.seed}-{self._who}-{self._lives}-disk")
        format_node(self._config, self.disk, dice, joining=True)

    def roll_back(self, copy: DiskCopy) -> None:
        """An older copy of its disk comes back, while it is down."""
        assert self._scope is None, f"{self.name} is up"
        self.disk.restore(self.directory, copy)
        self._world.checker.forgot(self)

    async def stop(self) -> None:
        """An orderly stop, if it does not take too long."""
        if self._scope is None:
            return
        self._stop_asked.set()
        with trio.move_on_after(STOP_PATIENCE_S):
            await self._ended.wait()
        await self.crash(power=False)


class _Eyes:
    """The checker, as one machine is seen by it: what a process says that was replaced is not what
    its successor says, which has the same id. Implements `instrument.Instrument`."""

    def __init__(self, checker: QuorumChecker, machine: Machine, book: Book) -> None:
        self._checker = checker
        self._book = book
        self._machine = machine

    def quorum_stepped(self, driver: QuorumDriver, event: Event, ready: Ready) -> None:
        if not self._machine.was_replaced:
            self._checker.quorum_stepped(driver, event, ready)

    def image_applied(self, node: int, image: ClusterImage) -> None:
        self._checker.image_applied(node, image)

    def replica_changed(self, node: int, replica: Replica) -> None:
        if self._machine.was_replaced:
            self._checker.replica_checker.ghost_changed(self._machine.name, replica)
        else:
            self._checker.replica_changed(node, replica)
            self._book.position(node, self._machine.clock.now_ms(), replica)


class World:
    """Everything there is, made from a seed."""

    def __init__(self, seed: int, *, keep_story: bool = False, knobs: Knobs | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(f"world-{seed}")
        self.knobs = knobs or Knobs.draw(self.rng).with_fate(seed)
        self.story = Story(trio.current_time, keep=keep_story)
        self.book = Book(keep=keep_story)
        self.checker = QuorumChecker(self.story)
        self.network = SimNetwork(random.Random(f"network-{seed}"), self.knobs.weather)
        voters = range(1, self.knobs.controllers + 1)
        self.machines = [self._machine(node, is_voter=True) for node in voters]
        observers = range(101, 101 + self.knobs.observers)
        self.machines += [self._machine(node, is_voter=False) for node in observers]
        self.weak = self._weak_one()
        """Whose disk rots, or is lost, where one does or is."""
        self.ghosts: list[Machine] = []
        """Machines that others took the place of."""
        self.lost_disks = 0
        """How often a disk was replaced by an empty one."""
        self.readmitted = 0
        """How often a voter whose disk was replaced was let in again."""
        self.power_losses = 0
        """How often a machine lost power; blackouts are as many as there were running."""
        self.given_up = 0
        """How often an operator gave up what only a lost disk held."""
        self.blackouts = 0
        """How often all machines lost power at once."""
        self.power_went: Callable[[Machine], None] = lambda machine: None
        """Called when the disk of a machine is as a loss of power left it."""

    def _weak_one(self) -> Machine:
        """A voter that forgets its votes without a word cannot be told from an honest one: only
        other machines' disks are rolled back."""
        knobs = self.knobs
        spares_voters = (
            knobs.rolls_back or knobs.freezes_out or knobs.forlorn or knobs.controllers < 3
        )
        some = [m for m in self.machines if not (spares_voters and m.is_voter)] or self.machines
        return random.Random(f"weak-{self.seed}").choice(some)

    def _own_min_isr(self, node: int) -> str:
        """What a node's own file says, which counts for nothing but in the first controller's."""
        values = "2" if self.knobs.replicated and self.knobs.risks_a_disk else "12"
        return random.Random(f"own-{self.seed}-{node}").choice(values)

    def replace(self, machine: Machine) -> Machine:
        """Another machine is this node from now on, on an empty disk; the process of the old one
        may not know."""
        self.checker.died(machine)
        machine.was_replaced = True
        successor = self._machine(machine.id, is_voter=False, name=f"{machine.name}b")
        successor.begin_empty()
        self.machines[self.machines.index(machine)] = successor
        self.ghosts.append(machine)
        if self.weak is machine:
            self.weak = successor
        self.lost_disks += 1
        return successor

    def _machine(self, node: int, *, is_voter: bool, name: str = "") -> Machine:
        voters = range(1, self.knobs.controllers + 1)
        config = make_config(
            {
                "node.id": str(node),
                "cluster.id": CLUSTER_ID,
                "process.roles": self._roles(is_voter=is_voter),
                "controller.quorum.voters": ",".join(f"{v}@machine-{v}:{PORT}" for v in voters),
                "log.dirs": f"data/node-{node}",
                "listen.host": name or f"machine-{node}",
                "listen.port": str(PORT),
                "min.insync.replicas": self._own_min_isr(node),
                "controller.quorum.auto.join.enable": str(self.knobs.joins_by_itself).lower(),
                **self.knobs.config,
            }
        )
        return Machine(self, node, is_voter=is_voter, config=config)

    def _roles(self, *, is_voter: bool) -> str:
        if not is_voter:
            return "broker"
        return "broker,controller" if self.knobs.combined else "controller"

    @property
    def rotten(self) -> int:
        """The machine whose disk rots; -1 if none does."""
        return self.weak.id if self.knobs.rots else -1

    @property
    def voters(self) -> list[Machine]:
        """The machines of the controllers."""
        return [machine for machine in self.machines if machine.is_voter]

    def leader(self) -> Machine | None:
        """The machine whose controller is active, if there is one; of two, the newer one."""
        found: Machine | None = None
        epoch = -1
        for machine in self.machines:
            node = machine.node
            is_active = node and node.controller and node.controller.is_active
            if node and is_active and node.quorum.core.epoch > epoch:
                found, epoch = machine, node.quorum.core.epoch
        return found

    def require(self, holds: bool, why: str) -> None:
        """Raise `Violation` unless something holds."""
        if not holds:
            states = [repr(m.node.quorum.core) if m.node else f"{m.id} down" for m in self.machines]
            raise Violation(f"{why}; {', '.join(states)}")
