"""The blocking clients, from a plain thread: the same results and errors as their async twins.

Goal: the docstrings of `hightide.blocking`. Method: a real node in a thread of its own, on a
simulated disk; the tests are plain functions. Nothing here waits for ever: what may hang runs in a
thread that the test gives up on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
import trio
from brokers import FakeClock, client_of, new_node, settings
from patience import PATIENCE_MS, PATIENCE_S
from tries import few

from hightide import ApiError, ErrorCode, RecordMetadata, RequestTimedOut
from hightide.blocking import Admin, Consumer, Delivery, Producer, portal
from hightide.protocol import messages as m
from hightide.protocol.errors import ClosedError, HightideError, RecordTooLarge, UsageError
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.simulation.disk import SimDisk

HANGS_S = PATIENCE_S
"""Only what hangs takes so long, however slow the machine is."""


class NodeInThread:
    """A node with a topic `t` of two partitions, and what is stored there."""

    def __init__(self) -> None:
        self._serving = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,), daemon=True)
        self._thread.start()
        assert self._serving.wait(PATIENCE_S)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        config = settings({"group.initial.rebalance.delay.ms": "0"})
        async with new_node(SimDisk(), config) as node, client_of(node) as self._client:
            await self._client.create("t", partitions=2)
            self.address = node.address
            self._serving.set()
            await self._end.wait()

    def values(self, partition: int = 0) -> list[bytes | None]:
        async def read() -> list[bytes | None]:
            return await self._client.values(partition=partition)

        return trio.from_thread.run(read, trio_token=self._token)

    def stop(self) -> None:
        self._token.run_sync_soon(self._end.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@contextmanager
def running_node() -> Iterator[NodeInThread]:
    node = NodeInThread()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def node() -> Iterator[NodeInThread]:
    with running_node() as running:
        yield running


def producer_of(node: NodeInThread, **options) -> Producer:
    return Producer(node.address, clock=FakeClock(), **options)


def consumer_of(node: NodeInThread, **options) -> Consumer:
    wanted = {} if "partitions" in options else {"topics": ["t"]}
    return Consumer(node.address, auto_offset_reset="earliest", **wanted, **options)


def within_patience(function: Callable[[], object]) -> BaseException | None:
    """What a function that may hang ends with; fails if it does not end."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS_S)
    assert ended, "it hangs"
    return ended[0]


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


def take(consumer: Consumer, count: int) -> list[bytes | None]:
    return [record.value for record in islice(consumer, count)]


# --- producer -----------------------------------------------------------------------------------


def test_a_delivery_tells_where_its_record_is(node):
    with producer_of(node) as producer:
        sent = [producer.send("t", value, partition=1) for value in numbered(3)]
        assert all(isinstance(delivery, Delivery) for delivery in sent)
        found = [delivery.result() for delivery in sent]
        assert [delivery.result(timeout_s=PATIENCE_S) for delivery in sent] == found
    assert all(isinstance(place, RecordMetadata) for place in found)
    places = [(place.topic, place.partition, place.offset) for place in found]
    assert places == [("t", 1, 0), ("t", 1, 1), ("t", 1, 2)]
    assert node.values(1) == numbered(3)


def test_records_keep_the_order_of_send_also_beyond_what_may_be_queued(node):
    rows = numbered(25_000)
    with producer_of(node) as producer:
        for row in rows:
            producer.send("t", row, partition=0)
    assert node.values(0) == rows


def test_several_threads_may_send_and_each_keeps_its_order(node):
    def send(producer: Producer, name: bytes) -> None:
        for number in range(300):
            producer.send("t", b"%s%04d" % (name, number), partition=0)

    with producer_of(node) as producer:
        threads = [threading.Thread(target=send, args=(producer, name)) for name in (b"a", b"b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    stored = node.values(0)
    for name in (b"a", b"b"):
        mine = [value for value in stored if value is not None and value.startswith(name)]
        assert mine == [b"%s%04d" % (name, number) for number in range(300)]
    assert len(stored) == 600


def test_flush_waits_until_what_was_sent_is_stored(node):
    with producer_of(node, linger_ms=60_000) as producer:
        producer.flush()
        deliveries = [producer.send("t", row, partition=0) for row in numbered(50)]
        producer.flush()
        assert node.values(0) == numbered(50)
        assert [delivery.result(timeout_s=0.1).offset for delivery in deliveries] == [*range(50)]


def test_leaving_the_block_sends_what_is_queued(node):
    with producer_of(node, linger_ms=60_000) as producer:
        for row in numbered(50):
            producer.send("t", row, partition=0)
    assert node.values(0) == numbered(50)


PROGRAM = """
import sys
from hightide.blocking import Producer


def send(producer):
    for number in range(20):
        producer.send("t", b"%04d" % number, partition=0, timestamp=1000)


producer = Producer(sys.argv[1], linger_ms=60_000)
"""


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "stored"),
    few(
        [
            ("send(producer.open())", 0, 20),
            ("send(producer.open()); raise KeyboardInterrupt", 130, 0),
            ("send(producer.open()); sys.exit(3)", 3, 20),
            ("with producer: send(producer); sys.exit(3)", 3, 20),
            ("send(producer.open()); 1 / 0", 1, 20),
        ],
        3,
    ),
)
def test_what_was_sent_is_stored_however_the_program_ends_but_for_ctrl_c(
    node, ending, code, stored
):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + ending, node.address],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode in (code, -signal.SIGINT if code == 130 else code), ended.stderr
    assert node.values(0) == numbered(stored)


