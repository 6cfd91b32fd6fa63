"""Every event of a trace: its name, its fields. Pure.

An event says what happened on one node, in values that need no context: names instead of ids,
epochs and offsets as the node had them. A field may be added with a default; nothing is ever
renamed or removed, because files keep what was written. -1: not known, or nobody.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """The root of all events."""


Tell = Callable[[Event], None]
"""Where a room tells what happened."""


def tell_nobody(_: Event) -> None:
    """Nobody wants to know."""


# -- a node ----------------------------------------------------------------------------------------


class NodeStarted(Event, tag="node_started", frozen=True, kw_only=True):
    """A process has its data directory."""

    version: str
    roles: tuple[str, ...]
    was_clean: bool
    """Whether its last stop was orderly."""


class NodeServes(Event, tag="node_serves", frozen=True, kw_only=True):
    """It may be asked."""

    address: str
    broker_epoch: int = -1


class NodeStopped(Event, tag="node_stopped", frozen=True, kw_only=True):
    """An orderly stop came to its end."""

    is_clean: bool


class NodeFailed(Event, tag="node_failed", frozen=True, kw_only=True):
    """A process ends because it cannot go on, and could still write that down."""

    error: str
    """The exception's type."""
    place: str
    """Where in the house it was raised: module, line and function."""
    why: str = ""
    """What it says; empty for a bug, whose words may hold what nobody should read."""


class EventsLost(Event, tag="events_lost", frozen=True, kw_only=True):
    """Events before this one could not be kept."""

    count: int


# -- the quorum ------------------------------------------------------------------------------------


class QuorumRole(Event, tag="quorum_role", frozen=True, kw_only=True):
    """A node has another role in the quorum, or another epoch or leader."""

    role: str
    epoch: int
    leader: int = -1
    voted: int = -1
    log_end: int = -1
    left_out: int = 0
    """So many changes of role before this one were not told, as they came to nothing."""


class QuorumVote(Event, tag="quorum_vote", frozen=True, kw_only=True):
    """A node was asked for its vote, and answered."""

    candidate: int
    epoch: int
    """For which it was asked."""
    granted: bool
    is_pre_vote: bool = False
    """A question whether an election could be won, which costs no epoch (KIP-996)."""
    why: str = ""
    left_out: int = 0
    """So many such questions before this one were not told."""


class VotersChanged(Event, tag="voters_changed", frozen=True, kw_only=True):
    """The leader wrote down who votes from here on."""

    offset: int
    voters: tuple[int, ...]


class QuorumTruncated(Event, tag="quorum_truncated", frozen=True, kw_only=True):
    """A node cut of its metadata log what its leader does not have."""

    leader: int
    epoch: int
    """Of the quorum."""
    before: int
    """Its log end."""
    after: int
    epoch_before: int
    """Of its last record."""
    epoch_after: int
    high_watermark: int
    """As it knew it, before the cut: 0 if it has just started."""


# -- what the active controller decides ------------------------------------------------------------


class BrokerChanged(Event, tag="broker_changed", frozen=True, kw_only=True):
    """A broker may serve, may no more, or begins to stop."""

    offset: int
    """Of the record in the metadata log."""
    broker: int
    broker_epoch: int
    state: str
    """`registered`, `unfenced`, `fenced` or `stopping`."""
    cause: str = ""


class TopicChanged(Event, tag="topic_changed", frozen=True, kw_only=True):
    """A topic was created or deleted."""

    offset: int
    topic: str
    state: str
    """`created` or `deleted`."""


class PartitionChanged(Event, tag="partition_changed", frozen=True, kw_only=True):
    """Another leader, ISR or ELR."""

    offset: int
    """Of the record in the metadata log."""
    topic: str
    partition: int
    leader_epoch: int
    leader: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    leader_before: int = -1
    isr_before: tuple[int, ...] = ()
    elr_before: tuple[int, ...] = ()
    election: str = ""
    """How a leader was found: `isr`, `preferred`, `elr`, `last_known` or `unclean`; empty: none was
    needed, or none found."""
    cause: str = ""


