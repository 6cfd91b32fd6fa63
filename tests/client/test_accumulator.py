"""The producer's memory, step by step: what a batch gathers, when it is due, what a request holds.

Goal: Kafka's rules. Method: time is an argument, so each test is a short story; what a
broker would get is decoded from the drained bytes. Order, gaps and expiry are
`test_accumulator_order.py`'s.
"""

import pytest
from accumulating import NEVER, REFUSED, Story, header, sequences, stored

from hightide.produce.accumulator import SEQUENCE_MAX
from hightide.protocol.batch_builder import RECORD_OVERHEAD
from hightide.protocol.columns import to_records
from hightide.protocol.errors import DeliveryTimeout
from hightide.protocol.records import check_crc

# --- filling ------------------------------------------------------------------------------------


def test_records_gather_until_the_next_one_does_not_fit():
    story = Story()
    first = story.put(b"a", size=60)
    assert story.put(b"b", size=40) is first
    second = story.put(b"c", size=1)
    assert second is not first
    assert (first.values, second.values) == ([b"a", b"b"], [b"c"])


def test_only_a_first_record_is_news_for_the_sender():
    story = Story()

    def put(size):
        return story.core.append("t", 0, None, b"", 5, (), size, 0.0)[1]

    assert [put(60), put(40), put(1), put(1)] == [True, False, True, False]


def test_partitions_do_not_share_a_batch():
    story = Story()
    assert story.put(b"a", partition=0) is not story.put(b"b", partition=1)


def test_a_record_larger_than_a_batch_gets_one_of_its_own():
    story = Story()
    small = story.put(b"small")
    large = story.put(b"large", size=500)
    after = story.put(b"after")
    assert [batch.values for batch in (small, large, after)] == [[b"small"], [b"large"], [b"after"]]


def test_memory_is_taken_by_records_and_comes_back_with_every_kind_of_outcome():
    story = Story()
    story.begin()
    batches = story.fill(b"ok", b"refused", b"expired")
    assert story.core.free_bytes == 10_000 - 300
    story.send_all()
    story.core.succeed(batches[0], 0)
    assert story.core.free_bytes == 10_000 - 200
    story.core.fail(batches[1], REFUSED)
    story.later(batches[2])
    assert story.core.expire(60.0) == [batches[2]]
    assert story.core.free_bytes == 10_000 - 100
    story.core.abandon(batches[2], DeliveryTimeout("late"))
    assert story.core.free_bytes == 10_000
    assert story.core.unfinished() == []
    assert list(story.core.active()) == []


def test_a_batch_that_was_sent_takes_no_more_records():
    story = Story()
    sent = story.put(b"a")
    assert story.core.has_room_in_batch("t", 0, 10)
    story.send(now=1.0)
    assert not story.core.has_room_in_batch("t", 0, 10)
    story.later(sent)
    assert not story.core.has_room_in_batch("t", 0, 10)
    assert story.put(b"b") is not sent


def test_room_in_a_batch_is_what_is_left_of_its_size():
    story = Story()
    assert not story.core.has_room_in_batch("t", 0, 1)
    story.put(b"a", size=60)
    assert story.core.has_room_in_batch("t", 0, 40)
    assert not story.core.has_room_in_batch("t", 0, 41)


VALUE = b"v" * 6
SIZE = RECORD_OVERHEAD + len(VALUE)


def test_a_record_without_a_key_joins_those_before_it_while_there_is_room():
    story = Story()
    batch = story.put(b"a", size=100 - 2 * SIZE)
    free = story.core.free_bytes
    assert [story.core.join(batch, None, VALUE, time) for time in (7, 8, 9)] == [1, 2, 0]
    assert (batch.values, batch.keys) == ([b"a", VALUE, VALUE], [None] * 3)
    assert (batch.timestamps[1:], batch.size) == ([7, 8], 100)
    assert story.core.free_bytes == free - 2 * SIZE


def test_a_record_with_a_key_joins_where_there_is_room_for_that_too():
    story = Story()
    batch = story.put(b"a", size=100 - 2 * SIZE - 3)
    free = story.core.free_bytes
    joined = [story.core.join(batch, key, VALUE, 7) for key in (b"key", b"k", b"", None)]
    assert joined == [1, 0, 2, 0]
    assert batch.keys == [None, b"key", b""]
    assert (batch.values, batch.size) == ([b"a", VALUE, VALUE], 100)
    assert story.core.free_bytes == free - 2 * SIZE - 3


def sent(story, batch):
    story.send(now=1.0)


def with_one_behind_it(story, batch):
    story.put(b"large", size=90)


def while_others_wait_for_memory(story, batch):
    story.core.waiting_for_memory += 1


def without_memory(story, batch):
    story.core.free_bytes = SIZE - 1


def expired(story, batch):
    assert story.core.expire(1e9) == [batch]


def of_a_topic_that_takes_less(story, batch):
    other = story.put(b"12", partition=1, size=60)
    story.put(b"34", partition=1, size=30)
    story.core.drain([story.queue(1)], max_bytes=1 << 20)
    story.core.split(other)


@pytest.mark.parametrize(
    "happens",
    [
        sent,
        with_one_behind_it,
        while_others_wait_for_memory,
        without_memory,
        expired,
        of_a_topic_that_takes_less,
    ],
    ids=lambda each: each.__name__,
)
def test_nothing_joins_a_batch_that_takes_no_more(happens):
    story = Story()
    batch = story.put(b"a", size=40)
    happens(story, batch)
    assert story.core.join(batch, None, VALUE, 5) == 0
    assert batch.values == [b"a"]


# --- when ---------------------------------------------------------------------------------------


