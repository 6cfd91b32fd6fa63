"""What a follower's decisions mean for its replica: records stored, a log cut, a pause.

Every function is one stretch without an `await`. An answer's bytes are all checked before any are
stored; a cut is durable before anything relies on it, and so is the recovery point below it, which
`lower_offsets` keeps: what is appended after a cut must not be taken for durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from hightide.protocol import messages as m
from hightide.protocol.errors import CorruptBatch, RemoteProtocolError
from hightide.protocol.records import BatchHeader, Buffer, check_crc, iter_batches
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.core.replication.follower import (
    Append,
    AskOffsets,
    Ignore,
    OwnLog,
    Pause,
    Step,
    Stop,
    Truncate,
    TruncateFully,
)
from hightide_broker.core.replication.text import show_step
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.sparing import SparingLog
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replica_events import cut
from hightide_broker.runtime.replication.troubles import advice
from hightide_broker.storage.log import Log, UnexpectedAppendOffset
from hightide_broker.storage.segment import SegmentDamage
from hightide_broker.trace.events import Tell, tell_nobody

log = logging.getLogger("hightide.follower")

STEPS_TOLD_MAX = 20
"""Lines of pauses and ends: after an election a thousand followers wait for their new leader."""


def own_log(replica: Replica) -> OwnLog:
    """What a follower compares with its leader; raises `Refused` while it is offline."""
    found = replica.log
    ends = found.epochs.end_offset_for
    return OwnLog(
        found.log_start,
        found.log_end,
        found.epochs.latest_epoch,
        lambda epoch: ends(epoch, found.log_end),
    )


def owes_sync(replica: Replica) -> bool:
    """Whether a fetch from the log end would acknowledge what is not on disk yet."""
    return replica.config.synced and replica.owes_records


def records_of(result: m.FetchResult, attachments: Sequence[memoryview]) -> Buffer:
    """The records of a result; raises `RemoteProtocolError` if they did not come."""
    number = result.records
    if number < 0:
        return b""
    if number >= len(attachments):
        raise RemoteProtocolError(
            f"records are attachment {number}, {len(attachments)} came with the answer"
        )
    return attachments[number]


class Following:
    """Carries out the steps of followers.

    `lower_offsets(partition, offset)` makes it durable that nothing above is.
    """

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        lower_offsets: Callable[[TopicPartition, int], None],
        tell: Tell = tell_nobody,
    ) -> None:
        self._now_ms = now_ms
        self._tell = tell
        self._lower_offsets = lower_offsets
        self._steps = SparingLog(log, lines_max=STEPS_TOLD_MAX)

    def take(
        self,
        replica: Replica,
        asked: m.FetchPartition,
        result: m.FetchResult,
        data: Buffer,
        now: float,
    ) -> Step:
        """Make what there is to make of a leader's answer; what was decided."""
        follower = replica.follower
        if follower is None or replica.offline:
            return Ignore()
        step = follower.on_result(asked, result, own_log(replica), now)
        return self.carry_out(replica, step, data, now)

    def carry_out(self, replica: Replica, step: Step, data: Buffer, now: float) -> Step:
        """Do what a step says; a failing disk makes another step of it."""
        follower = replica.follower
        assert follower is not None, f"{replica!r} does not follow"
        try:
            match step:
                case Append():
                    return self._append(replica, step, data)
                case Truncate() | TruncateFully():
                    return self._cut(replica, step)
                case Pause() | Stop():
                    told = (replica.name, show_step(step), step.why)
                    self._steps.write_at(now, logging.INFO, "%s %s: %s", *told)
                case AskOffsets() | Ignore():
                    pass
        except SegmentDamage as damage:
            replica.go_offline(advice(damage), damaged=True)
            return Stop(str(damage))
        except CorruptBatch as error:
            return follower.back_off(f"the leader sent damaged records: {error}", now)
        except DiskError as error:
            if error.full:
                replica.troubles.no_room(replica.tp, error)
                return follower.back_off(f"the disk is full: {error}", now)
            replica.go_offline(str(error))
            return Stop(str(error))
        finally:
            replica.tell(replica)
        return step

    def _append(self, replica: Replica, step: Append, data: Buffer) -> Step:
        """Store batches as the leader sent them, then take over its watermark and log start."""
        found = replica.log
        batches = _checked(data, replica.leader_epoch)
        if batches:
            restart = _where_to_restart(batches[0][0], found, step.log_start)
            if restart is not None:
                self._cut(replica, TruncateFully(restart))
                if replica.offline:
                    return Stop(replica.offline)
            replica.needs_sync = replica.needs_sync or replica.config.synced
            begins_epoch = batches[-1][0].leader_epoch > found.epochs.latest_epoch
            replica.needs_sync = replica.needs_sync or begins_epoch
        for header, batch in batches:
            self._store(replica, found, header, batch)
            if replica.offline:
                return Stop(replica.offline)
        committed = max(replica.committed.value, min(step.high_watermark, found.log_end))
        replica.committed.advance(committed)
        found.advance_log_start(min(step.log_start, committed))
        return step

    def _store(self, replica: Replica, found: Log, header: BatchHeader, batch: memoryview) -> None:
        now_ms, segments_before = self._now_ms(), found.segment_count
        try:
            found.append_as_follower(batch, header, now_ms=now_ms)
        except UnexpectedAppendOffset as error:
            raise CorruptBatch(str(error)) from error
        finally:
            if found.segment_count != segments_before:
                replica.rolled(found.segment_bases()[-1])
        replica.producers.update(header, now_ms=now_ms)
        replica.troubles.has_room(replica.tp)
        replica.traffic.replicated_in += len(batch)

    def _cut(self, replica: Replica, step: Truncate | TruncateFully) -> Step:
        """Cut the log, or drop all of it. A disk that fails in the middle takes the replica
        offline: it is not known what is left."""
        found, before = replica.log, replica.log.log_end
        last_epoch, watermark = found.epochs.latest_epoch, replica.high_watermark
        is_whole = isinstance(step, TruncateFully)
        target = step.offset if is_whole else found.end_after_cut(step.offset)
        if is_whole or target < before:
            self._lower_offsets(replica.tp, target)
        try:
            if is_whole:
                log.warning(
                    "%s begins again at %d, as its leader does",
                    replica.name,
                    target,
                    extra={"event": "following.begin_again"},
                )
                found.truncate_fully(target)
            elif found.truncate_to(step.offset) == before:
                return step
            log.info("%s was cut from %d to %d", replica.name, before, found.log_end)
            self._tell(cut(replica, before, last_epoch, watermark=watermark, is_whole=is_whole))
            replica.lower_watermark(found.log_end)
            replica.rebuild_producers(now_ms=self._now_ms())
        except DiskError as error:
            replica.go_offline(f"cutting it at {target} failed: {error}")
            return Stop(replica.offline)
        replica.committed.advance(max(replica.committed.value, found.log_start))
        # A sync that is under way counts for nothing once the log was cut.
        replica.needs_sync = replica.needs_sync or owes_sync(replica)
        return step


def _checked(data: Buffer, leader_epoch: int) -> list[tuple[BatchHeader, memoryview]]:
    """The whole batches of an answer; raises `CorruptBatch` if any is damaged or out of order.

    Batches of a newer epoch than the one that was fetched in are left out, and all after them: the
    leader was overtaken while it answered (KAFKA-18723).
    """
    batches: list[tuple[BatchHeader, memoryview]] = []
    next_offset = 0
    for header, batch in iter_batches(data):
        check_crc(batch, header)
        if header.leader_epoch > leader_epoch:
            break
        if header.base_offset < next_offset:
            raise CorruptBatch(f"offset {header.base_offset} follows {next_offset - 1}")
        next_offset = header.next_offset
        batches.append((header, batch))
    return batches


def _where_to_restart(first: BatchHeader, found: Log, leader_start: int) -> int | None:
    """The leader's log begins inside its first batch, and all that is older is gone there: a log
    that ends inside that batch begins again with it."""
    straddles = first.base_offset < found.log_end < first.next_offset
    has_nothing_older = found.log_end == found.log_start or leader_start >= found.log_end
    return first.base_offset if straddles and has_nothing_older else None
