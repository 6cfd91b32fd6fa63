"""`hightide demo`: the whole way on real data - brokers, a replay, the shipped pipeline, a check.

Three brokers start in a temporary directory, a year of flights is replayed into a replicated topic
while the pipeline reads it, writes every flight to Parquet and hourly delays to Parquet and to a
results topic. In the middle of it the leader is killed with `kill -9`. The pipeline is stopped, and
started once more to end where the topic ends; then everything is compared with a direct computation
over the source file. Exit 0 means that all of it matched.

The topic has one partition: a watermark is one for all partitions, and while one of them has no
leader the others would be months ahead.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.errors import HightideError, RequestTimedOut
from hightide_cli.demo.check import Outcome, check, read, window
from hightide_cli.demo.flights import SCHEMA, events, load_flights
from hightide_cli.demo.looking import console_beside, let_look
from hightide_cli.demo.picture import Timeline, draw
from hightide_cli.failures import REFUSED
from hightide_cli.options import run
from hightide_cli.output import print_table, say
from hightide_cli.own_cluster import OwnCluster

if TYPE_CHECKING:
    import pyarrow as pa
    import trio
    from trio import TaskStatus

    from hightide.spark.pipeline import Running
    from hightide.spark.pipeline_config import PipelineConfig

TOPIC, RESULTS = "flights", "flights-hourly"
PICTURE = "demo.png"
BROKERS = 3
SAMPLE_S = 0.25
WATERMARK_H = 24
"""No flight of the file is later than that, in the order of actual departure."""


@click.command(
    epilog="Examples: hightide demo · hightide demo --rows 20000 --output /tmp/demo · "
    "hightide demo --rows 20000 --secure · hightide demo --rows 20000 --console"
)
@click.option(
    "--rows", type=click.IntRange(min=1), help="Only so many flights [default: all 336776]."
)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Where to write.")
@click.option("--master", default="local[2]", show_default=True, help="Spark's master.")
@click.option(
    "--secure",
    is_flag=True,
    help="Under TLS, as `up --secure` has it: all of it logs in, Spark's executors as well.",
)
@click.option(
    "--console",
    is_flag=True,
    help="Start a console beside it; cluster and console stay to be looked at, until Ctrl-C.",
)
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(min=1),
    default=900.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up when nothing has moved for so long.",
)
def demo(
    rows: int | None,
    output: Path | None,
    master: str,
    secure: bool,
    console: bool,
    patience_s: float,
) -> None:
    """Replay real flights through three brokers and the pipeline, kill a leader meanwhile, and
    check every one of them."""
    output = output or Path(tempfile.mkdtemp(prefix="hightide-demo-"))
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise click.UsageError(f"--output {output} is not empty")
    outcome, timeline = Outcome(), Timeline()
    say("reading the flights")
    table = load_flights(rows)
    outcome.counts["flights in the source file"] = table.num_rows
    # Told to end, it ends its brokers and its JVM first, as it does at Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with OwnCluster(brokers=BROKERS, secure=secure) as cluster, ExitStack() as stack:
        way = cluster.way
        who = ", as " + way["sasl_username"] if secure else ""
        say(f"{BROKERS} brokers serve on {cluster.address}{who}")
        shown = stack.enter_context(console_beside(cluster.data, way)) if console else ""
        _stream(cluster, way, table, output, master, patience_s, outcome, timeline)
        results = run(_read_results, way, patience_s)
        check(table, output, results, WATERMARK_H, outcome)
        draw(timeline, map(window, read(output / "hourly").to_pylist()), output / PICTURE)
        _report(output, outcome)
        if shown:
            let_look(shown, TOPIC)
        elif not console:
            say("to look at it in a browser, also while it happens: hightide demo --console")
    if outcome.mismatches:
        raise click.exceptions.Exit(REFUSED)


def pipeline_config(way: dict[str, Any], output: Path) -> PipelineConfig:
    """The demo's pipeline, as `pipeline run` would have it in a file."""
    from hightide.spark.pipeline_config import Aggregate, PipelineConfig

    client = {name.replace("_", "."): str(value) for name, value in way.items()}
    return PipelineConfig(
        name="demo",
        bootstrap=client.pop("bootstrap.servers"),
        client=client,
        topics=[TOPIC],
        format="json",
        schema=SCHEMA,
        checkpoint=str(output / "checkpoint"),
        parquet=str(output / "flights"),
        aggregate=Aggregate(
            window="1 hour",
            watermark=f"{WATERMARK_H} hours",
            by=["origin"],
            compute=[
                "count(*) AS flights",
                "count_if(dep_delay IS NULL) AS cancelled",
                "coalesce(sum(dep_delay), 0) AS delay",
            ],
            parquet=str(output / "hourly"),
            topic=RESULTS,
        ),
    )


