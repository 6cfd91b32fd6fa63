"""What stands under all clients: connections, metadata, retries, and their own nursery.

Goal: Kafka's rules, and the docstrings of `connection.py`, `cluster.py` and `background.py`.
Method: `FakeBroker` in memory on trio's autojump clock; a peer by hand where order is the subject.
"""

import random
import struct

import pytest
import trio
from brokers import client_of, new_node
from fake_broker import (
    CLOSE_IN_MID_ANSWER,
    GARBAGE,
    IGNORE,
    LOSE_ANSWER,
    NO_FRAME,
    FakeBroker,
    Trick,
    in_memory,
    on_tcp,
)
from streams import MemoryStream, memory_stream
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from hightide import ApiError, BrokerUnreachable, ErrorCode, Producer, RequestTimedOut
from hightide.net.background import Nudge
from hightide.net.cluster import DEFAULT_PORT, open_cluster, parse_bootstrap
from hightide.net.connection import Connection, open_connection
from hightide.net.options import ClientOptions
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol import wire
from hightide.protocol.errors import ClosedError, RemoteProtocolError, UsageError
from hightide_broker.simulation.disk import SimDisk

ANOTHER = m.ApiRange(name="x", min_version=1, max_version=1)
ANSWERS = {
    "closes in mid-answer": (CLOSE_IN_MID_ANSWER, RemoteProtocolError),
    "closes without an answer": (LOSE_ANSWER, BrokerUnreachable),
    "answers no message": (GARBAGE, RemoteProtocolError),
    "answers no frame": (NO_FRAME, RemoteProtocolError),
    "never answers": (IGNORE, RequestTimedOut),
    "refuses": (Trick(envelope=ErrorCode.UNSUPPORTED_VERSION), ApiError),
    "answers another question": (Trick(body=ANOTHER), RemoteProtocolError),
}


def cluster_of(broker, network, **options):
    chance = random.Random(1)
    return open_cluster(ClientOptions(broker.address, network=network, random=chance, **options))


# --- connections --------------------------------------------------------------------------------


