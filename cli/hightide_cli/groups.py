"""`hightide groups`: who reads what, how far they are, and moving them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.errors import ApiError, ErrorCode
from hightide.protocol.words import counted
from hightide_cli.failures import exit_code
from hightide_cli.options import ask, check_partition, client_options, yes_option
from hightide_cli.output import harmless, print_table, say, show, show_one
from hightide_cli.times import parse_time
from hightide_cli.watching import watchable

if TYPE_CHECKING:
    from hightide import Admin
    from hightide.admin.descriptions import GroupDescription, GroupLag

Where = tuple[str, int]


@click.group()
def groups() -> None:
    """List, describe, move and delete consumer groups."""


@groups.command(name="list", epilog="Example: hightide groups list -o json")
@watchable
@client_options
def list_(bootstrap: str, output: str, timeout_s: float) -> None:
    """All groups, with their states."""
    found = ask(bootstrap, timeout_s, _list)
    show(found, output, columns=["group", "state", "members"], key="group")


async def _list(admin: Admin) -> list[dict[str, Any]]:
    return [
        {
            "group": each.group,
            "state": each.state,
            "protocol_type": each.protocol_type,
            "members": each.members,
        }
        for each in await admin.list_groups()
    ]


@groups.command(epilog="Example: hightide groups describe billing")
@watchable
@click.argument("group")
@client_options
def describe(group: str, bootstrap: str, output: str, timeout_s: float) -> None:
    """Members, what they read, how far they are, and why the group was rebalanced."""
    fields = ask(bootstrap, timeout_s, _describe, group)
    if output == "table":
        _print_group(fields)
    elif output == "quiet":
        click.echo(fields["state"])
    else:
        show_one(fields, output)


async def _describe(admin: Admin, group: str) -> dict[str, Any]:
    described = await admin.describe_group(group)
    offsets = await _offsets(admin, group, of_sinks=True)
    return {
        "group": group,
        "state": described.state,
        "generation": described.generation,
        "protocol": described.protocol,
        "leader": described.leader,
        "coordinator": described.coordinator,
        "members": _members(described),
        "offsets": offsets,
        "rebalances": [
            {"at": _time(each.at_ms), "generation": each.generation, "cause": each.cause}
            for each in described.rebalances
        ],
    }


def _members(described: GroupDescription) -> list[dict[str, Any]]:
    from hightide.protocol.consumer_protocol import unpack_assigned

    found = []
    for member in described.members:
        given = unpack_assigned(member.assignment).partitions if member.assignment else []
        found.append(
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id or None,
                "client_id": member.client_id,
                "host": member.host,
                "assignment": [{"topic": t.topic, "partitions": t.partitions} for t in given],
            }
        )
    return found


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _print_group(fields: Mapping[str, Any]) -> None:
    names = ("group", "state", "generation", "protocol", "coordinator")
    click.echo("\n".join(f"{name}: {harmless(str(fields[name]))}" for name in names))
    for title, columns in (
        ("members", ["member_id", "client_id", "host", "reads"]),
        ("offsets", ["topic", "partition", "committed", "log_end_offset", "lag", "member_id"]),
        ("rebalances", ["at", "generation", "cause"]),
    ):
        rows = [{**row, "reads": _reads(row)} for row in fields[title]]
        if rows:
            click.echo()
            cells = [
                ["" if row[name] is None else str(row[name]) for name in columns] for row in rows
            ]
            print_table(cells, columns)


def _reads(row: Mapping[str, Any]) -> str:
    return " ".join(
        f"{each['topic']}:{','.join(map(str, each['partitions']))}"
        for each in row.get("assignment", ())
    )


@groups.command(epilog="Examples: hightide groups lag · hightide groups lag billing -o json")
@watchable
@click.argument("names", metavar="GROUP…", nargs=-1)
@client_options
def lag(names: tuple[str, ...], bootstrap: str, output: str, timeout_s: float) -> None:
    """How many records lie before a group, for each partition; all groups if none is named.

    What a Spark sink keeps of its batches is kept as a group's offsets, too: it is shown where it
    is named, and has no lag.
    """
    rows = ask(bootstrap, timeout_s, _lag, names)
    columns = ["group", "topic", "partition", "committed", "log_end_offset", "lag", "member_id"]
    show(rows, output, columns=columns, key="lag")


async def _lag(admin: Admin, names: tuple[str, ...]) -> list[dict[str, Any]]:
    wanted = names or [each.group for each in await admin.list_groups()]
    return [
        {"group": name, **row}
        for name in wanted
        for row in await _offsets(admin, name, of_sinks=bool(names))
    ]


async def _offsets(admin: Admin, group: str, *, of_sinks: bool) -> list[dict[str, Any]]:
    found = await admin.group_lag(group)
    rows = [_lag_row(each) for each in found]
    if not any(_is_mark(each.metadata) for each in found):
        return rows
    return [{**row, "lag": None} for row in rows] if of_sinks else []


def _is_mark(metadata: str) -> bool:
    """Whether this is what a Spark sink keeps (`hightide.spark.marks`), not a reader's own word."""
    try:
        told = json.loads(metadata or "null")
    except ValueError:
        return False
    return isinstance(told, dict) and {"v", "next", "checkpoint", "run"} <= told.keys()


