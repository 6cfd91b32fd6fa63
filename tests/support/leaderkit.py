"""What the tests of a leading broker share: broker 1 with real replicas on the simulated disk.

No test lives here. `Here` is told what the metadata says, and asked as a follower or a consumer
would ask it; the controller that its leaders write to is `FakeController`, which answers as a test
tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import trio
from askers import Asker
from brokers import DATA, FakeClock, batch, settings
from trio.testing import wait_all_tasks_blocked

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.records import iter_batches
from hightide_broker.core.cluster.changes import (
    ChangePartition,
    CreatePartition,
    CreateTopic,
    FenceBroker,
    RegisterBroker,
    SetConfig,
    UnfenceBroker,
)
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.call import Call, Reply
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.replication.fetcher import Fetchers
from hightide_broker.runtime.replication.following import Following
from hightide_broker.runtime.replication.isr import IsrChanges
from hightide_broker.runtime.replication.known_brokers import KnownBrokers
from hightide_broker.runtime.replication.metadata_applier import MetadataApplier
from hightide_broker.runtime.replication.pending_deletes import PendingDeletes
from hightide_broker.runtime.replication.repair import Repair
from hightide_broker.runtime.replication.replica_loader import ReplicaLoader
from hightide_broker.runtime.replication.replicas import Replicas
from hightide_broker.runtime.server.record_handlers import RecordHandlers
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.trace.events import Event

ME, TWO, THREE, STRANGER = 1, 2, 3, 9
EPOCH = 5
"""The leader epoch in which a topic begins, unless a test says another."""


def broker_epoch(broker: int) -> int:
    """What each broker's registration has for its epoch."""
    return 100 + broker


class Nowhere:
    """A network without anybody; implements `ports.Network`."""

    async def connect(self, host: str, port: int) -> Any:
        raise OSError(f"nobody is at {host}:{port}")


Script = Callable[[c.AlterPartitionRequest], c.AlterPartitionResponse]


class FakeController:
    """The way to a controller that needs `takes_s` for an answer, and answers by `script`: a
    function of the request, whose refusal is one of the whole request."""

    def __init__(self, *script: Script, takes_s: float = 0.001) -> None:
        self.requests: list[c.AlterPartitionRequest] = []
        self.times: list[float] = []
        """When each request came."""
        self.at_work = self.most_at_work = 0
        self.takes_s = takes_s
        self._script = list(script)
        """The last one goes on for ever."""

    async def ask(
        self, request: m.Message, *, timeout_s: float | None = None
    ) -> tuple[m.Message, int]:
        assert isinstance(request, c.AlterPartitionRequest)
        self.requests.append(request)
        self.times.append(trio.current_time())
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            await trio.sleep(self.takes_s)
            answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            return answer(request), 0
        finally:
            self.at_work -= 1

    @property
    def wishes(self) -> list[list[tuple[int, list[int]]]]:
        """Of each request: (partition, ISR)."""
        return [[(wish.partition, wish.isr) for wish in each.partitions] for each in self.requests]


def _result(wish: c.AlterPartition, code: ErrorCode | None) -> c.AlterPartitionResult:
    return c.AlterPartitionResult(topic_id=wish.topic_id, partition=wish.partition, error=code)


def granted(request: c.AlterPartitionRequest) -> c.AlterPartitionResponse:
    """Yes to everything."""
    return c.AlterPartitionResponse(partitions=[_result(wish, None) for wish in request.partitions])


def saying(code: ErrorCode | None, *partitions: int) -> Script:
    """This to the proposals of these partitions (or to all), yes to the others."""

    def answer(request: c.AlterPartitionRequest) -> c.AlterPartitionResponse:
        results = [
            _result(wish, code if not partitions or wish.partition in partitions else None)
            for wish in request.partitions
        ]
        return c.AlterPartitionResponse(partitions=results)

    return answer


def unanswered(request: c.AlterPartitionRequest) -> c.AlterPartitionResponse:
    """The request, or its answer, is lost on its way."""
    raise Refused(ErrorCode.REQUEST_TIMED_OUT, "the controller did not answer")


