"""Node processes of a cluster on this machine, kept in one directory.

`<data>/cluster.json` says which nodes the cluster has, for ever; `<data>/broker-1` (or
`controller-101`) is a node's data, `<data>/logs/broker-1.log` what it says, and
`<data>/run/broker-1.json` where it serves. Whether a node lives is asked of the lock on its data
directory, not of a process id, which may be somebody else's by now.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hightide.protocol.words import counted
from hightide_broker.secure_local import first_users, make_secrets
from hightide_cli.children import Child, can_fork, fork, spawn
from hightide_cli.failures import CORRUPT, REFUSED, UNREACHABLE
from hightide_cli.output import say
from hightide_cli.secure_cluster import CERTIFICATES, keys_of

DEFAULT_PORT = 19092
QUIET_S = 300.0
"""How long a node that starts may say nothing in its log: a machine that is busy is only slow."""
STOP_TIMEOUT_S = 300.0
STOP_TOLD_S = 10.0
"""After so long it is said who is waited for."""
VOTERS = 3
"""Controllers of a cluster that is large enough."""
FIRST_CONTROLLER = 101
"""Ids of nodes that are controllers only begin here."""
_POLL_S = 0.02


def said_by_holder(path: Path) -> str | None:
    """What a file says that another process holds locked; None if none does, or there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return file.read()
    except OSError:
        return None
    return None


@dataclass(frozen=True)
class NodeProcess:
    """One node of a data directory, alive or not."""

    data: Path
    node: int
    roles: tuple[str, ...] = ("broker", "controller")

    @property
    def name(self) -> str:
        return f"{self.roles[0]}-{self.node}"

    @property
    def directory(self) -> Path:
        return self.data / self.name

    @property
    def log_file(self) -> Path:
        return self.data / "logs" / f"{self.name}.log"

    @property
    def ready_file(self) -> Path:
        return self.data / "run" / f"{self.name}.json"

    @property
    def is_formatted(self) -> bool:
        """Whether its data directory is there."""
        return (self.directory / "meta.properties").exists()

    def facts(self) -> dict[str, Any]:
        """What the node wrote when it began to serve; empty if it never did."""
        return _read_json(self.ready_file)

    def pid(self) -> int | None:
        """The process that holds the directory's lock; None if nobody does."""
        said = said_by_holder(self.directory / ".lock")
        return int((said or "").strip() or 0) or None

    def describe(self) -> dict[str, Any]:
        """A row of `ps`."""
        facts, pid = self.facts(), self.pid()
        return {
            "node": self.node,
            "pid": pid,
            "host": facts.get("host"),
            "port": facts.get("port"),
            "internal": facts.get("internal"),
            "metrics": facts.get("metrics"),
            "roles": list(self.roles),
            "alive": pid is not None,
            "data": str(self.directory),
        }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


# -- which nodes there are -------------------------------------------------------------------------


class PlanDamaged(click.ClickException):
    """`cluster.json` is there, and does not say which nodes the cluster has."""

    exit_code = CORRUPT

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is damaged: restore it from a copy; or, if no node runs, remove it and start "
            f"with the same -n, --roles and --port as before: the nodes keep their data"
        )


@dataclass(frozen=True)
class Plan:
    """The nodes of a cluster, their ports, and its id."""

    cluster_id: str
    nodes: tuple[tuple[NodeProcess, int], ...]
    internal: tuple[int, ...] = ()
    """Of a secure cluster, the ports that nodes reach each other by, in the same order."""

    @property
    def is_secure(self) -> bool:
        """Whether nobody comes in who does not log in."""
        return bool(self.internal)

    def security(self, process: NodeProcess) -> list[str]:
        """What a secure cluster sets for a node, as for --set."""
        ports = dict(zip(self.processes, self.internal, strict=False))
        return keys_of(process.data, process.node, ports[process]) if ports else []

    @property
    def processes(self) -> list[NodeProcess]:
        """The nodes."""
        return [process for process, _ in self.nodes]

    @property
    def brokers(self) -> int:
        """How many of the nodes are brokers."""
        return sum("broker" in process.roles for process in self.processes)

    @property
    def voters(self) -> str:
        """As in `controller.quorum.voters`; empty for a cluster of one controller on its own."""
        ports = self.internal or tuple(port for _, port in self.nodes)
        voters = [
            f"{process.node}@127.0.0.1:{port}"
            for process, port in zip(self.processes, ports, strict=True)
            if "controller" in process.roles
        ]
        return ",".join(voters) if len(self.nodes) > 1 else ""


