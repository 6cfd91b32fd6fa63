"""Opening a log: which files count, what is scanned after an unclean stop, and what may be cut.

After a clean stop everything is trusted, if the log ends where its recovery point says. After an
unclean one, or if it ends further on, the log is scanned from its recovery point; what lies below
was made durable before it was called so. Segments are contiguous: each one
ends where the next begins (compaction keeps the last batch of a segment, if only empty), so a
sealed segment whose tail was lost is noticed. The scan ends at the first batch that fails its
checks:

* nothing whole follows: a torn tail, cut off;
* whole batches follow, and the gap holds a block of zeros up to a sector's end, or a sealed segment
  ends too early: bytes that were never synced were lost in a power cut, out of order. Cut off, but
  what was cut is kept beside the segment;
* whole batches follow otherwise: stored data was damaged. Nothing is cut: `LogDamaged`, and the
  replica stays offline until somebody decides.

Source: Kafka's LogLoader, LogSegment.recover; the distinction of the last two is hightide's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import (
    CRC_FROM,
    HEADER_BYTES,
    BatchHeader,
    crc32c,
    parse_header,
)
from hightide_broker.ports import Disk, DiskError, DiskFile, size_of
from hightide_broker.storage.checkpoint import LEADER_EPOCHS
from hightide_broker.storage.epoch_lag import catch_up
from hightide_broker.storage.epochs import EpochCache
from hightide_broker.storage.indexing import (
    has_sound_indexes,
    load_trusted,
    note_first_timestamp,
)
from hightide_broker.storage.resync import next_whole_batch
from hightide_broker.storage.segment import (
    LogConfig,
    Segment,
    SegmentDamage,
    file_name,
)

OFFSET_MAX = (1 << 63) - 1
SECTOR_BYTES = 512
"""The least that a disk writes at once: of a page that was being written when power failed some may
be there."""
LEADING_ZEROS_MAX = 12
"""A batch may begin with so many zeros: small offset, small length."""
_SEGMENT_FILE = re.compile(r"^(\d{20})\.(log|index|timeindex|snapshot)$")
_UNFINISHED = (".deleted", ".cleaned", ".tmp")
"""Names of files that are no part of the log, or not yet."""
_INTERRUPTED = (*_UNFINISHED, ".swap")


class LogDamaged(Exception):
    """Stored data in the middle of a log is damaged: the replica must stay offline."""

    def __init__(self, path: str, position: int, why: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {position}: {why}. What follows may have been acknowledged "
            f"(`hightide log verify` lists the damage)"
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
        parts += [f"rebuilt {name}" for name in self.rebuilt]
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
    was_scanned: bool = False
    """Whether what lies behind the recovery point was found, and may be in the page cache only."""
    has_new_names: bool = False
    """Whether names in the directory may not be durable."""


def load(
    disk: Disk,
    directory: str,
    *,
    config: LogConfig,
    epochs: EpochCache | None,
    log_start: int,
    recovery_point: int,
    clean: bool,
    salvage: bool = False,
) -> LoadedLog:
    """Read a partition directory. `epochs` None: the checkpoint is malformed, rebuild it.

    `log_start` and `recovery_point` come from their checkpoints (0 where there is none). With
    `salvage` everything is scanned, and cut at the first damage, whatever follows it: for a replica
    whose leader has it all. Raises `LogDamaged` or `DiskError`.
    """
    if salvage:
        recovery_point, clean = 0, False
    try:
        return _load(disk, directory, config, epochs, log_start, recovery_point, clean, salvage)
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
    salvage: bool,
) -> LoadedLog:
    recovery = Recovery()
    names = _finish_interrupted(disk, directory, recovery, clean=clean)
    segments = [
        Segment(disk, directory, base, config=config)
        for base in _base_offsets(disk, directory, names, recovery)
    ]
    start = max(log_start, segments[0].base_offset if segments else 0)
    rebuild_epochs = epochs is None or _begins_late(epochs, start)
    cache = EpochCache(disk, f"{directory}/{LEADER_EPOCHS}")
    if epochs is not None and not rebuild_epochs:
        cache = epochs
    # A clean stop without a recovery point is trusted as a whole.
    trusted = recovery_point if recovery_point or not clean else OFFSET_MAX
    if not rebuild_epochs and catch_up(cache, segments, start, trusted):
        recovery.rebuilt.append(LEADER_EPOCHS)
    as_left = clean and _is_as_it_was_left(segments, recovery_point, recovery)
    if rebuild_epochs or not as_left:
        begin = 0 if rebuild_epochs else recovery_point
        segments = _scan(disk, directory, segments, cache, begin, recovery_point, recovery, salvage)
    if not as_left:
        _write_again(segments, recovery_point)
    log_start = max(log_start, segments[0].base_offset if segments else 0)
    log_end = segments[-1].end_offset if segments else log_start
    _check_end(directory, segments, log_end, "recovery point", recovery_point)
    if clean and segments:
        # After an unclean stop what was deleted may be lost as well; in order it is written first.
        _check_end(directory, segments, log_end, "log start checkpoint", log_start)
    has_new_names = not as_left
    if not segments or log_end < log_start:
        for segment in segments:
            _remove(disk, segment, recovery)
        log_end, has_new_names = log_start, True
        segments = [_begun_at(disk, directory, log_start, config)]
    # Written at once: a scan takes the newest epoch of the file for known, and would pass over
    # older ones that come in the place of what was lost.
    changed = cache.truncate_from_end(log_end)
    # Where nothing is left, the epoch of the last record is still to be known.
    known_from = min(log_start, log_end - 1)
    changed = cache.truncate_from_start(known_from) or changed
    if not cache.agrees_with(_headers_at(segments)):
        headers = (header for segment in segments for header, _ in segment.headers())
        cache.rebuild(headers, start=segments[0].base_offset)
        cache.truncate_from_start(known_from)
        recovery.rebuilt.append(LEADER_EPOCHS)
        changed = True
    if changed or rebuild_epochs:
        cache.write()
    return LoadedLog(segments, cache, log_start, log_end, recovery, not as_left, has_new_names)


def _check_end(directory: str, segments: list[Segment], log_end: int, name: str, said: int) -> None:
    """Raise `LogDamaged` if a log ends below what was durable when a checkpoint said so."""
    if log_end < said:
        path, size = (segments[-1].path, segments[-1].size) if segments else (directory, 0)
        raise LogDamaged(path, size, f"the log ends at offset {log_end}, its {name} says {said}")


def _begun_at(disk: Disk, directory: str, log_start: int, config: LogConfig) -> Segment:
    """The first segment of a log that begins again, empty; durable, as it counts as that up to its
    start from here on."""
    segment = Segment(disk, directory, log_start, config=config)
    disk.sync_now([segment.file], [directory])
    return segment


def _is_as_it_was_left(segments: list[Segment], recovery_point: int, recovery: Recovery) -> bool:
    """Whether a log that was closed in order ends where everything was durable; if so it is open.
    If not, something was appended too late, or the checkpoint could not be written. A recovery
    point of 0 says nothing: there may be no checkpoint."""
    try:
        for segment in segments:
            _trust(segment, recovery)
        ends_right = not segments or segments[-1].end_offset <= recovery_point
    except SegmentDamage:
        ends_right = False
        if not recovery_point:
            raise
    if ends_right or not recovery_point:
        _check_contiguous(segments)
    return ends_right or not recovery_point


def _begins_late(epochs: EpochCache, log_start: int) -> bool:
    """Whether the cache knows nothing of the log's first records: it was cut to a new log start,
    and a crash brought back what had been deleted. An epoch that is asked for would be missed."""
    return bool(epochs.entries) and epochs.entries[0][1] > log_start


def _headers_at(segments: list[Segment]) -> Callable[[int], BatchHeader | None]:
    """The header of the batch that holds an offset; None if there is none."""

    def header_at(offset: int) -> BatchHeader | None:
        for segment in reversed(segments):
            if segment.base_offset <= offset:
                found = segment.locate(offset)
                return found[0] if found else None
        return None

    return header_at


def _finish_interrupted(
    disk: Disk, directory: str, recovery: Recovery, *, clean: bool
) -> list[str]:
    """Complete or undo what a crash interrupted: deletions, and the cleaner's swap of segments.
    The names that there are then."""
    names = disk.list(directory)
    if clean and not any(name.endswith(_INTERRUPTED) for name in names):
        return names
    for name in names:
        path = f"{directory}/{name}"
        if name.endswith(_UNFINISHED):
            disk.remove(path)
            recovery.removed.append(name)
    for name in disk.list(directory):
        if name.endswith(".swap"):
            final = name.removesuffix(".swap")
            stem = final.removesuffix(".log")
            for suffix in ("index", "timeindex"):
                disk.remove(f"{directory}/{stem}.{suffix}")
            disk.rename(f"{directory}/{name}", f"{directory}/{final}")
    disk.sync_now([], [directory])
    return disk.list(directory)


def _base_offsets(
    disk: Disk, directory: str, names: Sequence[str], recovery: Recovery
) -> list[int]:
    """Base offsets of the segments, rising; index files without a segment are removed."""
    files = [match for name in names if (match := _SEGMENT_FILE.match(name))]
    bases = [int(match[1]) for match in files if match[2] == "log"]
    for match in files:
        if match[2] in ("index", "timeindex") and int(match[1]) not in bases:
            disk.remove(f"{directory}/{match[0]}")
            recovery.removed.append(match[0])
    return bases


def _trust(segment: Segment, recovery: Recovery) -> None:
    if load_trusted(segment):
        recovery.rebuilt.append(file_name(segment.base_offset, "log"))


def _check_contiguous(segments: list[Segment]) -> None:
    """Raise `SegmentDamage` where a trusted segment does not end where the next one begins."""
    for segment, following in pairwise(segments):
        if segment.end_offset != following.base_offset:
            why = f"ends at offset {segment.end_offset}, the next begins at {following.base_offset}"
            raise SegmentDamage(segment.path, segment.size, why)


def _scan(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    epochs: EpochCache,
    from_offset: int,
    recovery_point: int,
    recovery: Recovery,
    salvage: bool,
) -> list[Segment]:
    """Check all from an offset on, and cut nothing below the recovery point; what is left."""
    first = max((i for i, s in enumerate(segments) if s.base_offset <= from_offset), default=0)
    for segment in segments[:first]:
        _trust(segment, recovery)
    _check_contiguous(segments[: first + 1])
    for number in range(first, len(segments)):
        segment, later = segments[number], segments[number + 1 :]
        try:
            _scan_segment(segment, epochs, from_offset, recovery)
        except SegmentDamage as damage:
            if segment.end_offset < recovery_point:
                raise
            _cut_or_refuse(disk, segment, damage, later, recovery, salvage)
            return segments[: number + 1]
        if later and segment.end_offset != later[0].base_offset:
            if segment.end_offset < recovery_point:
                why = f"ends at {segment.end_offset}, its recovery point says {recovery_point}"
                raise SegmentDamage(segment.path, segment.size, why)
            recovery.cut.append(
                f"{segment.path} ends at offset {segment.end_offset}, the next segment begins at "
                f"{later[0].base_offset}: what lay between was never synced"
            )
            _set_aside(disk, directory, later, recovery)
            return segments[: number + 1]
    return segments


def _scan_segment(
    segment: Segment, epochs: EpochCache, recovery_point: int, recovery: Recovery
) -> None:
    """Check a segment's batches from the recovery point on, and index them again."""
    position = _trusted_until(segment, recovery_point, recovery)
    end = segment.base_offset if position == 0 else recovery_point
    for header, at, _ in segment.batches(position):
        segment.note(header, at)
        recovery.scanned_bytes += header.size
        if header.leader_epoch > epochs.latest_epoch:
            # Where compaction left a gap, at its start; see `Log`.
            epochs.assign(header.leader_epoch, min(end, header.base_offset))
        end = segment.end_offset = header.next_offset
    segment.indexes.flush(final=True)


