"""Records that gather on their way to the async producer: where each one is stored, and what
becomes of those that cannot be buffered.

Goal: the docstrings of `hightide.blocking.Producer`. Method: a real node in a thread of its own.
"""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from test_blocking import HANGS_S, node, producer_of, within_patience  # noqa: F401
from test_portal import in_child
from tries import few

from hightide import ApiError, ClosedError, RequestTimedOut
from hightide.blocking.producer import RUNS_AT_ONCE
from hightide.protocol.errors import RecordTooLarge, UsageError

# ruff: noqa: F811 - fixtures are imported by name


class Interrupted(Exception):
    pass


@contextmanager
def held_up(producer):
    """The thread that sends does nothing meanwhile."""
    go_on = threading.Event()
    producer._opened().soon(go_on.wait)
    try:
        yield
    finally:
        go_on.set()


class Turns(trio.abc.Instrument):
    """How many records of a producer were moved in each turn of a task."""

    def __init__(self, producer):
        self.moved = [0]
        for name in ("send", "send_at_once"):
            setattr(producer._async, name, self.counted(getattr(producer._async, name)))

    def counted(self, send):
        def count(*record, **fields):
            self.moved[-1] += 1
            return send(*record, **fields)

        return count

    def before_task_step(self, task):
        self.moved.append(0)


def test_others_have_their_turn_however_many_records_are_queued(node):
    """Those with headers are runs of their own, and small ones fill no batch for long."""
    with producer_of(node, batch_size=1 << 20) as producer:
        producer.send("t", b"the topic is known").result()
        turns = Turns(producer)
        producer._opened().run_sync(partial(trio.lowlevel.add_instrument, turns))
        with held_up(producer):
            for _ in range(10 * RUNS_AT_ONCE):
                producer.send("t", b"", headers=[("h", b"")])
        producer.flush()
    assert sum(turns.moved) >= 10 * RUNS_AT_ONCE
    assert max(turns.moved) <= RUNS_AT_ONCE + 1


def sent_into_a_bug(producer, monkeypatch):
    """A record that a task is to move which has a bug: it strikes once the record was sent."""
    is_sent = trio.Event()

    async def move(run):
        await is_sent.wait()
        raise ZeroDivisionError

    monkeypatch.setattr(producer, "_move", move)
    sent = producer.send("t", b"its topic is not known yet")
    producer._opened().soon(is_sent.set)
    return sent


def test_a_bug_where_records_are_moved_is_told_to_who_waits(node, monkeypatch):
    """Nobody waits for the task that moves them; a flush would say that all is well."""
    producer = producer_of(node).open()
    sent = sent_into_a_bug(producer, monkeypatch)
    assert isinstance(within_patience(producer.flush), ZeroDivisionError)
    with pytest.raises(ClosedError, match="ZeroDivisionError"):
        producer.send("t", b"a")
    with pytest.raises(ClosedError):
        producer.close()
    assert isinstance(within_patience(sent.result), ClosedError)


def test_a_flush_that_comes_while_such_a_bug_ends_the_producer_is_told_of_it(node, monkeypatch):
    """Nothing is queued by then, and nothing buffered; and its end may take long."""

    async def leave(*how):
        flushing.start()
        with trio.move_on_after(HANGS_S):
            while not is_told.is_set():
                await trio.lowlevel.checkpoint()
        await real_leave(*how)

    def flush():
        found.append(within_patience(producer.flush))
        is_told.set()

    found, is_told = [], threading.Event()
    producer = producer_of(node).open()
    flushing = threading.Thread(target=flush)
    real_leave = producer._async.__aexit__
    monkeypatch.setattr(producer._async, "__aexit__", leave)
    sent_into_a_bug(producer, monkeypatch)
    assert is_told.wait(2 * HANGS_S)
    assert isinstance(found[0], ZeroDivisionError)
    with pytest.raises(ClosedError):
        producer.close()


class Text(str):
    """A user's own kind of text, which is not for us to be asked."""

    def __str__(self):
        raise ZeroDivisionError

    __hash__ = __eq__ = __str__


class NoText:
    __str__ = Text.__str__


