"""A broker's data directory: whose it is, who uses it now, and how the last stop went.

`meta.properties` names cluster, node and directory; a directory of another cluster or node is
refused with both ids. `.lock` keeps a second process out. `.clean_shutdown` is there only after an
orderly stop, carries the broker epoch of that run, and is removed as soon as it is read, so that a
crash while loading counts as unclean. Source: KIP-858, KIP-966.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from hightide.protocol.records import crc32c
from hightide_broker.ports import Disk, Lock

META = "meta.properties"
METADATA_DIRECTORY = "__cluster_metadata-0"
"""Where the metadata log is, in the data directory."""
LOCK = ".lock"
RESERVE = ".reserve"
"""Room for what must be written on a full disk; see `ports.Disk.keep_reserve`."""
CLEAN_SHUTDOWN = ".clean_shutdown"
FORMAT_VERSION = "1"
_CHECKSUM = b"checksum="


class WrongDirectory(Exception):
    """The data directory belongs to somebody else, or was made by another version."""


class DirectoryDamaged(WrongDirectory):
    """`meta.properties` does not say whose the directory is."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What `meta.properties` says."""

    cluster_id: str
    node_id: int
    directory_id: str
    joining: bool = False
    """Whether the directory was made for a cluster that existed already: who forgot everything does
    not vote before it is admitted again (KIP-853)."""

    def format(self) -> bytes:
        """Kafka's properties file, with a line more, and one with a checksum of those before."""
        joining = "joining=true\n" if self.joining else ""
        said = (
            f"version={FORMAT_VERSION}\ncluster.id={self.cluster_id}\n"
            f"node.id={self.node_id}\ndirectory.id={self.directory_id}\n{joining}"
        ).encode()
        return said + _CHECKSUM + b"%08x\n" % crc32c(said)


def read_meta(disk: Disk, directory: str) -> Meta | None:
    """The directory's description; None if it has not been formatted. Raises `WrongDirectory`."""
    path = f"{directory}/{META}"
    if not disk.exists(path):
        return None
    data = disk.read_file(path)
    if not _is_whole(data):
        raise _damaged(path)
    lines = data.decode("utf-8", "replace").splitlines()
    pairs = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    try:
        if pairs["version"] != FORMAT_VERSION:
            raise WrongDirectory(
                f"{path} has version {pairs['version']}, expected {FORMAT_VERSION}"
            )
        return Meta(
            pairs["cluster.id"],
            int(pairs["node.id"]),
            pairs["directory.id"],
            pairs.get("joining") == "true",
        )
    except (KeyError, ValueError) as error:
        raise _damaged(path) from error


def _damaged(path: str) -> DirectoryDamaged:
    return DirectoryDamaged(
        f"{path} is damaged, expected version, cluster.id, node.id and directory.id as they were "
        f"written: restore it from a copy"
    )


def _is_whole(data: bytes) -> bool:
    """Whether it is what was written, as far as that is known: of older files it is not."""
    said, mark, checksum = data.partition(_CHECKSUM)
    return not mark or checksum == b"%08x\n" % crc32c(said)


def format_directory(disk: Disk, directory: str, meta: Meta) -> None:
    """Make a directory this node's; raises `WrongDirectory` if it is another's."""
    found = read_meta(disk, directory)
    if found is not None:
        check_owner(directory, found, cluster_id=meta.cluster_id, node_id=meta.node_id)
        return
    disk.make_dirs(directory)
    disk.replace(f"{directory}/{META}", meta.format())


def check_owner(directory: str, found: Meta, *, cluster_id: str | None, node_id: int) -> None:
    """Raise `WrongDirectory`, naming both ids, unless the directory is this node's."""
    if cluster_id is not None and found.cluster_id != cluster_id:
        raise WrongDirectory(
            f"{directory} belongs to cluster {found.cluster_id}, "
            f"this node is of cluster {cluster_id}"
        )
    if found.node_id != node_id:
        raise WrongDirectory(f"{directory} belongs to node {found.node_id}, this node is {node_id}")


def lock_directory(disk: Disk, directory: str) -> Lock:
    """Keep other processes out; raises `LockHeld`."""
    return disk.lock(f"{directory}/{LOCK}")


def take_clean_marker(disk: Disk, directory: str) -> int | None:
    """The broker epoch of the last run if it stopped in order, else None; the marker is gone
    after."""
    path = f"{directory}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return None
    data = disk.read_file(path)
    disk.remove(path)
    disk.sync_now([], [directory])
    try:
        return int(json.loads(data)["brokerEpoch"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def write_clean_marker(disk: Disk, directory: str, broker_epoch: int) -> None:
    """Say that everything was flushed and closed."""
    marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch})
    disk.replace(f"{directory}/{CLEAN_SHUTDOWN}", marker.encode())
