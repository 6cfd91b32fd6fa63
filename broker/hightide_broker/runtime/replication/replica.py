"""One partition on this broker: its log, its producers, its role, and who waits for its offsets.

The one rule that everything here serves: decide and change in one stretch, without an `await`
between. `append` checks idempotence, writes, moves the log end and, where nothing has to be synced
first, the watermark; those who wait are woken by the `Watermark`s. A follower's records come as its
leader stored them, and so does its watermark. A failed disk takes this replica offline, and nothing
is acknowledged after that; a full disk refuses one append and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from hightide.protocol.codecs import Steps
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.messages import FetchPartition, FetchRequest
from hightide.protocol.records import BatchHeader
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.core.cluster.features import NO_LEVELS
from hightide_broker.core.cluster.image import NO_LEADER, PartitionState
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.replication import validation
from hightide_broker.core.replication.follower import Follower
from hightide_broker.core.replication.leader import UNKNOWN, Contact, Leader
from hightide_broker.core.replication.producers import Producers
from hightide_broker.core.replication.retention import start_after_deletion
from hightide_broker.core.replication.validation import Facts
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.watermark import Waker, Watermark
from hightide_broker.runtime.replication import producer_snapshots
from hightide_broker.runtime.replication.leadership import Leadership, moved
from hightide_broker.runtime.replication.log_loader import log_config
from hightide_broker.runtime.replication.traffic import Traffic
from hightide_broker.runtime.replication.troubles import Troubles, advice
from hightide_broker.storage.file_slice import FileSlice
from hightide_broker.storage.log import Log, OffsetOutOfRange
from hightide_broker.storage.segment import SegmentDamage
from hightide_broker.storage.sync_job import SyncJob

T = TypeVar("T")


class Appended(NamedTuple):
    """What became of a produced batch."""

    base_offset: int
    end_offset: int
    """The offset after it: acks=all waits for the watermark to reach this."""
    append_time_ms: int
    """-1 unless the broker set the timestamps."""
    is_repeated: bool = False
    """It is stored since an earlier request."""


class Replica:
    """A partition's replica; `log` is None while its files could not be opened."""

    def __init__(
        self,
        topic: str,
        topic_id: str,
        partition: int,
        *,
        config: TopicConfig,
        log: Log | None,
        high_watermark: int,
        inflated_max: int,
        offline: str = "",
        is_damaged: bool = False,
        lacks_space: bool = False,
        must_reach: int = -1,
        troubles: Troubles | None = None,
        tell: Callable[[Replica], None] | None = None,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.tp = TopicPartition(topic, partition)
        self.name = str(self.tp)
        """As its directory is called."""
        self.config = config
        self.offline = offline
        """Why this replica serves nobody; empty while it is online."""
        self.is_damaged = is_damaged
        """Offline because stored bytes are wrong: its leader's may take their place."""
        self.lacks_space = lacks_space
        """The disk was full when its log was to be made, or its role to be taken: tried again."""
        self.must_reach = must_reach
        """Where its log ends at least, if it is the one that was here before; -1: anywhere."""
        self.leadership: Leadership | None = None
        self.follower: Follower | None = None
        """Neither leader nor follower: nobody leads, as far as the metadata is known."""
        self.leader_epoch = -1
        self.producers = Producers()
        self.synced_as = "data"
        self.needs_sync = self.syncing = False
        self.log_is_missing = log is None
        self.troubles = troubles or Troubles()
        self.traffic = Traffic()
        self._log = log
        self.tell = tell or (lambda _: None)
        """Told of each change of role or offset, and when it goes offline: `ReplicaInstrument`."""
        self._inflated_max = inflated_max
        self._now = now
        start = min(max(high_watermark, log.log_start), log.log_end) if log else 0
        self.committed = Watermark(start)
        """The high watermark; closed for those who may not wait any longer."""
        self.synced_wake: Waker | None = None
        """Who waits for everything to be on disk: the fetch that will acknowledge it."""

    def __repr__(self) -> str:
        role = "leads" if self.leader else "follows" if self.follower else "idle"
        state = f"epoch={self.leader_epoch} watermark={self.committed.value}"
        return f"<Replica {self.name} {role} {state} {self._log!r}>"

    @property
    def leader(self) -> Leader | None:
        """What it decides as the leader; None while it is none."""
        return None if self.leadership is None else self.leadership.leader

    @property
    def log(self) -> Log:
        """The log; raises `Refused` KAFKA_STORAGE_ERROR while this replica is offline."""
        if self.offline or self._log is None:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline: {self.offline}")
        return self._log

    def close_log(self) -> None:
        """Release the files, offline or not."""
        if self._log is not None:
            self._log.close()

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed."""
        return self.committed.value

    # -- roles -----------------------------------------------------------------------------------

    def become_leader(
        self,
        state: PartitionState,
        *,
        broker: int,
        broker_epoch: int = UNKNOWN,
        active: Mapping[int, int] | None = None,
        lag_max_s: float = 30.0,
    ) -> None:
        """Lead in a new epoch. It begins at the log end, before anything is appended."""
        log = self.log
        log.epochs.assign(state.leader_epoch, log.log_end)
        self.leader_epoch = state.leader_epoch
        self.follower = None
        # Who waits for the watermark waits on: the log was not cut, what they wait for is in it.
        self._end_leadership(moved(self.name, state))
        leader = Leader(
            now=self._now(),
            broker=broker,
            broker_epoch=broker_epoch,
            epoch=state.leader_epoch,
            replicas=state.replicas,
            isr=state.isr,
            partition_epoch=state.partition_epoch,
            is_contested=state.is_contested,
            min_isr=self.config.min_isr,
            synced_counts=self.config.synced,
            lag_max_s=lag_max_s,
            active={} if active is None else active,
            epoch_start=log.log_end,
            log_end=log.log_end,
            synced_end=log.synced_end,
            high_watermark=self.committed.value,
        )
        self.leadership = Leadership(leader)
        self.needs_sync = True
        self.recompute()

    def update_leader(self, state: PartitionState) -> tuple[set[int], set[int]]:
        """Same epoch, another ISR: those who wait for more replicas than there are now hear so. Who
        left it, and who joined."""
        leadership = self.leadership
        assert leadership is not None, f"{self!r} does not lead"
        leader = leadership.leader
        before = set(leader.isr)
        facts = state.replicas, state.isr, state.partition_epoch
        leader.on_metadata(*facts, self._now(), is_contested=state.is_contested)
        self.recompute()
        left, joined = before - {*leader.isr}, {*leader.isr} - before
        if left:
            # A session holds what is in sync: who was taken out asks by itself, and so comes back.
            leadership.look_again()
        if not leader.has_enough:
            self._let_go(leader.too_few(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        self.tell(self)
        return left, joined

    def recompute(self) -> None:
        """Time passed, or brokers came and went: the watermark may have moved."""
        leadership, log = self.leadership, self._log
        if leadership is not None and log is not None:
            self._commit(leadership.leader.advance(self._now()))
            leadership.advance_deleted(log.log_start)
            self.tell(self)

    def update_active(self, active: Mapping[int, int]) -> None:
        """Other brokers may join an ISR now, and others are waited for (→ their epochs)."""
        if self.leader is not None:
            self.leader.on_brokers(active)
            self.recompute()

    def become_follower(self, state: PartitionState, *, pause_max_s: float = 1.0) -> None:
        """Follow the leader of the new epoch, if there is one; lead no more."""
        why = moved(self.name, state)
        self.resign(state.leader_epoch, why)
        if state.leader != NO_LEADER:
            self.follower = Follower(
                leader=state.leader, epoch=state.leader_epoch, pause_max_s=pause_max_s
            )
            # Its first fetch acknowledges the whole log: where that has to be on disk, sync it.
            self.needs_sync = self.config.synced
        self.tell(self)

    def resign(self, leader_epoch: int, why: Refused) -> None:
        """Lead and follow no more: everybody who waits for an offset gets `why`."""
        self._end_leadership(why)
        self.leadership = self.follower = None
        self.leader_epoch = leader_epoch
        self._let_go(why)

    def _let_go(self, why: Refused) -> None:
        self.committed = self.committed.followed_by(self.committed.value, why)

    def _end_leadership(self, why: Refused) -> None:
        if self.leadership is not None:
            self.leadership.end(why)

    def go_offline(self, why: str, *, damaged: bool = False) -> None:
        """Serve nobody any more; nothing that is not committed yet is acknowledged."""
        if not self.offline:
            self.offline, self.is_damaged, self.lacks_space = why, damaged, False
            self.troubles.offline(self.tp, self.leader_epoch, why, damaged=damaged)
            refusal = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline: {why}")
            self._end_leadership(refusal)
            self._let_go(refusal)
            self.tell(self)

    def update_config(self, config: TopicConfig) -> None:
        """Use a changed topic configuration from here on."""
        self.config = config
        if self._log is not None:
            self._log.update_config(log_config(config))
        if self.leader is not None:
            self.leader.use(min_isr=config.min_isr, synced_counts=config.synced)
            self.needs_sync = True
            self.recompute()
        elif self.follower is not None:
            self.needs_sync = config.synced

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise `Refused` if this replica is offline, or in another leader epoch than the asker."""
        _ = self.log  # an offline replica says so before anything else
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            older = current_leader_epoch < self.leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            why = f"leader epoch {current_leader_epoch}, here it is {self.leader_epoch}"
            raise Refused(code, f"{self.name}: {why}")

    def require_leader(self, current_leader_epoch: int = -1) -> Leader:
        """The leader's state; raises `Refused`."""
        return self.require_leadership(current_leader_epoch).leader

    def require_leadership(self, current_leader_epoch: int = -1) -> Leadership:
        """This epoch, if it is led here; raises `Refused`. Epochs are checked before leadership,
        as in Kafka."""
        self.check_epoch(current_leader_epoch)
        if self.leadership is None:
            why = f"this broker does not lead {self.name}"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, why)
        return self.leadership

    # -- writing ---------------------------------------------------------------------------------

    def looking_at(self, batch: memoryview) -> Steps[Facts]:
        """What has to be known of a batch that was sent, before it is appended; raises `Refused`.
        In steps of a few ms: it takes longer than a stretch may."""
        knows, most = self.producers.knows, self._inflated_max
        return validation.looking_at(batch, self.config, knows, inflated_max=most)

    def append(
        self,
        batch: memoryview,
        *,
        acks_all: bool,
        now_ms: int,
        facts: Facts | None = None,
        feature_levels: Mapping[str, int] = NO_LEVELS,
    ) -> Appended:
        """Store a producer's batch; one stretch without an await. `facts`: what `looking_at` found
        in it, if somebody did. `feature_levels`: what all brokers can read. Raises `Refused`."""
        log, leadership = self.log, self.require_leadership()
        leader = leadership.leader
        if acks_all:
            leader.refuse_if_too_few()
        header = validation.check_sent(batch) if facts is None else facts.header
        validation.check_form(header, feature_levels)
        known = self.producers.check(header)
        if known is not None:
            return Appended(known.base_offset, known.last_offset + 1, -1, is_repeated=True)
        header = validation.admit(
            batch, header, facts, self.config, now_ms=now_ms, inflated_max=self._inflated_max
        )
        append_time = now_ms if self.config.append_time else -1
        try:
            stored = self._write(batch, header, now_ms)
        except DiskError as error:
            raise self._storage_refusal(error) from error
        self.troubles.has_room(self.tp)
        self.traffic.in_records += header.record_count
        self.traffic.in_bytes += len(batch)
        self.producers.update(stored, now_ms=now_ms)
        begins_epoch = stored.base_offset == leader.epoch_start
        self.needs_sync = self.needs_sync or self.config.synced or begins_epoch
        leadership.appended.advance(log.log_end)
        self._commit(leader.on_append(log.log_end, self._now()))
        self.tell(self)
        return Appended(stored.base_offset, stored.next_offset, append_time)

    def _write(
        self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int
    ) -> BatchHeader:
        """Append to the log; raises `DiskError`. A segment that begins here has its snapshot before
        the batch is taken in, and also if that finds no room: the next batch rolls none."""
        segments_before = self.log.segment_count
        try:
            return self.log.append_as_leader(
                batch, header, leader_epoch=self.leader_epoch, now_ms=now_ms
            )
        finally:
            if self.log.segment_count != segments_before:
                self.rolled(self.log.segment_bases()[-1])

    def roll(self) -> bool:
        """Close the active segment; whether the producers are kept. Raises `DiskError`."""
        return self.rolled(self.log.roll())

    def keep_producers(self, offset: int) -> None:
        """Write down what is known of producers as of `offset`; raises `DiskError`."""
        self.log.producer_snapshots.write(offset, self.producers.snapshot())

    def rolled(self, base: int) -> bool:
        """A segment begins at `base`: keep the producers beside it, if that can be done; it is to
        be synced."""
        self.needs_sync = True
        try:
            self.keep_producers(base)
        except DiskError as error:
            # A missing snapshot costs a longer replay; the next start writes it.
            if not error.full:
                self.go_offline(str(error))
            return False
        return True

    def _storage_refusal(self, error: DiskError) -> Refused:
        if error.full:
            self.troubles.no_room(self.tp, error)
            return Refused(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the disk of this broker is full: {error}; nothing was stored, free some room",
            )
        self.go_offline(str(error))
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline: {self.offline}")

    # -- followers -------------------------------------------------------------------------------

    def fetched_by(
        self, request: FetchRequest, part: FetchPartition, contact: Contact | None
    ) -> None:
        """A follower fetched from an offset, and its log agrees with this one up to there."""
        leadership = self.leadership
        assert leadership is not None, f"{self!r} does not lead"
        watermark = leadership.leader.on_fetch(
            request.replica_id,
            part.fetch_offset,
            self._now(),
            log_start=part.log_start_offset,
            broker_epoch=request.replica_epoch,
            contact=contact,
        )
        self._commit(watermark)
        leadership.advance_deleted(self.log.log_start)
        self.tell(self)

    def _commit(self, watermark: int) -> None:
        """So far everybody in sync has it: who reads it from here on need not hurry."""
        log = self._log  # one that is offline says no to everybody
        if self.committed.advance(watermark) and log is not None and watermark == log.log_end:
            log.forget_tail()

    def lower_watermark(self, log_end: int) -> None:
        """The log was cut: nothing above its end is committed, whatever was heard before."""
        if self.committed.value > log_end:
            why = Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.name} was cut at {log_end}")
            self.committed = self.committed.followed_by(log_end, why)

    # -- syncing ---------------------------------------------------------------------------------

    @property
    def owes_records(self) -> bool:
        """Whether something was appended that is not on disk yet."""
        return self._log is not None and self._log.synced_end < self._log.log_end

    def begin_sync(self) -> SyncJob | None:
        """What is to be synced now; None if there is nothing, or nobody to sync."""
        self.needs_sync = False
        return None if self.offline or self._log is None else self._log.begin_sync()

    def finish_sync(self, job: SyncJob) -> None:
        """A sync came to its end: durable records count from here on."""
        if self.offline or self._log is None:
            return
        synced_end = self._log.finish_sync(job)
        if self.leader is not None:
            self._commit(self.leader.on_synced(synced_end, self._now()))
        if self.synced_wake is not None and synced_end == self._log.log_end:
            self.synced_wake.set()
            self.synced_wake = None
        self.tell(self)

    def rebuild_producers(self, *, now_ms: int) -> None:
        """Recompute the idempotence window from the log; raises `DiskError`, `SegmentDamage`."""
        producer_snapshots.rebuild(self.producers, self.log, now_ms=now_ms)

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self, offset: int, *, limit: int, max_bytes: int, at_least_one: bool
    ) -> FileSlice | None:
        """Batches below `limit`: the high watermark for a consumer, the log end for a follower.

        Raises `Refused`.
        """
        try:
            return self._read(offset, limit, max_bytes=max_bytes, at_least_one=at_least_one)
        except OffsetOutOfRange as error:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.name}: {error}") from error

    def _read(
        self, offset: int, limit: int, *, max_bytes: int, at_least_one: bool
    ) -> FileSlice | None:
        def look(log: Log) -> FileSlice | None:
            read = partial(
                log.read, offset, max_bytes=max_bytes, limit_offset=limit, at_least_one=at_least_one
            )
            try:
                return read()
            except SegmentDamage:
                # The way there may have led through a damaged index: build it again, once.
                log.rebuild_indexes_at(offset)
                return read()

        return self.ask_log(look)

    def ask_log(self, look: Callable[[Log], T]) -> T:
        """What `look` finds in the log. Raises `Refused`; what cannot be read takes this replica
        offline."""
        try:
            return look(self.log)
        except SegmentDamage as damage:
            self.go_offline(advice(damage), damaged=True)
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {damage}") from damage
        except DiskError as error:
            raise self._storage_refusal(error) from error

    def delete_records(self, offset: int) -> int:
        """Move the log start up to `offset` (-1: the high watermark); the log start then.

        The records are gone everywhere once `deleted` has reached it. Raises `Refused`.
        """
        leadership = self.require_leadership()
        log = self.log
        start = start_after_deletion(
            self.topic, self.partition, self.config, offset, high_watermark=self.committed.value
        )
        moved = log.advance_log_start(start)
        if moved:
            leadership.look_again()
        leadership.advance_deleted(log.log_start)
        self.tell(self)
        return log.log_start

    def tell_of_deletions(self) -> None:
        """The log begins later than before: followers that wait are told."""
        if self.leadership is not None:
            self.leadership.look_again()
        self.tell(self)
