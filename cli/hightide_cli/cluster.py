"""`up`, `ps`, `logs`, `down`: a cluster of node processes on this machine."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any

import click

from hightide.protocol.words import counted
from hightide_cli.children import Child, can_fork
from hightide_cli.client_config import client_settings, use_client_file
from hightide_cli.console_process import start_console, stop_console
from hightide_cli.failures import NOT_FOUND, REFUSED, UNREACHABLE
from hightide_cli.options import DATA, output_option, run
from hightide_cli.output import say, show
from hightide_cli.processes import (
    STOP_TIMEOUT_S,
    NodeProcess,
    Plan,
    format_nodes,
    make_plan,
    nodes_of,
    read_plan,
    start_node,
    stop_nodes,
    tail,
    wait_for_all,
)
from hightide_cli.secure_cluster import CLIENT_FILE, write_client_file
from hightide_cli.starting import Begun, Starting, stopping
from hightide_cli.watching import watchable

ADMISSION_S = 30.0
"""How long `up --replace` waits for a new directory to catch up with the metadata, and vote."""


class _Directory(click.Path):
    """A directory; an empty word, as of a variable that is not set, is none, and not this one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("'' is no directory", param, ctx)
        return super().convert(value, param, ctx)


data_option = click.option(
    "--data",
    type=_Directory(file_okay=False, path_type=Path),
    default=Path(DATA),
    show_default=True,
    envvar="HIGHTIDE_DATA",
    help="The cluster's directory.",
)


@click.command(epilog="Example: hightide up -n 3 --detach --topic orders:3 --set flush=replicated")
@click.option("-n", "count", type=click.IntRange(1, 100), help="Brokers [default: 1].")
@click.option(
    "--roles",
    type=click.Choice(["combined", "split"]),
    help="Controllers inside brokers (three of them from -n 3 on), or as three nodes of their own "
    "[default: combined].",
)
@data_option
@click.option(
    "--port", type=int, help="Port of the first node, the others follow [default: 19092]."
)
@click.option("--detach", is_flag=True, help="Return once it serves; `hightide down` stops it.")
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME[:P[:R]]", help="Topic to make if missing."
)
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A key of all nodes."
)
@click.option(
    "--secure",
    is_flag=True,
    help="TLS, users that log in, permissions: makes an administrator, and a client.toml for you.",
)
@click.option("--console", is_flag=True, help="Start a console beside it; `down` stops both.")
@click.option(
    "--replace",
    "replaced",
    multiple=True,
    type=int,
    metavar="NODE",
    help="Give a node whose disk was lost a new, empty directory; what only it held is gone.",
)
def up(
    count: int | None,
    roles: str | None,
    data: Path,
    port: int | None,
    detach: bool,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
    secure: bool,
    console: bool,
    replaced: tuple[int, ...],
) -> None:
    """Start a cluster, wait until it serves, print its address; on the same --data it resumes.
    Nodes that run already are left alone; if all do, their address is printed, and that is all."""
    from hightide_broker.config_keys import KAFKA_PROTOCOL_ENABLE
    from hightide_cli.server import load_config

    new_topics = [_parse_topic(text) for text in topics]
    config = load_config(None, assignments)
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    starting = Starting(data)
    before = read_plan(data)
    _check_replicas(new_topics, before.brokers if before else count or 1)
    with Begun(data, is_new=before is None) as begun:
        plan = _plan(data, count=count, roles=roles, port=port, replaced=replaced, secure=secure)
        missing = {node: planned for node, planned in plan.nodes if node.pid() is None}
        _tell_of([node for node in plan.processes if node not in missing])
        _check_replaced(plan, replaced)
        if not missing:
            begun.serves = True
            if assignments:
                say("--set is for nodes that start: nothing is changed")
            run(_make_topics, address := _reached(plan), new_topics)
            _say_where(plan, address, console=console)
            return
        format_nodes(plan, [node for node in missing if node.node in replaced], joining=True)
        if can_fork():
            import_module("hightide_cli.serving")  # once, for all of them
        begun.start(partial(_start, plan, missing, assignments), missing)
        wait_for_all(begun.processes)
        begun.serves, begun.stays = True, detach and len(missing) == 1
        address = _reached(plan)
        _admit(plan, replaced, address)
        run(_make_topics, address, new_topics)
        begun.stays = detach  # nobody may be left to print to, as with `| head`
        _say_where(plan, address, console=console, kafka=config[KAFKA_PROTOCOL_ENABLE])
        if detach:
            say(f"cluster {plan.cluster_id} is up; stop it with: {stopping(data)}")
            return
        starting.end()
        _wait_in_foreground(begun.processes)


