"""`hightide pipeline`: topics through Spark to Parquet and a results topic, and how far it is."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from hightide.protocol.errors import RequestTimedOut
from hightide_cli.client_config import client_settings
from hightide_cli.options import found_bootstrap, output_option, run, timeout_option
from hightide_cli.output import say, show
from hightide_cli.signals import Told, ended_by, told_to_stop
from hightide_cli.watching import watchable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hightide.spark.pipeline import Progress, Running
    from hightide.spark.pipeline_config import PipelineConfig

EXAMPLES = (
    "Examples: hightide pipeline run --topic orders --checkpoint out/checkpoint "
    "--parquet out/orders --once · "
    "hightide pipeline run --config flights.toml · "
    "hightide pipeline status --checkpoint out/checkpoint"
)
STOP_CHECK_S = 0.5


@click.group(epilog=EXAMPLES)
def pipeline() -> None:
    """Run the shipped Spark pipeline, and look at how far it is."""


def _settings(command: Any) -> Any:
    """What may be said by flags as well as in the file; flags go first."""
    options = [
        click.option("--name", help="Its queries are groups NAME-….  [default: pipeline]"),
        click.option("--topic", "topics", multiple=True, help="Read this topic; repeatable."),
        click.option("--pattern", help="Read every topic whose name matches."),
        click.option("--format", type=click.Choice(["raw", "json"]), help="What values are."),
        click.option("--schema", metavar="DDL", help="The fields of JSON values."),
        click.option("--malformed", type=click.Choice(["keep", "fail"]), help="Values not JSON."),
        click.option("--filter", metavar="SQL", help="Leave out rows where this is not true."),
        click.option("--event-time", metavar="SQL", help="[default: the record's timestamp]"),
        click.option("--starting", type=click.Choice(["earliest", "latest"])),
        click.option("--max-offsets-per-trigger", type=click.IntRange(min=1), metavar="N"),
        click.option("--trigger", metavar="INTERVAL", help="[default: 1 second]"),
        click.option("--checkpoint", metavar="DIR", help="Where it keeps how far it is."),
        click.option("--parquet", metavar="DIR", help="Write the rows here."),
    ]
    aggregate = [
        click.option("--window", metavar="INTERVAL", help="Aggregate windows of this length."),
        click.option("--slide", metavar="INTERVAL", help="[default: windows do not overlap]"),
        click.option("--watermark", metavar="INTERVAL", help="[default: 10 minutes]"),
        click.option("--by", multiple=True, metavar="SQL", help="A group for each value."),
        click.option("--compute", multiple=True, metavar="SQL", help="As 'count(*) AS n'."),
        click.option("--windows-parquet", metavar="DIR", help="Write finished windows here."),
        click.option("--results", metavar="TOPIC", help="Write finished windows here, as JSON."),
    ]
    for option in reversed(options + aggregate):
        command = option(command)
    return command


@pipeline.command("run", epilog=EXAMPLES)
@click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings as TOML; the names are those of the flags, [aggregate] and [spark] are tables.",
)
@click.option("-b", "--bootstrap", envvar="HIGHTIDE_BOOTSTRAP", metavar="HOST:PORT[,…]")
@_settings
@click.option("--once", is_flag=True, help="Up to what is committed now, then end.")
@click.option("--master", help="Spark's master.  [default: local[*], or spark-submit's]")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark.")
@timeout_option
@output_option
def run_(
    file: Path | None,
    once: bool,
    master: str | None,
    conf: tuple[str, ...],
    timeout_s: float,
    output: str,
    **flags: Any,
) -> None:
    """Read topics, parse and filter, write rows and windows; go on where the last run was.

    Each output is exactly once by its own checkpoint. Progress goes to the terminal, with -o ndjson
    to stdout. Ctrl-C or SIGTERM stops it; what was not finished is done again at the next start.

    --timeout is for a look at the topics before Spark starts; the pipeline waits for ever."""
    from hightide.spark.pipeline_config import check_places, check_same, read_config, read_file

    given = read_file(file) if file is not None else {}
    config = read_config(_reached(_merged(given, flags, conf)))
    check_places(config)
    _check_topics(config, timeout_s)
    check_same(config)
    name = f"hightide-{config.name}"
    stopping = told_to_stop(signal.SIGINT, signal.SIGTERM)
    with (
        ExitStack() as ending,
        open_session(name, master, config.spark) as session,
        stopping as stop,
    ):
        from hightide.spark.endings import expecting_its_end
        from hightide.spark.pipeline import start

        ending.enter_context(expecting_its_end(stop.is_set))
        with _ended_with_spark(stop):
            running = start(session, config, once=once)
            try:
                follow(running, stop, output)
            finally:
                running.stop()


@contextmanager
def _ended_with_spark(stop: Told) -> Iterator[None]:
    """What told this command to stop may have told Spark's JVM, too, as `timeout` and systemd do:
    its queries fail then, or it does not answer. The next start goes on from the checkpoint."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    from hightide.spark.pipeline import PipelineFailed

    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        if not stop.is_set():
            raise PipelineFailed("Spark's JVM has ended; the next start goes on") from error
    except (Py4JError, PipelineFailed):
        if not stop.is_set():
            raise


def _reached(merged: dict[str, Any]) -> dict[str, Any]:
    """The same, with the brokers and the way to them that other commands take."""
    if "bootstrap" not in merged:
        merged["bootstrap"] = found_bootstrap()
    found = {name.replace("_", "."): str(value) for name, value in client_settings().items()}
    return {**merged, "client": {**found, **_table(merged, "client")}}


