"""`hightide quotas`: how much users and clients may send and read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.quota_messages import DEFAULT, QUOTA_KEYS
from hightide_cli.failures import NOT_FOUND
from hightide_cli.options import ask, client_options
from hightide_cli.output import say, show

if TYPE_CHECKING:
    from hightide import Admin, Quota

EXAMPLES = (
    "Examples: hightide quotas set --user alice producer_byte_rate=1MiB · hightide quotas set "
    "--client-id etl consumer_byte_rate=500KiB · hightide quotas list · hightide quotas delete "
    "--user alice"
)
COLUMNS = ["user", "client_id", "key", "value"]
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@click.group(epilog=EXAMPLES)
def quotas() -> None:
    """Show and change how many bytes a second users and clients may send and read, at each broker.

    Who is faster is slowed down; nothing is refused. The most specific quota holds: of a client of
    a user, of a user, of a client."""


def holder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Whose quota."""
    command = click.option(
        "--client-id", help=f"Of clients that call themselves so; {DEFAULT}: of all others."
    )(command)
    return click.option("--user", help=f"Of this user; {DEFAULT}: of all others.")(command)


@quotas.command("list", epilog=EXAMPLES)
@client_options
def list_(bootstrap: str, output: str, timeout_s: float) -> None:
    """All quotas, in bytes a second."""
    found = ask(bootstrap, timeout_s, _all)
    show([asdict(quota) for quota in found], output, columns=COLUMNS, key="key")


async def _all(admin: Admin) -> list[Quota]:
    return await admin.describe_quotas()


def _value(text: str) -> tuple[str, int]:
    key, _, size = text.partition("=")
    digits = size.strip().lower().rstrip("bgikm")
    unit = size.strip().lower()[len(digits) :]
    if key not in QUOTA_KEYS or not digits.isdecimal() or unit not in _UNITS:
        raise click.UsageError(
            f"{text!r}, expected KEY=BYTES, as {QUOTA_KEYS[0]}=1MiB; keys: {', '.join(QUOTA_KEYS)}"
        )
    return key, int(digits) * _UNITS[unit]


@quotas.command("set", epilog=EXAMPLES)
@holder_options
@click.argument("values", metavar="KEY=BYTES…", nargs=-1, required=True)
@client_options
def set_(
    user: str | None,
    client_id: str | None,
    values: tuple[str, ...],
    bootstrap: str,
    output: str,
    timeout_s: float,
) -> None:
    """Set quotas of a user, of a client, or of a client of a user."""
    from hightide import Quota

    wanted = [Quota(*_value(text), user, client_id) for text in values]

    async def alter(admin: Admin) -> None:
        await admin.alter_quotas(wanted)

    ask(bootstrap, timeout_s, alter)


@quotas.command(epilog=EXAMPLES)
@holder_options
@client_options
def delete(
    user: str | None, client_id: str | None, bootstrap: str, output: str, timeout_s: float
) -> None:
    """Remove the quotas of a user, of a client, or of a client of a user."""
    from hightide import Quota

    async def remove(admin: Admin) -> list[Quota]:
        there = await admin.describe_quotas()
        gone = [each for each in there if (each.user, each.client_id) == (user, client_id)]
        await admin.alter_quotas([Quota(each.key, None, user, client_id) for each in gone])
        return gone

    gone = ask(bootstrap, timeout_s, remove)
    show([asdict(quota) for quota in gone], output, columns=COLUMNS, key="key")
    if not gone:
        say("there is no such quota: hightide quotas list")
        raise click.exceptions.Exit(NOT_FOUND)
