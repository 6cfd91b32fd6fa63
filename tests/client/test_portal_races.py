"""Blocking clients in threads that close, interrupt and call them at the wrong moment.

Goal and method are those of `test_portal.py`; each test here is the story of a hang, or of a loss.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time

import numpy as np
import pytest
import trio
from test_blocking import (
    HANGS_S,
    PATIENCE_S,
    consumer_of,
    numbered,
    producer_of,
    take,
    within_patience,
)
from test_portal import (  # noqa: F401
    Interrupted,
    committed,
    consumer_in_group,
    filled,
    interrupted_while_waiting,
    node,
)

from hightide.blocking import Consumer, Delivery, Producer, portal
from hightide.net.turns import Places
from hightide.protocol.errors import ClosedError, RequestTimedOut, UsageError

# ruff: noqa: F811 - fixtures are imported by name


def test_calls_of_other_threads_at_the_end_of_a_client_end_nothing_else(node):
    def ask(consumer: Consumer) -> None:
        with contextlib.suppress(ClosedError, UsageError):
            while True:
                consumer.position("t", 0)

    def use() -> None:
        with producer_of(node) as other:
            for _ in range(5):
                with consumer_of(node) as consumer:
                    threads = [threading.Thread(target=ask, args=(consumer,)) for _ in range(3)]
                    for thread in threads:
                        thread.start()
                for thread in threads:
                    thread.join(PATIENCE_S)
            other.send("t", b"alive", partition=0).result()

    assert within_patience(use) is None
    assert node.values() == [b"alive"]


def test_a_last_word_that_an_interruption_took_is_not_waited_for():
    call = portal.Call(portal._get_portal())
    call.end(5)
    call._inbox.get()
    assert within_patience(call.wait) is None


def test_a_handler_may_open_a_client_while_its_thread_opens_the_first(monkeypatch):
    found = []

    class Slow(portal._Portal):
        def __init__(self) -> None:
            if not found:
                found.append(self)
                found.append(portal._get_portal())  # as the handler of a signal does, here
            super().__init__()

    monkeypatch.setattr(portal, "_portal", None)
    monkeypatch.setattr(portal, "_Portal", Slow)
    assert within_patience(lambda: found.append(portal._get_portal())) is None
    assert all(each.is_alive for each in found)


def test_a_handler_that_asks_something_leaves_what_its_thread_waits_for(node, monkeypatch):
    """It is the same thread, and it did not go away."""
    told: list[object] = []

    async def slow() -> None:
        while not told:
            await trio.sleep(0.01)
        await trio.sleep(0.1)
        told.append("flushed")

    with producer_of(node) as producer:
        monkeypatch.setattr(producer._async, "flush", slow)
        with interrupted_while_waiting(producer, lambda *_: told.append(producer.metrics())):
            producer.flush()
        assert told[-1] == "flushed"
        monkeypatch.undo()
    told.clear()
    with consumer_of(node) as consumer:
        with interrupted_while_waiting(consumer, lambda *_: told.append(consumer.metrics())):
            assert consumer.poll(timeout_ms=500) == []
        assert len(told) == 1


def test_an_interrupted_send_leaves_a_producer_that_works(node, monkeypatch):
    with producer_of(node) as producer:
        opened = producer._opened()

        def interrupt(_: object) -> None:
            raise Interrupted

        monkeypatch.setattr(opened, "soon", interrupt)
        with pytest.raises(Interrupted):
            producer.send("t", b"queued", partition=0)
        monkeypatch.undo()
        assert within_patience(producer.flush) is None
        producer.send("t", b"next", partition=0).result()
    assert node.values() == [b"queued", b"next"]


def test_who_may_not_wait_is_told_so_instead_of_waiting_for_room():
    places, first = Places(1), []
    places.take(pytest.fail, every_s=1, count=1, into=first)
    with pytest.raises(KeyError):
        places.take({}.popitem, every_s=3600, count=1, into=[])
    places.leave(first)
    places.take(pytest.fail, every_s=1, count=1, into=[])


def test_places_are_given_back_while_another_thread_is_kept_in_the_middle_of_taking_some():
    places, mine = Places(2), []
    places.take(pytest.fail, every_s=1, count=2, into=mine)
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with places._lock:
            held.set()
            go_on.wait(HANGS_S)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert held.wait(HANGS_S)
    assert within_patience(lambda: places.leave(mine)) is None
    go_on.set()
    holder.join(HANGS_S)
    places.take(pytest.fail, every_s=1, count=2, into=[])


def test_places_go_to_the_first_in_line_also_if_fewer_would_do_for_the_next() -> None:
    places, order = Places(3), []

    def take(name: str, count: int) -> None:
        places.take(lambda: None, every_s=0.05, count=count, into=[])
        order.append(name)

    places.take(pytest.fail, every_s=1, count=3, into=[])
    threads = []
    for name, count in (("large", 3), ("small", 1)):
        threads.append(threading.Thread(target=take, args=(name, count), daemon=True))
        threads[-1].start()
        while len(places._line) < len(threads):
            time.sleep(0.001)
    places.leave([1])
    assert order == []
    places.leave([2])
    threads[0].join(HANGS_S)
    assert order == ["large"]
    places.leave([3])
    threads[1].join(HANGS_S)
    assert order == ["large", "small"]


def test_two_threads_may_close_a_client(node):
    producer = producer_of(node).open()
    opened = producer._opened()
    threads = [threading.Thread(target=opened.close, args=(None,), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_S)
    assert not any(thread.is_alive() for thread in threads)
    assert within_patience(lambda: opened.close(None)) is None


def test_a_listener_may_close_its_consumer(filled):
    def use() -> None:
        with consumer_in_group(filled, on_revoked=lambda _: consumer.close()) as consumer:
            take(consumer, 1)

    assert within_patience(use) is None


def test_a_partitioner_that_wants_the_program_to_end_ends_its_record(node):
    def use() -> None:
        with producer_of(node, partitioner=lambda *_: sys.exit(3)) as producer:
            for value in (b"first", b"second"):  # one waits for what the topic is, one for nothing
                with pytest.raises(SystemExit):
                    producer.send("t", value).result()
            producer.send("t", b"fine", partition=0).result()

    assert within_patience(use) is None
    assert node.values() == [b"fine"]


def test_records_that_were_accepted_while_the_block_ended_are_told_of(node):
    gone, accepted = threading.Event(), []

    def send(producer: Producer) -> None:
        with contextlib.suppress(ClosedError):
            while True:
                accepted.append(producer.send("t", b"x", partition=0))
        gone.set()

    def use() -> None:
        with producer_of(node, buffer_memory=100_000) as producer:
            threading.Thread(target=send, args=(producer,), daemon=True).start()
            while len(accepted) < 1_000:
                time.sleep(0.001)

    error = within_patience(use)
    assert gone.wait(HANGS_S)
    lost = [each for each in accepted if is_lost(each)]
    assert len(node.values()) >= len(accepted) - len(lost)
    assert isinstance(error, ClosedError) == bool(lost)


def is_lost(delivery: Delivery) -> bool:
    try:
        return delivery.result().offset < 0
    except ClosedError:
        return True


@pytest.mark.parametrize("polled", [False, True], ids=["loop", "poll"])
def test_a_seek_in_the_middle_does_not_commit_what_is_worked_on(filled, polled):
    def read() -> None:
        with consumer_in_group(filled) as consumer:
            for record in consumer.poll(timeout_ms=60_000) if polled else consumer:
                if record.offset == 5:
                    consumer.seek("t", 0, 50)
                    raise KeyError("mine")

    assert isinstance(within_patience(read), KeyError)
    assert committed(filled) == (0 if polled else 5)


def test_whole_numbers_of_others_are_whole_numbers_to_a_consumer_too(filled):
    options = {"fetch_min_bytes": np.int64(1), "partitions": [("t", np.int64(0))]}
    with consumer_of(filled, group_id="g", **options) as consumer:
        consumer.seek("t", np.int64(0), np.int64(990))
        assert take(consumer, 1) == numbered(1_000)[990:991]
        consumer.commit({("t", np.int64(0)): np.int64(7)})
        assert committed(filled) == 7
        for wrong in (3.0, "3"):
            with pytest.raises(UsageError, match="expected a whole number"):
                consumer.seek("t", 0, wrong)
            with pytest.raises(UsageError, match="expected a whole number"):
                consumer.commit({("t", 0): wrong})


def test_an_outcome_may_be_asked_for_again_while_its_record_waits(node):
    with producer_of(node) as producer:
        opened, go_on = producer._opened(), threading.Event()
        opened.soon(go_on.wait)  # nothing is sent meanwhile
        delivery = producer.send("t", b"x", partition=0)
        threading.Timer(0.3, go_on.set).start()
        for _ in range(3):
            with contextlib.suppress(RequestTimedOut):
                delivery.result(timeout_s=0.001)
        assert delivery.result().offset == 0


class LeftAtOnce(portal.Call):
    """A call whose thread is interrupted, and again while it takes it back."""

    def _serve(self):
        raise Interrupted


@contextlib.contextmanager
def interrupted_twice(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(portal, "Call", LeftAtOnce)
        with pytest.raises(Interrupted):
            yield


def test_a_client_whose_opening_was_left_is_opened_again(node, monkeypatch):
    def use() -> None:
        with producer_of(node) as other:
            producer = producer_of(node)
            with interrupted_twice(monkeypatch):
                producer.open()
            with producer:
                producer.send("t", b"opened", partition=0).result()
            other.send("t", b"alive", partition=0).result()

    assert within_patience(use) is None
    assert node.values() == [b"opened", b"alive"]


def test_a_call_that_was_left_ends_before_the_next_one_begins(node, monkeypatch):
    order = []

    async def take_long() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.2)
        order.append("left")

    with producer_of(node) as producer:
        with interrupted_twice(monkeypatch):
            producer._run(take_long)
        producer._run_sync(order.append, "next")
    assert order == ["left", "next"]


def test_a_client_whose_end_was_left_ends(node, monkeypatch):
    producer = producer_of(node).open()
    opened = producer._opened()
    with interrupted_twice(monkeypatch):
        producer.close()
    while opened.is_at_work:
        time.sleep(0.01)
    with producer:
        producer.send("t", b"once more", partition=0).result()
    assert node.values() == [b"once more"]


def test_a_pump_that_was_cancelled_before_its_first_step_is_not_waited_for(node, monkeypatch):
    async def take_long() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.2)

    def use() -> None:
        producer = producer_of(node).open()
        with interrupted_twice(monkeypatch):
            producer._run(take_long)
        # The pump waits for the call that was left.
        given_up = producer.send("t", b"given up", partition=0)
        producer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        with pytest.raises(ClosedError):
            given_up.result()
        with producer:
            producer.send("t", b"once more", partition=0).result()

    assert within_patience(use) is None
    assert node.values() == [b"once more"]


def test_a_close_that_was_left_in_the_middle_is_made_good_by_the_next(node, monkeypatch):
    consumer = consumer_of(node).open()
    ended = []

    def poll() -> None:
        try:
            ended.append(consumer.poll(timeout_ms=3_600_000))
        except ClosedError as error:
            ended.append(error)

    def use() -> None:
        waiter = threading.Thread(target=poll)
        waiter.start()
        with monkeypatch.context() as patch:
            patch.setattr(portal.Opened, "close", interrupt)
            patch.setattr(portal.Opened, "abandon", interrupt)
            with pytest.raises(Interrupted):
                consumer.close()
        consumer.close()
        waiter.join()

    assert within_patience(use) is None
    assert isinstance(ended[0], ClosedError)


def interrupt(*_: object) -> None:
    """Strikes instead of what was called."""
    raise Interrupted
