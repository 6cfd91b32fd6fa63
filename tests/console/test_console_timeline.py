"""The story of a partition, frame by frame.

Goal: after each event the lanes stand where they stood then; method: events by hand.
"""

from itertools import pairwise

import msgspec
import pytest

from hightide_broker.simulation.lab_scenarios import LESSONS
from hightide_broker.trace.events import (
    FollowerBegan,
    GroupChanged,
    LeaderBegan,
    Offsets,
    PartitionChanged,
    QuorumTruncated,
    TopicChanged,
    Truncated,
    WatermarksMoved,
)
from hightide_broker.trace.lines import Told
from hightide_console import timeline
from hightide_console.lessons import lesson_view
from hightide_console.timeline import (
    epoch_starts,
    event_view,
    frames,
    notches,
    quorum_notches,
)

OF = {"topic": "orders", "partition": 0}


def decided(epoch, leader, isr):
    return PartitionChanged(
        **OF, offset=epoch, leader_epoch=epoch, leader=leader, isr=isr, leader_before=-1
    )


def leads(epoch, log_end, **of):
    return LeaderBegan(
        **{**OF, **of}, leader_epoch=epoch, log_end=log_end, high_watermark=0, isr=(1, 2)
    )


def follows(epoch, log_end):
    return FollowerBegan(
        **OF, leader_epoch=epoch, leader=2, log_end=log_end, last_epoch=0, high_watermark=0
    )


def cut(before, after):
    return Truncated(
        **OF,
        leader_epoch=1,
        leader=2,
        before=before,
        after=after,
        epoch_before=0,
        epoch_after=0,
        high_watermark=after,
    )


def quorum_cut(epoch):
    return QuorumTruncated(
        leader=3, epoch=epoch, before=8, after=7, epoch_before=4, epoch_after=4, high_watermark=7
    )


def story(*events):
    """(node, event) in order."""
    return [Told(ms=at, node=node, number=at, what=what) for at, (node, what) in enumerate(events)]


def moved(*topics):
    return WatermarksMoved(
        replicas=tuple(
            Offsets(
                topic=topic,
                partition=0,
                leader_epoch=1,
                log_start=0,
                high_watermark=3,
                log_end=4,
                synced_end=4,
            )
            for topic in topics
        )
    )


DIVERGED = story(
    (1, decided(0, 1, (1, 2))),
    (1, leads(0, 0)),
    (1, leads(0, 7, topic="other")),
    (1, decided(1, 2, (2,))),
    (2, leads(1, 5)),
    (1, follows(1, 9)),
    (1, cut(9, 5)),
)


def lane(frame, broker):
    return next(each for each in frame["lanes"] if each["broker"] == broker)


def test_a_change_of_leaders_and_a_truncation_are_seen_where_they_happened():
    found = frames(DIVERGED, "orders", 0)
    assert [frame["leader"] for frame in found] == [1, 1, 2, 2, 2, 2]
    assert [frame["kind"] for frame in found[-2:]] == ["follower_began", "truncated"]
    assert lane(found[-2], 1)["log_end"] == 9
    assert lane(found[-1], 1)["log_end"] == 5, "what the new leader does not have is gone"
    assert [lane(frame, 1)["badge"] for frame in found[1:3]] == ["ISR", "out"]


def test_a_tail_that_the_new_leader_does_not_have_is_of_the_old_epoch():
    found = frames(DIVERGED, "orders", 0)
    follows_now, cut_now = (lane(frame, 1) for frame in found[-2:])
    assert (follows_now["epoch"], follows_now["last_epoch"]) == (1, 0)
    assert cut_now["last_epoch"] == 0
    fetched = story(*((each.node, each.what) for each in DIVERGED), (1, moved("orders")))
    assert lane(frames(fetched, "orders", 0)[-1], 1)["last_epoch"] == 1


def test_what_a_broker_tells_late_is_shown_when_it_happened():
    late = [each for each in DIVERGED if each.node == 2] + [
        each for each in DIVERGED if each.node == 1
    ]
    assert frames(late, "orders", 0) == frames(DIVERGED, "orders", 0)


def test_epochs_begin_where_their_leader_said_and_only_once_they_began():
    found = frames(DIVERGED, "orders", 0)
    assert found[1]["starts"] == [(0, 0)]
    assert found[-1]["starts"] == [(0, 0), (1, 5)]
    assert epoch_starts(DIVERGED, "orders") == {0: [(0, 0), (1, 5)]}


