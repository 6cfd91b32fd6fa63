"""What a Spark query says of records that it has read, or that were planned, and that are gone.

Goal: a log that was cut is never passed over in silence, and nothing that is committed is taken
for lost. Method: a cluster of three in this process, where unclean elections lose records; readers
are driven batch by batch as Spark drives them, and one query is Spark's own. What a leader says
while it does not know all yet is played by the test on a plain socket.
"""

# ruff: noqa: F811 - fixtures are imported by name

from contextlib import closing
from dataclasses import replace

import msgspec
import pytest
from patience import PATIENCE_S
from secure_run import direct, reaching, spark_options

pytest.importorskip("pyspark")

from logkit import make_batch
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from spark_support import (  # noqa: F401
    Served,
    Sink,
    Stream,
    cluster,
    failure_of,
    numbered,
    spark,
    until,
    warnings_in,
)
from test_spark_ahead import ASK, NO_TOPICS, Peer, broker_at, knows, led_by

from hightide import ErrorCode
from hightide.blocking import Admin
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.spark import fetch
from hightide.spark.client import BlockingClient
from hightide.spark.offsets import DataLoss
from hightide.spark.options import read_options
from hightide.spark.ranges import OffsetRange
from hightide.spark.source import HightideStreamReader

FRAIL = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
KEPT, LOST, NEW = numbered(0, 10), numbered(10, 20), numbered(100, 130)

# -- a log that was cut ----------------------------------------------------------------------------


class Log(Served):
    """A topic whose one partition is on brokers 1 and 2; both have `KEPT`."""

    def __init__(self, cluster, name):
        super().__init__(cluster.bootstrap)
        self.name, self._cluster = name, cluster
        self._admin = Admin(**reaching(cluster.bootstrap))
        self._admin.open()
        self._admin.create_topic(name, assignment=[[1, 2]], configs=FRAIL)
        self.store(KEPT)

    def store(self, values):
        self.fill(self.name, values)

    def fill_the_first_broker_alone(self):
        self._cluster.kill(2)
        self.store(LOST)

    def lose_it(self):
        """The second broker leads, which never saw `LOST`, and takes `NEW` in its place."""
        self._cluster.kill(1)
        self._cluster.start(2)
        self._await_leader(2)
        self.store(NEW)

    def change_leaders(self):
        """The other replica leads, and nothing is lost."""
        self._cluster.kill(1)
        self._await_leader(2)
        self.store(NEW)

    def _await_leader(self, broker):
        def leads():
            (part,) = self._admin.describe_topic(self.name).partitions
            return part.leader == broker

        until(leads, f"broker {broker} leads")

    def close(self):
        self._admin.close()
        self._cluster.start()


@pytest.fixture
def made_log(cluster, request):
    with closing(Log(cluster, request.node.name.replace("[", "-").replace("]", ""))) as made:
        yield made


class Driven:
    """A streaming query, driven batch by batch."""

    def __init__(self, cluster, topic, **options):
        given = {**spark_options(cluster.bootstrap), "subscribe": topic}
        given |= {"startingOffsets": "earliest"} | options
        self._options = read_options(given, streaming=True)
        self.restart()
        self._at = self._reader.initialOffset()

    def restart(self):
        """Another run from the same checkpoint."""
        self._reader = HightideStreamReader(self._options)

    def batch(self, limit=None):
        start = self._at
        most = ReadAllAvailable() if limit is None else ReadMaxRows(limit)
        self._at = self._reader.latestOffset(start, most)
        return self.plan(start)

    @property
    def at(self):
        """Where the next batch begins."""
        return self._at

    def plan(self, start):
        """The rows from there up to where the last batch ends."""
        return [
            value
            for task in self._reader.partitions(start, self._at)
            for rows in self._reader.read(task)
            for value in rows["value"].to_pylist()
        ]