def _as_ctrl_c(_: int, frame: FrameType | None) -> None:
    """SIGTERM is heard where Ctrl-C is, which an event loop hears when it can."""
    heard = signal.getsignal(signal.SIGINT)
    if not callable(heard):  # a shell has its background hear none
        heard = signal.default_int_handler
    heard(signal.SIGINT, frame)


def _start(
    plan: Plan,
    ports: Mapping[NodeProcess, int],
    assignments: tuple[str, ...],
    node: NodeProcess,
) -> Child:
    from hightide_cli.main import main

    return start_node(
        node,
        port=_port_of(node, ports[node]),
        cluster_id=plan.cluster_id,
        voters=plan.voters,
        assignments=(*plan.security(node), *assignments),
        door=main,
    )


def _tell_of(running: list[NodeProcess]) -> None:
    for node in running:
        if facts := node.facts():
            address = f"{facts['host']}:{facts['port']}"
            say(f"already running: process {node.pid()} serves {address}")


def _check_port(plan: Plan, port: int | None) -> None:
    """Raise `UsageError` if one node alone runs already, on another port than is asked for."""
    node = plan.processes[0]
    if not port or len(plan.nodes) > 1 or node.pid() is None:
        return
    if (taken := node.facts().get("port")) not in (None, port):
        raise click.UsageError(
            f"--port {port}: it runs on {taken}; stop it first: {stopping(node.data)}"
        )


def _address(plan: Plan) -> str:
    """host:port of every broker that serves."""
    found = []
    for node in plan.processes:
        if "broker" in node.roles:
            facts = node.facts()
            if "host" not in facts:
                raise click.ClickException(
                    f"process {node.pid()} uses {node.directory}, and no `up` started it: stop it"
                )
            found.append(f"{facts['host']}:{facts['port']}")
    return ",".join(found)


def _reached(plan: Plan) -> str:
    """The same, once this command may ask there."""
    address = _address(plan)
    file = write_client_file(plan.processes[0].data, address) if plan.is_secure else None
    # What the environment names may be of another cluster.
    use_client_file(file, over_environment=True)
    if file is not None:
        say(f"clients log in, you as its administrator: hightide --config {quote(str(file))} …")
    return address


def _say_where(plan: Plan, address: str, *, console: bool, kafka: bool = False) -> None:
    """Print where the cluster is; start a console beside it, and say where that is."""
    found = ""
    if console:  # first: nobody may be left to print to
        data = plan.processes[0].data
        words = ["--config", str(data / CLIENT_FILE)] if plan.is_secure else []
        found = start_console(data, address, words).address
    click.echo(address)
    if kafka:
        say("Kafka's clients may use the same address, as bootstrap.servers")
    if found:
        say(f"the console: {found}")


def _check_replaced(plan: Plan, replaced: tuple[int, ...]) -> None:
    """Raise `UsageError` unless the directories of these nodes may be made again."""
    nodes = {node.node: node for node in plan.processes}
    for number in replaced:
        node = nodes.get(number)
        if node is None:
            raise click.UsageError(f"--replace {number}: the cluster has nodes {sorted(nodes)}")
        if pid := node.pid():
            raise click.UsageError(
                f"--replace {number}: it runs, as process {pid}; stop it first: "
                f"{stopping(node.data)} --node {number}"
            )
        if node.is_formatted:
            raise click.UsageError(
                f"--replace {number}: {node.directory} is there and formatted. If an earlier "
                f"--replace made it, start the node; `hightide quorum replace {number}` has it "
                f"vote. If it is to begin again without what is in it, move it away first"
            )
    if replaced:
        _check_majority(plan, replaced)


