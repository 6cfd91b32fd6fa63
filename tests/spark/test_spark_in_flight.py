"""A task whose batches are in flight stores each row once, and in order, whatever becomes of them.

Goal: nobody but the task knows that it does not wait: what is refused, lost on its way, stored
without an answer or left behind by a task that died is there once. Method: `TaskWriter` with small
batches against a cluster of three in this process, through a client whose requests and answers get
lost by a seed.
"""

# ruff: noqa: F811 - fixtures are imported by name

import random

import pyarrow as pa
import pytest
from patience import PATIENCE_S
from secure_run import direct
from tries import few

pytest.importorskip("pyspark")

from test_spark_sink import (  # noqa: F401
    admin,
    cluster,
    everything,
    rows,
    target,
)

from hightide.protocol import messages as m
from hightide.protocol.columns import Record
from hightide.protocol.errors import ApiError, BrokerUnreachable, RequestTimedOut
from hightide.protocol.topic_partition import TopicPartition
from hightide.spark import client as spark_client
from hightide.spark import in_flight, produce
from hightide.spark.attempts import Superseded
from hightide.spark.client import BlockingClient
from hightide.spark.in_flight import BATCHES_MAX, InFlight
from hightide.spark.produce import TaskWriter

pytestmark = pytest.mark.live
ROWS = 2_000
PIECES = (1, 90, 700)
"""So many rows are written at a time: less than a batch, some, many for each partition."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Some 60 rows in each, so that a piece has several of each partition."""
    monkeypatch.setattr(produce, "BATCH_BYTES", 1_800)


class Watched(BlockingClient):
    """Counts batches that nobody has asked for."""

    def __init__(self, *place):
        super().__init__(*place)
        self.waiting, self.most = {}, 0

    def ask(self, address, request, **how):
        asked = super().ask(address, request, **how)
        if isinstance(request, m.ProduceRequest):
            tp = request.partitions[0].topic, request.partitions[0].partition
            assert tp not in self.waiting.values(), "two batches of a partition in flight"
            self.waiting[id(asked)] = tp
            self.most = max(self.most, len(self.waiting))
        return asked

    def answer(self, asked, **how):
        self.waiting.pop(id(asked), None)
        return super().answer(asked, **how)


class Lossy(BlockingClient):
    """Requests that never leave, and answers that never come: what they tell of was done."""

    def __init__(self, place, seed):
        super().__init__(*place)
        self.chance = random.Random(seed)
        self.share = self.chance.choice([0.02, 0.05, 0.15])

    def ask(self, address, request, **how):
        self._lose("a request", request)
        return super().ask(address, request, **how)

    def answer(self, asked, **how):
        found = super().answer(asked, **how)
        self._lose("an answer", found[0])
        return found

    def _lose(self, what, about):
        is_hit = self.chance.random() < self.share
        if is_hit and isinstance(about, m.ProduceRequest | m.ProduceResponse):
            self.close()  # all that is in flight is lost with it
            raise BrokerUnreachable(f"{what} was lost")


class Frozen(BlockingClient):
    """No answer comes to what is produced, and a clock that goes by what is waited for that."""

    def __init__(self, *place):
        super().__init__(*place)
        self.now = 0.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def answer(self, asked, *, timeout_s):
        if asked.kind is not m.ProduceResponse:
            return super().answer(asked, timeout_s=timeout_s)
        self.now += timeout_s
        raise RequestTimedOut("it says nothing", elapsed_s=timeout_s)


def untimed(*places):
    """Rows that name no time: (partition, number)."""
    return pa.record_batch(
        {
            "value": [b"%d" % number for _, number in places],
            "partition": [partition for partition, _ in places],
            "timestamp": pa.array([None] * len(places), pa.timestamp("ms")),
        }
    )


def write(task, *, size, of=range(ROWS)):
    for start in range(of.start, of.stop, size):
        task.write(rows(start, min(start + size, of.stop)))


def assert_in_order(target):
    for values in target.stored().values():
        for is_keyed in (False, True):
            own = [n for n in values if bool(n % 3) == is_keyed]
            assert own == sorted(own)


