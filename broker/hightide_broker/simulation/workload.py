"""Producers and consumers of a simulated world, and what they were told.

They are the real ones, on machines that never fail. Each record's value names its producer and its
number, so that a log can be read as a history. An acknowledgement is a fact; an error is neither a
yes nor a no, because the record may have been stored.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import trio

from hightide import Consumer, Producer
from hightide.produce.delivery import Delivery
from hightide.protocol.columns import to_records
from hightide.protocol.errors import ApiError, ErrorCode, HightideError
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.simulation.quorum_checker import Violation
from hightide_broker.simulation.world import PORT, SimClock, World

NOT_IDEMPOTENT = b"producer-3"
"""Its acks are 1."""
IN_ROWS = b"rows-1"
"""Its batches may come late, and in another order."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A topic of a world."""

    name: str
    partitions: int
    replicas: int
    configs: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Records:
    """What the clients of a world were told about records."""

    sent: int = 0
    read: int = 0
    acknowledged: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    """Where and at which offset → value."""
    seen: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    """What any consumer read there first."""
    lost: dict[TopicPartition, list[range]] = field(default_factory=dict)
    """The offsets that what was acknowledged may be missing at."""

    def note_read(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """A consumer read a record; everybody reads the same."""
        self.read += 1
        first = self.seen.setdefault((tp, offset), value)
        if first != value:
            raise Violation(f"{tp} offset {offset} was read as {first!r} and as {value!r}")

    def acknowledge(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """A record is stored there for good; no other one is."""
        if (tp, offset) in self.acknowledged and not self._is_lost(tp, offset):
            raise Violation(f"{tp} offset {offset} was acknowledged twice")
        self.acknowledged[(tp, offset)] = value

    @property
    def acknowledged_in_rows(self) -> int:
        """How many of them came in batches of Kafka's rows."""
        return sum(value.startswith(IN_ROWS) for value in self.acknowledged.values())

    def give_up(self, tp: TopicPartition, end: int) -> None:
        """What was acknowledged from here on is lost with a disk, and that is known."""
        lost = [at for at in self.acknowledged if at[0] == tp and at[1] >= end]
        for at in lost:
            del self.acknowledged[at]

    def _is_lost(self, tp: TopicPartition, offset: int) -> bool:
        return any(offset in each for each in self.lost.get(tp, ()))

    def check(self, tp: TopicPartition, replica: Replica) -> None:
        """The log holds what was acknowledged and read; each value once, in the order of
        sending."""
        log: dict[int, bytes] = {}
        for header, batch in replica.log.batches(replica.log.log_start):
            for record in to_records(batch, header, *tp):
                log[record.offset] = record.value or b""
        for kind, known in (("acknowledged", self.acknowledged), ("read", self.seen)):
            for (place, offset), value in known.items():
                found = log.get(offset)
                if place == tp and found != value and not self._is_lost(tp, offset):
                    raise Violation(
                        f"{tp} offset {offset}: {value!r} was {kind}, {found!r} is there"
                    )
        _check_order(tp, log.values())


def _check_order(tp: TopicPartition, values: Iterable[bytes]) -> None:
    """Each idempotent producer's records rise, so none is there twice."""
    newest: dict[bytes, int] = {}
    for value in values:
        producer, _, number = value.partition(b" ")
        if producer in (NOT_IDEMPOTENT, IN_ROWS):
            continue
        if int(number) <= newest.get(producer, -1):
            raise Violation(f"{tp}: {value!r} follows number {newest[producer]}")
        newest[producer] = int(number)


class Sending:
    """A producer that sends one record after the other to all partitions."""

    def __init__(
        self,
        world: World,
        name: str,
        places: list[TopicPartition],
        records: Records,
        bootstrap: str,
        *,
        acks: str,
    ) -> None:
        self.name = name
        self._acks = acks
        self._world = world
        self._rng = random.Random(f"{world.seed}-{name}")
        self._places = places
        self._records = records
        self._bootstrap = bootstrap
        self._number = 0
        self._working = trio.CancelScope()
        self._resting = trio.Event()

    def rest(self) -> None:
        """Send no more; what is under way is waited for."""
        self._resting.set()

    async def run(self) -> None:
        """Until told to rest and everything has its outcome."""
        # A new one now and then: its idempotence begins again.
        while not self._resting.is_set():
            async with (
                Producer(
                    self._bootstrap,
                    acks=self._acks,
                    linger_ms=self._rng.choice([0, 5, 50]),
                    batch_size=self._rng.choice([100, 16384]),
                    request_timeout_ms=2000,
                    delivery_timeout_ms=self._rng.choice([4000, 15000]),
                    client_id=self.name,
                    network=self._world.network.host(self.name),
                    random=self._rng,
                    clock=SimClock(),
                ) as producer,
                trio.open_nursery() as nursery,
            ):
                lifetime_s = self._rng.choice([5.0, 20.0, 60.0])
                with trio.move_on_after(lifetime_s):
                    await self._send(producer, nursery)

    async def _send(self, producer: Producer, nursery: trio.Nursery) -> None:
        while not self._resting.is_set():
            tp = self._rng.choice(self._places)
            self._number += 1
            value = f"{self.name} {self._number}".encode()
            try:
                delivery = await producer.send(tp.topic, value, partition=tp.partition)
            except HightideError:
                await trio.sleep(0.2)
                continue
            self._records.sent += 1
            nursery.start_soon(self._wait, delivery, tp, value)
            with trio.move_on_after(self._rng.expovariate(1 / self._world.knobs.think_s)):
                await self._resting.wait()

    async def _wait(self, delivery: Delivery, tp: TopicPartition, value: bytes) -> None:
        try:
            record = await delivery
        except HightideError:
            return
        if self._acks != "all":
            return  # it may be lost with its leader
        self._records.acknowledge(tp, record.offset, value)


class Reading:
    """A consumer of all partitions from their beginning; it must never miss or repeat anything."""

    def __init__(
        self,
        world: World,
        name: str,
        places: list[TopicPartition],
        records: Records,
        bootstrap: str,
    ) -> None:
        self.name = name
        self.next: dict[TopicPartition, int] = dict.fromkeys(places, 0)
        """The offset that each partition is read from next."""
        self._world = world
        self._records = records
        self._bootstrap = bootstrap

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._read()
            except ApiError as error:
                # Somebody asked a broker that has not heard of the new topic yet, for too long.
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise

    async def _read(self) -> None:
        async with Consumer(
            self._bootstrap,
            partitions=list(self.next),
            auto_offset_reset="none",
            request_timeout_ms=2000,
            default_api_timeout_ms=120_000,
            client_id=self.name,
            network=self._world.network.host(self.name),
            random=random.Random(f"{self._world.seed}-{self.name}"),
        ) as consumer:
            for topic, partition in self.next:
                consumer.seek(topic, partition, 0)
            while True:
                try:
                    found = await consumer.poll(timeout_ms=1000)
                except ApiError as error:
                    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise Violation(f"{self.name} at {self.next}: {error}") from error
                    await trio.sleep(0.2)
                    continue
                except HightideError:
                    await trio.sleep(0.2)
                    continue
                for record in found:
                    tp = TopicPartition(record.topic, record.partition)
                    self._take(tp, record.offset, record.value or b"")

    def _take(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        if offset != self.next[tp]:
            raise Violation(f"{self.name} read {tp} offset {offset}, not {self.next[tp]}")
        self._records.note_read(tp, offset, value)
        self.next[tp] = offset + 1


def bootstrap_of(world: World) -> str:
    """Where clients begin."""
    brokers = [machine for machine in world.machines if machine.is_broker]
    return ",".join(f"{machine.name}:{PORT}" for machine in brokers)
