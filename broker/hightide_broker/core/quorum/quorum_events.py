"""What happens in the quorum, as events of a trace. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hightide.protocol import controller_messages as c
from hightide_broker.core.quorum.roles import Voter
from hightide_broker.core.quorum.text import Standing
from hightide_broker.trace.events import QuorumRole, QuorumVote, VotersChanged


def role_taken(node: Standing, log_end: int) -> QuorumRole:
    """Where a node stands now."""
    return QuorumRole(
        role=node.role.value,
        epoch=node.epoch,
        leader=node.leader,
        voted=node.voted,
        log_end=log_end,
    )


def vote_answered(request: c.VoteRequest, reply: c.VoteResponse) -> QuorumVote:
    """What a candidate was told."""
    return QuorumVote(
        candidate=request.candidate,
        epoch=request.epoch,
        granted=reply.granted,
        is_pre_vote=request.pre_vote,
        why=reply.message,
    )


def voters_written(offset: int, voters: Sequence[Voter]) -> VotersChanged:
    """Who votes from the record at `offset` on."""
    return VotersChanged(offset=offset, voters=tuple(voter.id for voter in voters))
