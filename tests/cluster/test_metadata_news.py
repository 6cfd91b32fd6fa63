"""Every node learns of a committed change at once, not when its patience with the leader is over.

Goal: what one broker has made can be used through every other one a moment later. Method: a world
without faults on virtual time, so that the moment is exact: a few times the way between machines.
Every way takes the same, so that followers ask in the very moment in which there is news.
"""

import pytest
import trio

from hightide.protocol import messages as m
from hightide_broker.runtime.quorum.settings import FETCH_WAIT_MS
from hightide_broker.simulation.clients import Client, History
from hightide_broker.simulation.network import Weather
from hightide_broker.simulation.scheduler import run_seeded
from hightide_broker.simulation.world import Knobs, World

CHANGES = 25
MOMENT_S = 0.1
SETTLED_S = 30.0


async def until(true):
    with trio.fail_after(SETTLED_S):
        while not true():
            await trio.sleep(0.001)


def follow(world, offset):
    """Whether every machine has applied the metadata below an offset."""
    return all(
        machine.node is not None and machine.node.metadata_loader.applied.value >= offset
        for machine in world.machines
    )


async def delays_of_news(seed):
    """How long after each answer the last machine knew of the change."""
    knobs = Knobs(observers=1, weather=Weather(latency_s=0.001, jitter_s=0.0))
    world = World(seed, knobs=knobs)
    client, delays = Client(world, 1, History()), []
    async with trio.open_nursery() as nursery:
        for machine in world.machines:
            machine.start(nursery)
        await nursery.start(client.run)
        client.rest()
        await until(
            lambda: all(each.node and each.node.serving.is_set() for each in world.machines)
        )
        while len(delays) < CHANGES:
            new = m.NewTopic(topic=f"topic-{len(delays)}", partitions=1, replication_factor=1)
            answer = await client.ask(m.CreateTopicsRequest(topics=[new]))
            if answer is None:
                continue  # It was not the leader who was asked.
            assert answer.topics[0].error is None
            answered, end = trio.current_time(), world.leader().node.quorum.core.high_watermark
            await until(lambda end=end: follow(world, end))
            delays.append(trio.current_time() - answered)
            await trio.sleep(world.rng.random())
        nursery.cancel_scope.cancel()
    return delays


@pytest.mark.parametrize("seed", range(4))
def test_every_node_knows_a_committed_change_a_moment_after_the_answer(seed):
    assert MOMENT_S < FETCH_WAIT_MS / 1000 / 4
    delays = run_seeded(seed, lambda: delays_of_news(seed))
    assert len(delays) == CHANGES
    assert max(delays) < MOMENT_S