@pytest.mark.parametrize(
    ("topic", "outcome"),
    [(Text("t"), None), (NoText(), UsageError), (None, UsageError)],
    ids=["text of its own kind", "no text", "none"],
)
def test_what_is_wrong_with_a_topic_is_its_records_own(node, topic, outcome):
    with producer_of(node) as producer:
        sent = producer.send(topic, b"a")
        told = within_patience(sent.result)
        assert told is None if outcome is None else isinstance(told, outcome)
        assert producer.send("t", b"b").result().topic == "t"


def test_who_sends_while_the_producer_is_opened_again_gives_up_nothing_of_its_new_life(
    node, monkeypatch
):
    is_late, goes_on, held = threading.Event(), threading.Event(), trio.Event()
    producer = producer_of(node).open()
    begin, send = producer._queue.begin, producer._async.send

    def begin_late(*of_run):
        if threading.current_thread() is late:
            is_late.set()
            goes_on.wait(HANGS_S)
        return begin(*of_run)

    async def send_held(**record):
        await held.wait()
        return await send(**record)

    monkeypatch.setattr(producer._queue, "begin", begin_late)
    late = threading.Thread(target=producer.send, args=("t", b"late"))
    late.start()
    assert is_late.wait(HANGS_S)
    producer.close()
    monkeypatch.setattr(producer._async, "send_at_once", lambda record: None)
    monkeypatch.setattr(producer._async, "send", send_held)
    with producer:
        sent = producer.send("t", b"a")
        producer._run_sync(lambda: None)  # its pump has it
        goes_on.set()
        late.join(HANGS_S)
        producer._opened().soon(held.set)
        producer.flush()
        assert sent.result().topic == "t"


