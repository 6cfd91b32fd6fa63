"""A batch of a Spark query that is run again has the same rows, whatever happened to the topics
meanwhile; and topics that are gone are data loss, or left out.

Goal: a sink may count on it that a batch stays what it was. Method: a cluster in this process;
readers are driven as Spark drives them: it keeps where a batch ends before it plans it, asks a new
run for its initial offset again if the first batch never committed, and plans from what it kept.
"""

import json
from contextlib import closing

import pytest
from hypothesis import given
from msgspec.structs import replace

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from secure_run import blocking_cluster, direct, spark_options
from spark_support import Served, numbered, warnings_in
from test_spark_pure import positions

from hightide.protocol import messages as m
from hightide.spark.client import BlockingClient, client_for
from hightide.spark.offsets import DataLoss, Position
from hightide.spark.options import read_options
from hightide.spark.pipeline import lag
from hightide.spark.planner import Planner
from hightide.spark.source import HightideStreamReader

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def served():
    with blocking_cluster(1) as made, closing(client_for(*direct(made.bootstrap))):
        yield Served(made.bootstrap)


class Query:
    """A query with Spark's memory of it: ends of batches are kept, initial offsets are not."""

    def __init__(self, served, *topics, **options):
        named = {"subscribe": ",".join(topics)} if topics else {}
        self._given = {**spark_options(served.address), "startingOffsets": "earliest", **named}
        self.ends = []
        self.restart(**options)

    def restart(self, **options):
        """Another run, which is told these options, too."""
        self._given |= options
        self._options = read_options(self._given, streaming=True)
        self._reader = HightideStreamReader(self._options)

    def plan(self, limit=None):
        """Another batch, whose end is kept; its rows."""
        start = self.ends[-1] if self.ends else self._reader.initialOffset()
        self.ends.append(self._reader.latestOffset(start, limit or ReadAllAvailable()))
        return self.run_again()

    def end_here(self):
        """It reads what is there now, as a query with `availableNow` does."""
        self._reader.prepareForTriggerAvailableNow()

    def lag(self):
        """How far the last batch is behind, as Spark would tell."""
        kept = (self._reader.reportLatestOffset(), self.ends[-1])
        return lag(*(at and json.dumps(at) for at in kept))

    def run_again(self):
        """The last batch, from what was kept."""
        start = self.ends[-2] if len(self.ends) > 1 else self._reader.initialOffset()
        return sorted(
            value
            for task in self._reader.partitions(start, self.ends[-1])
            for rows in self._reader.read(task)
            for value in rows["value"].to_pylist()
        )


@pytest.mark.parametrize("limit", [None, ReadMaxRows(20)], ids=["all", "limited"])
def test_the_first_batch_begins_where_it_began_or_says_what_is_gone(served, limit):
    topic = served.topic(2)
    for number in (0, 1):
        served.fill(topic, numbered(100 * number, 100 * number + 30), number)
    query = Query(served, topic)
    rows = query.plan(limit)
    query.restart()
    assert query.run_again() == rows
    served.delete_records(topic, 5)
    query.restart()
    with pytest.raises(DataLoss, match=r"5 offsets from 0 on"):
        query.run_again()


def test_a_partition_that_is_new_begins_where_it_began(served):
    topic = served.topic(1)
    served.fill(topic, numbered(0, 3))
    query = Query(served, topic)
    assert query.plan() == numbered(0, 3)
    served.grow(topic, 2)
    served.fill(topic, numbered(10, 20), 1)
    assert query.plan() == numbered(10, 20)
    served.delete_records(topic, 4, 1)
    query.restart()
    with pytest.raises(DataLoss, match=r"4 offsets from 0 on"):
        query.run_again()
    served.fill(topic, numbered(20, 22), 1)
    assert query.plan() == numbered(20, 22)


def test_a_broker_that_knows_of_fewer_partitions_makes_the_query_forget_none(served, monkeypatch):
    topic = served.topic(2)
    served.fill(topic, numbered(0, 3))
    served.fill(topic, numbered(10, 13), 1)
    query = Query(served, topic)
    assert query.plan() == numbered(0, 3) + numbered(10, 13)
    served.fill(topic, numbered(3, 5))
    known = Planner.partitions
    monkeypatch.setattr(Planner, "partitions", lambda planner: known(planner)[:1])
    assert query.plan() == numbered(3, 5)
    monkeypatch.undo()
    served.fill(topic, numbered(13, 15), 1)
    assert query.plan() == numbered(13, 15)


def test_a_broker_that_does_not_know_a_topic_makes_the_query_forget_none(served, monkeypatch):
    kept, other = served.topic(1), served.topic(1)
    served.fill(other, numbered(0, 3))
    query = Query(served, kept, other)
    assert query.plan() == numbered(0, 3)
    served.fill(kept, numbered(3, 5))
    heads = Planner.heads
    monkeypatch.setattr(Planner, "heads", lambda planner: heads(planner).without([other]))
    assert query.plan() == numbered(3, 5)
    monkeypatch.undo()
    served.fill(other, numbered(13, 15))
    assert query.plan() == numbered(13, 15)


