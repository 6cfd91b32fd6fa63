"""A replica whose disk fails: those that wait for it go on at once, not with the next heartbeat.

Goal: as soon as a replica is offline the controller hears of it, so that a follower leaves the ISR
and a leader is followed by another one; a send with acks=all takes about as long as ever. Method:
three whole nodes of the simulation on virtual time, whose heartbeats are half a minute apart and
whose followers may lag for a whole one; the disk of one of them fails for one partition.
"""

from __future__ import annotations

import random

import pytest
import trio

from hightide import Admin, Producer
from hightide_broker.simulation.network import Weather
from hightide_broker.simulation.scheduler import run_seeded
from hightide_broker.simulation.workload import bootstrap_of
from hightide_broker.simulation.world import Knobs, SimClock, World

HEARTBEAT_S = 30.0
SOON_S = 1.0
"""Far less than a heartbeat, and far more than a few messages take."""
PATIENCE_MS = 250_000
CONFIG = {
    "broker.heartbeat.interval.ms": f"{HEARTBEAT_S:.0f}s",
    "broker.session.timeout.ms": "120s",
    "replica.lag.time.max.ms": "60s",
    "replica.high.watermark.checkpoint.interval.ms": "600s",
    "log.flush.offset.checkpoint.interval.ms": "600s",
    "log.retention.check.interval.ms": "600s",
}
PARTITIONS = 6
BESIDE = pytest.mark.parametrize("is_controller", [True, False])
SEED = 1
FAILURES = pytest.mark.parametrize("operation", ["write", "sync"])


class Three:
    """Three combined nodes with a topic `t`, and a producer that waits for all replicas."""

    def __init__(self, world, producer):
        self.world, self._producer = world, producer

    async def send(self, partition, count=1):
        """The virtual seconds until so many records, one by one, are acknowledged."""
        began = trio.current_time()
        for number in range(count):
            await (await self._producer.send("t", b"%d" % number, partition=partition))
        return trio.current_time() - began

    def state(self, partition):
        """A partition, as the active controller's node knows it."""
        return self.world.leader().node.image.topics["t"].partitions[partition]

    def find(self, *, leads, is_controller):
        """A partition, and the machine of its leader or of a follower: beside the active
        controller, or not."""
        controller = self.world.leader().id
        return next(
            (partition, machine)
            for partition in range(PARTITIONS)
            for machine in self.world.machines
            if (self.state(partition).leader == machine.id) == leads
            and (machine.id == controller) == is_controller
        )


async def in_three(body, **over):
    """Run `body` in a calm world in which everybody is in sync."""
    knobs = Knobs(
        controllers=3,
        combined=True,
        config=CONFIG | over,
        weather=Weather(latency_s=0.0005, jitter_s=0.0),
    )
    world = World(1, knobs=knobs)
    facts = {"network": world.network.host("client"), "random": random.Random(1)}
    async with trio.open_nursery() as nursery:
        for machine in world.machines:
            machine.start(nursery)
        for machine in world.machines:
            await machine.serves()
        address = bootstrap_of(world)
        producing = Producer(
            address,
            acks="all",
            request_timeout_ms=PATIENCE_MS,
            delivery_timeout_ms=PATIENCE_MS,
            clock=SimClock(),
            **facts,
        )
        async with Admin(address, **facts) as admin, producing as producer:
            configs = {"min.insync.replicas": "2"}
            await admin.create_topic(
                "t", partitions=PARTITIONS, replication_factor=3, configs=configs
            )
            found = Three(world, producer)
            for partition in range(PARTITIONS):
                assert await found.send(partition) < SOON_S
            await trio.sleep(HEARTBEAT_S / 10)
            await body(found)
        nursery.cancel_scope.cancel()


@FAILURES
@BESIDE
def test_a_follower_whose_disk_fails_is_not_waited_for(operation, is_controller):
    async def body(at):
        partition, victim = at.find(leads=False, is_controller=is_controller)
        victim.disk.fail(operation, f"/t-{partition}/")
        assert await at.send(partition, 20) < SOON_S
        assert victim.id not in at.state(partition).isr
        assert len(at.state(partition).isr) == 2

    run_seeded(SEED, lambda: in_three(body))


@FAILURES
@BESIDE
def test_a_leader_whose_disk_fails_is_followed_by_another_one(operation, is_controller):
    async def body(at):
        partition, victim = at.find(leads=True, is_controller=is_controller)
        victim.disk.fail(operation, f"/t-{partition}/")
        assert await at.send(partition, 20) < SOON_S
        assert victim.id not in at.state(partition).isr
        assert at.state(partition).leader != victim.id

    run_seeded(SEED, lambda: in_three(body))


@FAILURES
def test_a_disk_that_fails_for_all_that_a_broker_follows_holds_up_none_of_it(operation):
    async def body(at):
        _, victim = at.find(leads=False, is_controller=False)
        followed = [p for p in range(PARTITIONS) if at.state(p).leader != victim.id]
        assert len(followed) > 1
        victim.disk.fail(operation, "/t-")
        for partition in followed:
            assert await at.send(partition) < SOON_S
        assert {len(at.state(partition).isr) for partition in followed} == {2}

    run_seeded(SEED, lambda: in_three(body))
