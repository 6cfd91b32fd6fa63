"""Snapshots of the metadata: what the log said up to an offset, in one file; so the log may go.

`<end offset>-<epoch>.checkpoint` contains everything below `end offset`; `epoch` is that of the
last record it contains. The file is record batches: a control batch that says what it is, changes,
and a control batch that says it is whole. It appears under its name only when it is durable;
a node that fetches one from a leader gathers it as `.part`. Source: KIP-630.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from hightide.protocol.columns import batch_at, open_batch, values_of
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import (
    CONTROL,
    HEADER_BYTES,
    Buffer,
    check_crc,
    iter_batches,
    parse_header,
    stamp,
)
from hightide_broker.ports import Disk

SNAPSHOT_SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
BATCH_RECORDS = 1000
_HEADER = "snapshot_header"
_FOOTER = "snapshot_footer"

Id = tuple[int, int]
"""(end offset, epoch)."""


# The last three for a mark that is no map, no text, or nests deeper than Python's stack.
_UNREADABLE = (
    CorruptBatch,
    msgspec.MsgspecError,
    AttributeError,
    UnicodeDecodeError,
    RecursionError,
)


class SnapshotDamaged(Exception):
    """The file is not a whole snapshot."""


def snapshot_path(directory: str, snapshot: Id) -> str:
    """Where a snapshot lies."""
    return f"{directory}/{snapshot[0]:020d}-{snapshot[1]:010d}{SNAPSHOT_SUFFIX}"


def list_snapshots(disk: Disk, directory: str) -> list[Id]:
    """The snapshots of a directory, oldest first."""
    found = []
    for name in disk.list(directory):
        end, dash, epoch = name.removesuffix(SNAPSHOT_SUFFIX).partition("-")
        if name.endswith(SNAPSHOT_SUFFIX) and dash and end.isdigit() and epoch.isdigit():
            found.append((int(end), int(epoch)))
    return sorted(found)


def remove_parts(disk: Disk, directory: str) -> None:
    """Drop what a crash left of unfinished snapshots."""
    for name in disk.list(directory):
        if name.endswith(PART_SUFFIX):
            disk.remove(f"{directory}/{name}")


def encode_snapshot(values: Sequence[bytes], *, epoch: int, now_ms: int) -> Iterator[bytes]:
    """The batches of a snapshot of these changes."""
    offset = 0
    groups: list[tuple[Sequence[bytes], int]] = [([_mark(_HEADER)], CONTROL)]
    groups += [
        (values[start : start + BATCH_RECORDS], 0) for start in range(0, len(values), BATCH_RECORDS)
    ]
    groups.append(([_mark(_FOOTER)], CONTROL))
    for group, attributes in groups:
        batch = batch_at(now_ms, group, attributes=attributes)
        stamp(batch, base_offset=offset, leader_epoch=epoch)
        offset += len(group)
        yield bytes(batch)


def _mark(kind: str) -> bytes:
    return msgspec.msgpack.encode({"type": kind, "version": 1})


def read_snapshot(disk: Disk, directory: str, snapshot: Id) -> list[bytes]:
    """Its changes; raises `SnapshotDamaged` unless every byte of it is as it was written."""
    return _read(disk, snapshot_path(directory, snapshot), snapshot[1])


def _read(disk: Disk, path: str, epoch: int) -> list[bytes]:
    marks: list[object] = []
    values: list[bytes] = []
    try:
        data = disk.read_file(path)
        left, offset = len(data), 0
        for header, batch in iter_batches(data):
            check_crc(batch, header)
            if (header.base_offset, header.leader_epoch) != (offset, epoch):
                raise SnapshotDamaged(
                    f"{path} has batch {header.base_offset} of epoch {header.leader_epoch} where "
                    f"batch {offset} of epoch {epoch} belongs"
                )
            left, offset = left - header.size, header.next_offset
            found = values_of(open_batch(batch, header))
            if header.is_control:
                marks += [msgspec.msgpack.decode(value or b"").get("type") for value in found]
            elif marks != [_HEADER]:
                raise SnapshotDamaged(f"{path} does not begin as a snapshot")
            else:
                values += [value for value in found if value is not None]
    except _UNREADABLE as error:
        raise SnapshotDamaged(f"{path} is damaged: {error}") from error
    if marks != [_HEADER, _FOOTER] or left:
        raise SnapshotDamaged(f"{path} is not whole: it has {marks} and {left} bytes behind")
    return values


def read_piece(
    disk: Disk, directory: str, snapshot: Id, position: int, max_bytes: int
) -> tuple[int, bytes]:
    """(size of the whole file, up to `max_bytes` from `position`). Raises `DiskError`, and for the
    first piece `SnapshotDamaged`: who gathers all of them could use none."""
    path = snapshot_path(directory, snapshot)
    if position == 0:
        _read(disk, path, snapshot[1])
    file = disk.open(path)
    try:
        return file.size(), file.read(position, max_bytes)
    finally:
        file.close()


def written_at_ms(disk: Disk, directory: str, snapshot: Id) -> int:
    """When a snapshot was made, wherever that was, in ms since 1970. Raises `DiskError`."""
    file = disk.open(snapshot_path(directory, snapshot))
    try:
        return parse_header(file.read(0, HEADER_BYTES)).base_timestamp
    finally:
        file.close()


def remove_snapshot(disk: Disk, directory: str, snapshot: Id) -> None:
    """Drop a snapshot; fine if it is gone."""
    disk.remove(snapshot_path(directory, snapshot))


class SnapshotWriter:
    """A snapshot that is being written, or gathered from a leader; it counts once it is
    finished."""

    def __init__(self, disk: Disk, directory: str, snapshot: Id) -> None:
        self._disk = disk
        self._directory = directory
        self._epoch = snapshot[1]
        self._path = snapshot_path(directory, snapshot)
        disk.remove(f"{self._path}.part")
        self._file = disk.open(f"{self._path}.part", create=True)

    def append(self, data: Buffer) -> None:
        """Write the next piece behind those before."""
        self._file.append(data)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.size()

    def finish(self) -> None:
        """Make it durable, check it, and only then give it its name, durably.

        Raises `SnapshotDamaged` if it is not a whole snapshot, which leaves no trace.
        """
        self._disk.sync_now([self._file])
        try:
            _read(self._disk, f"{self._path}.part", self._epoch)
        except SnapshotDamaged:
            self.discard()
            raise
        self._file.close()
        self._disk.rename(f"{self._path}.part", self._path)
        self._disk.sync_now([], [self._directory])

    def discard(self) -> None:
        """Drop what is there."""
        self._file.close()
        self._disk.remove(f"{self._path}.part")
