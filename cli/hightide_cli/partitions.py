"""`hightide partitions`: elections by hand, and replicas side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.errors import ErrorCode, HightideError
from hightide_cli.diff import diff
from hightide_cli.failures import UNHEALTHY, exit_code
from hightide_cli.options import ask, check_partition, client_options, parse_partition, yes_option
from hightide_cli.output import say, show
from hightide_cli.watching import watchable

if TYPE_CHECKING:
    from hightide import Admin


@click.group()
def partitions() -> None:
    """Elect leaders of partitions, and compare their replicas."""


@partitions.command(epilog="Example: hightide partitions describe orders:0")
@watchable
@click.argument("part", metavar="TOPIC:PARTITION")
@client_options
def describe(part: str, bootstrap: str, output: str, timeout_s: float) -> None:
    """Every replica of a partition: its offsets, and whether it is in sync; and why nobody leads
    it, where nobody does, or that its leader cannot be read (exit code 6)."""
    topic, number = parse_partition(part)
    rows, why = ask(bootstrap, timeout_s, _describe, topic, number)
    show(rows, output, columns=[*rows[0]], key="broker")
    if why:
        say(why)
        raise click.exceptions.Exit(UNHEALTHY)


async def _describe(admin: Admin, topic: str, number: int) -> tuple[list[dict[str, Any]], str]:
    """Its replicas, and what is wrong with its leader, if anything is."""
    known = await admin.describe_topic(topic)
    check_partition(topic, number, len(known.partitions))
    partition = known.partitions[number]
    found = await _replicas(admin, topic, number)
    rows = [
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
    return rows, partition.message or _trouble_of_leader(rows)


def _trouble_of_leader(rows: list[dict[str, Any]]) -> str:
    for row in rows:
        if row["leads"] and row["error"]:
            return f"broker {row['broker']} leads it and cannot be read: {row['error']}"
    return ""


async def _replicas(admin: Admin, topic: str, number: int) -> dict[int, Any]:
    """What each broker that answers says of its replica."""
    return {
        directory.broker: info
        for directory in await admin.describe_log_dirs([topic])
        for info in directory.replicas
        if info.partition == number
    }


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
    """Move leadership to the preferred replicas; or bring back partitions that have no leader.

    A preferred replica that is catching up is waited for, as long as --timeout says.
    """
    if everywhere == bool(parts) or (preferred and unclean):
        raise click.UsageError("give partitions or --all, and --preferred or --unclean")
    wanted = None if everywhere else [parse_partition(part) for part in parts]
    if unclean:
        try:
            for line in ask(bootstrap, min(timeout_s, _WEIGH_S), _weigh, wanted):
                say(line)
        except HightideError as error:
            say(f"what the replicas still hold is not known: {error}")
    if unclean and not yes:
        raise click.UsageError("--unclean may lose acknowledged records: add --yes to do it")
    results = ask(bootstrap, timeout_s, _elect, wanted, unclean, timeout_s)
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
    if not rows:
        say("no partition needs an election")
    refused = [each for each in results if each.error not in (None, "ELECTION_NOT_NEEDED")]
    for each in refused:
        say(f"{each.topic}:{each.partition}: {each.error}: {each.message}")
    if refused:
        raise click.exceptions.Exit(exit_code(refused[0].error))


_LOOK_AGAIN_S = 0.2
_WEIGH_S = 5.0
"""How long to look for what an unclean election would cost, before it is asked for anyway."""


async def _weigh(admin: Admin, wanted: list[tuple[str, int]] | None) -> list[str]:
    """What each candidate of an unclean election still holds, a line for each partition."""
    lines = []
    for topic in await admin.list_topics():
        for known in topic.partitions:
            part = (topic.topic, known.partition)
            if known.leader >= 0 or (wanted is not None and part not in wanted):
                continue
            found = await _replicas(admin, *part)
            whole = {b: found[b] for b in known.replicas if b in found and not found[b].error}
            watermark = max((info.high_watermark for info in whole.values()), default=0)
            held = [
                f"broker {b} has "
                f"{max(min(info.log_end_offset, watermark) - info.log_start_offset, 0)} "
                f"(its log ends at {info.log_end_offset})"
                for b, info in whole.items()
            ]
            held += [f"broker {b} does not say" for b in known.replicas if b not in whole]
            lines.append(
                f"{topic.topic}:{known.partition}: {known.message}. Committed were at least the "
                f"records below the last known watermark, {watermark}; of them {', '.join(held)}"
            )
    return lines


async def _elect(
    admin: Admin, wanted: list[tuple[str, int]] | None, unclean: bool, timeout_s: float
) -> Any:
    """Results by partition; a preferred replica that is about to be in sync is waited for."""
    import trio

    deadline = trio.current_time() + timeout_s
    results = {
        (each.topic, each.partition): each
        for each in await admin.elect_leaders(wanted, unclean=unclean)
    }
    while not unclean and trio.current_time() < deadline:
        behind = await _catching_up(admin, results.values())
        if not behind:
            break
        await trio.sleep(_LOOK_AGAIN_S)
        again = await admin.elect_leaders(behind)
        results |= {(each.topic, each.partition): each for each in again}
    return [*results.values()]


async def _catching_up(admin: Admin, results: Iterable[Any]) -> list[tuple[str, int]]:
    """The partitions whose preferred replica is not in sync, though its broker lives and somebody
    leads."""
    late = {
        (each.topic, each.partition)
        for each in results
        if each.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    }
    if not late:
        return []
    living = {each.id for each in (await admin.describe_cluster()).brokers if not each.fenced}
    return [
        (topic.topic, known.partition)
        for topic in await admin.list_topics()
        for known in topic.partitions
        if (topic.topic, known.partition) in late
        and known.leader >= 0
        and known.replicas[0] in living
    ]


partitions.add_command(diff)
