"""`hightide quotas`: how much users, clients and addresses may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.quota_messages import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    QUOTA_KEYS,
)
from hightide_cli.failures import NOT_FOUND
from hightide_cli.options import ask, client_options
from hightide_cli.output import say, show

if TYPE_CHECKING:
    from hightide import Admin, Quota

EXAMPLES = (
    "Examples: hightide quotas set --user alice producer_byte_rate=1MiB · hightide quotas set "
    "--client-id etl consumer_byte_rate=500KiB controller_mutation_rate=10 · hightide quotas set "
    "--ip '<default>' connection_creation_rate=50 · hightide quotas list · hightide quotas delete "
    "--user alice"
)
COLUMNS = ["user", "client_id", "ip", "key", "value"]
_COUNTS = (CONTROLLER_MUTATION_RATE, CONNECTION_CREATION_RATE)
"""Those that are of no bytes."""


@click.group(epilog=EXAMPLES)
def quotas() -> None:
    """Show and change how much users and clients may do in a second: producer_byte_rate and
    consumer_byte_rate are the bytes that they send and read, at each broker;
    controller_mutation_rate is the partitions that they create and delete; and
    connection_creation_rate the connections of an address to each broker.

    Who sends or reads faster is slowed down, and nothing is refused; changes and connections are
    refused until later. The most specific quota holds: of a client of a user, of a user, of a
    client."""


def holder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Whose quota."""
    command = click.option(
        "--client-id", help=f"Of clients that call themselves so; {DEFAULT}: of all others."
    )(command)
    command = click.option(
        "--ip", help=f"Of this address, for its connections; {DEFAULT}: of all others."
    )(command)
    return click.option("--user", help=f"Of this user; {DEFAULT}: of all others.")(command)


@quotas.command("list", epilog=EXAMPLES)
@client_options
def list_(bootstrap: str, output: str, timeout_s: float) -> None:
    """All quotas, each a second."""
    found = ask(bootstrap, timeout_s, _all)
    show([asdict(quota) for quota in found], output, columns=COLUMNS, key="key")


async def _all(admin: Admin) -> list[Quota]:
    return await admin.describe_quotas()


def _as_kept(ip: str | None) -> str | None:
    """An address as the cluster keeps it."""
    try:
        return ip and str(ip_address(ip))
    except ValueError:
        return ip


def _value(text: str) -> tuple[str, int]:
    from hightide.protocol.errors import UsageError
    from hightide_broker.core.cluster.config_key import Unfit, counted

    key, equals, size = text.partition("=")
    if key not in QUOTA_KEYS or not equals:
        raise click.UsageError(
            f"{text!r}, expected KEY=VALUE, as {QUOTA_KEYS[0]}=1MiB; keys: {', '.join(QUOTA_KEYS)}"
        )
    try:
        return key, counted(key, size, "" if key in _COUNTS else "bytes")
    except Unfit as unfit:
        raise UsageError(str(unfit)) from unfit


@quotas.command("set", epilog=EXAMPLES)
@holder_options
@click.argument("values", metavar="KEY=VALUE…", nargs=-1, required=True)
@client_options
def set_(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    values: tuple[str, ...],
    bootstrap: str,
    output: str,
    timeout_s: float,
) -> None:
    """Set quotas of a user, of a client, of a client of a user, or of an address."""
    from hightide import Quota

    wanted = [Quota(*_value(text), user, client_id, ip) for text in values]

    async def alter(admin: Admin) -> None:
        await admin.alter_quotas(wanted)

    ask(bootstrap, timeout_s, alter)
    named = {"user": user, "client": client_id, "address": ip}
    whose = " of ".join(f"{kind} {name}" for kind, name in reversed(named.items()) if name)
    say(f"set for {whose}: {' '.join(values)}")


@quotas.command(epilog=EXAMPLES)
@holder_options
@client_options
def delete(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    bootstrap: str,
    output: str,
    timeout_s: float,
) -> None:
    """Remove the quotas of a user, of a client, of a client of a user, or of an address."""
    from hightide import Quota

    async def remove(admin: Admin) -> list[Quota]:
        there = await admin.describe_quotas()
        whose = (user, client_id, _as_kept(ip))
        gone = [each for each in there if (each.user, each.client_id, each.ip) == whose]
        await admin.alter_quotas([Quota(each.key, None, *whose) for each in gone])
        return gone

    gone = ask(bootstrap, timeout_s, remove)
    show([asdict(quota) for quota in gone], output, columns=COLUMNS, key="key")
    if not gone:
        say("there is no such quota: hightide quotas list")
        raise click.exceptions.Exit(NOT_FOUND)