def _trusted_until(segment: Segment, recovery_point: int, recovery: Recovery) -> int:
    """The position of the batch at the recovery point, keeping the index entries before it."""
    try:
        sound = has_sound_indexes(segment) and recovery_point > segment.base_offset
        found = segment.locate(recovery_point) if sound else None
    except SegmentDamage:
        sound, found = False, None
    if not sound:
        if segment.size:
            recovery.rebuilt.append(file_name(segment.base_offset, "log"))
        segment.forget_indexes()
        return 0
    position = found[1] if found else segment.size
    segment.indexes.cut(recovery_point, position=position)
    if not has_sound_indexes(segment):
        segment.forget_indexes()
        return 0
    segment.learn(until=position)
    with suppress(SegmentDamage):
        # What is trusted is not scanned: a read will meet the damage.
        note_first_timestamp(segment)
    return position


def _write_again(segments: list[Segment], recovery_point: int) -> None:
    """Have everything behind the recovery point reach the disk with the next sync, whatever the
    system believes: the sync of the process before this one may have failed, and then what was
    found may be in the page cache only, in pages that no sync would write (fsyncgate)."""
    for segment in segments:
        if segment.end_offset > recovery_point:
            found = segment.locate(recovery_point) if recovery_point > segment.base_offset else None
            segment.file.rewrite(found[1] if found else 0)


