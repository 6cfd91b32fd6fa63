"""Records that gather on their way from a thread to the async producer: which do, in what order
they are taken, and what an interruption or the handler of a signal may do in the middle.

Goal: the docstrings of `hightide.blocking.runs`. Method: the queue alone.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

import pytest
from test_blocking import node, producer_of, within_patience  # noqa: F401

from hightide.blocking.runs import FIRST_KIB, QUEUE_KIB, RUN_KIB, Delivery, More, Run, RunQueue
from hightide.protocol.batch_builder import RECORD_OVERHEAD, Batch

RUN_BYTES = RUN_KIB << 10
MEMORY = 32 << 20


def queue_with(*records, record_max: int = 1 << 20) -> RunQueue:
    """Records as (topic, value, key), each sent as the producer does."""
    queue = RunQueue(record_max, MEMORY)
    for record in records:
        put(queue, *record)
    return queue


def new_run(topic, value, key=None, partition=None, more=None) -> Run:
    return Run(None, topic, value, key, partition, more)


def put(queue: RunQueue, topic, value, key=None, partition=None, more=None) -> None:
    is_plain = more is None and value is not None
    if is_plain and queue.join(topic, value, key, partition) is not None:
        return
    run = new_run(topic, value, key, partition, more)
    queue.begin(run, pytest.fail)
    queue.open(run)


def taken(queue: RunQueue) -> list[tuple[str, list[bytes | None], list[bytes] | None]]:
    found = []
    for run in iter(queue.take, None):
        keys, values = run.columns()
        found.append((run.topic, list(values), keys and list(keys)))
    return found


# --- the queue ------------------------------------------------------------------------------------


def test_records_of_a_topic_gather_and_topics_do_not_disturb_each_other():
    queue = queue_with(("t", b"1"), ("u", b"2"), ("t", b"3"), ("u", b"4"))
    assert taken(queue) == [("t", [b"1", b"3"], None), ("u", [b"2", b"4"], None)]


def test_records_with_a_key_gather_apart_from_those_without():
    queue = queue_with(("t", b"1", b"k"), ("t", b"2", b"l"), ("t", b"3"), ("t", b"4", b"k"))
    assert taken(queue) == [
        ("t", [b"1", b"2"], [b"k", b"l"]),
        ("t", [b"3"], None),
        ("t", [b"4"], [b"k"]),
    ]


def test_records_of_a_partition_that_the_sender_names_gather():
    queue = queue_with(
        ("t", b"1", None, 3), ("t", b"2", None, 3), ("t", b"3", b"k", 3), ("t", b"4", b"k"),
        ("t", b"5", None, 0), ("t", b"6"), ("t", b"7", None, 3.0), ("t", b"8", None, 3.0),
    )  # fmt: skip
    assert [values for _, values, _ in taken(queue)] == [
        *([b"1", b"2"], [b"3"], [b"4"], [b"5"], [b"6"], [b"7"], [b"8"])
    ]


@pytest.mark.parametrize(
    ("value", "key", "more"),
    [
        (b"2", None, More(5, ())),
        (None, None, None),
        (None, b"k", None),
        (b"2" * RUN_BYTES, None, None),
        (b"2", b"k" * RUN_BYTES, None),
    ],
    ids=["more", "null", "deleted", "large", "large key"],
)
def test_what_comes_after_a_record_that_goes_alone_does_not_go_before_it(value, key, more):
    queue = queue_with(("t", b"1"), ("t", value, key, None, more), ("t", b"3"), ("t", b"4"))
    assert [values for _, values, _ in taken(queue)] == [[b"1"], [value], [b"3", b"4"]]


def test_a_run_takes_so_many_bytes_as_records_are_counted():
    size, count = 1000 - RECORD_OVERHEAD, 4 * RUN_BYTES // 1000
    queue = queue_with(*[("t", b"x" * size)] * count, *[("u", b"x" * (size - 2), b"kk")] * count)
    runs = taken(queue)
    assert sum(len(values) for _, values, _ in runs) == 2 * count
    for _, values, _ in runs:
        assert len(values) <= RUN_BYTES // 1000 + 1
    assert len(runs) <= 2 * (count // (RUN_BYTES // 1000 - 1) + 1)


def test_a_thousand_topics_have_a_run_each():
    """Each had places for a whole one: a loop over more topics than those were was one of threads
    that wait for each other."""
    queue, topics = RunQueue(1 << 20, MEMORY), [f"t{number}" for number in range(1000)]
    for value in (b"1", b"2", b"3"):
        for topic in topics:
            put(queue, topic, value)
    assert taken(queue) == [(topic, [b"1", b"2", b"3"], None) for topic in topics]


def test_a_run_grows_while_there_are_places_and_gives_all_of_them_back():
    queue, most = RunQueue(1 << 20, MEMORY), 3 * QUEUE_KIB // 4
    for _ in range(3):
        for _ in range(most):
            put(queue, "t", b"x" * (1024 - RECORD_OVERHEAD))
        assert not queue._places.take_now(QUEUE_KIB - most + RUN_KIB, []), "what is queued has them"
        sizes = [len(values) for _, values, _ in taken(queue)]
        assert max(sizes) <= RUN_KIB + 1
        assert len(sizes) <= most // RUN_KIB + 1
        every = []
        assert queue._places.take_now(QUEUE_KIB, every), "all of them are free"
        queue._places.leave(every)


def test_a_run_that_is_taken_while_it_grows_gives_its_places_back():
    queue = queue_with(("t", b"1"))
    run, take_now = queue._last["t"], queue._places.take_now

    def late(count, into):
        assert queue.take() is run
        return take_now(count, into)

    queue._places.take_now = late
    assert queue.join("t", b"x" * (FIRST_KIB << 10), None, None) is None
    assert run.records == [b"1"]
    assert take_now(QUEUE_KIB, []), "all of them are free"


def test_a_run_is_no_larger_than_a_record_may_be():
    queue = queue_with(*[("t", b"x" * 30)] * 3, ("t", b"x" * 77), ("t", b"x"), record_max=100)
    assert [len(values) for _, values, _ in taken(queue)] == [2, 1, 1, 1]


def test_nothing_gathers_where_each_record_is_to_be_seen_alone():
    queue = queue_with(("t", b"1"), ("t", b"2"), record_max=0)
    assert [values for _, values, _ in taken(queue)] == [[b"1"], [b"2"]]


def test_a_run_that_was_taken_takes_nothing_more():
    queue = queue_with(("t", b"1"))
    assert queue.take() is not None
    assert queue.join("t", b"2", None, None) is None


def test_a_run_that_is_taken_before_it_is_open_stays_closed():
    queue, run = RunQueue(1 << 20, MEMORY), new_run("t", b"1")
    queue.begin(run, pytest.fail)
    assert queue.join("t", b"2", None, None) is None, "trio's thread does not know of it yet"
    assert queue.take() is run
    queue.open(run)
    assert queue.join("t", b"2", None, None) is None


def test_a_run_that_is_opened_late_does_not_take_what_belongs_behind_another():
    """Two threads: one begins a run, another one begins one behind it, then the first goes on."""
    queue, first, second = RunQueue(1 << 20, MEMORY), *(new_run("t", v) for v in (b"1", b"2"))
    queue.begin(first, pytest.fail)
    queue.begin(second, pytest.fail)
    queue.open(second)
    queue.open(first)
    assert queue.join("t", b"3", None, None) is not None
    assert [values for _, values, _ in taken(queue)] == [[b"1"], [b"2", b"3"]]


class Interrupted(Exception):
    pass


class Striking(dict):
    """Where records are put; something strikes in the middle of that, once it is there."""

    def __init__(self, records, strike):
        super().__init__(records)
        self._strike = strike

    def __setitem__(self, index, record):
        super().__setitem__(index, record)
        self._strike()


def test_an_interruption_leaves_keys_and_values_together():
    def interrupt():
        raise Interrupted

    queue = queue_with(("t", b"1", b"a"))
    run = queue._last["t"]
    run.slots = Striking(run.slots, interrupt)
    with pytest.raises(Interrupted):
        queue.join("t", b"2", b"b", None)
    run.slots = dict(run.slots)
    assert queue.join("t", b"3", b"c", None)._index == 2
    assert taken(queue) == [("t", [b"1", b"2", b"3"], [b"a", b"b", b"c"])]


def test_an_interruption_that_loses_an_index_leaves_the_others_with_their_records():
    queue = queue_with(("t", b"1"))
    run = queue._last["t"]
    next(run.numbers)
    late = queue.join("t", b"2", None, None)
    assert queue.take() is run
    run.placement.group(range(2)).append((Batch("t", 0, 0.0, (0,)), 5, 2))
    assert [run.find(index)._index for index in (0, late._index)] == [5, 6]


def test_the_handler_of_a_signal_may_send_and_wait_in_the_middle_of_a_send():
    """It waits for trio's thread, which takes what there is meanwhile: that thread may need nothing
    that the send holds."""
    queue = queue_with(("t", b"1"))
    run, took = queue._last["t"], []

    def handle():
        queue.join("u", b"of the handler", None, None)
        thread = threading.Thread(target=lambda: took.append(queue.take()), daemon=True)
        thread.start()
        thread.join(60)

    run.slots = Striking(run.slots, handle)
    sent = queue.join("t", b"2", None, None)
    assert took == [run]
    assert sent._index == 1, "it was in when the run was taken"
    assert run.records == [b"1", b"2"]


def test_what_comes_after_its_run_was_taken_goes_into_another():
    queue = queue_with(("t", b"1"))
    run = queue._last["t"]

    class Late(dict):
        def __setitem__(self, index, record):
            assert queue.take() is run
            super().__setitem__(index, record)

    run.slots = Late(run.slots)
    assert queue.join("t", b"2", None, None) is None
    put(queue, "t", b"2")
    assert (run.records, taken(queue)) == ([b"1"], [("t", [b"2"], None)])


def test_threads_that_join_while_runs_are_taken_lose_nothing_and_double_nothing():
    queue, sent, ended = RunQueue(1 << 20, MEMORY), [[], [], []], []

    def send(name):
        for number in range(20_000):
            value = b"%d %d" % (name, number)
            delivery = queue.join("t", value, None, None)
            if delivery is None:
                run = new_run("t", value)
                queue.begin(run, lambda: None)
                queue.open(run)
                delivery = Delivery(run, 0)
            sent[name].append((delivery, value))
        ended.append(name)

    threads = [threading.Thread(target=send, args=(name,), daemon=True) for name in range(3)]
    for thread in threads:
        thread.start()
    stored = []
    while len(ended) < 3 or len(queue):
        run = queue.take()
        if run is not None:
            stored += run.records
    assert len(stored) == 60_000
    for own in sent:
        for delivery, value in own:
            run = delivery._run
            place = bisect_left(run.indexes, delivery._index)
            assert (run.indexes[place], run.records[place]) == (delivery._index, value)
    for name in range(3):
        numbers = [int(value.split()[1]) for value in stored if value.startswith(b"%d " % name)]
        assert numbers == list(range(20_000))


class Name(str):
    """As the members of a StrEnum are."""


def test_a_name_of_another_class_is_the_same_topic():
    queue, run = queue_with(("t", b"1")), new_run(Name("t"), b"2")
    queue.begin(run, pytest.fail)
    queue.open(run)
    put(queue, "t", b"3")
    assert [values for _, values, _ in taken(queue)] == [[b"1"], [b"2"], [b"3"]]


def test_headers_and_what_will_be_refused_count_as_what_they_are():
    queue = RunQueue(1 << 30, MEMORY)
    for run in (
        new_run("t", b"x", more=More(None, (("h", b"x" * (1 << 20)), ("no", "y" * (1 << 20)), 7))),
        new_run("t", "text" * (1 << 18)),
        new_run("t", 5),
    ):
        queue.begin(run, full)
        assert run.weights == [{b"x": 2049, 5: 1}.get(run.slots[0], 1025)]


def test_who_waits_for_a_place_sees_to_it_that_somebody_takes():
    queue, looked = RunQueue(1 << 20, 1024), []

    def look():
        looked.append(queue.take())

    queue.begin(new_run("t", None, b"1"), full)
    queue.begin(new_run("t", None, b"2"), look)
    assert [run.records for run in looked] == [[(b"1", None)]]


def test_an_interruption_while_it_is_queued_gives_its_place_back():
    queue = RunQueue(1 << 20, 1024)

    class Full(list):
        def append(self, _):
            raise Interrupted

    items, queue._items = queue._items, Full()
    with pytest.raises(Interrupted):
        queue.begin(new_run("t", b"1"), full)
    queue._items = items
    queue.begin(new_run("t", b"2"), full)


def test_an_error_is_not_that_of_a_record_that_is_buffered():
    """It is told between two looks of `find`, right after the record was buffered."""
    run = new_run("t", b"1")
    run.take()

    class Placed:
        def find(self, _):
            run.end(ValueError("of the next record"))

    run.placement = Placed()
    assert run.find(0) is None
    with pytest.raises(ValueError, match="next record"):
        run.find(0)


def test_a_mark_is_set_when_everything_before_it_was_taken():
    queue = queue_with(("t", b"1"))
    mark = queue.mark()
    put(queue, "u", b"2")
    assert queue.take().records == [b"1"]
    assert not mark.is_set()
    assert queue.take().records == [b"2"]
    assert mark.is_set()


def test_the_queue_holds_so_much_and_a_large_record_counts_as_what_it_is():
    queue = RunQueue(1 << 30, MEMORY)
    for _ in range(QUEUE_KIB // 1024 - 1):
        put(queue, "t", b"x" * (1024 << 10))
    with pytest.raises(RuntimeError, match="full"):
        queue.begin(new_run("t", b"x" * (1024 << 10)), full)
    queue.take()
    put(queue, "t", b"x" * (1024 << 10))
    with pytest.raises(RuntimeError, match="full"):
        queue.begin(new_run("t", b"x" * (64 << 20)), full)
    assert len(taken(queue)) == QUEUE_KIB // 1024 - 1
    put(queue, "t", b"larger than the queue" * (1 << 20))
    assert len(taken(queue)) == 1


def test_a_producer_with_little_memory_queues_little():
    queue = RunQueue(1 << 20, 100 << 10)
    for number in range(100):
        queue.begin(new_run("t", None, b"%d" % number), full)
    with pytest.raises(RuntimeError, match="full"):
        queue.begin(new_run("t", None, b"100"), full)
    assert len(taken(queue)) == 100
    put(RunQueue(500, 500), "t", b"less than a KiB")


def full() -> None:
    raise RuntimeError("full")
