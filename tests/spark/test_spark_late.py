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

from hightide.spark import produce, sink
from hightide.spark.completion import Completion
from hightide.spark.marks import Mark
from hightide.spark.produce import TaskWriter

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
    with monkeypatch.context() as patch:
        patch.setattr(sink, "Mark", DriversMark)
        dies_before(monkeypatch, on_its_way, DriversMark, "write", partial(target.run, 0, *tasks))
    arriving(monkeypatch, on_its_way, produce, "ends_of")
    assert target.run(0, rows(0, cut), rows(cut, 100), **AGAIN) == 100
    assert everything(target) == [*range(100)]
    target.run(1, rows(100, 110), **AGAIN)
    assert everything(target) == [*range(110)]


@pytest.mark.parametrize("first", [60, 100])
def test_a_mark_that_a_task_writes_over_leaves_a_batch_that_is_there(
    target, monkeypatch, on_its_way, first
):
    """It comes just before that, and another task finds it in between: this one stores nothing,
    and tells of no rows that are stored."""
    tasks = rows(0, first), rows(first, 100)
    with monkeypatch.context() as patch:
        patch.setattr(sink, "Mark", DriversMark)
        dies_before(monkeypatch, on_its_way, DriversMark, "write", partial(target.run, 0, *tasks))
    writer, written, write = target.writer(), [], Mark.write

    def written_over(mark, *about, **how):
        if on_its_way:
            on_its_way.pop()()
            written.append(target.written(writer, 0, 1, tasks[1], **AGAIN))
        write(mark, *about, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Mark, "write", written_over)
        written.append(target.written(writer, 0, 0, tasks[0], **AGAIN))
    assert [each.found_done for each in written] == [True, False]
    writer.commit(written, 0)
    target.run(1, rows(100, 110), **AGAIN)
    assert everything(target) == [*range(110)]


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
