"""Topics that are unusual: a thousand partitions, records of 10 MiB, holes that compaction left.

Method: a real broker; what was acknowledged is what a batch, a stream and the sink see.
"""

# ruff: noqa: F811 - fixtures are imported by name

import os
from contextlib import closing

import pytest
from patience import PATIENCE_MS, PATIENCE_S
from secure_run import direct, reaching, spark_options
from tries import LONG

pytest.importorskip("pyspark")

from spark_support import (  # noqa: F401
    Broker,
    Stream,
    batch_query,
    broker,
    running,
    spark,
    stream,
    until,
)
from test_spark_sink_queries import records_of

from hightide.blocking import Consumer, Producer
from hightide.spark.client import BlockingClient, client_for
from hightide.spark.options import read_options
from hightide.spark.source import HightideReader

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

MANY = 1_000
LARGE = 10 << 20


def send(broker, topic, *records, **options):
    """(key, value, partition) of each; acknowledged, and where they are."""
    with Producer(**reaching(broker.address), **options) as producer:
        sent = [producer.send(topic, v, key=k, partition=p) for k, v, p in records]
        return [delivery.result(PATIENCE_S).offset for delivery in sent]


@LONG
def test_a_thousand_partitions_are_one_topic(spark, broker, stream):
    topic = broker.topic(MANY)
    records = [(None, b"%03d" % number, number) for number in range(0, MANY, 50)]
    send(broker, topic, *records)
    rows = batch_query(spark, broker, topic).select("partition", "value").collect()
    expected = sorted((partition, value) for _, value, partition in records)
    assert sorted((row[0], bytes(row[1])) for row in rows) == expected
    assert [(row[1], row[3]) for row in stream.run(subscribe=topic).rows] == expected


def test_a_thousand_partitions_are_looked_up_in_a_few_requests(broker, monkeypatch):
    topic = broker.topic(MANY)
    send(broker, topic, (None, b"v", 7))
    asked, ask = [], BlockingClient.ask
    monkeypatch.setattr(
        BlockingClient, "ask", lambda *args, **kw: asked.append(args) or ask(*args, **kw)
    )
    options = {**spark_options(broker.address), "subscribe": topic}
    (planned,) = HightideReader(read_options(options, streaming=False)).partitions()
    assert str(planned.wanted) == f"{topic}-7[0, 1)"
    assert len(asked) < 10
    client_for(*direct(broker.address)).close()


def test_records_of_ten_mebibytes_come_and_go_whole(spark, broker):
    limit = str(LARGE + 1000)
    source = broker.topic(max_message_bytes=limit)
    target = broker.topic(max_message_bytes=limit)
    values = [os.urandom(16) * (LARGE // 16), b"small", os.urandom(16) * (LARGE // 16)]
    send(broker, source, *[(None, value, 0) for value in values], max_request_size=LARGE + 5000)
    frame = batch_query(spark, broker, source).orderBy("offset").select("value")
    assert [bytes(row[0]) for row in frame.collect()] == values
    writer = frame.coalesce(1).write.format("hightide").mode("append")
    writer.options(**spark_options(broker.address)).option("topic", target).save()
    assert [record.value for record in records_of(broker, target)] == values


@pytest.fixture
def compacting(tmp_path):
    """A broker that cleans all the time."""
    directory = tmp_path / "broker"
    directory.mkdir()
    checks = ("log.retention.check.interval.ms=100ms", "log.cleaner.min.cleanable.ratio=0.01")
    with running(Broker(directory, *checks)) as made:
        yield made


def test_what_compaction_removed_is_neither_read_nor_waited_for(spark, compacting, tmp_path):
    topic = compacting.topic(cleanup_policy="compact", segment_bytes=str(1 << 20))
    filler = (b"fill", os.urandom(500_000), 0)
    send(compacting, topic, (b"a", b"old", 0), (b"b", b"kept", 0), batch_size=1)
    send(compacting, topic, *[(b"a", b"old", 0)] * 20, filler, filler, filler, batch_size=1)
    *_, last = send(compacting, topic, (b"a", b"new", 0), *[filler] * 7)

    def is_compacted():
        values = []
        with Consumer(**reaching(compacting.address), partitions=[(topic, 0)]) as consumer:
            consumer.seek(topic, 0, 0)
            while consumer.position(topic, 0) < last + 1:
                values += [record.value for record in consumer.poll(timeout_ms=PATIENCE_MS)]
        return b"old" not in values

    until(is_compacted, "it was compacted")
    found = batch_query(spark, compacting, topic).where("key != 'fill'")
    rows = sorted(tuple(map(bytes, row)) for row in found.select("key", "value").collect())
    assert rows == [(b"a", b"new"), (b"b", b"kept")]
    with closing(Stream(spark, compacting, tmp_path / "c")) as stream:
        sink = stream.run(subscribe=topic, maxOffsetsPerTrigger=5)
    assert [row[3] for row in sink.rows if len(row[3]) < 10] == [b"kept", b"new"]