class Served(NamedTuple):
    """What an answer says of one partition."""

    result: m.FetchResult
    offsets: list[int]
    """Where its batches begin."""

    @property
    def error(self) -> str | None:
        return self.result.error


def served(reply: Reply) -> dict[tuple[str, int], Served]:
    """An answer by partition."""
    found = {}
    for result in reply.body.partitions:
        data = reply.attachments[result.records].read() if result.records >= 0 else b""
        offsets = [header.base_offset for header, _ in iter_batches(data)]
        found[(result.topic, result.partition)] = Served(result, offsets)
    assert len(found) == len(reply.body.partitions), "no partition is named twice"
    return found


class Parked:
    """A fetch that waits; `answer` is None until it is done."""

    def __init__(self, agenda: Agenda, fetch: Any) -> None:
        assert not isinstance(fetch, Reply), "it is to wait"
        self.answer: dict[tuple[str, int], Served] | None = None
        agenda.now(partial(fetch.begin, Asker(self._take)))

    def _take(self, reply: Reply) -> None:
        self.answer = served(reply)

    @property
    def is_waiting(self) -> bool:
        return self.answer is None

    @property
    def only(self) -> Served:
        assert self.answer is not None, "it still waits"
        (found,) = self.answer.values()
        return found


def part(offset: int, *, topic: str = "jade", partition: int = 0, **over: Any) -> m.FetchPartition:
    """One partition of a fetch; it knows the epoch, and no watermark."""
    facts = {"current_leader_epoch": EPOCH, **over}
    return m.FetchPartition(topic=topic, partition=partition, fetch_offset=offset, **facts)


def question(
    *parts: m.FetchPartition, by: int = TWO, wait_ms: int = 9000, **over: Any
) -> m.FetchRequest:
    """A fetch of a follower, or of a consumer (by=-1)."""
    facts = {"replica_epoch": broker_epoch(by) if by >= 0 else -1, **over}
    return m.FetchRequest(max_wait_ms=wait_ms, partitions=list(parts), replica_id=by, **facts)


