"""What the tests of groups on brokers share: nodes in virtual time, and members told by hand.

No test lives here. Nodes, disks and network are those of the simulation, so that a session of 10
seconds costs nothing; the wire is the real one. The disk of each machine has a gate: while it is
shut, nothing of the groups is synced, and so nothing is committed where there is one broker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import trio
from brokers import Client

from hightide import Consumer
from hightide.net.connection import open_connection
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol.consumer_protocol import pack_subscription
from hightide.protocol.errors import ApiError, ErrorCode, error_code
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC
from hightide_broker.core.groups.records import partition_of
from hightide_broker.ports import DiskFile
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.simulation.network import Weather
from hightide_broker.simulation.scheduler import run_seeded
from hightide_broker.simulation.world import PORT, Knobs, World

PATIENCE_S = 900.0
"""Virtual seconds that a test may take."""
SESSION_MS = 10_000
MANUAL = {"enable_auto_commit": False}
QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "broker.session.timeout.ms": "2s",
    "broker.heartbeat.interval.ms": "500",
}


def virtual(test):
    """Run an async test on virtual time, its steps always chosen in the same way."""

    @wraps(test)
    def run(**arguments):
        async def bounded():
            with trio.fail_after(PATIENCE_S):
                await test(**arguments)

        run_seeded(1, bounded)

    return run


async def until(true, *, every_s=0.01, within_s=60.0):
    """Wait for something that is true; what it was, when it is."""
    with trio.fail_after(within_s):
        while not (found := true()):
            await trio.sleep(every_s)
    return found


async def later(nursery, function, *args, **kwargs):
    """Begin a call and see that it waits; where its outcome will be."""
    found = []

    async def call():
        try:
            found.append(await function(*args, **kwargs))
        except Exception as error:
            found.append(error)

    nursery.start_soon(call)
    await trio.sleep(0.1)
    assert found == []
    return found


async def outcome(found):
    """Wait until it is there."""
    with trio.fail_after(120):
        while not found:
            await trio.sleep(0.01)
    return found[0]


async def refusal(call: Awaitable[Any]) -> ErrorCode | None:
    """The code that a call is refused with."""
    try:
        await call
    except ApiError as error:
        return error.code
    return None


class Gate(SimDisk):
    """A disk whose syncs of what coordinators keep wait until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self._open = trio.Event()
        self._open.set()

    def shut(self) -> None:
        self._open = trio.Event()

    def open_again(self) -> None:
        self._open.set()

    async def while_syncing(self, files: Sequence[DiskFile]) -> None:
        if any(OFFSETS_TOPIC in each.path for each in files):
            await self._open.wait()
        await super().while_syncing(files)


