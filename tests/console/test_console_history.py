"""Goal: what is rare stays to be seen, whatever happens often beside it.

Method: events by hand, of three kinds: of a topic, of the quorum, and where replicas stood.
"""

import pytest

from hightide_broker.trace.events import LeaderBegan, Offsets, QuorumVote, WatermarksMoved
from hightide_broker.trace.lines import Told
from hightide_console import history as module
from hightide_console.history import FIRST_EVENTS, FIRST_OF_TOPIC, History


def of_topic(number, topic="busy"):
    what = LeaderBegan(
        topic=topic, partition=0, leader_epoch=1, log_end=0, high_watermark=0, isr=(1,)
    )
    return Told(ms=number, node=1, number=number, what=what)


def vote(number):
    what = QuorumVote(candidate=1, epoch=1, granted=True)
    return Told(ms=number, node=1, number=number, what=what)


def moved(number, *, replicas=1):
    moves = tuple(
        Offsets(
            topic="busy",
            partition=partition,
            leader_epoch=1,
            log_start=0,
            high_watermark=0,
            log_end=0,
            synced_end=0,
        )
        for partition in range(replicas)
    )
    return Told(ms=number, node=1, number=number, what=WatermarksMoved(replicas=moves))


def numbers(learned):
    return [told.number for _, told in learned]


@pytest.fixture
def history():
    return History()


def test_many_positions_push_out_no_event(history, monkeypatch):
    monkeypatch.setattr(module, "MOVES_KEPT", 10)
    history.learn([of_topic(0), *map(moved, range(1, 50)), of_topic(50)])
    assert [told.number for told in history.events()] == [0, 50]
    assert [told.number for told in history.everything()] == [0, *range(40, 51)]
    history.learn([moved(51, replicas=8)])
    assert [told.number for told in history.everything()] == [0, 48, 49, 50, 51]


def test_a_page_begins_with_what_is_rare_too(history):
    much = range(4, 4 + 2 * FIRST_EVENTS)
    history.learn([of_topic(0, "mine"), vote(1), moved(2), of_topic(3, "mine")])
    history.learn(map(of_topic, much))
    newest = [*much][-FIRST_EVENTS:]
    assert numbers(history.to_begin_with("")) == [1, *newest]
    assert numbers(history.to_begin_with("mine")) == [0, 1, 3, *newest]
    assert numbers(history.to_begin_with("busy")) == [1, *much]
    assert len(much) < FIRST_OF_TOPIC


def test_positions_are_none_of_the_events_that_a_page_begins_with(history):
    history.learn([of_topic(0), *map(moved, range(1, 10 * FIRST_EVENTS))])
    assert numbers(history.to_begin_with("")) == [0]


def test_what_came_since_is_each_event_once_and_the_newest_of_many(history):
    history.learn([of_topic(0), moved(1), of_topic(2)])
    seen = history.count
    history.learn([moved(3), of_topic(4), vote(5)])
    assert numbers(history.since(seen, most=10)) == [4, 5]
    assert numbers(history.since(0, most=2)) == [4, 5]
    assert history.since(history.count, most=10) == []
    assert [number for number, _ in history.since(0, most=10)] == [0, 2, 4, 5]
