"""Batch queries of the Spark source against a broker process: what was produced is what is read.

Spark's own machinery is all real: the format is found, options are checked at `load()`, offsets are
planned on the driver, executors fetch. The streaming half is `test_spark_streaming.py`.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import os
import socket
import subprocess
import sys
import threading

import confluent_kafka as kafka
import pytest
from tries import LONG

pytest.importorskip("pyspark")

from patience import PATIENCE_S
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from secure_run import librdkafka_options, reaching, spark_options
from spark_support import (  # noqa: F401
    batch_query,
    broker,
    noise_in,
    numbered,
    own_broker,
    spark,
    until,
)

from hightide.blocking import Producer
from hightide.protocol.codecs import CODECS, ROW_CODECS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOW_MS = 1_700_000_000_123
KAFKA_COLUMNS = [
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
]
KAFKA_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)


def where(frame):
    """(topic, partition, offset) of each row, in order."""
    rows = frame.select("topic", "partition", "offset").collect()
    return sorted((row[0], row[1], row[2]) for row in rows)


def optional(data):
    return None if data is None else bytes(data)


def read_whole(frame):
    """Every column of every row by (partition, offset), as plain Python."""
    columns = ["key", "value", "topic", "partition", "offset", "unix_millis(timestamp)"]
    found = {}
    for row in frame.selectExpr(*columns, "timestampType", "headers").collect():
        headers = [(name, optional(value)) for name, value in row[7] or ()]
        key, value = optional(row[0]), optional(row[1])
        assert (row[3], row[4]) not in found, f"{row[3]}-{row[4]} was read twice"
        found[(row[3], row[4])] = (row[2], key, value, row[5], row[6], headers)
    return found


# -- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_record_is_read_as_it_was_produced(spark, broker, codec):
    topic = broker.topic(partitions=2)
    records = [
        (b"key", b"value", NOW_MS, []),
        (None, b"no key", NOW_MS + 1, [("a", b"1"), ("a", b"2")]),
        (b"no value", None, NOW_MS - 86_400_000, []),
        (None, None, NOW_MS, [("null", None), ("empty", b""), ("\u00fc", b"\xff")]),
        (b"", b"", 0, []),
        *((b"%d" % n, bytes(n), NOW_MS + n, []) for n in range(300)),
    ]
    expected = {}
    with Producer(**reaching(broker.address), compression_type=codec, batch_size=4096) as producer:
        sent = []
        for number, (key, value, timestamp, headers) in enumerate(records):
            sent.append(
                producer.send(
                    topic,
                    value,
                    key=key,
                    partition=number % 2,
                    timestamp=timestamp,
                    headers=headers,
                )
            )
        for (key, value, timestamp, headers), delivery in zip(records, sent, strict=True):
            place = delivery.result(PATIENCE_S)
            expected[(place.partition, place.offset)] = (topic, key, value, timestamp, 0, headers)
    assert len(expected) == len(records)
    assert read_whole(batch_query(spark, broker, topic, includeHeaders="true")) == expected


@pytest.mark.parametrize("codec", sorted(ROW_CODECS))
def test_every_record_is_read_as_a_kafka_client_produced_it(spark, broker, codec):
    topic = broker.topic()
    records = [
        (b"key", b"value", NOW_MS, []),
        (None, b"no key", NOW_MS + 1, [("a", b"1"), ("a", None)]),
        (b"no value", None, NOW_MS - 5, [("\u00fc", b"\xff")]),
        *((b"%d" % n, bytes(n), NOW_MS + n, []) for n in range(300)),
    ]
    options = {**librdkafka_options(broker.address), "compression.type": codec}
    producer = kafka.Producer({**options, "enable.idempotence": True})
    for key, value, timestamp, headers in records:
        producer.produce(topic, value, key, headers=headers, timestamp=timestamp)
    assert producer.flush(PATIENCE_S) == 0
    assert read_whole(batch_query(spark, broker, topic, includeHeaders="true")) == {
        (0, offset): (topic, key, value, timestamp, 0, headers)
        for offset, (key, value, timestamp, headers) in enumerate(records)
    }


def test_a_partition_larger_than_an_arrow_batch_is_read_whole(spark, broker):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 25_000), batch_size=8192)
    frame = batch_query(spark, broker, topic)
    rows = frame.select("offset", "value").collect()
    # Within a partition the order of the log is kept.
    assert [(row[0], bytes(row[1])) for row in rows] == list(enumerate(numbered(0, 25_000)))


def test_the_rest_is_readable_after_a_query_that_stopped_early(spark, broker):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 30_000))
    frame = batch_query(spark, broker, topic)
    assert len(frame.limit(3).collect()) == 3
    assert frame.count() == 30_000


def test_offsets_given_as_json_bound_the_read(spark, broker):
    topic = broker.topic(partitions=3)
    for partition in range(3):
        broker.fill(topic, numbered(0, 20), partition)
    frame = batch_query(
        spark,
        broker,
        topic,
        startingOffsets=json.dumps({topic: {"0": 5, "1": -2, "2": 20}}),
        endingOffsets=json.dumps({topic: {"0": 8, "1": 3, "2": -1}}),
    )
    assert where(frame) == [(topic, 0, n) for n in (5, 6, 7)] + [(topic, 1, n) for n in range(3)]


def test_two_topics_are_read_in_one_query(spark, broker):
    first, second = broker.topic(partitions=2), broker.topic()
    broker.fill(first, numbered(0, 3), 1)
    broker.fill(second, numbered(0, 4))
    expected = [(first, 1, n) for n in range(3)] + [(second, 0, n) for n in range(4)]
    assert where(batch_query(spark, broker, first, second)) == sorted(expected)


def test_an_empty_topic_has_no_rows(spark, broker):
    assert batch_query(spark, broker, broker.topic(partitions=2)).collect() == []


@pytest.mark.parametrize("headers", [False, True])
def test_the_schema_is_kafkas(spark, broker, headers):
    topic = broker.topic()
    frame = batch_query(spark, broker, topic, includeHeaders=str(headers).lower())
    expected = KAFKA_COLUMNS + ([("headers", KAFKA_HEADERS)] if headers else [])
    assert [(each.name, each.dataType) for each in frame.schema] == expected


def test_a_read_under_a_running_producer_ends_at_a_high_watermark(spark, broker):
    topic = broker.topic()
    acknowledged, enough = [0], threading.Event()

    def produce():
        with Producer(**reaching(broker.address), linger_ms=0) as producer:
            while not enough.is_set():
                sent = [producer.send(topic, value, partition=0) for value in numbered(0, 200)]
                acknowledged[0] = sent[-1].result(PATIENCE_S).offset + 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        counts = []
        for _ in range(3):
            # The read must see all of these, and records must have come since the last read.
            before = until(
                lambda: acknowledged[0] > max(counts, default=0) and acknowledged[0], "records"
            )
            offsets = [place[2] for place in where(batch_query(spark, broker, topic))]
            assert offsets == list(range(len(offsets)))
            assert len(offsets) >= before
            counts.append(len(offsets))
    finally:
        enough.set()
        thread.join(PATIENCE_S)
    assert counts[-1] <= acknowledged[0]
    assert batch_query(spark, broker, topic).count() == acknowledged[0]


# -- how it is found -----------------------------------------------------------------------------

PLAIN_SESSION = """
import json, sys
from pyspark.sql import SparkSession
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
reader = spark.read.format("hightide").options(**json.loads(sys.argv[1]))
print("rows", reader.option("subscribe", sys.argv[2]).load().count())
print("imported", [name for name in sys.modules if name.startswith("hightide")])
spark.stop()
"""


def kafkas_names(broker):
    """The options of a reader, as JSON, by the names that Kafka's source has."""
    way = spark_options(broker.address)
    return json.dumps({f"kafka.{name}": value for name, value in way.items()})


