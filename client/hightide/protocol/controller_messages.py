"""Requests and responses that nodes send to controllers and to each other, as frozen Structs.

The rules of `messages.py` hold here too. What a voter answers always says who leads, as far as it
knows, because that is how a quorum finds together. Sources: KIP-595, KIP-630, KIP-631, KIP-996.
Pure.
"""

from __future__ import annotations

import msgspec

from hightide.protocol.messages import EpochEnd, Message


class RegisterBrokerRequest(Message, frozen=True, kw_only=True):
    broker: int
    incarnation: str
    cluster_id: str
    host: str
    port: int
    rack: str = ""
    roles: list[str] = []
    previous_broker_epoch: int = -1
    """From the clean-shutdown marker; -1 after an unclean stop (KIP-966)."""
    directory: str = ""
    """The id of the data directory, which only one process at a time can hold."""
    internal: tuple[str, int] | None = None
    """Where other nodes reach it, if not where clients do."""
    runs: list[str] | None = None
    """The incarnations that this directory knows of: the last one that was registered, `-` for
    none, and those that tried to since. If what the controller has is none of them, or one that
    tried and went on to serve, the directory is an older copy. None: the node is of a version that
    does not keep them."""
    features: dict[str, int] = {}
    """Up to which level the node knows each feature (KIP-584); none, if it does not say."""


class RegisterBrokerResponse(Message, frozen=True, kw_only=True):
    broker_epoch: int


class OfflineReplica(Message, frozen=True, kw_only=True):
    topic_id: str
    partition: int


class LeaderlessReplica(Message, frozen=True, kw_only=True):
    """A replica of a partition that nobody leads: how far its log reaches (KIP-966)."""

    topic_id: str
    partition: int
    last_epoch: int
    """The epoch of its last record, -1 if it has none."""
    log_end: int
    leader_epoch: int = -1
    """In which nobody leads. What is said of an earlier one is over: the log may have been cut, or
    have grown, under a leader since; -1, from a node that does not say, is never the right one."""


class BrokerHeartbeatRequest(Message, frozen=True, kw_only=True):
    broker: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shut_down: bool = False
    offline: list[OfflineReplica] = []
    """Replicas of this broker that serve nobody: it may not lead them, nor count as in sync."""
    leaderless: list[LeaderlessReplica] = []
    """Replicas of this broker that could lead, in partitions that have no leader."""


class BrokerHeartbeatResponse(Message, frozen=True, kw_only=True):
    caught_up: bool
    fenced: bool
    should_shut_down: bool


class AllocateProducerIdsRequest(Message, frozen=True, kw_only=True):
    broker: int
    broker_epoch: int


class AllocateProducerIdsResponse(Message, frozen=True, kw_only=True):
    first: int
    count: int


class AlterPartition(Message, frozen=True, kw_only=True):
    """A leader's proposal of a new ISR, as of the epochs it knows (KIP-497, KIP-841)."""

    topic_id: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: list[int]
    broker_epochs: list[int] = []
    """Of each member of `isr`; -1 or missing: not checked."""


class AlterPartitionRequest(Message, frozen=True, kw_only=True):
    broker: int
    broker_epoch: int
    partitions: list[AlterPartition]


class AlterPartitionResult(Message, frozen=True, kw_only=True):
    """The partition as the controller has it after the change."""

    topic_id: str
    partition: int
    error: str | None = None
    message: str = ""
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: list[int] = []


class AlterPartitionResponse(Message, frozen=True, kw_only=True):
    partitions: list[AlterPartitionResult]


class EnvelopeRequest(Message, frozen=True, kw_only=True):
    """A request that a node passes on to the active controller (KIP-590)."""

    api: str
    body: msgspec.Raw
    principal: str = ""
    """Whose request it is; empty: the node's own."""
    host: str = ""
    """Where that one is."""
    client: str = ""
    """What that one calls itself."""


class EnvelopeResponse(Message, frozen=True, kw_only=True):
    metadata_offset: int
    """The answer holds for a node that has applied the metadata log up to here."""
    body: msgspec.Raw


class VoteRequest(Message, frozen=True, kw_only=True):
    """A candidate's request (KIP-595), or a prospective one's (pre-vote, KIP-996)."""

    cluster_id: str
    voter: int
    """Who is asked."""
    candidate: int
    epoch: int
    """The epoch to lead in; of a pre-vote, the candidate's current one."""
    last_epoch: int
    """The epoch of the last record of the candidate's log."""
    log_end: int
    pre_vote: bool = False
    voter_directory: str = ""
    """The directory of the voter who is asked (KIP-853); empty: no record of them is known."""
    candidate_directory: str = ""


class QuorumResponse(Message, frozen=True, kw_only=True):
    """What voters answer each other: who leads, as far as they know."""

    epoch: int
    leader: int = -1
    error: str | None = None
    message: str = ""


class VoteResponse(QuorumResponse, frozen=True, kw_only=True):
    granted: bool = False


class BeginQuorumEpochRequest(Message, frozen=True, kw_only=True):
    """A new leader says that it leads."""

    cluster_id: str
    voter: int
    leader: int
    epoch: int
    voter_directory: str = ""


class BeginQuorumEpochResponse(QuorumResponse, frozen=True, kw_only=True):
    pass


class EndQuorumEpochRequest(Message, frozen=True, kw_only=True):
    """A leader steps down; `successors` by the end of their logs, the best one first."""

    cluster_id: str
    voter: int
    leader: int
    epoch: int
    successors: list[int] = []
    voter_directory: str = ""


class EndQuorumEpochResponse(QuorumResponse, frozen=True, kw_only=True):
    pass


class FetchSnapshotRequest(Message, frozen=True, kw_only=True):
    """A piece of a metadata snapshot (KIP-630)."""

    cluster_id: str
    replica_id: int
    current_leader_epoch: int
    snapshot: EpochEnd
    position: int
    max_bytes: int = 1 << 20
    replica_directory: str = ""


class FetchSnapshotResponse(QuorumResponse, frozen=True, kw_only=True):
    size: int = -1
    """Bytes of the whole snapshot."""
    position: int = -1
    data: int = -1
    """The attachment with the bytes from `position`, which need not end with a batch."""