def test_a_broker_that_lists_a_topic_no_more_makes_a_pattern_forget_none(served, monkeypatch):
    kept, other = (served.topic(1, name=f"listed-{number}") for number in (1, 2))
    served.fill(other, numbered(0, 3))
    query = Query(served, subscribePattern="listed-.*")
    assert query.plan() == numbered(0, 3)
    served.fill(kept, numbered(3, 5))
    served.fill(other, numbered(13, 15))
    ask = BlockingClient._any

    def of_old(client, request, *rest):
        answer = ask(client, request, *rest)
        if isinstance(request, m.MetadataRequest) and request.topics is None:
            topics = [topic for topic in answer.topics if topic.topic != other]
            answer = replace(answer, topics=topics, metadata_offset=-1)
        return answer

    monkeypatch.setattr(BlockingClient, "_any", of_old)
    assert query.plan() == numbered(3, 5) + numbered(13, 15)
    monkeypatch.undo()
    served.delete_topic(other)
    with pytest.raises(DataLoss, match=f"{other}: the topic is gone"):
        query.plan()


def test_a_partition_that_is_not_assigned_any_more_is_left_out(served, caplog):
    topic = served.topic(2)
    both, one = (json.dumps({topic: numbers}) for numbers in ([0, 1], [0]))
    query = Query(served, assign=both)
    query.plan()
    served.fill(topic, numbered(0, 3))
    query.restart(assign=one, failOnDataLoss="false")
    assert query.plan() == numbered(0, 3)
    assert [*query.ends[-1]["topics"][topic]["partitions"]] == ["0"]
    assert any("no longer assigned" in text for text in warnings_in(caplog))


def test_what_a_new_partition_has_lost_before_it_was_read_is_data_loss(served, caplog):
    topic = served.topic(1)
    query, lenient = (Query(served, topic, failOnDataLoss=fails) for fails in ("true", "false"))
    query.plan()
    lenient.plan()
    served.grow(topic, 2)
    served.fill(topic, numbered(0, 5), 1)
    served.delete_records(topic, 3, 1)
    told = f"{topic}-1: it is new to the query, but the log begins at offset 3: 3 offsets were"
    with pytest.raises(DataLoss, match=told):
        query.plan()
    assert lenient.plan() == numbered(3, 5)
    assert told in caplog.text
    assert Query(served, topic).plan() == numbered(3, 5), "nothing was promised to a new query"


def test_a_position_without_starts_is_read_as_before(served):
    topic = served.topic(1)
    served.fill(topic, numbered(0, 3))
    query = Query(served, topic)
    query.plan()
    del query.ends[0]["topics"][topic]["starts"]
    query.restart()
    assert query.run_again() == numbered(0, 3)


def test_how_far_behind_a_batch_is_that_is_run_again_is_known(served):
    topic = served.topic(1)
    served.fill(topic, numbered(0, 3))
    query = Query(served, topic)
    query.plan()
    served.fill(topic, numbered(3, 10))
    query.restart()
    assert query.lag() == {}, "nobody has looked yet"
    query.run_again()
    assert query.lag() == {topic: 7}


@given(positions)
def test_starts_survive_the_way_through_json(position):
    starts = {tp: number for number, tp in enumerate(position.places)}
    whole = position._replace(starts=starts)
    assert Position.from_json(whole.to_json()) == whole


def test_a_topic_that_was_named_and_is_gone_is_data_loss(served):
    kept, gone = served.topic(1), served.topic(1)
    query = Query(served, kept, gone)
    query.plan()
    served.delete_topic(gone)
    with pytest.raises(DataLoss, match=rf"{gone}: the topic is gone"):
        query.plan()


def test_a_topic_that_goes_between_two_batches_of_what_is_there_is_left_out(served):
    kept, gone = served.topic(1), served.topic(1)
    query = Query(served, kept, gone, failOnDataLoss="false")
    served.fill(kept, numbered(0, 4))
    served.fill(gone, numbered(10, 14))
    query.end_here()
    assert query.plan(ReadMaxRows(4)) == numbered(0, 2) + numbered(10, 12)
    served.delete_topic(gone)
    assert query.plan() == numbered(2, 4)


def test_without_fail_on_data_loss_a_topic_that_was_named_is_left_out(served, caplog):
    kept, gone = served.topic(1), served.topic(1)
    query = Query(served, kept, gone, failOnDataLoss="false")
    served.fill(gone, numbered(0, 2))
    assert query.plan() == numbered(0, 2)
    served.delete_topic(gone)
    served.fill(kept, numbered(5, 8))
    assert query.plan() == numbered(5, 8)
    assert gone not in query.ends[-1]["topics"]
    for _ in range(3):
        query.plan()
    told = [text for text in warnings_in(caplog) if gone in text]
    assert len(told) == 1, "once, not with each look"
    query.restart()
    served.topic(1, name=gone)
    served.fill(gone, numbered(30, 32))
    assert query.plan() == numbered(30, 32), "made again, it is a new one"
