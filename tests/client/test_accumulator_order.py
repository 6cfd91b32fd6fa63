"""The producer's memory when something goes wrong: order under retry, gaps, splits, expiry.

Goal: Kafka's rules: a partition's records are stored in order and, with idempotence,
once; a sequence is never used for other data. Method: as in `test_accumulator.py`; stories at
random are `test_accumulator_properties.py`'s.
"""

from itertools import permutations

import pytest
from accumulating import (
    LOST,
    NEVER,
    NO_SEQUENCE,
    REFUSED,
    Story,
    header,
    sequences,
    stored,
    values,
)

from hightide.produce.delivery import Delivery
from hightide.protocol.columns import to_records
from hightide.protocol.errors import DeliveryTimeout

# --- again --------------------------------------------------------------------------------------


def test_a_batch_is_sent_again_with_the_same_bytes_and_only_after_the_backoff():
    story = Story()
    (batch,) = story.fill(b"a")
    ((_, before),) = story.send()
    before = bytes(before)
    story.later(batch, not_before=3.0)
    assert story.ready_at(now=1.0) == 3.0
    assert story.send(now=2.9) == []
    ((again, after),) = story.send(now=3.0)
    assert (again, after, batch.attempts, batch.retry_error) == (batch, before, 2, LOST)


def test_nothing_overtakes_a_batch_that_is_sent_again():
    story = Story()
    story.begin()
    first, second, third = story.fill(b"a", b"b", b"c")
    story.send()
    story.send()
    story.later(first)
    assert story.send() == [], "b is still in flight"
    story.later(second)
    assert stored(story.send_all()) == [b"a"], "one at a time"
    story.core.succeed(first, 0)
    assert stored(story.send_all()) == [b"b"]
    story.core.succeed(second, 1)
    assert stored(story.send_all()) == [b"c"]
    assert third.sequence == 3


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("apart_s", [0.1, 0.0], ids=["apart", "at one instant"])
def test_batches_come_back_in_their_order_whichever_fails_first(order, apart_s):
    story = Story()
    story.begin()
    batches = story.fill(b"0", b"1", b"2", apart_s=apart_s)
    story.send_all()
    for number in order:
        story.later(batches[number])
    sent = story.deliver_all(now=2.0)
    assert stored(sent) == [b"0", b"1", b"2"]
    assert sequences(sent) == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("apart_s", [0.1, 0.0], ids=["apart", "at one instant"])
def test_a_batch_is_not_the_first_while_an_earlier_one_is_unanswered(apart_s):
    story = Story()
    story.begin()
    first, second = story.fill(b"a", b"b", apart_s=apart_s)
    story.send_all()
    assert story.core.is_first_outstanding(first)
    assert not story.core.is_first_outstanding(second)
    story.later(first)
    assert not story.core.is_first_outstanding(second)
    story.later(second)
    assert not story.core.is_first_outstanding(second)
    story.send()
    story.core.succeed(first, 0)
    assert story.core.is_first_outstanding(second)


def test_no_more_batches_are_sent_behind_an_unanswered_one_than_a_broker_remembers():
    # A broker knows a repeated batch by its last five; an older one it would store again.
    story = Story()
    story.begin()
    batches = story.fill(*[b"%d" % number for number in range(9)])
    sent = story.send_all()
    for batch in batches[1:5]:
        story.core.succeed(batch, 0)
    sent += story.send_all()
    assert stored(sent) == [b"0", b"1", b"2", b"3", b"4"]
    assert story.ready_at() == NEVER
    story.core.succeed(batches[0], 0)
    assert len(story.send_all()) == 4


# --- the first batch ----------------------------------------------------------------------------

# A broker that has never heard of a producer takes any sequence for its first: were a second batch
# on its way while the first one is lost, it would be stored, and the first one refused for ever.


