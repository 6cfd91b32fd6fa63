"""What the tests of compaction share: one pass over a log by hand, and what its readers get.

No test lives here. `rewrite` does the worker thread's part of a pass and leaves the swap to the
caller, `clean` does both; `records_of` is what a reader gets, `folded` what it makes of it by key.
"""

from __future__ import annotations

from collections.abc import Iterable

from brokers import NOW_MS

from hightide.protocol.columns import Record, to_records
from hightide.protocol.records import BatchHeader, Buffer, iter_batches
from hightide_broker.ports import Disk
from hightide_broker.storage.cleaner import (
    CleanedSegment,
    clean_segments,
    last_producer_batches,
    learn_newest,
    plan_cleaning,
)
from hightide_broker.storage.log import Log

EVERY_AGE = 1 << 62


def rewrite(
    disk: Disk, log: Log, *, now_ms: int = NOW_MS, retention_ms: int = 1000
) -> list[CleanedSegment]:
    """Rewrite the closed segments of a log, all of which is committed; nothing is swapped yet."""
    plan = plan_cleaning(
        log, dirty_from=0, high_watermark=log.log_end, dirty_ratio=0.0, newest_ms=EVERY_AGE
    )
    assert plan is not None, f"{log!r} has no closed segment"
    newest, _ = learn_newest(log, plan)
    return clean_segments(
        disk,
        log,
        plan,
        newest,
        now_ms=now_ms,
        delete_retention_ms=retention_ms,
        last_batches=last_producer_batches(log, plan.until),
    )


def clean(disk: Disk, log: Log, *, now_ms: int = NOW_MS, retention_ms: int = 1000) -> int:
    """One whole pass; how many segments were swapped."""
    cleaned = rewrite(disk, log, now_ms=now_ms, retention_ms=retention_ms)
    for segment in cleaned:
        log.replace_segment(segment.base, segment.path)
    log.check_invariants()
    return len(cleaned)


def records_in(header: BatchHeader, batch: Buffer) -> list[Record]:
    """The records of one batch; raises `CorruptBatch` where a reader would."""
    return to_records(batch, header, "t", 0)


def records_of(log: Log) -> list[Record]:
    """Every record a reader gets who follows `next_offset` from the log's start."""
    found: list[Record] = []
    offset = log.log_start
    while (part := log.read(offset, max_bytes=1)) is not None:
        for header, batch in iter_batches(part.read()):
            found += records_in(header, batch)
        assert part.next_offset > offset, f"reading at {offset} does not go forward"
        offset = part.next_offset
    return found


def folded(records: Iterable[Record]) -> dict[bytes | None, bytes]:
    """The newest value of each key; deleted ones are not there."""
    state = {record.key: record.value for record in records}
    return {key: value for key, value in state.items() if value is not None}
