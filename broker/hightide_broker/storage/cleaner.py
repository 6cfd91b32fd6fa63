"""Log compaction: of each key only the newest record stays; tombstones go after a while.

Two passes over the closed segments below the high watermark: learn the newest offset of every key
in the part that has not been cleaned yet, then rewrite each segment without the records that a
newer one replaces. Offsets never change. A rewritten segment is complete beside the old one before
it takes its place (`Log.replace_segment`). A worker thread's work, except for that last step.
Source: Kafka's LogCleaner; KIP-534 for the delete horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hightide.protocol.codecs import INFLATED_BYTES_MAX
from hightide.protocol.columns import (
    AS_THEY_ARE,
    Columns,
    encode_columns,
    headers_of,
    keys_of,
    offsets_of,
    open_batch,
    timestamps_of,
    values_of,
)
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import (
    CODEC_MASK,
    DELETE_HORIZON,
    NO_PRODUCER_ID,
    TIMESTAMP_MAX,
    BatchHeader,
    encode_batch,
)
from hightide.protocol.rows import encode_rows
from hightide_broker.ports import Disk, DiskError
from hightide_broker.storage.indexing import rebuild_indexes
from hightide_broker.storage.log import Log
from hightide_broker.storage.segment import CLEANED, Segment, SegmentDamage

KEYS_MAX = 5_000_000
"""Keys remembered in one pass; what lies behind is cleaned in the next."""


class Unwanted(Exception):
    """The log is deleted: what is done for it is in vain."""


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """What one pass looks at: closed segments by base offset; offsets from `dirty_from` are new."""

    bases: tuple[int, ...]
    dirty_from: int
    until: int
    """The first offset that is not cleaned."""

    def up_to(self, offset: int) -> CleaningPlan:
        """The part of it below an offset."""
        bases = tuple(base for base in self.bases if base < offset)
        return CleaningPlan(bases, self.dirty_from, offset)


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A rewritten segment waiting to take its place."""

    base: int
    path: str


def plan_cleaning(
    log: Log, *, dirty_from: int, high_watermark: int, dirty_ratio: float, newest_ms: int
) -> CleaningPlan | None:
    """Whether compaction is worth it now, and over what.

    Segments count if they are closed, wholly below the watermark, and hold nothing younger than
    `newest_ms` (min.compaction.lag.ms before now).
    """
    closed = []
    for segment in log.segments[:-1]:
        if segment.next_base_offset > high_watermark or segment.max_timestamp > newest_ms:
            break
        closed.append(segment)
    if not closed or closed[-1].next_base_offset <= dirty_from:
        return None
    total = sum(segment.size for segment in closed)
    dirty = sum(segment.size for segment in closed if segment.next_base_offset > dirty_from)
    if total == 0 or dirty / total < dirty_ratio:
        return None
    bases = tuple(segment.base_offset for segment in closed)
    return CleaningPlan(bases, dirty_from, closed[-1].next_base_offset)


def backlog_ratio(log: Log, *, dirty_from: int) -> float:
    """Of the bytes in closed segments, the share that no compaction has looked at; 0: there are
    none. Source: Kafka's max-dirty-percent."""
    closed = log.segments[:-1]
    total = sum(segment.size for segment in closed)
    dirty = sum(segment.size for segment in closed if segment.next_base_offset > dirty_from)
    return dirty / total if total else 0.0


def _always() -> bool:
    return True


def learn_newest(
    log: Log, plan: CleaningPlan, *, is_wanted: Callable[[], bool] = _always
) -> tuple[dict[bytes, int], CleaningPlan]:
    """Key → newest offset over the new part, and the plan as far as it was learned (`KEYS_MAX`):
    behind that, a tombstone must not go before what it deletes. Raises `Unwanted` soon after it is
    not wanted any more."""
    newest: dict[bytes, int] = {}
    for header, batch in log.batches(plan.dirty_from):
        if header.base_offset >= plan.until:
            break
        if len(newest) >= KEYS_MAX:
            return newest, plan.up_to(header.base_offset)
        if not is_wanted():
            raise Unwanted
        if not header.is_control:
            columns = open_batch(batch, header)
            pairs = zip(keys_of(columns), offsets_of(columns, header), strict=True)
            newest.update({key: offset for key, offset in pairs if key is not None})
        if header.next_offset >= plan.until:
            break  # behind it is the segment that the loop appends to: no thread looks there
    return newest, plan


def clean_segments(
    disk: Disk,
    log: Log,
    plan: CleaningPlan,
    newest: dict[bytes, int],
    *,
    now_ms: int,
    delete_retention_ms: int,
    last_batches: set[int],
    is_wanted: Callable[[], bool] = _always,
) -> list[CleanedSegment]:
    """Rewrite the plan's segments that change; `last_batches` are base offsets to keep for
    producers. Raises `Unwanted` as `learn_newest` does; what was written is gone then, as after any
    other error: a disk that was full is as full as before.

    The batch with which a leader epoch ends stays, too: a follower that copies the log learns from
    it where that is. Without it a replica that led then would keep what it never committed.
    """
    rewrite = partial(
        _rewrite,
        disk,
        log,
        plan,
        newest,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        last_batches=last_batches,
        is_wanted=is_wanted,
    )
    try:
        return [cleaned for base in plan.bases if (cleaned := rewrite(base)) is not None]
    except (DiskError, SegmentDamage, CorruptBatch, Unwanted):
        drop_cleaned(disk, log.directory)
        raise


def drop_cleaned(disk: Disk, directory: str) -> None:
    """Remove what was rewritten and takes no place; raises `DiskError`."""
    for name in disk.list(directory):
        if name.endswith(CLEANED):
            disk.remove(f"{directory}/{name}")