def _cut_or_refuse(
    disk: Disk,
    segment: Segment,
    damage: SegmentDamage,
    later: list[Segment],
    recovery: Recovery,
    salvage: bool,
) -> None:
    """Cut a torn or never synced tail; raise `LogDamaged` for damage in the middle, unless that is
    to be cut, too."""
    next_batch = next_whole_batch(
        segment, damage.position + 1, at_least=max(segment.end_offset, segment.base_offset)
    )
    follows = next_batch is not None or any(rest.size for rest in later)
    until = next_batch if next_batch is not None else segment.size
    at_end = next_batch is None
    lost = _has_hole(segment.file, damage.position, until, at_end=at_end)
    lost = lost or (at_end and _is_short(segment, damage.position))
    if not salvage and (damage.is_whole or (follows and not lost)):
        raise LogDamaged(damage.path, damage.position, damage.why)
    _set_aside(disk, segment.path.rpartition("/")[0], later, recovery)
    cut = segment.size - damage.position
    note = f"cut {cut} bytes from byte {damage.position} of {damage.path} ({damage.why})"
    if next_batch is not None:
        aside = f"{segment.path}.{damage.position}.cut"
        try:
            disk.replace(aside, segment.file.read(damage.position, cut))
            note += f", kept in {aside} because whole batches lie behind"
        except DiskError as error:
            if salvage or not error.full:
                raise
            note += ", not kept as there is no room, although whole batches lie behind"
    segment.file.truncate(damage.position)
    segment.size = damage.position
    segment.indexes.flush(final=True)
    disk.sync_now([segment.file])
    recovery.cut.append(note)