def test_a_batch_of_each_partition_is_in_flight_and_never_two(target):
    client = Watched(*direct(target.cluster.bootstrap))
    task = target.task(kind=TaskWriter, client=client)
    write(task, size=700)
    assert len(client.waiting) == 3, "the last ones are waited for when the task ends"
    task.finish()
    assert (client.waiting, client.most) == ({}, 3)
    assert everything(target) == [*range(ROWS)]
    assert_in_order(target)


@pytest.mark.parametrize("may_duplicate", [False, True])
def test_rows_that_were_held_are_found_stored_when_the_others_are_heard(target, may_duplicate):
    """Of two attempts at a time the other one stores all of them; a row without a time waits for
    the last one."""
    job = {"kind": TaskWriter, "topics": {}, "writing": None, "may_duplicate": may_duplicate}
    slow, fast = target.task(**job), target.task(**job)
    slow.write(untimed((0, 0)).slice(0, 0))
    fast.write(untimed((0, 1), (1, 2), (0, 3), (1, 4)))
    fast.finish()
    for piece in (((0, 1), (1, 2)), ((0, 3),), ((1, 4),)):
        slow.write(untimed(*piece))
    slow.finish()
    assert slow.stored_before == 4
    assert everything(target) == [1, 2, 3, 4]


def test_a_broker_that_says_nothing_is_waited_for_once(target, monkeypatch):
    frozen = Frozen(*direct(target.cluster.bootstrap))
    for module in (produce, in_flight, spark_client):
        monkeypatch.setattr(module, "time", frozen)
    task = target.task(kind=TaskWriter, client=frozen, timeout_s=60.0)
    task.write(rows(0, 3))
    with pytest.raises(RequestTimedOut, match="says nothing"):
        task.finish()
    assert 60.0 <= frozen.now < 61.0


def test_many_partitions_share_the_room_there_is(target):
    target.admin.create_partitions(target.name, 12)
    client = Watched(*direct(target.cluster.bootstrap))
    task = target.task(kind=TaskWriter, client=client)
    write(task, size=700)
    task.finish()
    assert (task.stored_before, client.most) == (0, BATCHES_MAX)
    assert everything(target) == [*range(ROWS)]


@pytest.mark.parametrize("size", PIECES)
def test_a_task_that_finishes_has_stored_all_of_it(target, size):
    task = target.task(kind=TaskWriter)
    write(task, size=size, of=range(300))
    task.finish()
    assert sum(task.stored.values()) == task.rows == 300
    assert (task.stored_before, everything(target)) == (0, [*range(300)])
    assert_in_order(target)


def test_what_the_driver_stores_is_stored_when_it_goes_on(target):
    client = Watched(*direct(target.cluster.bootstrap))
    task = target.task(kind=TaskWriter, client=client, topics={}, writing=None)
    stored = Record(target.name, 1, 0, 5, None, b"7")
    task.store(TopicPartition(target.name, 1), [stored] * 200)
    assert (client.waiting, client.most) == ({}, 1)
    assert target.stored()[1] == [7] * 200


@pytest.mark.parametrize("size", PIECES[1:])
@pytest.mark.parametrize("seed", few(range(12), 3))
def test_what_is_lost_on_its_way_is_sent_again_and_stored_once(target, seed, size):
    client = Lossy(direct(target.cluster.bootstrap), seed)
    task = target.task(kind=TaskWriter, client=client)
    write(task, size=size)
    task.finish()
    assert everything(target) == [*range(ROWS)]
    assert sum(task.stored.values()) == ROWS
    assert_in_order(target)


@pytest.mark.parametrize("seed", few(range(8), 2))
def test_rows_that_name_no_time_keep_their_order_whatever_is_lost(target, seed):
    """Every other one is the same as many: which are stored is known to who has sent them."""
    client = Lossy(direct(target.cluster.bootstrap), seed)
    task = target.task(kind=TaskWriter, client=client)
    given = [(n % 3, n if n % 2 else n * n % 7) for n in range(ROWS)]
    for start in range(0, ROWS, 90):
        task.write(untimed(*given[start : start + 90]))
    task.finish()
    expected = {place: [n for at, n in given if at == place] for place in range(3)}
    assert target.stored() == expected


@pytest.mark.parametrize("cut", [60, 700, 1_999])
def test_a_task_that_dies_with_batches_in_flight_leaves_what_is_gone_on_with(target, cut):
    write(target.task(kind=TaskWriter), size=90, of=range(cut))
    again = target.task(kind=TaskWriter)
    write(again, size=700)
    again.finish()
    assert again.stored_before <= cut
    assert everything(target) == [*range(ROWS)]


