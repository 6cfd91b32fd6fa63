"""`hightide consume`: committed records of topics, printed as they come."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hightide_cli.client_config import client_config_option, client_settings
from hightide_cli.failures import SIGNALLED
from hightide_cli.options import (
    bootstrap_option,
    check_own,
    config_option,
    run,
    timeout_option,
    until_interrupted,
)
from hightide_cli.output import TellOnce, say
from hightide_cli.times import parse_time

if TYPE_CHECKING:
    from hightide import Consumer, Record
    from hightide_cli.format import Bounds

STARTS = {
    **dict.fromkeys(("start", "beginning", "earliest"), "start"),
    **dict.fromkeys(("end", "latest"), "end"),
}
"""Words for both ends of a log; other tools have others."""
OWN_WORDS = {
    "topics": "TOPICS",
    "partitions": "-p",
    "group.id": "-g",
    "bootstrap.servers": "-b",
}
"""Settings of a consumer that the command has a word of its own for."""


def _group(ctx: click.Context, param: click.Parameter, name: str) -> str:
    """An empty name, as of a variable that is not set, is no wish to read without a group."""
    if not name and ctx.get_parameter_source(str(param.name)) is not ParameterSource.DEFAULT:
        raise click.UsageError("-g '' names no group; to read without one, leave -g out")
    return name


FORMAT_HELP = (
    "%v value, %k key, %t topic, %p partition, %o offset, %T timestamp, %d{strftime[…]} the same "
    "in words, %h{…} each header by its own %k and %v, %S and %K lengths, %R length as 4 bytes, %e "
    "leader epoch, %x %y producer id and epoch, %i count, %[ %| %] log start, last stable offset, "
    "high watermark, %% percent; \\n \\t \\0. %v{hex|base64|json|msgpack|big32|…}."
)


@click.command(
    epilog="Examples: hightide consume orders --from start -e · "
    "hightide consume orders -f '%t-%p @%o %k=%v\\n' -c 10 · "
    "hightide consume orders --from @2013-06-01 · hightide consume orders -g billing --from start"
)
@click.argument("topics", nargs=-1, required=True)
@click.option(
    "-g",
    "--group",
    default="",
    callback=_group,
    help="Share the topics with the group's other members; commit.",
)
@click.option("-p", "--partitions", help="Only these, as 0,1,2.")
@click.option(
    "--from",
    "-o",
    "start",
    default="end",
    show_default=True,
    metavar="start|end|N|-N|@TIME",
    help="Where to begin: an offset, N before the end, or a time. With -g: where nothing is "
    "committed, start or end.",
)
@click.option(
    "-e",
    "--exit-at-end",
    is_flag=True,
    help="Stop at the end as it is now. With -g: of what the group gives to this member, as it is "
    "then.",
)
@click.option("-c", "--count", type=int, help="Stop after so many records.")
@click.option(
    "-f",
    "--format",
    "format_",
    metavar="FORMAT",
    help=FORMAT_HELP,
)
@click.option("-J", "--json-lines", is_flag=True, help="One JSON object a line, without loss.")
@config_option
@client_config_option
@bootstrap_option
@timeout_option
def consume(topics: tuple[str, ...], **flags: Any) -> None:
    """Print committed records of TOPICS."""
    if flags["json_lines"] and flags["format_"]:
        raise click.UsageError("give -f or -J, not both")
    if flags["count"] is not None and flags["count"] < 1:
        raise click.UsageError(f"-c {flags['count']}, expected 1 or more")
    kind, _ = parse_start(flags["start"])
    if flags["group"] and kind not in ("start", "end"):
        raise click.UsageError(
            "-g goes on where the group is: --from start or end; `hightide groups seek` moves it"
        )
    if flags["group"] and flags["partitions"]:
        raise click.UsageError("-g decides which partitions are read: give no -p")
    parse_partitions(flags["partitions"])
    check_own(flags["config"], OWN_WORDS)
    _writer(flags)
    run(_consume, topics, flags)


def parse_start(text: str) -> tuple[str, int]:
    """("start" | "end" | "offset" | "back" | "time", number)."""
    if text in STARTS:
        return STARTS[text], 0
    if text.startswith("@"):
        return "time", parse_time(text[1:])
    if re.fullmatch(r"[0-9]+", text):
        return "offset", int(text)
    if re.fullmatch(r"-[0-9]+", text):
        return "back", int(text[1:])
    raise click.UsageError(f"--from {text!r}, expected start, end, N, -N or @TIME")


def parse_partitions(text: str | None) -> list[int] | None:
    """`0,1,2` as numbers; None for all partitions."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
        raise click.UsageError(f"-p {text!r}, expected numbers with commas")
    return [int(number) for number in text.split(",")]