def nodes_of(data: Path) -> list[NodeProcess]:
    """The nodes of a data directory; none if there never was a cluster."""
    plan = read_plan(data)
    return plan.processes if plan else []


def read_plan(data: Path) -> Plan | None:
    """What `cluster.json` says, None if there is none; raises `PlanDamaged`."""
    path = data / "cluster.json"
    if not path.exists():
        return None
    facts = _read_json(path)
    try:
        nodes = [
            (NodeProcess(data, node["node"], tuple(node["roles"])), node["port"])
            for node in facts["nodes"]
        ]
        internal = [node["internal_port"] for node in facts["nodes"] if "internal_port" in node]
        plan = Plan(facts["cluster_id"], tuple(nodes), tuple(internal))
    except (KeyError, TypeError) as error:
        raise PlanDamaged(path) from error
    if not nodes or len(internal) not in (0, len(nodes)):
        raise PlanDamaged(path)
    return plan


def brokers_of(data: Path) -> list[str]:
    """host:port of the brokers of a data directory, those that run first; raises `PlanDamaged`."""
    plan = read_plan(data)
    found: list[tuple[bool, str]] = []
    for node, port in plan.nodes if plan else ():
        row = node.describe()
        if "broker" in node.roles and (row["port"] or port):
            found.append((row["alive"], f"{row['host'] or '127.0.0.1'}:{row['port'] or port}"))
    return [address for _, address in sorted(found, key=lambda each: not each[0])]


def make_plan(
    data: Path,
    *,
    brokers: int,
    split: bool,
    port: int | None,
    formats: bool = False,
    replaced: Sequence[int] = (),
    secure: bool = False,
) -> Plan:
    """Decide which nodes a new cluster has, and write it down; with `formats`, once their
    directories are made.

    Node directories that are there already must be among them: their cluster goes on. It is no new
    one then: with `formats` any other directory counts as lost, and must be named in `replaced`.

    Three controllers where there are three brokers or more, or where they are nodes of their own;
    otherwise one: two would need each other, and so be weaker than one.
    """
    from hightide.net.ports import system_random
    from hightide_broker.runtime.cluster.controller import random_id

    both, broker, controller = ("broker", "controller"), ("broker",), ("controller",)
    voters = 0 if split else (VOTERS if brokers >= VOTERS else 1)
    roles = {node: both if node <= voters else broker for node in range(1, brokers + 1)}
    if split:
        roles |= dict.fromkeys(range(FIRST_CONTROLLER, FIRST_CONTROLLER + VOTERS), controller)
    nodes = [NodeProcess(data, node, roles[node]) for node in roles]
    known = [path for kind in ("broker-*", "controller-*") for path in sorted(data.glob(kind))]
    if strangers := sorted({path.name for path in known} - {node.name for node in nodes}):
        raise click.UsageError(
            f"{data} has no cluster.json that can be read, and holds {', '.join(strangers)} of a "
            f"cluster: restore the file, or start with the same -n and --roles as before; if this "
            f"cluster never served, remove {data} and begin again"
        )
    if known and not secure and (data / CERTIFICATES).exists():
        raise click.UsageError(
            f"{data} has no cluster.json that can be read, and held a secure cluster: restore the "
            f"file, or start it with --secure"
        )
    clusters = {node: _cluster_of(node.directory) for node in nodes}
    cluster_id = next(filter(None, clusters.values()), None)
    if replaced and not cluster_id:
        raise click.UsageError(f"--replace {replaced[0]}: there is no cluster yet")
    count = len(nodes)
    ports = _ports(port, 2 * count if secure else count)
    plan = Plan(
        cluster_id or random_id(system_random()),
        tuple(zip(nodes, ports[:count], strict=True)),
        tuple(ports[count:]),
    )
    if secure:
        data.mkdir(parents=True, exist_ok=True)
        make_secrets(data / CERTIFICATES, [node.node for node in nodes])
    if formats and cluster_id:
        _check_lost(data, [node for node in nodes if not clusters[node]], replaced)
    elif formats:
        format_nodes(plan, plan.processes)
    _write_plan(data, plan)
    return plan


