"""`up`, `ps`, `logs`, `down`: a cluster of broker processes on this machine, kept in one directory.

`<data>/broker-1` is a broker's data, `<data>/logs/broker-1.log` what it says,
`<data>/run/broker-1.json` where it serves. Whether a broker lives is asked of the lock on its data
directory, not of a process id, which may be somebody else's by now.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hightide_cli.failures import CONFLICT, NOT_FOUND, REFUSED, UNREACHABLE
from hightide_cli.options import output_option, run, say, show

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.02

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".hightide"),
    show_default=True,
    envvar="HIGHTIDE_DATA",
    help="The cluster's directory.",
)


@dataclass(frozen=True)
class BrokerProcess:
    """One broker of a data directory, alive or not."""

    data: Path
    node: int

    @property
    def directory(self) -> Path:
        return self.data / f"broker-{self.node}"

    @property
    def log_file(self) -> Path:
        return self.data / "logs" / f"broker-{self.node}.log"

    @property
    def ready_file(self) -> Path:
        return self.data / "run" / f"broker-{self.node}.json"

    def facts(self) -> dict[str, Any]:
        """What the broker wrote when it began to serve; empty if it never did."""
        try:
            found: dict[str, Any] = json.loads(self.ready_file.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def pid(self) -> int | None:
        """The process that holds the directory's lock; None if nobody does."""
        try:
            with (self.directory / ".lock").open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return int(file.read().strip() or 0) or None
                return None
        except OSError:
            return None

    def describe(self) -> dict[str, Any]:
        """A row of `ps`."""
        facts, pid = self.facts(), self.pid()
        return {
            "node": self.node,
            "pid": pid,
            "host": facts.get("host"),
            "port": facts.get("port"),
            "roles": ["broker", "controller"],
            "alive": pid is not None,
            "data": str(self.directory),
        }


def brokers_of(data: Path) -> list[BrokerProcess]:
    """The brokers of a data directory, by node id."""
    nodes = [
        int(path.name.removeprefix("broker-"))
        for path in data.glob("broker-*")
        if path.name.removeprefix("broker-").isdigit()
    ]
    return [BrokerProcess(data, node) for node in sorted(nodes)]


@click.command(epilog="Example: hightide up --detach --topic orders:3 --set flush=replicated")
@click.option("-n", "count", type=int, default=1, show_default=True, help="Brokers.")
@data_option
@click.option("--port", type=int, default=None, help="Port of the first broker [default: 19092].")
@click.option("--detach", is_flag=True, help="Return once it serves; `hightide down` stops it.")
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME[:P[:R]]", help="Topic to make if missing."
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A broker key.")
def up(
    count: int,
    data: Path,
    port: int | None,
    detach: bool,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
) -> None:
    """Start a cluster, wait until it serves, print its address; on the same --data it resumes."""
    from hightide_cli.server import load_config

    if count != 1:
        raise click.UsageError(f"-n {count}: this version runs clusters of one broker")
    new_topics = [_parse_topic(text) for text in topics]
    load_config(None, assignments)
    broker = BrokerProcess(data, 1)
    if (pid := broker.pid()) is not None:
        facts = broker.facts()
        say(f"already running: process {pid} serves {facts.get('host')}:{facts.get('port')}")
        raise click.exceptions.Exit(CONFLICT)
    process = start_broker(broker, port=port, assignments=assignments)
    facts = wait_until_serving(broker, process)
    address = f"{facts['host']}:{facts['port']}"
    try:
        run(_make_topics, address, new_topics)
        click.echo(address)
        if detach:
            say(f"cluster {facts['cluster_id']} is up; stop it with: hightide down --data {data}")
            return
        say("Ctrl-C stops it")
        _wait_in_foreground(broker, process)
    except BaseException:
        if not detach:
            stop_broker(broker)
        raise


def _parse_topic(text: str) -> tuple[str, int, int]:
    name, *numbers = text.split(":")
    if not name or len(numbers) > 2 or not all(number.isdigit() for number in numbers):
        raise click.UsageError(f"--topic {text!r}, expected NAME[:PARTITIONS[:REPLICAS]]")
    partitions, replicas = [*(int(number) for number in numbers), -1, -1][:2]
    return name, partitions, replicas


