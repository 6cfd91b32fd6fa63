"""Goal: a node of the quorum refuses what cannot be, at the limit, with a code and with words that
name both sides.

Method: the rules by themselves, and one voter of a small world that is told nonsense.
"""

from __future__ import annotations

import pytest
from quorum_node import Node
from quorum_storm import Storm
from test_quorum_voters import recorded

from hightide.protocol import controller_messages as c
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.leader import EPOCH_MAX, check_addressee, check_epoch_range
from hightide_broker.core.quorum.ready import NOBODY, Requested
from hightide_broker.core.quorum.roles import QuorumConfig

CONFIG = QuorumConfig(node=1, voters=(1, 2, 3), directory="mine")


def test_an_epoch_has_a_next_one() -> None:
    for epoch in (0, 1, EPOCH_MAX):
        check_epoch_range(epoch)
    for epoch in (-1, EPOCH_MAX + 1):
        with pytest.raises(Refused, match=f"epoch {epoch}, expected 0 to {EPOCH_MAX}") as refused:
            check_epoch_range(epoch)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("voter", "directory", "words"),
    [
        (1, "other", "speaks to voter 1 with directory other, this is node 1 with directory mine"),
        (2, "mine", "speaks to voter 2 with directory mine, this is node 1 with directory mine"),
        (2, "", "speaks to voter 2 with directory unknown, this is node 1 with directory mine"),
    ],
)
def test_what_is_for_another_voter_names_both(voter: int, directory: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        check_addressee(voter, directory, 3, CONFIG)
    assert refused.value.code is ErrorCode.INVALID_VOTER_KEY


def test_a_sender_that_knows_no_directories_must_be_of_the_same_configuration() -> None:
    check_addressee(1, "", 2, CONFIG)
    with pytest.raises(Refused, match=r"node 9 speaks to voter 1.*\(1, 2, 3\)") as refused:
        check_addressee(1, "", 9, CONFIG)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def ending(storm: Storm, successors: list[int]) -> tuple[Node, c.EndQuorumEpochRequest]:
    """A follower, and its leader's word that the epoch ends."""
    (leader,) = (node for node in storm.up if node.up.is_leader)
    follower = next(node for node in storm.up if node is not leader)
    request = c.EndQuorumEpochRequest(
        cluster_id=follower.up.config.cluster_id,
        voter=follower.id,
        voter_directory=follower.directory,
        leader=leader.id,
        epoch=leader.up.epoch,
        successors=successors,
    )
    return follower, request


def test_no_more_successors_are_named_than_there_are_voters() -> None:
    storm, _ = recorded(3)
    follower, request = ending(storm, [1, 2, 3, 1])
    with pytest.raises(Refused, match="more successors") as refused:
        follower.up._elections.epoch_ended(request, storm.world.now)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert refused.value.message == "more successors than there are voters"
    follower, request = ending(storm, [1, 2, 3])
    follower.up._elections.epoch_ended(request, storm.world.now)


def test_nobody_neither_leads_nor_stands() -> None:
    """An epoch that nobody leads would be followed, and a vote for nobody would count as given."""
    storm, _ = recorded(3)
    follower, ending_epoch = ending(storm, [])
    before = follower.up._elections.state
    of_nobody = {
        "cluster_id": ending_epoch.cluster_id,
        "voter": follower.id,
        "voter_directory": follower.directory,
        "epoch": before.epoch + 1,
    }
    for request in (
        c.BeginQuorumEpochRequest(leader=NOBODY, **of_nobody),
        c.EndQuorumEpochRequest(leader=NOBODY, successors=[], **of_nobody),
        c.VoteRequest(candidate=NOBODY, last_epoch=before.epoch, log_end=1 << 40, **of_nobody),
    ):
        ready = follower.up.step(Requested(request), storm.world.now)
        assert isinstance(ready.reply, c.QuorumResponse)
        assert (ready.reply.error, ready.election_state) == (ErrorCode.INVALID_REQUEST, None)
        assert "node -1 speaks to voter" in ready.reply.message
    assert follower.up._elections.state == before
