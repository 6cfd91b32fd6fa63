"""Threads that wait for what trio's thread makes come true, with no task that waits for them there.

Goal: `net/told.py`, and `result()` of the blocking producer, which is built on it. Method: threads
at once, Ctrl-C at each point where Python looks for signals, and a real node in a thread of its
own.
"""

# ruff: noqa: F811 - fixtures are imported by name

import threading
from functools import partial

import pytest
from striking import struck
from test_blocking import node, producer_of  # noqa: F401
from test_runs_stored import held_up
from three_nodes import until

from hightide import ApiError, ClosedError
from hightide.blocking import Admin, runs
from hightide.blocking.portal import Call, Opened
from hightide.net import told
from hightide.net.told import tell, wait_to_be_told
from hightide.produce import delivery
from hightide.produce.sender import Sender

LONG_S = 600.0
"""Nobody waits for so long who is told."""
THREADS, ROUNDS = 4, 300


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(*threads):
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it was not told"


def test_whoever_comes_while_it_happens_is_told_or_sees_it():
    for _ in range(ROUNDS):
        waiting, happened = [], []
        begin = threading.Barrier(THREADS + 1)

        def wait(waiting=waiting, happened=happened, begin=begin):
            begin.wait(60)
            wait_to_be_told(waiting, lambda: bool(happened), LONG_S)

        threads = [in_thread(wait) for _ in range(THREADS)]
        begin.wait(60)
        happened.append(True)
        tell(waiting)
        ended(*threads)
        assert waiting == []


def test_what_happens_just_after_the_look_is_heard_of():
    waiting = []

    def is_over():
        tell(waiting)
        return False

    ended(in_thread(lambda: wait_to_be_told(waiting, is_over, LONG_S)))


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.01])
def test_who_has_waited_long_enough_is_forgotten(timeout_s):
    waiting = []
    wait_to_be_told(waiting, lambda: False, timeout_s)
    assert waiting == []


def test_an_interruption_leaves_nobody_to_be_told():
    left, was_struck = [], True
    while was_struck:
        waiting = []
        was_struck = struck(
            len(left) + 1,
            lambda waiting=waiting: wait_to_be_told(waiting, lambda: False, 0.0),
            told,
        )
        left.append(len(waiting))
        tell(waiting)  # in vain, where one is left
    assert sum(left) <= 1, "but where it strikes just before that is taken back"
    assert len(left) > 5, "the points were not found"


# --- the outcome of a record --------------------------------------------------------------------


def test_an_outcome_is_waited_for_without_a_task(node, monkeypatch):
    with producer_of(node) as producer:
        assert producer.send("t", b"0", partition=0).result().offset == 0
        with monkeypatch.context() as patch:
            patch.delattr(Opened, "run")
            assert producer.send("t", b"1", partition=0).result().offset == 1


def test_a_thread_is_woken_once_for_its_record_however_early_it_waits(node, monkeypatch):
    waits, begun = [], threading.Event()

    def wait(told, is_over, timeout_s):
        def look():
            found = is_over()
            begun.set()
            return found

        waits.append(told)
        wait_to_be_told(told, look, timeout_s)

    for module in (runs, delivery):
        monkeypatch.setattr(module, "wait_to_be_told", wait)
    with producer_of(node) as producer:
        producer.send("t", b"0", partition=0).result()
        waits.clear()
        begun.clear()
        with held_up(producer):
            sent = producer.send("t", b"1", partition=0)
            thread = in_thread(sent.result)
            assert begun.wait(60)
        ended(thread)
        assert sent.result().offset == 1
    assert len(waits) == 1


def test_an_outcome_that_takes_long_is_looked_for_again_and_again(node, monkeypatch):
    monkeypatch.setattr(runs, "LOOK_S", 0.001)
    looks, looked = [], threading.Event()
    with producer_of(node, linger_ms=60_000) as producer:
        life = producer._last_life

        def look():
            looks.append(True)
            if len(looks) == 5:
                looked.set()
            return life()

        sent = producer.send("t", b"x", partition=0)
        with monkeypatch.context() as patch:
            patch.setattr(producer, "_last_life", look)
            thread = in_thread(sent.result)
            assert looked.wait(60)
        producer.flush()
        ended(thread)
        assert sent.result().offset == 0


def test_a_thread_that_waits_while_the_producer_is_closed_has_its_outcome(node):
    found = []
    with producer_of(node, linger_ms=60_000) as producer:
        sent = producer.send("t", b"x", partition=0)
        thread = in_thread(lambda: found.append(sent.result()))
    ended(thread)
    assert [each.offset for each in found] == [0]


def test_a_thread_has_its_outcome_although_who_closes_was_interrupted_until_it_went_away(
    node, monkeypatch
):
    found = []

    def interrupted(_):
        raise KeyboardInterrupt

    with producer_of(node, linger_ms=60_000) as producer:
        sent = producer.send("t", b"x", partition=0)
        until(lambda: sent._run.is_over, what="it is buffered")
        with held_up(producer):
            with monkeypatch.context() as patch:
                patch.setattr(Call, "wait", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    producer.close()
            with pytest.raises(ClosedError, match="not open"):
                producer.flush()
            thread = in_thread(lambda: found.append(sent.result()))
        ended(thread)
    assert [each.offset for each in found] == [0]


def test_who_asks_for_a_record_that_is_stored_is_not_told_what_ended_the_producer_later(node):
    """Somebody else is: who closes it."""

    async def fail():
        raise ValueError("a bug")

    producer = producer_of(node).open()
    sent = producer.send("t", b"x", partition=0)
    producer.flush()
    producer._opened().soon(partial(producer._opened().begin, fail))
    until(lambda: not producer._opened().is_at_work, what="it has ended")
    assert sent._awaited(LONG_S).offset == 0
    with pytest.raises(ValueError, match="a bug"):
        producer.close()


def test_a_thread_that_is_quicker_than_who_keeps_its_error_has_seen_it(node, monkeypatch):
    announce, raised = Sender._announce, []
    with Admin(node.address) as admin:
        admin.alter_topic_configs("t", set_={"max.message.bytes": "100"})

    def ask():
        with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
            sent[0].result()
        raised.append(True)

    def ask_before(sender, batch):
        ended(in_thread(ask))
        announce(sender, batch)

    monkeypatch.setattr(Sender, "_announce", ask_before)
    with producer_of(node, linger_ms=60_000) as producer:
        sent = [producer.send("t", b"x" * 500, partition=0)]
    assert raised == [True]


def test_a_thread_waits_for_the_half_that_its_record_is_in_once_a_batch_is_split(node):
    with Admin(node.address) as admin:
        admin.alter_topic_configs("t", set_={"max.message.bytes": "1000"})
    found = []
    with producer_of(node, linger_ms=60_000) as producer:
        sent = [producer.send("t", b"%d" % number * 600, partition=0) for number in range(4)]
        threads = [in_thread(lambda each=each: found.append(each.result())) for each in sent]
        producer.flush()
        ended(*threads)
    assert sorted(each.offset for each in found) == [0, 1, 2, 3]
