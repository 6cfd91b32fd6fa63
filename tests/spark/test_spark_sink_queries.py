"""Whole Spark queries that write to topics: batches, streams, and what is run again.

Goal: what a sink topic holds is what the query's rows are, once each, no matter who died in
between. Method: one broker in its own process and Spark on this machine; drivers that are to be
killed, and tasks that are to fail, run in a process of their own.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from patience import PATIENCE_MS, PATIENCE_S
from secure_run import reaching, spark_options

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException
from spark_support import broker, logged, numbered, spark, until, until_ended  # noqa: F401

from hightide.blocking import Admin, Consumer
from hightide.protocol.messages import LATEST
from hightide.spark import started
from hightide.spark.builder import LOCAL_SETTINGS, SETTINGS

pytestmark = [pytest.mark.spark, pytest.mark.live]

COPY = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

way, settings, source, target, checkpoint, mark = sys.argv[1:]
way = json.loads(way)


def fails_once(value):
    import os
    if value == b"100000" and not os.path.exists(mark):
        open(mark, "w").close()
        raise RuntimeError("as the test says")
    return value


spark = SparkSession.builder.master("local[2,3]").config(map=json.loads(settings)).getOrCreate()
frame = (
    spark.readStream.format("hightide")
    .options(**way)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .load()
    .select("key", udf(fails_once, "binary")("value").alias("value"))
)
query = (
    frame.writeStream.format("hightide")
    .options(**way)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print("imported", [name for name in sys.modules if name.startswith("hightide")])
spark.stop()
"""