def plain_session(broker, topic, *, first="", **environment):
    kept = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    return subprocess.run(
        [sys.executable, "-c", first + PLAIN_SESSION, kafkas_names(broker), topic],
        env={**kept, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@LONG  # so does the one in which a task fails, in `test_spark_sink_queries.py`
def test_a_plain_session_finds_the_format_without_registering_it(broker):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 7))
    done = plain_session(broker, topic, PYSPARK_PYTHON=sys.executable)
    assert done.stdout.splitlines() == ["rows 7", "imported []"], done.stderr


@LONG
def test_an_import_is_enough_where_another_python_comes_first(broker, tmp_path):
    """As in a virtual environment that is not activated, where Spark takes the system's Python."""
    topic = broker.topic()
    broker.fill(topic, numbered(0, 7))
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = plain_session(broker, topic, first="import hightide.spark\n", PATH=path)
    assert done.stdout.splitlines()[0] == "rows 7", done.stderr


QUIET_SESSION = """
import json, sys, time
from hightide.spark import session
spark = session(master="local[1]")
reader = spark.readStream.format("hightide").options(**json.loads(sys.argv[1]))
events = reader.option("subscribe", sys.argv[2]).option("startingOffsets", "earliest").load()
writer = events.writeStream.format("noop").option("checkpointLocation", sys.argv[3])
writer.trigger(availableNow=True).start().awaitTermination()
query = writer.trigger(processingTime="0 seconds").start()
query.processAllAvailable()
query.stop()
slow = events.selectExpr("value", "reflect('java.lang.Thread', 'sleep', 20L)")
query = slow.writeStream.format("noop").option("checkpointLocation", sys.argv[4]).start()
stages = spark.sparkContext.statusTracker()
while not any(stages.getStageInfo(n).numActiveTasks for n in stages.getActiveStageIds()):
    time.sleep(0.02)
query.stop()
spark.stop()
"""


