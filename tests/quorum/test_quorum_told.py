"""What a node of the quorum writes down of its answers, and what it counts as a sign of life.

Method: the rules by themselves, over a log in memory.
"""

from __future__ import annotations

import pytest
from quorum_node import Entry, FakeLog, voters

from hightide.protocol import controller_messages as c
from hightide_broker.core.quorum.follower import QuorumFollower
from hightide_broker.core.quorum.membership import Membership
from hightide_broker.core.quorum.peers import Peers
from hightide_broker.core.quorum.quorum_events import vote_answered
from hightide_broker.core.quorum.roles import QuorumConfig
from hightide_broker.core.quorum.votes import why_no
from hightide_broker.trace.events import QuorumVote


@pytest.mark.parametrize("pre_vote", [True, False])
@pytest.mark.parametrize(("granted", "why"), [(True, ""), (False, "its log is shorter")])
def test_the_trace_has_who_asked_for_which_vote_and_what_it_was_told(pre_vote, granted, why):
    request = c.VoteRequest(
        cluster_id="", voter=1, candidate=2, epoch=5, last_epoch=4, log_end=9, pre_vote=pre_vote
    )
    reply = c.VoteResponse(epoch=4, leader=3, granted=granted, message=why)
    assert vote_answered(request, reply) == QuorumVote(
        candidate=2, epoch=5, granted=granted, is_pre_vote=pre_vote, why=why
    )


@pytest.mark.parametrize(
    ("leader", "voted", "log", "why"),
    [
        (3, -1, (4, 9), "node 3 leads"),
        (-1, 3, (4, 9), "it voted for node 3"),
        (-1, 3, (4, 10), "its log ends at 9 in epoch 4, the one asked has 10 in epoch 4"),
        (3, -1, (5, 2), "its log ends at 9 in epoch 4, the one asked has 2 in epoch 5"),
    ],
)
def test_a_no_has_a_reason(leader, voted, log, why):
    request = c.VoteRequest(cluster_id="", voter=1, candidate=2, epoch=5, last_epoch=4, log_end=9)
    last_epoch, log_end = log
    said = why_no(request, leader=leader, voted=voted, last_epoch=last_epoch, log_end=log_end)
    assert said == why


@pytest.mark.parametrize(("directory", "heard_at"), [("2a", 7.0), ("2b", 1.0), ("", 1.0)])
def test_a_voter_is_heard_of_only_with_its_own_directory(directory, heard_at):
    """Another disk under its number cannot keep a leader that its majority left (KIP-853)."""
    config = QuorumConfig(node=1, voters=(1, 2, 3), directory="1a")
    peers = Peers(Membership(config, FakeLog([Entry(1, "voters", voters("1a 2a 3a"))])))
    peers.begin(1.0)
    peers.heard(2, directory, 7.0)
    assert peers.voters[2].heard_at == heard_at


def test_a_voter_follows_whom_it_was_told_of_and_always_has_a_time_at_which_it_asks_again():
    config = QuorumConfig(node=1, voters=(1, 2, 3))
    log = FakeLog()
    follower = QuorumFollower(config, log, Membership(config, log))
    with pytest.raises(
        AssertionError, match=r"^a voter is told who leads: it need not look around"
    ):
        follower.search(1.0)
    follower.begin(2, 1.0)
    with pytest.raises(AssertionError, match="nothing more would be asked of 2"):
        follower.begin_again(float("inf"))
    follower.begin_again(3.0)
    assert follower.wake_at == 3.0
