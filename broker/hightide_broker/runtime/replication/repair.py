"""Tries again what could not be done: replicas that are damaged, and those that lack space.

A damaged replica begins again with what is whole of it, where somebody else leads and nobody relies
on it. One whose files could not be made, or who could not lead because the disk was full, tries
again once a second.
"""

from __future__ import annotations

import logging
from functools import partial

import trio

from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.core.cluster.image import NO_LEADER
from hightide_broker.ports import Disk, DiskError
from hightide_broker.runtime.replication.log_loader import NOWHERE
from hightide_broker.runtime.replication.metadata_applier import MetadataApplier
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replica_events import repair_began, repair_ended
from hightide_broker.runtime.replication.replica_loader import ReplicaLoader
from hightide_broker.runtime.replication.replicas import Replicas

log = logging.getLogger("hightide.replicas")

EVERY_S = 1.0
FAILURES_MAX = 5
"""So many that lack space still, and the others are tried the next time."""


class Repair:
    """The second tries of one broker."""

    def __init__(
        self, replicas: Replicas, loader: ReplicaLoader, applier: MetadataApplier, *, disk: Disk
    ) -> None:
        self._replicas = replicas
        self._loader = loader
        self._applier = applier
        self._disk = disk
        self._tried: TopicPartition | None = None
        """The one that was tried last of those without space."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(EVERY_S)
            await self.look_once()

    async def look_once(self) -> None:
        """Once through all replicas."""
        await self._try_those_without_space()
        for replica in self._replicas:
            if replica.is_damaged:
                await self._replicas.at_work.end(replica.tp)
                if self._may_repair(replica):
                    try:
                        await self._repair(replica)
                    except DiskError as error:
                        log.error("%s cannot be repaired now: %s", replica.name, error)

    async def _try_those_without_space(self) -> None:
        """Each in its turn, so that one that needs much does not keep the others from trying."""
        waiting = [replica for replica in self._replicas if replica.lacks_space]
        tps = [replica.tp for replica in waiting]
        first = tps.index(self._tried) + 1 if self._tried in tps else 0
        failed = 0
        for replica in (*waiting[first:], *waiting[:first]):
            self._tried = replica.tp
            failed += not await self._has_space_now(replica)
            if failed == FAILURES_MAX:
                break

    async def _has_space_now(self, replica: Replica) -> bool:
        """Try again what there was no room for; whether there is now, or nobody needs it."""
        topic = self._applier.image.topics_by_id.get(replica.topic_id)
        if topic is None:
            return True  # it is about to be removed
        if replica.log_is_missing:
            replica = await self._load_again(replica, must_reach=replica.must_reach)
        else:
            self._applier.take_role(replica, topic.partitions[replica.partition])
        return not replica.lacks_space

    def _may_repair(self, replica: Replica) -> bool:
        topic = self._applier.image.topics_by_id.get(replica.topic_id)
        if topic is None or self._replicas[replica.tp] is not replica:
            return False
        state = topic.partitions[replica.partition]
        return not self._loader.is_relied_on(state) and state.leader != NO_LEADER

    async def _repair(self, replica: Replica) -> None:
        self._replicas.checkpoints.lower_offsets(replica.tp, 0)
        log.warning("%s is cut where it is damaged: %s", replica.name, replica.offline)
        self._replicas.happened(repair_began(replica))
        replica.close_log()
        self._replicas.happened(repair_ended(await self._load_again(replica, salvage=True)))

    async def _load_again(
        self, replica: Replica, *, must_reach: int = NOWHERE, salvage: bool = False
    ) -> Replica:
        """Another replica in the place of one that is offline; it takes its role."""
        topic, number = self._applier.image.topics_by_id[replica.topic_id], replica.partition
        load = partial(
            self._loader.load,
            *(topic, number, replica.config),
            must_reach=must_reach,
            salvage=salvage,
        )
        with self._replicas.at_work.on(replica.tp):
            loaded = await self._disk.in_thread(load)
        image = self._applier.image
        if replica.topic_id not in image.topics_by_id:
            loaded.close_log()  # it was deleted meanwhile: its directory goes next
            return loaded
        self._replicas.put(loaded)
        loaded.update_config(self._loader.topic_config(image, topic.name))
        self._applier.take_role(loaded, image.topics_by_id[replica.topic_id].partitions[number])
        return loaded