def test_what_a_record_is_arrives(node):
    with producer_of(node, compression_type="zstd") as producer:
        producer.send("t", None, key=b"k", headers=[("h", b"v")], timestamp=77, partition=0)
    with consumer_of(node) as consumer:
        (record,) = consumer.poll(timeout_ms=PATIENCE_MS)
    assert (record.key, record.value, record.timestamp) == (b"k", None, 77)
    assert list(record.headers) == [("h", b"v")]


def test_no_outcome_in_time_is_an_error_and_the_outcome_may_come_later(node):
    with producer_of(node, linger_ms=60_000) as producer:
        delivery = producer.send("t", b"x", partition=0)
        with pytest.raises(RequestTimedOut, match=r"no outcome within 0\.02 s"):
            delivery.result(timeout_s=0.02)
        producer.flush()
        assert delivery.result().offset == 0


def test_errors_of_a_record_come_with_its_result(node):
    with producer_of(node, max_request_size=1_000) as producer:
        unknown = producer.send("nowhere", b"x")
        large = producer.send("t", b"x" * 2_000)
        wrong = producer.send("t", b"x", partition=9)
        good = producer.send("t", b"good", partition=0)
        for delivery, error in [(unknown, ApiError), (large, RecordTooLarge), (wrong, UsageError)]:
            with pytest.raises(error):
                delivery.result()
        assert good.result().offset == 0
    assert node.values(0) == [b"good"]


@pytest.mark.parametrize(
    ("topic", "value", "error"),
    [("nowhere", b"x", ApiError), ("t", b"x" * 2_000, RecordTooLarge)],
    ids=["unknown topic", "too large"],
)
def test_an_error_that_nobody_looked_at_is_raised_at_the_end_of_the_block(
    node, topic, value, error
):
    def send():
        with producer_of(node, max_request_size=1_000) as producer:
            producer.send(topic, value)

    with pytest.raises(error):
        send()


def test_an_error_of_the_cluster_that_nobody_looked_at_is_raised_at_the_end(node):
    with Admin(node.address) as admin:
        admin.alter_topic_configs("t", set_={"max.message.bytes": "100"})

    def send(look):
        with producer_of(node) as producer:
            delivery = producer.send("t", b"x" * 500)
            if look:
                with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
                    delivery.result()

    with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
        send(look=False)
    send(look=True)


def test_the_blocks_own_error_is_the_one_that_leaves(node):
    with Admin(node.address) as admin:
        admin.alter_topic_configs("t", set_={"max.message.bytes": "100"})

    def fail():
        with producer_of(node, linger_ms=60_000) as producer:
            producer.send("nowhere", b"x")
            producer.send("t", b"x" * 500, partition=1)
            producer.send("t", b"good", partition=0)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert node.values(0) == [b"good"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": "text"},
        {"value": b"v", "key": "text"},
        {"value": b"v", "headers": [("a", 5)]},
        {"value": b"v", "timestamp": "today"},
        {"value": b"v", "partition": "first"},
    ],
    ids=str,
)
def test_a_record_of_the_wrong_type_is_an_error_and_harms_no_other_client(node, wrong, monkeypatch):
    # A thread of its own: if it dies after all, the other tests shall not.
    monkeypatch.setattr(portal, "_portal", None)

    def send():
        with producer_of(node) as producer:
            producer.send("t", **wrong).result()

    assert isinstance(within_patience(send), (TypeError, UsageError))

    def send_right():
        with producer_of(node) as producer:
            producer.send("t", b"right", partition=0)

    assert within_patience(send_right) is None
    assert node.values(0) == [b"right"]


# --- consumer -----------------------------------------------------------------------------------


@pytest.fixture
def filled(node) -> NodeInThread:
    with producer_of(node) as producer:
        for row in numbered(100):
            producer.send("t", row, partition=0)
        for row in numbered(10):
            producer.send("t", row, partition=1)
    return node


def test_iteration_gives_every_record(filled):
    with consumer_of(filled, partitions=[("t", 0)]) as consumer:
        assert take(consumer, 100) == numbered(100)


def test_poll_gives_what_is_there_and_no_more_than_asked(filled):
    with consumer_of(filled, partitions=[("t", 0)]) as consumer:
        first = consumer.poll(timeout_ms=PATIENCE_MS, max_records=7)
        assert [record.offset for record in first] == list(range(7))
        assert (consumer.position("t", 0), consumer.lag("t", 0)) == (7, 93)
        assert consumer.assignment() == [TopicPartition("t", 0)]


def test_poll_returns_empty_handed_when_nothing_came_in_time(node):
    with consumer_of(node) as consumer:
        assert consumer.poll(timeout_ms=20) == []