def _is_short(segment: Segment, position: int) -> bool:
    """Whether the file ends before the batch at `position` does."""
    rest = segment.file.read(position, segment.size - position)
    try:
        header = parse_header(rest)
    except CorruptBatch:
        return len(rest) < HEADER_BYTES
    # With the right checksum over what is there, it is the length that is damaged.
    return header.size > len(rest) and crc32c(memoryview(rest)[CRC_FROM:]) != header.crc


def _has_hole(file: DiskFile, start: int, end: int, *, at_end: bool) -> bool:
    """Whether [start, end) holds zeros up to the end of a sector: one that never reached the disk.

    From `start` on 8 zeros are enough, which no batch but the log's first begins with; behind it
    only whole sectors count. `end` may lie a little before the sector's end: a batch begins with
    zeros itself.
    """
    position = start
    while (upto := (position // SECTOR_BYTES + 1) * SECTOR_BYTES) <= end + LEADING_ZEROS_MAX:
        if upto - position >= 8 and not file.read(position, upto - position).strip(b"\0"):
            return True
        position = upto
    return at_end and position < end and not file.read(position, end - position).strip(b"\0")


def _set_aside(disk: Disk, directory: str, segments: list[Segment], recovery: Recovery) -> None:
    """Take segments behind a cut out of the log, the last one first, keeping their bytes."""
    for segment in reversed(segments):
        segment.close()
        segment.indexes.clear()
        if segment.size:
            disk.rename(segment.path, f"{segment.path}.cut")
            recovery.cut.append(
                f"set {segment.path} aside as {segment.path}.cut: it lies behind a cut"
            )
        else:
            disk.remove(segment.path)
        disk.sync_now([], [directory])


def _remove(disk: Disk, segment: Segment, recovery: Recovery) -> None:
    segment.close()
    segment.indexes.clear()
    disk.remove(segment.path)
    recovery.removed.append(file_name(segment.base_offset, "log"))


def bytes_to_scan(disk: Disk, directory: str, recovery_point: int) -> int:
    """How much `load` scans at most after an unclean stop: all segments from the one that holds the
    recovery point on. Raises `DiskError`.

    What is left of a start has to be known before its first log is opened, and the logs cannot all
    be open at a time. So names and sizes are asked for once more than `load` does; no byte of a
    file is read for it.
    """
    names = disk.list(directory) if disk.exists(directory) else []
    files = [match for name in names if (match := _SEGMENT_FILE.match(name))]
    bases = [int(match[1]) for match in files if match[2] == "log"]
    first = max((base for base in bases if base <= recovery_point), default=0)
    return sum(
        size_of(disk, f"{directory}/{file_name(base, 'log')}") for base in bases if base >= first
    )


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
