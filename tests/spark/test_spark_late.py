"""A driver's last requests that arrive once it has died, and the next run of the query has begun.

Goal: `produce.py` and `completion.py`. Method: as in `test_spark_layouts.py`; what the dead driver
sent arrives at the worst moment, which the test chooses.
"""

# ruff: noqa: F811 - fixtures are imported by name

from functools import partial

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from test_spark_layouts import AGAIN, begun
from test_spark_sink import Target, admin, cluster, everything, rows, target  # noqa: F401

from hightide.spark import sink, task_mark
from hightide.spark.completion import Completion
from hightide.spark.marks import Mark, SinkClash
from hightide.spark.produce import TaskWriter
from hightide.spark.stored import LayoutChanged

pytestmark = pytest.mark.live


class DriversMark(Mark):
    """As the driver keeps it, and not a task."""


class Dead(Exception):
    """What the driver was about to send is on its way."""


@pytest.fixture
def on_its_way():
    """What arrives late."""
    return []


def dies_before(monkeypatch, on_its_way, kind, name, run):
    """Somebody's process ends just when it has sent what this method would."""
    with monkeypatch.context() as patch:
        method = getattr(kind, name)

        def die(*about, **how):
            on_its_way.append(lambda: method(*about, **how))
            raise Dead

        patch.setattr(kind, name, die)
        with pytest.raises(Dead):
            run()


def driver_dies(target, monkeypatch, on_its_way, *tasks):
    """All rows of batch 0 are stored, and its driver dies with its mark on the way."""
    with monkeypatch.context() as patch:
        patch.setattr(sink, "Mark", DriversMark)
        dies_before(monkeypatch, on_its_way, DriversMark, "write", partial(target.run, 0, *tasks))


def arriving(monkeypatch, on_its_way, module, name, *, after=False):
    """It arrives when this function is called for the first time."""
    function = getattr(module, name)

    def call(*about, **how):
        found = function(*about, **how) if after else None
        if on_its_way:
            on_its_way.pop()()
        return found if after else function(*about, **how)

    monkeypatch.setattr(module, name, call)


@pytest.mark.parametrize("first", [0, 60])
@pytest.mark.parametrize("cut", [0, 60])
def test_a_mark_that_arrives_while_the_batch_is_begun_again_is_seen(
    target, monkeypatch, on_its_way, cut, first
):
    tasks = rows(0, first), rows(first, 100)
    driver_dies(target, monkeypatch, on_its_way, *tasks)
    arriving(monkeypatch, on_its_way, task_mark, "ends_of")
    assert target.run(0, rows(0, cut), rows(cut, 100), **AGAIN) == 100
    assert everything(target) == [*range(100)]
    target.run(1, rows(100, 110), **AGAIN)
    assert everything(target) == [*range(110)]


def written_over(target, monkeypatch, on_its_way, *tasks):
    """The first task is about to write its mark over that of a dead driver, which comes just before
    it does; the second one finds that in between: it stores nothing, and tells of no rows."""
    writer, written, write = target.writer(), [], Mark.write

    def write_late(mark, *about, **how):
        if on_its_way:
            on_its_way.pop()()
            written.append(target.written(writer, 0, 1, tasks[1], **AGAIN))
        write(mark, *about, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Mark, "write", write_late)
        written.append(target.written(writer, 0, 0, tasks[0], **AGAIN))
    assert [each.done is not None for each in written] == [True, False]
    writer.commit(written, 0)


@pytest.mark.parametrize("first", [60, 100])
def test_a_mark_that_a_task_writes_over_leaves_a_batch_that_is_there(
    target, monkeypatch, on_its_way, first
):
    tasks = rows(0, first), rows(first, 100)
    driver_dies(target, monkeypatch, on_its_way, *tasks)
    written_over(target, monkeypatch, on_its_way, *tasks)
    target.run(1, rows(100, 110), **AGAIN)
    assert everything(target) == [*range(110)]


def test_a_batch_that_is_given_again_with_more_rows_is_refused_over_such_a_mark_too(
    target, monkeypatch, on_its_way
):
    tasks = rows(0, 60), rows(60, 100)
    driver_dies(target, monkeypatch, on_its_way, *tasks)
    with pytest.raises(SinkClash, match=r"100 rows .* again with 101 rows"):
        written_over(target, monkeypatch, on_its_way, tasks[0], rows(60, 101))


def between_two_tasks(target, batch, first, second, on_its_way):
    """A batch of two tasks; what is on its way comes when the first one has stored its rows."""
    writer, next_run = target.writer(), {"run": "next", "job": f"job {batch}"}
    written = [target.written(writer, batch, 0, first, **next_run)]
    on_its_way.pop()()
    written.append(target.written(writer, batch, 1, second, **next_run))
    writer.commit(written, batch)


@pytest.mark.parametrize("batch", [0, 1])
def test_words_of_a_dead_task_make_no_earlier_rows_of_those_that_this_run_stored(
    target, monkeypatch, on_its_way, batch
):
    if batch:
        target.run(0, rows(0, 10), run="before")
    dies = partial(target.written, target.writer(), batch, 0, rows(10, 20), run="dead")
    dies_before(monkeypatch, on_its_way, Mark, "write", dies)
    between_two_tasks(target, batch, rows(10, 20), rows(20, 30), on_its_way)
    assert everything(target) == [*range(0 if batch else 10, 30)]


def test_a_mark_of_the_batch_before_makes_no_earlier_rows_of_those_that_this_run_stored(
    target, monkeypatch, on_its_way
):
    driver_dies(target, monkeypatch, on_its_way, rows(0, 10))
    target.run(0, rows(0, 10), run="next", job="job 0")
    between_two_tasks(target, 1, rows(10, 20), rows(20, 30), on_its_way)
    assert everything(target) == [*range(30)]


def test_of_equal_rows_of_two_tasks_none_is_lost_over_words_of_a_dead_task(
    target, monkeypatch, on_its_way
):
    """Which of them the second one has seen cannot be told: the batch is run again."""
    one = pa.record_batch({"value": [b"7"], "partition": [0]})
    dies = partial(target.written, target.writer(), 0, 0, one, run="dead")
    dies_before(monkeypatch, on_its_way, Mark, "write", dies)
    with pytest.raises(LayoutChanged, match="that tasks have seen are not there"):
        between_two_tasks(target, 0, one, one, on_its_way)
    target.run(0, one, one, run="later")
    target.run(1, rows(10, 20), run="later")
    assert everything(target) == [7, 7, *range(10, 20)]


def some(count):
    """So many equal rows for each of two partitions."""
    numbers = [0] * count + [1] * count
    return pa.record_batch({"value": [b"%d" % (n + 1) for n in numbers], "partition": numbers})


def test_rows_that_a_dead_driver_completed_a_batch_with_leave_no_others_unsent(
    target, monkeypatch, on_its_way
):
    begun(target, 0, 0, some(1), run="dead")
    dies_before(monkeypatch, on_its_way, TaskWriter, "_send_all", partial(target.run, 0, some(3)))
    arriving(monkeypatch, on_its_way, Completion, "_check_others", after=True)
    target.run(0, some(3), **AGAIN)
    assert target.stored() == {0: [1, 1, 1], 1: [2, 2, 2], 2: []}