class Asking(Client):
    """A client that asks about groups; `g` is the group, `t` the topic. Raises `ApiError`."""

    async def ask(self, request: Any, *, timeout_s: float = 200.0) -> Any:
        body, _ = await self.connection.call(request, timeout_s=timeout_s)
        error = getattr(body, "error", None)
        if error is not None and error != ErrorCode.MEMBER_ID_REQUIRED:
            raise ApiError(error_code(error), body.message)
        return body

    async def find(self, group: str = "g") -> Any:
        """Its coordinator; the topic is made if it is not there."""
        return await self.ask(g.FindCoordinatorRequest(group=group))

    async def join(self, member_id: str = "", *, group: str = "g", topics=("t",), **said) -> Any:
        metadata = said.pop(
            "metadata", pack_subscription(g.Subscription(topics=list(topics)), "range")
        )
        assignor = said.pop("assignor", "range")
        told = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": 60_000, **said}
        return await self.ask(
            g.JoinGroupRequest(
                group=group,
                protocols=[g.Protocol(name=assignor, metadata=metadata)],
                member_id=member_id,
                **told,
            )
        )

    async def enter(self, *, group: str = "g", **said) -> Any:
        """A dynamic member: it gets an id, and joins with it."""
        first = await self.join(group=group, **said)
        assert first.error == ErrorCode.MEMBER_ID_REQUIRED
        return await self.join(first.member_id, group=group, **said)

    async def sync(self, joined: Any, *, group: str = "g", **given: bytes) -> bytes:
        """What it is given. Who leads gives everybody `given`, or `x` to all."""
        leads = joined.leader == joined.member_id
        wanted = given or {each.member_id: b"x" for each in joined.members}
        answer = await self.ask(
            g.SyncGroupRequest(
                group=group,
                member_id=joined.member_id,
                generation=joined.generation,
                assignments=[
                    g.MemberAssignment(member_id=member, assignment=what)
                    for member, what in (wanted if leads else {}).items()
                ],
            )
        )
        return answer.assignment

    async def member(self, *, group: str = "g", **said) -> Any:
        """The one member of a group that is Stable."""
        joined = await self.enter(group=group, **said)
        await self.sync(joined, group=group)
        return joined

    async def beat(self, joined: Any, *, group: str = "g", generation: int | None = None) -> None:
        await self.ask(
            g.GroupHeartbeatRequest(
                group=group,
                member_id=joined.member_id,
                generation=joined.generation if generation is None else generation,
            )
        )

    async def leave(self, member_id: str, *, group: str = "g", instance_id: str = "") -> Any:
        leaving = g.LeavingMember(member_id=member_id, instance_id=instance_id, reason="enough")
        answer = await self.ask(g.LeaveGroupRequest(group=group, members=[leaving]))
        return answer.members[0].error

    async def commit(
        self,
        offset: int,
        joined: Any = None,
        *,
        group: str = "g",
        sender: str = "",
        number: int = -1,
        **said: Any,
    ) -> Any:
        """The error of one offset, or of the whole request; by nobody if not `joined`."""
        place = {"topic": "t", "partition": 0, **said}
        parts = [g.CommitPartition(offset=offset, **place)]
        try:
            return (await self.commit_all(parts, joined, group, sender=sender, number=number))[
                0
            ].error
        except ApiError as error:
            return error.code

    async def commit_all(
        self, parts: Any, joined: Any = None, group: str = "g", **counted: Any
    ) -> Any:
        who = (
            {}
            if joined is None
            else {"member_id": joined.member_id, "generation": joined.generation}
        )
        answer = await self.ask(
            g.OffsetCommitRequest(group=group, partitions=parts, **counted, **who)
        )
        return answer.partitions

    async def committed(self, group: str = "g") -> dict[tuple[str, int], int]:
        """Everything that is committed."""
        answer = await self.ask(g.OffsetFetchRequest(group=group))
        return {(each.topic, each.partition): each.offset for each in answer.partitions}

    async def groups(self) -> dict[str, str]:
        """Group → state."""
        answer = await self.ask(g.ListGroupsRequest())
        return {each.group: each.state for each in answer.groups}

    async def describe(self, group: str = "g") -> g.DescribedGroup:
        return (await self.ask(g.DescribeGroupsRequest(groups=[group]))).groups[0]

    async def delete(self, group: str = "g") -> Any:
        answer = await self.ask(g.DeleteGroupsRequest(groups=[group]))
        return answer.groups[0].error

    async def forget(self, *places: tuple[str, int], group: str = "g") -> list[Any]:
        """The errors of forgetting offsets; of a refused request as many as there are places."""
        parts = [g.GroupPartition(topic=topic, partition=number) for topic, number in places]
        try:
            answer = await self.ask(g.OffsetDeleteRequest(group=group, partitions=parts))
        except ApiError as error:
            return [error.code] * len(parts)
        return [each.error for each in answer.partitions]


class Site:
    """Machines that run brokers; the first one is the controller, too."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.machines = world.machines
        self.bootstrap = ",".join(f"{machine.name}:{PORT}" for machine in self.machines)
        self._clients = 0

    @property
    def gate(self) -> Gate:
        """The disk of the first machine."""
        disk = self.machines[0].disk
        assert isinstance(disk, Gate)
        return disk

    def leads(self, number: int, partition: int) -> bool:
        """Whether a machine's broker leads a partition of the offsets, as the first one sees it."""
        topic = self.machines[0].node.image.topics[OFFSETS_TOPIC]
        return topic.partitions[partition].leader == self.machines[number].id

    @asynccontextmanager
    async def client(self, number: int = 0) -> AsyncIterator[Asking]:
        """A connection to a machine."""
        network, machine = self.world.network.host("asker"), self.machines[number]
        async with open_connection(network, machine.name, PORT) as connection:
            yield Asking(connection)

    def consumer(self, **options: Any) -> Consumer:
        """A consumer of `t` in group `g` from the start, unless told otherwise."""
        self._clients += 1
        wanted = {} if "partitions" in options else {"topics": ["t"]}
        quick = {"heartbeat_interval_ms": 300, "session_timeout_ms": SESSION_MS, "group_id": "g"}
        network = self.world.network.host(f"client-{self._clients}")
        told = {**quick, **wanted, "auto_offset_reset": "earliest", "network": network, **options}
        return Consumer(self.bootstrap, **told)

    async def again(self, *, power: bool = False, number: int = 0) -> None:
        """A machine's process is killed, or its power is lost; then it starts again."""
        machine = self.machines[number]
        await machine.crash(power=power)
        machine.start_again()
        await machine.serves()


