"""Streaming queries of the Spark source: each offset once, and loss is said and not swallowed.

The traps of the Data Source API are each a test: the initial offset that Spark does not keep,
positions compared as text, partitions that appear later, a log that is no longer what the
checkpoint says. What happens between two micro-batches is arranged by a sink whose gate is shut.
"""

# ruff: noqa: F811 - fixtures are imported by name

from contextlib import closing

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from spark_support import (  # noqa: F401
    Sink,
    Stream,
    broker,
    failure_of,
    numbered,
    own_broker,
    pause,
    spark,
    stream,
    until,
    until_ended,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def own_stream(spark, own_broker, tmp_path):
    """For tests that stop the broker."""
    with closing(Stream(spark, own_broker, tmp_path / "checkpoint")) as made:
        yield made


def has(sink, count):
    return lambda: len(sink.rows) >= count


# -- each offset once ----------------------------------------------------------------------------


def test_a_limited_query_reads_each_offset_once_and_goes_on_where_it_was(broker, stream):
    first, second = broker.topic(partitions=2), broker.topic()
    places = [(first, 0, 70), (first, 1, 7), (second, 0, 23)]
    for topic, partition, count in places:
        broker.fill(topic, numbered(0, count), partition)
    sink = stream.run(subscribe=f"{first},{second}", maxOffsetsPerTrigger="40")
    expected = [
        (topic, partition, offset, b"%06d" % offset)
        for topic, partition, count in places
        for offset in range(count)
    ]
    assert sink.rows == sorted(expected)
    assert len(sink.sizes) >= 3
    assert max(sink.sizes) <= 40 + len(places)
    broker.fill(first, numbered(70, 75))
    again = stream.run(subscribe=f"{first},{second}", maxOffsetsPerTrigger="40")
    assert again.rows == [(first, 0, offset, b"%06d" % offset) for offset in range(70, 75)]


def test_available_now_ends_where_the_log_ended_when_it_began(broker, stream):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 10))
    query, sink = stream.hold(subscribe=topic, available_now=True, maxOffsetsPerTrigger="5")
    broker.fill(topic, numbered(10, 30))
    sink.gate.set()
    until_ended(query)
    assert sink.values == numbered(0, 10)


def test_positions_in_the_checkpoint_are_canonical(broker, stream):
    topic = broker.topic(partitions=11)
    for partition in range(11):
        broker.fill(topic, numbered(0, partition), partition)
    stream.run(subscribe=topic)
    entry = stream.position()["topics"][topic]
    assert entry["id"] == broker.topic_id(topic)
    assert [(int(n), place[0]) for n, place in entry["partitions"].items()] == [
        (n, n) for n in range(11)
    ]


def test_an_idle_query_plans_no_batches(broker, stream):
    topic = broker.topic(partitions=12)
    broker.fill(topic, numbered(0, 5), partition=11)
    sink = Sink()
    query = stream.start(sink, subscribe=topic)
    until(has(sink, 5), "the first batch", query)
    stream.await_commits(query)
    pause(query)
    assert stream.logged("offsets") == [0]
    # It was idle, not dead.
    broker.fill(topic, numbered(0, 1))
    until(has(sink, 6), "the batch after the pause", query)


def test_new_partitions_are_read_from_their_start(broker, stream):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 3))
    query, sink = stream.hold(subscribe=topic, maxOffsetsPerTrigger="100")
    broker.grow(topic, 3)
    broker.fill(topic, numbered(0, 250), partition=2)
    sink.gate.set()
    until(has(sink, 253), "the new partition", query)
    stream.await_commits(query, 4)
    query.stop()
    broker.fill(topic, numbered(0, 2), partition=1)
    found = [(row[1], row[2]) for row in sink.rows]
    assert found == [(0, n) for n in range(3)] + [(2, n) for n in range(250)]
    assert [(row[1], row[2]) for row in stream.run(subscribe=topic).rows] == [(1, 0), (1, 1)]


# -- where "latest" is ---------------------------------------------------------------------------


def test_latest_is_where_the_log_ended_when_the_query_began(broker, stream):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 5))
    sink = Sink()
    query = stream.start(sink, subscribe=topic, startingOffsets="latest")
    stream.await_commits(query)
    broker.fill(topic, numbered(5, 8))
    until(has(sink, 3), "what came after", query)
    assert sink.values == numbered(5, 8)
    assert sink.batches[0] == []


@pytest.mark.parametrize("crashed", [False, True])
def test_latest_stays_where_it_was_when_a_query_ends_before_any_data(broker, stream, crashed):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 5))
    query = stream.start(Sink(), subscribe=topic, startingOffsets="latest")
    stream.await_commits(query)
    query.stop()
    if crashed:
        # As if the process had died after it planned batch 0 and before it committed it.
        for name in ("0", ".0.crc"):
            (stream.checkpoint / "commits" / name).unlink(missing_ok=True)
    broker.fill(topic, numbered(5, 9))
    assert stream.run(subscribe=topic, startingOffsets="latest").values == numbered(5, 9)


