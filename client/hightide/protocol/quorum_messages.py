"""Requests about the metadata quorum: who votes, how far they are, and changing that. Pure.

The rules of `messages.py` hold here too. Sources: KIP-595, KIP-853.
"""

from __future__ import annotations

from hightide.protocol.messages import Message


class AddVoterRequest(Message, frozen=True, kw_only=True):
    """Admit a node that observes the metadata quorum as a voter (KIP-853)."""

    id: int
    directory: str = ""
    """Empty: the one that this node observes with now."""
    host: str
    port: int


class AddVoterResponse(Message, frozen=True, kw_only=True):
    directory: str


class RemoveVoterRequest(Message, frozen=True, kw_only=True):
    """Let a voter vote no more (KIP-853)."""

    id: int
    directory: str = ""
    """Empty: whatever the voters' record says."""


class RemoveVoterResponse(Message, frozen=True, kw_only=True):
    directory: str


class DescribeQuorumRequest(Message, frozen=True, kw_only=True):
    even_without_leader: bool = False
    """Where nobody leads, the asked node answers with what it knows by itself: `leader` is -1, and
    of the others nothing is known but that they vote."""


class QuorumReplica(Message, frozen=True, kw_only=True):
    """A voter or an observer as the leader sees it."""

    id: int
    directory: str = ""
    """The id of its data directory; empty: not known."""
    host: str = ""
    port: int = -1
    """Where a voter listens for nodes, by the record of the voters; told to those who may ALTER the
    cluster or act for it (CLUSTER_ACTION)."""
    log_end_offset: int = -1
    lag: int = -1
    last_fetch_ms_ago: int = -1
    last_caught_up_ms_ago: int = -1


class DescribeQuorumResponse(Message, frozen=True, kw_only=True):
    cluster_id: str
    leader: int
    epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]
