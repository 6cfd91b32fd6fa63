"""What the storage tests share: batches with known contents, and a whole view of a log.

No test lives here. `make_batch` makes what a producer sends, `lead`, `follow` and `fill` append it,
`contents` is what readers get, `files_of` what lies on the disk.
"""

from __future__ import annotations

from typing import NamedTuple

from hightide.protocol.codecs import at_once
from hightide.protocol.columns import encode_columns
from hightide.protocol.records import (
    HEADER_BYTES,
    BatchHeader,
    encode_batch,
    iter_batches,
    parse_header,
)
from hightide_broker.ports import Disk
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage import searches
from hightide_broker.storage.log import Log
from hightide_broker.storage.segment import LogConfig, file_name
from hightide_broker.storage.sync_job import SyncJob
from hightide_broker.storage.times import TimestampOffset

DIRECTORY = "data/jade-0"
TOPIC_ID = "Q0hJTEQtVE9QSUMtMDAwMQ"
NOW_MS = 1_000_000
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=150)


class Stored(NamedTuple):
    """One batch as a log holds it."""

    base_offset: int
    next_offset: int
    epoch: int
    data: bytes


def make_batch(
    count: int = 1,
    *,
    timestamps: list[int] | None = None,
    value: bytes = b"value",
    base_offset: int = 0,
    epoch: int = -1,
    offset_deltas: list[int] | None = None,
    size: int | None = None,
) -> bytearray:
    """A batch of `count` records, all with the same value; `size` pads the last one's."""
    times = timestamps if timestamps is not None else [1000] * count
    assert len(times) == count, f"{len(times)} timestamps for {count} records"
    values = [value] * count
    payload = encode_columns(
        times, None, values, base_timestamp=times[0], offset_deltas=offset_deltas
    )
    while size is not None and (short := size - HEADER_BYTES - len(payload)):
        # A second round takes back what the column's own header has grown by.
        values[-1] = values[-1].ljust(len(values[-1]) + short, b".")[: len(values[-1]) + short]
        assert values[-1], f"{count} records do not fit into {size} bytes"
        payload = encode_columns(
            times, None, values, base_timestamp=times[0], offset_deltas=offset_deltas
        )
    return encode_batch(
        payload,
        record_count=count,
        base_timestamp=times[0],
        max_timestamp=max(times),
        last_offset_delta=offset_deltas[-1] if offset_deltas else None,
        base_offset=base_offset,
        leader_epoch=epoch,
    )


def emptied(batch: bytes | memoryview) -> bytes:
    """What the cleaner leaves of a segment's last batch: its place and epoch, without records."""
    header = parse_header(batch)
    payload = encode_columns([], [], [], base_timestamp=header.base_timestamp, offset_deltas=[])
    left = encode_batch(
        payload,
        record_count=0,
        base_timestamp=header.base_timestamp,
        max_timestamp=-1,
        last_offset_delta=header.last_offset_delta,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
    )
    return bytes(left)


def lead(log: Log, batch: bytearray, *, epoch: int = 0, now_ms: int = NOW_MS) -> BatchHeader:
    """Append a batch as the leader of `epoch`."""
    return log.append_as_leader(batch, parse_header(batch), leader_epoch=epoch, now_ms=now_ms)


def fill(
    log: Log, batches: int, *, count: int = 1, epoch: int = 0, value: bytes = b"value"
) -> None:
    """Append `batches` batches; record timestamps are 1000 + their offset."""
    for _ in range(batches):
        times = [1000 + log.log_end + number for number in range(count)]
        lead(log, make_batch(count, timestamps=times, value=value), epoch=epoch)


def follow(log: Log, batch: bytearray) -> None:
    """Append a batch as a follower, as the leader stored it."""
    log.append_as_follower(batch, parse_header(batch), now_ms=NOW_MS)


def create(disk: Disk, *, config: LogConfig = CONFIG, directory: str = DIRECTORY) -> Log:
    return Log.create(disk, directory, topic_id=TOPIC_ID, config=config)


def reopen(
    disk: Disk,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    log_start: int = 0,
    config: LogConfig = CONFIG,
    directory: str = DIRECTORY,
) -> Log:
    log = Log.open(
        disk,
        directory,
        topic_id=TOPIC_ID,
        config=config,
        log_start=log_start,
        recovery_point=recovery_point,
        clean=clean,
    )
    log.check_invariants()
    return log


