"""Brokers have forgotten who wrote the rows of an earlier run, as they do after a day, and number
those of the next run from 0; or the rows are not there any more.

Goal: `TaskWriter._take`: what a run has stored is told by where it lies. Method: as in
`test_spark_layouts.py`; a broker in this process forgets when the test says so.
"""

import threading
from contextlib import closing, contextmanager

import pytest
from patience import PATIENCE_S
from secure_run import blocking_cluster, reaching

pytest.importorskip("pyspark")

from test_spark_layouts import begun
from test_spark_sink import Target, everything, rows
from three_nodes import until

from hightide import LATEST
from hightide.blocking import Admin
from hightide.spark import marks
from hightide.spark.attempts import producers_of
from hightide.spark.earlier import states_of
from hightide.spark.marks import Writing
from hightide.spark.stored import LayoutChanged
from hightide_broker.core.replication.producers import Producers

pytestmark = pytest.mark.live

EVER_MS = 1 << 60


@pytest.fixture
def forget(monkeypatch):
    """Have everybody forgotten who wrote to partition 0 of a target; later ones are not."""
    wanted, expire = threading.Event(), Producers.expire

    def expire_if_wanted(producers, **_):
        expire(producers, before_ms=EVER_MS if wanted.is_set() else 0)

    monkeypatch.setattr(Producers, "expire", expire_if_wanted)
    monkeypatch.setattr(marks, "PRODUCERS_KEPT_S", -1.0)

    def forget(target):
        ids, client = producers_of(f"sink-of-{target.name}", 0), target.client()
        wanted.set()
        until(
            lambda: not states_of(client, (target.name, 0), ids, timeout_s=PATIENCE_S),
            what="it is forgotten",
        )
        wanted.clear()

    return forget


@contextmanager
def one_partition():
    often = {"log.retention.check.interval.ms": "50"}
    with (
        blocking_cluster(1, configs=often) as cluster,
        Admin(**reaching(cluster.bootstrap)) as admin,
        closing(Target(cluster, admin, "orders", partitions=1, replication_factor=1)) as target,
    ):
        yield target


@pytest.mark.parametrize(
    "pieces", [[(10, 40)], [(10, 20), (20, 40)], [(10, 15)], [(10, 20), (20, 21)]], ids=str
)
def test_a_task_that_is_repeated_finds_what_this_run_has_stored(forget, pieces):
    with one_partition() as target:
        begun(target, 0, 0, rows(0, 10), run="dead")
        forget(target)
        task = target.task(writing=Writing("checkpoint", "next", job="next"))
        for piece in pieces:
            task.write(rows(*piece))
        assert target.run(0, rows(0, 100), run="next") == pieces[-1][1]
        assert everything(target) == [*range(100)]


def test_a_run_after_two_that_died_a_day_apart_completes_the_batch(forget):
    with one_partition() as target:
        begun(target, 0, 0, rows(0, 10), run="dead")
        forget(target)
        begun(target, 0, 0, rows(10, 15), run="dead, too")
        task = target.task(writing=Writing("checkpoint", "next", job="next"))
        task.write(rows(0, 40))
        assert target.run(0, rows(0, 100), run="next") == 40
        target.run(1, rows(100, 110), run="next")
        assert everything(target) == [*range(110)]


def test_where_rows_of_a_dead_run_were_deleted_duplicate_goes_on():
    with one_partition() as target:
        begun(target, 0, 0, rows(0, 10), run="dead")
        target.admin.delete_records({("orders", 0): 10})
        with pytest.raises(LayoutChanged, match="10 rows in orders-0"):
            target.run(0, rows(0, 100), run="next")
        target.run(0, rows(0, 100), run="later", onLayoutChange="duplicate")
        target.run(1, rows(100, 110), run="later")
        (end,) = target.admin.offsets([("orders", 0)], LATEST).values()
        assert end.offset == 10 + 100 + 10
