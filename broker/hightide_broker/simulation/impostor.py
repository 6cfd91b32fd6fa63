"""Somebody in the network who says that he is a node: a stranger, or one node in another's name.

He sees everything, and acknowledges for a follower what it does not have. Where he is believed, the
watermark rises over records that are in one place only. In some of his worlds he speaks for voters
and brokers as well (`claims.py`): whom he is taken for stands for election, registers, beats, says
who is in sync. He tries without end, and has to be refused each time.
"""

from __future__ import annotations

import random

import trio

from hightide.net.connection import open_connection
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, ErrorCode, HightideError
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.simulation import claims
from hightide_broker.simulation.world import PORT, Machine, World

NAME = "impostor"
TRIES_S = 0.5
CALL_TIMEOUT_S = 2.0
SHARE = 0.15
"""The part of the worlds in which there is one."""
SHARE_OF_TALKERS = 0.5
"""In so many of his worlds he says whatever a node may say."""


class Impostor:
    """Somebody in a world who speaks for nodes that he is not."""

    def __init__(self, world: World, places: list[TopicPartition]) -> None:
        self._world = world
        self._places = places
        self._rng = random.Random(f"{NAME}-{world.seed}")
        self.is_on = self._rng.random() < SHARE
        self._choice = random.Random(f"{NAME}-claims-{world.seed}")
        self._talks = self._choice.random() < SHARE_OF_TALKERS

    async def run(self) -> None:
        """Try until cancelled."""
        while True:
            await trio.sleep(TRIES_S)
            for machine in self._world.machines:
                for replica in self._led_by(machine):
                    await self._acknowledge(machine, replica)
            if self._talks:
                await self._speak()

    def _led_by(self, machine: Machine) -> list[Replica]:
        found = [] if machine.node is None else list(machine.node.replicas)
        return [each for each in found if each.leader is not None and each.tp in self._places]

    async def _acknowledge(self, machine: Machine, replica: Replica) -> None:
        """In the name of each follower. The replica may end meanwhile, by its disk or by another
        leader: what was known of it then is told all the same."""
        leader = replica.leader
        if leader is None:
            return
        for follower in sorted(leader.remotes):
            others = [each.name for each in self._world.machines if each.id != follower]
            source = self._rng.choice([NAME, *others])
            if source == machine.name:
                continue
            part = m.FetchPartition(
                topic=replica.topic,
                partition=replica.partition,
                current_leader_epoch=leader.epoch,
                fetch_offset=leader.log_end,
            )
            request = m.FetchRequest(replica_id=follower, max_wait_ms=0, partitions=[part])
            await self._ask(source, machine, request)

    async def _speak(self) -> None:
        """To each node all that can be said in the name of some other one: about the quorum, and to
        the active controller about that one itself."""
        leader = self._world.leader()
        async with trio.open_nursery() as nursery:
            for machine in self._world.machines:
                if machine.node is None:
                    continue
                others = [each for each in self._world.machines if each is not machine]
                named = self._choice.choice(others)
                sources = [NAME, *(each.name for each in others if each is not named)]
                said = claims.about_the_quorum(machine.node.quorum, named.id)
                if machine is leader:
                    said += claims.to_the_controller(machine.node.image, named.id)
                for request in said:
                    nursery.start_soon(self._ask, self._choice.choice(sources), machine, request)

    async def _ask(self, source: str, machine: Machine, request: m.Message) -> None:
        network = self._world.network.host(source)
        with trio.move_on_after(CALL_TIMEOUT_S):
            try:
                async with open_connection(network, machine.name, PORT, client=NAME) as connection:
                    await connection.call(request, timeout_s=CALL_TIMEOUT_S)
            except ApiError as refused:
                expected = (
                    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                    ErrorCode.BROKER_NOT_AVAILABLE,
                )
                self._world.require(
                    refused.code in expected, f"{source} was refused with {refused.code}"
                )
            except HightideError:
                """It did not get through."""
