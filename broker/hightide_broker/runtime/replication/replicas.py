"""The replicas of this broker, by topic and partition; what others must know of all of them, and
what is kept of all of them on disk.

`MetadataApplier` puts them here and takes them away.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, KeysView

import trio

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.ports import Disk, DiskError
from hightide_broker.runtime.base.measures import Histogram
from hightide_broker.runtime.base.syncer import Syncer
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.replication import producer_snapshots
from hightide_broker.runtime.replication.at_work import AtWork
from hightide_broker.runtime.replication.checkpoints import Checkpoints
from hightide_broker.runtime.replication.isr import IsrChanges
from hightide_broker.runtime.replication.recovering import Recovering
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.traffic import TrafficByTopic
from hightide_broker.runtime.replication.troubles import Troubles
from hightide_broker.storage.sync_job import carry_out
from hightide_broker.trace.events import Tell, tell_nobody

log = logging.getLogger("hightide.replicas")

FINISHED_AT_ONCE = 40
"""Logs that an orderly stop syncs at a time: the disk does many for little more than one."""


class Replicas:
    """The replicas in one data directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        syncer: Syncer,
        isr_changes: IsrChanges,
        tell: Tell = tell_nobody,
    ) -> None:
        self.directory = directory
        self.checkpoints = Checkpoints(disk, directory)
        self.at_work = AtWork()
        self.troubles = Troubles(tell)
        self.happened = tell
        """Where to tell what happens to a replica."""
        self.traffic = TrafficByTopic()
        self.feature_levels: dict[str, int] = {}
        """What may be stored: up to which level all brokers know each feature."""
        self._disk = disk
        self._syncer = syncer
        self.isr_changes = isr_changes
        self.isr_moves: Counter[str] = Counter()
        """How often replicas left the ISR of a partition that is led here (shrink), or joined."""
        self.cleaner_seconds = Histogram()
        """How long compactions took."""
        self.uncleaned: dict[TopicPartition, float] = {}
        """Of compacted partitions: the share of their bytes that waits for compaction, as it was
        when they were last looked at."""
        self.recovering = Recovering()
        self._by_tp: dict[TopicPartition, Replica] = {}
        self._changed: dict[TopicPartition, None] = {}

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._by_tp.values()))

    def __len__(self) -> int:
        return len(self._by_tp)

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._by_tp

    def __getitem__(self, tp: TopicPartition) -> Replica:
        return self._by_tp[tp]

    @property
    def partitions(self) -> KeysView[TopicPartition]:
        """Which partitions have a replica here."""
        return self._by_tp.keys()

    def get(self, topic: str, partition: int, *, topic_id: str = "") -> Replica:
        """The replica; raises `Refused` if this broker has none, or of another topic id."""
        replica = self._by_tp.get(TopicPartition(topic, partition))
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

    def of_topics(self, topic_ids: set[str]) -> list[Replica]:
        """The replicas of some topics."""
        return [each for each in self._by_tp.values() if each.topic_id in topic_ids]

    def put(self, replica: Replica) -> None:
        """From here on this is the partition's replica."""
        self._by_tp[replica.tp] = replica
        replica.traffic = self.traffic[replica.topic]
        self.changed(replica)

    def remove(self, replica: Replica) -> None:
        """The partition has no replica here any more."""
        del self._by_tp[replica.tp]
        self.uncleaned.pop(replica.tp, None)
        self._changed.pop(replica.tp, None)

    def changed(self, replica: Replica) -> None:
        """A replica has another role or another offset: who keeps a trace looks at it. A worker
        thread that loads one may say so, too."""
        self._changed[replica.tp] = None

    def take_changed(self) -> list[Replica]:
        """Those that changed since this was asked last."""
        found = list(self._changed)  # in one step, whatever threads say meanwhile
        self._changed.clear()
        return [self._by_tp[tp] for tp in found if tp in self._by_tp]

    def mark_dirty(self, replica: Replica) -> None:
        """Have a replica synced if it needs it."""
        if replica.needs_sync:
            self._syncer.mark(replica)

    def mark_proposal(self, replica: Replica) -> None:
        """Have a leader's proposal sent to the controller, if there is one."""
        if replica.leader is not None and replica.leader.proposal is not None:
            self.isr_changes.mark(replica)

    @property
    def news(self) -> Watermark:
        """Rises when there is something that the controller should hear at once: a replica went
        offline, or nobody leads it, or it is in sync and others may yet lead."""
        return self.troubles.count

    def offline(self) -> list[c.OfflineReplica]:
        """The replicas that serve nobody, and will not by themselves."""
        return [
            c.OfflineReplica(topic_id=replica.topic_id, partition=replica.partition)
            for replica in self._by_tp.values()
            if replica.offline and not replica.lacks_space
        ]

    @property
    def disk_failed(self) -> bool:
        """Whether the disk failed one of them: not for want of room, and nothing is damaged."""
        return any(
            replica.offline and not (replica.is_damaged or replica.lacks_space)
            for replica in self._by_tp.values()
        )

    def leaderless(self) -> list[c.LeaderlessReplica]:
        """How far the logs reach that nobody leads. Most replicas follow: that is asked first."""
        return [
            c.LeaderlessReplica(
                topic_id=replica.topic_id,
                partition=replica.partition,
                last_epoch=replica.log.last_epoch,
                log_end=replica.log.log_end,
                leader_epoch=replica.leader_epoch,
            )
            for replica in self._by_tp.values()
            if replica.follower is None and replica.leader is None and not replica.offline
        ]

    # -- what is kept ----------------------------------------------------------------------------

    async def checkpoint_high_watermarks(self) -> bool:
        """Keep the watermarks of all replicas; whether they are kept."""
        marks = {each.tp: each.high_watermark for each in self if not each.offline}
        return await self.checkpoints.keep_high_watermarks(marks, keep=self._waiting_for_repair())

    async def checkpoint_recovery_points(self) -> bool:
        """Keep what is durable, and the log starts, and say whether they are kept; indexes are
        written so that they need no rebuild."""
        points: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        for replica in self:
            if replica.offline:
                continue
            try:
                replica.log.flush_indexes()
            except DiskError as error:
                log.warning("writing the indexes of %s failed: %s", replica.name, error)
            points[replica.tp] = replica.log.synced_end
            if replica.log.log_start > 0:
                # Also where a segment begins: the segments before it may not be gone for good yet.
                starts[replica.tp] = replica.log.log_start
        keep = self._waiting_for_repair()
        return await self.checkpoints.keep_recovery_points(points, starts, keep=keep)

    def _waiting_for_repair(self) -> list[TopicPartition]:
        """What is known of these must not be lost meanwhile."""
        return [replica.tp for replica in self if replica.offline]

    async def sync_all(self) -> None:
        """Make everything written so far durable."""
        for replica in self:
            if not replica.offline and replica.log.has_unsynced:
                replica.needs_sync = True
                self._syncer.mark(replica)

    async def close(self) -> bool:
        """Flush and close all logs in order; whether every one of them is whole on disk."""
        left, whole = iter(list(self)), True

        async def finish_some() -> None:
            nonlocal whole
            for replica in left:
                whole = await self._finish(replica) and whole

        async with trio.open_nursery() as nursery:
            for _ in range(FINISHED_AT_ONCE):
                nursery.start_soon(finish_some)
        whole = await self.checkpoint_high_watermarks() and whole
        whole = await self.checkpoint_recovery_points() and whole
        for replica in self:
            if replica.offline:
                whole = False  # a sync that was under way may have failed meanwhile
            else:
                # What was appended meanwhile is in no checkpoint.
                whole = whole and replica.log.synced_end == replica.log.log_end
                replica.log.close()
        return whole

    async def _finish(self, replica: Replica) -> bool:
        """Write what a log keeps in memory and sync it; whether it is whole on disk."""
        if replica.offline:
            return False
        try:
            producer_snapshots.keep_all(replica.producers, replica.log)
            job = replica.log.finish()
            if job is not None:
                await carry_out(job, self._disk)
                replica.finish_sync(job)
        except DiskError as error:
            log.error("closing %s failed: %s", replica.name, error)
            return False
        return True
