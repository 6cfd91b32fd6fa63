"""`hightide demo`: the whole way on real data - brokers, a replay, a streaming query, and a check.

Three brokers start in a temporary directory, a year of flights is replayed into a replicated topic
while a Spark query reads it, writes every event to Parquet and keeps daily aggregates. In the
middle of it a leader is killed with `kill -9`. Then everything is compared with a direct
computation over the source file. Exit 0 means that all of it matched.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hightide_cli.failures import REFUSED
from hightide_cli.flights import daily_delays, events, load_flights, rows_by_day
from hightide_cli.options import print_table, run, say
from hightide_cli.own_cluster import OwnCluster

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "flights"
PARTITIONS = 3
BROKERS = 3
CATCH_UP_TIMEOUT_S = 300.0
_DAY_SECONDS = 24 * 3600


@dataclass
class Outcome:
    """What the demo measured and compared."""

    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)


@click.command(epilog="Examples: hightide demo · hightide demo --rows 20000 --output /tmp/demo")
@click.option(
    "--rows", type=click.IntRange(min=1), help="Only so many flights [default: all 336776]."
)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Where to write.")
@click.option("--master", default="local[2]", show_default=True, help="Spark's master.")
def demo(rows: int | None, output: Path | None, master: str) -> None:
    """Replay real flights through three brokers into Spark, kill a leader meanwhile, and check
    every one of them."""
    output = output or Path(tempfile.mkdtemp(prefix="hightide-demo-"))
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise click.UsageError(f"--output {output} is not empty")
    outcome = Outcome()
    say("reading the flights")
    table = load_flights(rows)
    outcome.counts["flights in the source file"] = table.num_rows
    with OwnCluster(brokers=BROKERS) as cluster:
        say(f"{BROKERS} brokers serve on {cluster.address}")
        _stream(cluster, table, output, master, outcome)
    _check(table, output, outcome)
    _report(output, outcome)
    if outcome.mismatches:
        raise click.exceptions.Exit(REFUSED)


def _stream(
    cluster: OwnCluster, table: pa.Table, output: Path, master: str, outcome: Outcome
) -> None:
    """Start the queries, replay the flights under them, and wait until they have caught up."""
    from hightide.spark import session

    started, address = time.monotonic(), cluster.address
    run(_make_topic, address)
    say("starting Spark")
    spark = session("hightide-demo", master)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        outcome.seconds["start Spark"] = time.monotonic() - started
        source = _source(spark, address)
        queries = [_write_events(source, output), _write_aggregate(source, output)]
        started = time.monotonic()
        run(_replay, cluster, table)
        outcome.seconds["replay"] = time.monotonic() - started
        say("waiting for the queries to catch up")
        for query in queries:
            _catch_up(query, table.num_rows)
            query.stop()
        outcome.seconds["replay and queries"] = time.monotonic() - started
    finally:
        spark.stop()


async def _make_topic(address: str) -> None:
    from hightide import Admin

    async with Admin(address) as admin:
        # The events are of 2013: by age they would be deleted at once.
        await admin.create_topic(
            TOPIC,
            partitions=PARTITIONS,
            replication_factor=BROKERS,
            configs={"retention.ms": "-1", "min.insync.replicas": "2"},
        )


async def _replay(cluster: OwnCluster, table: pa.Table) -> None:
    """Every flight as a record, keyed by carrier, with the event time as timestamp; in the middle
    of it the leader of the first partition is killed, and brought back."""
    import trio
    from rich.console import Console
    from rich.progress import Progress

    from hightide import Producer

    console = Console(stderr=True)
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("replaying flights", total=table.num_rows)
        async with (
            trio.open_nursery() as nursery,
            Producer(cluster.address, batch_size=128 << 10, compression="lz4") as producer,
        ):
            for number, (key, value, event_ms) in enumerate(events(table), 1):
                await producer.send(TOPIC, value, key=key, timestamp=event_ms)
                if number == table.num_rows // 2:
                    nursery.start_soon(_kill_a_leader, cluster)
                if number % 1000 == 0:
                    progress.update(task, completed=number)
        progress.update(task, completed=table.num_rows)


async def _kill_a_leader(cluster: OwnCluster) -> None:
    import trio

    from hightide import Admin

    async with Admin(cluster.address) as admin:
        leader = (await admin.describe_topic(TOPIC)).partitions[0].leader
    await trio.to_thread.run_sync(partial(cluster.stop, leader, kill=True))
    say(f"killed broker {leader}, which led partition 0")
    await trio.to_thread.run_sync(cluster.start, leader)
    say(f"broker {leader} is back")


def _source(spark: SparkSession, address: str) -> DataFrame:
    return (
        spark.readStream.format("hightide")
        .option("bootstrap.servers", address)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )


def _write_events(source: DataFrame, output: Path) -> Any:
    """Every event to Parquet, once."""
    return (
        source.writeStream.format("parquet")
        .option("path", str(output / "events"))
        .option("checkpointLocation", str(output / "checkpoints" / "events"))
        .start()
    )


def _write_aggregate(source: DataFrame, output: Path) -> Any:
    """Flights, cancellations and delay of each day and carrier; the whole table after each
    batch."""
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), "carrier string, dep_delay int")
    daily = (
        source.select("timestamp", event.alias("event"))
        .groupBy(
            f.window("timestamp", "1 day").alias("day"), f.col("event.carrier").alias("carrier")
        )
        .agg(
            f.count("*").alias("flights"),
            f.sum(f.col("event.dep_delay").isNull().cast("int")).alias("cancelled"),
            f.sum(f.coalesce(f.col("event.dep_delay"), f.lit(0))).alias("delay"),
        )
    )
    target = str(output / "daily")

    def replace(frame: DataFrame, _: int) -> None:
        day = (f.unix_timestamp("day.start") / _DAY_SECONDS).cast("int").alias("day")
        rows = frame.select(day, "carrier", "flights", "cancelled", "delay").coalesce(1)
        rows.write.mode("overwrite").parquet(target)

    return (
        daily.writeStream.outputMode("complete")
        .option("checkpointLocation", str(output / "checkpoints" / "daily"))
        .foreachBatch(replace)
        .start()
    )


def _catch_up(query: Any, total: int) -> None:
    """Wait until a query has read `total` records; raises what stopped it."""
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
    while time.monotonic() < deadline:
        if (error := query.exception()) is not None:
            raise error
        end = _next_offsets(query.lastProgress)
        if end >= total:
            query.processAllAvailable()
            return
        time.sleep(0.2)
    raise click.ClickException(
        f"the query did not read {total} records within {CATCH_UP_TIMEOUT_S:.0f} s"
    )


def _next_offsets(progress: Any) -> int:
    """How many records a query has read, by the end of its last batch."""
    import json

    if progress is None:
        return 0
    end = json.loads(progress["sources"][0]["endOffset"] or "{}")
    partitions = end.get("topics", {}).get(TOPIC, {}).get("partitions", {})
    return sum(place[0] for place in partitions.values())


def _check(table: pa.Table, output: Path, outcome: Outcome) -> None:
    """Compare what Spark wrote with the source file."""
    import pyarrow.parquet as pq

    from hightide.records import crc32c

    stored = pq.read_table(output / "events", columns=["partition", "offset", "key", "value"])
    outcome.counts["events in Parquet"] = stored.num_rows
    if stored.num_rows != table.num_rows:
        outcome.mismatches.append(f"{stored.num_rows} events stored, {table.num_rows} flights")
    offsets: dict[int, set[int]] = {}
    for partition, offset in zip(
        stored["partition"].to_pylist(), stored["offset"].to_pylist(), strict=True
    ):
        offsets.setdefault(partition, set()).add(offset)
    for partition, found in sorted(offsets.items()):
        if found != set(range(len(found))):
            outcome.mismatches.append(f"offsets of partition {partition} have gaps")
    if sum(map(len, offsets.values())) != stored.num_rows:
        outcome.mismatches.append("an offset was stored twice")
    expected = sorted(crc32c(key + value) for key, value, _ in events(table))
    pairs = zip(stored["key"].to_pylist(), stored["value"].to_pylist(), strict=True)
    if sorted(crc32c(key + value) for key, value in pairs) != expected:
        outcome.mismatches.append("the stored events are not the flights of the source file")
    direct = daily_delays(table)
    rows = pq.read_table(output / "daily").to_pylist()
    computed = rows_by_day(rows, "flights", "cancelled", "delay")
    outcome.counts["days x carriers in the aggregate"] = len(computed)
    wrong = [key for key in direct.keys() | computed.keys() if direct.get(key) != computed.get(key)]
    if wrong:
        key = min(wrong)
        outcome.mismatches.append(
            f"{len(wrong)} aggregates differ, the first {key}: "
            f"Spark {computed.get(key)}, directly {direct.get(key)}"
        )


def _report(output: Path, outcome: Outcome) -> None:
    rows = [[name, f"{count:,}"] for name, count in outcome.counts.items()]
    rows += [[name, f"{seconds:.1f} s"] for name, seconds in outcome.seconds.items()]
    flights = outcome.counts["flights in the source file"]
    rows.append(["records/s into the topic", f"{flights / outcome.seconds['replay']:,.0f}"])
    rows.append(
        ["records/s through to Parquet", f"{flights / outcome.seconds['replay and queries']:,.0f}"]
    )
    rows.append(["events", str(output / "events")])
    rows.append(["daily aggregate", str(output / "daily")])
    rows.append(["matches the source file", "no" if outcome.mismatches else "yes"])
    print_table(rows, ["demo", "result"])
    for mismatch in outcome.mismatches:
        say(f"MISMATCH: {mismatch}")
