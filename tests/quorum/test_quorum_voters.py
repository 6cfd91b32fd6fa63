"""Voters that come and go, and disks that are lost: what was promised holds.

Goal: as `test_quorum_properties.py` has it, where a majority is one of the voters in force and a
disk counts as the voter that it is. Method: single cases too small, or too rare, for a story.
"""

from __future__ import annotations

import pytest
import trio
from quorum_storm import Storm
from quorum_story import QuorumStory, tell
from small_worlds import in_world, others, outcome, until, until_led

from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.quorum.roles import Role


def recorded(voters, *, observers=0):
    """A quorum in good weather that has recorded its voters, and its leader."""
    storm = Storm(1, voters, observers, operated=True)
    storm.loss = 0.0
    assert storm.calm()
    (leader,) = (node for node in storm.up if node.up.is_leader)
    return storm, leader


# --- a leader that is removed -------------------------------------------------------------------


@pytest.mark.parametrize(("voters", "away"), [(3, 0), (4, 0)])
def test_a_leader_that_was_removed_and_died_with_the_only_record_of_it_blocks_nobody(voters, away):
    """The others are a majority of the old voters: its removal was never committed, and is undone
    when it comes back."""
    storm, leader = recorded(voters)
    storm.world.letters.clear()
    storm.world.change(leader, q.RemoveVoterRequest(id=leader.id))
    assert leader.log.synced_end == leader.log.voters_end
    storm.world.letters.clear()
    storm.world.crash(leader)
    gone = [node for node in storm.up if node is not leader][:away]
    for node in gone:
        storm.world.crash(node)
    assert storm.calm(without=[node.id for node in gone]), [node.quorum for node in storm.up]


def test_who_removes_the_leader_is_told_that_it_is_done():
    """Not that the change may have been lost: it is committed, and that is why the leader goes."""

    async def body(world):
        leader = await until_led(world)
        await until(lambda: leader.node.quorum.core.membership.is_recorded)
        other = others(world, leader)[0]
        await trio.sleep(1)
        answer = await outcome(other.node.channel.ask, q.RemoveVoterRequest(id=leader.id))
        assert not isinstance(answer, Exception), answer
        successor = await until(lambda: world.leader() if world.leader() != leader else None)
        assert leader.id not in successor.node.quorum.core.membership.voters

    in_world(body)


@pytest.mark.parametrize("pause_s", [0.0, 0.3, 3.0])
def test_nobody_is_removed_whose_vote_is_needed_since_another_voter_died_just_now(pause_s):
    """Two of three would be left to decide, one of them dead; for good, if its disk is gone."""

    async def body(world):
        leader = await until_led(world)
        await until(lambda: leader.node.quorum.core.membership.is_recorded)
        dead, needed = others(world, leader)
        await dead.crash(power=False)
        await trio.sleep(pause_s)
        request = q.RemoveVoterRequest(id=needed.id)
        answer = await outcome(leader.node.channel.ask, request)
        assert answer.code is ErrorCode.REQUEST_TIMED_OUT, answer
        assert "nothing could be decided any more" in str(answer)
        # The dead one may go, and be let in again: the two others decide.
        answer = await outcome(leader.node.channel.ask, q.RemoveVoterRequest(id=dead.id))
        assert not isinstance(answer, Exception), answer

    in_world(body)


def test_a_leader_records_nothing_in_the_step_in_which_it_resigns():
    """Its own disk is done, which commits an entry of its epoch, when its time is over already."""
    story = tell(
        QuorumStory(),
        "voters 1a 2a",
        "start 1",
        "start 2",
        "disk 1 slow",
        "elect 1 2",
        "catch-up 2>1",
        "tick 2 at=4.9",
        "sync 1",
    )
    leader = story.world.nodes[1]
    assert (leader.up.role, leader.up.high_watermark) == (Role.RESIGNED, 1)
    assert leader.log.voters is None


# --- disks that are lost ------------------------------------------------------------------------


def test_the_pieces_of_a_snapshot_that_another_disk_fetches_keep_no_leader_in_office():
    """2b is empty and fetches for long; of the voters 2a and 3a nobody is left."""
    story = tell(
        QuorumStory(),
        "voters 1a 2a 3a",
        "start 1",
        "start 2",
        "start 3",
        "elect 1 2 3",
        "settle 1 2 3",
        "snapshot 1 2 forget=yes",
        "crash 2",
        "crash 3",
    )
    leader = story.world.nodes[1]
    for at in (2.0, 3.0, 4.0):
        tell(story, f"tick 1 at={at}", "hear 1 piece from=2 snapshot=2@1 epoch=1")
    assert leader.up.is_leader
    tell(story, "tick 1 at=4.5")
    assert leader.up.role is Role.RESIGNED