def test_a_cut_is_marked_as_long_as_the_leader_epoch_lasts():
    found = frames(
        story(*((each.node, each.what) for each in DIVERGED), (2, leads(1, 5))), "orders", 0
    )
    assert [lane(frame, 1)["cut"] for frame in found[-3:]] == [[], [9, 5], [9, 5]]
    assert lane(found[-1], 2)["cut"] == []
    assert notches(DIVERGED, "orders", {0: 1}) == {(0, 1): [9, 5]}
    assert notches(DIVERGED, "orders", {0: 2}) == notches(DIVERGED, "other", {0: 1}) == {}
    later = story(*((each.node, each.what) for each in DIVERGED), (1, decided(2, 1, (1, 2))))
    assert lane(frames(later, "orders", 0)[-1], 1)["cut"] == []


def test_a_cut_of_the_metadata_log_is_marked_as_long_as_the_epoch_of_the_quorum_lasts():
    told = story(*((node, quorum_cut(epoch)) for node, epoch in ((1, 5), (2, 6), (2, 6))))
    assert quorum_notches(told, 6) == {2: [8, 7]}
    assert quorum_notches(told, 7) == {}


@pytest.mark.parametrize("lesson", [one.name for one in LESSONS])
def test_a_lesson_marks_what_is_cut_in_it_and_not_who_is_down(lesson):
    shown = lesson_view(lesson)["frames"]
    for before, frame in pairwise(shown):
        for was, now in zip(before["lanes"], frame["lanes"], strict=True):
            is_cut = before["part"] == frame["part"] and 0 <= now["log_end"] < was["log_end"]
            if is_cut:
                assert now["cut"] == [was["log_end"], now["log_end"]]
            elif now["cut"]:
                assert now["cut"] == was["cut"]
                assert frame["leader_epoch"] == before["leader_epoch"]


def test_the_lesson_about_cuts_has_one():
    shown = lesson_view("reconciliation")["frames"]
    assert [5, 3] in [lane["cut"] for frame in shown for lane in frame["lanes"]]


def test_other_partitions_and_groups_are_no_part_of_it():
    group = GroupChanged(group="g", state="Stable", generation=1, members=1)
    told = story((1, decided(0, 1, (1,))), (1, leads(0, 0, partition=3)), (1, group))
    assert [frame["kind"] for frame in frames(told, "orders", 0)] == ["partition_changed"]


def test_positions_of_many_partitions_are_told_of_one():
    found = frames(story((1, decided(0, 1, (1,))), (1, moved("orders", "secret"))), "orders", 0)
    assert lane(found[-1], 1)["log_end"] == 4
    assert "secret" not in found[-1]["text"]


def test_the_newest_frames_are_kept(monkeypatch):
    monkeypatch.setattr(timeline, "FRAMES_MAX", 2)
    found = frames(DIVERGED, "orders", 0)
    assert [frame["kind"] for frame in found] == ["follower_began", "truncated"]


def test_an_event_is_listed_with_its_sentence_and_where_it_belongs():
    view = event_view(DIVERGED[-1])
    assert (view["topic"], view["partition"], view["kind"]) == ("orders", 0, "truncated")
    assert "5" in view["text"]
    assert "9" in view["text"]


DELETED = TopicChanged(offset=9, topic="orders", state="deleted")


def test_a_topic_that_was_made_again_has_nothing_of_the_one_that_was_deleted():
    before = [(1, decided(1, 2, (1, 2))), (2, leads(1, 40)), (1, cut(30, 20)), (1, follows(1, 20))]
    again = [(3, DELETED), (3, decided(0, 2, (1, 2))), (2, leads(0, 0))]
    *_, last = frames(story(*before, *again), "orders", 0)
    assert (last["starts"], [lane["cut"] for lane in last["lanes"]]) == ([(0, 0)], [[], []])
    told = story(*before, *again)
    assert epoch_starts(told, "orders") == {0: [(0, 0)]}
    assert notches(told, "orders", {0: 1}) == {}
    assert notches(
        story(*before, (3, msgspec.structs.replace(DELETED, topic="other"))), "orders", {0: 1}
    )


def test_a_log_that_begins_again_above_its_end_was_not_cut():
    assert notches(story((1, cut(30, 50))), "orders", {0: 1}) == {}
