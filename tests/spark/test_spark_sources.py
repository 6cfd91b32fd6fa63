"""Whole queries with the later options of the Spark source, against a broker process.

Which topics and partitions are read, between which times, in how many tasks and how large batches,
and who else is told how far a query is. Each test has topics of its own in the one broker, and says
what is read from them record by record. Options alone are `test_spark_options.py`'s.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import threading
import time
from collections import Counter
from contextlib import closing

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from secure_run import direct, reaching, spark_options
from spark_support import (  # noqa: F401
    FROM_START,
    Sink,
    broker,
    failure_of,
    numbered,
    own_broker,
    pause,
    spark,
    stream,
    until,
)

from hightide.blocking import Admin, Producer
from hightide.protocol.errors import ApiError
from hightide.protocol.messages import LATEST
from hightide.spark import session
from hightide.spark.client import client_for
from hightide.spark.options import read_options
from hightide.spark.source import HightideStreamReader

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def batch(spark, broker, **options):
    reader = spark.read.format("hightide").options(**spark_options(broker.address))
    return reader.options(**options).load()


def tp(frame):
    """(topic, partition, offset) of each row, in order."""
    rows = frame.select("topic", "partition", "offset").collect()
    return sorted((row[0], row[1], row[2]) for row in rows)


def group_offsets(broker, group):
    """(offset, leader epoch) of what a group has committed."""
    with Admin(**reaching(broker.address)) as admin:
        found = admin.group_offsets(group)
    return {(w.topic, w.partition): (at.offset, at.leader_epoch) for w, at in found.items()}


# -- which topics --------------------------------------------------------------------------------


def test_a_pattern_reads_every_topic_whose_whole_name_matches_and_no_internal_one(spark, broker):
    wanted = [broker.topic(name=name) for name in ("wide-1", "wide-22")]
    others = [broker.topic(name=name) for name in ("wide-", "wide-1x", "a-wide-1", "__wide-1")]
    for topic in wanted + others:
        broker.fill(topic, numbered(0, 2))
    with Admin(**reaching(broker.address)) as admin:
        admin.set_group_offsets("makes the internal topic", {(wanted[0], 0): 1})
        internal = {each.topic for each in admin.list_topics() if each.topic.startswith("__")}
    assert internal == {"__wide-1", "__consumer_offsets"}
    frame = batch(spark, broker, subscribePattern=r"(__)?wide-\d+|__.*")
    assert tp(frame) == [(topic, 0, offset) for topic in wanted for offset in range(2)]


def test_a_pattern_that_matches_nothing_reads_nothing(spark, broker):
    assert tp(batch(spark, broker, subscribePattern="nothing-is-called-this")) == []


def test_a_stream_of_a_pattern_reads_a_topic_that_is_made_later_from_its_start(broker, stream):
    first = broker.topic(name="late-1")
    broker.fill(first, numbered(0, 5))
    sink = Sink()
    query = stream.start(sink, subscribePattern="late-.*", startingOffsets="latest")
    stream.await_commits(query)
    second = broker.topic(name="late-2", partitions=2)
    broker.fill(second, numbered(0, 3), partition=1)
    broker.fill(first, numbered(5, 6))
    until(lambda: len(sink.rows) >= 4, "the new topic", query)
    assert sink.rows == [
        (first, 0, 5, b"000005"),
        *((second, 1, offset, b"%06d" % offset) for offset in range(3)),
    ]


def test_a_stream_of_a_pattern_may_begin_before_there_is_a_topic(broker, stream):
    sink = Sink()
    query = stream.start(sink, subscribePattern="none-yet-.*", startingOffsets="latest")
    until(lambda: query.recentProgress, "a first look", query)
    broker.fill(broker.topic(name="none-yet-1"), numbered(0, 3))
    until(lambda: len(sink.rows) >= 3, "the first topic", query)
    assert sink.values == numbered(0, 3)


def test_a_stream_without_topics_does_not_ask_without_pause(broker):
    options = {**spark_options(broker.address), "subscribePattern": "nothing-is-called-this"}
    reader = HightideStreamReader(read_options(options | FROM_START, streaming=True))
    with closing(client_for(*direct(broker.address))):
        start = reader.initialOffset()
        began = time.monotonic()
        for _ in range(3):
            assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert time.monotonic() - began > 0.5


def test_assigned_partitions_are_read_and_no_others(spark, broker, stream):
    one, two = broker.topic(partitions=3), broker.topic(partitions=2)
    for topic, partitions in ((one, 3), (two, 2)):
        for partition in range(partitions):
            broker.fill(topic, numbered(0, 2), partition)
    assigned = {one: [2, 0], two: [1]}
    expected = [(one, 0), (one, 2), (two, 1)]
    rows = [(*place, offset) for place in expected for offset in range(2)]
    assert tp(batch(spark, broker, assign=json.dumps(assigned))) == rows
    sink = stream.run(assign=json.dumps(assigned))
    assert [row[:3] for row in sink.rows] == rows


def test_an_assigned_partition_that_does_not_exist_is_an_error_that_names_it(spark, broker, stream):
    topic = broker.topic(partitions=2)
    assigned = json.dumps({topic: [0, 2]})
    words = f"assign names {topic}-2, which does not exist"
    with pytest.raises(PySparkException, match=words):
        batch(spark, broker, assign=assigned).collect()
    assert words in failure_of(stream.start(Sink(), assign=assigned))


# -- times ---------------------------------------------------------------------------------------

T0 = time.time_ns() // 1_000_000 - 60_000


@pytest.fixture(scope="module")
def timed(broker):
    """A topic with a record every second: of partition 0 at 0 s to 5 s, of partition 1 to 2 s."""
    topic = broker.topic(partitions=2)
    with Producer(**reaching(broker.address)) as producer:
        for partition, count in ((0, 6), (1, 3)):
            for second in range(count):
                producer.send(topic, b"", partition=partition, timestamp=T0 + 1000 * second)
    return topic


def times(topic, *seconds):
    return json.dumps({topic: {str(n): T0 + round(1000 * s) for n, s in enumerate(seconds)}})


def offsets(spark, broker, topic, **options):
    """What a batch query reads: (offsets of partition 0, of partition 1)."""
    rows = tp(batch(spark, broker, subscribe=topic, **options))
    return tuple([offset for _, partition, offset in rows if partition == n] for n in range(2))


def test_a_batch_reads_from_a_time_up_to_before_a_time(spark, broker, timed):
    between = {"startingTimestamp": str(T0 + 1000), "endingTimestamp": str(T0 + 2000)}
    assert offsets(spark, broker, timed, **between) == ([1], [1])
    between = {"startingTimestamp": str(T0 + 1001), "endingTimestamp": str(T0 + 4001)}
    # Partition 1 has nothing as late as its end, so that it ends where the log does.
    assert offsets(spark, broker, timed, **between) == ([2, 3, 4], [2])


def test_a_batch_reads_each_partition_between_times_of_its_own(spark, broker, timed):
    between = {
        "startingOffsetsByTimestamp": times(timed, 2.5, 0),
        "endingOffsetsByTimestamp": times(timed, 5, 1.5),
        # Times win over offsets.
        "startingOffsets": json.dumps({timed: {"0": 6, "1": 3}}),
        "endingOffsets": json.dumps({timed: {"0": 0, "1": 0}}),
    }
    assert offsets(spark, broker, timed, **between) == ([3, 4], [0, 1])


@pytest.mark.parametrize("name", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_where_nothing_is_as_late_as_the_start_the_strategy_decides(spark, broker, timed, name):
    text = str(T0 + 4000) if name == "startingTimestamp" else times(timed, 4, 2.001)
    with pytest.raises(PySparkException, match=f"{timed}-1 has no record of .* ms or later"):
        offsets(spark, broker, timed, **{name: text})
    latest = {name: text, "startingOffsetsByTimestampStrategy": "latest"}
    assert offsets(spark, broker, timed, **latest) == ([4, 5], [])


def test_a_stream_that_begins_where_nothing_is_that_late_reads_what_comes_later(broker, stream):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 3))
    sink = Sink()
    tomorrow = time.time_ns() // 1_000_000 + 24 * 3_600_000  # not of T0, which may be hours ago
    later = {"startingTimestamp": str(tomorrow)}
    later["startingOffsetsByTimestampStrategy"] = "latest"
    query = stream.start(sink, subscribe=topic, **later)
    stream.await_commits(query)
    broker.fill(topic, numbered(3, 5))
    until(lambda: len(sink.rows) >= 2, "what came later", query)
    assert sink.values == numbered(3, 5)


# -- tasks and columns ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uneven(broker):
    """A topic with 90 records in one partition, 30 in another and none in a third."""
    topic = broker.topic(partitions=3)
    broker.fill(topic, numbered(0, 90), partition=0)
    broker.fill(topic, numbered(0, 30), partition=1)
    return topic


def sizes_of_tasks(frame):
    """How many records each task reads, by Kafka partition, and where they are."""
    columns = ["spark_partition_id()", "topic", "partition", "offset"]
    rows = [tuple(row) for row in frame.selectExpr(*columns).collect()]
    tasks = Counter((row[2], row[0]) for row in rows)
    sizes = {n: sorted(c for (p, _), c in tasks.items() if p == n) for n in range(2)}
    return sizes, sorted(row[1:] for row in rows)


TASKS = [
    ({}, {0: [90], 1: [30]}),
    ({"minPartitions": "4"}, {0: [30, 30, 30], 1: [30]}),
    ({"maxRecordsPerPartition": "25"}, {0: [22, 22, 23, 23], 1: [15, 15]}),
    ({"minPartitions": "4", "maxRecordsPerPartition": "25"}, {0: [22, 22, 23, 23], 1: [15, 15]}),
]


@pytest.mark.parametrize(("options", "expected"), TASKS)
def test_a_batch_has_so_many_tasks_and_the_same_records(spark, broker, uneven, options, expected):
    frame = batch(spark, broker, subscribe=uneven, **options)
    sizes, rows = sizes_of_tasks(frame)
    assert sizes == expected
    assert rows == [(uneven, p, offset) for p, n in ((0, 90), (1, 30)) for offset in range(n)]


def test_a_micro_batch_has_so_many_tasks_too(uneven, stream):
    found = []
    stream.run(
        lambda frame, _: found.append(sizes_of_tasks(frame)[0]),
        subscribe=uneven,
        minPartitions="8",
    )
    assert found == [{0: [15] * 6, 1: [15, 15]}]


def test_the_epoch_of_each_record_is_a_column_behind_the_headers(spark, own_broker):
    topic = own_broker.topic()
    own_broker.fill(topic, numbered(0, 2))
    epochs = [leader_epoch(own_broker, topic)]
    own_broker.stop()
    own_broker.start()
    with Producer(**reaching(own_broker.address)) as producer:
        producer.send(topic, b"3", headers=[("h", b"v")])
    epochs.append(leader_epoch(own_broker, topic))
    assert epochs[0] < epochs[1]
    bare = batch(spark, own_broker, subscribe=topic)
    frame = batch(spark, own_broker, subscribe=topic, includeLeaderEpoch="true")
    assert frame.columns == [*bare.columns, "leader_epoch"]
    assert frame.dtypes[-1] == ("leader_epoch", "int")
    found = sorted(tuple(row) for row in frame.select("offset", "leader_epoch").collect())
    assert found == [(0, epochs[0]), (1, epochs[0]), (2, epochs[1])]
    both = batch(
        spark, own_broker, subscribe=topic, includeLeaderEpoch="true", includeHeaders="true"
    )
    assert both.columns == [*bare.columns, "headers", "leader_epoch"]
    rows = both.orderBy("offset").select("headers", "leader_epoch").collect()
    headers = [[(name, bytes(value)) for name, value in row[0] or ()] for row in rows]
    assert headers == [[], [], [("h", b"v")]]
    assert [row[1] for row in rows] == [epochs[0], epochs[0], epochs[1]]


def leader_epoch(broker, topic):
    with Admin(**reaching(broker.address)) as admin:
        return admin.offsets([(topic, 0)], LATEST)[(topic, 0)].leader_epoch


# -- groups --------------------------------------------------------------------------------------


def test_a_group_is_told_how_far_the_query_is(broker, stream):
    topic = broker.topic(partitions=2)
    broker.fill(topic, numbered(0, 7))
    broker.fill(topic, numbered(0, 4), partition=1)
    named = {"subscribe": topic, "groupId": "dash board", "maxOffsetsPerTrigger": "5"}
    sink = stream.run(**named)
    assert len(sink.rows) == 11
    assert len(sink.sizes) >= 2
    places = stream.position()["topics"][topic]
    ends = {(topic, int(n)): tuple(place) for n, place in places["partitions"].items()}
    assert group_offsets(broker, "dash board") == ends
    assert {tp: end[0] for tp, end in ends.items()} == {(topic, 0): 7, (topic, 1): 4}
    # A query that goes on tells it of each batch.
    query = stream.start(sink, **named)
    broker.fill(topic, numbered(7, 9))
    until(lambda: group_offsets(broker, "dash board")[(topic, 0)][0] == 9, "a commit", query)


def test_a_group_that_is_refused_does_not_stop_the_query(broker, stream):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 6))
    group = "g" * 2000
    with (
        pytest.raises(ApiError, match="INVALID_GROUP_ID"),
        Admin(**reaching(broker.address)) as admin,
    ):
        admin.set_group_offsets(group, {(topic, 0): 1})
    sink = stream.run(subscribe=topic, groupId=group, maxOffsetsPerTrigger="3")
    assert sink.values == numbered(0, 6)
    assert sink.sizes == [3, 3]


# -- small batches -------------------------------------------------------------------------------


def test_a_batch_waits_until_there_are_enough_records(broker, stream):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 5))
    sink = Sink()
    # As with Kafka's source the first batch of a run does not wait.
    query = stream.start(sink, subscribe=topic, minOffsetsPerTrigger="10")
    stream.await_commits(query)
    broker.fill(topic, numbered(5, 8))
    pause(query)
    assert stream.logged("offsets") == [0]
    broker.fill(topic, numbered(8, 15))
    until(lambda: len(sink.rows) >= 15, "the rest", query)
    assert sink.sizes == [5, 10]


def test_a_batch_that_is_too_small_waits_no_longer_than_it_may(broker, stream):
    delay_s = 3
    topic = broker.topic()
    broker.fill(topic, numbered(0, 5))
    sink = Sink()
    began = time.monotonic()
    options = {"minOffsetsPerTrigger": "1000", "maxTriggerDelay": f"{delay_s}s"}
    query = stream.start(sink, subscribe=topic, **options)
    stream.await_commits(query)
    broker.fill(topic, numbered(5, 8))
    until(lambda: len(sink.rows) >= 8, "the small batch", query)
    assert time.monotonic() - began >= delay_s
    assert sink.sizes[0] == 5
    assert sink.values == numbered(0, 8)


def test_a_query_that_ends_does_not_wait_for_enough_records(broker, stream):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 10))
    sink = stream.run(subscribe=topic, minOffsetsPerTrigger="4", maxOffsetsPerTrigger="4")
    assert sink.sizes == [4, 4, 2]
    assert sink.values == numbered(0, 10)


# -- what is lost --------------------------------------------------------------------------------


@pytest.fixture
def deleted(broker, stream, request):
    """Options of a query that read two topics; one of them was deleted since, the other grew."""
    stem = request.node.name
    kept, gone = (broker.topic(name=f"{stem}-{word}") for word in ("kept", "gone"))
    options = {"subscribePattern": f"{stem}-.*"}
    broker.fill(kept, numbered(0, 3))
    broker.fill(gone, numbered(10, 12))
    assert sorted(stream.run(**options).values) == numbered(0, 3) + numbered(10, 12)
    broker.delete_topic(gone)
    broker.fill(kept, numbered(3, 5))
    return options, gone


def test_a_topic_of_a_pattern_that_was_deleted_is_data_loss(stream, deleted):
    options, gone = deleted
    sink = Sink()
    text = failure_of(stream.start(sink, **options))
    assert f"DataLoss: {gone}" in text
    assert sink.rows == []


def test_without_fail_on_data_loss_a_deleted_topic_is_left_out(stream, deleted):
    options, gone = deleted
    sink = stream.run(**options, failOnDataLoss="false")
    assert sink.values == numbered(3, 5)
    last = stream.position()
    assert gone not in last["topics"]


def test_a_partition_that_is_assigned_no_longer_is_data_loss(broker, stream):
    topic = broker.topic(2)
    for number in (0, 1):
        broker.fill(topic, numbered(number, number + 1), number)
    stream.run(assign=json.dumps({topic: [0, 1]}))
    text = failure_of(stream.start(Sink(), assign=json.dumps({topic: [0]})))
    assert f"DataLoss: {topic}-1" in text
    assert "no longer assigned" in text


def test_a_thread_that_asks_for_the_session_writes_too(spark, broker):
    topic, failures = broker.topic(), []

    def write():
        try:
            rows = session().range(3).selectExpr("cast(id AS string) AS value")
            options = {**spark_options(broker.address), "topic": topic}
            rows.write.format("hightide").options(**options).mode("append").save()
        except Exception as failure:
            failures.append(failure)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert not failures
    assert batch(spark, broker, subscribe=topic).count() == 3
