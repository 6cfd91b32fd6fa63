"""Opening a log: which files count, what is scanned after an unclean stop, and what may be cut.

After a clean stop everything is trusted. After an unclean one the log is scanned from its recovery
point; what lies below was made durable before it was called so. The scan ends at the first batch that
fails its checks:

* nothing whole follows: a torn tail, cut off;
* whole batches follow, and the gap holds a block of zeros up to a page's end: bytes that were never
  synced were lost in a power cut, out of order. Cut off, but what was cut is kept beside the segment;
* whole batches follow otherwise: stored data was damaged. Nothing is cut: `LogDamaged`, and the
  replica stays offline until somebody decides.

Source: KAFKA LogLoader, LogSegment.recover; the distinction of the last two is hightide's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hightide.errors import CorruptBatch
from hightide.records import HEADER_BYTES, check_crc, parse_header
from hightide_broker.ports import Disk, DiskFile
from hightide_broker.storage.epochs import EpochCache
from hightide_broker.storage.segment import (
    LogConfig,
    Segment,
    SegmentDamage,
    file_name,
)

PAGE_BYTES = 4096
RESYNC_BYTES_MAX = 64 << 20
"""How far behind a damaged batch the scan looks for a whole one."""
_SEGMENT_FILE = re.compile(r"^(\d{20})\.(log|index|timeindex|snapshot)$")
_MAGIC_AT = 16


class LogDamaged(Exception):
    """Stored data in the middle of a log is damaged: the replica must stay offline."""

    def __init__(self, path: str, position: int, why: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {position}: {why}. Nothing was cut, because records from there "
            f"on may have been acknowledged. `hightide log verify` lists the damage; restore the "
            f"file from a copy, or delete the topic to give up its data"
        )
        self.path = path
        self.position = position


@dataclass(slots=True)
class Recovery:
    """What opening a log found and did; printed into the broker's log."""

    scanned_bytes: int = 0
    cut: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"scanned {self.scanned_bytes} bytes"]
        parts += self.cut
        parts += [f"rebuilt the indexes of {name}" for name in self.rebuilt]
        parts += [f"removed {name}" for name in self.removed]
        return "; ".join(parts)


@dataclass(slots=True)
class LoadedLog:
    """The parts of a log, read from its directory."""

    segments: list[Segment]
    epochs: EpochCache
    log_start: int
    log_end: int
    recovery: Recovery


def load(
    disk: Disk,
    directory: str,
    *,
    config: LogConfig,
    epochs: EpochCache | None,
    log_start: int,
    recovery_point: int,
    clean: bool,
) -> LoadedLog:
    """Read a partition directory. `epochs` None: the checkpoint is malformed, rebuild it.

    `log_start` and `recovery_point` come from their checkpoints (0 where there is none). Raises
    `LogDamaged` or `DiskError`.
    """
    try:
        return _load(disk, directory, config, epochs, log_start, recovery_point, clean)
    except SegmentDamage as damage:
        raise LogDamaged(damage.path, damage.position, damage.why) from damage


def _load(
    disk: Disk,
    directory: str,
    config: LogConfig,
    epochs: EpochCache | None,
    log_start: int,
    recovery_point: int,
    clean: bool,
) -> LoadedLog:
    recovery = Recovery()
    _finish_interrupted(disk, directory, recovery)
    segments = [
        Segment(disk, directory, base, config=config)
        for base in _base_offsets(disk, directory, recovery)
    ]
    rebuild_epochs = epochs is None
    cache = epochs or EpochCache(disk, f"{directory}/leader-epoch-checkpoint")
    if clean and not rebuild_epochs:
        for segment in segments:
            _load_trusted(segment, recovery)
    else:
        from_offset = 0 if rebuild_epochs else recovery_point
        segments = _scan(disk, directory, segments, cache, from_offset, recovery)
    log_start = max(log_start, segments[0].base_offset if segments else 0)
    log_end = _end_of(segments[-1]) if segments else log_start
    if log_end < recovery_point:
        path = segments[-1].path if segments else directory
        size = segments[-1].size if segments else 0
        why = f"the log ends at offset {log_end}, but was durable up to {recovery_point}"
        raise LogDamaged(path, size, why)
    if not segments or log_end < log_start:
        for segment in segments:
            _remove(disk, segment, recovery)
        log_end = log_start
        segments = [Segment(disk, directory, log_start, config=config)]
    changed = cache.truncate_from_end(log_end)
    changed = cache.truncate_from_start(log_start) or changed
    if changed or rebuild_epochs:
        cache.write()
    return LoadedLog(segments, cache, log_start, log_end, recovery)


