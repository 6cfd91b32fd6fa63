"""`hightide doctor`: is this machine fit to run hightide, and if not, what to do about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hightide.protocol.errors import HightideError
from hightide.protocol.words import counted
from hightide_cli.certs import SOON_DAYS
from hightide_cli.client_config import use_client_file
from hightide_cli.cluster import data_option
from hightide_cli.failures import UNHEALTHY
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
from hightide_cli.leaderless import NO_LEADER, REMEDY, known_quorum, leaderless
from hightide_cli.options import ask, output_option
from hightide_cli.output import show
from hightide_cli.processes import brokers_of, nodes_of
from hightide_cli.secure_cluster import CERTIFICATES, CLIENT_FILE

OPEN_FILES_MIN = 1024
ASKED_S = 10.0
"""How long a cluster has to answer."""


@click.command(epilog="Example: hightide doctor --port 19092 -o json")
@data_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=19092,
    show_default=True,
    help="The port a broker would use.",
)
@click.option(
    "-c",
    "--broker-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Check what a node would start with, instead of --data and --port: its directory, ports, "
    "voters, certificates, permissions, limits.",
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
    """Every check, in order; of a node's configuration instead of a local cluster, if one is
    given."""
    yield _python()
    yield _java()
    yield _spark()
    if broker_config is not None:
        from hightide_cli.doctor_config import examine_config

        yield _open_files()
        yield from examine_config(broker_config)
        return
    yield _port(data, port)
    yield from _quorum(data)
    yield _open_files()
    directory = existing(data)
    yield _owner(data, directory)
    if (data / CERTIFICATES).exists():
        yield _certificates(data / CERTIFICATES)
    yield space_left(directory)
    yield sync_time(directory)


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
    if why := why_not_bound("127.0.0.1", port):
        return Finding("port", FAIL, f"{port}: {why}", "choose another with --port")
    return Finding("port", OK, f"{port} is free")


def _quorum(data: Path) -> Iterator[Finding]:
    """Whether somebody leads the cluster of this directory, if nodes of it run."""
    if not any(node.pid() for node in nodes_of(data)):
        return
    if (file := data / CLIENT_FILE).exists():
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
    silent = found.silent
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
