"""The operator of worlds in which nobody may be left who certainly has all that was committed.

Nobody may lead such a partition by itself, and `describe` says why. The operator has somebody
elected who may miss committed records, which must be the one that holds most of what is left. Where
two had to have a record before it was committed, and only one machine's disk is ever lost, nothing
is missed.
"""

from __future__ import annotations

import random

from hightide import Admin
from hightide.protocol.errors import HightideError
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.core.cluster.image import NO_LEADER, ClusterImage, PartitionState
from hightide_broker.simulation.workload import Records
from hightide_broker.simulation.world import World

SAYS = "no disk is left that certainly has all that was committed"


async def give_up_what_is_lost(world: World, records: Records, address: str) -> None:
    """Elect, uncleanly, where nobody is left who could lead otherwise. All machines run."""
    image = max((m.node.image for m in world.machines if m.node), key=lambda image: image.offset)
    lost = [
        (TopicPartition(topic.name, number), (topic.topic_id, number))
        for topic in image.topics.values()
        for number, state in enumerate(topic.partitions)
        if is_lost(state) and _all_are_there(image, state)
    ]
    if not lost:
        return
    network = world.network.host("salvor")
    async with Admin(address, network=network, random=random.Random("salvor")) as admin:
        for tp, key in lost:
            try:
                topic = await admin.describe_topic(tp.topic)
                said = topic.partitions[tp.partition]
                if said.leader >= 0 or said.elr or said.last_known_elr:
                    continue  # the broker that was asked does not know yet
                world.require(
                    SAYS in said.message,
                    f"{tp} has no leader, and all that is said is {said.message!r}",
                )
                _expect(world, records, tp, key)
                await admin.elect_leaders([tp], unclean=True)
            except HightideError:
                """Not yet: somebody has to say first what it holds."""


def is_lost(state: PartitionState) -> bool:
    """Whether nobody is eligible to lead, nor waited for."""
    return state.leader == NO_LEADER and not (state.elr or state.last_known_elr)


def _all_are_there(image: ClusterImage, state: PartitionState) -> bool:
    return all(image.is_active(broker) for broker in state.replicas)


def _expect(world: World, records: Records, tp: TopicPartition, key: tuple[str, int]) -> None:
    """What is left of a partition, on any disk; what lies above it is lost, and that is known."""
    left = [
        replica.log
        for machine in world.machines
        if machine.node is not None
        for replica in machine.node.replicas
        if (replica.topic_id, replica.partition) == key and not replica.offline
    ]
    replica_checker = world.checker.replica_checker
    committed, end = replica_checker.committed_end(key), replica_checker.give_up(key, left)
    world.require(
        end == committed or world.knobs.forlorn,
        f"{tp}: {committed} was committed, and {end} is left on any disk",
    )
    records.give_up(tp, end)
    world.given_up += 1
    world.story.tell(f"salvage: {tp} is given up above {end}")
