"""The shipped pipeline on executors that are processes of their own.

Goal: what works on `local[2]` works where the driver, the workers and the executors are different
processes: Spark's `local-cluster`, and a standalone master with two workers. Method: the same
`pipeline run --once` for each master, from JSON records of two partitions to Parquet and to a
results topic; whichever writer it was, all of it is there once. HIGHTIDE_MASTERS=all tries both
kinds; alone, the one that needs half as many processes.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import os
import subprocess
import sys

import pytest
from tries import LONG

pytest.importorskip("pyspark")

import brief_jvm
import pyarrow.parquet as pq
from patience import PATIENCE_S
from secure_run import variables
from spark_support import broker  # noqa: F401
from standalone import Standalone, environment
from test_spark_sink_queries import values_of

from hightide.spark.pipeline_status import parquet_files

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

ALL = os.environ.get("HIGHTIDE_MASTERS") == "all"
KINDS = ["local-cluster", "standalone"] if ALL else ["local-cluster"]

SHOPS = ("Aue", "Bergen", "Chur")
COUNT = 600
MINUTE_MS = 60_000


@pytest.fixture
def orders(broker):
    """A topic of two partitions with one order for each minute of ten hours."""
    topic = broker.topic(2)
    for partition in (0, 1):
        numbers = range(partition, COUNT, 2)
        values = [
            json.dumps({"shop": SHOPS[n % 3], "amount": n, "at": n * 60}).encode() for n in numbers
        ]
        broker.fill(topic, values, partition, linger_ms=50)
    return topic


@pytest.fixture
def masters(tmp_path):
    """Master URLs by kind, started when they are asked for."""
    running = []

    def start(kind):
        if kind == "local-cluster":
            return "local-cluster[2,1,1024]"
        (tmp_path / "spark").mkdir()
        cluster = Standalone(tmp_path / "spark")
        running.append(cluster)
        return cluster.__enter__().master

    yield start
    for cluster in running:
        cluster.__exit__()


def run_pipeline(broker, orders, results, place, master):
    words = ["--topic", orders, "--format", "json", "--checkpoint", str(place / "checkpoint")]
    words += ["--schema", "shop string, amount int, at bigint", "--parquet", str(place / "rows")]
    words += ["--event-time", "timestamp_seconds(at)", "--window", "1 hour", "--by", "shop"]
    words += ["--watermark", "2 hours", "--compute", "sum(amount) AS total", "--results", results]
    words += ["--conf", f"spark.executor.extraJavaOptions={brief_jvm.flags()}"]
    command = [sys.executable, "-m", "hightide_cli.main", "pipeline", "run", "-b", broker.address]
    return subprocess.run(
        [*command, *words, "--once", "--master", master],
        env=environment() | variables(broker.address),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 4,
    )


def expected_totals():
    """(hour, shop) → total of every hour that the watermark has passed."""
    totals = {}
    for number in range(COUNT):
        key = number // 60, SHOPS[number % 3]
        totals[key] = totals.get(key, 0) + number
    over = (COUNT - 1) * 60 - 2 * 3600
    return {key: total for key, total in totals.items() if (key[0] + 1) * 3600 <= over}


@LONG
@pytest.mark.parametrize("kind", KINDS)
def test_the_pipeline_runs_on_executors_elsewhere(broker, orders, masters, tmp_path, kind):
    results = broker.topic()
    done = run_pipeline(broker, orders, results, tmp_path, masters(kind))
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(parquet_files(tmp_path / "rows"), partitioning=None)
    assert sorted(rows["amount"].to_pylist()) == list(range(COUNT))
    found = [json.loads(value) for value in values_of(broker, results)]
    totals = {(int(row["window_start"][11:13]), row["shop"]): row["total"] for row in found}
    assert len(found) == len(totals), "a window was written twice"
    assert totals == expected_totals()