def _finish_interrupted(disk: Disk, directory: str, recovery: Recovery) -> None:
    """Complete or undo what a crash interrupted: deletions, and the cleaner's swap of segments."""
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if name.endswith((".deleted", ".cleaned", ".tmp")):
            disk.remove(path)
            recovery.removed.append(name)
    for name in disk.list(directory):
        if name.endswith(".swap"):
            final = name.removesuffix(".swap")
            stem = final.removesuffix(".log")
            for suffix in ("index", "timeindex"):
                disk.remove(f"{directory}/{stem}.{suffix}")
            disk.rename(f"{directory}/{name}", f"{directory}/{final}")
            recovery.rebuilt.append(final)
    disk.sync_now([], [directory])


def _base_offsets(disk: Disk, directory: str, recovery: Recovery) -> list[int]:
    """Base offsets of the segments, rising; index files without a segment are removed."""
    names = [match for name in disk.list(directory) if (match := _SEGMENT_FILE.match(name))]
    bases = [int(match[1]) for match in names if match[2] == "log"]
    for match in names:
        if match[2] in ("index", "timeindex") and int(match[1]) not in bases:
            disk.remove(f"{directory}/{match[0]}")
            recovery.removed.append(match[0])
    return bases


def _end_of(segment: Segment) -> int:
    """The offset after a segment's last batch."""
    entry = segment.offsets.last
    end = segment.base_offset
    for header, _ in segment.headers(entry[1] if entry else 0):
        end = header.next_offset
    return end


def _load_trusted(segment: Segment, recovery: Recovery) -> None:
    """Open a segment whose bytes are trusted; a damaged or missing index is rebuilt."""
    try:
        sound = _indexes_are_sound(segment)
    except SegmentDamage:
        sound = False
    if not sound:
        recovery.rebuilt.append(file_name(segment.base_offset, "log"))
        rebuild_indexes(segment)
        return
    if segment.size:
        segment.first_timestamp = segment.header_at(0).max_timestamp
    last_time = segment.times.last
    if last_time is not None:
        segment.max_timestamp = last_time[0]
        segment.max_timestamp_offset = segment.base_offset + last_time[1]
    last = segment.offsets.last
    segment._unindexed_bytes = segment.size - (last[1] if last else 0)
    if segment.size and last_time is None:
        _learn_timestamps(segment)


def _learn_timestamps(segment: Segment) -> None:
    for header, _ in segment.headers():
        if header.max_timestamp > segment.max_timestamp:
            segment.max_timestamp = header.max_timestamp
            segment.max_timestamp_offset = header.last_offset


def _indexes_are_sound(segment: Segment) -> bool:
    """Whole entries, both columns rising, inside the file, and the last one names a batch."""
    for index in (segment.offsets, segment.times):
        if not index.exists or not index.has_whole_entries():
            return False
        entries = index.entries()
        for before, after in zip(entries, entries[1:], strict=False):
            if before[0] >= after[0] or before[1] > after[1]:
                return False
    last = segment.offsets.last
    if last is None:
        return True
    if last[1] >= segment.size:
        return False
    return segment.header_at(last[1]).last_offset == segment.base_offset + last[0]


def rebuild_indexes(segment: Segment) -> None:
    """Index a segment anew from its batches' headers; raises `SegmentDamage`."""
    segment.reset_indexes()
    for header, position in segment.headers():
        segment.note(header, position)
    segment.flush_indexes(final=True)


def _scan(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    epochs: EpochCache,
    recovery_point: int,
    recovery: Recovery,
) -> list[Segment]:
    """Check everything from the recovery point on; the segments that remain."""
    first = max((i for i, s in enumerate(segments) if s.base_offset <= recovery_point), default=0)
    for segment in segments[:first]:
        _load_trusted(segment, recovery)
    for number in range(first, len(segments)):
        segment = segments[number]
        try:
            _scan_segment(segment, epochs, recovery_point, recovery)
        except SegmentDamage as damage:
            later = segments[number + 1 :]
            _cut_or_refuse(disk, segment, damage, later, recovery)
            for rest in later:
                _set_aside(disk, rest, recovery)
            return segments[: number + 1]
    return segments


def _scan_segment(
    segment: Segment, epochs: EpochCache, recovery_point: int, recovery: Recovery
) -> None:
    """Check a segment's batches from the recovery point on, and index them anew."""
    position = _trusted_until(segment, recovery_point, recovery)
    for header, at, _ in segment.batches(position):
        segment.note(header, at)
        recovery.scanned_bytes += header.size
        if header.leader_epoch > epochs.latest_epoch:
            epochs.insert(header.leader_epoch, header.base_offset)
    segment.flush_indexes()


