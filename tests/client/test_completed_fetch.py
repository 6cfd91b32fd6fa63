"""What waits to be handed out: records and rows that are lent to another thread, and rows of Arrow
within bounds.

Goal: `ready.py`: a position is never beyond what a caller has, and one bad or large batch costs
none of the others. Method: batches by hand, no network.
"""

import random
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
from brokers import batch
from test_blocking import HANGS_S

from hightide.consume import completed_fetch as module
from hightide.consume.completed_fetch import CompletedFetch, Lent
from hightide.consume.subscription import FetchedBatch, Subscription
from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import parse_header, stamp
from hightide.protocol.topic_partition import TopicPartition

WHERE = TopicPartition("t", 0)


def fetched(*values: bytes, at: int) -> FetchedBatch:
    data = bytearray(batch(*values))
    stamp(data, base_offset=at, leader_epoch=3)
    return FetchedBatch(parse_header(data), memoryview(data))


@pytest.fixture
def found():
    """A subscription to one partition, at offset 0, and what hands out."""
    subscription = Subscription()
    subscription.assign([WHERE])
    assignment = subscription.get(WHERE)
    assignment.seek(0)
    return assignment, CompletedFetch(subscription)


@pytest.mark.parametrize("take", [list, Lent.take_all], ids=["one-by-one", "all-at-once"])
@pytest.mark.parametrize("line", range(8))
def test_nobody_who_ends_it_waits_for_who_takes(take, line):
    """In the middle of taking, the handler of a signal may close the consumer: its thread waits for
    trio's, which ends what was lent."""
    counts, lines = [], []

    def end_it(frame, event, _):
        if event == "line" and frame.f_code in (Lent.__iter__.__code__, Lent.take_all.__code__):
            lines.append(frame.f_lineno)
            if len(lines) == line + 1:
                other = threading.Thread(target=lent.end, daemon=True)
                other.start()
                other.join(HANGS_S)
                assert not other.is_alive()
        return end_it

    lent = Lent([*"abc"], lambda count, _: counts.append(count))
    before = sys.gettrace()
    sys.settrace(end_it)
    try:
        taken = take(lent)
    finally:
        sys.settrace(before)
    lent.catch_up()
    lent.catch_up()
    assert sum(counts) == len(taken)
    assert taken == [*"abc"[: len(taken)]]


def rows(lent):
    return lent.take_all().column("value").to_pylist()


def test_a_record_that_ctrl_c_keeps_from_a_loop_does_not_count(request):
    """Struck at some moment, again and again: the loop has what counts as taken."""
    chance = random.Random(1)
    request.addfinalizer(partial(signal.signal, signal.SIGALRM, signal.SIG_DFL))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    strikes = 0
    for _ in range(2_000):
        has, counted = 0, []
        lent = Lent([*range(500)], lambda count, _, counted=counted: counted.append(count))
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-6, 6e-5))
            for _record in lent:
                has += 1
            while True:
                time.sleep(0.001)
        lent.catch_up()
        strikes += 0 < has < 500
        assert sum(counted) == has
    assert strikes, "nobody was ever struck"


def test_lent_records_count_as_they_are_taken(found):
    assignment, ready = found
    ready.decode(WHERE, fetched(b"a", b"b", b"c", at=0))
    lent = ready.lend(2)
    taking = iter(lent)
    ready.catch_up()
    assert assignment.position == 0
    assert next(taking).value == b"a"
    ready.catch_up()
    ready.catch_up()
    assert (assignment.position, ready.in_work.value) == (1, b"a")
    assert next(taking).value == b"b"
    assert list(taking) == []
    ready.settle()
    assert (assignment.position, ready.in_work.value) == (2, b"b")
    assert [r.value for r in ready.lend(9).take_all()] == [b"c"]
    ready.settle()
    assert assignment.position == 3
    assert not ready


