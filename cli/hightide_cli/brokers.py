"""`hightide brokers`: who serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hightide_cli.failures import NOT_FOUND
from hightide_cli.options import ask, client_options, say, show, show_one
from hightide_cli.watching import watchable

if TYPE_CHECKING:
    from hightide import Admin


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
    """One broker: where it is, and the replicas it has."""
    found = ask(bootstrap, timeout_s, _describe_cluster)
    state = next((each for each in found.brokers if each.id == broker), None)
    if state is None:
        say(f"broker {broker} is not registered, only {sorted(b.id for b in found.brokers)}")
        raise click.exceptions.Exit(NOT_FOUND)
    fields: dict[str, Any] = _row(state)
    if not state.fenced:
        replicas = ask(bootstrap, timeout_s, _replicas_of, broker)
        fields |= {
            "replicas": len(replicas),
            "offline": sorted(f"{r.topic}-{r.partition}" for r in replicas if r.error),
            "size_bytes": sum(r.size_bytes for r in replicas if not r.error),
        }
    show_one(fields, output)


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


async def _replicas_of(admin: Admin, broker: int) -> Any:
    (described,) = await admin.describe_log_dirs(brokers=[broker])
    return described.replicas
