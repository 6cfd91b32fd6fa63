"""A batch that is run again with its rows shared out in another way, or by something else under the
same name: completed, or an error that says what is stored where; never silence.

Goal: `produce.py`, `stored.py` and `marks.py`. Method: as in `test_spark_sink.py`: tasks against a
cluster of three in this process, and the driver's part after them. Spark itself shares out rows in
`test_spark_sink_queries.py`.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json
import random
from collections import Counter
from contextlib import closing

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from secure_run import blocking_cluster, reaching
from tries import LONG, few

pytest.importorskip("pyspark")

from test_spark_sink import (  # noqa: F401
    Target,
    admin,
    cluster,
    everything,
    records,
    rows,
    rows_numbered,
    target,
)
from three_nodes import until

from hightide.arrow.from_arrow import rows_of
from hightide.blocking import Admin, Producer
from hightide.protocol.columns import Record
from hightide.protocol.errors import ApiError, UsageError
from hightide.protocol.group_messages import CommitPartition
from hightide.protocol.topic_partition import TopicPartition
from hightide.spark import marks
from hightide.spark.attempts import producers_of
from hightide.spark.earlier import states_of
from hightide.spark.marks import Mark, SinkClash, TopicMark, Writing
from hightide.spark.sink import HightideStreamWriter, refuse_overwrite
from hightide.spark.stored import ANY_TIME, LayoutChanged, Stored

pytestmark = pytest.mark.live

# --- a task that is run again within a run of the query -----------------------------------------


def begun(target, batch, task, chunk, run="run"):
    """A task that died when it had stored these rows."""
    writing = Writing("checkpoint", run, job=run)
    target.task(batch=batch, task=task, writing=writing).write(chunk)


def test_a_task_with_other_rows_stores_nothing_and_says_what_is_where(target):
    begun(target, 0, 0, rows(0, 300))
    once = target.stored()
    with pytest.raises(LayoutChanged) as caught:
        target.run(0, rows(200, 900))
    assert target.stored() == once
    text = str(caught.value)
    assert "task 0 of batch 0 of sink" in text
    assert "was given 700 rows; 200 rows of" in text
    assert f"{target.name}-0 offsets 0 to " in text
    assert "onLayoutChange=duplicate" in text


def test_no_row_is_lost_if_it_may_be_there_twice(target, caplog):
    begun(target, 0, 0, rows(0, 300))
    assert target.run(0, rows(200, 900), onLayoutChange="duplicate") == 100
    assert everything(target) == sorted([*range(300), *range(300, 900)])
    assert "200 rows of" in caplog.text
    target.run(1, rows(900, 1_000))
    assert everything(target) == [*range(1_000)]


# --- another run of the query, with its rows shared out in another way --------------------------

AGAIN = {"run": "another run"}
WAYS = [(batch, count) for batch in (0, 1) for count in (1, 2, 3, 7)]


@pytest.mark.parametrize(("batch", "count"), few(WAYS, 2))
def test_a_batch_is_completed_whichever_tasks_have_its_rows_now(target, batch, count):
    """Two tasks had begun it, one with rows of the middle and one with those of the end."""
    if batch:
        target.run(0, rows(5_000, 5_100), run="before")
    begun(target, batch, 0, rows(300, 400), run="dead")
    begun(target, batch, 5, rows(650, 900), run="dead")
    numbers = [*range(1_000)]
    random.Random(count).shuffle(numbers)
    tasks = [rows_numbered(numbers[n::count]) for n in range(count)]
    assert target.run(batch, *tasks, **AGAIN) == 350
    target.run(batch + 1, rows(1_000, 1_100), **AGAIN)
    before = [*range(5_000, 5_100)] if batch else []
    assert everything(target) == [*range(1_100), *before]


def test_runs_that_die_one_after_the_other_leave_what_one_would(target):
    rng, numbers = random.Random(3), [*range(2_000)]
    for run in range(6):
        count = rng.randrange(1, 6)
        rng.shuffle(numbers)
        for task in range(count):
            some = rows_numbered(numbers[task::count])
            begun(target, 0, task, some.slice(0, rng.randrange(len(some) // 2)), run=f"run {run}")
    target.run(0, rows_numbered(numbers[:700]), rows_numbered(numbers[700:]), **AGAIN)
    assert everything(target) == [*range(2_000)]


def test_a_task_that_dies_while_a_batch_is_completed_goes_on(target):
    begun(target, 0, 0, rows(0, 500), run="dead")
    begun(target, 0, 1, rows(600, 700), **AGAIN)
    begun(target, 0, 0, rows(400, 550), **AGAIN)
    target.run(0, rows(300, 600), rows(600, 1_000), rows(0, 300), **AGAIN)
    assert everything(target) == [*range(1_000)]


def test_rows_that_are_the_same_are_stored_as_often_as_they_are_wanted(target):
    def same(count):
        return pa.record_batch({"key": [b"k"] * count, "value": [b"7"] * count})

    begun(target, 0, 0, same(5), run="dead")
    target.run(0, same(4), same(4), rows(100, 110), **AGAIN)
    assert everything(target) == [7] * 8 + [*range(100, 110)]


def test_what_the_driver_stores_is_the_row_with_its_own_time(target):
    now = 1_700_000_000_000

    def timed(*times):
        stamps = pa.array([None if t is None else now + t for t in times], pa.timestamp("ms"))
        return pa.record_batch({"value": [b"1"] * len(times), "timestamp": stamps})

    begun(target, 0, 0, timed(1, 2, None), run="dead")
    target.run(0, timed(5, None), timed(2, 1, None), **AGAIN)
    told = [record.timestamp - now for record in records(target)]
    assert sorted(t for t in told if t < 10) == [1, 2, 5]
    assert len(told) == 5


def test_rows_of_somebody_else_are_no_change(target):
    target.run(0, rows(0, 10))
    with Producer(**reaching(target.cluster.bootstrap)) as producer:
        for number in range(1_000, 1_100):
            producer.send(target.name, b"%d" % number)
    begun(target, 1, 0, rows(10, 15))
    assert target.run(1, rows(10, 20), **AGAIN) == 5
    assert everything(target) == [*range(20), *range(1_000, 1_100)]


def test_a_query_that_does_not_give_the_same_rows_twice_is_stopped_until_somebody_decides(target):
    begun(target, 0, 0, rows(0, 300), run="dead")
    with pytest.raises(LayoutChanged, match=r"100 rows of .* offsets .* by an earlier run"):
        target.run(0, rows(100, 500), **AGAIN)
    once = target.stored()
    for _ in range(3):
        with pytest.raises(LayoutChanged, match=r"100 rows of .* onLayoutChange=duplicate"):
            target.run(0, rows(100, 500), run="a third run")
    assert target.stored() == once, "nothing is stored before that"
    target.run(0, rows(100, 500), run="a fourth run", onLayoutChange="duplicate")
    assert everything(target) == [*range(500)]
    target.run(1, rows(500, 600), run="a fourth run")
    assert everything(target) == [*range(600)]


def test_a_frozen_task_of_an_earlier_run_is_found_by_the_driver(target):
    """It is thawed when all tasks of this run are done, and before the driver is."""
    frozen = target.task(task=3, writing=Writing("checkpoint", "dead", job="dead"))
    frozen.write(rows(0, 10))
    commit = HightideStreamWriter.commit

    def late(writer, *args):
        frozen.write(rows(10, 20))
        commit(writer, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HightideStreamWriter, "commit", late)
        with pytest.raises(LayoutChanged, match="by an earlier run of the query"):
            target.run(0, rows(0, 40), **AGAIN)


@pytest.mark.parametrize("tasks", [[(0, 500)], [(100, 500), (0, 100)]], ids=["one", "two"])
def test_rows_are_found_although_brokers_forgot_who_wrote_them(monkeypatch, tasks):
    quick = {"producer.id.expiration.ms": "1", "log.retention.check.interval.ms": "50"}
    with (
        blocking_cluster(1, configs=quick) as cluster,
        Admin(**reaching(cluster.bootstrap)) as admin,
        closing(Target(cluster, admin, "orders", replication_factor=1)) as target,
    ):
        begun(target, 0, 0, rows(0, 300), run="dead")
        ids = producers_of("sink-of-orders", 0)
        client, tp = target.client(), ("orders", 0)
        until(lambda: not states_of(client, tp, ids, timeout_s=PATIENCE_S), what="it is forgotten")
        monkeypatch.setattr(marks, "PRODUCERS_KEPT_S", -1.0)
        assert target.run(0, *(rows(*task) for task in tasks), **AGAIN) == 300
        assert everything(target) == [*range(500)]


some_times = st.lists(st.integers(-1, 4), max_size=12)


@given(some_times, some_times)
def test_rows_that_are_the_same_but_for_their_times_are_found_by_those(there, given_times):
    """ANY_TIME, -1, stands for whatever a row names."""
    place, left_there = TopicPartition("orders", 0), Counter(there)
    found = Stored()
    for time in there:
        found.add(Record("orders", 0, 0, time, None, b"v", (), int(time == ANY_TIME)))
    named = [max(time, 0) for time in given_times]
    columns = {"value": [b"v"] * len(named), "timestamp": pa.array(named, pa.timestamp("ms"))}
    left, late = found.left_of(place, rows_of(pa.record_batch(columns), 9), is_last=False)
    expected = []
    for index, time in enumerate(named):
        taken = next((each for each in (time, ANY_TIME) if left_there[each]), None)
        if taken is None:
            expected.append(index)
        else:
            left_there[taken] -= 1
    assert (left.tolist(), late.tolist()) == (expected, [])
    assert found.count == left_there.total()


def test_the_same_row_several_times_is_stored_so_often(target):
    same = pa.record_batch({"key": [b"k"] * 50, "value": [b"7"] * 50})
    begun(target, 0, 0, same.slice(0, 20))
    assert target.run(0, same) == 20
    assert everything(target) == [7] * 50


def test_times_and_headers_tell_rows_apart(target):
    def timed(times, names):
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        headers = pa.array([[{"key": n, "value": b"x"}] if n else None for n in names], kind)
        return pa.record_batch(
            {
                "value": [b"1"] * len(times),
                "partition": pa.array([0] * len(times), pa.int32()),
                "timestamp": pa.array(times, pa.timestamp("ms")),
                "headers": headers,
            }
        )

    now = 1_700_000_000_000
    begun(target, 0, 0, timed([now, now + 1, None], ["a", None, None]))
    target.run(0, timed([now + 1, now + 2, None, now, now], [None, None, None, "a", "b"]))
    found = [record for record in records(target) if record.partition == 0]
    told = [(r.timestamp - now, [name for name, _ in r.headers]) for r in found]
    assert [each for each in told if 0 <= each[0] <= 2] == [
        (0, ["a"]),
        (1, []),
        (2, []),
        (0, ["b"]),
    ]
    assert len(told) == 5


def test_rows_that_were_deleted_meanwhile_are_not_guessed(target):
    task = target.task()
    for numbers in (range(4), range(4, 9)):
        values = [b"%d" % number for number in numbers]
        task.write(pa.record_batch({"value": values, "partition": [0] * len(values)}))
    target.admin.delete_records({(target.name, 0): 4})
    with pytest.raises(LayoutChanged, match=r"of 9 rows .* only 5 are there"):
        target.task()


def test_a_write_that_is_tried_again_within_a_run_may_have_other_tasks(target):
    """A function catches the error of a write, and writes again with fewer tasks."""
    target.run(0, rows(0, 10))
    begun(target, 1, 4, rows(15, 20))
    assert target.run(1, rows(10, 20), job="the second try") == 5
    assert everything(target) == [*range(20)]


def test_equal_rows_for_several_partitions_go_to_each(target):
    def markers(*partitions):
        return pa.record_batch({"value": [b"7"] * len(partitions), "partition": [*partitions]})

    begun(target, 0, 0, markers(1))
    target.run(0, markers(0, 1, 2))
    assert target.stored() == {0: [7], 1: [7], 2: [7]}


def test_a_row_without_a_time_leaves_the_named_times_to_others(target):
    now = 1_700_000_000_000
    stamps = pa.array([None, now], pa.timestamp("ms"))
    chunk = pa.record_batch({"value": [b"1", b"1"], "partition": [0, 0], "timestamp": stamps})
    begun(target, 0, 0, chunk.slice(1))
    target.run(0, chunk)
    assert sorted(record.timestamp == now for record in records(target)) == [False, True]


def test_partitions_that_were_added_meanwhile_may_hold_rows_of_an_earlier_run(target):
    target.run(0, rows(0, 10), run="before")
    target.admin.create_partitions(target.name, 5)
    named = pa.record_batch({"value": [b"%d" % n for n in range(10, 20)], "partition": [4] * 10})
    begun(target, 1, 3, named.slice(0, 6), run="dead")
    assert target.run(1, named, **AGAIN) == 6
    assert everything(target) == [*range(20)]


@LONG
def test_a_refusal_that_has_much_to_say_is_kept(target):
    target.admin.create_partitions(target.name, 40)
    named = pa.record_batch(
        {"value": [b"%d" % n for n in range(80)], "partition": [*range(40)] * 2}
    )
    begun(target, 0, 0, named, run="dead")
    for _ in range(2):
        with pytest.raises(LayoutChanged, match="and 36 more partitions"):
            target.run(0, rows(100, 110), **AGAIN)
    assert everything(target) == [*range(80), *range(100, 110)]


def test_a_mark_that_is_kept_again_stays_as_old_as_it_was(target):
    """Or only the first task would know that brokers may have forgotten who wrote."""
    begun(target, 0, 0, rows(0, 10), run="dead")
    sink = f"sink-of-{target.name}"
    before = Mark.read(target.client(), sink, timeout_s=PATIENCE_S)
    target.task(writing=Writing("checkpoint", "another run", job="another run"))
    after = Mark.read(target.client(), sink, timeout_s=PATIENCE_S)
    jobs = [mark.topics[target.name].at_work for mark in (before, after)]
    assert jobs == ["dead", "another run"]
    assert after.kept_at == before.kept_at


def test_a_mark_is_as_old_as_what_is_oldest_of_its_batch(target, admin):
    """A topic that the batch came to later makes what was stored before no younger."""
    other, sink = f"{target.name}-0", f"sink-of-{target.name}"
    admin.create_topic(other)

    def kept(next_batch, topic, at):
        topic_id = admin.describe_topic(topic).topic_id
        mark = Mark(next_batch, {topic: TopicMark(topic_id, (0,))}, kept_at=at)
        mark.write(target.client(), sink, [topic], timeout_s=PATIENCE_S)
        return Mark.read(target.client(), sink, timeout_s=PATIENCE_S).kept_at

    assert kept(3, target.name, 1_000) == 1_000
    assert kept(3, other, 2_000) == 1_000
    assert kept(4, other, 2_000) == 2_000, "of another batch"
    assert kept(4, target.name, 3_000) == 2_000


# --- whose rows they are ------------------------------------------------------------------------


def test_a_second_write_of_a_batch_is_an_error_and_drops_nothing(target):
    target.run(0, rows(0, 10))
    with pytest.raises(SinkClash, match="was written already in this run of the query"):
        target.run(0, rows(10, 20))
    assert target.run(0, rows(0, 10), run="another run") == 10, "that is the batch run again"
    with pytest.raises(SinkClash, match=r"was stored with 10 rows of .* again with 9 rows"):
        target.run(0, rows(11, 20), run="another run")
    assert everything(target) == [*range(10)]


def test_a_group_that_is_no_sinks_is_not_read_as_one(target):
    group = f"sink-sink-of-{target.name}"
    for metadata in ("hello", "[1]"):
        part = CommitPartition(topic=target.name, partition=0, offset=7, metadata=metadata)
        target.client().commit_offsets(group, [part])
        with pytest.raises(SinkClash, match="holds what no sink has written"):
            target.task()
    part = CommitPartition(topic=target.name, partition=0, offset=7, metadata="")
    target.client().commit_offsets(group, [part])
    assert not target.task().is_done


def test_a_mark_is_kept_in_pieces_that_brokers_take(target, admin, monkeypatch):
    monkeypatch.setattr(marks, "PARTS_AT_ONCE", 2)
    topic_id = admin.describe_topic(target.name).topic_id
    wide = Mark(3, {target.name: TopicMark(topic_id, (4, 5, 6), (7, 8, 9), "job")})
    sink = f"wide-{target.name}"
    wide.write(target.client(), sink, [target.name], timeout_s=PATIENCE_S)
    found = Mark.read(target.client(), sink, timeout_s=PATIENCE_S)
    assert (found.next_batch, found.topics) == (3, wide.topics)


def test_another_write_of_a_function_is_told_apart_in_a_later_run_too(target):
    target.run(0, rows(0, 10))
    other = Writing("checkpoint", "another run", "something else")
    with pytest.raises(SinkClash, match=r"wrote what, this writes something else"):
        target.task(batch=0, writing=other)


def test_another_checkpoint_under_the_same_id_is_an_error(target):
    target.run(4, rows(0, 10))
    for batch in (0, 4, 5):
        with pytest.raises(SinkClash, match="with checkpoint checkpoint, up to batch 4"):
            target.task(batch=batch, writing=Writing("another one", "run", "what"))


def test_a_checkpoint_that_is_older_than_what_was_written_is_an_error(target):
    for batch in range(3):
        target.run(batch, rows(10 * batch, 10 * batch + 10))
    with pytest.raises(SinkClash, match="its checkpoint is an older one"):
        target.task(batch=1, writing=Writing("checkpoint", "another run", "what"))
    assert target.run(2, rows(20, 30), run="another run") == 10
    assert everything(target) == [*range(30)]


@LONG
def test_a_sink_may_write_to_hundreds_of_topics(cluster, admin, target):
    names = [f"{target.name}-{number}" for number in range(160)]
    for name in names:
        admin.create_topic(name, partitions=1, replication_factor=1)
    chunk = pa.record_batch({"topic": names, "value": [b"%d" % n for n in range(160)]})
    target.run(0, chunk, topic="")
    mark = Mark.read(target.client(), f"sink-of-{target.name}", timeout_s=PATIENCE_S)
    assert (mark.next_batch, len(mark.topics)) == (1, 160)


def test_first_tasks_of_different_topics_do_not_undo_each_others_marks(target, admin):
    other = f"{target.name}-other"
    admin.create_topic(other, partitions=2)
    one, two = target.task(task=0), target.task(task=1, topic=other)
    one.write(rows(0, 10))
    two.write(rows(0, 10))
    mark = Mark.read(target.client(), f"sink-of-{target.name}", timeout_s=PATIENCE_S)
    assert {name: each.count for name, each in mark.topics.items()} == {target.name: 3, other: 2}


def test_partitions_that_were_added_may_be_named_at_once(target):
    target.run(0, rows(0, 10))
    target.admin.create_partitions(target.name, 5)
    target.run(1, pa.record_batch({"value": [b"100"], "partition": [4]}))
    assert target.stored()[4] == [100]
    with pytest.raises(UsageError, match="none of 0 to 4"):
        target.task(batch=2).write(pa.record_batch({"value": [b"100"], "partition": [5]}))


def test_a_topic_that_was_made_again_with_fewer_partitions_is_written_to(target):
    target.run(0, rows(0, 100))
    begun(target, 1, 0, rows(100, 150))
    target.admin.delete_topic(target.name)
    target.admin.create_topic(target.name, partitions=1)
    target.run(1, rows(100, 200))
    assert target.stored() == {0: [*range(100, 200)]}


def test_a_topic_that_is_made_again_beneath_a_task_has_all_rows_of_who_repeats_it(target):
    task = target.task(batch=0)
    task.write(rows(0, 50))
    target.admin.delete_topic(target.name)
    target.admin.create_topic(target.name, partitions=3)
    with pytest.raises(ApiError, match=f"{target.name}' has id"):
        task.write(rows(50, 100))
    assert everything(target) == []
    target.run(0, rows(0, 100))
    assert everything(target) == [*range(100)]


def test_a_topic_that_is_made_again_behind_a_task_ends_the_batch_which_is_then_completed(target):
    def make_again(task):
        if task == 0:
            target.admin.delete_topic(target.name)
            target.admin.create_topic(target.name, partitions=2)

    with pytest.raises(LayoutChanged, match=r"made again .* when task 0 had written to it"):
        target.run(0, rows(0, 50), rows(50, 100), between=make_again)
    target.run(0, rows(0, 50), rows(50, 100), **AGAIN)
    target.run(1, rows(100, 110), **AGAIN)
    assert everything(target) == [*range(110)]


def test_a_mark_of_the_version_before_is_read(target):
    client, sink = target.client(), f"sink-of-{target.name}"
    old = CommitPartition(
        topic=target.name, partition=0, offset=5, metadata=json.dumps({target.name: 3})
    )
    client.commit_offsets(f"sink-{sink}", [old])
    assert target.task(batch=4).is_done
    begun(target, 5, 0, rows(0, 10))
    assert target.run(5, rows(0, 20)) == 10
    assert everything(target) == [*range(20)]


def test_overwrite_is_refused():
    refuse_overwrite(False)
    with pytest.raises(UsageError, match="append"):
        refuse_overwrite(True)
