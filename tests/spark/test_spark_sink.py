"""The Spark sink stores each row of a batch once, no matter who writes the batch again and however.

Goal: a task that is repeated, from the start, from another place or beside its first attempt,
leaves what one attempt would have left. Method: `TaskWriter`, which is what a task is, against a
real cluster of three in this process. Whole queries are in `test_spark_sink_queries.py`.
"""

# ruff: noqa: F811 - fixtures are imported by name

import random
import re
import threading
from contextlib import closing
from functools import partial

import pyarrow as pa
import pytest
from patience import PATIENCE_MS, PATIENCE_S
from secure_run import direct, reaching, spark_options

pytest.importorskip("pyspark")

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
from spark_support import cluster  # noqa: F401
from three_nodes import until

from hightide.blocking import Admin, Consumer
from hightide.produce.partitioner import partition_for_key
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol.errors import ApiError, RequestTimedOut, UsageError
from hightide.protocol.messages import LATEST
from hightide.spark import stored
from hightide.spark.attempts import DERIVED_IDS, Attempt, Superseded
from hightide.spark.client import BlockingClient
from hightide.spark.marks import Mark, TopicMark, Writing, ends_of
from hightide.spark.options import SinkOptions, read_sink_options
from hightide.spark.produce import TaskWriter
from hightide.spark.sink import HightideStreamWriter, check_schema, gathered, sorted_rows
from hightide.spark.stored import batches_of
from hightide.spark.written import Written

pytestmark = pytest.mark.live

BOOTSTRAP = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture(scope="module")
def admin(cluster):
    with Admin(**reaching(cluster.bootstrap)) as opened:
        yield opened


class KnownTask(TaskWriter):
    """A task that knows what became of a piece before it writes the next one: what it wrote is
    stored, should it die now."""

    def write(self, chunk):
        super().write(chunk)
        self.settle()


class Target:
    """A topic, and tasks that write to it."""

    def __init__(self, cluster, admin, name, *, partitions=3, replication_factor=3):
        self.cluster, self.admin, self.name = cluster, admin, name
        self.clients = []
        admin.create_topic(name, partitions=partitions, replication_factor=replication_factor)

    def close(self):
        for client in self.clients:
            client.close()

    def task(self, *, batch=0, task=0, kind=KnownTask, client=None, **options):
        attempt = Attempt(f"sink-of-{self.name}", task, batch)
        told = {
            "topic": self.name,
            "timeout_s": PATIENCE_S,
            "writing": Writing("checkpoint", "run"),
            **options,
        }
        return kind(self.kept(client) if client else self.client(), attempt, **told)

    def run(self, batch, *tasks, run="run", job=None, between=lambda _: None, **options):
        """Tasks with their rows, after each of which something may happen; and what the driver does
        then."""
        writer, messages = self.writer(**options), []
        for number, chunk in enumerate(tasks):
            messages.append(self.written(writer, batch, number, chunk, run, job))
            between(number)
        writer.commit(messages, batch)
        return sum(each.stored_before for each in messages)

    def writer(self, **options):
        """What the driver has of a query."""
        told = {"topic": self.name, "onLayoutChange": "fail", **options}
        told |= spark_options(self.cluster.bootstrap)
        return HightideStreamWriter(read_sink_options(told), schema_of(key=BYTES, value=BYTES))

    def written(self, writer, batch, number, chunk, run="run", job=None):
        """What one task of it tells the driver, once it is done."""
        writing, may = Writing("checkpoint", run, "what", job or run), writer.options.may_duplicate
        how = {"topic": writer.options.topic or None, "may_duplicate": may}
        task = self.task(batch=batch, task=number, kind=TaskWriter, writing=writing, **how)
        task.write(chunk)
        task.finish()
        told = writing, task.stored, task.deferred, task.rows, task.bytes
        more = task.stored_before, task.topic_ids, task.done, task.begins
        return Written(f"sink-of-{self.name}", batch, number, *told, *more)

    def client(self):
        return self.kept(BlockingClient(*direct(self.cluster.bootstrap)))

    def kept(self, client):
        self.clients.append(client)
        return client

    def allow_batches_of(self, limit, key="max.message.bytes"):
        """Set what bounds them; returns once every broker, so every leader, applied it."""
        self.admin.alter_topic_configs(self.name, set_={key: str(limit)})
        for address in self.cluster.bootstrap.split(","):
            with Admin(**reaching(address)) as asked:
                until(partial(self._allows, asked, key, limit), what=f"{limit} at {address}")

    def _allows(self, asked, key, limit):
        entries = {each.name: each.value for each in asked.describe_configs("topic", self.name)}
        return entries[key] == str(limit)

    def keep(self, next_batch):
        """A mark, of the topic as it is now."""
        now = ends_of(self.client(), [self.name], timeout_s=PATIENCE_S)
        mark = Mark(next_batch, now, Writing("checkpoint", "an earlier run"))
        mark.write(self.client(), f"sink-of-{self.name}", [self.name], timeout_s=PATIENCE_S)

    def stored(self):
        """The values of each partition, in order."""
        count = len(self.admin.describe_topic(self.name).partitions)
        places = [(self.name, number) for number in range(count)]
        ends = {tp: each.offset for tp, each in self.admin.offsets(places, LATEST).items()}
        found = {number: [] for number in range(count)}
        with Consumer(
            **reaching(self.cluster.bootstrap), topics=[self.name], auto_offset_reset="earliest"
        ) as consumer:
            while sum(map(len, found.values())) < sum(ends.values()):
                for record in consumer.poll(timeout_ms=PATIENCE_MS):
                    found[record.partition].append(int(record.value))
        return found