@LONG  # nor in the demo, which stops its queries while they are at work
def test_what_spark_says_of_every_query_is_not_said(broker, tmp_path):
    """Other words depend on how busy the machine is, as of a worker that is ended while it asks."""
    topic = broker.topic()
    broker.fill(topic, [b"x" * 1_000] * 3_000)
    told_by_java = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
    environment = {name: v for name, v in os.environ.items() if name not in told_by_java}
    checkpoints = [str(tmp_path / name) for name in ("whole", "stopped")]
    way = json.dumps(spark_options(broker.address))
    done = subprocess.run(
        [sys.executable, "-c", QUIET_SESSION, way, topic, *checkpoints],
        env=environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert noise_in(done.stderr) == []


# -- what is refused -----------------------------------------------------------------------------


def refusal(action):
    with pytest.raises(PySparkException) as failure:
        action()
    return str(failure.value)


@pytest.mark.parametrize("kind", ["read", "readStream"])
def test_an_unknown_option_fails_at_load_and_names_the_nearest(spark, broker, kind):
    reader = getattr(spark, kind).format("hightide").options(**spark_options(broker.address))
    reader = reader.option("subscribe", "t").option("startingOffset", "earliest")
    assert "did you mean startingOffsets?" in refusal(reader.load)


def test_a_missing_option_fails_at_load(spark, broker):
    reader = spark.read.format("hightide").options(**spark_options(broker.address))
    assert "give one of subscribe" in refusal(reader.load)
    reader = spark.read.format("hightide").option("subscribe", "t")
    assert "option bootstrap.servers is missing" in refusal(reader.load)


def test_a_batch_query_cannot_start_at_latest(spark, broker):
    topic = broker.topic()
    text = refusal(lambda: batch_query(spark, broker, topic, startingOffsets="latest").count())
    assert "startingOffsets of a batch query cannot be latest" in text


def test_offsets_must_name_every_partition(spark, broker):
    topic = broker.topic(partitions=2)
    offsets = json.dumps({topic: {"0": 0}})
    text = refusal(lambda: batch_query(spark, broker, topic, startingOffsets=offsets).count())
    assert f"startingOffsets says nothing about {topic}-1" in text


def test_offsets_must_not_name_a_partition_that_is_not_there(spark, broker):
    topic = broker.topic()
    offsets = json.dumps({topic: {"0": 0, "7": 3}})
    text = refusal(lambda: batch_query(spark, broker, topic, startingOffsets=offsets).count())
    assert f"{topic}-7" in text


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_behind_the_high_watermark_is_refused(spark, broker, option):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 10))
    behind = json.dumps({topic: {"0": 11}})
    text = refusal(lambda: batch_query(spark, broker, topic, **{option: behind}).count())
    assert f"{option} of {topic}-0 is 11, the high watermark is 10" in text
    ending = json.dumps({topic: {"0": 10}})
    assert batch_query(spark, broker, topic, endingOffsets=ending).count() == 10


def test_a_topic_that_does_not_exist_is_named(spark, broker):
    text = refusal(lambda: batch_query(spark, broker, "nowhere").count())
    assert "UNKNOWN_TOPIC_OR_PARTITION" in text
    assert "nowhere" in text


def test_a_broker_that_does_not_answer_is_named(spark):
    with socket.socket() as bound:
        # Bound and not listening: nobody else gets this port, and nobody answers on it.
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        reader = spark.read.format("hightide").option("bootstrap.servers", address)
        frame = reader.option("subscribe", "t").option("fetchTimeoutMs", "500").load()
        text = refusal(frame.count)
    assert "NobodyListens: no connection" in text
    assert address in text


# -- what is lost, and what comes back -----------------------------------------------------------


def test_a_start_before_the_log_is_data_loss_that_names_the_range(spark, broker):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 20), linger_ms=0, batch_size=64)
    broker.delete_records(topic, 12)
    starting = json.dumps({topic: {"0": 4}})
    text = refusal(lambda: batch_query(spark, broker, topic, startingOffsets=starting).count())
    assert f"DataLoss: records of {topic}-0[4, 20) are gone" in text
    assert "failOnDataLoss=false" in text


def test_without_fail_on_data_loss_only_the_lost_records_are_missing(spark, broker):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 20), linger_ms=0, batch_size=64)
    broker.delete_records(topic, 12)
    starting = json.dumps({topic: {"0": 4}})
    frame = batch_query(spark, broker, topic, startingOffsets=starting, failOnDataLoss="false")
    assert [place[2] for place in where(frame)] == list(range(12, 20))


def test_a_query_after_a_restart_of_the_broker_reads_as_before(spark, own_broker):
    topic = own_broker.topic()
    own_broker.fill(topic, numbered(0, 5))
    assert batch_query(spark, own_broker, topic).count() == 5
    own_broker.stop()
    own_broker.start()
    assert batch_query(spark, own_broker, topic).count() == 5