def _stream(
    cluster: OwnCluster,
    way: dict[str, Any],
    table: pa.Table,
    output: Path,
    master: str,
    patience_s: float,
    outcome: Outcome,
    timeline: Timeline,
) -> None:
    """Start the pipeline, replay the flights under it, and let it end where they end."""
    from hightide.spark.pipeline import start
    from hightide.spark.pipeline_config import ROWS
    from hightide_cli.pipeline import follow, open_session

    started = time.monotonic()
    run(_make_topics, way, patience_s)
    say("starting Spark")
    remembered = {"spark.sql.streaming.numRecentProgressUpdates": "10000"}
    with open_session("hightide-demo", master, remembered) as spark:
        outcome.seconds["start Spark"] = time.monotonic() - started
        config = pipeline_config(way, output)
        running = start(spark, config)
        started = time.monotonic()
        # Windows that are over are written with the next records, so some are kept for the end.
        most = table.num_rows * 3 // 4
        timeline.note("the replay begins")
        run(_replay, cluster, way, table.slice(0, most), timeline, True, patience_s)
        seconds = time.monotonic() - started
        _let_work(running, patience_s)
        running.stop()
        timeline.batches += running.batches(ROWS)
        timeline.note("the pipeline was stopped; the last quarter of the flights follows")
        replaying = time.monotonic()
        run(_replay, cluster, way, table.slice(most), timeline, False, patience_s)
        outcome.seconds["replay"] = seconds + time.monotonic() - replaying
        timeline.note("the pipeline starts once more, to end where the topic ends")
        running = start(spark, config, once=True)
        follow(running, threading.Event(), "table", patience_s)
        timeline.batches += running.batches(ROWS)
        outcome.seconds["replay and pipeline"] = time.monotonic() - started


def _let_work(running: Running, patience_s: float) -> None:
    """Until each query has done a batch: stopping is shown on a pipeline that is at work."""
    at_work, moved_at = running.progress(), time.monotonic()
    while len(at_work) < len(running.queries):
        running.wait(1)
        before, at_work = at_work, running.progress()
        if at_work != before:
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > patience_s:
            raise _nothing_moved("the pipeline", patience_s)


def _nothing_moved(what: str, patience_s: float) -> RequestTimedOut:
    return RequestTimedOut(f"{what} has not moved for {patience_s:g} s, which --patience says")


async def _make_topics(way: dict[str, Any], patience_s: float) -> None:
    from hightide import Admin

    async with Admin(**way, default_api_timeout_ms=patience_s * 1000) as admin:
        for topic in (TOPIC, RESULTS):
            # The events are of 2013: by age they would be deleted at once.
            await admin.create_topic(
                topic,
                partitions=1,
                replication_factor=BROKERS,
                configs={"retention.ms": "-1", "min.insync.replicas": "2"},
            )