@pytest.mark.live
@pytest.mark.parametrize("goes_on", [True, False], ids=["in-one-run", "in-another-run"])
def test_a_log_that_was_cut_and_has_grown_again_is_data_loss(cluster, made_log, goes_on):
    query = Driven(cluster, made_log.name)
    assert query.batch() == KEPT
    made_log.fill_the_first_broker_alone()
    assert query.batch() == LOST
    made_log.lose_it()
    if not goes_on:
        query.restart()
    with pytest.raises(DataLoss) as failure:
        query.batch()
    assert str(failure.value) == (
        f"{made_log.name}-0: the query is at offset 20, but the log was cut at offset 10: "
        "10 offsets are gone. To go on without what is lost set failOnDataLoss=false"
    )


@pytest.mark.live
def test_without_fail_on_data_loss_a_log_that_was_cut_is_read_from_there(cluster, made_log, caplog):
    query = Driven(cluster, made_log.name, failOnDataLoss="false")
    assert query.batch() == KEPT
    made_log.fill_the_first_broker_alone()
    assert query.batch() == LOST
    made_log.lose_it()
    assert query.batch() == []
    assert warnings_in(caplog) == [
        f"{made_log.name}-0: the query is at offset 20, but the log was cut at offset 10: "
        "10 offsets are gone; going on without what is lost"
    ]
    assert query.batch() == NEW
    assert query.batch() == []


@pytest.mark.live
def test_a_batch_that_is_run_again_is_not_made_of_what_came_since(cluster, made_log):
    query = Driven(cluster, made_log.name)
    made_log.fill_the_first_broker_alone()
    start = query.at
    assert query.batch() == KEPT + LOST
    made_log.lose_it()
    query.restart()
    with pytest.raises(DataLoss, match="was cut at offset 10"):
        query.plan(start)


@pytest.mark.live
@pytest.mark.parametrize("already", [[], LOST[:5]], ids=["whole", "above-the-cut"])
def test_without_fail_on_data_loss_a_batch_that_is_run_again_hides_nothing_new(
    cluster, made_log, already
):
    """It ends where the log was cut, or is empty; the next one goes back there."""
    query = Driven(cluster, made_log.name, failOnDataLoss="false")
    made_log.fill_the_first_broker_alone()
    if already:
        assert query.batch(limit=15) == KEPT + already
    start = query.at
    assert query.batch() == (LOST[5:] if already else KEPT + LOST)
    made_log.lose_it()
    query.restart()
    assert query.plan(start) == ([] if already else KEPT)
    assert query.batch() == []
    assert query.batch() == NEW


@pytest.mark.live
def test_another_leader_is_no_loss(cluster, made_log):
    query = Driven(cluster, made_log.name)
    assert query.batch() == KEPT
    made_log.change_leaders()
    assert query.batch() == NEW


@pytest.mark.live
def test_a_log_that_is_cut_while_it_is_read_is_data_loss(cluster, made_log, monkeypatch):
    monkeypatch.setattr(fetch, "FETCH_BYTES", 1)
    monkeypatch.setattr(fetch, "ROWS_PER_BATCH", 1)
    made_log.fill_the_first_broker_alone()
    for value in LOST:
        made_log.store([value])  # in a batch of its own
    batches = fetch.read_range(
        cluster.bootstrap,
        OffsetRange(made_log.name, made_log.topic_id(made_log.name), 0, 0, 30),
        way=direct(cluster.bootstrap)[1],
        include_headers=False,
        fail_on_data_loss=True,
        timeout_s=PATIENCE_S,
    )
    seen = 0
    while seen < 15:
        seen = next(batches)["offset"][-1].as_py() + 1
    made_log.lose_it()
    with pytest.raises(DataLoss, match="the log was cut at offset 10, it was read up to "):
        list(batches)


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.slow
def test_a_query_of_spark_goes_back_to_where_the_log_was_cut(spark, made_log, tmp_path):
    with closing(Stream(spark, made_log, tmp_path)) as stream:
        made_log.fill_the_first_broker_alone()
        assert stream.run(subscribe=made_log.name).values == KEPT + LOST
        made_log.lose_it()
        text = failure_of(stream.start(Sink(), subscribe=made_log.name))
        assert "the log was cut at offset 10: 10 offsets are gone" in text
        assert stream.run(subscribe=made_log.name, failOnDataLoss="false").values == NEW
        made_log.store(KEPT)
        assert stream.run(subscribe=made_log.name).values == KEPT


