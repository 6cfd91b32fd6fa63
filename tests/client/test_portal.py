"""Blocking clients in real programs: interrupted, forked, dropped, used by threads, with callbacks
that raise.

Goal: `portal.py`: a client's end is its own, nothing hangs, and nothing is handed out to nobody.
Method: a real node in a thread of its own; interruptions are signals to the thread that waits, and
what may hang runs in a thread that the test gives up on.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from test_blocking import (
    PATIENCE_S,
    NodeInThread,
    consumer_of,
    numbered,
    producer_of,
    running_node,
    take,
    within_patience,
)

from hightide.blocking import Admin, Consumer, Producer, portal
from hightide.protocol.errors import ClosedError, UsageError

GROUP = {"group_id": "g", "heartbeat_interval_ms": 300, "session_timeout_ms": 10_000}


@pytest.fixture
def node() -> Iterator[NodeInThread]:
    with running_node() as running:
        yield running


@pytest.fixture
def filled(node) -> NodeInThread:
    with producer_of(node) as producer:
        producer.send_many("t", numbered(1_000), partition=0)
    return node


class Interrupted(BaseException):
    """What the signal's handler raises, as Ctrl-C does."""


def _interrupt(*_: object) -> None:
    raise Interrupted


@contextmanager
def interrupted_while_waiting(
    client: Consumer | Producer, handle: Callable[..., None] = _interrupt
) -> Iterator[None]:
    """A signal comes as soon as this thread waits for a call of the client."""
    main, done = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        while not done.is_set():
            if any(call.is_awaited for call in client._opened()._calls):
                time.sleep(0.02)  # from there into the wait
                signal.pthread_kill(main, signal.SIGUSR1)
                return
            time.sleep(0.001)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(PATIENCE_S)
        signal.signal(signal.SIGUSR1, before)


def consumer_in_group(node: NodeInThread, **options) -> Consumer:
    return consumer_of(node, **GROUP, **options)


def committed(node: NodeInThread) -> int | None:
    with Admin(node.address) as admin:
        found = admin.group_offsets("g").get(("t", 0))
        return None if found is None else found.offset


# --- loops that end in the middle ---------------------------------------------------------------


def test_a_loop_that_ends_in_the_middle_has_only_what_it_got(filled):
    with consumer_of(filled, partitions=[("t", 0)]) as consumer:
        for record in consumer:
            if record.offset == 2:
                break
        assert consumer.position("t", 0) == 3
        assert take(consumer, 2) == numbered(1_000)[3:5]
        assert [r.offset for r in consumer.poll(timeout_ms=5_000, max_records=2)] == [5, 6]
        rows = consumer.poll_arrow(timeout_ms=5_000)
        assert rows.column("offset")[0].as_py() == 7


def test_the_next_run_goes_on_where_the_loop_ended(filled):
    with consumer_in_group(filled) as consumer:
        for record in consumer:
            if record.offset == 2:
                break
    assert committed(filled) == 3


def test_a_commit_in_a_loop_keeps_what_the_loop_got(filled):
    with consumer_in_group(filled, enable_auto_commit=False) as consumer:
        for record in consumer:
            if record.offset == 41:
                consumer.commit()
                break
    assert committed(filled) == 42


def test_a_loop_that_fails_reads_its_record_again(filled):
    def read():
        with consumer_in_group(filled) as consumer:
            for record in consumer:
                if record.offset == 41:
                    raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        read()
    assert committed(filled) == 41


def test_a_loop_that_was_left_gets_nothing_that_somebody_else_got(filled):
    with consumer_of(filled, partitions=[("t", 0)]) as consumer:
        loop = iter(consumer)
        assert next(loop).offset == 0
        assert consumer.poll(timeout_ms=5_000, max_records=3)[-1].offset == 3
        assert next(loop).offset == 4
        consumer.seek("t", 0, 500)
        assert next(loop).offset == 500


# --- interruptions ------------------------------------------------------------------------------


def test_an_interrupted_poll_takes_nothing_later(node):
    with consumer_in_group(node) as consumer:
        consumer.poll(timeout_ms=2_000)
        with pytest.raises(Interrupted), interrupted_while_waiting(consumer):
            consumer.poll(timeout_ms=600_000)
        with producer_of(node) as producer:
            producer.send_many("t", numbered(10), partition=0)
        assert take(consumer, 10) == numbered(10)
    assert committed(node) == 10


def test_what_a_poll_brought_to_an_interrupted_thread_is_read_again(filled):
    """The call had ended well, and its thread was gone."""
    with consumer_in_group(filled) as consumer:
        lent = consumer._run(partial(consumer._async.lend, timeout_ms=60_000))
        assert len(lent._records) == 500
        assert consumer.position("t", 0) in (0, None)
        assert take(consumer, 3) == numbered(3)
        rows = consumer._run(partial(consumer._async.lend_arrow, timeout_ms=60_000))
        assert len(rows._whole[0]) == 997
        assert take(consumer, 2) == numbered(5)[3:]
    assert committed(filled) == 5