def _rewrite(
    disk: Disk,
    log: Log,
    plan: CleaningPlan,
    newest: dict[bytes, int],
    base: int,
    *,
    now_ms: int,
    delete_retention_ms: int,
    last_batches: set[int],
    is_wanted: Callable[[], bool],
) -> CleanedSegment | None:
    """One segment without replaced records, beside itself; None if nothing goes."""
    segment = Segment(disk, log.directory, base, config=log.config, create=False)
    path = f"{segment.path}{CLEANED}"
    disk.remove(path)
    target = disk.open(path, create=True)
    changed = False
    boundaries = _boundaries(segment)
    for header, _, batch in segment.batches():
        if not is_wanted():
            raise Unwanted
        kept: memoryview | bytearray | None = batch
        at = header.base_offset
        if at < plan.until:
            kept = _clean_batch(
                header,
                batch,
                newest,
                now_ms=now_ms,
                delete_retention_ms=delete_retention_ms,
                keep_empty=at in last_batches or at in boundaries,
            )
        changed = changed or kept is not batch
        if kept is not None:
            target.append(kept)
    target.close()
    segment.close()
    if not changed:
        disk.remove(path)
        return None
    _finish(disk, log, base)
    return CleanedSegment(base, path)


def _finish(disk: Disk, log: Log, base: int) -> None:
    """Index a rewritten segment, and make all of it durable."""
    segment = Segment(disk, log.directory, base, config=log.config, suffix=CLEANED)
    rebuild_indexes(segment)
    disk.sync_now([segment.file])
    segment.close()


def _boundaries(segment: Segment) -> set[int]:
    """Base offsets of the batches that stay, if only empty: the last one, so that the segment still
    ends where the next begins, and the last one of each leader epoch."""
    found: set[int] = set()
    last: BatchHeader | None = None
    for header, _ in segment.headers():
        if last is not None and header.leader_epoch != last.leader_epoch:
            found.add(last.base_offset)
        last = header
    return found if last is None else found | {last.base_offset}


def _clean_batch(
    header: BatchHeader,
    batch: memoryview,
    newest: dict[bytes, int],
    *,
    now_ms: int,
    delete_retention_ms: int,
    keep_empty: bool,
) -> memoryview | bytearray | None:
    """The batch without replaced records: itself if nothing goes, None if nothing stays."""
    if header.is_control or header.record_count == 0:
        return batch if header.is_control or keep_empty else None
    columns = open_batch(batch, header)
    keys, values = keys_of(columns), values_of(columns)
    offsets = offsets_of(columns, header)
    horizon = header.delete_horizon
    expired = horizon is not None and horizon <= now_ms
    stays = [
        index
        for index, (key, value, offset) in enumerate(zip(keys, values, offsets, strict=True))
        if key is not None and newest.get(key, -1) <= offset and not (value is None and expired)
    ]
    tombstones = any(values[index] is None for index in stays)
    if len(stays) == header.record_count and (horizon is not None or not tombstones):
        return batch
    if not stays and not keep_empty:
        return None
    if horizon is None and tombstones:
        horizon = min(now_ms + delete_retention_ms, TIMESTAMP_MAX)
    return _rebuild(header, columns, stays, horizon) or batch


def _rebuild(
    header: BatchHeader, columns: Columns, stays: Sequence[int], horizon: int | None
) -> bytearray | None:
    """A batch of the records that stay, with their offsets, in the place of the old one; None if
    nobody could read it."""
    timestamps = timestamps_of(columns, header)
    kept_times = [timestamps[index] for index in stays]
    base_timestamp = next(iter(kept_times), 0) if horizon is None else horizon
    newest = max(kept_times, default=-1)
    payload = _payload(header, columns, stays, kept_times, base_timestamp)
    # What was not there before may make it larger than readers take: then it stays as it is.
    if len(payload) > INFLATED_BYTES_MAX:
        return None
    return encode_batch(
        payload,
        record_count=len(stays),
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if header.is_log_append_time else newest,
        last_offset_delta=header.last_offset_delta,
        codec=header.codec,
        attributes=(header.attributes & ~CODEC_MASK)
        | (DELETE_HORIZON if horizon is not None else 0),
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        magic=header.magic,
    )


def _payload(
    header: BatchHeader,
    columns: Columns,
    stays: Sequence[int],
    kept_times: Sequence[int],
    base_timestamp: int,
) -> bytes:
    """The records that stay, in the form that the batch had."""
    keys, values = keys_of(columns), values_of(columns)
    headers = headers_of(columns, errors=AS_THEY_ARE)
    offsets = offsets_of(columns, header)
    kept_keys = [keys[index] for index in stays]
    kept_values = [values[index] for index in stays]
    kept_headers = {n: headers[index] for n, index in enumerate(stays) if index in headers}
    offset_deltas = [offsets[index] - header.base_offset for index in stays]
    if header.has_rows:
        deltas = [time - base_timestamp for time in kept_times]
        return encode_rows(deltas, offset_deltas, kept_keys, kept_values, kept_headers)
    return encode_columns(
        kept_times,
        kept_keys,
        kept_values,
        kept_headers,
        base_timestamp=base_timestamp,
        offset_deltas=offset_deltas,
    )


def last_producer_batches(log: Log, until: int) -> set[int]:
    """Base offsets of each producer's last batch below `until`: kept even when empty."""
    last: dict[int, int] = {}
    for header in log.headers(log.log_start):
        if header.base_offset >= until:
            break
        if header.producer_id != NO_PRODUCER_ID:
            last[header.producer_id] = header.base_offset
        if header.next_offset >= until:
            break  # as above
    return set(last.values())
