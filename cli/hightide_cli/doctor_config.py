"""`hightide doctor -c broker.toml`: would a node start with this configuration, here and now, and
does what it sets protect anything."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hightide.protocol.words import counted
from hightide_broker import config_keys as keys
from hightide_broker.config import (
    BrokerConfig,
    ConfigError,
    check_open,
    listens_at,
    open_listeners,
    open_metrics,
)
from hightide_broker.formatting import directory_of
from hightide_broker.ports import RESERVE_BYTES, DiskError
from hightide_broker.runtime.base.disk import RealDisk, descriptors_beside_the_disk
from hightide_broker.runtime.server.door import doors_of, end_of, files_of
from hightide_broker.runtime.server.room import room_for
from hightide_broker.storage.directory import (
    METADATA_DIRECTORY,
    WrongDirectory,
    check_owner,
    read_meta,
)
from hightide_cli.certs import SOON_DAYS
from hightide_cli.findings import (
    FAIL,
    OK,
    WARN,
    Finding,
    existing,
    space_left,
    sync_time,
    why_not_bound,
)
from hightide_cli.listening import owner_of, who_listens
from hightide_cli.server import load_config
from hightide_cli.voters_kept import recorded_voters

if TYPE_CHECKING:
    from hightide_broker.core.quorum.roles import Voter

REACHED_S = 2.0
"""How long another controller has to take a connection."""
CLOCK_S_MAX = 60.0
"""A file may be so much younger than now: file systems have clocks of their own."""
DAY_S = 86_400.0
BEGUN = 1_767_225_600.0
"""2026 in seconds since 1970: no clock that is right stands before it."""


def examine_config(file: Path) -> Iterator[Finding]:
    """Every check, in order; nothing but the first, if nothing can be read."""
    try:
        config = load_config(file, ())
        directory = Path(directory_of(config))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        yield Finding("listeners", FAIL, str(error), f"mend {file}")
        return
    owner = owner_of(directory)
    yield _listeners(file, config)
    yield from _metrics(config)
    yield from _permissions(config)
    yield from _certificates(config)
    yield _directory(config, directory, owner)
    yield _space(directory)
    yield from _ports(config, owner)
    yield from _voters(config, directory)
    yield _limits(config)
    yield _clock(directory)
    yield sync_time(existing(directory))


# -- what it lets in -------------------------------------------------------------------------------


def _listeners(file: Path, config: BrokerConfig) -> Finding:
    """Whether strangers come in, and whether its certificates are of use."""
    try:
        check_open(config)
        doors_of(config)
    except (ConfigError, OSError) as error:
        return Finding("listeners", FAIL, str(error), f"mend {file}")
    if found := open_listeners(config):
        advice = "only where nobody reaches it whom you do not trust: hightide certs"
        return Finding("listeners", WARN, f"open to all: {' and '.join(found)}", advice)
    return Finding("listeners", OK, "nobody comes in from elsewhere without proof")


def _metrics(config: BrokerConfig) -> Iterator[Finding]:
    """Whether strangers are told metrics."""
    if place := open_metrics(config):
        found = f"all who reach {place} are told them: it asks nobody who they are"
        yield Finding("metrics", WARN, found, "metrics.listen on loopback, or a network of its own")


def _permissions(config: BrokerConfig) -> Iterator[Finding]:
    """Whether who proves who they are is then kept from anything."""
    is_on = config[keys.AUTHORIZER_ENABLE]
    users = [each.strip() for each in config[keys.SUPER_USERS].split(";") if each.strip()]
    if not is_on and config.clients_prove:
        found = "clients prove who they are, and then may do anything"
        yield Finding("permissions", WARN, found, "authorizer.enable = true, and super.users")
    elif not is_on:
        yield Finding("permissions", OK, "not asked for, as nobody proves who they are")
    elif "User:ANONYMOUS" in users:
        found = "super.users has User:ANONYMOUS: who proves nothing may do anything"
        yield Finding("permissions", FAIL, found, "take it out")
    elif config[keys.ALLOW_EVERYONE_IF_NO_ACL_FOUND]:
        found = "allow.everyone.if.no.acl.found: what no rule names is open to everybody"
        yield Finding("permissions", WARN, found, "set it to false once there are rules")
    elif not users:
        found = "super.users is empty: nobody may make the first rule"
        yield Finding("permissions", WARN, found, "super.users = 'User:admin'")
    else:
        yield Finding("permissions", OK, f"by rules; {', '.join(users)} may do anything")


def _certificates(config: BrokerConfig) -> Iterator[Finding]:
    """How long those of each listener are good for, and who may read their keys."""
    for listener, files in files_of(config).items():
        try:
            end, mode = end_of(files.certificate), os.stat(files.key or files.certificate).st_mode
        except (OSError, ValueError):
            continue  # said of the listeners
        yield _certificate(f"{listener} certificate", files.certificate, end, mode)


def _certificate(check: str, path: str, end: float | None, mode: int) -> Finding:
    if mode & 0o077:
        return Finding(check, WARN, f"others may read the key of {path}", "chmod 600, and renew it")
    if end is None:
        found = f"{path}: nothing here can read how long it is good for"
        return Finding(check, WARN, found, "pip install 'hightide[secure]'")
    days = int((end - time.time()) // DAY_S)
    if days < 0:
        return Finding(check, FAIL, f"{path} has expired", "renew it: hightide certs renew")
    found = f"{path} is good for {counted(days, 'day')}"
    if days < SOON_DAYS:
        return Finding(check, WARN, found, "renew it: hightide certs renew")
    return Finding(check, OK, found)


# -- where it is -----------------------------------------------------------------------------------


def _directory(config: BrokerConfig, directory: Path, owner: int | None) -> Finding:
    """Whether the data directory is there, made for this node, and can be written."""
    check, node = "data directory", config[keys.NODE_ID]
    make = f"hightide storage format -c FILE --cluster-id ID makes it for node {node}"
    if not directory.is_dir():
        return Finding(check, FAIL, f"{directory} is not there", f"mount it; or {make}")
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        whose = f"{directory} is user {directory.stat().st_uid}'s, and not writable here"
        return Finding(check, FAIL, whose, "run as its owner, or chown it")
    try:
        meta = read_meta(RealDisk(writes=False), str(directory))
        if meta is None:
            return Finding(check, FAIL, f"{directory} is not formatted", f"mount it; or {make}")
        cluster = config[keys.CLUSTER_ID] or None
        check_owner(str(directory), meta, cluster_id=cluster, node_id=node)
    except (WrongDirectory, DiskError) as error:
        return Finding(check, FAIL, str(error), "name the right log.dirs, node.id and cluster.id")
    found = f"{directory} is of node {node} in cluster {meta.cluster_id}"
    if directory.stat().st_uid != os.geteuid():
        whose = f"{found}, and belongs to user {directory.stat().st_uid}"
        return Finding(check, WARN, whose, "run the node as its owner")
    used = f", used by process {owner}" if owner else ""
    return Finding(check, OK, f"{found}, directory {meta.directory_id}{used}")


def _space(directory: Path) -> Finding:
    """Room for records, beside what is set aside for metadata on a full disk."""
    found = space_left(existing(directory))
    said = f"{found.found}; {RESERVE_BYTES >> 20} MiB of the disk are set aside for metadata"
    return found._replace(found=said, advice=found.advice.replace("--data", "log.dirs"))


def _ports(config: BrokerConfig, owner: int | None) -> Iterator[Finding]:
    """Whether each port is free, or by whom it is taken."""
    for listener, (host, port) in listens_at(config).items():
        check = f"{listener} port"
        if not port:
            yield Finding(check, OK, f"any free one of {host}")
        elif not (why := why_not_bound(host, port)):
            yield Finding(check, OK, f"{host}:{port} is free")
        elif (taken := who_listens(port)) and taken.process == owner:
            yield Finding(check, OK, f"{host}:{port} is served by this node, process {owner}")
        else:
            by = f", taken by {taken}" if taken else ""
            yield Finding(check, FAIL, f"{host}:{port}: {why}{by}", "end that, or name another")


def _voters(config: BrokerConfig, directory: Path) -> Iterator[Finding]:
    """Whether the other controllers are reached, and are those that the metadata names."""
    node, voters = config[keys.NODE_ID], config.voters
    silent = [each for each in voters if each != node and not _is_reached(*voters[each])]
    said = _places(voters)
    if silent:
        nobody = f"{said}: no connection to {counted(len(silent), 'voter')} {silent}"
        yield Finding("voters", WARN, nobody, "start them, or mend controller.quorum.voters")
    elif node in voters and len(voters) == 1:
        yield Finding("voters", OK, f"node {node} alone")
    else:
        yield Finding("voters", OK, f"{said}: reached")
    recorded = recorded_voters(directory / METADATA_DIRECTORY)
    if recorded and (differs := _differences(config, recorded)):
        advice = "the record counts: hightide quorum add, remove, replace; name its addresses"
        yield Finding("recorded voters", WARN, differs, advice)
    elif recorded:
        yield Finding("recorded voters", OK, f"{[voter.id for voter in recorded]}, as configured")


def _differences(config: BrokerConfig, recorded: tuple[Voter, ...]) -> str:
    known = {voter.id: (voter.host, voter.port) for voter in recorded}
    voters = config.voters
    if not config[keys.CONTROLLER_QUORUM_VOTERS]:
        voters = {node: known.get(node, place) for node, place in voters.items()}
    if known == voters:
        return ""
    return f"the metadata has {_places(known)}, the configuration {_places(voters)}"


def _places(voters: dict[int, tuple[str, int]]) -> str:
    return ", ".join(f"{node}@{host}:{port}" for node, (host, port) in sorted(voters.items()))


def _is_reached(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=REACHED_S):
        return True
    return False


# -- what it needs ---------------------------------------------------------------------------------


def _limits(config: BrokerConfig) -> Finding:
    """Whether as many may come as max.connections says, by what a process may have open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = config[keys.MAX_CONNECTIONS]
    if hard == resource.RLIM_INFINITY:
        return Finding("max.connections", OK, f"{most}, and no limit of open files")
    # A node raises its limit as far as it may.
    room = room_for(connections_max=most, open_files=descriptors_beside_the_disk(hard)).clients
    if room < most:
        found = f"{most}, and {hard} open files leave room for {counted(room, 'connection')}"
        advice = "LimitNOFILE of the service, or ulimit -Hn; or a smaller max.connections"
        return Finding("max.connections", WARN, found, advice)
    return Finding("max.connections", OK, f"{most}, of {hard} open files")


def _clock(directory: Path) -> Finding:
    """Whether the clock can be right: it is not behind what this node has written already."""
    now = time.time()
    newest = max((entry.stat().st_mtime for entry in _files(directory)), default=0.0)
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    advice = "set the clock (timedatectl): retention, certificates and timestamps go by it"
    if now < BEGUN:
        return Finding("clock", FAIL, f"{shown}: no clock that is right says so", advice)
    if newest > now + CLOCK_S_MAX:
        found = f"{shown}, {newest - now:.0f} s before the newest file of {directory}"
        return Finding("clock", FAIL, found, advice)
    return Finding("clock", OK, shown)


def _files(directory: Path) -> Iterator[os.DirEntry[str]]:
    for place in (directory, directory / METADATA_DIRECTORY):
        with suppress(OSError), os.scandir(place) as entries:
            yield from (entry for entry in entries if entry.is_file())