def _lag_row(lag: GroupLag) -> dict[str, Any]:
    return {
        "topic": lag.topic,
        "partition": lag.partition,
        "committed": lag.committed,
        "log_end_offset": lag.end,
        "lag": lag.lag,
        "member_id": lag.member_id,
    }


@groups.command(
    epilog="Examples: hightide groups seek billing --to-start · "
    "hightide groups seek billing --to-time 2013-06-01 --topic orders --yes · "
    "hightide groups seek billing --shift -100 --topic orders:0 --yes"
)
@click.argument("group")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION]", help="Only there.")
@click.option("--to-start", is_flag=True, help="The first record there is.")
@click.option("--to-end", is_flag=True, help="Behind the last committed record.")
@click.option("--to-offset", type=click.IntRange(0), help="This offset.")
@click.option("--to-time", metavar="TIME", help="The first record of this time or later.")
@click.option("--shift", type=int, help="So many records on, or back if negative.")
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='A JSON object a line: {"topic", "partition", "committed"}, as `groups lag -o ndjson`.',
)
@yes_option
@client_options
def seek(
    group: str, topics: tuple[str, ...], bootstrap: str, output: str, timeout_s: float, **how: Any
) -> None:
    """Have a group without members go on elsewhere. Shows what would change; --yes does it. Exit
    code 5 while the group has members."""
    chosen = [name for name in _WAYS if how[name] not in (None, False)]
    if len(chosen) != 1:
        ways = ", ".join(f"--{name.replace('_', '-')}" for name in _WAYS)
        raise click.UsageError(f"give one of {ways}")
    places = [_place(text) for text in topics]
    if how["from_file"]:  # before anybody is asked: it may be a pipe, and Ctrl-C ends that
        how["from_file"] = _read_offsets(how["from_file"])
    rows = ask(bootstrap, timeout_s, _seek, group, places, chosen[0], how)
    show(rows, output, columns=["topic", "partition", "committed", "new"], key="new")
    for row in rows:
        if row["limited"]:
            say(
                f"{row['topic']}:{row['partition']}: what was asked for lies outside of the log, "
                f"the nearest offset in it is {row['new']}"
            )
    if not how["yes"]:
        say("nothing was changed: add --yes to do it")


_WAYS = ("to_start", "to_end", "to_offset", "to_time", "shift", "from_file")


def _place(text: str) -> tuple[str, int | None]:
    topic, colon, number = text.rpartition(":")
    if not colon:
        return text, None
    if not topic or not number.isdecimal():
        raise click.UsageError(f"--topic {text!r}, expected TOPIC or TOPIC:PARTITION")
    return topic, int(number)