def test_the_first_batch_of_a_producer_goes_alone_until_it_is_acknowledged():
    story = Story()
    batches = story.fill(b"a", b"b", b"c")
    assert stored(story.send_all()) == [b"a"]
    assert story.ready_at(now=50.0) == NEVER
    story.core.succeed(batches[0], 0)
    assert stored(story.send_all()) == [b"b", b"c"]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_after_the_first_acknowledgement_as_many_are_in_flight_as_allowed(limit):
    story = Story(max_in_flight=limit)
    first, *others = story.fill(*[b"%d" % number for number in range(8)])
    story.send_all()
    story.core.succeed(first, 0)
    sent = story.send_all()
    assert [batch for batch, _ in sent] == others[:limit]
    assert sequences(sent) == [(0, number) for number in range(1, limit + 1)]
    assert story.ready_at() == NEVER


def test_an_acknowledgement_in_one_partition_says_nothing_of_another():
    story = Story()
    first, _, _ = story.fill(b"a", b"b", b"c", partition=0)
    story.fill(b"x", b"y", partition=1)
    assert stored(story.send_all()) == [b"a", b"x"]
    story.core.succeed(first, 0)
    assert stored(story.send_all()) == [b"b", b"c"]
    assert story.ready_at(partition=1) == NEVER


def test_a_first_batch_that_is_sent_again_still_goes_alone():
    story = Story()
    first, _, _ = story.fill(b"a", b"b", b"c")
    for now in (0.0, 1.0, 2.0):
        sent = story.send_all(now=now)
        assert (stored(sent), sequences(sent)) == ([b"a"], [(0, 0)])
        assert story.ready_at(now=now) == NEVER
        story.later(first, not_before=now + 1)
        assert story.ready_at(now=now) == now + 1
    assert stored(story.send_all(now=3.0)) == [b"a"]
    story.core.succeed(first, 0)
    assert sequences(story.send_all(now=3.0)) == [(0, 1), (0, 2)]


def is_refused(story, batch):
    story.core.fail(batch, REFUSED)


def expires(story, batch):
    story.later(batch)


def is_split(story, batch):
    story.core.split(batch)


def misses_a_predecessor(story, batch):
    story.core.refuse_sequence(batch, NO_SEQUENCE, not_before=0.0)


@pytest.mark.parametrize("happens", [is_refused, expires, is_split, misses_a_predecessor])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "fresh"])
def test_the_first_batch_of_a_new_epoch_goes_alone_again(begun, happens):
    story = Story()
    if begun:
        story.begin()
    bad = story.put(b"x", b"y", size=50)
    story.send()
    happens(story, bad)
    for late in story.core.expire(60.0):
        story.core.abandon(late, DeliveryTimeout("late"))
    first, _, _ = story.fill(b"a", b"b", b"c", now=60.0)
    sent = story.send_all(now=60.0)
    assert (stored(sent), sequences(sent)) == ([b"a"], [(1, 0)])
    assert story.ready_at(now=60.0) == NEVER
    story.later(first)
    assert stored(story.send_all(now=60.0)) == [b"a"]
    story.core.succeed(first, 0)
    assert sequences(story.send_all(now=60.0)) == [(1, 1), (1, 2)]


def test_without_idempotence_no_batch_goes_alone():
    story = Story()
    story.core.producer_id = -1
    first, *_ = story.fill(*[b"%d" % number for number in range(8)])
    assert len(story.send_all()) == 5
    story.core.fail(first, REFUSED)
    assert stored(story.send_all()) == [b"5"]


# --- gaps ---------------------------------------------------------------------------------------


def test_after_a_refusal_for_good_what_follows_starts_a_new_epoch_once_nothing_is_in_flight():
    story = Story()
    story.begin()
    first, second = story.fill(b"a", b"b")
    story.send_all()
    story.fill(b"c")
    story.core.fail(first, REFUSED)
    assert story.ready_at() == NEVER
    story.later(second)
    sent = story.send_all()
    assert (stored(sent), sequences(sent)) == ([b"b"], [(1, 0)])
    story.core.succeed(second, 0)
    assert sequences(story.send_all()) == [(1, 1)]