@pytest.mark.parametrize("seed", few(range(5), 2))
def test_each_delivery_tells_where_its_record_is_and_partitions_keep_the_order(node, seed):
    dice, sent = random.Random(seed), []
    with producer_of(node, batch_size=2_000) as producer:
        for number in range(3_000):
            value = b"%05d" % number + b"x" * dice.choice([0, 0, 10, 1_500])
            more = {}
            match dice.randrange(40):
                case 0:
                    more = {"partition": dice.randrange(2)}
                case 1:
                    more = {"headers": [("h", b"1")]}
                case 2:
                    more = {"timestamp": 5, "key": b"k"}
                case 3:
                    value, more = None, {"key": b"gone"}
                case _ if number % 600 < 100:
                    more = {"partition": number % 600 // 50, **dice.choice([{}, {"key": b"k"}])}
                case _ if number % 300 < 150:
                    more = {"key": b"%d" % dice.randrange(20)}
            sent.append((producer.send("t", value, **more), value))
            if dice.randrange(500) == 0:
                sent[-1][0].result()
    stored = [node.values(0), node.values(1)]
    for delivery, value in sent:
        where = delivery.result()
        assert stored[where.partition][where.offset] == value
    for values in stored:
        own = [value for value in values if value is not None]
        assert own == sorted(own)
    assert sum(map(len, stored)) == len(sent)


def test_every_record_of_a_run_has_the_error_of_its_topic(node):
    def use() -> None:
        with producer_of(node) as producer:
            with held_up(producer):  # so that they gather
                sent = [producer.send("nowhere", b"%d" % number) for number in range(5)]
                assert len({id(each._run) for each in sent}) == 1
            for each in sent:
                with pytest.raises(ApiError, match="nowhere"):
                    each.result()

    assert within_patience(use) is None


def test_a_record_that_is_too_large_harms_no_other(node):
    with producer_of(node, max_request_size=1_000) as producer:
        sent = [producer.send("t", b"x" * size) for size in (1, 976, 977, 2)]
        with pytest.raises(RecordTooLarge):
            sent[2].result()
        assert [sent[n].result().offset >= 0 for n in (0, 1, 3)] == [True] * 3


@pytest.mark.parametrize("key", [None, b"k"], ids=["plain", "keyed"])
def test_what_finds_no_memory_in_time_is_told_and_what_did_is_stored(node, key):
    def use() -> None:
        options = {"buffer_memory": 1_000, "batch_size": 500, "max_block_ms": 100}
        with producer_of(node, linger_ms=0, acks=1, **options) as producer:
            producer.send("t", b"first", key=key).result()
            producer._async._sender._send_request = never
            producer._async._sender.send_now = lambda _: False
            value = b"x" * (76 - len(key or b""))  # ten records fill the memory
            sent = [producer.send("t", value, key=key) for _ in range(18)]
            for each in sent[10:]:
                with pytest.raises(RequestTimedOut, match="buffer_memory"):
                    each.result()
            with pytest.raises(RequestTimedOut, match="no outcome"):
                sent[9].result(timeout_s=0.01)
            raise KeyboardInterrupt  # which does not wait for what cannot be sent

    async def never(*_: object) -> None:
        import trio

        await trio.sleep_forever()

    assert isinstance(within_patience(use), KeyboardInterrupt)


def test_a_send_after_one_that_was_interrupted_is_not_waited_for_in_vain(node, monkeypatch):
    def interrupt(_: object) -> None:
        raise Interrupted

    def use() -> None:
        with producer_of(node) as producer:
            with monkeypatch.context() as patch:
                patch.setattr(producer._opened(), "soon", interrupt)
                with pytest.raises(Interrupted):
                    producer.send("t", b"1", key=b"k")
            producer.send("t", b"2", key=b"k").result()

    assert within_patience(use) is None
    assert sorted(node.values(0) + node.values(1)) == [b"1", b"2"]


@pytest.mark.parametrize("wrong", [["t"], 7, None], ids=repr)
def test_a_topic_that_is_no_name_is_an_error_of_its_record(node, wrong):
    def use() -> None:
        with producer_of(node) as producer:
            sent = [producer.send(topic, b"x") for topic in ("t", wrong, "t", wrong)]
            for each in sent[1::2]:
                with pytest.raises(UsageError, match="expected its name"):
                    each.result()
            assert [sent[n].result().topic for n in (0, 2)] == ["t", "t"]

    assert within_patience(use) is None


def test_a_forked_child_is_refused_also_while_another_thread_was_sending(node):
    def use() -> None:
        with producer_of(node) as producer, held_up(producer):
            producer.send("t", b"the parent's")
            with producer._queue._lock:  # as if by another thread
                said = in_child(partial(producer.send, "t", b"the child's"))
            assert said.startswith("ClosedError(")

    assert within_patience(use) is None
    assert node.values(0) + node.values(1) == [b"the parent's"]


def test_a_generator_that_waits_for_another_client_is_not_waited_for_by_all(node):
    def use() -> None:
        with producer_of(node) as one, producer_of(node) as other:

            def values():
                yield b"1"
                other.send("t", b"other", partition=1).result()
                yield b"2"

            one.send_many("t", values(), keys=iter([b"k", b"k"]), partition=0).result()

    assert within_patience(use) is None
    assert node.values(0) == [b"1", b"2"]


def test_an_error_is_raised_at_the_end_of_its_own_block_only(node):
    producer = producer_of(node)
    with pytest.raises(ApiError, match="nowhere"), producer:
        producer.send("nowhere", b"x")
    with producer:
        producer.send("t", b"x").result()


def test_a_forked_child_closes_what_its_parent_sends_without_a_word(node):
    def use() -> None:
        with producer_of(node) as producer, held_up(producer):
            producer.send("t", b"the parent's")
            producer.send("t", b"the parent's", timestamp=5)
            assert in_child(producer.close) == "None"

    assert within_patience(use) is None
    assert len(node.values(0) + node.values(1)) == 2


def test_a_producer_that_was_closed_is_another_one_in_each_child_that_opens_it(node):
    producer = producer_of(node)

    def send(value) -> list[int]:
        with producer:
            return [producer.send("t", value, partition=0).result().offset for _ in range(2)]

    assert send(b"parent") == [0, 1]
    for child in range(2):
        assert in_child(partial(send, b"child %d" % child)) == str([2 + 2 * child, 3 + 2 * child])
    assert send(b"parent") == [6, 7]
    assert len(node.values(0)) == 8