# -- a leader that does not know all yet ---------------------------------------------------------


EPOCH = 5
DATA = bytes(make_batch(3, epoch=EPOCH))
RANGE = OffsetRange("t", "", 0, 0, 3, EPOCH)


class Leader(Peer):
    """A leader, played: it says one thing after the other."""

    def __init__(self):
        super().__init__()
        self.client = BlockingClient("b:1")
        knows(self.client, [broker_at(1, *self.address)], led_by(1, [1]))
        self._number = self.client.ask(self.address, ASK).id
        self.accept()
        self.take()

    def answer(self, answer, data=None):
        self._number += 1
        self.say(self._number, answer, data=data)

    def fetched(self, data=None, **result):
        records = -1 if data is None else 0
        result = m.FetchResult(topic="t", partition=0, records=records, **result)
        self.answer(m.FetchResponse(partitions=[result]), data)

    def offset(self, offset=-1, leader_epoch=-1, error=None):
        result = m.ListOffsetsResult(
            topic="t", partition=0, offset=offset, leader_epoch=leader_epoch, error=error
        )
        self.answer(m.ListOffsetsResponse(partitions=[result]))

    def looked_up(self):
        brokers, topics = [*self.client.metadata.brokers.values()], [led_by(1, [1])]
        self.answer(msgspec.structs.replace(NO_TOPICS, brokers=brokers, topics=topics))

    def read(self, wanted=RANGE, *, fail_on_data_loss=True):
        """The base offsets of the batches that are read."""
        fetches = fetch._Fetches(self.client, wanted, PATIENCE_S)
        return [part.header.base_offset for part in fetch._parts(fetches, fail_on_data_loss)]

    def close(self):
        self.client.close()
        super().close()


@pytest.fixture
def leader(monkeypatch):
    monkeypatch.setattr("hightide.net.retries.BACKOFF_S", 0)
    with closing(Leader()) as made:
        yield made


@pytest.mark.parametrize(
    "first_answer",
    [
        {"error": ErrorCode.OFFSET_NOT_AVAILABLE},
        {"offset": 1, "leader_epoch": EPOCH - 1},
    ],
    ids=["new-leader", "old-leader"],
)
@pytest.mark.parametrize(
    "fetched",
    [{"high_watermark": 1}, {"error": ErrorCode.OFFSET_OUT_OF_RANGE}],
    ids=["watermark", "range"],
)
def test_what_a_leader_does_not_know_yet_is_not_lost(leader, fetched, first_answer):
    """A new leader has to hear from its followers first, one of old does not know that it is."""
    leader.fetched(**fetched)
    if "error" in fetched:  # that might have been a follower's, so the leader is asked
        leader.fetched(**fetched)
        leader.looked_up()
    leader.offset(**first_answer)
    leader.looked_up()
    leader.offset(3, EPOCH)
    leader.offset(0, EPOCH)
    leader.fetched(DATA, high_watermark=3)
    assert leader.read() == [0]


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_each_fetch_says_in_which_epoch_the_record_before_was_written(leader, fail_on_data_loss):
    wanted = replace(RANGE, end=6)
    leader.fetched(DATA, high_watermark=6)
    leader.fetched(high_watermark=6, diverging_epoch=m.EpochEnd(epoch=4, end_offset=2))
    leader.offset(6, EPOCH + 1)
    leader.offset(0, 0)
    leader.fetched(bytes(make_batch(3, base_offset=3, epoch=EPOCH + 1)), high_watermark=6)
    if fail_on_data_loss:
        with pytest.raises(DataLoss, match="cut at offset 2, it was read up to 3"):
            leader.read(wanted)
    else:
        assert leader.read(wanted, fail_on_data_loss=False) == [0, 3]
    requests = [wire.decode_body(leader.take_request().body, m.FetchRequest) for _ in range(2)]
    assert [each.partitions[0].last_fetched_epoch for each in requests] == [-1, EPOCH]
