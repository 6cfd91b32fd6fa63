"""What a broker does on a timer: checkpoints, retention, compaction, forgetting silent producers.

Each chore is a loop of its own in the node's nursery; a chore that fails on a disk takes the
replica it worked on offline and goes on with the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from hightide.net.ports import WallClock
from hightide.protocol.errors import CorruptBatch, Refused
from hightide.protocol.words import counted
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.topic_keys import (
    DELETE_RETENTION_MS,
    FILE_DELETE_DELAY_MS,
    MIN_CLEANABLE_RATIO,
    MIN_COMPACTION_LAG_MS,
    RETENTION_BYTES,
    RETENTION_MS,
)
from hightide_broker.core.replication.retention import deletable
from hightide_broker.ports import Disk, DiskError
from hightide_broker.runtime.replication import producer_snapshots
from hightide_broker.runtime.replication.pending_deletes import PendingDeletes
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replicas import Replicas
from hightide_broker.runtime.replication.troubles import advice
from hightide_broker.storage.cleaner import (
    CleanedSegment,
    CleaningPlan,
    Unwanted,
    backlog_ratio,
    clean_segments,
    drop_cleaned,
    last_producer_batches,
    learn_newest,
    plan_cleaning,
)
from hightide_broker.storage.log import Log
from hightide_broker.storage.segment import SegmentDamage

log = logging.getLogger("hightide.housekeeping")


class Housekeeping:
    """The chores of one broker."""

    def __init__(
        self,
        replicas: Replicas,
        pending_deletes: PendingDeletes,
        *,
        config: BrokerConfig,
        disk: Disk,
        clock: WallClock,
    ) -> None:
        self._replicas = replicas
        self._pending_deletes = pending_deletes
        self._config = config
        self._disk = disk
        self._clock = clock
        self._deleted_segments: dict[str, int] = {}
        """Files of deleted segments → when they may go, ms."""

    async def run(self) -> None:
        """All chores, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_high_watermarks)
            nursery.start_soon(self._keep_recovery_points)
            nursery.start_soon(self._look_at_logs)

    async def _keep_high_watermarks(self) -> None:
        every_s = self._config.seconds(keys.REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS)
        last: dict[tuple[str, int], int] = {}
        while True:
            await trio.sleep(every_s)
            marks = {(r.topic, r.partition): r.high_watermark for r in self._replicas}
            if marks != last:
                await self._replicas.checkpoint_high_watermarks()
                last = marks

    async def _keep_recovery_points(self) -> None:
        every_s = self._config.seconds(keys.LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS)
        while True:
            await trio.sleep(every_s)
            await self._replicas.sync_all()
            await self._replicas.checkpoint_recovery_points()

    async def _look_at_logs(self) -> None:
        every_s = self._config.seconds(keys.LOG_RETENTION_CHECK_INTERVAL_MS)
        while True:
            await trio.sleep(every_s)
            await self.look_once()

    async def look_once(self) -> None:
        """One round over all replicas."""
        await self._pending_deletes.carry_out()
        await self._remove_files()
        for replica in self._replicas:
            if replica.offline:
                continue
            try:
                expiry_ms = self._config[keys.PRODUCER_ID_EXPIRATION_MS]
                replica.producers.expire(before_ms=self._clock.now_ms() - expiry_ms)
                self.apply_retention(replica)
                if replica.config.is_compacted:
                    self._note_backlog(replica)
                    if await self.compact(replica):
                        self._note_backlog(replica)
                else:
                    self._replicas.uncleaned.pop(replica.tp, None)
            except DiskError as error:
                log.error("%s: %s", replica.name, error)
                if not error.full:
                    replica.go_offline(str(error))
            except Refused as refusal:
                log.info(
                    "%s was closed meanwhile: %s",
                    replica.name,
                    refusal.message,
                    extra={"event": "housekeeping.closed_meanwhile"},
                )
            except SegmentDamage as damage:
                log.error(
                    "%s: compaction met damage: %s",
                    replica.name,
                    damage,
                    extra={"event": "housekeeping.damage"},
                )
                replica.go_offline(advice(damage), damaged=True)
            except CorruptBatch as error:
                # Its bytes are as they were stored, and nobody can read what is in them.
                log.error(
                    "%s cannot be compacted: %s",
                    replica.name,
                    error,
                    extra={"event": "housekeeping.compaction_failed"},
                )

    async def _remove_files(self) -> None:
        """Remove the files of deleted segments whose time has come."""
        now_ms = self._clock.now_ms()
        for path in [path for path, due_ms in self._deleted_segments.items() if due_ms <= now_ms]:
            try:
                await self._disk.in_thread(partial(self._disk.remove, path))
            except DiskError as error:
                log.warning("%s, trying again later", error)
                continue
            del self._deleted_segments[path]

    def apply_retention(self, replica: Replica) -> int:
        """Delete a replica's old segments; how many went. A follower deletes what its leader has
        deleted, and decides nothing."""
        config, leads = replica.config, replica.leader is not None
        count = deletable(
            replica.log.segments,
            log_start=replica.log.log_start,
            high_watermark=replica.high_watermark,
            now_ms=self._clock.now_ms(),
            retention_ms=config[RETENTION_MS] if config.is_deleted and leads else -1,
            retention_bytes=config[RETENTION_BYTES] if config.is_deleted and leads else -1,
        )
        # What is known of producers outlives their records.
        if count == replica.log.segment_count and not _has_rolled(replica):
            count -= 1
        start = replica.log.segment_bases()[count]
        if start > max(replica.log.producer_snapshots.newest, 0):
            # A roll that found no room, or was killed, has left no snapshot.
            producer_snapshots.keep(replica.producers, replica.log, replica.log.log_end)
        if count == 0:
            return 0
        before = replica.log.size_bytes
        renamed = replica.log.delete_segments(count)
        replica.traffic.deleted_bytes["retention"] += before - replica.log.size_bytes
        replica.tell_of_deletions()
        segments = counted(count, "segment")
        log.info("%s: %s deleted, starts at %d", replica.name, segments, replica.log.log_start)
        due_ms = self._clock.now_ms() + config[FILE_DELETE_DELAY_MS]
        self._deleted_segments.update(dict.fromkeys(renamed, due_ms))
        return count

    def _note_backlog(self, replica: Replica) -> None:
        if replica.tp in self._replicas:  # it may have been deleted while it was compacted
            share = backlog_ratio(replica.log, dirty_from=self._dirty_from(replica))
            self._replicas.uncleaned[replica.tp] = share

    def _dirty_from(self, replica: Replica) -> int:
        """Where what was not compacted yet begins."""
        cleaned = self._replicas.checkpoints.cleaner_offsets.get(replica.tp, 0)
        return max(cleaned if cleaned <= replica.log.log_end else 0, replica.log.log_start)

    async def compact(self, replica: Replica) -> bool:
        """One pass of compaction over a replica; whether there was anything to do."""
        key, at_work = replica.tp, self._replicas.at_work
        if key in at_work:
            return False  # it is repaired
        with at_work.on(key):
            try:
                return await self._compact(replica, partial(at_work.is_wanted, key))
            except Unwanted:
                told = "%s is compacted no further: its directory is needed"
                log.info(told, replica.name, extra={"event": "housekeeping.directory_needed"})
                return False

    async def _compact(self, replica: Replica, is_wanted: Callable[[], bool]) -> bool:
        config, key = replica.config, replica.tp
        now_ms = self._clock.now_ms()
        plan = plan_cleaning(
            replica.log,
            dirty_from=self._dirty_from(replica),
            # What replaces a record is to be on disk before that goes.
            high_watermark=min(replica.high_watermark, replica.log.synced_end),
            dirty_ratio=config[MIN_CLEANABLE_RATIO],
            newest_ms=now_ms - config[MIN_COMPACTION_LAG_MS],
        )
        if plan is None:
            return False
        retention_ms = config[DELETE_RETENTION_MS]
        work = partial(_clean, self._disk, replica.log, plan, now_ms, retention_ms, is_wanted)
        found, cuts, began = replica.log, replica.log.cut_count, trio.current_time()
        try:
            rewritten, until = await self._disk.in_thread(work)
        except (DiskError, SegmentDamage):
            if found.cut_count == cuts:
                raise
            # What it looked for is not there any more, or something else is.
        if found.cut_count != cuts:
            await self._disk.in_thread(partial(drop_cleaned, self._disk, found.directory))
            log.info(
                "%s was cut while it was compacted: again, later",
                replica.name,
                extra={"event": "housekeeping.compaction_put_off"},
            )
            return False
        before = replica.log.size_bytes
        for segment in rewritten:
            replica.log.replace_segment(segment.base, segment.path)
        replica.traffic.deleted_bytes["compaction"] += max(before - replica.log.size_bytes, 0)
        self._replicas.cleaner_seconds.observe(trio.current_time() - began)
        # What counts as cleaned must not be found uncleaned after a power cut.
        await self._disk.sync([], [replica.log.directory])
        if found.cut_count != cuts:
            return False  # and what comes there is not clean
        await self._replicas.checkpoints.keep_cleaner_offset(key, until)
        log.info("%s: compacted up to offset %d", replica.name, until)
        return True


def _has_rolled(replica: Replica) -> bool:
    """Whether the active segment can go, too: on a full disk those before it go first."""
    try:
        return replica.roll()
    except DiskError as error:
        if not error.full:
            raise
        return False


def _clean(
    disk: Disk,
    log_: Log,
    plan: CleaningPlan,
    now_ms: int,
    delete_retention_ms: int,
    is_wanted: Callable[[], bool],
) -> tuple[list[CleanedSegment], int]:
    """The worker thread's part: everything but the swap."""
    newest, plan = learn_newest(log_, plan, is_wanted=is_wanted)
    cleaned = clean_segments(
        disk,
        log_,
        plan,
        newest,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        last_batches=last_producer_batches(log_, plan.until),
        is_wanted=is_wanted,
    )
    return cleaned, plan.until