def test_an_interrupted_flush_leaves_a_producer_that_works(node):
    with producer_of(node, linger_ms=0) as producer:
        producer.send("nowhere", b"x")
        with pytest.raises(Interrupted), interrupted_while_waiting(producer):
            producer.flush()
        producer.send("t", b"later", partition=0).result()
        producer._unseen.__init__()  # the topic that is not there is not this test's
    assert node.values() == [b"later"]


def test_an_interruption_while_it_opens_leaves_nothing_behind():
    consumer = Consumer("127.0.0.1:1", topics=["t"], default_api_timeout_ms=600_000)
    main = threading.get_ident()

    def handle(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGUSR1))
        timer.start()
        with pytest.raises(Interrupted):
            consumer.open()
    finally:
        timer.join(PATIENCE_S)
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ClosedError):
        consumer.poll()


# --- the end of one client ----------------------------------------------------------------------


def test_a_callback_that_raises_ends_its_own_client_and_no_other(node):
    def complain(error: Exception) -> None:
        raise KeyError("mine")

    def use() -> None:
        with (
            producer_of(node) as other,
            Producer("127.0.0.1:1", on_retry=complain, request_timeout_ms=200) as producer,
        ):
            delivery = producer.send("t", b"x")
            with pytest.raises(KeyError, match="mine"):
                delivery.result()
            with pytest.raises(ClosedError, match=r"the producer has ended: KeyError\('mine'\)"):
                producer.flush()
            with pytest.raises(ClosedError):
                producer.send("t", b"x")
            other.send("t", b"fine", partition=0).result()

    assert within_patience(use) is None
    assert node.values() == [b"fine"]


def test_the_error_that_ended_a_client_is_raised_once_at_the_latest_by_close(node):
    def complain(error: Exception) -> None:
        raise KeyError("mine")

    def use() -> None:
        with Producer("127.0.0.1:1", on_retry=complain, request_timeout_ms=200) as producer:
            while producer._opened().is_at_work:
                time.sleep(0.01)

    assert isinstance(within_patience(use), KeyError)


def test_who_waits_for_room_in_a_client_that_ended_is_told():
    def use() -> None:
        with Producer("127.0.0.1:1", max_block_ms=600_000) as producer:
            opened = producer._opened()
            end = partial(opened.soon, opened._entered.scope.cancel)
            threading.Timer(0.3, end).start()
            for _ in range(1_000_000):
                producer.send("t", b"x")

    assert isinstance(within_patience(use), ClosedError)


def test_a_thread_of_trios_that_ended_is_replaced(node):
    def flush(producer: Producer) -> None:
        for _ in range(100):
            producer.flush()

    def use() -> None:
        with producer_of(node) as producer:
            thread = portal._portal
            assert thread is not None
            thread.soon(thread._nursery.cancel_scope.cancel)
            with pytest.raises(ClosedError):
                flush(producer)
            while not thread.is_ending:
                time.sleep(0.01)
            with producer_of(node) as other:
                other.send("t", b"fine", partition=0).result()

    assert isinstance(within_patience(use), ClosedError | None)
    assert node.values() == [b"fine"]


def test_a_client_whose_thread_of_trios_ended_says_so_and_not_how(node):
    is_closed = threading.Event()

    async def go_on() -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(is_closed.wait, PATIENCE_S)

    def use() -> None:
        with producer_of(node) as producer:
            opened = producer._opened()
            opened.soon(partial(opened._portal.start, go_on))
            opened.soon(opened._portal._nursery.cancel_scope.cancel)
            while opened.is_at_work or not opened._portal.is_ending:
                time.sleep(0.01)
            with producer_of(node) as other:
                other.send("t", b"of another thread", partition=0).result()

    error = within_patience(use)
    is_closed.set()
    assert isinstance(error, ClosedError)
    assert node.values() == [b"of another thread"]


def test_a_call_of_several_tasks_is_told_of_its_clients_end_and_not_how(node):
    async def wait_twice() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)

    def use() -> None:
        with producer_of(node) as producer:
            opened = producer._opened()
            threading.Timer(0.1, partial(opened.soon, opened._entered.scope.cancel)).start()
            opened.run(wait_twice)

    assert isinstance(within_patience(use), ClosedError)


def test_a_callback_in_the_clients_own_thread_is_told_that_it_cannot_wait(filled):
    told = []
    with consumer_in_group(filled, enable_auto_commit=False) as consumer:

        def then(_: object) -> None:
            try:
                consumer.commit()
            except UsageError as error:
                told.append(str(error))

        take(consumer, 1)
        consumer.commit_async(then=then)
        deadline = time.monotonic() + PATIENCE_S
        while not told and time.monotonic() < deadline:
            consumer.poll(timeout_ms=10)
    assert told == ["a callback that runs in the clients' own thread cannot wait for them"]


