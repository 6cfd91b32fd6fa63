"""`hightide trace`: what happened to the replicas of a cluster, told in sentences."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hightide_cli.client_config import (
    client_config_option,
    configured_bootstrap,
    is_told_by_a_file,
)
from hightide_cli.cluster import data_option
from hightide_cli.failures import NOT_FOUND
from hightide_cli.options import (
    ask,
    bootstrap_by,
    found_bootstrap,
    output_option,
    timeout_option,
)
from hightide_cli.output import say
from hightide_cli.processes import read_plan
from hightide_cli.times import parse_time
from hightide_cli.trace_sources import Files, FromCluster, Source, traces_at

if TYPE_CHECKING:
    from hightide_broker.trace.lines import Told

FOLLOW_S = 0.5
"""How often `--follow` looks for more."""


def _since(_: click.Context, __: click.Parameter, text: str | None) -> int:
    """Milliseconds since 1970: `10m` ago, or a time."""
    if text is None:
        return 0
    if re.fullmatch(r"\d{1,9}[smhd]", text):
        from hightide_broker.core.cluster.config_key import counted

        return int(time.time() * 1000) - counted("--since", text, "ms")
    return parse_time(text, "10m, 2h (ago), ISO 8601 or ms since 1970")


def source_options(command: Any) -> Any:
    """Where the events come from, and which of them are wanted."""
    for option in reversed(
        (
            data_option,
            bootstrap_by(lambda: None),  # files need none
            timeout_option,
            client_config_option,
            click.option(
                "--file",
                "files",
                multiple=True,
                type=click.Path(exists=True, path_type=Path),
                help="Read this file, or a node's directory; may be given more than once.",
            ),
            click.option("--topic", help="What concerns one topic, and the nodes."),
            click.option("--node", type=int, help="What one node told."),
            click.option(
                "--since",
                "since_ms",
                callback=_since,
                metavar="TIME",
                help="Not older: 10m, 2h, or a time in ISO 8601.",
            ),
        )
    ):
        command = option(command)
    return command


@click.group(invoke_without_command=True, epilog="Example: hightide trace --topic orders -f")
@source_options
@click.option("--positions", is_flag=True, help="How far replicas were, second by second, too.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more happens.")
@output_option
@click.pass_context
def trace(
    ctx: click.Context, /, positions: bool, follow: bool, output: str, **options: Any
) -> None:
    """Tell what happened: leaders, in-sync replicas, cuts, votes, repairs, groups.

    Every node keeps a bounded trace (`trace.max.bytes`) in its directory. They are read from the
    directory of this machine's cluster, dead nodes too; or, with -b, from the nodes; or from
    files that were copied. The nodes' events are put in one order, by epochs first, then by clocks.
    """
    if ctx.invoked_subcommand is not None:
        if any(map(partial(_is_typed, ctx), ctx.params)):
            raise click.UsageError("options go behind the command: hightide trace replay …")
        return
    if follow and output == "json":
        raise click.UsageError("what goes on has no end as one JSON value: -f -o ndjson")
    wanted = _wanted(options["topic"], options["node"], options["since_ms"])
    source = Noted(_source(ctx, options))
    about = partial(_about, options["topic"])
    _tell(map(about, filter(wanted, source.read(positions=positions))), output)
    source.say_who_is_missing(options["topic"], options["node"])
    while follow:
        sys.stdout.flush()
        time.sleep(FOLLOW_S)
        _tell(map(about, filter(wanted, source.read(positions=positions))), output)


@trace.command(epilog="Example: hightide trace replay --topic orders")
@source_options
@click.pass_context
def replay(ctx: click.Context, /, **options: Any) -> None:
    """Step through what happened: after each event, where the replicas stand.

    In a terminal Enter goes on, q ends; otherwise everything is printed.
    """
    from hightide_broker.trace.lanes import Lanes, show
    from hightide_broker.trace.text import sentence

    wanted = _wanted(options["topic"], options["node"], options["since_ms"])
    source, lanes = Noted(_source(ctx, options)), Lanes()
    for told in source.read(positions=True):
        lanes.take(told)
        if not wanted(told):
            continue
        told = _about(options["topic"], told)
        click.echo(f"{_time(told.ms)}  {sentence(told.node, told.what)}")
        for topic, number in _touched(told):
            if (topic, number) in lanes.partitions:
                for line in show(f"{topic}-{number}", lanes.partitions[topic, number]):
                    click.echo(f"    {line}")
        if sys.stdin.isatty() and sys.stdout.isatty() and click.getchar() in "q\x03\x04":
            return
    source.say_who_is_missing(options["topic"], options["node"])


class Noted:
    """A source, and which topics and nodes occurred in it: who asks for another one may have meant
    one of these."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._topics: set[str] = set()
        self._nodes: set[int] = set()

    def read(self, *, positions: bool) -> Iterator[Told]:
        """As the source's own."""
        for told in self._source.read(positions=positions):
            self._nodes.add(told.node)
            self._topics |= _topics(told)
            yield told

    def say_who_is_missing(self, topic: str | None, node: int | None) -> None:
        """After reading: whether a topic or node that is wanted did not occur."""
        from hightide.protocol.errors import did_you_mean

        if topic is not None and topic not in self._topics:
            say(f"no event is about topic {topic!r}{did_you_mean(topic, sorted(self._topics))}")
        if node is not None and node not in self._nodes:
            told = ", ".join(map(str, sorted(self._nodes))) or "nobody"
            say(f"no event is told by node {node}, but by {told}")


