"""`hightide brokers`: who serves."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from hightide_cli.failures import NOT_FOUND, UNHEALTHY
from hightide_cli.leaderless import say_if_leaderless
from hightide_cli.options import Seconds, ask, client_options
from hightide_cli.output import say, show, show_one
from hightide_cli.watching import watchable

if TYPE_CHECKING:
    from hightide import Admin, ReplicaDescription

AGAIN_S = 0.5
"""How often `may-restart --wait` asks."""


@click.group()
def brokers() -> None:
    """List and describe brokers."""


@brokers.command(name="list", epilog="Example: hightide brokers list -o json")
@watchable
@client_options
def list_(bootstrap: str, output: str, timeout_s: float) -> None:
    """Every registered broker, fenced ones too."""
    found = ask(bootstrap, timeout_s, _describe_cluster)
    say_if_leaderless(found)
    rows = [_row(broker) for broker in sorted(found.brokers, key=lambda each: each.id)]
    columns = ["id", "host", "port", "rack", "roles", "fenced", "epoch"]
    show(rows, output, columns=columns, key="id")


@brokers.command(epilog="Example: hightide brokers describe 2")
@watchable
@click.argument("broker", type=int)
@client_options
def describe(broker: int, bootstrap: str, output: str, timeout_s: float) -> None:
    """One broker: where it is, the replicas it has, and what its disk has left for them."""
    found = ask(bootstrap, timeout_s, _describe_cluster)
    state = next((each for each in found.brokers if each.id == broker), None)
    if state is None:
        say(f"broker {broker} is not registered, only {sorted(b.id for b in found.brokers)}")
        raise click.exceptions.Exit(NOT_FOUND)
    say_if_leaderless(found)
    fields: dict[str, Any] = _row(state)
    if not state.fenced:
        held = ask(bootstrap, timeout_s, _log_dir_of, broker)
        fields |= {
            "replicas": len(held.replicas),
            "offline": _names(r for r in held.replicas if r.error),
            "waiting_for_room": _names(r for r in held.replicas if r.waits_for_room),
            "size_bytes": sum(r.size_bytes for r in held.replicas if not r.error),
            "free_bytes": held.free_bytes,
        }
    show_one(fields, output)


@brokers.command(
    name="may-restart", epilog="Example: hightide brokers may-restart 2 --wait 300 && systemctl …"
)
@click.argument("node", type=int)
@click.option(
    "--wait",
    "wait_s",
    type=Seconds(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long until it may.",
)
@client_options
def may_restart(node: int, wait_s: float, bootstrap: str, output: str, timeout_s: float) -> None:
    """Whether a node can be away for a while; exit 6 and why, if not.

    It may not while a partition would be left with fewer replicas in sync than acks=all needs, or
    the other controllers are no majority. Ask before each restart, one node after the other; the
    active controller last.
    """
    until = time.monotonic() + wait_s
    while True:
        why = ask(bootstrap, timeout_s, _why_not_restart, node)
        if not why or time.monotonic() >= until:
            break
        time.sleep(AGAIN_S)
    show_one({"node": node, "may_restart": not why, "why_not": why}, output)
    if why:
        raise click.exceptions.Exit(UNHEALTHY)


async def _why_not_restart(admin: Admin, node: int) -> list[str]:
    from hightide.admin.restarts import why_not_restart

    known = {broker.id for broker in (await admin.describe_cluster()).brokers}
    quorum = await admin.describe_quorum()
    if node not in known | {voter.id for voter in quorum.voters}:
        say(f"there is no node {node}, only {sorted(known)}")
        raise click.exceptions.Exit(NOT_FOUND)
    topics, min_isr = await admin.list_topics(), {}
    for topic in topics:
        if any(node in part.replicas for part in topic.partitions):
            configs = await admin.describe_configs("topic", topic.topic)
            (value,) = [each.value for each in configs if each.name == "min.insync.replicas"]
            min_isr[topic.topic] = int(value)
    return why_not_restart(node, topics, min_isr, quorum)


def _names(replicas: Iterable[ReplicaDescription]) -> list[str]:
    return sorted(f"{replica.topic}-{replica.partition}" for replica in replicas)


def _row(broker: Any) -> dict[str, Any]:
    return {
        "id": broker.id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "roles": list(broker.roles),
        "fenced": broker.fenced,
        "epoch": broker.epoch,
    }


async def _describe_cluster(admin: Admin) -> Any:
    return await admin.describe_cluster()


async def _log_dir_of(admin: Admin, broker: int) -> Any:
    (described,) = await admin.describe_log_dirs(brokers=[broker])
    return described
