"""Spark reads a topic: into `count()`, and into Parquet files. Each once without a clock first.

The session is hightide's for both systems, so that Java, Spark and settings are the same; Kafka's
topic is read by Spark's own connector, in the JVM, without Python.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compare.job import Figures, Job
from hightide.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"
TASKS = 2
"""Both sources may read one partition in several tasks; each of the two cores gets one."""


def spark(job: Job) -> Figures:
    """Rows a second."""
    opened = session("compare", MASTER, {"spark.jars": ",".join(job.jars)} if job.jars else {})
    try:
        read(opened, job)
        return read(opened, job)
    finally:
        opened.stop()


def read(opened: SparkSession, job: Job) -> Figures:
    """Rows a second of one time."""
    frame = _frame(opened, job)
    return {
        "count_per_s": job.records / _seconds(partial(_count, frame, job.records)),
        "parquet_per_s": job.records / _seconds(partial(_to_parquet, frame, Path(job.directory))),
    }


def _frame(opened: SparkSession, job: Job) -> DataFrame:
    reader = opened.read.format(job.system).option("kafka.bootstrap.servers", job.address)
    reader = reader.option("subscribe", job.topic).option("startingOffsets", "earliest")
    return reader.option("endingOffsets", "latest").option("minPartitions", TASKS).load()


def _count(frame: DataFrame, records: int) -> None:
    found = frame.count()
    assert found == records, f"{found} rows read, {records} are there"


def _to_parquet(frame: DataFrame, directory: Path) -> None:
    files = directory / "parquet"
    shutil.rmtree(files, ignore_errors=True)
    frame.write.parquet(str(files))


def _seconds(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


WORK = {"spark": spark}