def _topics(told: Told) -> set[str]:
    """The topics that an event names."""
    from hightide_broker.trace.events import WatermarksMoved

    if isinstance(told.what, WatermarksMoved):
        return {each.topic for each in told.what.replicas}
    return {told.what.topic} if hasattr(told.what, "topic") else set()


def _source(ctx: click.Context, options: dict[str, Any]) -> Source:
    """Files, a directory or brokers that are named; the directory at hand, or the brokers."""
    if options["files"]:
        return Files([traces_at(path) for path in options["files"]])
    if _is_typed(ctx, "data") or not _names_brokers(ctx):
        plan = read_plan(options["data"])
        if plan is not None:
            return Files([node.directory / "trace" for node in plan.processes])
        if _is_typed(ctx, "data"):
            say(f"there is no cluster in {options['data']}")
            raise click.exceptions.Exit(NOT_FOUND)
    return FromCluster(_asking(options["bootstrap"] or found_bootstrap(), options["timeout_s"]))


def _names_brokers(ctx: click.Context) -> bool:
    by_environment = ctx.get_parameter_source("bootstrap") is ParameterSource.ENVIRONMENT
    by_file = is_told_by_a_file() and bool(configured_bootstrap())
    return by_environment or by_file or _is_typed(ctx, "bootstrap")


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _asking(bootstrap: str, timeout_s: float) -> Callable[..., Any]:
    def asked(work: Callable[..., Any], *args: Any) -> Any:
        return ask(bootstrap, timeout_s, work, *args)

    return asked


def _wanted(topic: str | None, node: int | None, since_ms: int) -> Callable[[Told], bool]:
    def is_wanted(told: Told) -> bool:
        concerned = topic is None or _concerns(told, topic)
        return told.ms >= since_ms and node in (None, told.node) and concerned

    return is_wanted


def _concerns(told: Told, topic: str) -> bool:
    """Whether an event is about a topic, or about what all topics rest on."""
    from hightide_broker.trace.events import GroupChanged, WatermarksMoved

    match told.what:
        case WatermarksMoved():
            return topic in _topics(told)
        case GroupChanged():
            return False
        case what:
            return getattr(what, "topic", topic) == topic


def _about(topic: str | None, told: Told) -> Told:
    """The event without what it says of other topics."""
    import msgspec

    from hightide_broker.trace.events import WatermarksMoved

    if topic is None or not isinstance(told.what, WatermarksMoved):
        return told
    ours = tuple(each for each in told.what.replicas if each.topic == topic)
    return msgspec.structs.replace(told, what=WatermarksMoved(replicas=ours))


def _touched(told: Told) -> Iterator[tuple[str, int]]:
    """The partitions that an event is about."""
    from hightide_broker.trace.events import OfPartition, PartitionChanged, WatermarksMoved

    match told.what:
        case OfPartition(topic=topic, partition=number):
            yield topic, number
        case PartitionChanged(topic=topic, partition=number):
            yield topic, number
        case WatermarksMoved(replicas=moved):
            yield from ((each.topic, each.partition) for each in moved)


def _tell(events: Iterable[Told], output: str) -> None:
    """Print events: a sentence each, or JSON."""
    import msgspec

    from hightide_broker.trace.text import sentence

    rows: list[dict[str, Any]] = []
    for told in events:
        text = sentence(told.node, told.what)
        if output == "quiet":
            click.echo(text)
        elif output == "table":
            click.echo(f"{_time(told.ms)}  {text}")
        else:
            row = {**msgspec.to_builtins(told), "sentence": text}
            if output == "ndjson":
                click.echo(json.dumps(row))
            rows.append(row)
    if output == "json":
        click.echo(json.dumps(rows, indent=2))


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