def _check_lost(data: Path, lost: Sequence[NodeProcess], replaced: Sequence[int]) -> None:
    """Raise `UsageError` unless somebody says that these directories are to be made again: a voter
    that was made as if its cluster were new would vote without knowing what it promised."""
    unnamed = [node for node in lost if node.node not in replaced]
    if unnamed:
        names = ", ".join(node.name for node in unnamed)
        words = " ".join(f"--replace {node.node}" for node in unnamed)
        raise click.UsageError(
            f"{data} has directories of a cluster, but neither cluster.json nor {names}: restore "
            f"what was lost, or give it up with {words}; if this cluster never served, remove "
            f"{data} and begin again"
        )


def _write_plan(data: Path, plan: Plan) -> None:
    """Keep it, durably; raises `OSError`."""
    from hightide_broker.ports import DiskError
    from hightide_broker.runtime.base.disk import RealDisk

    nodes: list[dict[str, Any]] = [
        {"node": process.node, "roles": process.roles, "port": port} for process, port in plan.nodes
    ]
    for node, port in zip(nodes, plan.internal, strict=False):
        node["internal_port"] = port
    text = json.dumps({"cluster_id": plan.cluster_id, "nodes": nodes}, indent=2)
    disk = RealDisk()
    try:
        disk.make_dirs(str(data))
        disk.replace(str(data / "cluster.json"), f"{text}\n".encode())
    except DiskError as error:
        raise OSError(str(error)) from error


def forget_plan(data: Path) -> None:
    """The cluster never served: its nodes and ports may be chosen again."""
    (data / "cluster.json").unlink(missing_ok=True)


def _cluster_of(directory: Path) -> str:
    """The cluster that a data directory belongs to already; empty if it is new."""
    from hightide_broker.runtime.base.disk import RealDisk
    from hightide_broker.storage.directory import read_meta

    meta = read_meta(RealDisk(), str(directory)) if directory.exists() else None
    return meta.cluster_id if meta else ""


def _ports(first: int | None, count: int) -> list[int]:
    """Ports in a row from `first`; free ones wherever they are if that is 0."""
    if first != 0:
        ports = [(first or DEFAULT_PORT) + number for number in range(count)]
        if not 1 <= ports[0] <= ports[-1] <= 65535:
            raise click.UsageError(
                f"--port {first} for {counted(count, 'node')}, expected 0 or "
                f"{counted(count, 'port')} from 1 to 65535"
            )
        return ports
    from hightide.net.tcp import free_ports

    return [0] if count == 1 else free_ports(count)


# -- starting and stopping -------------------------------------------------------------------------


def _keys(process: NodeProcess, *, port: int, cluster_id: str, voters: str) -> list[str]:
    """What is set for one node, as for --set."""
    keys = [
        f"node.id={process.node}",
        f"log.dirs={process.directory.resolve()}",
        f"listen.port={port}",
        f"process.roles={','.join(process.roles)}",
    ]
    keys += [f"cluster.id={cluster_id}"] if cluster_id else []
    keys += [f"controller.quorum.voters={voters}"] if voters else []
    return keys


def format_nodes(plan: Plan, nodes: Sequence[NodeProcess], *, joining: bool = False) -> None:
    """Make the directories of nodes: of a new cluster, or, `joining`, of one that exists."""
    from hightide.net.ports import system_random
    from hightide_broker.config import make_config, read_assignments
    from hightide_broker.formatting import format_node
    from hightide_broker.runtime.base.disk import RealDisk

    ports = dict(plan.nodes)
    data = plan.processes[0].data
    users = first_users(data / CERTIFICATES) if plan.is_secure and not joining else []
    for node in nodes:
        keys = _keys(node, port=ports[node], cluster_id=plan.cluster_id, voters=plan.voters)
        config = make_config(read_assignments(tuple(keys)))
        format_node(config, RealDisk(), system_random(), joining=joining, users=users)


def start_node(
    process: NodeProcess,
    *,
    port: int,
    cluster_id: str = "",
    voters: str = "",
    assignments: Sequence[str] = (),
    door: Callable[[], None] | None = None,
) -> Child:
    """Start a node's process; its output goes to its log file. With the `door` of the command line
    it is a copy of this one, which has no event loop, where that can be."""
    for path in (process.log_file.parent, process.ready_file.parent):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    process.ready_file.unlink(missing_ok=True)
    keys = _keys(process, port=port, cluster_id=cluster_id, voters=voters)
    keys.append("metrics.listen=0")
    words = ["server", "start", "--ready-file", str(process.ready_file.resolve())]
    words += [word for key in (*keys, *assignments) for word in ("--set", key)]
    with process.log_file.open("ab") as output:
        if door is not None and can_fork():
            return fork(door, words, output, name=process.name)
        return spawn([sys.executable, "-m", "hightide_cli.main", *words], output)


