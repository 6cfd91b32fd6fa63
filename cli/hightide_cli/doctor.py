"""`hightide doctor`: is this machine fit to run hightide, and if not, what to do about it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from hightide.protocol.errors import HightideError
from hightide.protocol.words import counted
from hightide_broker.runtime.base.system import sync_data
from hightide_cli.certs import SOON_DAYS
from hightide_cli.client_config import use_client_file
from hightide_cli.cluster import data_option
from hightide_cli.failures import UNHEALTHY
from hightide_cli.leaderless import NO_LEADER, REMEDY, known_quorum, leaderless
from hightide_cli.options import ask, output_option
from hightide_cli.output import show
from hightide_cli.processes import brokers_of, nodes_of
from hightide_cli.secure_cluster import CERTIFICATES

DISK_FREE_BYTES_MIN = 1 << 30
OPEN_FILES_MIN = 1024
SYNC_P50_S_MAX = 0.02
_SYNCS = 30
ASKED_S = 10.0
"""How long a cluster has to answer."""
OK, WARN, FAIL = "ok", "warn", "fail"


class Finding(NamedTuple):
    """One check's result; `advice` says what to do when it is not ok."""

    check: str
    status: str
    found: str
    advice: str = ""


@click.command(epilog="Example: hightide doctor --port 19092 -o json")
@data_option
@click.option(
    "--port", type=int, default=19092, show_default=True, help="The port a broker would use."
)
@click.option(
    "-c",
    "--broker-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Check what a broker would start with, too: its listeners and certificates.",
)
@output_option
def doctor(data: Path, port: int, broker_config: Path | None, output: str) -> None:
    """Check Python, Java, packages, port, disk, sync time, data directory and the cluster in it;
    exit 6 if one fails."""
    findings = list(examine(data, port, broker_config))
    show(
        [finding._asdict() for finding in findings],
        output,
        columns=["check", "status", "found", "advice"],
        key="check",
    )
    if any(finding.status == FAIL for finding in findings):
        raise click.exceptions.Exit(UNHEALTHY)


def examine(data: Path, port: int, broker_config: Path | None = None) -> Iterator[Finding]:
    """Every check, in order."""
    yield _python()
    yield _java()
    yield _spark()
    yield _port(data, port)
    yield from _quorum(data)
    yield _open_files()
    directory = _existing(data)
    yield _owner(data, directory)
    if (data / CERTIFICATES).exists():
        yield _certificates(data / CERTIFICATES)
    if broker_config is not None:
        yield _listeners(broker_config)
        yield from _metrics(broker_config)
    yield _space(directory)
    yield _sync_time(directory)


def _listeners(file: Path) -> Finding:
    """Whether strangers come in by what a configuration says, and its certificates are of use."""
    from hightide_broker.config import ConfigError, check_open, open_listeners
    from hightide_broker.runtime.server.door import doors_of
    from hightide_cli.server import load_config

    try:
        config = load_config(file, ())
        check_open(config)
        doors_of(config)
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        return Finding("listeners", FAIL, str(error), f"mend {file}")
    if found := open_listeners(config):
        advice = "only where nobody reaches it whom you do not trust: hightide certs"
        return Finding("listeners", WARN, f"open to all: {' and '.join(found)}", advice)
    return Finding("listeners", OK, "nobody comes in from elsewhere without proof")


def _metrics(file: Path) -> Iterator[Finding]:
    """Whether strangers are told metrics by what a configuration says."""
    from hightide_broker.config import ConfigError, open_metrics
    from hightide_cli.server import load_config

    try:
        place = open_metrics(load_config(file, ()))
    except (ConfigError, OSError, UnicodeDecodeError):
        return  # said of the listeners
    if place:
        found = f"all who reach {place} are told them: it asks nobody who they are"
        yield Finding("metrics", WARN, found, "metrics.listen on loopback, or a network of its own")