def _check_majority(plan: Plan, replaced: tuple[int, ...]) -> None:
    """Raise `UsageError` unless enough controllers are left to admit those that are replaced."""
    from hightide_broker.core.quorum.progress import majority_of

    nodes = [node for node in plan.processes if "controller" in node.roles]
    controllers = [node.node for node in nodes]
    left = [node.node for node in nodes if node.is_formatted]
    if len(left) < majority_of(len(controllers)):
        raise click.UsageError(
            f"--replace {' '.join(map(str, replaced))}: of the controllers {controllers} only "
            f"{left} would be left, and a majority has to admit a new one: restore the directories "
            f"of more of them from a copy; if there is none, what the cluster was is lost, and a "
            f"new one begins in another --data"
        )


def _admit(plan: Plan, replaced: tuple[int, ...], address: str) -> None:
    """Have controllers that were replaced vote again, with their new directories."""
    from hightide_cli.quorum import replace_voter

    for node in plan.processes:
        if node.node in replaced and "controller" in node.roles:
            replace_voter(address, ADMISSION_S, node.node, None)


def _plan(
    data: Path,
    *,
    count: int | None,
    roles: str | None,
    port: int | None,
    replaced: tuple[int, ...],
    secure: bool,
) -> Plan:
    """The cluster's nodes: as they were, if there is one already."""
    plan = read_plan(data)
    if plan is None:
        return make_plan(
            data,
            brokers=count or 1,
            split=roles == "split",
            port=port,
            formats=True,
            replaced=replaced,
            secure=secure,
        )
    if secure and not plan.is_secure:
        raise click.UsageError(f"{data} holds a cluster that is open: it cannot be changed")
    brokers = plan.brokers
    is_split = not any(len(node.roles) > 1 for node in plan.processes)
    if count not in (None, brokers) or roles not in (None, "split" if is_split else "combined"):
        raise click.UsageError(
            f"{data} holds a cluster of {counted(brokers, 'broker')}, "
            f"{'split' if is_split else 'combined'}: its nodes cannot be changed"
        )
    if port is not None and len(plan.nodes) > 1 and port not in (0, plan.nodes[0][1]):
        raise click.UsageError(
            f"{data} holds a cluster on ports from {plan.nodes[0][1]}: they cannot be changed, "
            f"because its controllers know each other by them"
        )
    _check_port(plan, port)
    if port is not None and len(plan.nodes) == 1:
        return Plan(plan.cluster_id, ((plan.processes[0], port),), plan.internal)
    return plan


def _port_of(node: NodeProcess, planned: int) -> int:
    """A single node that chose its own port keeps it."""
    return planned or int(node.facts().get("port") or 0)


def _parse_topic(text: str) -> tuple[str, int, int]:
    """What is no topic is told before a node starts. Raises `click.UsageError`."""
    from hightide.protocol.errors import Refused
    from hightide_broker.core.cluster.controller import check_partition_count, check_topic_name

    name, *numbers = text.split(":")
    if not name or len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise click.UsageError(f"--topic {text!r}, expected NAME[:PARTITIONS[:REPLICAS]]")
    partitions, replicas = [*(int(number) for number in numbers), -1, -1][:2]
    try:
        check_topic_name(name, set())
        check_partition_count(partitions if numbers else 1)
    except Refused as refusal:
        raise click.UsageError(f"--topic {text!r}: {refusal.message}") from refusal
    return name, partitions, replicas


def _check_replicas(topics: list[tuple[str, int, int]], brokers: int) -> None:
    """Raise `UsageError`, before anything is begun, for more replicas than brokers."""
    for name, _, replicas in topics:
        if replicas > brokers:
            raise click.UsageError(
                f"--topic {name}: {counted(replicas, 'replica')} need as many brokers, and a new "
                f"cluster, with -n {replicas}: here it is {brokers}"
            )