async def _consume(topics: tuple[str, ...], flags: dict[str, Any]) -> None:
    from hightide import Consumer, ConsumerOptions
    from hightide.net.options import from_config

    timeout_ms = flags["timeout_s"] * 1000
    options: dict[str, Any] = {
        **client_settings(),
        "bootstrap_servers": flags["bootstrap"],
        "topics": topics,
        "group_id": flags["group"],
        "auto_offset_reset": "latest" if parse_start(flags["start"])[0] == "end" else "earliest",
        "default_api_timeout_ms": timeout_ms,
        "request_timeout_ms": timeout_ms,
        "on_retry": TellOnce(),
    }
    async with Consumer(**options | from_config(ConsumerOptions, flags["config"])) as consumer:
        write = _writer(flags, consumer.watermarks)
        ends = _Ends(consumer, shared=bool(flags["group"])) if flags["exit_at_end"] else None
        if not flags["group"]:
            await _choose_partitions(consumer, flags["partitions"])
            await _go_to_start(consumer, flags["start"], ends)
        stopped = await until_interrupted(partial(_print, consumer, flags["count"], ends, write))
    if stopped:
        raise click.exceptions.Exit(SIGNALLED + stopped)


class _Ends:
    """The ends of what a consumer reads, each as it was when the consumer was given it."""

    def __init__(self, consumer: Consumer, *, shared: bool = False) -> None:
        self._consumer = consumer
        self._is_shared = shared
        self._known: dict[tuple[str, int], int] = {}

    async def look(self) -> dict[tuple[str, int], int]:
        """All of them; those that are new are looked up."""
        from hightide.protocol.messages import LATEST

        if not self._known.keys() >= {*self._consumer.assignment()}:
            found = await self._consumer.offsets(LATEST)
            self._known = {**{tp: at.offset for tp, at in found.items()}, **self._known}
        return self._known

    async def reached(self) -> bool:
        """Whether all is read; of nothing, which a group may give at first, it is not."""
        ends, given = await self.look(), self._consumer.assignment()
        return bool(given) and all(
            tp in ends and (self._consumer.position(*tp) or 0) >= ends[tp] for tp in given
        )

    def hides(self, record: Record) -> bool:
        """Whether it came later. To a group nothing comes later: what it was given is committed."""
        return (
            not self._is_shared and record.offset >= self._known[(record.topic, record.partition)]
        )


async def _print(
    consumer: Consumer,
    count: int | None,
    ends: _Ends | None,
    write: Callable[[Record], bytes],
) -> None:
    """Records as they come, up to a count or to the ends."""
    left, out = count or sys.maxsize, sys.stdout.buffer
    while left > 0 and not (ends and await ends.reached()):
        for record in await consumer.poll(timeout_ms=100, max_records=min(left, 10_000)):
            if ends is None or not ends.hides(record):
                out.write(write(record))
                left -= 1
        out.flush()


async def _choose_partitions(consumer: Consumer, wanted: str | None) -> None:
    numbers = parse_partitions(wanted)
    if numbers is None:
        return
    topics = dict.fromkeys(tp.topic for tp in consumer.assignment())
    await consumer.assign([(topic, number) for topic in topics for number in numbers])


async def _go_to_start(consumer: Consumer, start: str, ends: _Ends | None) -> None:
    """Seek where the user wants to begin; where that counts from the ends, from these."""
    from hightide.protocol.messages import EARLIEST, LATEST

    kind, number = parse_start(start)
    if ends:
        await ends.look()  # as they are now, not once it has been sought
    if kind == "time":
        await consumer.seek_to_time(number)
    elif kind == "offset":
        firsts, lasts = await consumer.offsets(EARLIEST), await consumer.offsets(LATEST)
        for tp in consumer.assignment():
            first, last = firsts[tp].offset, lasts[tp].offset
            if not first <= number <= last:
                say(f"{tp.topic}-{tp.partition} holds {first} to {last}: read from the nearest")
            consumer.seek(*tp, min(max(number, first), last))
    elif kind == "back":
        firsts, at_end = await consumer.offsets(EARLIEST), await (ends or _Ends(consumer)).look()
        for tp in consumer.assignment():
            consumer.seek(*tp, max(at_end[tp] - number, firsts[tp].offset))


def _unknown(topic: str, partition: int) -> tuple[int, int]:
    return -1, -1


def _writer(flags: dict[str, Any], bounds: Bounds = _unknown) -> Callable[[Record], bytes]:
    """How a record is printed."""
    if flags["json_lines"]:
        from hightide_cli.record_json import encode_record

        return lambda record: f"{encode_record(record)}\n".encode()
    if flags["format_"] is None:
        return lambda record: (record.value or b"") + b"\n"
    from hightide_cli.format import Formatter

    return Formatter(flags["format_"], bounds)