def test_seeks_pauses_and_assignments_work_as_in_the_async_client(filled):
    with consumer_of(filled) as consumer:
        consumer.pause(("t", 0))
        assert take(consumer, 10) == numbered(10)
        consumer.seek("t", 0, 98)
        consumer.resume(("t", 0))
        assert take(consumer, 2) == numbered(100)[98:]
        consumer.assign([("t", 1)])
        consumer.seek("t", 1, 4)
        assert take(consumer, 6) == numbered(10)[4:]
        consumer.seek_to_time(0)
        assert take(consumer, 10) == numbered(10)
        assert consumer.offsets(m.LATEST)[("t", 1)].offset == 10


def test_errors_of_a_consumer_are_those_of_the_async_one(filled):
    with pytest.raises(ApiError) as caught, Consumer(filled.address, topics=["nowhere"]):
        raise AssertionError("it was let in")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(UsageError, match="auto_offset_reset"):
        Consumer(filled.address, topics=["t"], auto_offset_reset="first")
    with consumer_of(filled) as consumer, pytest.raises(UsageError, match="t-7 is not assigned"):
        consumer.seek("t", 7, 0)


# --- admin --------------------------------------------------------------------------------------


def test_every_admin_method_works_as_in_the_async_client(filled):
    with Admin(filled.address) as admin:
        assert admin.create_topic("new", partitions=1).partitions == 1
        admin.create_partitions("new", 2)
        assert len(admin.describe_topic("new").partitions) == 2
        assert sorted(topic.topic for topic in admin.list_topics()) == ["new", "t"]
        admin.alter_topic_configs("new", set_={"segment.bytes": "4096"}, unset=["retention.ms"])
        entries = {e.name: e.value for e in admin.describe_configs("topic", "new")}
        assert entries["segment.bytes"] == "4096"
        admin.delete_topic("new")
        assert [topic.topic for topic in admin.list_topics()] == ["t"]
        assert admin.offsets([("t", 0)], m.LATEST)[("t", 0)].offset == 100
        assert admin.delete_records({("t", 0): 40}) == {("t", 0): 40}
        assert admin.describe_cluster().controller == 1
        assert admin.describe_node(1).node == 1
        assert admin.describe_metadata_log(1).log_end_offset > 0
        (directory,) = admin.describe_log_dirs(["t"])
        assert {info.log_start_offset for info in directory.replicas} == {0, 40}
        with pytest.raises(ApiError, match="TOPIC_ALREADY_EXISTS"):
            admin.create_topic("t")


# --- life ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda address: Producer(address).send("t", b"x"),
        lambda address: Producer(address).flush(),
        lambda address: Consumer(address, topics=["t"]).poll(),
        lambda address: Consumer(address, topics=["t"]).assign([]),
        lambda address: next(iter(Consumer(address, topics=["t"]))),
        lambda address: Admin(address).list_topics(),
    ],
)
def test_a_client_outside_its_block_says_so(use):
    with pytest.raises(ClosedError, match="in a `with` block"):
        use("127.0.0.1:1")


def test_a_client_after_its_block_says_so(node):
    with producer_of(node) as producer, consumer_of(node) as consumer, Admin(node.address) as admin:
        pass
    for use in (lambda: producer.send("t", b"x"), consumer.poll, admin.list_topics):
        with pytest.raises(ClosedError, match="in a `with` block"):
            use()


def test_an_outcome_that_is_known_is_told_after_the_block_as_well(node):
    with producer_of(node) as producer:
        delivery = producer.send("t", b"x", partition=0)
    assert delivery.result().offset == 0


def test_many_clients_share_one_thread(node):
    before = threading.active_count()
    with producer_of(node) as one, producer_of(node) as two, consumer_of(node) as consumer:
        one.send("t", b"a", partition=0).result()
        two.send("t", b"b", partition=0).result()
        assert take(consumer, 2) == [b"a", b"b"]
        assert threading.active_count() <= before + 1


def test_records_wait_for_a_cluster_that_is_not_there_together(monkeypatch):
    """Each as long as it may, and not one after the other."""
    waited = []

    def flush():
        with Producer("127.0.0.1:1", max_block_ms=200) as producer:
            send = producer._async.send

            async def noted(*args, **told):
                waited.append(1)
                return await send(*args, **told)

            monkeypatch.setattr(producer._async, "send", noted)
            deliveries = [producer.send("t", b"x", timestamp=1) for _ in range(100)]
            producer.flush()
            for delivery in deliveries:
                with pytest.raises(HightideError):
                    delivery.result()

    assert within_patience(flush) is None
    assert len(waited) < 50


def test_a_cluster_that_is_not_there_is_an_error_and_not_a_hang():
    def send():
        with Producer("127.0.0.1:1", max_block_ms=200) as producer:
            producer.send("t", b"x").result()

    def poll():
        with Consumer("127.0.0.1:1", topics=["t"], default_api_timeout_ms=200) as consumer:
            consumer.poll()

    def ask():
        with Admin("127.0.0.1:1", default_api_timeout_ms=200) as admin:
            admin.list_topics()

    for use in (send, poll, ask):
        assert isinstance(within_patience(use), HightideError)
