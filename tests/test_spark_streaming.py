"""Streaming queries of the Spark source: each offset once, and loss is said and not swallowed.

The traps of the Data Source API are each a test: the initial offset that Spark does not keep,
positions compared as text, partitions that appear later, a log that is no longer what the
checkpoint says. What happens between two micro-batches is arranged by a sink whose gate is shut.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import time

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException
from sparkling import (  # noqa: F401
    DEADLINE_S,
    Sink,
    broker,
    logged,
    numbered,
    own_broker,
    position,
    run_to_end,
    spark,
    start_query,
    until,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FROM_START = {"startingOffsets": "earliest"}
IDLE_S = 2.0


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "checkpoint"


@pytest.fixture
def running():
    """Starts queries that are stopped when the test ends, however it ends."""
    queries = []

    def start(*args, **options):
        queries.append(start_query(*args, **options))
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def has(sink, count):
    return lambda: len(sink.rows) >= count


def failure_of(query):
    """The text of what ended a query."""
    until(lambda: not query.isActive, "the query's end")
    error = query.exception()
    assert isinstance(error, StreamingQueryException)
    return str(error)


# -- each offset once ----------------------------------------------------------------------------


def test_a_limited_query_reads_each_offset_once_and_goes_on_where_it_was(
    spark,
    broker,
    checkpoint,
):
    first, second = broker.topic(partitions=2), broker.topic()
    places = [(first, 0, 70), (first, 1, 7), (second, 0, 23)]
    for topic, partition, count in places:
        broker.fill(topic, numbered(0, count), partition)
    options = {**FROM_START, "maxOffsetsPerTrigger": "40"}
    sink = Sink()
    run_to_end(spark, broker, f"{first},{second}", sink, checkpoint, **options)
    expected = [
        (topic, partition, offset, b"%06d" % offset)
        for topic, partition, count in places
        for offset in range(count)
    ]
    assert sink.rows == sorted(expected)
    assert len(sink.sizes) >= 3
    assert max(sink.sizes) <= 40 + len(places)
    broker.fill(first, numbered(70, 75))
    again = Sink()
    run_to_end(spark, broker, f"{first},{second}", again, checkpoint, **options)
    assert again.rows == [(first, 0, offset, b"%06d" % offset) for offset in range(70, 75)]


def test_available_now_ends_where_the_log_ended_when_it_began(
    spark,
    broker,
    checkpoint,
    running,
):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 10))
    sink = Sink()
    sink.gate.clear()
    options = {**FROM_START, "maxOffsetsPerTrigger": "5"}
    query = running(spark, broker, topic, sink, checkpoint, available_now=True, **options)
    until(sink.waiting.is_set, "the first batch", query)
    broker.fill(topic, numbered(10, 30))
    sink.gate.set()
    assert query.awaitTermination(int(DEADLINE_S))
    assert sink.values == numbered(0, 10)


def test_positions_in_the_checkpoint_are_canonical(spark, broker, checkpoint):
    topic = broker.topic(partitions=11)
    for partition in range(11):
        broker.fill(topic, numbered(0, partition), partition)
    run_to_end(spark, broker, topic, Sink(), checkpoint, **FROM_START)
    (batch,) = logged(checkpoint, "commits")
    entry = json.loads(position(checkpoint, batch))["topics"][topic]
    assert entry["id"] == broker.topic_id(topic)
    assert [(int(n), place[0]) for n, place in entry["partitions"].items()] == [
        (n, n) for n in range(11)
    ]


def test_an_idle_query_plans_no_batches(spark, broker, checkpoint, running):
    topic = broker.topic(partitions=12)
    broker.fill(topic, numbered(0, 5), partition=11)
    sink = Sink()
    query = running(spark, broker, topic, sink, checkpoint, **FROM_START)
    until(has(sink, 5), "the first batch", query)
    until(lambda: logged(checkpoint, "commits"), "its commit", query)
    idle_since = time.monotonic()
    until(lambda: time.monotonic() > idle_since + IDLE_S, "idling", query)
    assert logged(checkpoint, "offsets") == [0]
    # It was idle, not dead.
    broker.fill(topic, numbered(0, 1))
    until(has(sink, 6), "the batch after the pause", query)


def test_new_partitions_are_read_from_their_start(
    spark,
    broker,
    checkpoint,
    running,
):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 3))
    sink = Sink()
    sink.gate.clear()
    query = running(
        spark, broker, topic, sink, checkpoint, **FROM_START, maxOffsetsPerTrigger="100"
    )
    until(sink.waiting.is_set, "the first batch", query)
    broker.grow(topic, 3)
    broker.fill(topic, numbered(0, 250), partition=2)
    sink.gate.set()
    until(has(sink, 253), "the new partition", query)
    until(lambda: len(logged(checkpoint, "commits")) >= 4, "the last commit", query)
    query.stop()
    broker.fill(topic, numbered(0, 2), partition=1)
    run_to_end(spark, broker, topic, sink, checkpoint, **FROM_START)
    expected = [(0, n) for n in range(3)] + [(1, 0), (1, 1)] + [(2, n) for n in range(250)]
    assert [(row[1], row[2]) for row in sink.rows] == expected


# -- where "latest" is ---------------------------------------------------------------------------


def test_latest_is_where_the_log_ended_when_the_query_began(
    spark,
    broker,
    checkpoint,
    running,
):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 5))
    sink = Sink()
    query = running(spark, broker, topic, sink, checkpoint, startingOffsets="latest")
    until(lambda: logged(checkpoint, "commits"), "the empty first batch", query)
    broker.fill(topic, numbered(5, 8))
    until(has(sink, 3), "what came after", query)
    assert sink.values == numbered(5, 8)
    assert sink.batches[0] == []


@pytest.mark.parametrize("crashed", [False, True])
def test_latest_stays_where_it_was_when_a_query_ends_before_any_data(
    spark,
    broker,
    checkpoint,
    running,
    crashed,
):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 5))
    query = running(spark, broker, topic, Sink(), checkpoint, startingOffsets="latest")
    until(lambda: logged(checkpoint, "commits"), "the empty first batch", query)
    query.stop()
    if crashed:
        # As if the process had died after it planned batch 0 and before it committed it.
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
    broker.fill(topic, numbered(5, 9))
    sink = Sink()
    run_to_end(spark, broker, topic, sink, checkpoint, startingOffsets="latest")
    assert sink.values == numbered(5, 9)


# -- what is lost --------------------------------------------------------------------------------


def first_run(spark, broker, topic, checkpoint, count):
    """`count` records are produced and read by a query that ends."""
    broker.fill(topic, numbered(0, count))
    sink = Sink()
    run_to_end(spark, broker, topic, sink, checkpoint, **FROM_START)
    assert sink.values == numbered(0, count)


def make_again(broker, topic):
    """Delete a topic and make it again; its old and new id."""
    old = broker.topic_id(topic)
    broker.delete_topic(topic)
    broker.topic(name=topic)
    return old, broker.topic_id(topic)


def test_a_topic_made_again_between_two_runs_is_data_loss(
    spark,
    broker,
    checkpoint,
    running,
):
    topic = broker.topic()
    first_run(spark, broker, topic, checkpoint, 10)
    old, new = make_again(broker, topic)
    broker.fill(topic, numbered(100, 130))
    sink = Sink()
    text = failure_of(running(spark, broker, topic, sink, checkpoint, **FROM_START))
    assert "DataLoss" in text
    assert f"the topic was deleted and made again (id {old} became {new})" in text
    assert sink.rows == []


def test_a_topic_made_again_under_a_running_query_is_data_loss(
    spark,
    broker,
    checkpoint,
    running,
):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 10))
    sink = Sink()
    sink.gate.clear()
    options = {**FROM_START, "fetchTimeoutMs": "2000"}
    query = running(spark, broker, topic, sink, checkpoint, **options)
    until(sink.waiting.is_set, "the first batch", query)
    make_again(broker, topic)
    # The new topic is longer than the old one: offset 10 exists there too, as another record.
    broker.fill(topic, numbered(100, 130))
    sink.gate.set()
    until(lambda: query.exception() or len(sink.rows) > 10, "an end or more records")
    assert sink.values == numbered(0, 10)
    assert "DataLoss" in failure_of(query)


def test_records_deleted_behind_the_checkpoint_are_data_loss(
    spark,
    broker,
    checkpoint,
    running,
):
    topic = broker.topic()
    first_run(spark, broker, topic, checkpoint, 10)
    broker.fill(topic, numbered(10, 40), linger_ms=0, batch_size=64)
    broker.delete_records(topic, 25)
    sink = Sink()
    text = failure_of(running(spark, broker, topic, sink, checkpoint, **FROM_START))
    assert f"DataLoss: {topic}-0: the query goes on at offset 10" in text
    assert "the log begins at offset 25" in text
    assert sink.rows == []


def test_records_deleted_under_a_running_query_are_data_loss(
    spark,
    broker,
    checkpoint,
    running,
):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 10))
    sink = Sink()
    sink.gate.clear()
    query = running(spark, broker, topic, sink, checkpoint, **FROM_START)
    until(sink.waiting.is_set, "the first batch", query)
    broker.fill(topic, numbered(10, 40), linger_ms=0, batch_size=64)
    broker.delete_records(topic, 25)
    sink.gate.set()
    text = failure_of(query)
    assert f"DataLoss: records of {topic}-0[10, 40) are gone" in text
    assert sink.values == numbered(0, 10)


def test_without_fail_on_data_loss_a_query_reads_what_was_not_deleted(
    spark,
    broker,
    checkpoint,
):
    topic = broker.topic()
    first_run(spark, broker, topic, checkpoint, 10)
    broker.fill(topic, numbered(10, 40), linger_ms=0, batch_size=64)
    broker.delete_records(topic, 25)
    sink = Sink()
    run_to_end(spark, broker, topic, sink, checkpoint, **FROM_START, failOnDataLoss="false")
    assert sink.values == numbered(25, 40)
    broker.fill(topic, numbered(40, 42))
    again = Sink()
    run_to_end(spark, broker, topic, again, checkpoint, **FROM_START)
    assert again.values == numbered(40, 42)


@pytest.mark.parametrize("length", [4, 30])
def test_without_fail_on_data_loss_a_topic_made_again_is_read_from_its_start(
    spark,
    broker,
    checkpoint,
    length,
):
    topic = broker.topic()
    first_run(spark, broker, topic, checkpoint, 10)
    make_again(broker, topic)
    broker.fill(topic, numbered(100, 100 + length))
    sink = Sink()
    options = {**FROM_START, "failOnDataLoss": "false", "fetchTimeoutMs": "2000"}
    run_to_end(spark, broker, topic, sink, checkpoint, **options)
    assert sink.values == numbered(100, 100 + length)


# -- what comes back -----------------------------------------------------------------------------


def test_a_query_goes_on_through_a_restart_of_the_broker(
    spark,
    own_broker,
    checkpoint,
    running,
):
    topic = own_broker.topic()
    own_broker.fill(topic, numbered(0, 10))
    sink = Sink()
    query = running(spark, own_broker, topic, sink, checkpoint, **FROM_START)
    until(has(sink, 10), "the first batch", query)
    until(lambda: logged(checkpoint, "commits"), "its commit", query)
    own_broker.stop()
    down_since = time.monotonic()
    # Long enough that the query looks for news while nobody answers.
    until(lambda: time.monotonic() > down_since + IDLE_S, "a pause", query)
    own_broker.start()
    own_broker.fill(topic, numbered(10, 20))
    until(has(sink, 20), "what came after the restart", query)
    assert sink.values == numbered(0, 20)


def test_a_batch_is_read_after_a_restart_of_the_broker_between_two_batches(
    spark,
    own_broker,
    checkpoint,
    running,
):
    topic = own_broker.topic()
    own_broker.fill(topic, numbered(0, 10))
    sink = Sink()
    sink.gate.clear()
    query = running(spark, own_broker, topic, sink, checkpoint, **FROM_START)
    until(sink.waiting.is_set, "the first batch", query)
    # While the batch runs nobody calls the broker: every connection is stale afterwards.
    own_broker.stop()
    own_broker.start()
    own_broker.fill(topic, numbered(10, 20))
    sink.gate.set()
    until(has(sink, 20), "what came after the restart", query)
    assert sink.values == numbered(0, 20)


def test_a_stream_has_no_end(spark, broker, checkpoint):
    with pytest.raises(PySparkException, match="option endingOffsets is for batch queries"):
        run_to_end(spark, broker, "t", Sink(), checkpoint, endingOffsets="latest")
