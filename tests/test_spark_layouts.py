"""A batch that is run again with its rows shared out in another way, or by something else under the
same name: completed, or an error that says what is stored where; never silence.

Goal: `produce.py`, `stored.py` and `marks.py`. Method: as in `test_spark_sink.py`: tasks against a
cluster of three in this process, and the driver's part after them. Spark itself shares out rows in
`test_spark_sink_queries.py`.
"""

# ruff: noqa: F811 - fixtures are imported by name

import json

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from test_spark_sink import admin, cluster, everything, rows, target  # noqa: F401

from hightide.blocking import Consumer, Producer
from hightide.errors import UsageError
from hightide.group_messages import CommitPartition
from hightide.spark.marks import Mark, SinkClash, Writing
from hightide.spark.sink import refuse_overwrite
from hightide.spark.stored import LayoutChanged

pytestmark = pytest.mark.live

# --- a batch that is run again in another way ---------------------------------------------------


def begun(target, batch, task, chunk):
    """A task that died when it had stored these rows."""
    target.task(batch=batch, task=task).write(chunk)


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


def test_rows_that_moved_to_a_later_task_are_completed_if_each_task_has_what_it_stored(target):
    begun(target, 0, 0, rows(0, 100))
    begun(target, 0, 1, rows(500, 600))
    target.run(0, rows(0, 400), rows(400, 1_000))
    assert everything(target) == [*range(1_000)]


def test_what_a_task_stored_that_is_not_there_any_more_is_found_by_the_driver(target, caplog):
    target.run(0, rows(0, 10))
    begun(target, 1, 0, rows(10, 20))
    begun(target, 1, 7, rows(20, 30))
    with pytest.raises(LayoutChanged, match=r"rows in .* were stored by tasks \[7\]"):
        target.run(1, rows(10, 30), run="another run")
    found = target.run(1, rows(10, 30), run="another run", onLayoutChange="duplicate")
    assert found == 20
    assert everything(target) == sorted([*range(30), *range(20, 30)])
    target.run(2, rows(30, 40), run="another run")
    assert everything(target)[-1] == 39


def test_rows_of_somebody_else_are_no_change(target):
    target.run(0, rows(0, 10))
    with Producer(target.cluster.bootstrap) as producer:
        for number in range(1_000, 1_100):
            producer.send(target.name, b"%d" % number)
    begun(target, 1, 0, rows(10, 15))
    assert target.run(1, rows(10, 20), run="another run") == 5
    assert everything(target) == [*range(20), *range(1_000, 1_100)]


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
    with Consumer(
        target.cluster.bootstrap, partitions=[(target.name, 0)], auto_offset_reset="earliest"
    ) as c:
        found = []
        while len(found) < 5:
            found += c.poll(timeout_ms=5_000)
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


# --- whose rows they are ------------------------------------------------------------------------


def test_a_second_write_of_a_batch_is_an_error_and_drops_nothing(target):
    target.run(0, rows(0, 10))
    with pytest.raises(SinkClash, match="was written already in this run of the query"):
        target.run(0, rows(10, 20))
    assert target.run(0, rows(0, 10), run="another run") == 10, "that is the batch run again"
    assert everything(target) == [*range(10)]


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


def test_a_sink_may_write_to_hundreds_of_topics(cluster, admin, target):
    names = [f"{target.name}-{number}" for number in range(160)]
    for name in names:
        admin.create_topic(name, partitions=1, replication_factor=1)
    chunk = pa.record_batch({"topic": names, "value": [b"%d" % n for n in range(160)]})
    target.run(0, chunk, topic="")
    mark = Mark.read(target.client(), f"sink-of-{target.name}", timeout_s=60)
    assert (mark.next_batch, len(mark.topics)) == (1, 160)


def test_first_tasks_of_different_topics_do_not_undo_each_others_marks(target, admin):
    other = f"{target.name}-other"
    admin.create_topic(other, partitions=2)
    one, two = target.task(task=0), target.task(task=1, topic=other)
    one.write(rows(0, 10))
    two.write(rows(0, 10))
    mark = Mark.read(target.client(), f"sink-of-{target.name}", timeout_s=60)
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