def everything(target):
    return sorted(int(record.value) for record in records(target))


def records(target):
    """Whatever is stored, in no order of partitions."""
    count = len(target.admin.describe_topic(target.name).partitions)
    ends = target.admin.offsets([(target.name, n) for n in range(count)], LATEST)
    to, found = reaching(target.cluster.bootstrap), []
    with Consumer(**to, topics=[target.name], auto_offset_reset="earliest") as consumer:
        while len(found) < sum(each.offset for each in ends.values()):
            found += consumer.poll(timeout_ms=PATIENCE_MS)
    return found


@pytest.fixture
def target(cluster, admin, request):
    made = Target(cluster, admin, re.sub(r"\W", "-", request.node.name))
    with closing(made):
        yield made


def rows(start, end):
    """Numbered rows, some without a key."""
    return rows_numbered(range(start, end))


def rows_numbered(numbers):
    keys = [b"%d" % (n % 13) if n % 3 else None for n in numbers]
    return pa.record_batch({"key": keys, "value": [b"%d" % n for n in numbers]})


def test_a_row_goes_where_its_key_says_or_in_runs(target):
    target.task().write(rows(0, 2_500))
    stored = target.stored()
    assert sorted(n for values in stored.values() for n in values) == [*range(2_500)]
    for place, values in stored.items():
        keyed = [n for n in values if n % 3]
        assert {partition_for_key(b"%d" % (n % 13), 3) for n in keyed} <= {place}
        for kind in (keyed, [n for n in values if not n % 3]):
            assert kind == sorted(kind)


@pytest.mark.parametrize("cut", [0, 1, 700, 1_999, 2_000])
def test_who_writes_a_batch_again_goes_on_behind_what_is_there(target, cut):
    target.task().write(rows(0, cut))
    again = target.task()
    for start in range(0, 2_000, 250):  # in other pieces
        again.write(rows(start, start + 250))
    assert (again.rows, again.stored_before) == (2_000, cut)
    once = target.stored()
    third = target.task()
    third.write(rows(0, 2_000))
    assert third.stored_before == 2_000
    assert target.stored() == once
    assert sorted(n for values in once.values() for n in values) == [*range(2_000)]


@pytest.mark.parametrize("beside", [0, 30_000])
def test_a_task_of_a_job_that_is_tried_again_goes_on_behind_what_is_there(target, beside):
    """Nobody keeps where the rows of a job begin; others may have written since."""
    job = {"topics": {}, "writing": None}
    target.task(**job).write(rows(0, 700))
    if beside:
        target.task(task=1, **job).write(rows(2_000, 2_000 + beside))
    again = target.task(**job)
    again.write(rows(0, 2_000))
    again.finish()
    assert again.stored_before == 700
    assert everything(target) == [*range(2_000 + beside)]


def test_a_batch_that_reaches_into_what_was_looked_at_counts_once(target, monkeypatch):
    monkeypatch.setattr(stored, "LOOK_BACK_OFFSETS", 0)
    job = {"topics": {}, "writing": None}

    def numbers(start, end):
        values = [b"%d" % n for n in range(start, end)]
        return pa.record_batch({"value": values, "partition": [0] * len(values)})

    first = target.task(**job)
    first.write(numbers(0, 10))
    first.write(numbers(10, 310))
    target.task(task=1, **job).write(numbers(1_000, 1_350))
    first.write(numbers(310, 320))
    again = target.task(**job)
    again.write(numbers(0, 330))
    again.finish()
    assert again.stored_before == 320
    assert everything(target) == [*range(330), *range(1_000, 1_350)]


def test_what_a_cut_took_is_not_waited_for_without_end(target):
    target.task().write(rows_numbered([1]))
    end = ends_of(target.client(), [target.name], timeout_s=PATIENCE_S)[target.name].starts[1] + 1
    with pytest.raises(RequestTimedOut, match=f"expected up to {end}: was its log cut"):
        list(batches_of(target.client(), (target.name, 1), 0, end, timeout_s=0.3))


