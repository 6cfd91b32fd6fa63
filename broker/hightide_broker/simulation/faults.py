"""What goes wrong in a simulated world, one thing after the other, as the seed decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from hightide.protocol import messages as m
from hightide.protocol.errors import CorruptBatch, Refused
from hightide.protocol.records import CRC_FROM, iter_batches
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.simulation.disk import DiskCopy
from hightide_broker.simulation.network import Weather
from hightide_broker.simulation.world import Machine, World
from hightide_broker.storage.checkpoint import HIGH_WATERMARKS, read_offsets

JUMP_MS = 20 * 60 * 1000
"""Less than what a broker lets a record's timestamp lie ahead."""
CUT_LOOKS = 300
"""Every 10 ms: has a leader that is back heard that it is none any more?"""


class Faults:
    """The bad luck of one world."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self._world = world
        self._nursery = nursery
        self._rng = world.rng
        self._under_way = 0
        self._one_ended = trio.Event()
        self._copy: tuple[DiskCopy, int] | None = None
        """Of the weak machine's disk, and which registration of its broker was known then."""
        self._kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (4, self._kill),
            (4, self._lose_power),
            (2, self._stop),
            (6, self._restart),
            (2, self._stall_disk),
            (2, self._pause),
            (2, self._strike_leader),
            (1, self._black_out),
            (6, self._heal),
        ]
        if world.knobs.rots:
            self._kinds.append((4, self._rot))
        if world.knobs.loses_disks:
            self._kinds += [(3, self._lose_disk), (3, self._lose_what_others_lack)]
        if world.knobs.forlorn:
            self._kinds += [(8, self._lose_disk), (8, self._roll_back_all_there_is)]
        if world.knobs.freezes_out:
            self._kinds.append((10, self._freeze_out))
        if world.knobs.rolls_back:
            self._kinds += [(4, self._copy_disk), (3, self._roll_back)]
        if world.knobs.syncs_fail:
            self._kinds += [(3, self._fail_sync), (3, self._rely_on_clean_pages)]
        if world.knobs.alters:
            self._kinds.append((3, self._alter))
        if world.knobs.alters_flush:
            self._kinds += [(4, self._alter_flush), (16, self._alter_flush_behind_a_back)]
        if world.knobs.unsynced:
            self._kinds.append((8, self._lose_brokers_power))
        if world.knobs.clock_jumps:
            self._kinds.append((2, self._jump))
        if world.knobs.replicated:
            self._kinds += [(4, self._strike_partition_leader), (4, self._strand_partition_leader)]
        if world.knobs.strikes_cut:
            self._kinds.append((12, self._strike_who_cuts))
        if len(world.machines) > 1:
            self._kinds += [
                (3, self._cut_one_way),
                (4, self._isolate),
                (2, self._split),
                (2, self._clog),
                (2, self._reset),
            ]

    async def rage(self, seconds: float) -> None:
        """Anything may happen for so long; then what was begun is ended, everything healed and
        started, and the weather is fine."""
        with trio.move_on_after(seconds):
            await self.run()
        await self.end()
        heal(self._world)
        self._world.network.weather = Weather()
        for machine in self._world.machines:
            machine.disk.thread_pause = None
            machine.start(self._nursery)

    async def run(self) -> None:
        """Until cancelled."""
        weights = [weight for weight, _ in self._kinds]
        while True:
            await trio.sleep(self._rng.expovariate(1 / self._world.knobs.fault_interval_s))
            (_, fault) = self._rng.choices(self._kinds, weights)[0]
            with trio.CancelScope(shield=True):  # what is begun is ended
                await fault()

    async def end(self) -> None:
        """Until everything that takes a while, and was begun, is over."""
        while self._under_way:
            await self._one_ended.wait()

    def _begin(self, deed: Callable[..., Awaitable[None]], *args: object) -> None:
        self._under_way += 1
        self._nursery.start_soon(self._carry_out, deed, args)

    async def _carry_out(
        self, deed: Callable[..., Awaitable[None]], args: tuple[object, ...]
    ) -> None:
        try:
            await deed(*args)
        finally:
            self._under_way -= 1
            self._one_ended.set()
            self._one_ended = trio.Event()

    def _tell(self, text: str) -> None:
        self._world.story.tell(f"fault: {text}")

    def _any(self) -> Machine:
        return self._rng.choice(self._world.machines)

    async def _kill(self) -> None:
        await self._crash(self._any(), power=False)

    async def _lose_power(self) -> None:
        await self._crash(self._any(), power=True)

    def _partition_leader(self) -> Machine | None:
        """Some machine that leads a partition, as it thinks itself."""
        leading = [
            machine
            for machine in self._world.machines
            if machine.node and any(replica.leader for replica in machine.node.replicas)
        ]
        return self._rng.choice(leading) if leading else None

    async def _strike_partition_leader(self) -> None:
        machine = self._partition_leader()
        if machine is not None:
            await self._crash(machine, power=self._rng.random() < 0.5)

    async def _strand_partition_leader(self) -> None:
        """A leader is cut off from all other machines, but not from clients."""
        machine = self._partition_leader()
        if machine is not None:
            self._isolate_one(machine)

    async def _strike_who_cuts(self) -> None:
        """A leader is stranded until another one leads; then it cuts what nobody copied, and dies
        before it can keep how far it is."""
        machine, replica_checker = self._partition_leader(), self._world.checker.replica_checker
        if machine is None:
            return
        self._isolate_one(machine)
        await trio.sleep(self._world.knobs.session_s + 1 + self._rng.random())
        cuts = replica_checker.cuts
        await self._heal()
        for _ in range(CUT_LOOKS):
            if replica_checker.cuts > cuts:
                break
            await trio.sleep(0.01)
        await self._crash(machine, power=self._rng.random() < 0.5)

    async def _crash(self, machine: Machine, *, power: bool) -> None:
        power = power and self._may_lose_power(machine)
        if machine.is_up:
            self._tell(f"{machine.name} {'loses power' if power else 'is killed'}")
            await machine.crash(power=power)
            if self._rng.random() < 0.5:
                await trio.sleep(self._rng.random() * 0.2)
                self._start(machine)

    def _may_lose_power(self, machine: Machine) -> bool:
        """What was not synced may count while `flush` is `replicated`: one may lose it then."""
        knobs = self._world.knobs
        return knobs.loses_power and (machine is self._world.weak or not knobs.alters_flush)

    async def _strike_leader(self) -> None:
        leader = self._world.leader()
        if leader is not None:
            await self._crash(leader, power=self._rng.random() < 0.5)

    async def _black_out(self) -> None:
        machines = self._world.machines
        self._world.blackouts += all(map(self._may_lose_power, machines))
        await self._end_all(machines)

    async def _end_all(self, machines: list[Machine]) -> None:
        power = all(map(self._may_lose_power, machines))
        names = [machine.name for machine in machines]
        who = "everything" if machines == self._world.machines else str(names)
        self._tell(f"{who} {'loses power' if power else 'is killed'}")
        for machine in machines:
            await machine.crash(power=self._may_lose_power(machine))

    async def _lose_brokers_power(self) -> None:
        """All brokers lose it, and the controllers with them or not; it comes back for one machine
        after the other, for some within a session."""
        machines = self._world.machines
        if self._rng.random() < 0.5:
            machines = [machine for machine in machines if machine.is_broker]
        down = [machine for machine in machines if not machine.is_up]
        await self._end_all(machines)
        for machine in down:
            if not machine.is_up and self._world.knobs.loses_power:
                machine.lose_power()
        for machine in self._rng.sample(machines, len(machines)):
            await trio.sleep(self._rng.choice([0.1, 0.5, self._world.knobs.session_s]))
            self._start(machine)

    async def _stop(self) -> None:
        machine = self._any()
        if machine.is_up:
            self._tell(f"{machine.name} is stopped")
            self._begin(machine.stop)

    async def _restart(self) -> None:
        down = [machine for machine in self._world.machines if not machine.is_up]
        if down:
            self._start(self._rng.choice(down))

    def _start(self, machine: Machine) -> None:
        if not machine.is_up:
            self._tell(f"{machine.name} starts")
            machine.start(self._nursery)

    async def _cut_one_way(self) -> None:
        one, other = self._rng.sample(self._world.machines, 2)
        self._tell(f"{one.name} cannot reach {other.name}")
        self._world.network.cut(one.name, other.name)

    async def _isolate(self) -> None:
        self._isolate_one(self._any())

    def _isolate_one(self, one: Machine) -> None:
        self._tell(f"{one.name} is isolated")
        for other in self._world.machines:
            if other is not one:
                self._world.network.cut(one.name, other.name)
                self._world.network.cut(other.name, one.name)

    async def _split(self) -> None:
        sides = {machine.name: self._rng.random() < 0.5 for machine in self._world.machines}
        self._tell(f"split: {sorted(name for name in sides if sides[name])} from the rest")
        for one, side in sides.items():
            for other, other_side in sides.items():
                if side != other_side:
                    self._world.network.cut(one, other)

    async def _clog(self) -> None:
        one, other = self._rng.sample(self._world.machines, 2)
        delay_s = self._rng.choice([0.1, 0.5, 2.0])
        self._tell(f"{one.name} to {other.name} takes {delay_s} s longer")
        self._world.network.clog(one.name, other.name, delay_s)

    async def _reset(self) -> None:
        one, other = self._rng.sample(self._world.machines, 2)
        self._tell(f"connections of {one.name} and {other.name} are reset")
        self._world.network.reset(one.name, other.name)

    async def _stall_disk(self) -> None:
        machine = self._any()
        machine.disk.sync_latency_s = self._rng.choice([0.2, 1.0, 4.0])
        self._tell(f"{machine.name} syncs in {machine.disk.sync_latency_s} s")

    async def _rot(self) -> None:
        """A bit flips in what a checksum covers (base offset and epoch of a batch have none) and a
        checkpoint counts as committed: damage behind that may as well be a torn write."""
        machine, rng = self._world.weak, self._rng
        files = machine.disk.files("/topic-", ".log")
        if not files:
            return
        path = rng.choice(list(files))
        root, directory, _ = path.rsplit("/", 2)
        topic, _, number = directory.rpartition("-")
        tp = TopicPartition(topic, int(number))
        kept = read_offsets(machine.disk, f"{root}/{HIGH_WATERMARKS}").get(tp, 0)
        position, spans = 0, []
        with suppress(CorruptBatch):
            for header, batch in iter_batches(files[path]):
                if header.next_offset <= kept:
                    spans.append((position + CRC_FROM, position + header.size))
                position += len(batch)
        if spans:
            at = rng.randrange(*rng.choice(spans))
            machine.disk.flip(path, at, rng.randrange(8))
            self._tell(f"{machine.name}: a bit flips in {path} at byte {at}")

    async def _lose_disk(self) -> None:
        """The weak machine loses all it has - not before the voters are recorded: a disk that is
        lost before is no voter that could be told from its successor."""
        machine, leader = self._world.weak, self._world.leader()
        if leader is None or leader.node is None:
            return
        core = leader.node.quorum.core
        if not core.membership.is_recorded or not core.voters_are_committed:
            return
        if self._world.knobs.forlorn or self._rng.random() < 0.5:
            await self._leave_alone(machine)
        self._world.lost_disks += 1
        self._tell(f"{machine.name} loses its disk")
        await machine.crash(power=False)
        machine.lose_disk()
        await trio.sleep(self._rng.random() * 2)
        self._start(machine)

    async def _leave_alone(self, machine: Machine) -> None:
        """All other brokers die, for longer than a session: this one is the last that is in sync,
        and what it has is all there is, until they come back."""
        if not machine.is_broker or machine.is_voter:
            return
        for other in self._world.machines:
            if other is not machine and other.is_broker and not other.is_voter:
                await self._crash(other, power=True)
        await trio.sleep(self._world.knobs.session_s + 1)

    async def _lose_what_others_lack(self) -> None:
        """Some voters lag; of those that know more, the leader dies, and the other one's disk is
        lost: its empty successor and the laggards are a majority that knows nothing."""
        machine, leader = self._world.weak, self._world.leader()
        if leader is None or leader is machine or not machine.is_voter:
            return
        for laggard in self._world.voters:
            if laggard not in (machine, leader):
                self._isolate_one(laggard)
        await trio.sleep(self._rng.random() * 4)
        await self._lose_disk()
        await self._crash(leader, power=True)
        await self._heal()

    async def _copy_disk(self) -> None:
        """Somebody takes a copy of the weak machine's disk, as a loss of power would leave it."""
        machine = self._world.weak
        self._tell(f"{machine.name}: its disk is copied")
        self._copy = machine.disk.copy(machine.directory), self._registration(machine)

    async def _roll_back(self) -> None:
        """And puts it back, later: not while the same process runs, whose copies nobody could tell
        from what it has."""
        machine = self._world.weak
        if self._copy is not None and self._registration(machine) > self._copy[1]:
            if self._world.knobs.forlorn or self._rng.random() < 0.5:
                await self._leave_alone(machine)
            self._tell(f"{machine.name} comes back with an older copy of its disk")
            await machine.crash(power=False)
            machine.roll_back(self._copy[0])
            self._start(machine)

    async def _roll_back_all_there_is(self) -> None:
        """A copy is taken, the broker goes on, alone in the end, and comes back with the copy."""
        machine = self._world.weak
        if machine.is_up:
            await self._copy_disk()
            await machine.crash(power=False)
            self._start(machine)
            await trio.sleep(self._world.knobs.session_s)
            await self._roll_back()

    def _registration(self, machine: Machine) -> int:
        """The epoch of a broker's registration, by the newest image of any node."""
        images = [each.node.image for each in self._world.machines if each.node is not None]
        return max((image.broker_epoch(machine.id) for image in images), default=-1)

    async def _fail_sync(self) -> None:
        """The next sync of some partition fails; the process may be gone before anybody sees to
        it, and the next one finds pages that no sync will write."""
        machine = self._any()
        machine.disk.fail_once("sync", "/topic-")
        self._tell(f"{machine.name}: the next sync of a partition fails")

    async def _rely_on_clean_pages(self) -> None:
        """A sync fails, the next process finds pages that no sync will write; then all power is
        gone, and one that relied on them is the first that is back."""
        machine = self._partition_leader()
        if machine is None:
            return
        machine.disk.fail_once("sync", "/topic-")
        self._tell(f"{machine.name}: the next sync of a partition fails, and it is killed")
        await trio.sleep(self._rng.random())
        await machine.crash(power=False)
        self._start(machine)
        await trio.sleep(1 + 2 * self._rng.random())
        await self._black_out()
        self._start(machine)
        await trio.sleep(self._world.knobs.session_s + 1)

    async def _alter(self) -> None:
        """Somebody changes how many replicas must be in sync."""
        await self._set("min.insync.replicas", self._rng.choice("12"))

    async def _alter_flush(self) -> None:
        """Somebody changes what has to be on disk before it counts."""
        await self._set("flush", self._rng.choice(["synced", "replicated"]))

    async def _alter_flush_behind_a_back(self) -> None:
        """A node that loses power while what it has need not be on disk finds, when it is back,
        that it has to; and it may be the first that is back."""
        weak = self._world.weak
        await self._set("flush", "replicated")
        await trio.sleep(self._rng.random() * 4)
        self._tell(f"{weak.name} loses power")
        await weak.crash(power=True)
        await self._set("flush", "synced")
        for other in self._world.machines:
            if other is not weak and other.is_broker:
                await self._crash(other, power=False)
        if self._rng.random() < 0.5:
            self._start(weak)

    async def _set(self, key: str, value: str) -> None:
        """Set a key of some topic."""
        leader = self._world.leader()
        if leader is None or leader.node is None or leader.node.controller is None:
            return
        topics = [t for t in leader.node.image.topics if not t.startswith("__")]
        if topics:
            topic = self._rng.choice(topics)
            change = m.ConfigChange(kind="topic", name=topic, set={key: value})
            request = m.AlterConfigsRequest(resources=[change])
            with suppress(Refused), trio.move_on_after(1.0):
                await leader.node.controller.submit(request)
            self._tell(f"{key} of {topic} is to be {value}")

    async def _jump(self) -> None:
        """Somebody sets a machine's clock."""
        machine = self._any()
        machine.clock.ahead_ms = self._rng.choice([-JUMP_MS, 0, JUMP_MS])
        self._tell(f"{machine.name}: its clock is {machine.clock.ahead_ms} ms ahead")

    async def _pause(self) -> None:
        machine = self._any()
        if machine.is_up:
            pause_s = self._rng.choice([0.5, 2.0, 6.0])
            self._tell(f"{machine.name} is paused for {pause_s} s")
            self._begin(self._freeze, machine, pause_s)

    async def _freeze(self, machine: Machine, pause_s: float) -> None:
        """Nothing it says or syncs during the pause has an effect before its end."""
        self._world.network.freeze(machine.name)
        machine.disk.sync_latency_s += pause_s
        await trio.sleep(pause_s)
        machine.disk.sync_latency_s = self._world.knobs.sync_latency_s
        self._world.network.thaw(machine.name)

    async def _freeze_out(self) -> None:
        """A broker is frozen for longer than its session, and another machine takes its place with
        an empty disk; then it goes on, and does not know."""
        world, machine = self._world, self._world.weak
        serves = machine.node is not None and machine.node.serving.is_set()
        if not serves or any(ghost.is_up for ghost in world.ghosts):
            return
        if self._rng.random() < 0.5:
            await self._leave_alone(machine)
        pause_s = world.knobs.session_s + self._rng.choice([0.5, 2.0, 6.0])
        self._tell(f"{machine.name} is frozen for {pause_s} s")
        world.network.freeze(machine.name, heals=False)
        machine.disk.sync_latency_s += pause_s
        await trio.sleep(self._rng.random() * world.knobs.session_s)
        successor = world.replace(machine)
        self._tell(f"{successor.name} takes the place of {machine.name}")
        self._start(successor)
        self._begin(self._thaw, machine, successor, pause_s)

    async def _thaw(self, machine: Machine, successor: Machine, pause_s: float) -> None:
        """Somebody ends the old process, if its successor was not let in: two of them would wait
        for each other."""
        await trio.sleep(pause_s)
        if self._is_let_in(successor):
            self._tell(f"{machine.name} goes on")
            machine.disk.sync_latency_s = self._world.knobs.sync_latency_s
        else:
            await machine.crash(power=False)
        self._world.network.thaw(machine.name)

    def _is_let_in(self, machine: Machine) -> bool:
        """Whether it is the one that is registered, by the newest image of any node."""
        nodes = [each.node for each in self._world.machines if each.node is not None]
        image = max((node.image for node in nodes), key=lambda image: image.offset, default=None)
        known = None if image is None else image.brokers.get(machine.id)
        return known is not None and known.host == machine.name

    async def _heal(self) -> None:
        heal(self._world)


def heal(world: World) -> None:
    """Everything that is up works as it should."""
    world.story.tell("healed")
    world.network.heal()
    for machine in world.machines:
        machine.disk.sync_latency_s = world.knobs.sync_latency_s
        machine.disk.heal()