# -- what is lost --------------------------------------------------------------------------------


def first_run(broker, stream, topic):
    """Ten records are produced and read by a query that ends."""
    broker.fill(topic, numbered(0, 10))
    assert stream.run(subscribe=topic).values == numbered(0, 10)


def make_again(broker, topic):
    """Delete a topic and make it again; its old and new id."""
    old = broker.topic_id(topic)
    broker.delete_topic(topic)
    broker.topic(name=topic)
    return old, broker.topic_id(topic)


def delete_some(broker, topic):
    """Thirty more records, and then none before offset 25."""
    broker.fill(topic, numbered(10, 40), linger_ms=0, batch_size=64)
    broker.delete_records(topic, 25)


def test_a_topic_made_again_between_two_runs_is_data_loss(broker, stream):
    topic = broker.topic()
    first_run(broker, stream, topic)
    old, new = make_again(broker, topic)
    broker.fill(topic, numbered(100, 130))
    sink = Sink()
    text = failure_of(stream.start(sink, subscribe=topic))
    assert "DataLoss" in text
    assert f"the topic was deleted and made again (id {old} became {new})" in text
    assert sink.rows == []


def test_a_topic_made_again_under_a_running_query_is_data_loss(broker, stream):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 10))
    query, sink = stream.hold(subscribe=topic, fetchTimeoutMs="2000")
    make_again(broker, topic)
    # The new topic is longer than the old one: offset 10 exists there too, as another record.
    broker.fill(topic, numbered(100, 130))
    sink.gate.set()
    until(lambda: query.exception() or len(sink.rows) > 10, "an end or more records")
    assert sink.values == numbered(0, 10)
    assert "DataLoss" in failure_of(query)


def test_records_deleted_behind_the_checkpoint_are_data_loss(broker, stream):
    topic = broker.topic()
    first_run(broker, stream, topic)
    delete_some(broker, topic)
    sink = Sink()
    text = failure_of(stream.start(sink, subscribe=topic))
    assert f"DataLoss: {topic}-0: the query is at offset 10" in text
    assert "the log begins at offset 25: 15 offsets were deleted" in text
    assert sink.rows == []


def test_records_deleted_under_a_running_query_are_data_loss(broker, stream):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 10))
    query, sink = stream.hold(subscribe=topic)
    delete_some(broker, topic)
    sink.gate.set()
    text = failure_of(query)
    assert f"DataLoss: records of {topic}-0[10, 40) are gone" in text
    assert sink.values == numbered(0, 10)


def test_without_fail_on_data_loss_a_query_reads_what_was_not_deleted(broker, stream):
    topic = broker.topic()
    first_run(broker, stream, topic)
    delete_some(broker, topic)
    assert stream.run(subscribe=topic, failOnDataLoss="false").values == numbered(25, 40)
    broker.fill(topic, numbered(40, 42))
    assert stream.run(subscribe=topic).values == numbered(40, 42)


@pytest.mark.parametrize("length", [4, 30])
def test_without_fail_on_data_loss_a_topic_made_again_is_read_from_its_start(
    broker, stream, length
):
    topic = broker.topic()
    first_run(broker, stream, topic)
    make_again(broker, topic)
    broker.fill(topic, numbered(100, 100 + length))
    sink = stream.run(subscribe=topic, failOnDataLoss="false", fetchTimeoutMs="2000")
    assert sink.values == numbered(100, 100 + length)


# -- what comes back -----------------------------------------------------------------------------


def test_a_query_goes_on_through_a_restart_of_the_broker(own_broker, own_stream):
    topic = own_broker.topic()
    own_broker.fill(topic, numbered(0, 10))
    sink = Sink()
    query = own_stream.start(sink, subscribe=topic)
    until(has(sink, 10), "the first batch", query)
    own_stream.await_commits(query)
    own_broker.stop()
    pause(query)
    own_broker.start()
    own_broker.fill(topic, numbered(10, 20))
    until(has(sink, 20), "what came after the restart", query)
    assert sink.values == numbered(0, 20)


def test_a_batch_is_read_after_a_restart_of_the_broker_between_two_batches(own_broker, own_stream):
    topic = own_broker.topic()
    own_broker.fill(topic, numbered(0, 10))
    query, sink = own_stream.hold(subscribe=topic)
    # While the batch runs nobody calls the broker: every connection is stale afterwards.
    own_broker.stop()
    own_broker.start()
    own_broker.fill(topic, numbered(10, 20))
    sink.gate.set()
    until(has(sink, 20), "what came after the restart", query)
    assert sink.values == numbered(0, 20)


def test_a_stream_has_no_end(stream):
    with pytest.raises(PySparkException, match="option endingOffsets is for batch queries"):
        stream.run(subscribe="t", endingOffsets="latest")
