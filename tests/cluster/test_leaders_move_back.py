"""Leaders move back to their preferred replicas by themselves: soon after a controller begins, and
every `leader.imbalance.check.interval.seconds` from then on.

Goal: a cluster that was stopped and started is not led by the node that stopped last for five
minutes. Method: simulated worlds.
"""

import trio
from small_worlds import in_world, until, until_led

from hightide.protocol import messages as m
from hightide_broker.core.cluster import partitions
from hightide_broker.runtime.cluster import controller
from hightide_broker.runtime.cluster.controller import REBALANCE_SOON_S

BROKERS, COUNT = 3, 9
START_S = 5.0
"""More than a node needs to start, and its replicas to be in sync."""


def topic():
    return m.CreateTopicsRequest(
        topics=[m.NewTopic(topic="t", partitions=COUNT, replication_factor=3)]
    )


async def led_by(world):
    """Of each partition, its leader and its preferred one."""
    image = (await until_led(world)).node.image
    (found,) = [each for each in image.topics.values() if each.name == "t"]
    return [(state.leader, state.replicas[0]) for state in found.partitions]


async def well_led(world):
    """How many partitions their preferred replica leads."""
    return sum(leader == preferred for leader, preferred in await led_by(world))


async def restarted(world):
    """A topic that all lead evenly, whose brokers stop one after the other, and start together."""
    leader, brokers = await until_led(world), world.machines[-BROKERS:]
    for machine in brokers:
        await machine.serves()
    await until(lambda: sum(map(leader.node.image.is_active, leader.node.image.brokers)) == BROKERS)
    await leader.node.controller.submit(topic())
    for machine in reversed(world.machines):
        await machine.stop()
    for machine in world.machines:
        machine.start_again()
    for machine in brokers:
        await machine.serves()
    await trio.sleep(START_S)


def test_a_cluster_that_was_stopped_is_led_evenly_soon_after_it_starts():
    async def body(world):
        await restarted(world)
        assert len({leader for leader, _ in await led_by(world)}) == 1, "who stopped last leads"
        await trio.sleep(REBALANCE_SOON_S)
        assert await well_led(world) == COUNT

    in_world(body, controllers=1, observers=BROKERS)


def test_more_than_may_move_at_once_move_one_lot_after_the_other(monkeypatch):
    at_once = 4
    monkeypatch.setattr(partitions, "REBALANCE_MAX", at_once)
    monkeypatch.setattr(controller, "REBALANCE_MAX", at_once)

    async def body(world):
        await restarted(world)
        well = await well_led(world)
        await trio.sleep(REBALANCE_SOON_S)
        while well < COUNT:
            now = await well_led(world)
            assert now == min(well + at_once, COUNT)
            well = now
            await trio.sleep(REBALANCE_SOON_S)

    in_world(body, controllers=1, observers=BROKERS)


def test_nobody_moves_where_that_is_switched_off():
    async def body(world):
        await restarted(world)
        before = await led_by(world)
        await trio.sleep(3 * REBALANCE_SOON_S)
        assert await led_by(world) == before

    in_world(body, controllers=1, observers=BROKERS, auto_leader_rebalance_enable="false")