@pytest.mark.parametrize(("trick", "error"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_a_call_without_a_good_answer_ends_with_an_error_that_names_the_broker(
    trick, error, autojump_clock
):
    broker = FakeBroker({"t": 1})
    broker.will(m.MetadataRequest, trick)
    async with in_memory(broker) as network, open_connection(network, "127.0.0.1", 1) as connection:
        with pytest.raises(error) as caught:
            await connection.call(m.MetadataRequest(), timeout_s=3)
    if error is not RemoteProtocolError or trick in (GARBAGE, NO_FRAME):
        assert "127.0.0.1:1" in str(caught.value)


@pytest.mark.parametrize("trick", [CLOSE_IN_MID_ANSWER, LOSE_ANSWER, GARBAGE, NO_FRAME], ids=str)
async def test_when_a_connection_breaks_every_call_on_it_fails_and_none_is_begun(
    trick, autojump_clock
):
    broker = FakeBroker({"t": 1})
    broker.will(m.MetadataRequest, IGNORE, IGNORE, trick)
    failed = []

    async def call(connection):
        try:
            await connection.call(m.MetadataRequest(), timeout_s=1_000)
        except (RemoteProtocolError, BrokerUnreachable) as error:
            failed.append(error)

    async with in_memory(broker) as network, open_connection(network, "127.0.0.1", 1) as connection:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call, connection)
        assert (len(failed), connection.is_open) == (3, False)
        await call(connection)
        assert len(failed) == 4
        assert trio.current_time() < 1
    assert broker.count(m.MetadataRequest) == 3


async def test_a_connection_lives_on_after_a_timeout_and_the_late_answer_is_nobodys(
    autojump_clock,
):
    here, there = memory_stream()
    connection = Connection(here, address="peer:1", client="test")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        first = await connection.begin(m.MetadataRequest())
        with pytest.raises(
            RequestTimedOut, match=r"no answer to metadata within 2 s \[broker peer:1"
        ):
            await first.wait(2)
        assert repr(connection) == "<Connection peer:1 open waiting=0>"
        second = await connection.begin(m.MetadataRequest())
        for number, name in [(1, "late"), (2, "right")]:
            body = m.MetadataResponse(cluster_id=name, controller=1, brokers=[], topics=[])
            await there.send_all(frame_of(body, number))
        response, _ = await second.wait(5)
        assert response.cluster_id == "right"
        assert connection.is_open
        await connection.aclose()


def frame_of(body, number, attachments=()):
    message = wire.encode_response(body, request_id=number)
    return b"".join(wire.frame_buffers(message, attachments))


async def test_answers_find_their_calls_in_any_order_and_however_they_are_cut(autojump_clock):
    here, there = memory_stream()
    connection = Connection(here, address="peer:1", client="test")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        answers = [await connection.begin(m.MetadataRequest()) for _ in range(3)]
        data = b""
        for number in (3, 1, 2):
            body = m.MetadataResponse(cluster_id=f"c{number}", controller=1, brokers=[], topics=[])
            data += frame_of(body, number, [b"x" * (number * 70_000)])
        for start in range(0, len(data), 9_999):
            await there.send_all(data[start : start + 9_999])
        for number, answer in enumerate(answers, 1):
            response, (attachment,) = await answer.wait(1)
            assert (response.cluster_id, len(attachment)) == (f"c{number}", number * 70_000)
        await connection.aclose()


def requests_in(data):
    """The topics that each request asks for."""
    asked, view = [], memoryview(data)
    while view:
        (length,) = struct.unpack(">I", view[:4])
        frame = wire.split_frame(bytes(view[4 : 4 + length]), message_limit=1 << 20)
        envelope = wire.decode_request_envelope(frame)
        assert (envelope.api, envelope.client) == ("metadata", "c")
        asked.append(wire.decode_body(envelope.body, m.MetadataRequest).topics)
        view = view[4 + length :]
    return asked


async def test_requests_leave_in_the_order_of_the_calls_each_in_one_piece(autojump_clock):
    here, there = memory_stream()
    connection = Connection(here, address="peer:1", client="c")
    async with trio.open_nursery() as nursery:
        for number in range(20):
            request = m.MetadataRequest(topics=[str(number)])
            nursery.start_soon(connection.begin, request, [b"x" * 5_000])
            await wait_all_tasks_blocked()
    await connection.aclose()
    data = bytearray()
    async for some in there:
        data += some
    assert requests_in(data) == [[str(number)] for number in range(20)]


class CancelAt(trio.abc.Instrument):
    """Cancels a scope before a task's step, counted from now."""

    def __init__(self, scope, step):
        self.scope, self.left, self.task = scope, step, trio.lowlevel.current_task()

    def before_task_step(self, task):
        if task is self.task:
            if self.left == 0:
                self.scope.cancel()
            self.left -= 1


@pytest.mark.parametrize("step", range(4))
async def test_a_call_that_is_cancelled_before_a_byte_was_sent_breaks_nobody_elses(step):
    parked = m.FetchRequest(
        max_wait_ms=100, partitions=[m.FetchPartition(topic="t", partition=0, fetch_offset=0)]
    )
    broker = FakeBroker({"t": 1})
    async with (
        on_tcp(broker) as network,
        open_connection(network, broker.host, broker.port) as connection,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(connection.call, parked)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            strike = CancelAt(scope, step)
            trio.lowlevel.add_instrument(strike)
            await connection.call(m.MetadataRequest())
        trio.lowlevel.remove_instrument(strike)
        assert connection.is_open
        await connection.call(m.MetadataRequest())
    assert "waiting=0" in repr(connection)


class Slow(MemoryStream):
    """Nothing goes out of it, but for so many bytes."""

    room = 0

    def send_now(self, buffers):
        some = b"".join(bytes(buffer) for buffer in buffers)[: self.room]
        self.room -= len(some)
        return super().send_now([some]) if some else 0

    async def wait_writable(self):
        while not self.room:
            await trio.sleep(0.1)


async def test_a_connection_that_takes_nothing_ends_and_who_waits_is_told_why(autojump_clock):
    connection = Connection(Slow(*memory_stream_pair()), address="b:1", client="c")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        with pytest.raises(BrokerUnreachable, match=r"sending took more than 2 s"):
            await connection.call(m.MetadataRequest(), timeout_s=2)
        assert repr(connection) == "<Connection b:1 broken waiting=0>"
        with pytest.raises(BrokerUnreachable, match=r"sending took more than 2 s"):
            await connection.call(m.MetadataRequest(), timeout_s=2)
        await connection.aclose()


async def test_a_call_that_is_cancelled_in_the_middle_of_its_request_breaks_nobody_elses(
    autojump_clock,
):
    """The rest of it leaves before the next one does."""
    here, there = memory_stream_pair()
    stream = Slow(here, there)
    connection = Connection(stream, address="b:1", client="c")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        stream.room = 10
        with trio.move_on_after(1):
            await connection.call(m.MetadataRequest(topics=["first"]))
        assert repr(connection) == "<Connection b:1 open waiting=0>"
        nursery.start_soon(connection.begin, m.MetadataRequest(topics=["second"]))
        await trio.sleep(1)
        stream.room = 1 << 20
        await trio.sleep(1)
        assert requests_in(await there.receive_some(1 << 20)) == [["first"], ["second"]]
        await connection.aclose()


# --- bootstrap and metadata ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bootstrap", "addresses"),
    [
        ("a:1", [("a", 1)]),
        ("a:1,b:65535", [("a", 1), ("b", 65535)]),
        (" a:1 , b ", [("a", 1), ("b", DEFAULT_PORT)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
        ("[::1]:5", [("::1", 5)]),
        ("[::1]", [("::1", DEFAULT_PORT)]),
    ],
)
def test_bootstrap_addresses_are_understood(bootstrap, addresses):
    assert parse_bootstrap(bootstrap) == addresses


@pytest.mark.parametrize("bootstrap", ["", "a:", "a:0", "a:65536", "a:b", ":1", "a:1,,b:2", []])
def test_an_address_that_is_none_is_refused(bootstrap):
    with pytest.raises(UsageError, match="bootstrap"):
        parse_bootstrap(bootstrap)


async def test_the_second_bootstrap_address_is_used_when_the_first_is_down(autojump_clock):
    down, up = FakeBroker({}, port=1, is_down=True), FakeBroker({"t": 1}, port=2)
    bootstrap = f"{down.address},{up.address}"
    async with in_memory(down, up) as network:
        options = ClientOptions(bootstrap, network=network)
        async with open_cluster(options) as cluster:
            assert (await cluster.topic("t", timeout_s=5)).topic == "t"


async def test_a_controller_that_was_named_sends_nobody_away(autojump_clock):
    """It knows who the brokers are, and they are asked for what it is no help with."""
    broker = FakeBroker({"t": 1}, id=2, port=2)
    info = m.BrokerInfo(id=2, host="127.0.0.1", port=2)
    controller = FakeBroker({}, id=1, port=1, others=[info])
    no_broker = Trick(envelope=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    controller.always(p.InitProducerIdRequest, no_broker)
    async with in_memory(controller, broker) as network, cluster_of(controller, network) as cluster:
        for _ in range(2):
            answer = await cluster.call_any_broker(p.InitProducerIdRequest(), timeout_s=5)
            assert answer.producer_id >= 0
    assert broker.count(p.InitProducerIdRequest) == 2


async def test_brokers_that_have_moved_are_found_by_the_address_that_was_given(autojump_clock):
    moved = FakeBroker({"t": 1}, id=2, port=2)
    info = m.BrokerInfo(id=2, host="127.0.0.1", port=2)
    first = FakeBroker({"t": 1}, id=1, port=1, others=[info])
    async with in_memory(first, moved) as network, cluster_of(first, network) as cluster:
        await cluster.refresh([])
        cluster.metadata.brokers = {2: info}
        moved.is_down = True
        await cluster.call_any_broker(p.InitProducerIdRequest(), timeout_s=5)
    assert first.count(p.InitProducerIdRequest) == 1


async def test_an_answer_with_an_older_leader_epoch_is_not_believed(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network, cluster_of(broker, network) as cluster:
        for epoch, leader, believed in [
            (5, 1, 5),
            (4, 1, 5),
            (6, -1, None),
            (5, 1, None),
            (7, 1, 7),
        ]:
            broker.will(m.MetadataRequest, Trick(body=metadata("id-1", epoch=epoch, leader=leader)))
            await cluster.refresh(["t"])
            known = cluster.metadata.leader("t", 0)
            assert (known and known.leader_epoch) == believed


@pytest.mark.parametrize("hint", [None, m.LeaderHint(leader=1, leader_epoch=6)])
async def test_nor_is_it_believed_of_a_partition_whose_leader_was_lost(autojump_clock, hint):
    # Seed 3158 of the replicated world: a broker that was cut off was asked once more.
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network, cluster_of(broker, network) as cluster:
        broker.will(m.MetadataRequest, Trick(body=metadata("id-1", epoch=5)))
        await cluster.refresh(["t"])
        cluster.lost_leader("t", 0, hint)
        cluster.lost_leader("t", 0)
        for epoch, believed in [(4, None), (5, None if hint else 5), (6, 6)]:
            broker.will(m.MetadataRequest, Trick(body=metadata("id-1", epoch=epoch)))
            await cluster.refresh(["t"])
            known = cluster.metadata.leader("t", 0)
            assert (known and known.leader_epoch) == believed


async def test_a_topic_that_was_made_again_starts_over_with_its_epochs(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network, cluster_of(broker, network) as cluster:
        for topic_id, epoch in [("id-1", 5), ("id-2", 0)]:
            broker.will(m.MetadataRequest, Trick(body=metadata(topic_id, epoch=epoch)))
            await cluster.refresh(["t"])
            assert cluster.metadata.leader("t", 0).leader_epoch == epoch


async def test_the_same_holds_when_it_was_seen_to_be_gone_in_between(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with in_memory(broker) as network, cluster_of(broker, network) as cluster:
        gone = m.TopicMetadata(topic="t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        broker.will(
            m.MetadataRequest,
            Trick(body=metadata("id-1", epoch=5)),
            Trick(body=m.MetadataResponse(cluster_id="c", controller=1, brokers=[], topics=[gone])),
            Trick(body=metadata("id-2", epoch=0)),
        )
        for _ in range(3):
            await cluster.refresh(["t"])
        assert cluster.metadata.leader("t", 0).leader_epoch == 0


def metadata(topic_id, *, epoch, leader=1):
    part = m.PartitionMetadata(
        partition=0, leader=leader, leader_epoch=epoch, replicas=[1], isr=[1]
    )
    return m.MetadataResponse(
        cluster_id="c",
        controller=1,
        brokers=[m.BrokerInfo(id=1, host="127.0.0.1", port=1)],
        topics=[m.TopicMetadata(topic="t", topic_id=topic_id, partitions=[part])],
    )


async def test_retries_back_off_and_the_last_error_knows_how_often_and_how_long(autojump_clock):
    broker = FakeBroker({"t": 1}, is_down=True)
    async with in_memory(broker) as network, cluster_of(broker, network) as cluster:
        with pytest.raises(BrokerUnreachable) as caught:
            await cluster.call_any(m.MetadataRequest(), timeout_s=10)
    error = caught.value
    # 0.1, 0.2, then 0.25 s at a time, each with a fifth of jitter.
    assert 33 <= error.attempts <= 50
    assert 9.5 < error.elapsed_s <= 10
    assert f"{error.attempts} attempts" in str(error)


async def test_what_is_refused_for_good_is_asked_once(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.always(m.MetadataRequest, Trick(envelope=ErrorCode.UNSUPPORTED_VERSION))
    async with in_memory(broker) as network, cluster_of(broker, network) as cluster:
        with pytest.raises(ApiError, match="UNSUPPORTED_VERSION"):
            await cluster.call_any(m.MetadataRequest(), timeout_s=10)
    assert broker.count(m.MetadataRequest) == 1


# --- background ---------------------------------------------------------------------------------


async def test_a_nudge_wakes_everybody_who_sleeps(autojump_clock):
    nudge, woken = Nudge(), []

    async def sleep(name):
        await nudge.sleep_until(1_000)
        woken.append((name, trio.current_time()))

    async with trio.open_nursery() as nursery:
        for name in range(3):
            nursery.start_soon(sleep, name)
        await trio.sleep(5)
        nudge.set()
    assert sorted(woken) == [(0, 5), (1, 5), (2, 5)]


async def test_without_a_nudge_it_is_the_deadline(autojump_clock):
    nudge = Nudge()
    await nudge.sleep_until(7)
    assert trio.current_time() == 7
    await nudge.sleep_until(3)
    assert trio.current_time() == 7


async def test_a_nudge_that_comes_while_a_task_is_busy_is_not_lost_to_another_that_sleeps(
    autojump_clock,
):
    nudge, times = Nudge(), []

    async def work(busy_s):
        await trio.sleep(busy_s)
        for _ in range(2):
            await nudge.sleep_until(1_000)
            times.append((busy_s, trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, 0)
        nursery.start_soon(work, 20)
        await trio.sleep(10)
        nudge.set()
    assert sorted(times, key=lambda pair: pair[::-1]) == [
        (0, 10),
        (20, 20),
        (0, 1_000),
        (20, 1_000),
    ]


class StepCounter(trio.abc.Instrument):
    """How often any task was run."""

    def __init__(self):
        self.steps = 0

    def before_task_step(self, task):
        self.steps += 1


@pytest.mark.parametrize("acks", [1, "all"])
async def test_a_producer_that_has_nothing_to_send_sleeps(acks):
    async with new_node(SimDisk()) as node, client_of(node), Producer(node.address, acks=acks):
        await trio.sleep(0.05)
        counter = StepCounter()
        trio.lowlevel.add_instrument(counter)
        await trio.sleep(0.1)
        trio.lowlevel.remove_instrument(counter)
    assert counter.steps < 50


async def test_a_connection_that_comes_after_the_end_is_closed_and_nobody_waits_for_it(
    autojump_clock,
):
    """A pool that is closed while somebody connects: the reader of answers is gone by then."""
    broker = FakeBroker({"t": 1})
    refusals = []
    async with in_memory(broker) as network, cluster_of(broker, network) as cluster:

        async def ask():
            try:
                await cluster.refresh([])
            except ClosedError as error:
                refusals.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            connect, connecting, go_on = network.connect, trio.Event(), trio.Event()

            async def slow(host, port):
                connecting.set()
                await go_on.wait()
                return await connect(host, port)

            network.connect = slow
            await connecting.wait()
            await cluster.aclose()
            go_on.set()
    assert refusals == ["the client was closed meanwhile"]