def sync(disk: Disk, log: Log) -> None:
    finish(disk, log, log.begin_sync())


def finish(disk: Disk, log: Log, job: SyncJob | None) -> None:
    """What a worker thread does for a job (`carry_out`), and the loop afterwards."""
    if job is None:
        return
    if job.epochs is not None:
        job.epochs()
    disk.sync_now(job.files, job.directories)
    log.finish_sync(job)


def stop(disk: Disk, log: Log) -> None:
    """An orderly stop: indexes written, all synced, files closed."""
    finish(disk, log, log.finish())
    log.close()


def contents(log: Log, *, max_bytes: int = 1) -> list[Stored]:
    """Every batch a reader gets who starts at the log's start and follows `next_offset`."""
    found = []
    offset = log.log_start
    while (part := log.read(offset, max_bytes=max_bytes)) is not None:
        for header, batch in iter_batches(part.read()):
            stored = Stored(
                header.base_offset, header.next_offset, header.leader_epoch, bytes(batch)
            )
            found.append(stored)
        assert part.next_offset > offset, f"reading at {offset} does not go forward"
        offset = part.next_offset
    return found


def check_contiguous(log: Log) -> None:
    """Each segment ends where the next one begins, and the log ends where its last batch does."""
    bases = log.segment_bases()
    ends = {bases[0]: bases[0]}
    end = bases[0]
    for header in log.headers(bases[0]):
        base = max(each for each in bases if each <= header.base_offset)
        ends[base] = end = header.next_offset
    assert [ends.get(base, base) for base in bases[:-1]] == bases[1:], f"{log!r}: {bases}, {ends}"
    assert log.log_end == end, f"{log!r}: the last batch ends at {end}"


def record_since(log: Log, timestamp: int) -> TimestampOffset | None:
    """The first record with a timestamp ≥ `timestamp`."""
    return at_once(searches.record_since(lambda look: look(log), timestamp))


def newest_record(log: Log) -> TimestampOffset | None:
    """The first record with the largest timestamp."""
    return at_once(searches.newest_record(lambda look: look(log)))


def check_lookups(log: Log) -> None:
    """Every offset and every timestamp that `fill` gave is found where it must be."""
    stored = contents(log)
    for batch in stored:
        for offset in range(max(batch.base_offset, log.log_start), batch.next_offset):
            part = log.read(offset, max_bytes=1)
            assert part is not None
            assert part.read() == batch.data, f"a read at {offset} begins with another batch"
            found = record_since(log, 1000 + offset)
            assert found is not None
            assert found.offset == offset, f"{1000 + offset} is found at {found.offset}"
    assert record_since(log, 1000 + log.log_end) is None


def path_of(base: int, suffix: str = "log", *, directory: str = DIRECTORY) -> str:
    return f"{directory}/{file_name(base, suffix)}"


def files_of(disk: Disk, *, directory: str = DIRECTORY) -> dict[str, bytes]:
    """Every file of a log's directory with its bytes."""
    return {name: disk.read_file(f"{directory}/{name}") for name in disk.list(directory)}


def put(disk: Disk, path: str, data: bytes) -> None:
    """Make the file of these bytes, durably, in place of what was there."""
    disk.remove(path)
    disk.replace(path, data)


class PowerFailure(Exception):
    """The power failed before this change reached the disk."""


class BreakingDisk(SimDisk):
    """A simulated disk that stops for good after `changes_left` more changes."""

    changes_left = 1 << 40

    def _change(self, what: str) -> None:
        if self.changes_left == 0:
            raise PowerFailure(what)
        self.changes_left -= 1

    def fail_if_told(self, path: str, operation: str) -> None:
        super().fail_if_told(path, operation)
        if operation != "read":
            self._change(f"{operation} {path}")

    def rename(self, old: str, new: str) -> None:
        self._change(f"rename {old}")
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._change(f"remove {path}")
        super().remove(path)

    def repair(self) -> None:
        """Changes work again."""
        self.changes_left = 1 << 40


def place_of(data, offset):
    """Where the batch with this offset begins, in the bytes of a segment."""
    place = 0
    for header, _ in iter_batches(data):
        if header.next_offset > offset:
            break
        place += header.size
    return place
