"""The page of the quorum: what each lane shows, and why the watermark is where it is.

Method: the view of descriptions made by hand.
"""

import pytest
from consolekit import made

from hightide import EpochStart, MetadataLogDescription, QuorumDescription, QuorumReplica
from hightide_console.quorum_view import quorum_view


def quorum(*ends, leader=1, watermark=7, observers=()):
    """Voters 1, 2, …, whose logs end there as their leader has heard."""
    return made(
        QuorumDescription,
        leader=leader,
        epoch=3,
        high_watermark=watermark,
        voters=[node(number, end) for number, end in enumerate(ends, 1)],
        observers=[node(number, end) for number, end in observers],
    )


def node(number, end):
    return made(QuorumReplica, id=number, log_end_offset=end, last_fetch_ms_ago=0)


def seen(described, *, logs=(), silent=(), cut=None, before=()):
    said, said_before = ({each.node: each for each in told} for told in (logs, before))
    return quorum_view(described, said, {*silent}, cut or {}, said_before)


def test_a_lane_is_what_the_node_says_itself():
    log = MetadataLogDescription(2, 1, 5, 6, 7, [EpochStart(1, 0), EpochStart(2, 4)])
    _, lane = seen(quorum(7, 6), logs=[log], cut={2: [9, 7]})["lanes"]
    assert lane == {
        "broker": 2,
        "leads": False,
        "badge": "votes",
        "stale": False,
        "error": "",
        "log_start": 1,
        "high_watermark": 5,
        "log_end": 7,
        "synced": 6,
        "epoch": 2,
        "starts": [(1, 0), (2, 4)],
        "cut": [9, 7],
    }


def test_of_a_node_that_says_nothing_the_lane_is_what_its_leader_knows():
    lane = seen(quorum(9, 6), silent=[2])["lanes"][1]
    known = {name: lane[name] for name in ("log_start", "high_watermark", "log_end", "synced")}
    assert known == {"log_start": -1, "high_watermark": 6, "log_end": 6, "synced": -1}
    assert (lane["stale"], lane["starts"], lane["epoch"], lane["cut"]) == (True, None, -1, [])


def test_a_node_that_falls_silent_keeps_its_colours():
    log = MetadataLogDescription(2, 1, 5, 6, 6, [EpochStart(1, 0), EpochStart(2, 4)])
    lane = seen(quorum(9, 6), silent=[2], before=[log])["lanes"][1]
    assert (lane["log_start"], lane["log_end"], lane["epoch"]) == (1, 6, 2), "not today's epoch"
    assert (lane["stale"], lane["starts"], lane["synced"]) == (True, [(1, 0), (2, 4)], -1)


def test_of_a_node_that_todays_leader_never_heard_the_last_lane_stays():
    log = MetadataLogDescription(2, 1, 5, 6, 6, [EpochStart(1, 0), EpochStart(2, 4)])
    lane = seen(quorum(9, -1), silent=[2], before=[log])["lanes"][1]
    assert lane["stale"]
    assert (lane["log_end"], lane["high_watermark"], lane["epoch"]) == (6, 5, 2)


def test_a_log_that_nodes_alone_may_ask_for_is_taken_to_be_of_todays_epoch():
    lane = seen(quorum(9, 6))["lanes"][1]
    assert (lane["stale"], lane["starts"], lane["epoch"]) == (False, None, 3)


def test_observers_have_lanes_below_those_of_voters():
    lanes = seen(quorum(7, 7, observers=[(9, 5), (4, 7)]))["lanes"]
    assert [(each["broker"], each["badge"]) for each in lanes] == [
        (1, "votes"),
        (2, "votes"),
        (4, "observes"),
        (9, "observes"),
    ]


def test_a_node_that_no_leader_knows_of_has_a_lane_if_it_answers():
    log = MetadataLogDescription(9, 0, 7, 7, 7, [EpochStart(3, 0)])
    lanes = seen(quorum(7, 7, leader=-1), logs=[log])["lanes"]
    assert [(each["broker"], each["badge"], each["log_end"]) for each in lanes] == [
        (1, "votes", 7),
        (2, "votes", 7),
        (9, "observes", 7),
    ]


MAJORITY = "a majority of the voters (2 of 3)"
WHY = [
    (quorum(7, 7, 3), f"everything is committed: {MAJORITY} has every record on its disk"),
    (quorum(9, 7, 3), f"it waits for {MAJORITY}: behind are 2, 3"),
    (quorum(9, 9, 9), f"it waits for {MAJORITY}"),
    (
        quorum(9, 7, 3, leader=-1),
        "nobody leads: nothing more is committed until a majority of the voters is there",
    ),
]


@pytest.mark.parametrize(("described", "why"), WHY)
def test_why_the_watermark_is_where_it_is(described, why):
    assert seen(described)["why"] == why
