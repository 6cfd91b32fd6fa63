"""What a consumer reads and how far it is: positions, seeks, pauses, turns, lag.

Goal: Kafka's rules and what `subscription.py` promises. Method: pure objects, batches
with made-up headers.
"""

import pytest

from hightide.consume.subscription import Assignment, FetchedBatch, Subscription
from hightide.protocol.columns import encode_columns
from hightide.protocol.errors import HightideError, UsageError
from hightide.protocol.records import encode_batch, iter_batches, stamp
from hightide.protocol.topic_partition import TopicPartition

ONE, TWO, THREE = (TopicPartition("t", number) for number in (1, 2, 3))


def fetched(offset, count=10):
    data = encode_batch(
        encode_columns([0] * count, None, [b"v"] * count, base_timestamp=0),
        record_count=count,
        base_timestamp=0,
        max_timestamp=0,
    )
    stamp(data, base_offset=offset, leader_epoch=0)
    ((header, view),) = iter_batches(data)
    return FetchedBatch(header, view)


def subscribed(*partitions):
    subscription = Subscription()
    subscription.assign(list(partitions))
    return subscription


def fed(subscription, tp, *, batches):
    found = subscription.get(tp)
    if found.position is None:
        found.seek(0)
    for _ in range(batches):
        found.add(fetched(found.fetch_offset))
    return found


# --- one partition ------------------------------------------------------------------------------


def test_a_new_assignment_knows_nothing():
    fresh = Assignment(ONE)
    assert (fresh.position, fresh.lag, fresh.paused, len(fresh.fetched)) == (None, None, False, 0)


def test_fetching_goes_on_behind_what_arrived_while_the_position_stays():
    found = Assignment(ONE)
    found.seek(5)
    found.add(fetched(5))
    found.add(fetched(15, count=3))
    assert (found.position, found.fetch_offset) == (5, 18)


def test_batches_are_handed_out_in_the_order_in_which_they_arrived():
    found = Assignment(ONE)
    found.seek(0)
    batches = [fetched(0), fetched(10), fetched(20)]
    for batch in batches:
        found.add(batch)
    assert [found.take() for _ in range(3)] == batches
    assert found.fetched_bytes == 0
    assert found.fetch_offset == 30


def test_bytes_are_counted_as_they_come_and_go():
    found = Assignment(ONE)
    found.seek(0)
    small, large = fetched(0, count=1), fetched(1, count=100)
    found.add(small)
    found.add(large)
    assert found.fetched_bytes == len(small.data) + len(large.data)
    found.take()
    assert found.fetched_bytes == len(large.data)


@pytest.mark.parametrize("offset", [0, 3, 10, 99])
def test_a_seek_drops_what_was_fetched_and_fetches_from_there(offset):
    found = Assignment(ONE)
    found.seek(0)
    found.add(fetched(0))
    found.seek(offset)
    assert (found.position, found.fetch_offset) == (offset, offset)
    assert (len(found.fetched), found.fetched_bytes) == (0, 0)


def test_a_seek_below_0_is_refused_and_changes_nothing():
    found = Assignment(ONE)
    found.seek(4)
    batch = fetched(4)
    found.add(batch)
    with pytest.raises(UsageError, match=r"offset -1 of t-1, expected 0 or more"):
        found.seek(-1)
    assert (found.position, found.fetch_offset, list(found.fetched)) == (4, 14, [batch])


@pytest.mark.parametrize(
    ("position", "watermark", "lag"),
    [(None, 5, None), (3, -1, None), (3, 10, 7), (10, 10, 0), (12, 10, 0), (0, 0, 0)],
)
def test_lag_is_what_is_committed_and_not_handed_out(position, watermark, lag):
    assert Assignment(ONE, position=position, high_watermark=watermark).lag == lag


# --- all of them --------------------------------------------------------------------------------


def test_assignments_are_in_the_order_given_and_once_each():
    subscription = subscribed(TWO, ONE, TWO)
    assert [found.tp for found in subscription.all()] == [TWO, ONE]
    assert len(subscription) == 2


def test_what_stays_assigned_keeps_its_position_and_what_comes_back_starts_over():
    subscription = subscribed(ONE, TWO)
    fed(subscription, ONE, batches=2)
    fed(subscription, TWO, batches=1)
    subscription.assign([THREE, ONE])
    assert (subscription.get(ONE).position, len(subscription.get(ONE).fetched)) == (0, 2)
    subscription.assign([ONE, TWO])
    assert subscription.get(TWO).position is None
    assert subscription.ahead_bytes() == 2 * len(fetched(0).data)


def test_a_partition_that_is_not_assigned_is_named_in_the_error():
    subscription = subscribed(ONE)
    assert subscription.find(TWO) is None
    assert subscription.find(ONE) is subscription.get(ONE)
    with pytest.raises(UsageError, match="t-2 is not assigned") as caught:
        subscription.get(TWO)
    assert isinstance(caught.value, HightideError)
    assert isinstance(caught.value, ValueError)


def test_nothing_has_data_where_nothing_was_fetched():
    assert subscribed().next_with_data() is None
    assert subscribed(ONE, TWO).next_with_data() is None


def test_partitions_with_data_take_turns():
    subscription = subscribed(ONE, TWO, THREE)
    for tp in (ONE, TWO, THREE):
        fed(subscription, tp, batches=9)
    served = []
    for _ in range(9):
        found = subscription.next_with_data()
        found.take()
        served.append(found.tp)
    assert served == [ONE, TWO, THREE] * 3


def test_a_partition_that_always_has_data_does_not_starve_another():
    subscription = subscribed(ONE, TWO)
    fed(subscription, ONE, batches=1)
    served = []
    for _ in range(6):
        fed(subscription, ONE, batches=1)
        if len(served) == 2:
            fed(subscription, TWO, batches=1)
        found = subscription.next_with_data()
        found.take()
        served.append(found.tp)
    assert TWO in served[2:4]
    assert served.count(TWO) == 1


def test_a_paused_partition_keeps_its_data_and_is_passed_over():
    subscription = subscribed(ONE, TWO)
    fed(subscription, ONE, batches=1)
    subscription.get(ONE).paused = True
    assert subscription.next_with_data() is None
    subscription.get(ONE).paused = False
    assert subscription.next_with_data().tp == ONE


def test_bytes_of_all_partitions_are_counted_together():
    subscription = subscribed(ONE, TWO)
    fed(subscription, ONE, batches=2)
    fed(subscription, TWO, batches=1)
    assert subscription.ahead_bytes() == 3 * len(fetched(0).data)


def test_a_partition_is_printed_as_kafka_does():
    assert str(ONE) == "t-1"
