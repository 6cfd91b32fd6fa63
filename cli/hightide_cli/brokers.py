"""`hightide brokers`: who serves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from hightide_cli.failures import NOT_FOUND
from hightide_cli.options import ask, client_options
from hightide_cli.output import say, show, show_one
from hightide_cli.watching import watchable

if TYPE_CHECKING:
    from hightide import Admin, ReplicaDescription


@click.group()
def brokers() -> None:
    """List and describe brokers."""


@brokers.command(name="list", epilog="Example: hightide brokers list -o json")
@watchable
@client_options
def list_(bootstrap: str, output: str, timeout_s: float) -> None:
    """Every registered broker, fenced ones too."""
    found = ask(bootstrap, timeout_s, _describe_cluster)
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