def start_broker(
    broker: BrokerProcess, *, port: int | None, assignments: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    """Start a broker's process; its output goes to its log file."""
    if port is None:
        port = int(broker.facts().get("port") or 19092)
    for path in (broker.directory, broker.log_file.parent, broker.ready_file.parent):
        path.mkdir(parents=True, exist_ok=True)
    broker.ready_file.unlink(missing_ok=True)
    keys = [
        f"node.id={broker.node}",
        f"log.dirs={broker.directory.resolve()}",
        f"listen.port={port}",
        *assignments,
    ]
    command = [sys.executable, "-m", "hightide_cli.main", "server", "start"]
    command += [word for key in keys for word in ("--set", key)]
    command += ["--ready-file", str(broker.ready_file.resolve())]
    with broker.log_file.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def wait_until_serving(broker: BrokerProcess, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The facts of a broker that serves; exits with the end of its log if it does not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        facts = broker.facts()
        if facts.get("pid") == process.pid:
            return facts
        if (code := process.poll()) is not None:
            say(f"broker {broker.node} did not start (exit code {code}); its log ends with:")
            say("\n".join(_tail(broker.log_file, 10)))
            raise click.exceptions.Exit(code if code > 0 else REFUSED)
        time.sleep(_POLL_S)
    process.terminate()
    say(f"broker {broker.node} does not serve after {START_TIMEOUT_S:.0f} s, see {broker.log_file}")
    raise click.exceptions.Exit(UNREACHABLE)


async def _make_topics(address: str, topics: list[tuple[str, int, int]]) -> None:
    from hightide import Admin, ApiError, ErrorCode

    if not topics:
        return
    async with Admin(address) as admin:
        for name, partitions, replicas in topics:
            try:
                await admin.create_topic(name, partitions=partitions, replication_factor=replicas)
            except ApiError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise


def _wait_in_foreground(broker: BrokerProcess, process: subprocess.Popen[bytes]) -> None:
    def stop(_: int, __: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        say("stopping")
        stop_broker(broker)
        return
    say(f"broker {broker.node} ended with exit code {code}, see {broker.log_file}")
    raise click.exceptions.Exit(REFUSED)


def stop_broker(broker: BrokerProcess, *, kill: bool = False) -> bool:
    """Stop a broker and wait until its directory is free; False if it still runs."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    asked = False
    while (pid := broker.pid()) is not None:
        if not asked:
            os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
            asked = True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _tail(path: Path, count: int) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return []


@click.command(epilog="Example: hightide ps -o json")
@data_option
@output_option
def ps(data: Path, output: str) -> None:
    """List the brokers of a data directory."""
    rows = [broker.describe() for broker in brokers_of(data)]
    show(
        rows, output, columns=["node", "pid", "host", "port", "roles", "alive", "data"], key="node"
    )


@click.command(epilog="Example: hightide logs -f")
@data_option
@click.option("--node", type=int, default=1, show_default=True, help="Which broker.")
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows.")
@click.option("-n", "lines", type=int, default=50, show_default=True, help="How many lines.")
def logs(data: Path, node: int, follow: bool, lines: int) -> None:
    """Print the end of a broker's log."""
    broker = BrokerProcess(data, node)
    if not broker.log_file.exists():
        say(f"there is no {broker.log_file}")
        raise click.exceptions.Exit(NOT_FOUND)
    with broker.log_file.open(errors="replace") as file:
        for line in file.read().splitlines()[-lines:] if lines else ():
            click.echo(line)
        while follow:
            line = file.readline()
            if line:
                click.echo(line, nl=False)
            else:
                time.sleep(0.1)


@click.command(epilog="Example: hightide down --data .hightide")
@data_option
@click.option("--kill", is_flag=True, help="kill -9: as a crash would.")
def down(data: Path, kill: bool) -> None:
    """Stop the cluster of a data directory; fine if it does not run."""
    for broker in brokers_of(data):
        pid = broker.pid()
        if pid is None:
            say(f"broker {broker.node} does not run")
        elif stop_broker(broker, kill=kill):
            say(f"broker {broker.node} (process {pid}) {'was killed' if kill else 'stopped'}")
        else:
            say(f"broker {broker.node} (process {pid}) still runs after {STOP_TIMEOUT_S:.0f} s")
            raise click.exceptions.Exit(UNREACHABLE)
