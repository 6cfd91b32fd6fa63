"""The events of several nodes in one order, whatever their clocks say.

Goal: each event once, each node's in its own order, and none of an epoch before the one that began
it; that does not depend on the order in which files were read; traces that contradict themselves
lose nothing. Method: histories that really happened in some order, told by nodes whose clocks are
wrong, and dealt anew (Hypothesis); contradictions by hand.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit import STOPPED, elected, follows, leads, role, told

from hightide_broker.trace.events import Event, OfPartition, TopicChanged
from hightide_broker.trace.lines import Told
from hightide_broker.trace.order import begun_by, in_order, rests_on

NODES = (1, 2, 3)
DELETED = TopicChanged(offset=1, topic="t", state="deleted")


class History:
    """What happened, in its order; each step is told by one node at a second of its own."""

    def __init__(self, skews: dict[int, int]) -> None:
        self._skews = skews
        self._numbers = dict.fromkeys(NODES, 0)
        self.events: list[Told] = []

    def tell(self, node: int, what: Event) -> None:
        ms = 10**9 + 1000 * len(self.events) + self._skews[node]
        self.events.append(told(ms, node, self._numbers[node], what))
        self._numbers[node] += 1


def live(steps: list[tuple[int, int]], skews: dict[int, int]) -> list[Told]:
    """Controllers come and go, elect, and replicas follow the epoch that there is, or an older."""
    history, controller, quorum, epoch = History(skews), 1, 0, -1
    for what, node in steps:
        match what:
            case 0:
                controller, quorum = node, quorum + 1
                history.tell(node, role("leader", quorum, node))
            case 1:
                history.tell(node, role("follower", quorum, controller if quorum else -1))
            case 2:
                epoch += 1
                history.tell(controller, elected(epoch, node, NODES[node - 2]))
            case 3 if epoch >= 0:
                history.tell(node, leads(epoch))
            case 4 if epoch >= 0:
                history.tell(node, follows(max(epoch - 1, 0), node))
            case _:
                history.tell(node, STOPPED)
    return history.events


STEPS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(NODES)), max_size=40)
SKEWS = st.fixed_dictionaries({node: st.integers(-50_000, 50_000) for node in NODES})


@given(STEPS, SKEWS, st.randoms(use_true_random=False))
def test_no_event_of_an_epoch_comes_before_the_one_that_began_it(
    steps: list[tuple[int, int]], skews: dict[int, int], dice: random.Random
) -> None:
    events = live(steps, skews)
    dealt = [*events, *events[::2]]
    dice.shuffle(dealt)
    found = in_order(dealt)
    assert len(found) == len(events)
    assert set(found) == set(events)
    for node in NODES:
        numbers = [each.number for each in found if each.node == node]
        assert numbers == [*range(len(numbers))]
    begun = {epoch for each in events if (epoch := begun_by(each))}
    for each in found:
        begun -= {begun_by(each)}
        assert rests_on(each) not in begun
    assert found == in_order(events), "the order in which they are read does not matter"


@given(STEPS, st.sampled_from(["no", "small"]))
def test_where_the_clocks_are_right_the_order_is_that_of_time(
    steps: list[tuple[int, int]], skew: str
) -> None:
    """Or nearly right."""
    skews = {node: 300 * node if skew == "small" else 0 for node in NODES}
    events = live(steps, skews)
    assert in_order(reversed(events)) == events


@given(st.data())
def test_traces_that_contradict_themselves_lose_nothing(data: st.DataObject) -> None:
    """Files of several clusters, clocks and disks that were put back."""
    whats = [STOPPED, *[each for n in range(3) for each in (elected(n, n + 1, -1), leads(n))]]
    whats += [role("leader", 1), role("leader", 2), role("follower", 1, 9), follows(1)]
    events = data.draw(
        st.lists(
            st.builds(
                told,
                st.integers(0, 9),
                st.sampled_from(NODES),
                st.integers(0, 5),
                st.sampled_from(whats),
            ),
            unique=True,
            max_size=25,
        )
    )
    found = in_order(events)
    assert len(found) == len(events)
    assert set(found) == set(events)


def test_a_circle_is_opened_where_it_is_earliest() -> None:
    events = [
        told(7, 1, 0, leads(1)),
        told(8, 1, 1, elected(2, 1)),
        told(5, 2, 0, leads(2)),
        told(6, 2, 1, elected(1, 2)),
    ]
    assert [each.ms for each in in_order(events)] == [5, 6, 7, 8]


def test_a_cut_is_seen_behind_the_election_that_led_to_it() -> None:
    """The controller's clock is far ahead."""
    events = [
        told(9000, 1, 0, role("leader", 3, 1)),
        told(9001, 1, 1, elected(4, 2, 3)),
        told(5, 2, 0, leads(4)),
        told(2, 3, 0, STOPPED),
        told(3, 3, 1, follows(4, 2)),
    ]
    assert [each.node for each in in_order(events)] == [3, 1, 1, 3, 2]


def test_a_topic_that_is_made_again_under_its_name_has_its_epochs_again() -> None:
    """What happened in the first one does not wait for the second."""
    events = []
    for life in range(3):
        ms = 1000 * life
        events += [
            told(ms + 1, 1, 2 * life, elected(0, 2)),
            told(ms + 2, 2, 2 * life, leads(0)),
            told(ms + 3, 2, 2 * life + 1, STOPPED),
            told(ms + 4, 1, 2 * life + 1, DELETED),
        ]
    assert in_order(reversed(events)) == events


def test_of_two_beginnings_the_first_will_do_if_both_are_later_by_the_clocks() -> None:
    events = [
        told(1000, 1, 0, elected(0, 2)),
        told(2000, 1, 1, elected(0, 2)),
        told(1, 2, 0, leads(0)),
    ]
    assert [each.ms for each in in_order(events)] == [1000, 1, 2000]


def test_two_events_that_share_a_number_are_both_kept() -> None:
    """A directory was lost, and its trace began again; somebody has a copy of the old one."""
    events = [told(1, 2, 0, STOPPED), told(5, 2, 0, leads(1))]
    assert in_order(events[::-1]) == events


@pytest.mark.parametrize("leader_before", [1, -1])
def test_who_keeps_the_leadership_begins_no_epoch(leader_before: int) -> None:
    began = begun_by(told(1, 1, 0, elected(3, 1, leader_before)))
    assert began == (None if leader_before == 1 else ("t", 0, 3))


def test_a_leader_of_the_quorum_rests_on_nobody_and_who_has_none_neither() -> None:
    assert rests_on(told(1, 2, 0, role("follower", 3, 1))) == ("", -1, 3)
    assert rests_on(told(1, 1, 0, role("leader", 3, 1))) is None
    assert rests_on(told(1, 1, 0, role("candidate", 3, -1))) is None
    assert isinstance(leads(3), OfPartition)
    assert rests_on(told(1, 1, 0, leads(3))) == ("t", 0, 3)
