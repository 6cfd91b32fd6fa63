"""Directories of partitions that are in nobody's way any more: to be deleted, or set aside.

`<name>.<topic id>-delete` goes later; `<name>.<topic id>-stray` belongs to no topic of this
cluster and stays until somebody decides; without a readable topic id it is `<name>.damaged-stray`.
A name that would be too long is shortened, and one that is taken gets a number. Source: Kafka's
LogManager.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from itertools import count

from hightide_broker.ports import Disk, DiskError
from hightide_broker.storage.checkpoint import (
    PARTITION_METADATA,
    MalformedCheckpoint,
    read_partition_metadata,
)

log = logging.getLogger("hightide.replicas")

NAME_BYTES_MAX = 255
"""Of one name in a directory, on every file system in use."""
DELETE = "-delete"


def rename_for_delete(disk: Disk, directory: str, name: str, topic_id: str) -> str:
    """Rename the directory of a deleted topic's partition; where it is then, to be removed."""
    return _rename(disk, directory, name, f"{topic_id}{DELETE}")


def set_aside(disk: Disk, directory: str, name: str) -> str:
    """Rename a directory that belongs to nobody here; where it is then."""
    try:
        topic_id = read_partition_metadata(disk, f"{directory}/{name}")
    except MalformedCheckpoint:
        topic_id = None
    return _rename(disk, directory, name, f"{topic_id or 'damaged'}-stray")


def clear_away(disk: Disk, directory: str, ours: Container[str]) -> list[str]:
    """Set aside the partitions in a data directory that are not `ours`; what is left of deleted
    ones, to be removed. What cannot be looked at is nothing that a broker made, and left alone."""
    pending = []
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if name.endswith(DELETE):
            pending.append(path)
        elif name not in ours:
            try:
                if is_partition(disk, directory, name):
                    aside = set_aside(disk, directory, name)
                    log.warning("%s is of no topic of this cluster, set aside: %s", path, aside)
            except DiskError as error:
                log.warning(
                    "%s is left alone: %s", path, error, extra={"event": "aside.left_alone"}
                )
    return pending


def _rename(disk: Disk, directory: str, name: str, mark: str) -> str:
    for number in count(1):
        ending = f".{mark}" if number == 1 else f".{number}.{mark}"
        path = f"{directory}/{name[: NAME_BYTES_MAX - len(ending)]}{ending}"
        if not disk.exists(path):
            disk.rename(f"{directory}/{name}", path)
            return path
    raise AssertionError("unreachable")


def is_partition(disk: Disk, directory: str, name: str) -> bool:
    """Whether a name in a data directory is that of a partition's log."""
    stem, dash, number = name.rpartition("-")
    return bool(stem and dash and number.isdigit()) and disk.exists(
        f"{directory}/{name}/{PARTITION_METADATA}"
    )


def has_records(disk: Disk, directory: str) -> bool:
    """Whether a directory holds segments with anything in them."""
    for name in disk.list(directory):
        if name.endswith(".log"):
            file = disk.open(f"{directory}/{name}")
            size = file.size()
            file.close()
            if size:
                return True
    return False