def _trusted_until(segment: Segment, recovery_point: int, recovery: Recovery) -> int:
    """The position of the batch at the recovery point, keeping the index entries before it."""
    try:
        sound = _indexes_are_sound(segment) and recovery_point > segment.base_offset
        found = segment.locate(recovery_point) if sound else None
    except SegmentDamage:
        sound, found = False, None
    if not sound:
        if segment.size:
            recovery.rebuilt.append(file_name(segment.base_offset, "log"))
        segment.reset_indexes()
        return 0
    position = found[1] if found else segment.size
    segment.offsets.truncate_below(max(recovery_point - segment.base_offset, 0))
    kept = [e for e in segment.times.entries() if segment.base_offset + e[1] < recovery_point]
    segment.times.truncate(len(kept))
    last = segment.offsets.last
    for header, at in segment.headers(last[1] if last else 0):
        if at >= position:
            break
        if header.max_timestamp > segment.max_timestamp:
            segment.max_timestamp = header.max_timestamp
            segment.max_timestamp_offset = header.last_offset
    if kept and kept[-1][0] > segment.max_timestamp:
        segment.max_timestamp = kept[-1][0]
        segment.max_timestamp_offset = segment.base_offset + kept[-1][1]
    segment.first_timestamp = segment.header_at(0).max_timestamp if segment.size else None
    segment._unindexed_bytes = position - (last[1] if last else 0)
    return position


def _cut_or_refuse(
    disk: Disk, segment: Segment, damage: SegmentDamage, later: list[Segment], recovery: Recovery
) -> None:
    """Cut a torn or never synced tail; raise `LogDamaged` for damage in the middle."""
    next_batch = next_whole_batch(segment, damage.position + 1)
    follows = next_batch is not None or any(rest.size for rest in later)
    until = next_batch if next_batch is not None else segment.size
    if follows and not _has_hole(segment.file, damage.position, until):
        raise LogDamaged(damage.path, damage.position, damage.why)
    cut = segment.size - damage.position
    note = f"cut {cut} bytes from byte {damage.position} of {damage.path} ({damage.why})"
    if follows:
        aside = f"{segment.path}.{damage.position}.cut"
        disk.replace(aside, segment.file.read(damage.position, cut))
        note += f", kept in {aside} because whole batches lie behind bytes that were never synced"
    segment.file.truncate(damage.position)
    segment.size = damage.position
    segment.flush_indexes()
    disk.sync_now([segment.file])
    recovery.cut.append(note)


def next_whole_batch(segment: Segment, position: int) -> int | None:
    """Where the first whole, right batch at or behind `position` begins; None if there is none."""
    end = min(segment.size, position + RESYNC_BYTES_MAX)
    for candidate in _magic_positions(segment.file, position, end):
        try:
            header = parse_header(segment.file.read(candidate, HEADER_BYTES))
            if header.base_offset < segment.base_offset or candidate + header.size > segment.size:
                continue
            check_crc(segment.file.read(candidate, header.size), header)
        except CorruptBatch:
            continue
        return candidate
    return None


def _magic_positions(file: DiskFile, position: int, end: int) -> Iterator[int]:
    """Positions from which a batch could begin, by its magic byte."""
    while position < end:
        chunk = file.read(position, (1 << 20) + _MAGIC_AT)
        found = chunk.find(b"\x48", _MAGIC_AT)
        while found >= 0:
            yield position + found - _MAGIC_AT
            found = chunk.find(b"\x48", found + 1)
        position += 1 << 20


def _has_hole(file: DiskFile, start: int, end: int) -> bool:
    """Whether [start, end) holds zeros up to the end of a page: a page that never reached the disk.

    From `start` on 8 zeros are enough, which no batch but the log's first begins with; behind it only
    whole pages count.
    """
    position = start
    while (upto := (position // PAGE_BYTES + 1) * PAGE_BYTES) <= end:
        if upto - position >= 8 and not file.read(position, upto - position).strip(b"\0"):
            return True
        position = upto
    return False


def _set_aside(disk: Disk, segment: Segment, recovery: Recovery) -> None:
    """Take a segment behind a cut out of the log, keeping its bytes."""
    segment.close()
    segment.offsets.clear()
    segment.times.clear()
    if segment.size:
        disk.rename(segment.path, f"{segment.path}.cut")
        recovery.cut.append(f"set {segment.path} aside as {segment.path}.cut: it lies behind a cut")
    else:
        disk.remove(segment.path)


def _remove(disk: Disk, segment: Segment, recovery: Recovery) -> None:
    segment.close()
    segment.offsets.clear()
    segment.times.clear()
    disk.remove(segment.path)
    recovery.removed.append(file_name(segment.base_offset, "log"))


def damage_in(segment: Segment) -> Iterator[SegmentDamage]:
    """Every damaged place of a segment, for `log verify`: it resumes at the next whole batch."""
    position = 0
    while position < segment.size:
        try:
            for _ in segment.batches(position):
                pass
            return
        except SegmentDamage as damage:
            yield damage
            following = next_whole_batch(segment, damage.position + 1)
            if following is None:
                return
            position = following
