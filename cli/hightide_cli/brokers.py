"""`hightide brokers` and `hightide quorum`: who serves, and who decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hightide_cli.failures import NOT_FOUND, UNHEALTHY
from hightide_cli.options import ask, client_options, print_table, say, show, show_one

if TYPE_CHECKING:
    from hightide import Admin


@click.group()
def brokers() -> None:
    """List and describe brokers."""


@brokers.command(name="list", epilog="Example: hightide brokers list -o json")
@client_options
def list_(bootstrap: str, output: str, timeout_s: float) -> None:
    """Every registered broker, fenced ones too."""
    found = ask(bootstrap, timeout_s, _describe_cluster)
    rows = [_row(broker) for broker in sorted(found.brokers, key=lambda each: each.id)]
    columns = ["id", "host", "port", "rack", "roles", "fenced", "epoch"]
    show(rows, output, columns=columns, key="id")


@brokers.command(epilog="Example: hightide brokers describe 2")
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


@click.group()
def quorum() -> None:
    """Show the quorum of controllers."""


@quorum.command(epilog="Example: hightide quorum status -o json")
@client_options
def status(bootstrap: str, output: str, timeout_s: float) -> None:
    """Who leads the metadata quorum, and how far every voter and observer has followed."""
    found = ask(bootstrap, timeout_s, _describe_quorum)
    fields = {
        "cluster_id": found.cluster_id,
        "leader": found.leader,
        "epoch": found.epoch,
        "high_watermark": found.high_watermark,
        "voters": [_replica(each) for each in found.voters],
        "observers": [_replica(each) for each in found.observers],
    }
    if output == "quiet":
        click.echo(found.leader)
    elif output != "table":
        show_one(fields, output)
    else:
        show_one({name: fields[name] for name in list(fields)[:4]}, output)
        kinds = [("voter", each) for each in found.voters]
        kinds += [("observer", each) for each in found.observers]
        columns = ["id", "kind", "log_end_offset", "lag", "last_fetch_ms_ago"]
        rows = [
            [str(r.id), kind, str(r.log_end_offset), str(r.lag), str(r.last_fetch_ms_ago)]
            for kind, r in kinds
        ]
        print_table(rows, columns)
    silent = [voter.id for voter in found.voters if voter.last_fetch_ms_ago < 0]
    if silent:
        say(f"not heard of in epoch {found.epoch}: voters {silent}")
        raise click.exceptions.Exit(UNHEALTHY)


def _replica(replica: Any) -> dict[str, Any]:
    return {
        "id": replica.id,
        "log_end_offset": replica.log_end_offset,
        "lag": replica.lag,
        "last_fetch_ms_ago": replica.last_fetch_ms_ago,
        "last_caught_up_ms_ago": replica.last_caught_up_ms_ago,
    }


async def _describe_quorum(admin: Admin) -> Any:
    return await admin.describe_quorum()
