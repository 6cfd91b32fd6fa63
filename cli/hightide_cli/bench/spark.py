"""`hightide bench spark`: how fast Spark reads from and writes to three brokers.

Each figure stands beside the same work with a source that does nothing (`memory_source.py`): Spark
takes rows from Python at a certain rate and needs a certain time for a micro-batch, no matter who
made them. Sessions, brokers and this program share the machine's cores.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol.words import counted
from hightide_cli.bench.client import data_option
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show_one
from hightide_cli.own_cluster import OwnCluster, memory_mb
from hightide_cli.pipeline import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, SMALL_TOPIC, SINK_TOPIC = "bench", "bench-small", "bench-sink"
MEMORY = "hightide-bench-memory"
FILL_ROWS = 100_000
ROUNDS = 3
SINK_ROWS_MAX = 3_000_000
MICRO_BATCHES = 60
MEASURED = 40
"""So many of them, the last: the first ones of a query are slower, whatever its source."""
MICRO_BATCH_ROWS = 1_000
WARM_ROWS = 500_000


@click.command(epilog="Example: hightide bench spark -n 10000000 -o json")
@click.option(
    "-n", "--records", type=click.IntRange(min=1000), default=10_000_000, show_default=True
)
@click.option("--record-size", type=click.IntRange(min=0), default=100, show_default=True)
@click.option("--brokers", type=click.IntRange(1, 9), default=3, show_default=True)
@click.option("--partitions", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--master", default="local[2]", show_default=True, help="Spark's master.")
@data_option
@output_option
def spark(
    records: int,
    record_size: int,
    brokers: int,
    partitions: int,
    master: str,
    data: Path | None,
    output: str,
) -> None:
    """Spark reads a topic into count(), runs small micro-batches, and writes to a topic, beside a
    source that does nothing; each partition on up to three brokers, acks=all."""
    from hightide_cli.bench.memory_source import MemorySource

    figures: dict[str, Any] = {
        "bench": "spark",
        "records": records,
        "record_size": record_size,
        "partitions": partitions,
    }
    with OwnCluster(brokers=brokers, directory=data) as cluster:
        work = Work(cluster.address, records, record_size, partitions, min(brokers, 3))
        run(work.fill)
        figures |= work.memory()
        with open_session("hightide-bench", master, {}) as session:
            session.dataSource.register(MemorySource)
            for step in (work.read, work.micro_batches, work.write):
                say(f"measuring {step.__name__} …")
                figures |= step(session)
    show_one(figures, output)


class Work:
    """What is measured, on one cluster."""

    def __init__(
        self, address: str, records: int, size: int, partitions: int, replicas: int
    ) -> None:
        self._address = address
        self._records = records
        self._size = size
        self._partitions = partitions
        self._replicas = replicas

    async def fill(self) -> None:
        """The topics, and the records that are read."""
        from hightide import Admin

        async with Admin(self._address) as admin:
            for topic in (TOPIC, SMALL_TOPIC, SINK_TOPIC):
                await admin.create_topic(
                    topic, partitions=self._partitions, replication_factor=self._replicas
                )
        await self._fill(TOPIC, self._records)
        await self._fill(SMALL_TOPIC, MICRO_BATCH_ROWS * MICRO_BATCHES)

    async def _fill(self, topic: str, records: int) -> None:
        import pyarrow as pa

        from hightide import Producer
        from hightide_cli.bench.memory_source import shares

        values = [os.urandom(self._size) for _ in range(FILL_ROWS)]
        table = pa.table({"value": pa.array(values, pa.binary())})
        async with Producer(self._address, batch_size=900_000) as producer:
            for partition, count in enumerate(shares(records, self._partitions)):
                for start in range(0, count, FILL_ROWS):
                    rows = table.slice(0, min(FILL_ROWS, count - start))
                    await producer.send_arrow(rows, topic, partition=partition)

    def memory(self) -> dict[str, Any]:
        """What a task needs at its most: after a tenth of partition 0, and after all of it."""
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            early, late = pool.submit(_read_partition, self._address).result()
        return {"task_memory_mb_after_a_tenth": early, "task_memory_mb": late}

    def read(self, session: SparkSession) -> dict[str, Any]:
        """Rows a second into count()."""
        topic, floor = self._topic(session), self._floor(session, self._records)
        warm = self._floor(session, min(self._records, WARM_ROWS))
        for _ in range(2):
            warm.count()
            _rate(topic, self._records)
        rates = [(_rate(topic, self._records), _rate(floor, self._records)) for _ in range(ROUNDS)]
        read, memory = (round(median(found)) for found in zip(*rates, strict=True))
        return {
            "read_per_s": read,
            "floor_read_per_s": memory,
            "ratio_read_to_memory": round(read / memory, 3),
        }

    def micro_batches(self, session: SparkSession) -> dict[str, Any]:
        """What a small micro-batch takes; the queries run in turns, for they are noisy."""
        ours = session.readStream.format("hightide").options(**self._place(SMALL_TOPIC))
        ours = ours.option("startingOffsets", "earliest")
        ours = ours.option("maxOffsetsPerTrigger", MICRO_BATCH_ROWS)
        floor = session.readStream.format(MEMORY).option("batches", MICRO_BATCHES)
        floor = floor.options(**self._shape(MICRO_BATCH_ROWS))
        rounds = [(_batch_ms(floor.load()), _batch_ms(ours.load())) for _ in range(ROUNDS)]
        nothing, source = (median(found) for found in zip(*rounds, strict=True))
        return {
            "micro_batch_ms": round(source, 1),
            "floor_micro_batch_ms": round(nothing, 1),
            "micro_batch_overhead_ms": round(source - nothing, 1),
        }

    def write(self, session: SparkSession) -> dict[str, Any]:
        """Rows a second into a topic."""
        rows = min(self._records, SINK_ROWS_MAX)

        def save(count: int) -> float:
            frame = self._floor(session, count).select("value")
            started = time.perf_counter()
            sink = frame.write.format("hightide").option("bootstrap.servers", self._address)
            sink.option("topic", SINK_TOPIC).mode("append").save()
            return count / (time.perf_counter() - started)

        save(min(rows, WARM_ROWS))
        return {
            "sink_records": rows,
            "sink_per_s": round(median(save(rows) for _ in range(ROUNDS))),
        }

    def _place(self, topic: str) -> dict[str, str]:
        return {"bootstrap.servers": self._address, "subscribe": topic}

    def _shape(self, rows: int) -> dict[str, Any]:
        return {"rows": rows, "partitions": self._partitions, "size": self._size}

    def _topic(self, session: SparkSession) -> DataFrame:
        return session.read.format("hightide").options(**self._place(TOPIC)).load()

    def _floor(self, session: SparkSession, rows: int) -> DataFrame:
        return session.read.format(MEMORY).options(**self._shape(rows)).load()


def _rate(frame: DataFrame, rows: int) -> float:
    started = time.perf_counter()
    found = frame.count()
    assert found == rows, f"{counted(found, 'row')} read, {rows} are there"
    return rows / (time.perf_counter() - started)


def _batch_ms(stream: DataFrame) -> float:
    """What a micro-batch of a query takes once it is warm."""
    with tempfile.TemporaryDirectory(prefix="hightide-checkpoint-") as checkpoint:
        writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
    assert len(progress) == MICRO_BATCHES, f"{len(progress)} micro-batches, not {MICRO_BATCHES}"
    times = [float(each["durationMs"]["triggerExecution"]) for each in progress[-MEASURED:]]
    return median(times)


def _read_partition(address: str) -> tuple[float | None, float | None]:
    """In a process of its own: its memory at the most, in MiB, after a tenth of partition 0 and
    after all of it."""
    from hightide.protocol.messages import LATEST
    from hightide.spark.client import client_for
    from hightide.spark.fetch import read_range
    from hightide.spark.ranges import OffsetRange

    client = client_for(address)
    client.refresh([TOPIC], timeout_s=30)
    end = client.offset(TOPIC, 0, LATEST, timeout_s=30).offset
    wanted = OffsetRange(TOPIC, client.metadata.topics[TOPIC].topic_id, 0, 0, end)
    rows, early = 0, None
    for batch in read_range(
        address, wanted, include_headers=False, fail_on_data_loss=True, timeout_s=60
    ):
        rows += batch.num_rows
        if early is None and rows >= end // 10:
            early = _peak_mb()
    assert rows == end, f"{counted(rows, 'row')} read, {end} are there"
    return early, _peak_mb()


def _peak_mb() -> float | None:
    return memory_mb(os.getpid(), "VmHWM")
