"""An executor's part of a query without Spark: one range of one partition, or what became of it.

A broker process serves, this process reads with the blocking client, as a Spark worker does: the
client and what it knows of the cluster stay between two ranges.
"""

# ruff: noqa: F811 - fixtures are imported by name

import socket

import pytest
from patience import PATIENCE_S
from secure_run import direct

pytest.importorskip("pyspark")

from logkit import make_batch
from spark_support import numbered, own_broker, warnings_in  # noqa: F401

from hightide.protocol.errors import BrokerUnreachable, RemoteProtocolError, RequestTimedOut
from hightide.protocol.messages import LATEST, BrokerInfo
from hightide.spark import fetch
from hightide.spark.client import BlockingClient, client_for
from hightide.spark.connection import REQUEST_TIMEOUT_S
from hightide.spark.fetch import read_range
from hightide.spark.offsets import DataLoss
from hightide.spark.ranges import OffsetRange

pytestmark = pytest.mark.slow


@pytest.fixture
def reading(own_broker, monkeypatch):
    """A broker that this process reads from; its connections are closed at the end. What is gone is
    soon believed to stay so."""
    monkeypatch.setattr("hightide.spark.client.GONE_TOPIC_GRACE_S", 0.5)
    yield own_broker
    client_for(*direct(own_broker.address)).close()


# -- the client, with nobody there ---------------------------------------------------------------