async def _replay(
    cluster: OwnCluster,
    way: dict[str, Any],
    table: pa.Table,
    timeline: Timeline,
    kill: bool,
    patience_s: float,
) -> None:
    """Every flight as a record, keyed by carrier, with the event time as timestamp; if
    wanted the leader is killed in the middle of it, and brought back."""
    import trio
    from rich.console import Console
    from rich.progress import Progress

    from hightide import Producer

    console = Console(stderr=True)
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("replaying flights", total=table.num_rows)
        async with (
            trio.open_nursery() as nursery,
            Producer(
                **way,
                compression_type="lz4",
                max_block_ms=patience_s * 1000,
                delivery_timeout_ms=patience_s * 1000,
            ) as producer,
        ):
            watching = await nursery.start(_watch, way, timeline, patience_s)
            for number, (key, value, event_ms) in enumerate(events(table), 1):
                await producer.send(TOPIC, value, key=key, timestamp=event_ms)
                if kill and number == table.num_rows // 2:
                    nursery.start_soon(_kill_a_leader, cluster, way, timeline, patience_s)
                if number % 1000 == 0:
                    progress.update(task, completed=number)
            await producer.flush()
            watching.set()
        progress.update(task, completed=table.num_rows)


async def _watch(
    way: dict[str, Any],
    timeline: Timeline,
    patience_s: float,
    task_status: TaskStatus[trio.Event],
) -> None:
    """Note how far the topic is committed, until the event is set that this starts with."""
    import trio

    from hightide import LATEST, Admin, TopicPartition

    enough, flights = trio.Event(), TopicPartition(TOPIC, 0)
    async with Admin(**way, default_api_timeout_ms=patience_s * 1000) as admin:
        task_status.started(enough)
        is_last = False
        while not is_last:
            with trio.move_on_after(SAMPLE_S):
                await enough.wait()
            is_last = enough.is_set()
            with suppress(HightideError):  # it is for the picture only
                found = await admin.offsets([flights], LATEST)
                timeline.committed.append((time.time(), found[flights].offset))


async def _kill_a_leader(
    cluster: OwnCluster, way: dict[str, Any], timeline: Timeline, patience_s: float
) -> None:
    import trio

    from hightide import Admin

    async with Admin(**way, default_api_timeout_ms=patience_s * 1000) as admin:
        leader = (await admin.describe_topic(TOPIC)).partitions[0].leader
    await trio.to_thread.run_sync(partial(cluster.stop, leader, kill=True))
    timeline.note(f"kill -9 of broker {leader}, the leader")
    await trio.to_thread.run_sync(cluster.start, leader)
    timeline.note(f"broker {leader} is back")


async def _read_results(way: dict[str, Any], patience_s: float) -> list[bytes]:
    """Every value of the results topic."""
    from hightide import LATEST, Admin, Consumer, TopicPartition

    results = TopicPartition(RESULTS, 0)
    async with Admin(**way, default_api_timeout_ms=patience_s * 1000) as admin:
        end = (await admin.offsets([results], LATEST))[results].offset
    found: list[bytes] = []
    async with Consumer(**way, topics=[RESULTS], auto_offset_reset="earliest") as consumer:
        while len(found) < end:
            records = await consumer.poll(timeout_ms=round(patience_s * 1000))
            if not records:
                raise _nothing_moved("the results topic", patience_s)
            found += [record.value or b"" for record in records]
    return found


def _report(output: Path, outcome: Outcome) -> None:
    rows = [[name, f"{count:,}"] for name, count in outcome.counts.items()]
    rows += [[name, f"{seconds:.1f} s"] for name, seconds in outcome.seconds.items()]
    flights = outcome.counts["flights in the source file"]
    rows.append(["records/s into the topic", f"{flights / outcome.seconds['replay']:,.0f}"])
    through = flights / outcome.seconds["replay and pipeline"]
    rows.append(["records/s through to Parquet", f"{through:,.0f}"])
    rows.append(["flights", str(output / "flights")])
    rows.append(["hourly delays", str(output / "hourly")])
    rows.append(["picture", str(output / PICTURE)])
    rows.append(["matches the source file", "no" if outcome.mismatches else "yes"])
    print_table(rows, ["demo", "result"])
    for mismatch in outcome.mismatches:
        say(f"MISMATCH: {mismatch}")