def test_a_batch_whose_outcome_is_unknown_keeps_its_sequence_when_a_later_one_is_refused():
    # a may be stored: sent under another sequence it would be stored twice.
    story = Story()
    story.begin()
    first, second = story.fill(b"a", b"b")
    story.send_all()
    story.later(first)
    story.core.fail(second, REFUSED)
    story.fill(b"c")
    sent = story.send_all()
    assert (stored(sent[:1]), sequences(sent[:1])) == ([b"a"], [(0, 1)])
    story.core.succeed(first, 0)
    sent = story.send_all()
    assert (stored(sent), sequences(sent)) == ([b"c"], [(1, 0)])


def test_what_was_sent_behind_a_batch_that_may_be_stored_keeps_its_sequence_when_that_is_refused():
    # Both are stored, no answer came; then who sends them may not any more, and may again.
    story = Story()
    story.begin()
    first, second = story.fill(b"a", b"b")
    story.send_all()
    story.later(second)
    story.later(first)
    assert stored(story.send_all()) == [b"a"]
    story.core.fail(first, REFUSED)
    story.fill(b"c")
    sent = story.send_all()
    assert (stored(sent), sequences(sent)) == ([b"b"], [(0, 2)])
    story.core.succeed(second, 1)
    assert sequences(story.send_all()) == [(0, 3)]


def test_a_missing_predecessor_numbers_everything_again():
    story = Story()
    story.begin()
    lost, second, third = story.fill(b"a", b"b", b"c")
    story.send_all()
    story.later(lost)
    assert story.core.expire(60.0) == [lost]
    story.core.abandon(lost, DeliveryTimeout("late"))
    story.core.refuse_sequence(second, NO_SEQUENCE, not_before=61.0)
    assert story.ready_at(now=60.0) == NEVER
    story.later(third)
    assert story.ready_at(now=60.0) == 61.0
    sent = []
    for batch in (second, third):
        sent += story.send(now=61.0)
        story.core.succeed(batch, 0)
    assert (stored(sent), sequences(sent)) == ([b"b", b"c"], [(1, 0), (1, 1)])


def test_a_record_that_is_appended_after_a_refusal_is_of_the_new_epoch():
    story = Story()
    (batch,) = story.fill(b"a")
    story.send()
    story.core.fail(batch, REFUSED)
    story.fill(b"b")
    assert sequences(story.send()) == [(1, 0)]


# --- splits -------------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_goes_in_two_halves():
    story = Story()
    batch = story.put(b"a", b"b", size=10)
    story.put(b"c", size=10, headers=(("h", b"c"),))
    deliveries = [Delivery(batch, index) for index in range(3)]
    story.send(now=1.0)
    halves = story.core.split(batch)
    assert story.core.free_bytes == 10_000 - 30
    assert not any(delivery.is_done for delivery in deliveries)
    sent = story.send_all(now=1.0)
    story.core.succeed(halves[0], 10)
    sent += story.send_all(now=1.0)
    assert [values(data) for _, data in sent] == [[b"a"], [b"b", b"c"]]
    assert sequences(sent) == [(1, 0), (1, 1)]
    records = to_records(sent[1][1], header(sent[1][1]), "t", 0)
    assert [record.headers for record in records] == [(), (("h", b"c"),)]
    story.core.succeed(halves[1], 20)
    assert [delivery.result().offset for delivery in deliveries] == [10, 20, 21]
    assert story.core.free_bytes == 10_000


def test_halves_can_be_too_large_as_well():
    story = Story()
    batch = story.put(*[b"%d" % i for i in range(5)], size=7)
    story.send(now=1.0)
    finished = []
    story.core.split(batch)
    while sent := story.send_all(now=1.0):
        for half, _ in sent:
            if len(half) > 1:
                story.core.split(half)
            else:
                story.core.succeed(half, len(finished))
                finished += half.values
    assert finished == [b"%d" % i for i in range(5)]
    assert story.core.free_bytes == 10_000
    assert all(Delivery(batch, i).is_done for i in range(5))


