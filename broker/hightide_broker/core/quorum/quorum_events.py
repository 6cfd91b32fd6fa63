"""What happens in the quorum, as events of a trace. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hightide.protocol import controller_messages as c
from hightide_broker.core.quorum.ready import LogView
from hightide_broker.core.quorum.roles import Voter
from hightide_broker.core.quorum.text import Standing
from hightide_broker.trace.events import (
    QuorumRole,
    QuorumTruncated,
    QuorumVote,
    VotersChanged,
)


class Tail(NamedTuple):
    """Where a metadata log ends."""

    end: int
    epoch: int
    """Of its last record."""


def tail_of(log: LogView) -> Tail:
    """Where a log ends now."""
    return Tail(log.log_end, log.last_epoch)


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


def log_cut(node: Standing, before: Tail, after: Tail, high_watermark: int) -> QuorumTruncated:
    """What of a node's log its leader does not have is gone."""
    return QuorumTruncated(
        leader=node.leader,
        epoch=node.epoch,
        before=before.end,
        after=after.end,
        epoch_before=before.epoch,
        epoch_after=after.epoch,
        high_watermark=high_watermark,
    )