@contextmanager
def copy(broker, source, target, checkpoint, mark):
    """A process that copies a topic until it is copied; it ends with the block, and its JVM."""
    told = json.dumps(spark_options(broker.address)), json.dumps({**SETTINGS, **LOCAL_SETTINGS})
    words = [*told, source, target, checkpoint, mark]
    process = subprocess.Popen(
        [sys.executable, "-c", COPY, *map(str, words)],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def records_of(broker, topic):
    """Everything that a topic holds."""
    with Admin(**reaching(broker.address)) as admin:
        count = len(admin.describe_topic(topic).partitions)
        found = admin.offsets([(topic, number) for number in range(count)], LATEST)
    ends = sum(each.offset for each in found.values())
    records = []
    with Consumer(
        **reaching(broker.address), topics=[topic], auto_offset_reset="earliest"
    ) as consumer:
        while len(records) < ends:
            records += consumer.poll(timeout_ms=PATIENCE_MS)
    return records


def values_of(broker, topic):
    return [record.value for record in records_of(broker, topic)]


def stream(spark, broker, source, target, checkpoint, **sink):
    reader = spark.readStream.format("hightide").options(**spark_options(broker.address))
    frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
    writer = frame.select("key", "value").writeStream.format("hightide")
    writer = writer.options(**spark_options(broker.address)).option("topic", target)
    writer = writer.options(**sink).option("checkpointLocation", str(checkpoint))
    query = started(writer.trigger(availableNow=True))
    until_ended(query)


def test_a_batch_is_stored_as_it_is(spark, broker):
    target = broker.topic(2)
    rows = [
        ("k1", b"a", 0, [("h", b"1"), ("i", None)]),
        (None, b"", 1, None),
        ("k3", None, 1, []),
    ]
    kinds = (
        "key string, value binary, partition int, headers array<struct<key:string,value:binary>>"
    )
    frame = spark.createDataFrame(rows, kinds)
    writer = frame.write.format("hightide").options(**spark_options(broker.address))
    writer.option("topic", target).mode("append").save()
    found = sorted(
        (r.partition, r.key or b"", r.value, r.headers) for r in records_of(broker, target)
    )
    assert found == [
        (0, b"k1", b"a", (("h", b"1"), ("i", None))),
        (1, b"", b"", ()),
        (1, b"k3", None, ()),
    ]


def test_rows_name_their_topics(spark, broker):
    one, other = broker.topic(), broker.topic()
    frame = spark.createDataFrame(
        [(one, "a"), (other, "b"), (one, "c")], "topic string, value string"
    )
    writer = frame.write.format("hightide").options(**spark_options(broker.address))
    writer.mode("append").save()
    assert sorted(values_of(broker, one)) == [b"a", b"c"]
    assert values_of(broker, other) == [b"b"]


def test_a_task_sorts_its_rows_if_it_is_to(spark, broker):
    target, values = broker.topic(), numbered(0, 50_000)
    mixed = random.Random(5).sample(values, len(values))
    frame = spark.createDataFrame([(value,) for value in mixed], "value binary").coalesce(1)
    writer = frame.write.format("hightide").options(**spark_options(broker.address))
    writer.option("topic", target).option("sortRows", True).mode("append").save()
    assert values_of(broker, target) == values


def test_a_batch_that_is_run_again_stores_nothing_twice(spark, broker, tmp_path):
    source, target, checkpoint = broker.topic(), broker.topic(), tmp_path / "checkpoint"
    broker.fill(source, numbered(0, 2_000))
    stream(spark, broker, source, target, checkpoint)
    assert values_of(broker, target) == numbered(0, 2_000)
    last = max(logged(checkpoint, "commits"))  # as if the driver had died before it wrote this down
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    broker.fill(source, numbered(2_000, 2_500))
    stream(spark, broker, source, target, checkpoint)
    assert values_of(broker, target) == numbered(0, 2_500)


def test_a_query_that_begins_again_stores_its_rows_again_and_not_under_an_id_in_use(
    spark, broker, tmp_path
):
    source, target = broker.topic(), broker.topic()
    broker.fill(source, numbered(0, 50))
    for run in range(2):
        stream(spark, broker, source, target, tmp_path / f"own-{run}")
    assert values_of(broker, target) == numbered(0, 50) * 2
    named = broker.topic()
    stream(spark, broker, source, named, tmp_path / "one", sinkId="mine")
    with pytest.raises(StreamingQueryException, match="SinkClash: sink 'mine' was written by"):
        stream(spark, broker, source, named, tmp_path / "other", sinkId="mine")
    assert values_of(broker, named) == numbered(0, 50)


def test_two_writes_of_a_function_need_ids_of_their_own(spark, broker, tmp_path):
    source, one, other = broker.topic(), broker.topic(), broker.topic()
    broker.fill(source, numbered(0, 300))

    def run(*ids):
        def write(frame, _):
            for target, own in zip((one, other), ids, strict=True):
                writer = frame.select("value").write.format("hightide").mode("append")
                writer = writer.options(**spark_options(broker.address))
                writer.options(topic=target, **own).save()

        reader = spark.readStream.format("hightide").options(**spark_options(broker.address))
        frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
        place = str(tmp_path / f"checkpoint-{len(ids[1])}")
        query = started(writer.option("checkpointLocation", place))
        until(lambda: not query.isActive, "the query ends")
        return str(query.exception() or "")

    assert "SinkClash" in run({}, {})
    assert values_of(broker, other) == []
    assert run({}, {"sinkId": "the other"}) == ""
    assert values_of(broker, one) == numbered(0, 300) * 2, "another checkpoint is another query"
    assert values_of(broker, other) == numbered(0, 300)


def test_overwrite_is_refused_and_says_what_to_do(spark, broker):
    frame = spark.createDataFrame([("a",)], "value string").write.format("hightide")
    writer = frame.options(**spark_options(broker.address)).option("topic", broker.topic())
    with pytest.raises(PySparkException, match='use "append"'):
        writer.mode("overwrite").save()


def test_each_batch_of_a_function_is_stored_once(spark, broker, tmp_path):
    source, target, failures = broker.topic(), broker.topic(), []

    def write(frame, batch):
        writer = frame.select("value").write.format("hightide")
        writer.options(**spark_options(broker.address)).option("topic", target).mode(
            "append"
        ).save()
        if not failures:
            failures.append(batch)
            raise RuntimeError("as the test says")

    broker.fill(source, numbered(0, 300))
    for _ in range(2):
        reader = spark.readStream.format("hightide").options(**spark_options(broker.address))
        frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
        query = started(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        until(lambda query=query: not query.isActive, "the query ends")
    assert failures
    assert values_of(broker, target) == numbered(0, 300)


def test_a_task_that_fails_after_it_wrote_is_repeated_without_a_double(broker, tmp_path):
    """In a session of Spark's own making, which finds the format: nothing of ours is imported."""
    source, target, mark = broker.topic(), broker.topic(2), tmp_path / "failed"
    broker.fill(source, numbered(0, 120_000), batch_size=1 << 20, linger_ms=50)
    with copy(broker, source, target, tmp_path / "checkpoint", mark) as process:
        until(
            lambda: mark.exists() or process.poll() is not None,
            "the task fails, behind the first piece that it wrote",
        )
        assert mark.exists()
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, "imported []\n")
    assert sorted(values_of(broker, target)) == numbered(0, 120_000)
