"""A compacted topic of a simulated world, and its writer.

Bursts of records, large batches among them, go to a few keys over and over, so that compaction
always has work; some are tombstones. In some worlds a batch comes first that is as large inside as
readers take. However replicas compact, each of them holds the newest record of every key that was
acknowledged, or one that came after it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import trio

from hightide import Producer
from hightide.produce.delivery import Delivery
from hightide.protocol.columns import to_records
from hightide.protocol.errors import CorruptBatch, HightideError
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.simulation import brimful
from hightide_broker.simulation.quorum_checker import Violation
from hightide_broker.simulation.rows_workload import make_rows, store
from hightide_broker.simulation.workload import Subject
from hightide_broker.simulation.world import SimClock, World

KEYED = 0.6
"""How many of the worlds whose brokers compact have such a topic."""
NAME = "keyed"
PLACE = TopicPartition(NAME, 0)
KEYS = 6
BRIMFUL = 0.1
"""How many of these topics begin with a batch that must not grow."""
BURSTS = (1, 5, 40)
TOMBSTONES = 0.2


@dataclass(frozen=True, slots=True)
class _Newest:
    """What is known of one key."""

    offset: int = -1
    """Of the newest record that was acknowledged; -1 if none was."""
    value: bytes | None = None


class Keyed:
    """The topic, and its only writer."""

    def __init__(self, world: World, address: str, like: Subject, *, writes_rows: bool) -> None:
        self._world = world
        self._rng = random.Random(f"keyed-{world.seed}")
        compacts = "log.cleaner.min.cleanable.ratio" in world.knobs.config
        self.is_on = compacts and not world.knobs.may_lose and self._rng.random() < KEYED
        # Tombstones stay: who is away for longer than they do may miss one.
        configs = {"cleanup.policy": "compact", "delete.retention.ms": "3600000"}
        self.subject = Subject(NAME, 1, like.replicas, (*like.configs, *configs.items()))
        self._address = address
        self._keys = [b"key %d" % number for number in range(KEYS)]
        self._begins_brimful = random.Random(f"brimful-{world.seed}").random() < BRIMFUL
        if self._begins_brimful:
            self._keys.append(brimful.REPLACED)
        self._newest = dict.fromkeys(self._keys, _Newest())
        self._writes_rows = writes_rows
        self._number = 0
        self._resting = trio.Event()

    def rest(self) -> None:
        """Send no more; what is under way is waited for."""
        self._resting.set()

    async def run(self) -> None:
        """Until told to rest and everything has its outcome."""
        if self._begins_brimful:
            await self._send_brimful()
        while not self._resting.is_set():
            # A new one now and then: what the last one gave up may come late.
            async with Producer(
                self._address,
                acks="all",
                linger_ms=20,
                compression_type=self._rng.choice(["none", "lz4"]),
                request_timeout_ms=2000,
                delivery_timeout_ms=4000,
                network=self._world.network.host(NAME),
                random=self._rng,
                clock=SimClock(),
            ) as producer:
                for _ in range(self._rng.choice([1, 10])):
                    if self._writes_rows and self._rng.random() < 0.5:
                        await self._burst_of_rows()
                    else:
                        await self._burst(producer)
                    with trio.move_on_after(self._rng.random()):
                        await self._resting.wait()
                    if self._resting.is_set():
                        break

    async def _send_brimful(self) -> None:
        values, batch = brimful.make_batch(SimClock().now_ms())
        network = self._world.network.host(NAME)
        with suppress(HightideError):
            base = await store(batch, PLACE, self._address, network=network, random=self._rng)
            for number, key in enumerate(brimful.KEYS):
                self._newest[key] = _Newest(base + number, values[number])

    async def _burst_of_rows(self) -> None:
        records = [self._record() for _ in range(self._rng.choice(BURSTS))]
        keys, values = zip(*records, strict=True)
        batch, network = make_rows(keys, values, self._rng), self._world.network.host(NAME)
        with suppress(HightideError):
            base = await store(batch, PLACE, self._address, network=network, random=self._rng)
            for offset, (key, value) in enumerate(records, base):
                self._know(key, offset, value)

    async def _burst(self, producer: Producer) -> None:
        sent: list[tuple[bytes, bytes | None, Delivery]] = []
        with suppress(HightideError):
            for _ in range(self._rng.choice(BURSTS)):
                key, value = self._record()
                delivery = await producer.send(NAME, value, key=key, partition=0)
                sent.append((key, value, delivery))
        for key, value, delivery in sent:
            await self._wait(key, value, delivery)

    def _record(self) -> tuple[bytes, bytes | None]:
        self._number += 1
        key = self._rng.choice(self._keys)
        is_tombstone = self._rng.random() < TOMBSTONES
        return key, None if is_tombstone else b"%d of %s" % (self._number, key)

    async def _wait(self, key: bytes, value: bytes | None, delivery: Delivery) -> None:
        try:
            offset = (await delivery).offset
        except HightideError:
            return
        self._know(key, offset, value)

    def _know(self, key: bytes, offset: int, value: bytes | None) -> None:
        if offset > self._newest[key].offset:
            self._newest[key] = _Newest(offset, value)

    # -- the end ---------------------------------------------------------------------------------

    async def until_copied(self, within_s: float) -> None:
        """Every replica has all there is; raises `Violation` if that takes too long."""
        deadline = trio.current_time() + within_s
        while True:
            if len({replica.log.log_end for replica in self._replicas()}) <= 1:
                return
            if trio.current_time() > deadline:
                raise Violation(f"replicas differ: {[*map(repr, self._replicas())]}")
            await trio.sleep(0.1)

    def check_end(self) -> None:
        """Raises `Violation` if a replica lacks something that no newer record replaces, or if two
        say different things of a key."""
        seen: dict[bytes, tuple[int, bytes | None] | None] = {}
        for replica in self._replicas():
            found = _newest_of(replica)
            for key, known in self._newest.items():
                _check(replica, key, known, found.get(key))
                if seen.setdefault(key, found.get(key)) != found.get(key):
                    raise Violation(
                        f"{replica!r} has {found.get(key)!r:.80} of {key!r}, not {seen[key]!r:.80}"
                    )

    def _replicas(self) -> Iterator[Replica]:
        for machine in self._world.machines:
            if machine.node is not None:
                yield from (r for r in machine.node.replicas if r.topic == NAME and not r.offline)


def _newest_of(replica: Replica) -> dict[bytes, tuple[int, bytes | None]]:
    """key → offset and value of its newest record; raises `Violation` where nobody can read."""
    try:
        return {
            record.key or b"": (record.offset, record.value)
            for header, batch in replica.log.batches(replica.log.log_start)
            for record in to_records(batch, header, NAME, 0)
        }
    except CorruptBatch as error:
        raise Violation(f"{replica!r} cannot be read: {error}") from error


def _check(
    replica: Replica, key: bytes, known: _Newest, found: tuple[int, bytes | None] | None
) -> None:
    newer = found is not None and found[0] > known.offset
    if known.offset >= 0 and not newer and found != (known.offset, known.value):
        raise Violation(
            f"{replica!r} has {found!r:.80} of {key!r}; {known.value!r:.80} was stored at "
            f"{known.offset}"
        )
