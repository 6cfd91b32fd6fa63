"""What the tests of the quorum's driver share: small simulated worlds, and words for what they do.

No test lives here. The network is calm and no faults happen but those that a test makes.
"""

import trio

from hightide.net.connection import open_connection
from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, Refused
from hightide_broker.simulation.scheduler import run_seeded
from hightide_broker.simulation.world import CLUSTER_ID, PORT, Knobs, World

PATIENCE_S = 30.0


def in_world(body, *, seed=1, controllers=3, observers=0, **config):
    """Run `body(world)` while every machine runs; keys of the configuration have `_` for `.`."""
    told = {"request.timeout.ms": "5s"} | {k.replace("_", "."): v for k, v in config.items()}

    async def main():
        knobs = Knobs(controllers=controllers, observers=observers, config=told)
        world = World(seed, knobs=knobs)
        async with trio.open_nursery() as nursery:
            for machine in world.machines:
                machine.start(nursery)
            await body(world)
            nursery.cancel_scope.cancel()

    run_seeded(seed, main)


async def until(true, *, every_s=0.05):
    """Wait for something that is true; what it was, when it is."""
    with trio.fail_after(PATIENCE_S):
        while not (found := true()):
            await trio.sleep(every_s)
    return found


async def until_led(world):
    """The machine of the active controller."""
    return await until(world.leader)


def others(world, machine):
    """The voters but for one."""
    return [each for each in world.voters if each is not machine]


def isolate(world, machine):
    """Cut it off from every other machine, in both directions."""
    for other in world.machines:
        if other is not machine:
            world.network.cut(machine.name, other.name)
            world.network.cut(other.name, machine.name)


def epochs(world):
    """What each machine that runs holds for the epoch."""
    return {each.id: each.node.quorum.core.epoch for each in world.machines if each.node}


def registration(broker, run="run-1"):
    return c.RegisterBrokerRequest(
        broker=broker, incarnation=run, cluster_id=CLUSTER_ID, host="nowhere", port=1
    )


def new_topic(name):
    return m.CreateTopicsRequest(
        topics=[m.NewTopic(topic=name, partitions=1, replication_factor=1)]
    )


async def outcome(function, *args):
    """What a call returns, or the refusal that it ends with."""
    try:
        return await function(*args)
    except (Refused, ApiError) as error:
        return error


async def ask(world, machine, request):
    """What a stranger is told: the body, or the refusal."""
    async with open_connection(world.network.host("stranger"), machine.name, PORT) as connection:
        answer = await outcome(lambda: connection.call(request, timeout_s=5))
    return answer[0] if isinstance(answer, tuple) else answer
