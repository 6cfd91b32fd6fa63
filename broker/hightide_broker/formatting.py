"""A node's data directory: whose it is, and what is in a new one before the node starts.

A directory is made once, by somebody who says so (`hightide storage format`, the first `hightide
up`). A node that finds none does not make one: it would forget what it promised, and vote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from hightide.net.ports import Random
from hightide.protocol import login_messages as u
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig, ConfigError
from hightide_broker.core.cluster.changes import (
    AnyChange,
    SetScramCredential,
    decode_change,
    encode_change,
)
from hightide_broker.core.cluster.users import credential_of
from hightide_broker.ports import Disk
from hightide_broker.runtime.cluster.controller import random_id
from hightide_broker.storage.directory import (
    METADATA_DIRECTORY,
    Meta,
    WrongDirectory,
    check_owner,
    format_directory,
    read_meta,
)
from hightide_broker.storage.quorum_state import QUORUM_STATE, QuorumState, write_quorum_state
from hightide_broker.storage.runs import make_runs

FIRST_USERS = "first-users"
"""In a directory that was made with users: the first active controller that has it makes them."""
CLUSTER_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What a cluster may be called: `random_id`'s, or a name. It is a line of `meta.properties`."""


def directory_of(config: BrokerConfig) -> str:
    """`log.dirs` without a slash at its end; raises `ConfigError`."""
    directory = config[keys.LOG_DIRS].rstrip("/")
    if not directory:
        raise ConfigError("log.dirs is empty, expected a directory")
    return directory


class NotFormatted(WrongDirectory):
    """The data directory is empty: it was never made, is not mounted, or was lost."""


def format_node(
    config: BrokerConfig,
    disk: Disk,
    random: Random,
    *,
    joining: bool = False,
    users: Sequence[u.ScramUpsertion] = (),
) -> Meta:
    """Make a directory this node's, if it is not yet: for a new cluster, whose first `users` these
    are, or, `joining`, for one that exists, where it has no vote before it is admitted. Raises
    `ConfigError`, `WrongDirectory`, `DiskError`, and `Refused` for users that cannot be."""
    directory = directory_of(config)
    node = config[keys.NODE_ID]
    cluster = config[keys.CLUSTER_ID] or None
    meta = read_meta(disk, directory)
    if meta is None:
        _check_cluster_id(cluster)
        kept = _encoded(users)
        disk.make_dirs(directory)
        meta = Meta(cluster or random_id(random), node, random_id(random), joining)
        metadata = f"{directory}/{METADATA_DIRECTORY}"
        disk.make_dirs(metadata)
        if not disk.exists(f"{metadata}/{QUORUM_STATE}"):
            write_quorum_state(disk, metadata, QuorumState())
        make_runs(disk, directory)
        if users:
            disk.replace(f"{directory}/{FIRST_USERS}", kept)
        # The directory itself may have been made by somebody who did not sync its name.
        disk.sync_now([], [directory, directory.rpartition("/")[0] or "."])
        # Last: from here on, a quorum state that is missing was lost.
        format_directory(disk, directory, meta)
    check_owner(directory, meta, cluster_id=cluster, node_id=node)
    return meta


def _encoded(users: Sequence[u.ScramUpsertion]) -> bytes:
    """As they will stand in the metadata: not what logs somebody in."""
    kept = [(each.user, each.mechanism, credential_of(each)) for each in users]
    changes = [
        SetScramCredential(user=user, mechanism=mechanism, **credential._asdict())
        for user, mechanism, credential in kept
    ]
    return msgspec.msgpack.encode([encode_change(change) for change in changes])


def first_users(disk: Disk, directory: str) -> list[AnyChange]:
    """Those that the directory was made with; raises `WrongDirectory` or `DiskError`."""
    path = f"{directory}/{FIRST_USERS}"
    if not disk.exists(path):
        return []
    file = disk.open(path)
    try:
        found = msgspec.msgpack.decode(file.read(0, file.size()), type=list[bytes])
        return [decode_change(each) for each in found]
    except msgspec.MsgspecError as error:
        raise WrongDirectory(f"{path} is damaged: {error}") from error
    finally:
        file.close()


def _check_cluster_id(cluster: str | None) -> None:
    if cluster is not None and not CLUSTER_ID.fullmatch(cluster):
        raise ConfigError(
            f"cluster.id is {cluster[:80]!r}, expected at most 64 letters, digits, '.', '_' and "
            "'-', as `hightide storage id` prints them"
        )


def read_directory(config: BrokerConfig, disk: Disk) -> Meta:
    """Whose the directory is. Raises `NotFormatted`, `WrongDirectory` or `DiskError`."""
    directory, node = directory_of(config), config[keys.NODE_ID]
    meta = read_meta(disk, directory)
    if meta is None:
        lost = (
            f"make it again for the cluster that exists (hightide storage format --join, or "
            f"hightide up --replace {node})"
        )
        if {*config.voters} == {node}:
            lost = "so is what the cluster was, for it has no other controller"
        raise NotFormatted(
            f"{directory}, the data directory of node {node}, is not formatted: if it held data, "
            f"mount or restore it; if that is lost, {lost}; for a new cluster: hightide storage "
            f"format"
        )
    check_owner(directory, meta, cluster_id=config[keys.CLUSTER_ID] or None, node_id=node)
    return meta
