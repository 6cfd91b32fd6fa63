"""A topic of a simulated world that is deleted and made again, over and over.

A broker that is away meanwhile finds another topic of the same name when it is back. However that
goes, the topic that there is holds nothing of those that there were, and takes records.
"""

from __future__ import annotations

import random

import trio

from hightide import Admin, Consumer, Producer
from hightide.protocol.errors import ApiError, ErrorCode, HightideError
from hightide_broker.simulation.quorum_checker import Violation
from hightide_broker.simulation.world import SimClock, World

CHURNED = 0.4
"""How many of the replicated worlds have such a topic."""
SHORT, LONG = "passing", "passing" + "-by" * 76
"""As long as a name may be, and too long for one with a suffix."""
RECORDS = 3


class Churn:
    """One topic, and somebody who cannot leave it alone."""

    def __init__(self, world: World, address: str, *, replicas: int) -> None:
        self._world = world
        self._rng = random.Random(f"churn-{world.seed}")
        self.is_on = self._rng.random() < CHURNED
        self._topic = self._rng.choice([SHORT, LONG])
        self._address = address
        self._replicas = replicas
        self._ending = trio.Event()
        self._ended = trio.Event()

    async def run(self) -> None:
        """Until told to end; then the last topic is looked at."""
        network = self._world.network.host("churner")
        async with Admin(self._address, network=network, random=self._rng) as admin:
            while not self._ending.is_set():
                await self._one_life(admin)
                with trio.move_on_after(self._rng.random() * 2):
                    await self._ending.wait()
            await self._last_life(admin)
        self._ended.set()

    async def end(self, within_s: float) -> None:
        """No more of it; raises `Violation` if the last topic is not as it should be."""
        self._ending.set()
        with trio.move_on_after(within_s):
            await self._ended.wait()
            return
        raise Violation(f"{self._topic[:8]} could not be made, filled and read in {within_s:g} s")

    async def _one_life(self, admin: Admin) -> None:
        try:
            await self._send(await self._make(admin))
            await admin.delete_topic(self._topic)
            self._world.story.tell("churn: the topic is deleted")
        except HightideError:
            """Something is in the way: it is there, or is not, and the next life will see."""

    async def _last_life(self, admin: Admin) -> None:
        while True:
            try:
                await self._delete(admin)
                topic_id = await self._make(admin)
                await self._send(topic_id)
                found = await self._read()
            except HightideError:
                await trio.sleep(0.2)
                continue
            values = [f"{topic_id} {number}".encode() for number in range(RECORDS)]
            if found != values:
                raise Violation(f"a topic that was made again holds {found}, expected {values}")
            return

    async def _delete(self, admin: Admin) -> None:
        try:
            await admin.delete_topic(self._topic)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise

    async def _make(self, admin: Admin) -> str:
        """The id of the topic that there is then."""
        try:
            await admin.create_topic(
                self._topic, partitions=1, replication_factor=self._replicas, configs={}
            )
            self._world.story.tell("churn: the topic is made")
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        return (await admin.describe_topic(self._topic)).topic_id

    async def _send(self, topic_id: str) -> None:
        async with Producer(
            self._address,
            acks="all",
            request_timeout_ms=2000,
            delivery_timeout_ms=4000,
            network=self._world.network.host("churner"),
            random=self._rng,
            clock=SimClock(),
        ) as producer:
            for number in range(RECORDS):
                value = f"{topic_id} {number}".encode()
                await (await producer.send(self._topic, value, partition=0))

    async def _read(self) -> list[bytes]:
        async with Consumer(
            self._address,
            partitions=[(self._topic, 0)],
            auto_offset_reset="earliest",
            request_timeout_ms=2000,
            default_api_timeout_ms=4000,
            network=self._world.network.host("churner"),
            random=self._rng,
        ) as consumer:
            found: list[bytes] = []
            while len(found) < RECORDS:
                found += [record.value or b"" for record in await consumer.poll(timeout_ms=2000)]
        return found