async def _make_topics(address: str, topics: list[tuple[str, int, int]]) -> None:
    from hightide import Admin, ApiError, ErrorCode

    if not topics:
        return
    async with Admin(address, **client_settings()) as admin:
        for name, partitions, replicas in topics:
            try:
                await admin.create_topic(name, partitions=partitions, replication_factor=replicas)
            except ApiError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise


def _wait_in_foreground(processes: dict[NodeProcess, Child]) -> None:
    """Until Ctrl-C, or until no node is left; one that ends is told of."""
    say("Ctrl-C stops it")
    # Not what another process holds, which an `up` that was killed had started.
    running = {node: each for node, each in processes.items() if node.pid() in (None, each.pid)}
    if not running:
        return
    try:
        while running:
            for node, process in list(running.items()):
                if (code := process.poll()) is not None:
                    say(f"{node.name} ended with exit code {code}, see {node.log_file}")
                    del running[node]
            time.sleep(0.1)
    except KeyboardInterrupt:
        say("stopping")
        stop_console(next(iter(processes)).data)
        stop_nodes(list(processes))
        return
    raise click.exceptions.Exit(REFUSED)


def _no_cluster(data: Path) -> str:
    return f"there is no cluster in {data}; --data names another directory"


@click.command(epilog="Example: hightide ps -o json")
@watchable
@data_option
@output_option
def ps(data: Path, output: str) -> None:
    """List the nodes of a data directory.

    `internal` is where nodes reach each other, where they have listeners of their own for that.
    """
    rows: list[dict[str, Any]] = [node.describe() for node in nodes_of(data)]
    if not rows:
        say(_no_cluster(data))
    internal = ["internal"] if any(row["internal"] for row in rows) else []
    columns = ["node", "pid", "host", "port", *internal, "roles", "alive", "data"]
    show(rows, output, columns=columns, key="node")


@click.command(epilog="Example: hightide logs --node 2 -f")
@data_option
@click.option("--node", type=int, default=1, show_default=True, help="Which node.")
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows.")
@click.option(
    "-n",
    "lines",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="How many lines.",
)
def logs(data: Path, node: int, follow: bool, lines: int) -> None:
    """Print the end of a node's log."""
    found = [each for each in nodes_of(data) if each.node == node and each.log_file.exists()]
    if not found:
        say(f"there is no log of node {node} in {data}")
        raise click.exceptions.Exit(NOT_FOUND)
    if not follow:
        for line in tail(found[0].log_file, lines) if lines else ():
            click.echo(line)
        return
    with found[0].log_file.open(errors="replace") as file:
        for line in file.read().splitlines()[-lines:] if lines else ():
            click.echo(line)
        while True:
            line = file.readline()
            if line:
                click.echo(line, nl=False)
            else:
                time.sleep(0.1)


@click.command(epilog="Example: hightide down --node 2 --kill")
@data_option
@click.option("--kill", is_flag=True, help="kill -9: as a crash would.")
@click.option("--node", type=int, help="Only this node.")
def down(data: Path, kill: bool, node: int | None) -> None:
    """Stop the cluster of a data directory; fine if it does not run."""
    nodes = [each for each in nodes_of(data) if node in (None, each.node)]
    if node is not None and not nodes:
        say(f"there is no node {node} in {data}; --data names another directory")
        raise click.exceptions.Exit(NOT_FOUND)
    if not nodes:
        say(_no_cluster(data))
    if nodes and node is None:
        stop_console(data)
    pids = {node: node.pid() for node in nodes}
    left = stop_nodes(nodes, kill=kill)
    for each, pid in pids.items():
        if pid is None:
            say(f"{each.name} does not run")
        elif each in left:
            say(f"{each.name} (process {pid}) still runs after {STOP_TIMEOUT_S:.0f} s")
        else:
            say(f"{each.name} (process {pid}) {'was killed' if kill else 'stopped'}")
    if left:
        raise click.exceptions.Exit(UNREACHABLE)
