"""All replicas of this broker: made, opened, led and removed as the metadata says; and their
checkpoints.

`apply` carries out metadata changes in log order: deletions, then new replicas, then leaders. Logs
are opened and made in worker threads. Checkpoints are Kafka's text files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

from hightide.net.ports import WallClock
from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.config import BrokerConfig
from hightide_broker.config_keys import KEYS
from hightide_broker.core.cluster.changes import (
    AnyChange,
    ChangePartition,
    CreatePartition,
    RemoveTopic,
    SetConfig,
)
from hightide_broker.core.cluster.image import NO_LEADER, ClusterImage, PartitionState, TopicState
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.ports import Disk, DiskError, NodeMustStop
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.replication.at_work import AtWork
from hightide_broker.runtime.replication.checkpoints import Checkpoints
from hightide_broker.runtime.replication.fetcher import Fetchers
from hightide_broker.runtime.replication.isr import IsrChanges
from hightide_broker.runtime.replication.log_loader import NOWHERE, LogLoader
from hightide_broker.runtime.replication.replica import Replica, ReplicaInstrument, advice
from hightide_broker.storage.aside import clear_away, rename_for_delete
from hightide_broker.storage.segment import SegmentDamage
from hightide_broker.storage.sync_job import carry_out

log = logging.getLogger("hightide.replicas")

METADATA_DIRECTORY = "__cluster_metadata-0"
NO_SPACE_TRIES = 5  # at a time: files are made on the loop


class Replicas:
    """The replicas of one broker, by topic and partition."""

    def __init__(
        self,
        *,
        broker: int,
        config: BrokerConfig,
        directory: str,
        disk: Disk,
        clock: WallClock,
        syncer: Syncer,
        fetchers: Fetchers,
        isr_changes: IsrChanges,
        clean: bool,
        instrument: ReplicaInstrument | None = None,
    ) -> None:
        self.directory = directory
        self._broker = broker
        self._config = config
        self._defaults = config.topic_defaults()
        self._inflated_max = config.number("message.inflated.max.bytes")
        self._lag_max_s = config.seconds("replica.lag.time.max.ms")
        self._pause_max_s = config.seconds("replica.fetch.backoff.ms")
        self._disk = disk
        self._clock = clock
        self._syncer = syncer
        self._fetchers = fetchers
        self._isr_changes = isr_changes
        self._tell = partial(instrument.replica_changed, broker) if instrument else None
        self._active: dict[int, int] = {}
        """Brokers that are neither fenced nor stopping → their epochs; the leaders look at it."""
        self._by_name: dict[TopicPartition, Replica] = {}
        self._pending_delete: dict[str, None] = {}
        self._no_space: dict[TopicPartition, int] = {}
        """Replicas that wait for room on the disk, and how far their logs must reach."""
        self.at_work = AtWork()
        self._image = ClusterImage()
        self._broker_epoch = -1
        self.troubles = Watermark()
        """Rises when there is something that the controller should hear at once: a replica went
        offline, or nobody leads it."""
        self.checkpoints = Checkpoints(disk, directory)
        self._loader = LogLoader(disk, directory, self.checkpoints, clean=clean)

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, topic: str, partition: int, *, topic_id: str = "") -> Replica:
        """The replica; raises `Refused` if this broker has none, or of another topic id."""
        tp = TopicPartition(topic, partition)
        replica = self._by_name.get(tp)
        if replica is not None and tp in self._no_space:
            replica = self._try_again(replica)
        if replica is None:
            raise Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"this broker has no partition {partition} of topic {topic!r}",
            )
        if topic_id and topic_id != replica.topic_id:
            raise Refused(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"topic {topic!r} has id {replica.topic_id}, the request says {topic_id}",
            )
        return replica

    def _try_again(self, replica: Replica) -> Replica:
        """A replica whose files could not be made because the disk was full: is there room now?"""
        if (topic := self._image.topics_by_id.get(replica.topic_id)) is None:
            return replica  # it is about to be removed
        reach = self._no_space.pop(replica.tp)
        if replica.log_is_missing:
            replica = self._new_replica(topic, replica.partition, replica.config, must_reach=reach)
            self._by_name[replica.tp] = replica
        self._follow_state(replica, topic.partitions[replica.partition])
        return replica

    def mark_dirty(self, replica: Replica) -> None:
        """Have a replica synced if it needs it."""
        if replica.needs_sync:
            self._syncer.mark(replica)

    def mark_proposal(self, replica: Replica) -> None:
        """Have a leader's proposal sent to the controller, if there is one."""
        if replica.leader is not None and replica.leader.proposal is not None:
            self._isr_changes.mark(replica)

    def broker_epoch(self, broker: int) -> int:
        """The epoch of a broker's registration, -1 if it has none."""
        return self._image.broker_epoch(broker)

    def rack_of(self, broker: int) -> str:
        """Where a broker stands, empty if it does not say."""
        state = self._image.brokers.get(broker)
        return "" if state is None else state.rack

    def offline(self) -> list[c.OfflineReplica]:
        """The replicas that serve nobody, and will not by themselves."""
        return [
            c.OfflineReplica(topic_id=replica.topic_id, partition=replica.partition)
            for key, replica in self._by_name.items()
            if replica.offline and key not in self._no_space
        ]

    def leaderless(self) -> list[c.LeaderlessReplica]:
        """How far the logs reach that nobody leads."""
        return [
            c.LeaderlessReplica(
                topic_id=replica.topic_id,
                partition=replica.partition,
                last_epoch=replica.log.last_epoch,
                log_end=replica.log.log_end,
                leader_epoch=replica.leader_epoch,
            )
            for replica in self._by_name.values()
            if replica.leader is None and replica.follower is None and not replica.offline
        ]

    async def repair(self) -> None:
        """Let damaged replicas begin again with what is whole, where somebody else leads and nobody
        relies on them; and try what waits for room again: a follower is asked by nobody."""
        for key in list(self._no_space)[:NO_SPACE_TRIES]:
            if key in self._by_name:
                self._try_again(self._by_name[key])
            else:
                del self._no_space[key]
        for replica in self:
            if replica.is_damaged:
                await self.at_work.end(replica.tp)
                if self._may_repair(replica):
                    try:
                        await self._repair(replica)
                    except DiskError as error:
                        log.error("%s cannot be repaired now: %s", replica.name, error)

    def _may_repair(self, replica: Replica) -> bool:
        topic = self._image.topics_by_id.get(replica.topic_id)
        if topic is None or self._by_name.get(replica.tp) is not replica:
            return False
        state = topic.partitions[replica.partition]
        return not self._is_relied_on(state) and state.leader != NO_LEADER

    def _is_relied_on(self, state: PartitionState) -> bool:
        """Whether this broker may hold records that nobody else has."""
        return self._broker in (*state.isr, *state.elr, *state.last_known_elr, state.leader)

    async def _repair(self, replica: Replica) -> None:
        self.lower_offsets(replica, 0)
        log.warning("%s is cut where it is damaged: %s", replica.name, replica.offline)
        replica.close_log()
        topic, number = self._image.topics_by_id[replica.topic_id], replica.partition
        make = partial(self._new_replica, topic, number, replica.config, salvage=True)
        with self.at_work.on(TopicPartition(topic.name, number)):
            repaired = await self._disk.in_thread(make)
        if replica.topic_id not in self._image.topics_by_id:
            repaired.close_log()  # it was deleted meanwhile: its directory goes next
            return
        self._by_name[TopicPartition(topic.name, number)] = repaired
        topic = self._image.topics_by_id[replica.topic_id]
        repaired.update_config(self._topic_config(self._image, topic.name))
        self._follow_state(repaired, topic.partitions[number])

    def _must_reach(self, topic: TopicState, number: int) -> int:
        """Where the log of a replica ends at least that other replicas may rely on: at what was
        committed and on disk; `NOWHERE` if it need not even be there."""
        state, key = topic.partitions[number], TopicPartition(topic.name, number)
        if not self._is_relied_on(state) or not self.checkpoints.had_records(key):
            return NOWHERE
        if len(state.replicas) == 1:
            return 0  # whatever is left of it is all there is
        if not self._topic_config(self._image, topic.name).synced:
            return 0
        committed = self.checkpoints.high_watermarks.get(key, 0)
        if topic.synced_since < 0:
            return committed
        # Some of it may have counted before it had to be on disk.
        return min(committed, self.checkpoints.recovery_points.get(key, 0))

    # -- following the metadata ------------------------------------------------------------------

    def registered(self, broker_epoch: int) -> None:
        """The controller knows this process as `broker_epoch`; before anything is loaded."""
        self._broker_epoch = broker_epoch

    async def load(self, image: ClusterImage) -> None:
        """Open every replica the image assigns to this broker; directories of others are set
        aside."""
        self._see_brokers(image)
        self._warn_of_own_defaults(image)
        for topic in image.topics.values():
            for number, state in enumerate(topic.partitions):
                if self._broker in state.replicas:
                    await self._open_or_create(
                        image, topic, number, must_reach=self._must_reach(topic, number)
                    )
                    self._follow_state(self._by_name[TopicPartition(topic.name, number)], state)
        self.checkpoints.forget_all_but(self._by_name)
        ours = {METADATA_DIRECTORY, *(replica.name for replica in self)}
        self._pending_delete |= dict.fromkeys(clear_away(self._disk, self.directory, ours))

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
        for topic_id, number in touched:
            topic = image.topics_by_id[topic_id]
            state = topic.partitions[number]
            if self._broker in state.replicas:
                if TopicPartition(topic.name, number) not in self._by_name:
                    await self._open_or_create(image, topic, number)
                self._follow_state(self._by_name[TopicPartition(topic.name, number)], state)

    def _see_brokers(self, image: ClusterImage) -> None:
        """Raises `NodeMustStop` once another process is this broker: what is decided for that one
        must not be done here, where the disk is another one."""
        known = image.broker_epoch(self._broker)
        if known != self._broker_epoch:
            raise NodeMustStop(
                f"broker {self._broker} was registered by another process (epoch {known}, this one "
                f"has {self._broker_epoch}): this one was taken for dead, and stops"
            )
        self._image = image
        self._fetchers.image = image
        active = {b: state.epoch for b, state in image.brokers.items() if image.is_active(b)}
        if active != self._active:
            self._active.clear()
            self._active.update(active)
            # Whoever may not join an ISR any more is not waited for any more.
            for replica in self:
                replica.recompute()

    def _follow_state(self, replica: Replica, state: PartitionState) -> None:
        """Take the role that the metadata gives this broker."""
        if replica.offline:
            return
        try:
            if state.leader == self._broker:
                if state.leader_epoch > replica.leader_epoch:
                    replica.become_leader(
                        state,
                        broker=self._broker,
                        broker_epoch=self._broker_epoch,
                        active=self._active,
                        lag_max_s=self._lag_max_s,
                    )
                else:
                    replica.update_leader(state)
                self.mark_dirty(replica)
            elif state.leader_epoch > replica.leader_epoch:
                replica.become_follower(state, pause_max_s=self._pause_max_s)
                if replica.follower is None:
                    self.troubles.advance(self.troubles.value + 1)
                self.mark_dirty(replica)
                self._fetchers.follow(replica)
        except DiskError as error:
            if error.full:
                log.warning("%s waits for room on the disk: %s", replica.name, error)
                self._no_space[replica.tp] = NOWHERE
            else:
                log.error("%s is offline: %s", replica.name, error)
                replica.go_offline(str(error))

    def _topic_config(self, image: ClusterImage, topic: str) -> TopicConfig:
        return TopicConfig.of(image.topic_settings(topic), self._defaults)

    def _update_config(self, image: ClusterImage, topics: list[str]) -> None:
        configs = {topic: self._topic_config(image, topic) for topic in topics}
        for replica in self:
            config = configs.get(replica.topic)
            if config is not None:
                replica.update_config(config)
                self.mark_dirty(replica)

    def _warn_of_own_defaults(self, image: ClusterImage) -> None:
        """Say it where this node's file sets what the cluster has another record of."""
        for name in self._config.given:
            key, own = KEYS[name].topic_key, self._config.text(name)
            recorded = image.cluster_config.get(key, own)
            if recorded != own:
                log.warning(
                    "%s=%s is not used: in this cluster %s is %s (`hightide configs alter cluster` "
                    "changes it for all nodes)",
                    *(name, own, key, recorded),
                )

    async def _open_or_create(
        self, image: ClusterImage, topic: TopicState, number: int, *, must_reach: int = NOWHERE
    ) -> None:
        config = self._topic_config(image, topic.name)
        make = partial(self._new_replica, topic, number, config, must_reach=must_reach)
        self._by_name[TopicPartition(topic.name, number)] = await self._disk.in_thread(make)

    def _new_replica(
        self,
        topic: TopicState,
        number: int,
        config: TopicConfig,
        *,
        must_reach: int = NOWHERE,
        salvage: bool = False,
    ) -> Replica:
        """Open or make a replica; one that could not be is offline and says why. In a thread."""
        tp = TopicPartition(topic.name, number)
        opened = self._loader.open(topic, number, config, must_reach=must_reach, salvage=salvage)
        replica = Replica(
            topic.name,
            topic.topic_id,
            number,
            config=config,
            log=opened.log,
            high_watermark=self.checkpoints.high_watermarks.get(tp, 0),
            inflated_max=self._inflated_max,
            offline=opened.why,
            is_damaged=opened.is_damaged,
            troubles=self.troubles,
            tell=self._tell,
        )
        if opened.lacks_space:
            self._no_space[tp] = must_reach
        try:
            if not replica.offline:
                replica.rebuild_producers(now_ms=self._clock.now_ms())
        except SegmentDamage as damage:
            # What lies below the recovery point was not looked at when the log was opened.
            replica.offline, replica.is_damaged = advice(damage), True
        except DiskError as error:
            replica.offline = str(error)
        if replica.offline:
            replica.tell(replica)
        return replica

    async def _remove_topics(self, topic_ids: set[str]) -> None:
        """Stop serving deleted topics; their directories go later."""
        # Nobody may be at work in directories that are about to be renamed.
        await self.at_work.end(*self._of_topics(topic_ids))
        gone = self._of_topics(topic_ids)
        why = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        for key, replica in gone.items():
            del self._by_name[key]
            replica.resign(replica.leader_epoch, why)
            replica.close_log()
            replica.offline = "the topic was deleted"
        try:
            # Before the directories go: the next topic of this name is not held to these offsets.
            left = frozenset(self._by_name)
            await self._disk.in_thread(partial(self.checkpoints.forget_all_but, left))
        except DiskError as error:
            log.warning("what was kept of deleted topics goes later: %s", error)
        for replica in gone.values():
            try:
                path = rename_for_delete(self._disk, self.directory, replica.name, replica.topic_id)
                self._pending_delete[path] = None
            except DiskError as error:
                log.error("deleting %s failed, it is left behind: %s", replica.name, error)

    def _of_topics(self, topic_ids: set[str]) -> dict[TopicPartition, Replica]:
        return {key: each for key, each in self._by_name.items() if each.topic_id in topic_ids}

    async def delete_pending(self) -> None:
        """Delete the directories of deleted topics."""
        pending, self._pending_delete = self._pending_delete, {}
        for path in pending:
            try:
                # The new name first: a power cut must not bring back the old one, half empty.
                await self._disk.sync([], [self.directory])
                await self._disk.in_thread(partial(self._disk.remove_tree, path))
            except DiskError as error:
                log.warning("deleting %s failed, trying again later: %s", path, error)
                self._pending_delete[path] = None

    # -- checkpoints -----------------------------------------------------------------------------

    def lower_offsets(self, replica: Replica, offset: int) -> None:
        """A replica's log is about to be cut at `offset`; see `Checkpoints`."""
        self.checkpoints.lower_offsets(replica.tp, offset)

    async def checkpoint_high_watermarks(self) -> bool:
        """Keep the watermarks of all replicas; whether they are kept."""
        known = self.checkpoints.high_watermarks
        marks = {
            key: known.get(key, 0) if replica.offline else replica.high_watermark
            for key, replica in self._by_name.items()
        }
        return await self.checkpoints.keep_high_watermarks(marks)

    async def checkpoint_recovery_points(self) -> bool:
        """Keep what is durable, and the log starts, and say whether they are kept; indexes are
        written so that they need no rebuild."""
        known = self.checkpoints
        points: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        for replica in self:
            if replica.offline:
                # What is known of it must not be lost while it waits for repair.
                points[replica.tp] = known.recovery_points.get(replica.tp, 0)
                starts[replica.tp] = known.log_starts.get(replica.tp, 0)
                continue
            try:
                replica.log.flush_indexes()
            except DiskError as error:
                log.warning("writing the indexes of %s failed: %s", replica.name, error)
            points[replica.tp] = replica.log.synced_end
            if replica.log.log_start > 0:
                # Also where a segment begins: the segments before it may not be gone for good yet.
                starts[replica.tp] = replica.log.log_start
        return await known.keep_recovery_points(points, starts)

    async def sync_all(self) -> None:
        """Make everything written so far durable."""
        for replica in self:
            replica.needs_sync = True
            self._syncer.mark(replica)

    async def close(self) -> bool:
        """Flush and close all logs in order; whether every one of them is whole on disk."""
        whole = True
        for replica in self:
            if replica.offline:
                whole = False
                continue
            try:
                replica.log.write_snapshot(replica.log.log_end, replica.producers.snapshot())
                job = replica.log.finish()
                if job is not None:
                    await carry_out(job, self._disk)
                    replica.finish_sync(job)
            except DiskError as error:
                log.error("closing %s failed: %s", replica.name, error)
                whole = False
        whole = await self.checkpoint_high_watermarks() and whole
        whole = await self.checkpoint_recovery_points() and whole
        for replica in self:
            if not replica.offline:
                # What was appended meanwhile is in no checkpoint.
                whole = whole and replica.log.synced_end == replica.log.log_end
                replica.log.close()
        return whole
