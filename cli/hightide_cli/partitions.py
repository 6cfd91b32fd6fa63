"""`hightide partitions`: elections by hand."""

from __future__ import annotations

from typing import Any

import click

from hightide_cli.failures import exit_code
from hightide_cli.options import client_options, run, say, show, yes_option


@click.group()
def partitions() -> None:
    """Elect leaders of partitions."""


@partitions.command(
    epilog="Examples: hightide partitions elect orders:0 · hightide partitions elect --all · "
    "hightide partitions elect orders:0 --unclean --yes"
)
@click.argument("parts", metavar="TOPIC:PARTITION…", nargs=-1)
@click.option("--all", "everywhere", is_flag=True, help="Wherever an election is needed.")
@click.option("--preferred", is_flag=True, help="The first replica of the assignment (default).")
@click.option("--unclean", is_flag=True, help="Any live replica where nobody leads: may lose data.")
@yes_option
@client_options
def elect(
    parts: tuple[str, ...],
    everywhere: bool,
    preferred: bool,
    unclean: bool,
    yes: bool,
    bootstrap: str,
    output: str,
    timeout_s: float,
) -> None:
    """Move leadership to the preferred replicas; or bring back partitions that have no leader."""
    if everywhere == bool(parts) or (preferred and unclean):
        raise click.UsageError("give partitions or --all, and --preferred or --unclean")
    if unclean and not yes:
        raise click.UsageError("--unclean may lose acknowledged records: add --yes to do it")
    wanted = None if everywhere else [_parse(part) for part in parts]
    results = run(_elect, bootstrap, timeout_s, wanted, unclean)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "leader": each.leader,
            "error": each.error,
            "message": each.message,
        }
        for each in results
    ]
    show(rows, output, columns=["topic", "partition", "leader", "error"], key="leader")
    refused = [each for each in results if each.error not in (None, "ELECTION_NOT_NEEDED")]
    for each in refused:
        say(f"{each.topic}:{each.partition}: {each.error}: {each.message}")
    if refused:
        raise click.exceptions.Exit(exit_code(refused[0].error))


def _parse(text: str) -> tuple[str, int]:
    topic, colon, number = text.rpartition(":")
    if not (colon and topic and number.isdecimal()):
        raise click.UsageError(f"{text!r}, expected TOPIC:PARTITION")
    return topic, int(number)


async def _elect(
    bootstrap: str, timeout_s: float, wanted: list[tuple[str, int]] | None, unclean: bool
) -> Any:
    from hightide import Admin

    async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
        return await admin.elect_leaders(wanted, unclean=unclean)
