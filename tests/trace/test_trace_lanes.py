"""Where replicas stood, event by event.

Goal: the table that `trace replay` shows is what the nodes told. Method: small stories by hand.
"""

from __future__ import annotations

from tracekit import elected, follows, leads, told

from hightide_broker.trace.events import (
    Event,
    NodeStarted,
    NodeStopped,
    Offsets,
    RepairEnded,
    ReplicaOffline,
    TopicChanged,
    Truncated,
    WatermarksMoved,
)
from hightide_broker.trace.lanes import Lanes, show

T0 = {"topic": "t", "partition": 0, "leader_epoch": 1}
BEGUN = [(9, elected(0, 1, isr=(1, 2))), (1, leads(0)), (2, follows(0, 1))]


def after(*events: tuple[int, Event]) -> Lanes:
    lanes = Lanes()
    for number, (node, what) in enumerate(events):
        lanes.take(told(number, node, number, what))
    return lanes


def shown(*events: tuple[int, Event]) -> list[str]:
    return show("t-0", after(*events).of("t", 0))


def moved(*ends: tuple[int, int]) -> WatermarksMoved:
    return WatermarksMoved(
        replicas=tuple(
            Offsets("t", number, 1, 0, watermark, end, end)
            for number, (watermark, end) in enumerate(ends)
        )
    )


def test_a_leader_has_a_star_and_who_told_nothing_a_question_mark() -> None:
    assert shown((9, elected(0, 1, isr=(1, 2), elr=(3,)))) == [
        "t-0: broker 1 leads in epoch 0, ISR 1,2, ELR 3",
        "  * broker 1  ISR  -         ?",
        "    broker 2  ISR  -         ?",
        "    broker 3  ELR  -         ?",
    ]
    assert shown(*BEGUN) == [
        "t-0: broker 1 leads in epoch 0, ISR 1,2",
        "  * broker 1  ISR  leader    committed 4 of 5",
        "    broker 2  ISR  follower  committed 3 of 7",
    ]


def test_where_controllers_tell_nothing_a_leader_does() -> None:
    begun = (1, leads(0)), (2, follows(0, 1))
    assert shown(*begun) == [
        "t-0: broker 1 leads in epoch 0, ISR 1,2",
        "  * broker 1  ISR  leader    committed 4 of 5",
        "    broker 2  ISR  follower  committed 3 of 7",
    ]
    decided = elected(1, 2, isr=(1, 2, 3))
    assert after(*begun, (9, decided), (2, leads(1))).of("t", 0).isr == (1, 2, 3), "since then"


def test_another_leader_is_elected_and_the_old_one_is_cut() -> None:
    cut = Truncated(
        **T0, leader=2, before=5, after=2, epoch_before=0, epoch_after=0, high_watermark=4
    )
    story = (
        *BEGUN,
        (9, elected(1, 2, 1)),
        (2, leads(1, log_end=7, high_watermark=3)),
        (1, follows(1, 2, log_end=5, high_watermark=4)),
        (1, cut),
    )
    assert shown(*story) == [
        "t-0: broker 2 leads in epoch 1, ISR 2",
        "    broker 1  out  follower  committed 2 of 2",
        "  * broker 2  ISR  leader    committed 3 of 7",
    ]
    lane = after(*story, (1, moved((6, 9)))).of("t", 0).lane(1)
    assert (lane.leader_epoch, lane.high_watermark, lane.log_end, lane.synced_end) == (1, 6, 9, 9)


def test_who_leads_nobody_knows() -> None:
    assert shown((9, elected(1, -1, 1, isr=(), elr=(2,)))) == [
        "t-0: nobody leads in epoch 1, ISR nobody, ELR 2",
        "    broker 2  ELR  -         ?",
    ]


def test_a_replica_goes_offline_and_is_repaired() -> None:
    story = (*BEGUN, (2, ReplicaOffline(**T0, why="a disk")), (2, RepairEnded(**T0, log_end=3)))
    assert shown(*story)[2] == "    broker 2  ISR  offline   committed 3 of 3"
    assert shown(*story, (2, follows(1, 1)))[2] == "    broker 2  ISR  follower  committed 3 of 7"


def test_a_node_that_stops_or_starts_has_no_replica_that_serves() -> None:
    stopped = NodeStopped(is_clean=True)
    started = NodeStarted(version="1", roles=("broker",), was_clean=False)
    for what in (stopped, started):
        lanes = after(*BEGUN, (1, moved((4, 5), (0, 0))), (1, what))
        assert [lanes.of("t", n).lane(1).role for n in (0, 1)] == ["down", "down"]
        assert lanes.of("t", 0).lane(2).role == "follower"


def test_a_deleted_topic_is_gone_with_all_of_its_partitions() -> None:
    gone = TopicChanged(offset=1, topic="t", state="deleted")
    assert after(*BEGUN, (1, moved((4, 5), (0, 0))), (9, gone)).partitions == {}
    other = TopicChanged(offset=1, topic="u", state="deleted")
    created = TopicChanged(offset=1, topic="t", state="created")
    assert [*after(*BEGUN, (9, other), (9, created)).partitions] == [("t", 0)]
