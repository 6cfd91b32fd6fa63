"""Kafka's small text files, byte for byte: offset checkpoints, epoch checkpoints, partition
metadata.

The generic form is a version line `0`, a line with the number of entries, then one entry a line
with fields separated by one space. An empty file, or one with only a version line, has no entries.
What does not fit this form raises `MalformedCheckpoint`; the callers decide what may be rebuilt.
Source: Kafka's CheckpointFile. Files are replaced atomically by the Disk port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from operator import ne

from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.ports import Disk

HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
OFFSET_FILES = (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS)
"""The offset checkpoints of a data directory."""
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
_VERSION = "0"
_DIGITS_MAX = 19
"""Of a number of 64 bits."""
_DAMAGED_BYTES_MAX = 2
"""In which a topic id may differ from another one and is still taken for it, damaged."""


class MalformedCheckpoint(Exception):
    """A checkpoint file is there and is not one; the message names file and line."""


def format_entries(entries: Iterable[tuple[object, ...]]) -> bytes:
    """The file of these entries."""
    lines = [" ".join(str(field) for field in entry) for entry in entries]
    return "".join(f"{line}\n" for line in (_VERSION, str(len(lines)), *lines)).encode()


def parse_entries(path: str, data: bytes, fields: int) -> list[list[str]]:
    """The entries of a file, each with exactly `fields` fields."""
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise MalformedCheckpoint(f"{path} is not text") from error
    if not lines:
        return []
    if lines[0] != _VERSION:
        raise MalformedCheckpoint(f"{path} has version {lines[0]!r}, expected {_VERSION!r}")
    if len(lines) == 1:
        return []
    if not _is_number(lines[1]) or int(lines[1]) != len(lines) - 2:
        raise MalformedCheckpoint(f"{path} announces {lines[1]!r} entries and has {len(lines) - 2}")
    entries = [line.split(" ") for line in lines[2:]]
    for number, entry in enumerate(entries, 3):
        if len(entry) != fields or not all(map(_is_number, entry[-2:])):
            raise MalformedCheckpoint(f"{path} line {number} is malformed: {lines[number - 1]!r}")
    return entries


def _is_number(text: str) -> bool:
    return text.isdigit() and len(text) <= _DIGITS_MAX


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """topic-partition → offset; empty if there is no file."""
    if not disk.exists(path):
        return {}
    entries = parse_entries(path, disk.read_file(path), 3)
    return {
        TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in entries
    }


def write_offsets(
    disk: Disk,
    path: str,
    offsets: Mapping[TopicPartition, int],
    *,
    unless: Callable[[], bool] | None = None,
) -> None:
    """Replace an offset checkpoint; lines are sorted by topic and partition."""
    entries = sorted((topic, partition, offset) for (topic, partition), offset in offsets.items())
    disk.replace(path, format_entries(entries), unless=unless)


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset), both rising; empty if there is no file."""
    if not disk.exists(path):
        return []
    entries = [
        (int(epoch), int(start)) for epoch, start in parse_entries(path, disk.read_file(path), 2)
    ]
    for before, after in pairwise(entries):
        if before[0] >= after[0] or before[1] >= after[1]:
            raise MalformedCheckpoint(f"{path}: epochs {before} and {after} do not both rise")
    return entries


def write_epochs(
    disk: Disk,
    path: str,
    entries: Iterable[tuple[int, int]],
    *,
    unless: Callable[[], bool] | None = None,
) -> None:
    """Replace a leader epoch checkpoint."""
    disk.replace(path, format_entries(entries), unless=unless)


def write_partition_metadata(disk: Disk, directory: str, topic_id: str) -> None:
    """Remember which topic (not only which name) a directory belongs to, before any data."""
    disk.replace(f"{directory}/{PARTITION_METADATA}", _partition_metadata(topic_id))


def mend_partition_metadata(disk: Disk, directory: str, topic_id: str) -> bool:
    """Write again a file that says all but this topic id; whether it had to be.

    No checksum is in Kafka's form. But two topic ids differ nearly everywhere, so one that differs
    in a byte or two is this one, damaged, and what is stored beside it belongs to no other topic.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    if not disk.exists(path):
        return False
    found, expected = disk.read_file(path), _partition_metadata(topic_id)
    wrong = sum(map(ne, found, expected))
    if len(found) != len(expected) or not 0 < wrong <= _DAMAGED_BYTES_MAX:
        return False
    disk.replace(path, expected)
    return True


def _partition_metadata(topic_id: str) -> bytes:
    return f"version: 0\ntopic_id: {topic_id}\n".encode()


def read_partition_metadata(disk: Disk, directory: str) -> str | None:
    """The topic id of a partition directory; None if it has none yet."""
    path = f"{directory}/{PARTITION_METADATA}"
    if not disk.exists(path):
        return None
    lines = disk.read_file(path).decode("ascii", "replace").splitlines()
    if len(lines) != 2 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        raise MalformedCheckpoint(f"{path} is malformed: {lines!r}")
    return lines[1].removeprefix("topic_id: ")