class Here:
    """Broker 1; brokers 1, 2 and 3 are registered and active."""

    def __init__(
        self,
        controller: FakeController | None = None,
        *,
        disk: SimDisk | None = None,
        clean: bool = True,
        **config: str,
    ) -> None:
        told = {key.replace("_", "."): value for key, value in config.items()}
        self.config = settings({"node.id": str(ME), **told})
        self.disk = disk or SimDisk()
        self.disk.make_dirs(DATA)
        self.image = ClusterImage()
        self.controller = controller or FakeController(granted)
        self.told: list[Event] = []
        tell = self.told.append
        self.isr_changes = IsrChanges(self.controller, broker=ME, config=self.config, tell=tell)
        self.agenda, clock = Agenda(), FakeClock()
        self._runs_agenda = False
        self.syncer = Syncer(self.disk, self.agenda)
        self.replicas = Replicas(
            self.disk, DATA, syncer=self.syncer, isr_changes=self.isr_changes, tell=tell
        )
        lower_offsets = self.replicas.checkpoints.lower_offsets
        self.following = Following(now_ms=clock.now_ms, lower_offsets=lower_offsets, tell=tell)
        self.pending_deletes = PendingDeletes(self.disk, DATA)
        self._known = KnownBrokers()
        self._build(clock, clean=clean)
        for broker in (ME, TWO, THREE):
            self.register(broker, broker_epoch(broker))
        self.applier.registered(broker_epoch(ME))

    def _build(self, clock: FakeClock, *, clean: bool) -> None:
        """What carries out the metadata, and what answers."""
        config, disk, replicas = self.config, self.disk, self.replicas
        fetchers = Fetchers(
            Nowhere(),
            self._known,
            self.following,
            self.syncer,
            self.agenda,
            broker=ME,
            config=config,
        )
        loader = ReplicaLoader(
            replicas, broker=ME, config=config, disk=disk, clock=clock, clean=clean
        )
        self.applier = MetadataApplier(
            replicas,
            loader,
            brokers=self._known,
            fetchers=fetchers,
            pending_deletes=self.pending_deletes,
            broker=ME,
            config=config,
            disk=disk,
        )
        self.repair = Repair(replicas, loader, self.applier, disk=disk)
        self.records = RecordHandlers(
            self, replicas, self._known, config=config, clock=clock, agenda=self.agenda, disk=disk
        )

    # -- metadata --------------------------------------------------------------------------------

    def replay(self, *changes: Any) -> None:
        for change in changes:
            self.image.replay(change, self.image.offset)

    def register(self, broker: int, epoch: int, *, rack: str = "") -> None:
        """A new process of a broker; it serves."""
        self.replay(
            RegisterBroker(
                broker=broker,
                incarnation=f"{epoch}",
                host="nowhere",
                port=1,
                rack=rack,
                broker_epoch=epoch,
            ),
            UnfenceBroker(broker=broker, broker_epoch=epoch),
        )

    async def fence(self, broker: int) -> None:
        await self.apply(FenceBroker(broker=broker, broker_epoch=self.image.broker_epoch(broker)))

    async def apply(self, *changes: Any) -> None:
        """The metadata log goes on."""
        self.replay(*changes)
        await self.applier.apply(self.image, changes)

    async def create(
        self,
        topic: str = "jade",
        *,
        replicas: tuple[int, ...] = (ME, TWO, THREE),
        isr: tuple[int, ...] | None = None,
        leader: int = ME,
        epoch: int = EPOCH,
        partitions: int = 1,
        **config: str,
    ) -> Any:
        """A topic whose records count without a sync; the replica of its first partition."""
        told = {"flush": "replicated", **{k.replace("_", "."): v for k, v in config.items()}}
        await self.apply(
            CreateTopic(topic=topic, topic_id=f"id-of-{topic}"),
            *(SetConfig(kind="topic", name=topic, key=k, value=v) for k, v in told.items()),
            *(
                CreatePartition(
                    topic_id=f"id-of-{topic}",
                    partition=number,
                    replicas=replicas,
                    isr=replicas if isr is None else isr,
                    leader=leader,
                    leader_epoch=epoch,
                )
                for number in range(partitions)
            ),
        )
        return self.replicas.get(topic, 0)

    async def change(self, topic: str = "jade", partition: int = 0, **facts: Any) -> None:
        """A partition gets another ISR or another leader, who begins a new epoch."""
        await self.apply(ChangePartition(topic_id=f"id-of-{topic}", partition=partition, **facts))

    # -- records ---------------------------------------------------------------------------------

    def append(self, count: int = 1, *, topic: str = "jade", partition: int = 0) -> None:
        """So many batches of one record."""
        replica = self.replicas.get(topic, partition)
        for _ in range(count):
            replica.append(batch(b"x" * 24), acks_all=False, now_ms=FakeClock().now_ms())

    def fetch(self, request: m.FetchRequest) -> Any:
        """The answer by partition, or what is left to do if it waits."""
        found = self.records.fetch(Call(request))
        return served(found) if isinstance(found, Reply) else found

    def fetch_one(self, offset: int, *, by: int = TWO, **over: Any) -> Served:
        """A fetch of one partition that does not wait, and that the answer names."""
        names = {"rack", "replica_epoch"}
        whole = {name: over.pop(name) for name in names & over.keys()}
        (found,) = self.fetch(question(part(offset, **over), by=by, wait_ms=0, **whole)).values()
        return found

    def run_agenda(self, nursery: trio.Nursery) -> None:
        """What is due is done from here on."""
        if not self._runs_agenda:
            self._runs_agenda = True
            nursery.start_soon(self.agenda.run)

    async def park(self, nursery: trio.Nursery, request: m.FetchRequest) -> Parked:
        """A fetch that waits."""
        self.run_agenda(nursery)
        parked = Parked(self.agenda, self.records.fetch(Call(request)))
        await settled()
        assert parked.is_waiting
        return parked


async def settled() -> None:
    """Until everybody waits for something."""
    await wait_all_tasks_blocked()


def remotes_of(replica: Any) -> str:
    """All that a leader knows of the others, and has decided about them."""
    leader = replica.leader
    return f"{leader.remotes} {leader.proposal} {replica.high_watermark}"