def test_a_client_that_was_never_closed_is_closed_when_it_is_forgotten(filled):
    consumer = consumer_in_group(filled)
    consumer.open()
    take(consumer, 1)
    opened = consumer._opened()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del consumer
        gc.collect()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == [
        "a consumer was never closed"
    ]
    deadline = time.monotonic() + PATIENCE_S
    while opened.is_at_work and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not opened.is_at_work
    assert committed(filled) in (0, None), "nobody knows whether its record was done"


# --- listeners ----------------------------------------------------------------------------------


def test_listeners_run_in_the_thread_that_polls_and_may_call_the_consumer(filled):
    threads = set()

    def assigned(parts):
        threads.add(threading.get_ident())
        for part in parts:
            if part == ("t", 0):
                consumer.seek(*part, 990)

    def revoked(parts):
        threads.add(threading.get_ident())
        consumer.commit()

    said = {"on_assigned": assigned, "on_revoked": revoked, "enable_auto_commit": False}
    consumer = consumer_in_group(filled, **said)
    with consumer:
        assert take(consumer, 4) == numbered(1_000)[990:994]
    assert committed(filled) == 994
    assert threads == {threading.get_ident()}


def test_what_a_listener_raises_the_next_poll_raises(filled):
    def assigned(parts):
        raise KeyError("mine")

    def read():
        with consumer_in_group(filled, on_assigned=assigned) as consumer:
            with pytest.raises(KeyError, match="mine"):
                take(consumer, 1)
            assert take(consumer, 1) == [b"0000"]

    assert within_patience(read) is None


# --- threads ------------------------------------------------------------------------------------


def test_flush_and_result_end_while_another_thread_goes_on_sending(node):
    stop = threading.Event()

    def send(producer: Producer) -> None:
        while not stop.is_set():
            producer.send("t", b"noise" * 50, partition=1)

    def use() -> None:
        with producer_of(node, buffer_memory=1 << 20) as producer:
            noisy = threading.Thread(target=send, args=(producer,), daemon=True)
            noisy.start()
            try:
                for number in range(5):
                    producer.send("t", b"%d" % number, partition=0).result()
                    producer.send("t", b"%d" % number, partition=0)
                    producer.flush()
            finally:
                stop.set()
                noisy.join(PATIENCE_S)

    assert within_patience(use) is None
    assert node.values() == [b"%d" % (n // 2) for n in range(10)]


def test_closing_ends_the_polls_of_other_threads(node):
    ended = []

    def read(consumer: Consumer) -> None:
        try:
            consumer.poll(timeout_ms=600_000)
        except ClosedError as error:
            ended.append(error)

    def use() -> None:
        with consumer_of(node) as consumer:
            thread = threading.Thread(target=read, args=(consumer,), daemon=True)
            thread.start()
            while not consumer._opened()._calls:
                time.sleep(0.01)
        thread.join(PATIENCE_S)

    assert within_patience(use) is None
    assert len(ended) == 1


# --- forks --------------------------------------------------------------------------------------


def in_child(work) -> str:
    """What a forked child says of some work; fails if it says nothing in time."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            said = work()
        except BaseException as error:
            said = repr(error)
        os.write(writing, str(said).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        os.set_blocking(reading, False)
        deadline = time.monotonic() + PATIENCE_S
        said = None
        while said is None and time.monotonic() < deadline:
            said = pipe.read()
            time.sleep(0.01)
    if said is None:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert said is not None, "the child hangs"
    return said.decode()


def test_a_forked_child_opens_clients_of_its_own(node):
    def work() -> int:
        with producer_of(node) as producer:
            return producer.send("t", b"child", partition=0).result().offset

    with producer_of(node) as producer:
        producer.send("t", b"parent", partition=0).result()
        assert in_child(work) == "1"
        producer.send("t", b"parent again", partition=0).result()
    assert node.values() == [b"parent", b"child", b"parent again"]


def test_a_forked_child_is_told_that_a_client_is_its_parents(node):
    with producer_of(node) as producer, consumer_of(node) as consumer:
        for use in (lambda: producer.send("t", b"x"), producer.flush, consumer.poll):
            said = in_child(use)
            assert "ClosedError" in said
            assert f"was opened by process {os.getpid()}, and this is its child" in said
        assert in_child(producer.close) == "None", "it is not the child's to close"
        producer.send("t", b"parent", partition=0).result()
    assert node.values() == [b"parent"]


def test_a_client_that_is_open_in_its_parent_is_not_opened_by_a_child(node):
    with producer_of(node) as producer, consumer_of(node) as consumer:
        producer.send("t", b"parent", partition=0).result()
        for inherited in (producer, consumer):
            assert "this is its child" in in_child(inherited.open)
            assert "this is its child" in in_child(lambda it=inherited: (it.close(), it.open()))
        assert producer.send("t", b"parent again", partition=0).result().offset == 1
    assert node.values() == [b"parent", b"parent again"]
