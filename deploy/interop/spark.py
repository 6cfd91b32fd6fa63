"""Spark's own Kafka connector: which rows it sees, and how fast it reads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from compare.job import Job
from compare.processes import Failed
from compare.spark_place import SparkPlace, spark_place
from confluent_kafka import Producer

from interop.place import CODECS, SHOWN, Place, Skipped, ran
from interop.speed import RECORD_BYTES, beside, client, compared

ROWS = 300
"""Of each codec, and of native records."""
FILL_S = 120.0
SCANNED = 1_000_000
SPARK_S = 900.0
FIRST_MS = 1_700_000_000_000
"""The time of the first record; each is a millisecond later than the one before."""


def spark_connector(place: Place) -> str:
    """Spark's own Kafka connector reads what Kafka's clients and hightide's wrote as
    `format("hightide")` does, copies it by a stream, and counts and writes 100 B records to
    Parquet: medians of rows a second."""
    spark = spark_place()
    if spark.python is None:
        raise Skipped(spark.note)
    return f"Spark {spark.version}: {_same_rows(place, spark)}; {_speed(place, spark)}"


def _same_rows(place: Place, spark: SparkPlace) -> str:
    by_clients, native = "spark-rows", "spark-columns"
    rows = {by_clients: _from_kafka(place.address, by_clients), native: ROWS}
    lines = [json.dumps(_record(number)) for number in range(ROWS)]
    place.produce(native, *lines, options=("-J", "-z", "zstd"))
    jobs = [_job(place, spark, place.address, topic, count) for topic, count in rows.items()]
    _spark(spark, "rows", jobs)
    return f"{sum(rows.values())} rows are the same, and copied"


def _speed(place: Place, spark: SparkPlace) -> str:
    with beside(place) as kafka:
        jobs = [_job(place, spark, each, "scanned", SCANNED) for each in (kafka, place.address)]
        for job in jobs:
            client(replace(job, work="send_untold", size=RECORD_BYTES))
        theirs, ours = json.loads(_spark(spark, "turns", jobs))
    return compared(theirs, ours)


def _job(place: Place, spark: SparkPlace, address: str, topic: str, records: int) -> Job:
    return Job(
        system="kafka",
        work="spark",
        address=address,
        topic=topic,
        records=records,
        jars=[*spark.jars],
        directory=str(place.directory),
    )


def _spark(spark: SparkPlace, what: str, jobs: list[Job]) -> str:
    """What Spark's own Python said last of all; raises `Failed`."""
    assert spark.python is not None, "there is a Spark"
    command = [str(spark.python), "-m", "interop.spark_client", what]
    command += [job.to_json() for job in jobs]
    told = ran(command, timeout_s=SPARK_S, may_fail=True).splitlines()
    if found := [line for line in told if line.startswith(("[{", "[["))]:
        return found[-1]
    causes = [line for line in told if re.match(r"Caused by|\w*(Error|Exception)", line)]
    raise Failed(" ".join([*dict.fromkeys(causes)])[:SHOWN] or "Spark said nothing")


def _record(number: int) -> dict[str, Any]:
    """Some without a key, some without a value, some without headers."""
    return {
        "key": f"key-{number % 10}" if number % 3 else None,
        "value": f"value-{number}" if number % 5 else None,
        "headers": [("number", str(number)), ("twice", "a"), ("twice", None)] * (number % 2),
        "timestamp": FIRST_MS + number,
    }


def _from_kafka(address: str, topic: str) -> int:
    """Write with a client of Kafka's, in each codec; how many."""
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "compression.type": codec,
                "batch.num.messages": ROWS // 3,
            }
        )
        for number in range(ROWS):
            producer.produce(topic, **_record(number))
        if left := producer.flush(FILL_S):
            raise Failed(f"{left} records in {codec} were not acknowledged")
    return len(CODECS) * ROWS