def test_a_leader_that_dies_takes_nothing_along_that_was_in_flight(target):
    task = target.task(kind=TaskWriter)
    write(task, size=90, of=range(800))
    leader = target.admin.describe_topic(target.name).partitions[0].leader
    target.cluster.kill(leader)
    try:
        write(task, size=90, of=range(800, ROWS))
        task.finish()
    finally:
        target.cluster.start(leader)
    assert everything(target) == [*range(ROWS)]
    assert_in_order(target)


def test_a_topic_that_takes_small_batches_only_gets_each_row_once(target):
    target.allow_batches_of(600)
    task = target.task(kind=TaskWriter)
    write(task, size=700)
    task.finish()
    assert (task.stored_before, everything(target)) == (0, [*range(ROWS)])
    assert_in_order(target)


def test_a_row_that_no_batch_may_hold_ends_the_task(target):
    target.allow_batches_of(600)
    task = target.task(kind=TaskWriter)
    task.write(pa.record_batch({"value": [b"1", b"2" * 1_000], "partition": [0, 0]}))
    with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
        task.finish()


def test_a_task_that_comes_too_late_hears_it_at_its_end(target):
    late = target.task(batch=4, kind=TaskWriter)
    late.write(rows(0, 10))
    late.settle()
    target.task(batch=5).write(rows(10, 20))
    late.write(rows(20, 30))
    with pytest.raises(Superseded, match="batch 4 of sink"):
        late.finish()
    assert everything(target) == [*range(20)]


class Leaders(BlockingClient):
    """A leader for each partition; they say what they are told to, of one batch after another."""

    def __init__(self, *said):
        super().__init__("127.0.0.1:1")
        self.said, self.heard = [*said], []
        parts = [
            m.PartitionMetadata(partition=n, leader=n, leader_epoch=0, replicas=[n], isr=[n])
            for n in range(8)
        ]
        brokers = [m.BrokerInfo(id=n, host="127.0.0.1", port=n + 1) for n in range(8)]
        topic = m.TopicMetadata(topic="t", topic_id="id", partitions=parts)
        told = {"cluster_id": "", "controller": 1, "brokers": brokers, "topics": [topic]}
        self.metadata.learn(m.MetadataResponse(**told), is_complete=True, now=0.0)

    def ask(self, address, request, *, is_kept, **_):
        assert is_kept, "answers of one broker come in any order"
        return request.partitions[0].partition

    def answer(self, asked, **_):
        self.heard.append(asked)
        told = self.said.pop(0)
        if isinstance(told, Exception):
            raise told
        result = m.ProduceResult(topic="t", partition=asked, base_offset=0, **told)
        return m.ProduceResponse(partitions=[result]), []


class Packed:
    encoded = b"batch"

    def __len__(self):
        return 7


REFUSED = {"error": "NOT_LEADER_OR_FOLLOWER", "message": "another one leads"}


@pytest.mark.parametrize("failure", [REFUSED, {"is_repeated": True}, BrokerUnreachable("gone")])
def test_each_batch_is_heard_in_its_turn_and_makes_room(failure):
    client = Leaders({}, failure, {}, failure)
    flight = InFlight(client, timeout_s=PATIENCE_S)
    for partition in range(BATCHES_MAX):
        assert flight.has_room(("t", partition))
        flight.send(("t", partition), Packed(), "id")
        assert not flight.has_room(("t", partition))
    assert not flight.has_room(("t", BATCHES_MAX))
    assert flight.rows_of(("t", 1)) == 7
    for partition, is_stored in enumerate([True, False, True, False]):
        assert len(flight) == BATCHES_MAX - partition
        (_, heard), _, told = flight.hear()
        assert (heard, told, client.heard[-1]) == (partition, is_stored, partition)
        assert flight.has_room(("t", BATCHES_MAX))
        assert flight.has_room(("t", partition))


def test_a_batch_that_nobody_leads_is_as_one_that_was_refused():
    flight = InFlight(BlockingClient("127.0.0.1:1"), timeout_s=PATIENCE_S)
    flight.send(("t", 0), Packed(), "id")
    assert flight.hear()[2] is False