def test_halves_go_before_what_was_appended_later():
    story = Story()
    batch = story.put(b"a", b"b", size=50)
    story.fill(b"c")
    story.send()
    story.core.split(batch)
    assert stored(story.deliver_all()) == [b"a", b"b", b"c"]


def test_halves_go_after_an_earlier_batch_that_is_sent_again():
    story = Story()
    story.begin()
    first = story.put(b"a", size=100, now=0.0)
    large = story.put(b"b", b"c", size=50, now=0.1)
    story.send_all(now=0.2)
    story.later(first)
    story.core.split(large)
    sent = story.deliver_all(now=1.0)
    assert stored(sent) == [b"a", b"b", b"c"]
    assert sequences(sent)[0] == (0, 1), "a may be stored under this sequence"


def test_two_halves_that_both_fail_come_back_in_order():
    # Without idempotence: with it the halves begin an epoch, and the first of them goes alone.
    story = Story()
    story.core.producer_id = -1
    batch = story.put(b"a", b"b", size=50)
    story.send()
    first, second = story.core.split(batch)
    assert len(story.send_all()) == 2
    story.later(first)
    story.later(second)
    assert stored(story.send()) == [b"a"]


# --- expiry -------------------------------------------------------------------------------------


def test_a_batch_expires_after_the_delivery_timeout_and_not_before():
    story = Story()
    batch = story.put(b"a", now=5.0)
    assert story.core.next_expiry() == 65.0
    assert story.core.expire(64.9) == []
    assert story.core.expire(65.0) == [batch]
    story.core.abandon(batch, DeliveryTimeout("late"))
    assert batch.is_done
    assert isinstance(batch.error, DeliveryTimeout)
    assert story.core.next_expiry() == NEVER


def test_a_batch_in_flight_does_not_expire_before_its_answer_is_given_up():
    story = Story()
    (batch,) = story.fill(b"a")
    story.send()
    assert story.core.expire(1000.0) == []
    story.later(batch)
    assert story.core.expire(1000.0) == [batch]


def test_a_batch_that_expired_unsent_leaves_no_gap():
    story = Story(max_in_flight=1)
    first, second = story.fill(b"a", b"b")
    story.send()
    assert story.core.expire(60.0) == [second]
    story.core.abandon(second, DeliveryTimeout("late"))
    story.core.succeed(first, 0)
    story.fill(b"c", now=60.0)
    assert sequences(story.send(now=60.0)) == [(0, 1)]


def test_the_sequence_of_a_batch_that_expired_after_it_was_sent_is_never_used_again():
    story = Story()
    (lost,) = story.fill(b"a")
    story.send()
    story.later(lost)
    assert story.core.expire(60.0) == [lost]
    story.core.abandon(lost, DeliveryTimeout("late"))
    story.fill(b"b", now=60.0)
    assert sequences(story.send(now=60.0)) == [(1, 0)]


def test_a_later_acknowledgement_proves_that_an_expired_batch_was_stored():
    story = Story()
    story.begin()
    lost, second = story.fill(b"a", b"b")
    story.send_all()
    story.later(lost)
    assert story.core.expire(60.0) == [lost]
    story.core.abandon(lost, DeliveryTimeout("late"))
    story.core.succeed(second, 1)
    story.fill(b"c", now=60.0)
    assert sequences(story.send(now=60.0)) == [(0, 3)]


def test_after_everything_that_was_sent_again_expired_batches_go_side_by_side_again():
    # Without idempotence: with it an epoch begins, and its first batch goes alone.
    story = Story()
    story.core.producer_id = -1
    (lost,) = story.fill(b"a")
    story.send()
    story.later(lost, not_before=90.0)
    (expired,) = story.core.expire(60.0)
    story.core.abandon(expired, DeliveryTimeout("late"))
    story.fill(b"b", b"c", now=60.0)
    assert stored(story.send_all(now=60.0)) == [b"b", b"c"]