def test_what_was_not_taken_is_lent_to_the_next_one_and_to_nobody_else(found):
    assignment, ready = found
    ready.decode(WHERE, fetched(b"a", b"b", at=0))
    first = ready.lend(2)
    ready.settle()
    assert list(first) == []
    assert [r.value for r in ready.lend(2)] == [b"a", b"b"]
    ready.settle()
    assert assignment.position == 2


def test_what_was_lent_of_a_partition_that_is_gone_is_not_taken_any_more(found):
    _, ready = found
    ready.decode(WHERE, fetched(b"a", b"b", at=0))
    lent = ready.lend(2)
    taking = iter(lent)
    next(taking)
    ready.drop_of([WHERE])
    assert list(taking) == []
    ready.settle()


@pytest.mark.parametrize("position", [None, 7])
@pytest.mark.parametrize(
    "take",
    [
        CompletedFetch.pop,
        CompletedFetch.pop_at_once,
        lambda completed: completed.lend(1).take_all()[0],
        CompletedFetch.give_back,
    ],
    ids=["pop", "at-once", "lent", "given-back"],
)
def test_what_was_decoded_of_a_topic_says_nothing_of_the_next_one_of_its_name(
    found, take, position
):
    """Deleted and made again: the position is to be found, or was, in a log that is another."""
    assignment, completed = found
    assignment.seek(500)
    completed.decode(WHERE, fetched(b"a", b"b", at=500))
    assignment.forget_position()
    if position is not None:
        assignment.seek(position)
    record = take(completed)
    completed.settle()
    assert record is None or record.offset == 500
    assert assignment.position == position


def test_lent_rows_count_when_they_are_taken(found):
    assignment, ready = found
    for at in (0, 2):
        assignment.add(fetched(b"a", b"b", at=at))
    lent = ready.lend_rows(assignment)
    ready.settle()
    assert (assignment.position, len(assignment.fetched)) == (0, 2)
    assert rows(ready.lend_rows(assignment)) == [b"a", b"b"] * 2
    assert lent.take_all() is None
    ready.settle()
    assert (assignment.position, assignment.position_epoch, len(assignment.fetched)) == (4, 3, 0)


def test_rows_that_were_taken_after_a_seek_move_nothing(found):
    assignment, ready = found
    assignment.add(fetched(b"a", at=0))
    lent = ready.lend_rows(assignment)
    assignment.seek(7)
    lent.take_all()
    ready.settle()
    assert assignment.position == 7


def test_rows_end_with_the_batch_that_reaches_the_bound(found, monkeypatch):
    monkeypatch.setattr(module, "ARROW_BYTES", 100)
    assignment, ready = found
    for at in range(5):
        assignment.add(fetched(b"%d" % at * 60, at=at))
    sizes = []
    while assignment.fetched:
        sizes.append(len(rows(ready.lend_rows(assignment))))
        ready.settle()
    assert sizes == [2, 2, 1]
    assert assignment.position == 5


def spoil(part: FetchedBatch) -> FetchedBatch:
    """The same batch with a length that cannot be: its checksum was not looked at."""
    data = bytearray(part.data)
    data[-20] ^= 0x40
    return FetchedBatch(part.header, memoryview(data[:-3]))


def test_rows_before_a_bad_batch_are_handed_out_and_then_it_is_told(found):
    assignment, ready = found
    assignment.add(fetched(b"a", b"b", at=0))
    assignment.add(spoil(fetched(b"c", at=2)))
    assert rows(ready.lend_rows(assignment)) == [b"a", b"b"]
    ready.settle()
    with pytest.raises(CorruptBatch):
        ready.lend_rows(assignment)
    assert assignment.position == 2
    assert not assignment.fetched, "it is fetched again"
    assert assignment.fetch_offset == 2


def test_a_failure_of_another_kind_takes_nothing(found, monkeypatch):
    assignment, ready = found
    assignment.add(fetched(b"a", at=0))

    def no_memory(*_, **__):
        raise MemoryError

    monkeypatch.setattr(module, "open_batch", no_memory)
    with pytest.raises(MemoryError):
        ready.lend_rows(assignment)
    monkeypatch.undo()
    assert rows(ready.lend_rows(assignment)) == [b"a"]