def test_rows_may_come_in_another_order_when_they_are_written_again(target):
    """Behind a shuffle they do; a task died when it had sent the first 700."""
    numbers = [*range(2_000)]
    for cut in (700, 2_000):
        random.Random(cut).shuffle(numbers)
        task = target.task()
        for start in range(0, cut, 250):
            task.write(rows_numbered(numbers[start : min(start + 250, cut)]))
    task.finish()
    assert everything(target) == [*range(2_000)]
    assert task.stored_before == 700


def test_sorted_rows_have_one_order():
    numbers = [*range(500)]
    orders = []
    for seed in (1, 2):
        random.Random(seed).shuffle(numbers)
        pieces = [rows_numbered(numbers[n : n + 50]) for n in range(0, 500, 50)]
        orders.append([each.to_pydict() for each in sorted_rows(pieces)])
    assert orders[0] == orders[1]


def test_the_next_batch_begins_again_and_fences_the_one_before(target):
    late = target.task(batch=4)
    late.write(rows(0, 10))
    target.task(batch=5).write(rows(10, 20))
    with pytest.raises(Superseded, match="batch 4 of sink"):
        late.write(rows(10, 40))
    with pytest.raises(Superseded, match="batch 4 of sink"):
        target.task(batch=4)
    assert sorted(n for values in target.stored().values() for n in values) == [*range(20)]


def test_a_batch_below_the_mark_is_there_as_a_whole(target):
    target.keep(3)
    done = target.task(batch=2)
    done.write(rows(0, 10))
    assert (done.rows, done.stored_before) == (10, 10)
    assert target.stored() == {0: [], 1: [], 2: []}
    target.task(batch=3).write(rows(0, 10))
    assert sorted(n for values in target.stored().values() for n in values) == [*range(10)]


def test_partitions_that_were_added_are_used_from_the_next_batch_on(target):
    target.task().write(rows(0, 500))
    target.admin.create_partitions(target.name, 6)
    target.task().write(rows(0, 1_000))
    stored = target.stored()
    assert [len(stored[n]) for n in (3, 4, 5)] == [0, 0, 0]
    assert sorted(n for values in stored.values() for n in values) == [*range(1_000)]
    target.keep(1)
    target.task(batch=1).write(rows(1_000, 2_000))
    stored = target.stored()
    assert all(stored[n] for n in (3, 4, 5))
    assert sorted(n for values in stored.values() for n in values) == [*range(2_000)]


def test_tasks_do_not_mind_each_other(target):
    for task in range(3):
        target.task(task=task).write(rows(task * 100, task * 100 + 100))
    target.task(task=1).write(rows(100, 200))
    assert sorted(n for values in target.stored().values() for n in values) == [*range(300)]


def test_two_attempts_at_a_time_store_what_one_would(target):
    failures = []

    def work(piece):
        try:
            task = target.task()
            for start in range(0, 3_000, piece):
                task.write(rows(start, min(start + piece, 3_000)))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(piece,)) for piece in (70, 110)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    stored = target.stored()
    assert sorted(n for values in stored.values() for n in values) == [*range(3_000)]
    for values in stored.values():
        for kind in (0, 1):
            own = [n for n in values if bool(n % 3) == bool(kind)]
            assert own == sorted(own)


def test_a_topic_of_small_segments_gets_small_batches(target):
    target.allow_batches_of(3_000, "segment.bytes")
    target.task().write(rows(0, 2_000))
    assert sorted(n for values in target.stored().values() for n in values) == [*range(2_000)]


def test_a_topic_of_small_batches_gets_small_ones(target):
    target.allow_batches_of(3_000)
    for stored_before in (0, 2_000):
        task = target.task()
        task.write(rows(0, 2_000))
        assert task.stored_before == stored_before
    assert sorted(n for values in target.stored().values() for n in values) == [*range(2_000)]
    large = pa.record_batch({"value": [b"1", b"2" * 4_000, b"3"], "partition": [0, 0, 0]})
    with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
        target.task(batch=1).write(large)
    target.allow_batches_of(5_000)
    target.task(batch=1).write(large)
    assert target.stored()[0][-3:] == [1, int(b"2" * 4_000), 3]


def test_a_leader_that_dies_between_two_attempts_takes_nothing_along(target):
    target.task().write(rows(0, 800))
    leader = target.admin.describe_topic(target.name).partitions[0].leader
    target.cluster.kill(leader)
    try:
        target.task().write(rows(0, 1_600))
    finally:
        target.cluster.start(leader)
    assert sorted(n for values in target.stored().values() for n in values) == [*range(1_600)]


