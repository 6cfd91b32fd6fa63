"""Carries out what the metadata says, for the replicas of this broker.

Changes come in the order of the log: deletions first, then new replicas, then leaders and
followers. Logs are opened and made in worker threads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import trio

from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.changes import (
    AnyChange,
    ChangePartition,
    CreatePartition,
    RemoveTopic,
    SetConfig,
)
from hightide_broker.core.cluster.image import ClusterImage, PartitionState, TopicState
from hightide_broker.ports import Disk, DiskError, NodeMustStop
from hightide_broker.runtime.replication.fetcher import Fetchers
from hightide_broker.runtime.replication.known_brokers import KnownBrokers
from hightide_broker.runtime.replication.log_loader import NOWHERE
from hightide_broker.runtime.replication.pending_deletes import PendingDeletes
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replica_events import followed, led
from hightide_broker.runtime.replication.replica_loader import ReplicaLoader
from hightide_broker.runtime.replication.replicas import Replicas
from hightide_broker.storage.directory import METADATA_DIRECTORY

log = logging.getLogger("hightide.replicas")


SLICE = 64
"""Replicas that are made, or take other roles, before it is the turn of others."""
THREADS = 8
"""In which so many are made."""


class _Wanted(NamedTuple):
    """A partition of which this broker is to have a replica."""

    topic: TopicState
    number: int
    must_reach: int = NOWHERE

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.number)

    @property
    def state(self) -> PartitionState:
        return self.topic.partitions[self.number]


class MetadataApplier:
    """What a `MetadataLoader` tells of each step."""

    def __init__(
        self,
        replicas: Replicas,
        loader: ReplicaLoader,
        *,
        brokers: KnownBrokers,
        fetchers: Fetchers,
        pending_deletes: PendingDeletes,
        broker: int,
        config: BrokerConfig,
        disk: Disk,
    ) -> None:
        self.image = ClusterImage()
        """The newest metadata, carried out or about to be."""
        self._replicas = replicas
        self._loader = loader
        self._brokers = brokers
        self._fetchers = fetchers
        self._pending_deletes = pending_deletes
        self._broker = broker
        self._broker_epoch = -1
        self._carried_out = 0
        """Up to where the metadata is."""
        self._disk = disk
        self._lag_max_s = config.seconds(keys.REPLICA_LAG_TIME_MAX_MS)
        self._pause_max_s = config.seconds(keys.REPLICA_FETCH_BACKOFF_MS)

    def registered(self, broker_epoch: int) -> None:
        """The controller knows this process as `broker_epoch`; before anything is loaded."""
        self._broker_epoch = broker_epoch

    async def load(self, image: ClusterImage) -> None:
        """Open every replica the image assigns to this broker; directories of others are set
        aside."""
        self._see_brokers(image)
        self._loader.warn_of_own_defaults(image)
        ours = [
            _Wanted(topic, number, self._loader.must_reach(image, topic, number))
            for topic in image.topics.values()
            for number, state in enumerate(topic.partitions)
            if self._broker in state.replicas
        ]
        self._replicas.recovering.begin(await self._to_scan(ours))
        await self._have(image, ours)
        self._replicas.troubles.tell_leaderless()
        self._replicas.checkpoints.forget_all_but(self._replicas.partitions)
        names = [replica.name for replica in self._replicas]
        self._pending_deletes.keep_only([METADATA_DIRECTORY, *names])

    async def _to_scan(self, wanted: Sequence[_Wanted]) -> dict[TopicPartition, int]:
        def look() -> dict[TopicPartition, int]:
            return {each.tp: self._loader.bytes_to_scan(each.tp) for each in wanted}

        return await self._disk.in_thread(look)

    async def apply(self, image: ClusterImage, changes: Sequence[AnyChange]) -> None:
        """Carry out what `changes`, already replayed into `image`, mean for this broker."""
        self._see_brokers(image)
        removed = {change.topic_id for change in changes if isinstance(change, RemoveTopic)}
        if removed:
            await self._remove_topics(removed)
        touched: dict[tuple[str, int], None] = {}
        for change in changes:
            if (
                isinstance(change, CreatePartition | ChangePartition)
                and change.topic_id in image.topics_by_id
            ):
                touched[(change.topic_id, change.partition)] = None
            elif isinstance(change, SetConfig):
                concerned = [change.name] if change.kind == "topic" else list(image.topics)
                self._update_config(image, concerned)
        wanted = [_Wanted(image.topics_by_id[topic_id], number) for topic_id, number in touched]
        await self._have(image, [each for each in wanted if self._broker in each.state.replicas])
        self._replicas.troubles.tell_leaderless()
        if any(since > self._carried_out for *_, since in image.contested_of(self._broker)):
            self._replicas.troubles.contested()
        self._carried_out = image.offset

    def _see_brokers(self, image: ClusterImage) -> None:
        """Raises `NodeMustStop` once another process is this broker: what is decided for that one
        must not be done here, where the disk is another one."""
        registered = image.broker_epoch(self._broker)
        if registered != self._broker_epoch:
            raise NodeMustStop(
                f"broker {self._broker} was registered by another process (epoch {registered}, "
                f"this one has {self._broker_epoch}): this one was taken for dead, and stops"
            )
        self.image = image
        self._replicas.feature_levels = image.feature_levels()
        if self._brokers.update(image):
            # Who may not join an ISR any more is not waited for any more.
            for replica in self._replicas:
                replica.update_active(self._brokers.active)

    async def _have(self, image: ClusterImage, wanted: Sequence[_Wanted]) -> None:
        """Have these replicas, in the roles that the image gives them."""
        for start in range(0, len(wanted), SLICE):
            if start:
                await trio.lowlevel.checkpoint()
            some = wanted[start : start + SLICE]
            missing = [each for each in some if each.tp not in self._replicas]
            if missing:
                await self._make(image, missing)
            for each in some:
                self.take_role(self._replicas[each.tp], each.state)

    def take_role(self, replica: Replica, state: PartitionState) -> None:
        """Lead or follow, as the metadata says."""
        if replica.offline:
            return
        try:
            # A leader is concerned by each change of the ISR, a follower by another epoch alone.
            if state.leader == self._broker:
                self._lead(replica, state)
            elif state.leader_epoch > replica.leader_epoch:
                self._follow(replica, state)
            replica.lacks_space = False
            self._replicas.troubles.has_room(replica.tp)
        except DiskError as error:
            if error.full:
                self._replicas.troubles.no_room(replica.tp, error)
                replica.lacks_space = True
            else:
                replica.go_offline(str(error))

    def _lead(self, replica: Replica, state: PartitionState) -> None:
        if state.leader_epoch > replica.leader_epoch:
            replica.become_leader(
                state,
                broker=self._broker,
                broker_epoch=self._broker_epoch,
                active=self._brokers.active,
                lag_max_s=self._lag_max_s,
            )
            self._replicas.troubles.led(replica.name)
            self._replicas.happened(led(replica))
        else:
            left, joined = replica.update_leader(state)
            self._replicas.isr_moves["shrink"] += bool(left)
            self._replicas.isr_moves["expand"] += bool(joined)
        self._replicas.mark_dirty(replica)

    def _follow(self, replica: Replica, state: PartitionState) -> None:
        replica.become_follower(state, pause_max_s=self._pause_max_s)
        if replica.follower is None:
            self._replicas.troubles.leaderless(replica.name)
        else:
            self._replicas.troubles.led(replica.name)
        self._replicas.happened(followed(replica))
        self._replicas.mark_dirty(replica)
        self._fetchers.follow(replica)

    def _update_config(self, image: ClusterImage, topics: list[str]) -> None:
        configs = {topic: self._loader.topic_config(image, topic) for topic in topics}
        for replica in self._replicas:
            config = configs.get(replica.topic)
            if config is not None:
                replica.update_config(config)
                self._replicas.mark_dirty(replica)

    async def _make(self, image: ClusterImage, wanted: Sequence[_Wanted]) -> None:
        """Open or make replicas, in a few worker threads: names that are made durable side by side
        cost the disk little more than one."""
        names = {each.topic.name: None for each in wanted}
        configs = {name: self._loader.topic_config(image, name) for name in names}
        made: dict[TopicPartition, Replica] = {}

        def load(each: _Wanted) -> Replica:
            config = configs[each.topic.name]
            found = self._loader.load(each.topic, each.number, config, must_reach=each.must_reach)
            self._replicas.recovering.ended(each.tp)
            return found

        def load_all(some: Sequence[_Wanted]) -> list[Replica]:
            return [load(each) for each in some]

        async def load_some(some: Sequence[_Wanted]) -> None:
            made.update(
                (each.tp, each) for each in await self._disk.in_thread(partial(load_all, some))
            )

        async with trio.open_nursery() as nursery:
            for number in range(min(THREADS, len(wanted))):
                nursery.start_soon(load_some, wanted[number::THREADS])
        for each in wanted:
            self._replicas.put(made[each.tp])

    async def _remove_topics(self, topic_ids: set[str]) -> None:
        """Stop serving deleted topics; their directories go later."""
        replicas = self._replicas
        # Nobody may be at work in directories that are about to be renamed.
        await replicas.at_work.end(*(each.tp for each in replicas.of_topics(topic_ids)))
        gone = replicas.of_topics(topic_ids)
        why = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        for replica in gone:
            replicas.remove(replica)
            replicas.troubles.forget(replica.tp)
            replica.resign(replica.leader_epoch, why)
            replica.close_log()
            replica.offline = "the topic was deleted"
        try:
            # Before the directories go: the next topic of this name is not held to these offsets.
            left = frozenset(replicas.partitions)
            await self._disk.in_thread(partial(replicas.checkpoints.forget_all_but, left))
        except DiskError as error:
            log.warning("what was kept of deleted topics goes later: %s", error)
        for replica in gone:
            self._pending_deletes.add(replica)
