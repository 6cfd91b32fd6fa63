"""A consumer group in a simulated world, and what its members were told.

Members come and go, are killed, commit by hand after they have worked on what they got. Whatever
happens to coordinators: a partition has one owner in a generation, a commit that was acknowledged
is where the next owner begins at the earliest, and everything is read by somebody.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import trio

from hightide import Consumer
from hightide.protocol.errors import HightideError
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.simulation.quorum_checker import Violation
from hightide_broker.simulation.workload import Records
from hightide_broker.simulation.world import World

GROUP = "group"
CONFIG = {
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "300",
    "offsets.topic.num.partitions": "2",
    "offsets.commit.timeout.ms": "2s",
}


@dataclass(slots=True)
class GroupLog:
    """What the members of a group were told."""

    owners: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)
    """(generation, partition) → the member that was given it."""
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    """The largest offset whose commit was acknowledged."""
    seen: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """What members have worked on."""
    commits: int = 0
    rebalances: int = 0
    _whole: dict[TopicPartition, int] = field(default_factory=dict)

    def own(self, generation: int, tp: TopicPartition, member: str) -> None:
        """A member was given a partition."""
        owner = self.owners.setdefault((generation, tp), member)
        if owner != member:
            raise Violation(f"{tp} in generation {generation} is {owner}'s, and {member}'s")

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        """A commit was acknowledged: what lies below was worked on."""
        self.commits += 1
        for tp, offset in offsets.items():
            if (missing := self._next(tp)) < offset:
                raise Violation(f"{tp}: {offset} is committed, {missing} was read by nobody")
            self.committed[tp] = max(self.committed.get(tp, 0), offset)

    def behind(self, ends: dict[TopicPartition, int]) -> list[str]:
        """Partitions of which something was read by no member."""
        return [
            f"the group has read {len(self.seen.get(tp, ()))} of {end} in {tp}"
            for tp, end in ends.items()
            if self._next(tp) < end
        ]

    def _next(self, tp: TopicPartition) -> int:
        """The first offset that nobody has worked on."""
        seen, at = self.seen.get(tp, set()), self._whole.get(tp, 0)
        while at in seen:
            at += 1
        self._whole[tp] = at
        return at


class GroupMember:
    """One place in a group: a consumer, and after it another one, until cancelled."""

    def __init__(
        self,
        world: World,
        name: str,
        topics: list[str],
        records: Records,
        group: GroupLog,
        bootstrap: str,
    ) -> None:
        self.name = name
        self._world = world
        self._rng = random.Random(f"{world.seed}-{name}")
        self._topics = topics
        self._records = records
        self._group = group
        self._bootstrap = bootstrap
        self._life = 0
        self._floor: dict[TopicPartition, int] = {}
        """What was committed when the present rebalance began, or before."""
        self._consumer: Consumer | None = None

    async def run(self) -> None:
        """Until cancelled; a life ends in order, or as by `kill -9`."""
        while True:
            self._life += 1
            self._floor = {}
            with trio.CancelScope() as life:
                orderly = self._rng.random() < 0.5
                async with self._make_consumer() as self._consumer:
                    with trio.move_on_after(self._rng.choice([4.0, 10.0, 30.0])):
                        await self._work(self._consumer)
                    if not orderly:
                        self._world.network.drop(self._host, silently=True)
                        life.cancel()
                        await trio.lowlevel.checkpoint()
            await trio.sleep(self._rng.random())

    def _make_consumer(self) -> Consumer:
        assignors = [["range"], ["range"], ["cooperative-sticky"]]
        # All members of a world have the same taste, or they could not agree.
        taste = random.Random(f"{self._world.seed}-taste")
        return Consumer(
            self._bootstrap,
            topics=self._topics,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=taste.choice(assignors),
            session_timeout_ms=3000,
            heartbeat_interval_ms=500,
            max_poll_interval_ms=8000,
            request_timeout_ms=2000,
            default_api_timeout_ms=120_000,
            client_id=f"{self.name}-{self._life}",
            network=self._world.network.host(self._host),
            random=self._rng,
            on_assigned=self._assigned,
            on_revoked=self._let_go,
            on_lost=self._let_go,
        )

    @property
    def _host(self) -> str:
        return f"{self.name}-{self._life}"

    def _let_go(self, _: list[TopicPartition]) -> None:
        self._floor = dict(self._group.committed)

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        assert self._consumer is not None
        self._group.rebalances += 1
        for tp in partitions:
            self._group.own(self._consumer.generation, tp, f"{self.name}-{self._life}")
            position = self._consumer.position(*tp) or 0
            if position < self._floor.get(tp, 0):
                raise Violation(
                    f"{self.name} begins {tp} at {position}, {self._floor[tp]} was committed before"
                )

    async def _work(self, consumer: Consumer) -> None:
        while True:
            try:
                found = await consumer.poll(timeout_ms=500)
                for record in found:
                    tp = TopicPartition(record.topic, record.partition)
                    self._records.note_read(tp, record.offset, record.value or b"")
                    self._group.seen.setdefault(tp, set()).add(record.offset)
                if self._rng.random() < 0.3:
                    await self._commit(consumer)
            except HightideError:
                await trio.sleep(0.2)

    async def _commit(self, consumer: Consumer) -> None:
        """Everything that was handed out has been worked on."""
        offsets = {
            tp: position
            for tp in consumer.assignment()
            if (position := consumer.position(*tp)) is not None
        }
        await consumer.commit()
        self._group.commit(offsets)