def test_a_batch_that_is_not_full_lingers_from_its_first_record_on():
    story = Story()
    story.put(b"a", now=10.0)
    story.put(b"b", now=10.9)
    assert story.ready_at(now=10.9) == 11.0
    assert story.send(now=10.99) == []
    assert stored(story.send(now=11.0)) == [b"a", b"b"]


def test_a_full_batch_does_not_linger():
    story = Story()
    story.put(b"a", size=99)
    assert story.ready_at() == 1.0
    story.put(b"b", size=1)
    assert story.ready_at() == 0.0


def test_a_batch_with_another_behind_it_does_not_linger():
    story = Story()
    story.begin()
    story.put(b"a", size=60)
    story.put(b"b", size=60)
    assert stored(story.send_all()) == [b"a"]
    assert story.ready_at() == 1.0


@pytest.mark.parametrize("reason", ["flushing", "waiting_for_memory"])
def test_nothing_lingers_while_somebody_waits(reason):
    story = Story()
    story.put(b"a")
    setattr(story.core, reason, 1)
    assert story.ready_at() == 0.0
    setattr(story.core, reason, 0)
    assert story.ready_at() == 1.0


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_batches_of_a_partition_are_in_flight_than_allowed(limit):
    story = Story(max_in_flight=limit)
    story.begin()
    batches = story.fill(*[b"%d" % i for i in range(7)])
    assert len(story.send_all()) == limit
    assert story.ready_at() == NEVER
    story.core.succeed(batches[0], 0)
    assert [batch for batch, _ in story.send_all()] == [batches[limit]]


# --- what ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_batch_holds_what_was_appended_and_who_sent_it(codec):
    story = Story(codec=codec)
    sent_headers = (("h", b"v"), ("h", None))
    for key, value, stamp, headers in [
        (b"k", b"v", 1000, ()),
        (None, None, 900, sent_headers),
        (b"", b"", 1100, ()),
    ]:
        story.core.append("t", 0, key, value, stamp, headers, 10, 0.0)
    ((batch, data),) = story.send(now=1.0)
    records = to_records(data, header(data), "t", 0)
    assert [(r.key, r.value, r.timestamp, r.headers) for r in records] == [
        (b"k", b"v", 1000, ()),
        (None, None, 900, sent_headers),
        (b"", b"", 1100, ()),
    ]  # fmt: skip
    found = header(data)
    check_crc(data, found)
    assert (found.codec, found.record_count, found.max_timestamp) == (codec, 3, 1100)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (7, 0, 0)
    assert (batch.attempts, batch.is_done) == (1, False)


def test_sequences_count_records_for_each_partition():
    story = Story()
    story.begin(0, 1)
    for partition in (0, 1):
        story.put(b"a", b"b", b"c", partition=partition, size=30)
        story.put(b"d", partition=partition, size=30)
    story.core.flushing = 1
    sent = story.send_all()
    found = {(b.partition, header(data).base_sequence) for b, data in sent}
    assert found == {(0, 1), (0, 4), (1, 1), (1, 4)}


def test_after_the_last_sequence_comes_0():
    story = Story()
    story.begin()
    story.put(b"a", b"b", b"c", size=30)
    story.queue().next_sequence = SEQUENCE_MAX - 1
    story.put(b"d", size=100)
    sent = story.send_all()
    assert sequences(sent) == [(0, SEQUENCE_MAX - 1), (0, 1)]
    assert header(sent[0][1]).last_sequence == 0


def test_without_idempotence_there_is_no_sequence_and_no_producer():
    story = Story()
    story.core.producer_id = -1
    first, second = story.fill(b"a", b"b")
    sent = story.send_all()
    assert sequences(sent) == [(-1, -1), (-1, -1)]
    assert header(sent[0][1]).producer_id == -1
    story.core.fail(first, REFUSED)
    story.core.succeed(second, 0)
    story.fill(b"c")
    assert sequences(story.send_all()) == [(-1, -1)]


def test_a_request_holds_one_batch_of_each_partition():
    story = Story()
    story.begin(0, 1, 2)
    for partition in range(3):
        story.fill(b"a", b"b", partition=partition)
    assert [batch.values for batch, _ in story.send()] == [[b"a"]] * 3
    assert [batch.values for batch, _ in story.send()] == [[b"b"]] * 3


def test_a_request_is_not_larger_than_allowed_but_holds_at_least_one_batch():
    story = Story()
    for partition in range(3):
        story.put(b"x" * 100, partition=partition, size=100)
    size = len(story.send(max_bytes=1)[0][1])
    assert len(story.send(max_bytes=2 * size)) == 2


def test_a_batch_that_found_no_room_in_a_request_goes_with_the_next_and_loses_nothing():
    story = Story()
    story.begin(0, 1, 2)
    for partition in range(3):
        story.fill(b"a", b"b", partition=partition)
    sent = []
    while taken := story.send(max_bytes=1):
        assert len(taken) == 1
        sent += taken
    for partition in range(3):
        mine = [pair for pair in sent if pair[0].partition == partition]
        assert (stored(mine), sequences(mine)) == ([b"a", b"b"], [(0, 1), (0, 2)])


def test_no_partition_waits_for_ever_behind_one_that_became_active_earlier():
    story = Story()
    story.begin(0, 1)
    story.fill(b"busy", b"busy", partition=0)
    story.fill(b"patient", partition=1)
    busy = 0
    while busy < 20:
        ((batch, _),) = story.send(max_bytes=1)
        if batch.partition == 1:
            break
        story.fill(b"busy", partition=0)
        story.core.succeed(batch, busy)
        busy += 1
    assert busy < 20
