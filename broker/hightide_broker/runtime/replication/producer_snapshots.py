"""The idempotence window of a log: found again from what lies beside it and in it.

A snapshot of the producers lies beside each segment as of its beginning, and one where an orderly
stop left the log. Source: Kafka's ProducerStateManager.
"""

from __future__ import annotations

from hightide_broker.core.replication.producers import Producers, SnapshotDamaged
from hightide_broker.ports import DiskError
from hightide_broker.storage.log import Log


def keep_all(producers: Producers, log: Log) -> None:
    """Write down what is known where the log ends, unless it is, or is nothing; raises
    `DiskError`."""
    is_kept = log.producer_snapshots.newest == log.log_end
    is_nothing = log.segment_bases() == [log.log_end] and not len(producers)
    if not is_kept and not is_nothing:
        log.producer_snapshots.write(log.log_end, producers.snapshot())


def rebuild(producers: Producers, log: Log, *, now_ms: int) -> None:
    """The newest good snapshot, then the batches after it; also those that are there still, though
    nobody may read them any more. A segment whose snapshot is missing gets one: once those before
    it are deleted, nothing else tells of their producers. Raises `DiskError`, `SegmentDamage`."""
    producers.clear()
    start = _restore(producers, log)
    missing = {base for base in log.segment_bases() if base > start}
    if start < log.log_end:
        for header in log.headers(start):
            if header.base_offset in missing:
                keep(producers, log, header.base_offset)
            producers.update(header, now_ms=now_ms)


def keep(producers: Producers, log: Log, offset: int) -> None:
    """Write a snapshot, if there is room: without it the next start replays more. Raises
    `DiskError`."""
    try:
        log.producer_snapshots.write(offset, producers.snapshot())
    except DiskError as error:
        if not error.full:
            raise


def _restore(producers: Producers, log: Log) -> int:
    """Take in the newest good snapshot, and remove what is none; where its log goes on."""
    bases, snapshots = log.segment_bases(), log.producer_snapshots.offsets()
    start, dropped = bases[0], []
    for offset in reversed(snapshots):
        is_stray = offset not in bases and offset != snapshots[-1]
        if bases[0] <= offset <= log.log_end and not is_stray:
            try:
                producers.restore(log.producer_snapshots.read(offset))
                start = offset
                break
            except SnapshotDamaged:
                pass
        dropped.append(offset)
    if dropped:
        log.producer_snapshots.remove_durably(dropped)
    return start