# -- what replicas do ------------------------------------------------------------------------------


class OfPartition(Event, frozen=True, kw_only=True):
    """What happened to one replica."""

    topic: str
    partition: int
    leader_epoch: int


class LeaderBegan(OfPartition, tag="leader_began", frozen=True, kw_only=True):
    """A replica leads an epoch, from its log end on."""

    log_end: int
    high_watermark: int
    isr: tuple[int, ...]


class FollowerBegan(OfPartition, tag="follower_began", frozen=True, kw_only=True):
    """A replica follows in an epoch; nobody, if there is no leader."""

    leader: int
    log_end: int
    last_epoch: int
    """Of its last record."""
    high_watermark: int


class IsrProposed(OfPartition, tag="isr_proposed", frozen=True, kw_only=True):
    """A leader asks for an ISR without a replica, or with one more."""

    broker: int
    """Who is to leave or to join."""
    joins: bool
    isr: tuple[int, ...]
    """As it is now."""
    behind_ms: int = -1
    """How long ago it last had all that the leader had."""
    its_end: int = -1
    log_end: int = -1
    high_watermark: int = -1


class IsrRefused(OfPartition, tag="isr_refused", frozen=True, kw_only=True):
    """The controller did not grant an ISR."""

    isr: tuple[int, ...]
    error: str
    message: str = ""


class Truncated(OfPartition, tag="truncated", frozen=True, kw_only=True):
    """A follower cut what its leader does not have."""

    leader: int
    before: int
    """Its log end."""
    after: int
    epoch_before: int
    """Of its last record."""
    epoch_after: int
    high_watermark: int
    """As it knew it, before the cut."""
    is_whole: bool = False
    """Nothing was kept: it begins again where the leader's log does."""


class Offsets(msgspec.Struct, frozen=True, array_like=True):
    """How far one replica is."""

    topic: str
    partition: int
    leader_epoch: int
    log_start: int
    high_watermark: int
    log_end: int
    synced_end: int


class WatermarksMoved(Event, tag="watermarks_moved", frozen=True, kw_only=True):
    """How far replicas are whose watermark or log end moved since it was last told."""

    replicas: tuple[Offsets, ...]


class ReplicaOffline(OfPartition, tag="replica_offline", frozen=True, kw_only=True):
    """A replica serves nobody any more."""

    why: str
    is_damaged: bool = False


class RepairBegan(OfPartition, tag="repair_began", frozen=True, kw_only=True):
    """A damaged replica is cut to what is whole of it, and fetches the rest again."""

    why: str


class RepairEnded(OfPartition, tag="repair_ended", frozen=True, kw_only=True):
    """What was kept of it."""

    log_end: int
    """-1: it could not be opened."""


# -- groups ----------------------------------------------------------------------------------------


class CoordinatorBegan(OfPartition, tag="coordinator_began", frozen=True, kw_only=True):
    """A leader of a partition of `__consumer_offsets` has read its groups."""

    groups: int


class CoordinatorEnded(OfPartition, tag="coordinator_ended", frozen=True, kw_only=True):
    """It coordinates them no more."""

    why: str


class GroupChanged(Event, tag="group_changed", frozen=True, kw_only=True):
    """A group has another state."""

    group: str
    state: str
    generation: int
    members: int
    cause: str = ""


AnyEvent = (
    NodeStarted
    | NodeServes
    | NodeStopped
    | NodeFailed
    | EventsLost
    | QuorumRole
    | QuorumVote
    | VotersChanged
    | QuorumTruncated
    | BrokerChanged
    | TopicChanged
    | PartitionChanged
    | LeaderBegan
    | FollowerBegan
    | IsrProposed
    | IsrRefused
    | Truncated
    | WatermarksMoved
    | ReplicaOffline
    | RepairBegan
    | RepairEnded
    | CoordinatorBegan
    | CoordinatorEnded
    | GroupChanged
)