def _merged(
    given: Mapping[str, Any], flags: Mapping[str, Any], conf: tuple[str, ...]
) -> dict[str, Any]:
    """The file's settings with the flags over them."""
    merged = dict(given)
    said = {name: value for name, value in flags.items() if value not in (None, ())}
    renamed = {"windows_parquet": "parquet", "results": "topic"}
    own = ("window", "slide", "watermark", "by", "compute", *renamed)
    aggregate = {renamed.get(name, name): said.pop(name) for name in own if name in said}
    for name, value in said.items():
        merged[name] = list(value) if isinstance(value, tuple) else value
    if aggregate:
        merged["aggregate"] = {**_table(given, "aggregate"), **aggregate}
    settings = [each.partition("=") for each in conf]
    if wrong := [name for name, equals, _ in settings if not equals]:
        raise click.UsageError(f"--conf {wrong[0]!r}, expected NAME=VALUE")
    if settings:
        merged["spark"] = {**_table(given, "spark"), **{n: value for n, _, value in settings}}
    return merged


def _table(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = given.get(name, {})
    if not isinstance(found, Mapping):
        raise click.UsageError(f"{name} in the file is {found!r}, expected a table")
    return found


def _check_topics(config: PipelineConfig, timeout_s: float) -> None:
    """Say what is missing before a JVM starts."""
    from hightide import Admin
    from hightide.net.options import ClientOptions, from_config

    results = [config.aggregate.topic] if config.aggregate and config.aggregate.topic else []
    way = from_config(ClientOptions, config.client)

    async def look() -> None:
        async with Admin(config.bootstrap, default_api_timeout_ms=timeout_s * 1000, **way) as admin:
            for topic in [*config.topics, *results]:
                await admin.describe_topic(topic)

    run(look)


@contextmanager
def open_session(
    name: str, master: str | None, settings: Mapping[str, str]
) -> Iterator[SparkSession]:
    """A session of Spark; says which Java and which Spark it is."""
    from py4j.protocol import Py4JError, Py4JJavaError

    from hightide.java import find_java
    from hightide.spark import session
    from hightide.spark.endings import ended_by_ctrl_c

    say(f"using {find_java()}")
    with ended_by(signal.SIGINT, signal.SIGTERM):
        made = session(name, master, settings)
    try:
        with ended_by_ctrl_c():
            # What ends a query is told by `check`, what Spark refuses by `start`; each once.
            made.sparkContext.setLogLevel("OFF")
            logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
            say(f"Spark {made.version} on {made.sparkContext.master}")
            yield made
    finally:
        try:
            made.stop()
        except Py4JJavaError:
            raise
        except (Py4JError, ConnectionError):
            say("Spark's JVM had ended already")


class Stop(Protocol):
    """What may end `follow`."""

    def wait(self, seconds: float, /) -> bool:
        """Whether it is to end, as known within so many seconds."""
        ...


def follow(running: Running, stop: Stop, output: str, patience_s: float = math.inf) -> None:
    """Tell each batch until the pipeline ends or is told to; raises `PipelineFailed`, and
    `RequestTimedOut` if no batch has ended for so long."""
    moved_at = time.monotonic()
    told: dict[str, int] = {}
    while True:
        is_over = not running.is_active
        for progress in running.progress():
            if told.get(progress.query, -1) < progress.batch:
                told[progress.query] = progress.batch
                tell(progress, output)
                moved_at = time.monotonic()
        running.check()
        if is_over or stop.wait(STOP_CHECK_S):
            return
        if time.monotonic() - moved_at > patience_s:
            raise RequestTimedOut(f"no batch has ended for {patience_s:g} s, which --patience says")


def tell(progress: Progress, output: str) -> None:
    """One line for a batch."""
    if output in ("json", "ndjson"):
        show([progress._asdict()], "ndjson", columns=[], key="query")
    elif output == "table":
        lag = ", ".join(f"{topic} {count:,}" for topic, count in progress.lag.items())
        say(
            f"{progress.query}: batch {progress.batch}, rows {progress.rows:,}, "
            f"{progress.rows_per_s:,.0f}/s{lag and f', behind by {lag}'}"
        )


@pipeline.command("status", epilog=EXAMPLES)
@watchable
@click.option(
    "--checkpoint",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The pipeline's.",
)
@click.option("-b", "--bootstrap", envvar="HIGHTIDE_BOOTSTRAP", metavar="HOST:PORT[,…]")
@timeout_option
@output_option
def status(checkpoint: Path, bootstrap: str | None, timeout_s: float, output: str) -> None:
    """How far each query of a pipeline is, by its checkpoint, its group and the topics' high
    watermarks; it may run meanwhile."""
    import msgspec

    from hightide.spark.pipeline_config import recall
    from hightide.spark.pipeline_status import standings

    config = recall(checkpoint)
    if bootstrap is not None:
        config = msgspec.structs.replace(config, bootstrap=bootstrap)
    found = standings(checkpoint, config, timeout_s=timeout_s)
    if not found:
        say(f"pipeline {config.name!r} has not run a batch yet")
    columns = ["query", "batch", "is_finished", "topic", "partition", "offset"]
    columns += ["high_watermark", "lag", "group_offset"]
    show([each._asdict() for each in found], output, columns=columns, key="query")
