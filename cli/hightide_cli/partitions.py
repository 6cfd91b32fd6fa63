"""`hightide partitions`: elections by hand, and replicas side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hightide_cli.diff import diff
from hightide_cli.failures import exit_code
from hightide_cli.options import (
    ask,
    check_partition,
    client_options,
    parse_partition,
    say,
    show,
    yes_option,
)

if TYPE_CHECKING:
    from hightide import Admin


@click.group()
def partitions() -> None:
    """Elect leaders of partitions, and compare their replicas."""


@partitions.command(epilog="Example: hightide partitions describe orders:0")
@click.argument("part", metavar="TOPIC:PARTITION")
@client_options
def describe(part: str, bootstrap: str, output: str, timeout_s: float) -> None:
    """Every replica of a partition: its offsets, and whether it is in sync."""
    topic, number = parse_partition(part)
    rows = ask(bootstrap, timeout_s, _describe, topic, number)
    show(rows, output, columns=[*rows[0]], key="broker")


async def _describe(admin: Admin, topic: str, number: int) -> list[dict[str, Any]]:
    known = await admin.describe_topic(topic)
    check_partition(topic, number, len(known.partitions))
    partition = known.partitions[number]
    found = {
        directory.broker: info
        for directory in await admin.describe_log_dirs([topic])
        for info in directory.replicas
        if info.partition == number
    }
    return [
        {
            "broker": broker,
            "leads": broker == partition.leader,
            "in_sync": broker in partition.isr,
            "leader_epoch": found[broker].leader_epoch if broker in found else None,
            "log_start_offset": found[broker].log_start_offset if broker in found else None,
            "high_watermark": found[broker].high_watermark if broker in found else None,
            "log_end_offset": found[broker].log_end_offset if broker in found else None,
            "error": (found[broker].error or None) if broker in found else "no answer",
        }
        for broker in partition.replicas
    ]


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
    wanted = None if everywhere else [parse_partition(part) for part in parts]
    results = ask(bootstrap, timeout_s, _elect, wanted, unclean)
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


async def _elect(admin: Admin, wanted: list[tuple[str, int]] | None, unclean: bool) -> Any:
    return await admin.elect_leaders(wanted, unclean=unclean)


partitions.add_command(diff)