def test_a_producer_id_follows_from_the_names_and_is_nobody_else_s():
    ids = {Attempt(sink, task, 0).producer[0] for sink in "abc" for task in range(100)}
    assert len(ids) == 300
    assert min(ids) >= DERIVED_IDS
    assert max(ids) < 1 << 63
    same = Attempt("a", 1, 7)
    assert (same.producer, Attempt("a", 1, 7).producer[1]) == (Attempt("a", 1, 7).producer, 7)
    before, after = Attempt("a", 1, 32_767).producer, Attempt("a", 1, 32_768).producer
    assert (before[1], after[1]) == (32_767, 0)
    assert before[0] != after[0]


def test_small_pieces_are_gathered_and_large_ones_go_at_once():
    pieces = [len(each) for each in gathered(rows(0, 10_000) for _ in range(8))]
    assert pieces == [70_000, 10_000]
    assert list(gathered([])) == []
    big = pa.record_batch({"value": [b"x" * (17 << 20)]})
    assert [len(each) for each in gathered([big, big])] == [1, 1]


# --- what can be written ------------------------------------------------------------------------


TEXT, BYTES, NUMBER = StringType(), BinaryType(), IntegerType()
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BYTES)]))


def schema_of(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        ({"key": TEXT}, {"topic": "t"}, "expected value"),
        ({"value": TEXT}, {}, "no topic"),
        ({"value": NUMBER}, {"topic": "t"}, "column value is int"),
        ({"value": TEXT, "colour": TEXT}, {"topic": "t"}, "colour"),
        ({"value": TEXT, "headers": TEXT}, {"topic": "t"}, "column headers is string"),
        ({"value": TEXT, "partition": TEXT}, {"topic": "t"}, "column partition is string"),
    ],
)
def test_a_schema_that_cannot_be_written_is_refused(schema, options, words):
    with pytest.raises(UsageError, match=words):
        check_schema(schema_of(**schema), SinkOptions(bootstrap="h:1", **options))


@pytest.mark.parametrize(
    "schema",
    [
        {"value": BYTES},
        {"key": TEXT, "value": TEXT, "topic": TEXT, "partition": NUMBER},
        {"value": TEXT, "headers": HEADERS, "timestamp": TimestampType()},
        {"value": TEXT, "offset": LongType(), "timestampType": NUMBER, "leader_epoch": NUMBER},
    ],
)
def test_spark_s_own_columns_can_be_written(schema):
    check_schema(schema_of(**schema), SinkOptions(bootstrap="h:1", topic="t"))


def test_options_of_the_sink_are_read_and_others_refused():
    options = read_sink_options(
        {
            **BOOTSTRAP,
            "topic": "t",
            "sinkId": "mine",
            "sortRows": "true",
            "deliveryTimeoutMs": "500",
        }
    )
    assert options == SinkOptions(
        bootstrap="127.0.0.1:1", topic="t", sink_id="mine", sort_rows=True, timeout_s=0.5
    )
    assert not read_sink_options({**BOOTSTRAP, "topic": "t"}).sort_rows
    with pytest.raises(UsageError, match="did you mean topic"):
        read_sink_options({**BOOTSTRAP, "topics": "t"})
    with pytest.raises(UsageError, match=r"bootstrap\.servers is missing"):
        read_sink_options({"topic": "t"})


class Standing(BlockingClient):
    """A leader that has all rows of a task, and commits none of them."""

    def __init__(self):
        super().__init__("127.0.0.1:1")

    def refresh(self, topics, **_):
        part = m.PartitionMetadata(partition=0, leader=1, leader_epoch=0, replicas=[1], isr=[1])
        told = {"topic_id": "id", "partitions": [part]}
        found = [m.TopicMetadata(topic=topic, **told) for topic in topics]
        broker = m.BrokerInfo(id=1, host="127.0.0.1", port=1)
        answer = m.MetadataResponse(cluster_id="", controller=1, brokers=[broker], topics=found)
        self.metadata.learn(answer, is_complete=True, now=0.0)
        return frozenset()

    def call_leader(self, topic, partition, request, **_):
        state = p.ProducerState(
            topic=topic,
            partition=partition,
            producer_epoch=0,
            last_sequence=9,
            last_offset=9,
            high_watermark=0,
        )
        return p.DescribeProducersResponse(partitions=[state]), []


def test_rows_that_are_stored_and_not_committed_are_not_there():
    attempt, topics = Attempt("sink", 0, 0), {"orders": TopicMark("id", (0,))}
    with pytest.raises(RequestTimedOut, match=r"committed is what lies below 0.*may be lost again"):
        TaskWriter(Standing(), attempt, topic="orders", timeout_s=0.05, topics=topics)
