"""Clients of a simulated world: they change the cluster, and remember what they were told.

An answer is a fact; no answer is neither a yes nor a no. The brokers that these clients register
exist as registrations only.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import msgspec
import trio

from hightide.net.pool import ConnectionPool
from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST
from hightide.protocol.errors import HightideError, Refused
from hightide.protocol.wire import decode_body
from hightide_broker.core.cluster.features import KNOWN_LEVELS
from hightide_broker.simulation.world import CLUSTER_ID, PORT, World

CALL_TIMEOUT_S = 3.0
TOPICS_MAX = 12
BROKER_IDS = range(201, 205)


class History:
    """What the clients of a world were told."""

    def __init__(self) -> None:
        self.asked = 0
        self.answered = 0
        self.created: dict[str, str] = {}
        """Topic → id, of those that were acknowledged."""
        self.being_deleted: set[str] = set()
        """Topics that somebody tried to delete."""
        self.blocks: list[tuple[float, float, int, int]] = []
        """(asked at, answered at, first, count) of producer id blocks."""

    def check(self, world: World, topics: dict[str, str]) -> None:
        """Raise `Violation` unless the cluster is as the clients were told."""
        for topic, topic_id in sorted(self.created.items()):
            if topic not in self.being_deleted:
                found = topics.get(topic)
                world.require(
                    found == topic_id, f"topic {topic} was created as {topic_id}, is {found}"
                )
        blocks = sorted(self.blocks, key=lambda block: block[2])
        for (_, _, first, count), (_, _, following, _) in pairwise(blocks):
            world.require(
                first + count <= following, f"producer ids {following} were handed out twice"
            )
        for asked, _, first, _ in self.blocks:
            for _, answered, earlier, _ in self.blocks:
                world.require(
                    answered >= asked or earlier < first,
                    f"block {first} was handed out after {earlier}, and is below it",
                )


class Client:
    """One client, on a machine of its own that never fails."""

    def __init__(self, world: World, number: int, history: History) -> None:
        self._world = world
        self._name = f"client-{number}"
        self._rng = random.Random(f"{world.seed}-{self._name}")
        self._history = history
        self._incarnations = 0
        self._made = 0
        self._working = trio.CancelScope()
        self._brokers: dict[int, int] = {}

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            network = self._world.network.host(self._name)
            self._pool = ConnectionPool(network, nursery, client_id=self._name)
            task_status.started()
            with self._working:
                while True:
                    await trio.sleep(self._rng.expovariate(1 / self._world.knobs.think_s))
                    await self._act()
            await trio.sleep_forever()

    def rest(self) -> None:
        """Act no more by itself; `ask` still works."""
        self._working.cancel()

    async def _act(self) -> None:
        acts = [self._register, self._beat, self._create, self._delete, self._alter, self._allocate]
        await self._rng.choices(acts, [2, 4, 4, 2, 2, 3])[0]()

    async def ask(self, request: m.Message) -> Any:
        """The controller's answer; None if there was none, or a no."""
        history = self._history
        history.asked += 1
        api = API_BY_REQUEST[type(request)]
        envelope = c.EnvelopeRequest(
            api=api.name, body=msgspec.Raw(msgspec.msgpack.encode(request))
        )
        leader = self._world.leader()
        machine = self._rng.choice(self._world.voters)
        if leader is not None and self._rng.random() < 0.8:
            machine = leader
        with trio.move_on_after(CALL_TIMEOUT_S):
            try:
                connection = await self._pool.connection(machine.name, PORT)
                answer, _ = await connection.call(envelope, timeout_s=CALL_TIMEOUT_S)
            except (HightideError, Refused):
                return None
            history.answered += 1
            return decode_body(answer.body, api.response)
        return None

    async def register_again(self) -> Any:
        """A change that always writes; the answer, None if there is none."""
        self._incarnations += 1
        return await self.ask(
            c.RegisterBrokerRequest(
                broker=BROKER_IDS.stop,
                incarnation=f"{self._name}-{self._incarnations}",
                cluster_id=CLUSTER_ID,
                features=dict(KNOWN_LEVELS),
                host="fake",
                port=1,
            )
        )

    async def _register(self) -> None:
        self._incarnations += 1
        broker = self._rng.choice(BROKER_IDS)
        answer = await self.ask(
            c.RegisterBrokerRequest(
                broker=broker,
                incarnation=f"{self._name}-{self._incarnations}",
                cluster_id=CLUSTER_ID,
                features=dict(KNOWN_LEVELS),
                host=f"fake-{broker}",
                port=1,
                directory=f"disk-{self._rng.randrange(3)}",
                previous_broker_epoch=self._brokers.get(broker, -1),
            )
        )
        if answer is not None:
            self._brokers[broker] = answer.broker_epoch

    async def _beat(self) -> None:
        for broker, epoch in list(self._brokers.items()):
            await self.ask(
                c.BrokerHeartbeatRequest(
                    broker=broker,
                    broker_epoch=epoch,
                    metadata_offset=1 << 40,
                    want_shut_down=self._rng.random() < 0.1,
                )
            )

    async def _create(self) -> None:
        if len(self._history.created) - len(self._history.being_deleted) > TOPICS_MAX:
            return
        self._made += 1
        topic = f"{self._name}-{self._made}"
        new = m.NewTopic(
            topic=topic,
            partitions=self._rng.randrange(1, 4),
            replication_factor=self._rng.randrange(1, 3),
        )
        answer = await self.ask(m.CreateTopicsRequest(topics=[new]))
        if answer is not None and answer.topics[0].error is None:
            self._history.created[topic] = answer.topics[0].topic_id

    async def _delete(self) -> None:
        if self._history.created:
            topic = self._rng.choice(sorted(self._history.created))
            self._history.being_deleted.add(topic)
            await self.ask(m.DeleteTopicsRequest(topics=[topic]))

    async def _alter(self) -> None:
        if self._history.created:
            topic = self._rng.choice(sorted(self._history.created))
            change = m.ConfigChange(
                kind="topic",
                name=topic,
                set={"retention.ms": str(self._rng.randrange(1 << 30))},
                unset=["segment.bytes"],
            )
            await self.ask(m.AlterConfigsRequest(resources=[change]))

    async def _allocate(self) -> None:
        if self._brokers:
            broker = self._rng.choice(sorted(self._brokers))
            asked = trio.current_time()
            answer = await self.ask(
                c.AllocateProducerIdsRequest(broker=broker, broker_epoch=self._brokers[broker])
            )
            if answer is not None:
                block = (asked, trio.current_time(), answer.first, answer.count)
                self._history.blocks.append(block)