def _certificates(directory: Path) -> Finding:
    """Those of a secure cluster."""
    try:
        from hightide_broker.certificates import show_certificates
    except ModuleNotFoundError:
        found = f"{directory}, which nothing here can read"
        return Finding("certificates", WARN, found, "pip install 'hightide[secure]'")
    keys = [*directory.glob("*-key.pem")]
    if hidden := [key.name for key in keys if not os.access(key, os.R_OK)]:
        return Finding(
            "certificates", FAIL, f"{', '.join(hidden)}: not readable", "run as their owner"
        )
    if shown := [key.name for key in keys if key.stat().st_mode & 0o077]:
        return Finding(
            "certificates", FAIL, f"{', '.join(shown)}: others may read it", "chmod 600, and renew"
        )
    left = {Path(each.file).name: each.days_left for each in show_certificates(directory)}
    if not left:
        return Finding("certificates", FAIL, f"none in {directory}", "restore them from a copy")
    first = min(left, key=lambda name: left[name])
    state = f"{len(left)}, {first} is good for {counted(left[first], 'day')}"
    if left[first] < 0:
        state = f"{len(left)}, {first} has expired"
    advice = f"hightide certs renew {directory}"
    level = FAIL if left[first] < 0 else WARN if left[first] < SOON_DAYS else OK
    return Finding("certificates", level, state, "" if level == OK else advice)


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def _python() -> Finding:
    found = sys.version.split()[0]
    if not __debug__:
        return Finding("python", FAIL, f"{found} -O", "run without -O: asserts are guards here")
    return Finding("python", OK, found)


def _java() -> Finding:
    from hightide.java import NoJava, find_java

    try:
        return Finding("java", OK, str(find_java()))
    except NoJava as error:
        return Finding("java", WARN, "none", f"only Spark needs it: {error}")


def _spark() -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Finding("spark", OK, f"pyspark {version('pyspark')}, pyarrow {version('pyarrow')}")
    except PackageNotFoundError as error:
        return Finding("spark", WARN, f"{error.name} is missing", "pip install 'hightide[spark]'")


def _port(data: Path, port: int) -> Finding:
    for broker in nodes_of(data):
        if broker.pid() is not None and broker.facts().get("port") == port:
            return Finding("port", OK, f"{port} is served by broker {broker.node} of {data}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Finding("port", FAIL, f"{port}: {error.strerror}", "choose another with --port")
    return Finding("port", OK, f"{port} is free")


def _quorum(data: Path) -> Iterator[Finding]:
    """Whether somebody leads the cluster of this directory, if nodes of it run."""
    if not any(node.pid() for node in nodes_of(data)):
        return
    if (file := data / "client.toml").exists():
        use_client_file(file)
    try:
        found = ask(",".join(brokers_of(data)), ASKED_S, known_quorum)
    except HightideError as error:
        yield Finding("quorum", FAIL, f"cannot be asked: {error}", "hightide logs says more")
        return
    if found.leader == NO_LEADER:
        yield Finding(
            "quorum", FAIL, leaderless("the node that was asked"), f"{REMEDY}: hightide up"
        )
        return
    silent = [voter.id for voter in found.voters if voter.last_fetch_ms_ago < 0]
    said = f"node {found.leader} leads, of voters {[voter.id for voter in found.voters]}"
    if silent:
        yield Finding("quorum", WARN, f"{said}; not heard of: {silent}", REMEDY)
    else:
        yield Finding("quorum", OK, said)


def _open_files() -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft}, may be raised to {hard}"
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES_MIN:
        return Finding("open files", WARN, found, f"raise the limit to {OPEN_FILES_MIN} or more")
    return Finding("open files", OK, found)


def _owner(data: Path, directory: Path) -> Finding:
    if not os.access(directory, os.W_OK):
        return Finding(
            "data directory", FAIL, f"{directory} is not writable", "choose another --data"
        )
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        return Finding(
            "data directory", WARN, f"{directory} belongs to user {owner}", "run as its owner"
        )
    state = "exists" if data.exists() else "will be made"
    return Finding("data directory", OK, f"{data} {state}")


def _space(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    found = f"{free / (1 << 30):.1f} GiB free"
    if free < DISK_FREE_BYTES_MIN:
        return Finding("disk space", FAIL, found, "free some, or choose another --data")
    return Finding("disk space", OK, found)


def _sync_time(directory: Path) -> Finding:
    """How long appending 4 KiB and syncing it takes: what a synced acknowledgement costs."""
    try:
        times = sorted(_timed(directory))
    except OSError as error:
        why = f"{directory}: {error.strerror}"
        return Finding("sync time", FAIL, why, "make room or the disk writable, or another --data")
    p50, p99 = times[len(times) // 2], times[-1]
    found = f"p50 {p50 * 1000:.2f} ms, worst {p99 * 1000:.2f} ms"
    if p50 > SYNC_P50_S_MAX:
        return Finding("sync time", WARN, found, "slow disk: flush=replicated, or a faster one")
    return Finding("sync time", OK, found)


def _timed(directory: Path) -> Iterator[float]:
    clock: Callable[[], float] = time.perf_counter
    with tempfile.NamedTemporaryFile(dir=directory, prefix="hightide-doctor-") as file:
        for _ in range(_SYNCS):
            started = clock()
            os.write(file.fileno(), bytes(4096))
            sync_data(file.fileno())
            yield clock() - started