@asynccontextmanager
async def site(*, brokers: int = 1, topic: int = 1, **over: str) -> AsyncIterator[Site]:
    """Brokers for the block, with a topic `t` of so many partitions; `over` are settings, with `_`
    for dots."""
    told = {name.replace("_", "."): value for name, value in over.items()}
    knobs = Knobs(
        controllers=1,
        combined=True,
        observers=brokers - 1,
        config=QUICK | told,
        weather=Weather(latency_s=0.0005, jitter_s=0.0),
    )
    world = World(1, knobs=knobs)
    async with trio.open_nursery() as nursery:
        for machine in world.machines:
            machine.disk = Gate()
            machine.start(nursery)
        for machine in world.machines:
            await machine.serves()
        found = Site(world)
        async with found.client() as client:
            await client.create("t", partitions=topic)
        yield found
        nursery.cancel_scope.cancel()


async def group_led_by(client, at, number):
    """A group whose partition's preferred leader is a machine; and that partition."""
    await client.find()
    told = await client.call(m.MetadataRequest(topics=[OFFSETS_TOPIC]))
    partitions = told.topics[0].partitions
    wanted = next(p for p in partitions if p.replicas[0] == at.machines[number].id)
    names = (f"g{n}" for n in range(1000))
    return next(n for n in names if partition_of(n, len(partitions)) == wanted.partition), wanted


async def in_sync(client, partition, count):
    """Wait until a partition has so many replicas in sync."""
    with trio.fail_after(60):
        while True:
            told = await client.call(m.MetadataRequest(topics=[OFFSETS_TOPIC]))
            if len(told.topics[0].partitions[partition].isr) == count:
                return
            await trio.sleep(0.1)


# -- consumers -----------------------------------------------------------------------------------


class Reader:
    """A consumer that asks for records all the time, until it is told to stop."""

    def __init__(self, at: Site, **options) -> None:
        self.consumer = at.consumer(**options)
        self.records = []
        self._stopping = False
        self._ended = trio.Event()

    async def run(self, *, task_status) -> None:
        async with self.consumer as consumer:
            task_status.started(self)
            while not self._stopping:
                self.records += await consumer.poll(timeout_ms=50)
        self._ended.set()

    async def stop(self) -> None:
        self._stopping = True
        await self._ended.wait()

    @property
    def places(self):
        return {tp.partition for tp in self.consumer.assignment()}


async def shared(readers, sizes, count=6):
    """Wait until the partitions are shared in parts of these sizes, each by one reader."""

    def done():
        parts = [reader.places for reader in readers]
        return sorted(map(len, parts)) == sizes and set().union(*parts) == set(range(count))

    await until(done)
    return [reader.places for reader in readers]


async def fill(client: Asking, count: int, *, partitions: int = 1, start: int = 0) -> None:
    """A batch of numbered records for each partition."""
    for partition in range(partitions):
        values = [b"%d-%d" % (partition, n) for n in range(start, start + count)]
        await client.produce(*values, partition=partition)


async def joined(consumer: Consumer, count: int = 1) -> None:
    """Ask for nothing until it has so many partitions and knows where to begin."""
    with trio.fail_after(60):
        while len(consumer.assignment()) != count or None in [
            consumer.position(*tp) for tp in consumer.assignment()
        ]:
            assert await consumer.poll(timeout_ms=10, max_records=0) == []


async def take(consumer: Consumer, count: int):
    found = []
    with trio.fail_after(60):
        while len(found) < count:
            found += await consumer.poll(timeout_ms=1000, max_records=count - len(found))
    return found