@pytest.fixture
def nobody():
    """An address that refuses connections: bound, so nobody else gets it, and not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_a_call_is_tried_again_until_its_deadline_and_says_so(nobody):
    client = BlockingClient(nobody)
    with pytest.raises(BrokerUnreachable) as failure:
        client.offset("t", 0, LATEST, timeout_s=0.5)
    assert failure.value.attempts >= 2
    assert nobody in str(failure.value)


def test_a_range_from_a_broker_that_is_gone_is_no_data_loss(nobody):
    wanted = OffsetRange("t", "id", 3, 5, 9)
    assert str(wanted) == "t-3[5, 9)"
    rows = read_range(nobody, wanted, include_headers=False, fail_on_data_loss=False, timeout_s=0.3)
    with pytest.raises(BrokerUnreachable):
        list(rows)


def test_a_silent_broker_takes_no_longer_than_it_may():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        wanted = OffsetRange("t", "id", 0, 0, 9)
        rows = read_range(
            address, wanted, include_headers=False, fail_on_data_loss=True, timeout_s=0.2
        )
        with pytest.raises(RequestTimedOut) as failure:
            list(rows)
        assert failure.value.elapsed_s < REQUEST_TIMEOUT_S
        client_for(address).close()


@pytest.mark.live
def test_a_replica_on_this_host_that_is_gone_is_asked_once(reading, nobody, monkeypatch):
    topic = reading.topic()
    for _ in range(5):
        reading.fill(topic, numbered(0, 10))
    gone = BrokerInfo(id=9, host="127.0.0.1", port=int(nobody.rpartition(":")[2]))
    asked, ask = [], BlockingClient.ask
    monkeypatch.setattr(fetch, "FETCH_BYTES", 1)
    monkeypatch.setattr(BlockingClient, "nearby", lambda *_: gone)

    def counted(client, address, *args, **options):
        asked.append(address[1])
        return ask(client, address, *args, **options)

    monkeypatch.setattr(BlockingClient, "ask", counted)
    wanted = OffsetRange(topic, reading.topic_id(topic), 0, 0, 50)
    assert read_all(reading, wanted) == list(range(50))
    assert asked.count(gone.port) == 1
    assert asked.count(reading.port) > 2


# -- gaps ------------------------------------------------------------------------------------------


class Played:
    """Fetches of a log that has these batches; it answers as a leader does, or as `says` has it."""

    def __init__(self, wanted, *batches, says=None):
        self.wanted = wanted
        self._batches = dict(batches)
        self._says = says

    def ask(self, position, epoch):
        assert position < self.wanted.end

    def take(self, position, epoch):
        base = self._says
        if base is None:
            base = min(base for base in self._batches if base >= position)
        return fetch._Fetched(1_000, memoryview(self._batches[base]))


def one(base):
    return base, make_batch(1, base_offset=base)


def bases(*played, **options):
    return [part.header.base_offset for part in fetch._parts(Played(*played, **options), True)]


def test_a_gap_that_reaches_behind_the_range_ends_it():
    wanted = OffsetRange("t", "id", 0, 0, 5)
    assert bases(wanted, one(0), one(3), one(20)) == [0, 3]
    assert bases(OffsetRange("t", "id", 0, 4, 20), one(0), one(20)) == []


def test_an_answer_that_leads_nowhere_is_no_end_of_the_range():
    with pytest.raises(RemoteProtocolError, match="nothing behind offset 2"):
        bases(OffsetRange("t", "id", 0, 2, 5), one(0), says=0)


# -- what a range lost ---------------------------------------------------------------------------


def read_all(broker, wanted, *, fail_on_data_loss=True):
    """The offsets of a range, read without Spark."""
    batches = read_range(
        broker.address,
        wanted,
        way=direct(broker.address)[1],
        include_headers=False,
        fail_on_data_loss=fail_on_data_loss,
        timeout_s=PATIENCE_S,
    )
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def loss_of(broker, wanted):
    with pytest.raises(DataLoss) as failure:
        read_all(broker, wanted)
    text = str(failure.value)
    assert text.startswith(f"records of {wanted} are gone: ")
    assert text.endswith("To read on without them set failOnDataLoss=false")
    return text


@pytest.mark.live
def test_a_range_is_cut_out_of_the_batches_it_lies_in(reading):
    topic = reading.topic()
    reading.fill(topic, numbered(0, 100), linger_ms=50)
    wanted = OffsetRange(topic, reading.topic_id(topic), 0, 13, 57)
    assert read_all(reading, wanted) == list(range(13, 57))


@pytest.mark.live
def test_a_range_that_the_log_no_longer_reaches_is_data_loss(reading):
    topic = reading.topic()
    reading.fill(topic, numbered(0, 5))
    wanted = OffsetRange(topic, reading.topic_id(topic), 0, 0, 9)
    assert "gone: 4 offsets from 5 on: the log ends at offset 5" in loss_of(reading, wanted)
    assert read_all(reading, wanted, fail_on_data_loss=False) == list(range(5))


@pytest.mark.live
def test_what_is_passed_over_is_counted_and_said(reading, caplog):
    topic = reading.topic()
    reading.fill(topic, numbered(0, 20), linger_ms=0, batch_size=64)
    reading.delete_records(topic, 12)
    wanted = OffsetRange(topic, reading.topic_id(topic), 0, 4, 25)
    assert read_all(reading, wanted, fail_on_data_loss=False) == list(range(12, 20))
    told = warnings_in(caplog)
    starts = [f"records of {wanted} are gone: {n} offsets from " for n in (8, 5)]
    assert all(text.startswith(start) for text, start in zip(told, starts, strict=True)), told


@pytest.mark.live
def test_a_range_of_a_deleted_topic_is_data_loss(reading):
    topic = reading.topic()
    reading.fill(topic, numbered(0, 5))
    wanted = OffsetRange(topic, reading.topic_id(topic), 0, 0, 5)
    reading.delete_topic(topic)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in loss_of(reading, wanted)


@pytest.mark.live
def test_a_range_of_a_topic_made_again_is_data_loss(reading):
    topic = reading.topic()
    reading.fill(topic, numbered(0, 5))
    wanted = OffsetRange(topic, reading.topic_id(topic), 0, 0, 5)
    reading.delete_topic(topic)
    reading.topic(name=topic)
    reading.fill(topic, numbered(0, 5))
    assert "INCONSISTENT_TOPIC_ID" in loss_of(reading, wanted)


@pytest.mark.live
def test_a_partition_that_came_after_the_first_look_is_read(reading):
    topic = reading.topic()
    reading.fill(topic, numbered(0, 3))
    topic_id = reading.topic_id(topic)
    assert read_all(reading, OffsetRange(topic, topic_id, 0, 0, 3)) == [0, 1, 2]
    reading.grow(topic, 2)
    reading.fill(topic, numbered(0, 2), partition=1)
    assert read_all(reading, OffsetRange(topic, topic_id, 1, 0, 2)) == [0, 1]


@pytest.mark.live
def test_a_range_is_read_on_a_connection_that_a_restart_broke(reading):
    topic = reading.topic()
    reading.fill(topic, numbered(0, 3))
    wanted = OffsetRange(topic, reading.topic_id(topic), 0, 0, 3)
    assert read_all(reading, wanted) == [0, 1, 2]
    reading.stop()
    reading.start()
    assert read_all(reading, wanted) == [0, 1, 2]
