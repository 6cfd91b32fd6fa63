"""In the Python that has Spark: `python -m interop.spark_client rows|turns JOB…`."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from compare.job import Figures, Job
from compare.spark_client import MASTER, read

from hightide.spark import session
from interop.speed import ROUNDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COPIED = ("key", "value", "headers")
COPY_S = 300


def main() -> None:
    """Prints a list of JSON; raises `AssertionError`."""
    jobs = [Job.from_json(text) for text in sys.argv[2:]]
    opened = session("interop", MASTER, {"spark.jars": ",".join(jobs[0].jars)})
    try:
        if sys.argv[1] == "turns":
            print(json.dumps(_turns(opened, jobs)))
        else:
            print(json.dumps([{job.topic: _rows(opened, job)} for job in jobs]))
    finally:
        opened.stop()


def _turns(opened: SparkSession, jobs: list[Job]) -> list[list[Figures]]:
    """How fast each is read, in turns; the first of each warms up."""
    found: list[list[Figures]] = [[] for _ in jobs]
    both = [*zip(jobs, found, strict=True)]
    for number in range(ROUNDS + 1):
        for job, figures in both if number % 2 else reversed(both):
            os.sync()
            found_now = read(opened, job)
            figures.append(
                {"count()": found_now["count_per_s"], "Parquet": found_now["parquet_per_s"]}
            )
    return found


def _rows(opened: SparkSession, job: Job) -> int:
    """Compare what `format("kafka")` and `format("hightide")` read, and what a copy has."""
    theirs = _read(opened, "kafka", job.address, job.topic)
    _same(theirs, _read(opened, "hightide", job.address, job.topic), job.records)
    copy_name = f"{job.topic}-copy"
    _copy(opened, job, copy_name)
    copy = _read(opened, "hightide", job.address, copy_name)
    _same(theirs.select(*COPIED), copy.select(*COPIED), job.records)
    return job.records


def _read(opened: SparkSession, form: str, address: str, topic: str) -> DataFrame:
    reader = opened.read.format(form).option("kafka.bootstrap.servers", address)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    return reader.option("endingOffsets", "latest").option("includeHeaders", "true").load()


def _same(theirs: DataFrame, ours: DataFrame, count: int) -> None:
    """Every row as often, whatever the order."""
    names = [*zip(theirs.columns, [field.dataType for field in theirs.schema], strict=True)]
    own = [*zip(ours.columns, [field.dataType for field in ours.schema], strict=True)]
    assert names == own, f"columns {own}, expected {names}"
    assert theirs.count() == count, f"{theirs.count()} rows, expected {count}"
    for one, other in ((theirs, ours), (ours, theirs)):
        lacks = one.exceptAll(other).limit(1).collect()
        assert not lacks, f"only one of both has {lacks}"


def _copy(opened: SparkSession, job: Job, name: str) -> None:
    """A stream from a topic to another one, source and sink by Kafka's connector."""
    reader = opened.readStream.format("kafka").option("kafka.bootstrap.servers", job.address)
    reader = reader.option("subscribe", job.topic).option("startingOffsets", "earliest")
    rows = reader.option("includeHeaders", "true").load().select(*COPIED)
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", job.address)
    writer = writer.option("topic", name).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{job.directory}/checkpoint-{name}")
    query = writer.start()
    assert query.awaitTermination(COPY_S), f"the copy of {job.topic} did not end"


if __name__ == "__main__":
    main()
