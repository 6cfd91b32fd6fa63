"""Voters that come and go under any weather, and disks that are lost: what was promised holds.

Goal: as `test_quorum_properties.py` has it, where a majority is one of the voters in force and a
disk counts as the voter that it is; a voter that forgot is let in again, and once letters arrive, a
leader commits, all follow, and whatever an operator began comes to its end. Method: storms by seed,
in which somebody adds and removes voters and replaces disks. A failure names its seed.
"""

from __future__ import annotations

import pytest
from quorum_node import Entry, FakeLog
from quorum_node import voters as named
from quorum_storm import Storm, survive
from tries import few, tries

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide_broker.core.quorum.ready import Answered, ElectionState, Tick
from hightide_broker.core.quorum.roles import QuorumConfig
from hightide_broker.core.quorum.state_machine import Quorum

EVERYTHING = (
    "added",
    "removed",
    "removed the leader",
    "replaced",
    "replaced before all were recorded",
    "readmitted",
    "undone",
    "not added: REQUEST_TIMED_OUT",
    "not added: DUPLICATE_VOTER",
    "not removed: REQUEST_TIMED_OUT",
    "not removed: INVALID_REQUEST",
)
"""What operators do in the storms, so that what holds in them holds for something."""


@pytest.mark.slow
@pytest.mark.parametrize("observers", few([2, 1], 1))
def test_three_voters_come_and_go_and_keep_every_promise(observers):
    did = survive(tries(300), voters=3, observers=observers, operated=True)
    assert all(did[each] for each in EVERYTHING), did


@pytest.mark.slow
@pytest.mark.parametrize("voters", few([4, 5], 1))
def test_more_voters_come_and_go_and_keep_every_promise(voters):
    survive(tries(150), voters=voters, observers=1, operated=True)


@pytest.mark.slow
@pytest.mark.parametrize("voters", [1, 2])
def test_voters_come_and_go_where_each_of_them_is_needed(voters):
    survive(tries(150), voters=voters, observers=2, operated=True)


@pytest.mark.parametrize(("voters", "away"), [(2, 0), (4, 1)])
def test_the_only_one_that_knows_of_its_removal_does_not_block_the_others(voters, away):
    """A leader was removed and died before anybody else had the record. By the old voters its vote
    is needed, and its log is longer than theirs; by the new ones it has no vote. So it has to stand
    itself, for as long as its removal may still be undone."""
    storm = Storm(1, voters, 0, operated=True)
    storm.loss = 0.0
    assert storm.calm()
    (leader,) = (node for node in storm.up if node.up.is_leader)
    storm.world.letters.clear()
    storm.world.change(leader, q.RemoveVoterRequest(id=leader.id))
    storm.world.letters.clear()
    storm.world.crash(leader)
    gone = [node for node in storm.up if node is not leader][:away]
    for node in gone:
        storm.world.crash(node)
    assert storm.calm(without=[node.id for node in gone]), [node.quorum for node in storm.up]


def test_one_that_was_removed_looks_for_voters_where_it_is_configured():
    """It may stand once more, for all it knows; and all that it knows may be gone by now."""
    log = FakeLog([Entry(1, "voters", named("1a 2a 3a")), Entry(1, "voters", named("2a 3a"))])
    config = QuorumConfig(node=1, voters=(4, 5, 6), directory="1a", cluster_id="tide")
    quorum = Quorum(config, log, ElectionState(1, 2), random=lambda: 0.5, now=0.0)
    now, asked = 0.0, set()
    waiting, event = [], Tick()
    for _ in range(3000):
        ready = quorum.step(event, now)
        waiting += ready.send
        asked |= {(each.peer, type(each.request)) for each in ready.send}
        if waiting:
            sent = waiting.pop(0)
            now, event = now + 0.01, Answered(sent.peer, sent.request, None, gone=True)
        else:
            now, event = max(now + 0.01, min(ready.wake_at, now + 60)), Tick()
    assert asked >= {(node, m.FetchRequest) for node in (2, 3, 4, 5, 6)}
    assert asked >= {(node, c.VoteRequest) for node in (2, 3)}, "they may need it"
    assert not {(node, c.VoteRequest) for node in (4, 5, 6)} & asked