async def _seek(
    admin: Admin,
    group: str,
    places: list[tuple[str, int | None]],
    way: str,
    how: Mapping[str, Any],
) -> list[dict[str, Any]]:
    await _refuse_if_live(admin, group)
    if way == "from_file":
        return await _seek_saved(admin, group, how[way], yes=how["yes"])
    options: dict[str, Any] = {
        "to_start": {"to": "start"},
        "to_end": {"to": "end"},
        "to_offset": {"to_offset": how["to_offset"]},
        "to_time": {"to_time_ms": how["to_time"] and parse_time(how["to_time"])},
        "shift": {"shift": how["shift"]},
    }[way]
    wanted = await _partitions(admin, group, places)
    moves = await admin.move_group(group, wanted, dry_run=not how["yes"], **options)
    return [move._asdict() for move in moves]


async def _refuse_if_live(admin: Admin, group: str) -> None:
    """While a group has members, what is committed is theirs: they would not hear of a change."""
    try:
        members = (await admin.describe_group(group)).members
    except ApiError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if members:
        clients = ", ".join(sorted({member.client_id for member in members}))
        raise ApiError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group!r} has {counted(len(members), 'member')} ({clients}): stop them "
            f"first, they would go on from where they are",
        )


async def _seek_saved(
    admin: Admin, group: str, wanted: Mapping[Where, int], *, yes: bool
) -> list[dict[str, Any]]:
    committed = {(w.topic, w.partition): o for w, o in (await admin.group_offsets(group)).items()}
    if yes and wanted:
        await admin.set_group_offsets(group, wanted)
    return [
        {
            "topic": topic,
            "partition": partition,
            "committed": known.offset if (known := committed.get((topic, partition))) else None,
            "new": offset,
            "limited": False,
        }
        for (topic, partition), offset in sorted(wanted.items())
    ]


async def _partitions(
    admin: Admin, group: str, places: list[tuple[str, int | None]]
) -> list[Where] | None:
    """What is named; None for whatever the group has committed."""
    if not places:
        if not await admin.group_offsets(group):
            raise click.UsageError("the group has committed nothing: name a --topic")
        return None
    found: list[Where] = []
    for topic, partition in places:
        count = len((await admin.describe_topic(topic)).partitions)
        if partition is not None:
            check_partition(topic, partition, count)
        found += [(topic, n) for n in range(count) if partition in (None, n)]
    return found


def _read_offsets(path: Path) -> dict[Where, int]:
    wanted = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
                offset = row["new"] if "new" in row else row["committed"]
                if offset is not None:
                    wanted[(str(row["topic"]), int(row["partition"]))] = int(offset)
            except (ValueError, KeyError, TypeError) as error:
                why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                expected = '{"topic", "partition", "committed"}'
                raise click.UsageError(
                    f"{path}, line {number}: {why}; expected {expected}"
                ) from error
    return wanted


@groups.command(epilog="Example: hightide groups delete billing --yes")
@click.argument("names", metavar="GROUP…", nargs=-1, required=True)
@yes_option
@client_options
def delete(
    names: tuple[str, ...], yes: bool, bootstrap: str, output: str, timeout_s: float
) -> None:
    """Forget groups that have no members, with their offsets."""
    if not yes:
        raise click.UsageError(f"add --yes to delete {', '.join(names)}")
    refused = ask(bootstrap, timeout_s, _delete, names)
    if len(refused) == len({*names}):
        raise next(iter(refused.values()))
    rows = [{"group": name, "deleted": name not in refused} for name in names]
    show(rows, output, columns=["group", "deleted"], key="group")
    for name, error in refused.items():
        say(f"{name}: {error}")
    if refused:
        raise click.exceptions.Exit(exit_code(next(iter(refused.values())).code))


async def _delete(admin: Admin, names: tuple[str, ...]) -> dict[str, ApiError]:
    """Which were not deleted, and why."""
    refused: dict[str, ApiError] = {}
    for name in names:
        try:
            await admin.delete_group(name)
        except ApiError as error:
            refused[name] = error
    return refused
