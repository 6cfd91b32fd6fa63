"""Queries whose driver and whose brokers are killed again and again write everything once.

Goal: however often `kill -9` hits the driver or a broker, and wherever, what a query read is the
log's offsets without a gap or a repeat, and what its sink stored is what was there to be read.
Method: three brokers; a process that copies a topic to Parquet and to another topic in small
micro-batches, while records are sent. Each round a broker is killed while both queries work, and
started again, then the driver. HIGHTIDE_KILLS says how many rounds; a failure names the seed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq
from patience import PATIENCE_MS
from secure_run import own_cluster, reaching, spark_options
from spark_support import until
from test_spark_sink_queries import records_of
from warm_python import keep_spark_warm

from hightide.blocking import Admin, Producer
from hightide.spark.pipeline_status import parquet_files

ROUNDS = int(os.environ.get("HIGHTIDE_KILLS", "0"))
SEED = int(os.environ.get("HIGHTIDE_SEED", "1"))
pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not ROUNDS, reason="in the short form the adversary kills them"),
]
PARTITIONS = 2

COPY = """
import json, sys, time
from hightide.spark import session, started

way, place, mode = sys.argv[1:]
way = json.loads(way)
spark = session("kills", "local[2]")
spark.sparkContext.setLogLevel("OFF")


def source():
    reader = spark.readStream.format("hightide").options(**way)
    reader = reader.option("subscribe", "source").option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", 100 if mode == "on" else 100_000).load()


def write(writer, name):
    writer = writer.queryName(name).option("checkpointLocation", f"{place}/checkpoint-{name}")
    return started(writer.trigger(availableNow=True) if mode == "once" else writer)


copied = source().select("key", "value").writeStream.format("hightide").option("topic", "target")
queries = [write(source().writeStream.format("parquet").option("path", f"{place}/rows"), "rows")]
queries.append(write(copied.options(**way), "copy"))
told = set()
while any(query.isActive for query in queries):
    for query in queries:
        if query.exception() is not None:
            raise query.exception()
        if (last := query.lastProgress) is not None and (query.name, last["batchId"]) not in told:
            told.add((query.name, last["batchId"]))
            print(query.name, flush=True)
    time.sleep(0.1)
for query in queries:
    query.awaitTermination()
spark.stop()
"""


class Driver:
    """The copying process; killed with its JVM and all workers."""

    def __init__(self, address, place, mode):
        way = json.dumps(spark_options(address))
        self._said = []
        self._log = (place / "driver.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", COPY, way, str(place), mode],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self):
        for line in self.process.stdout:
            self._said.append(line.strip())

    def wait_until_at_work(self):
        until(
            lambda: len(set(self._said)) == 2 or self.process.poll() is not None,
            "both queries work",
            progress=lambda: len(self._said),
        )
        assert self.process.poll() is None, f"the driver ended by itself:\n{self.log()}"

    def log(self):
        """The end of what it wrote to stderr."""
        return Path(self._log.name).read_text(errors="replace")[-3000:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self._log.close()

    def wait_until_done(self):
        """Its exit code."""
        until(
            lambda: self.process.poll() is not None,
            "the driver ends",
            progress=lambda: len(self._said),
        )
        return self.process.returncode


class Sender:
    """Sends numbered records until it is told to stop; all of them are acknowledged."""

    def __init__(self, address):
        self._address = address
        self._stop = threading.Event()
        self.values = []
        self._threads = ThreadPoolExecutor(1)
        self._sent = self._threads.submit(self._send)

    def _send(self):
        with Producer(
            **reaching(self._address), delivery_timeout_ms=PATIENCE_MS, max_block_ms=PATIENCE_MS
        ) as producer:
            while not self._stop.wait(0.05):
                fresh = [b"%09d" % (len(self.values) + n) for n in range(10)]
                producer.send_many("source", fresh).result()
                self.values += fresh

    def close(self):
        self._stop.set()
        self._threads.shutdown()
        self._sent.result()


def kill_a_broker(cluster, chance):
    node = chance.choice([process.node for process in cluster.nodes])
    cluster.stop(node, kill=True)
    cluster.start(node)


def test_whatever_is_killed_everything_is_read_and_written_once(tmp_path):
    keep_spark_warm()
    chance, pause = random.Random(SEED), threading.Event()
    with own_cluster(brokers=3, directory=tmp_path) as cluster:
        with Admin(**reaching(cluster.address)) as admin:
            for topic in ("source", "target"):
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        sender = Sender(cluster.address)
        try:
            for _ in range(ROUNDS):
                with Driver(cluster.address, tmp_path, "on") as driver:
                    driver.wait_until_at_work()
                    kill_a_broker(cluster, chance)
                    pause.wait(chance.random())  # wherever it is by then
                    assert driver.process.poll() is None, f"seed {SEED}:\n{driver.log()}"
        finally:
            sender.close()
        with Driver(cluster.address, tmp_path, "once") as driver:
            assert driver.wait_until_done() == 0, f"seed {SEED}:\n{driver.log()}"
        check(cluster.address, tmp_path, sender.values)


def check(address, place, values):
    files = parquet_files(place / "rows")
    rows = pq.read_table(files, columns=["partition", "offset", "value"], partitioning=None)
    assert sorted(rows["value"].to_pylist()) == values, f"seed {SEED}"
    offsets = {}
    for partition, offset in zip(
        *(rows[n].to_pylist() for n in ("partition", "offset")), strict=True
    ):
        offsets.setdefault(partition, []).append(offset)
    for partition, found in offsets.items():
        assert sorted(found) == list(range(len(found))), f"partition {partition}, seed {SEED}"

    cluster = SimpleNamespace(address=address)
    stored = sorted(record.value for record in records_of(cluster, "target"))
    assert stored == values, f"seed {SEED}"
