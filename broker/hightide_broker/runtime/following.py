"""What a follower's decisions mean for its replica: records stored, a log cut, a pause.

Every function is one stretch without an `await`. Bytes from the leader are checked before they are
stored; a cut is durable before anything relies on it, and so is the recovery point below it, which
`lower_recovery_point` keeps: what is appended after a cut must not be taken for durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from hightide import messages as m
from hightide.errors import CorruptBatch
from hightide.records import BatchHeader, Buffer, check_crc, iter_batches
from hightide_broker.core.follower import (
    Append,
    AskOffsets,
    Ignore,
    OwnLog,
    Pause,
    StartAnew,
    Step,
    Stop,
    Truncate,
)
from hightide_broker.ports import DiskError
from hightide_broker.runtime.replica import Replica
from hightide_broker.storage.log import Log, UnexpectedAppendOffset
from hightide_broker.storage.segment import SegmentDamage

log = logging.getLogger("hightide.follower")


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
    return replica.config.synced and replica.log.synced_end < replica.log.log_end


class Following:
    """Carries out the steps of followers.

    `lower_recovery_point(replica, offset)`: whether it is durable that nothing above is.
    """

    def __init__(
        self, *, now_ms: Callable[[], int], lower_recovery_point: Callable[[Replica, int], bool]
    ) -> None:
        self._now_ms = now_ms
        self._lower_recovery_point = lower_recovery_point

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
                    self._append(replica, step, data)
                case Truncate() | StartAnew():
                    if not self._cut(replica, step):
                        return follower.back_off("a checkpoint is being written", now)
                case Pause() | Stop():
                    log.info("%s waits: %s", replica.name, step.why)
                case AskOffsets() | Ignore():
                    pass
        except SegmentDamage as damage:
            replica.go_offline(f"{damage}; `hightide log verify` lists the damage")
            return Stop(str(damage))
        except CorruptBatch as error:
            return follower.back_off(f"the leader sent damaged records: {error}", now)
        except DiskError as error:
            if error.full:
                return follower.back_off(f"the disk is full: {error}", now)
            replica.go_offline(str(error))
            return Stop(str(error))
        return step

    def _append(self, replica: Replica, step: Append, data: Buffer) -> None:
        """Store batches as the leader sent them, then take over its watermark and log start.

        Batches of a newer epoch than the one that was fetched in are left out, and all after them:
        the leader was overtaken while it answered (KAFKA-18723).
        """
        found = replica.log
        try:
            for header, batch in iter_batches(data):
                check_crc(batch, header)
                if header.leader_epoch > replica.leader_epoch:
                    break
                self._store(replica, found, header, batch)
        finally:
            replica.needs_sync = replica.needs_sync or replica.config.synced
        committed = max(replica.committed.value, min(step.high_watermark, found.log_end))
        replica.committed.advance(committed)
        found.advance_log_start(min(step.log_start, committed))

    def _store(self, replica: Replica, found: Log, header: BatchHeader, batch: memoryview) -> None:
        now_ms, segments_before = self._now_ms(), found.segment_count
        try:
            found.append_as_follower(batch, header, now_ms=now_ms)
        except UnexpectedAppendOffset as error:
            raise CorruptBatch(str(error)) from error
        if found.segment_count != segments_before:
            replica.rolled(found, header)
        replica.producers.update(header, now_ms=now_ms)

    def _cut(self, replica: Replica, step: Truncate | StartAnew) -> bool:
        """Cut the log, or drop all of it; False: not now."""
        found, before = replica.log, replica.log.log_end
        anew = isinstance(step, StartAnew)
        target = step.offset if anew else found.end_after_cut(step.offset)
        if (anew or target < before) and not self._lower_recovery_point(replica, target):
            return False
        if anew:
            log.warning("%s begins anew at %d, the leader has nothing older", replica.name, target)
            found.truncate_fully(target)
        elif found.truncate_to(step.offset) == before:
            return True
        log.info("%s was cut from %d to %d", replica.name, before, found.log_end)
        replica.lower_watermark(found.log_end)
        replica.rebuild_producers(now_ms=self._now_ms())
        replica.committed.advance(max(replica.committed.value, found.log_start))
        return True