def wait_for_all(
    processes: Mapping[NodeProcess, Child],
) -> dict[NodeProcess, dict[str, Any]]:
    """The facts of nodes, once all of them serve; exits when the first one ends instead, or when
    they are alive and nothing has moved for `QUIET_S`."""
    moved_at, before = time.monotonic(), None
    while time.monotonic() - moved_at < QUIET_S:
        if (now := [_written(node) for node in processes]) != before:
            moved_at, before = time.monotonic(), now
        facts = {node: node.facts() for node in processes}
        at_work = {node: _at_work(node, process) for node, process in processes.items()}
        if all(pid and facts[node].get("pid") == pid for node, pid in at_work.items()):
            return facts
        for node, process in processes.items():
            if at_work[node] is None and (code := process.poll()) is not None:
                say(f"{node.name} did not start (exit code {code}); its log ends with:")
                said = _last_words(tail(node.log_file, 10))
                say("\n".join(said))
                if said and "cannot listen on" in said[-1]:
                    say("another cluster may have the port (hightide ps): --port takes others")
                raise click.exceptions.Exit(code if code > 0 else REFUSED)
        time.sleep(_POLL_S)
    silent = [node for node, pid in at_work.items() if node.facts().get("pid") != pid]
    for node in silent:
        say(f"{node.name} does not serve and says nothing for {QUIET_S:.0f} s: {node.log_file}")
    raise click.exceptions.Exit(UNREACHABLE)


def _at_work(node: NodeProcess, process: Child) -> int | None:
    """The process that starts, or serves, a node: the one that was started for it, or the one that
    was there first: an `up` that was killed leaves what it had started."""
    return process.pid if process.poll() is None else node.pid()


def _last_words(lines: list[str]) -> list[str]:
    """Of a log's end what tells why a node ended: its last sentence, if there is one. What stands
    above that may be of an earlier run."""
    return lines[-1:] if lines and lines[-1].startswith("hightide: ") else lines


def _written(node: NodeProcess) -> tuple[int, bool]:
    """What shows that a node moves: its log grows, it serves."""
    return node.log_file.stat().st_size, node.ready_file.exists()


def stop_nodes(nodes: Sequence[NodeProcess], *, kill: bool = False) -> list[NodeProcess]:
    """Stop nodes and wait until their directories are free; those that still run.

    Brokers that are no controllers go first, because an orderly stop needs a controller.
    """
    first = [node for node in nodes if "controller" not in node.roles]
    rest = [node for node in nodes if "controller" in node.roles]
    return [left for group in (first, rest) for left in _stop_at_once(group, kill=kill)]


def stop_started(processes: Mapping[NodeProcess, Child]) -> list[NodeProcess]:
    """Stop nodes that were only just started, and may not hold their directories yet; those that
    still run."""
    # Not what another process holds: that is somebody else's.
    stop_nodes([node for node, process in processes.items() if node.pid() == process.pid])
    for process in processes.values():
        process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (left := [node for node in processes if processes[node].poll() is None]) and (
        time.monotonic() < deadline
    ):
        time.sleep(_POLL_S)
    return left


def _stop_at_once(nodes: Sequence[NodeProcess], *, kill: bool) -> list[NodeProcess]:
    begun = time.monotonic()
    left = [node for node in nodes if _signal(node, kill=kill)]
    is_told = False
    while left and (waited_s := time.monotonic() - begun) < STOP_TIMEOUT_S:
        if not (is_told or kill) and waited_s > STOP_TOLD_S:
            is_told = True
            names = ", ".join(
                f"{node.name} (process {pid})" for node in left if (pid := node.pid())
            )
            say(f"waiting for {names} to stop; `hightide down --kill` does not wait")
        time.sleep(_POLL_S)
        left = [node for node in left if node.pid() is not None]
    return left


def _signal(node: NodeProcess, *, kill: bool) -> bool:
    pid = node.pid()
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
    return pid is not None


def tail(path: Path, count: int) -> list[str]:
    """The last lines of a file."""
    try:
        return path.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return []
