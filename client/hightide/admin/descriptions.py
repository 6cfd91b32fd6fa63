"""What `Admin` answers with: topics, brokers, replicas, the quorum and groups, as users see them.

They have the names of the messages they are made from, and change less often: the wire may grow
without them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

from hightide.protocol import access_messages as a
from hightide.protocol import group_messages as g
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import node_messages as n
from hightide.protocol import quorum_messages as q
from hightide.protocol.access_messages import ANY

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Acl:
    """A rule: a principal may do something to a resource, or may not."""

    resource: str
    """topic, group or cluster."""
    name: str
    """Its name, `*` for all; the cluster's is `cluster`."""
    pattern: str
    """LITERAL, or PREFIXED: all whose names begin with `name`."""
    principal: str
    """`User:alice`; `User:*` is everybody."""
    host: str
    """An address, or `*`."""
    operation: str
    permission: str
    """ALLOW or DENY; DENY goes before."""


@dataclass(frozen=True, slots=True)
class AclPattern:
    """Which rules are meant: those that agree with everything that is said."""

    resource: str = ANY
    name: str | None = None
    pattern: str = ANY
    """LITERAL or PREFIXED; MATCH: all rules that concern a resource called `name`."""
    principal: str | None = None
    host: str | None = None
    operation: str = ANY
    permission: str = ANY


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """Whether somebody may do something."""

    allowed: bool
    reason: str
    rule: Acl | None
    """The rule that decides; None if none does, as for super users."""


@dataclass(frozen=True, slots=True)
class UserCredential:
    """That a user has a password, and for which mechanism."""

    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True)
class UserDescription:
    """Somebody who may log in."""

    user: str
    credentials: list[UserCredential]


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a second somebody may do."""

    key: str
    """producer_byte_rate or consumer_byte_rate: bytes, at each broker; controller_mutation_rate:
    partitions created and deleted; connection_creation_rate: connections of an `ip` to each
    broker."""
    value: int | float | None
    """None, to remove it."""
    user: str | None = None
    """None: whichever it is; `<default>`: who has no quota of their own."""
    client_id: str | None = None
    ip: str | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was made, or, with `validate_only`, would have been."""

    topic: str
    topic_id: str
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Who holds a partition, and who leads it. Brokers are ids."""

    partition: int
    leader: int
    """-1 while nobody leads."""
    leader_epoch: int
    replicas: list[int]
    """The first one is the preferred leader."""
    isr: list[int]
    elr: list[int]
    """Replicas outside the ISR that have all that is committed (KIP-966)."""
    last_known_elr: list[int]
    last_leader: int
    """Who led when the ISR became empty; -1: it is not."""
    error: str | None
    """LEADER_NOT_AVAILABLE while nobody leads."""
    message: str
    """Why nobody leads, and what is waited for."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions."""

    topic: str
    topic_id: str
    internal: bool
    """Whether it is the cluster's own."""
    partitions: list[PartitionDescription]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting of a topic, a broker or the cluster."""

    name: str
    value: str
    default: bool
    """Whether nothing else was set on this resource."""
    read_only: bool
    doc: str


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A registered node."""

    id: int
    host: str
    port: int
    rack: str
    roles: list[str]
    fenced: bool
    """Whether it leads nothing and may join no ISR: it is silent, or still starts."""
    epoch: int
    """Which registration of the node this is; a later process has a larger one."""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """All registered nodes, and the active controller."""

    cluster_id: str
    controller: int
    brokers: list[BrokerDescription]


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """A replica on a broker's disk; offsets are next ones, -1 while it is offline."""

    topic: str
    partition: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    synced_offset: int
    """Everything below it survives a power loss of this broker."""
    leader_epoch: int
    waits_for_room: bool
    """The disk was too full for what it had to write last."""
    error: str
    """Why it is offline; empty while it is not."""


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A broker's data directory."""

    broker: int
    path: str
    replicas: list[ReplicaDescription]
    free_bytes: int
    """What the disk has left for it."""
    error: str
    """Why nothing is known of this broker: it did not answer."""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What a node's process has used since it started; -1: not counted."""

    node: int
    loop_passes: int
    """Turns of its event loop."""
    user_ms: int
    """Time of processors in its own code."""
    system_ms: int
    """Time of processors in the kernel, for it."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Where the records of one leader's epoch begin."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class MetadataLogDescription:
    """A node's own copy of the metadata log; offsets are next ones."""

    node: int
    log_start_offset: int
    """What came before is in a snapshot."""
    high_watermark: int
    """As far as the node has heard."""
    synced_offset: int
    log_end_offset: int
    epochs: list[EpochStart]
    """The newest, oldest first."""


class TracePlace(NamedTuple):
    """How far a node's trace was read; see `Admin.read_trace`."""

    file: int = 0
    position: int = 0


TRACE_START = TracePlace()
"""Before everything that is kept."""


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """What became of an election."""

    topic: str
    partition: int
    leader: int
    error: str | None
    """Kafka's code, if there was none: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, …"""
    message: str


SILENT_MS = 5_000
"""Voters fetch again within half a second."""


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A voter or an observer as the quorum's leader sees it."""

    id: int
    directory: str
    """The id of its data directory; empty: not known."""
    host: str
    port: int
    """Where a voter listens for nodes; empty and -1 for observers, and for who may not ALTER the
    cluster."""
    log_end_offset: int
    lag: int
    last_fetch_ms_ago: int
    last_caught_up_ms_ago: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum of controllers."""

    cluster_id: str
    leader: int
    epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]

    @property
    def silent(self) -> list[int]:
        """The voters whom the leader has never heard, or not for five seconds; none where nobody
        leads, and so nobody listens."""
        if self.leader < 0:
            return []
        heard = range(SILENT_MS)
        others = (voter for voter in self.voters if voter.id != self.leader)
        return [voter.id for voter in others if voter.last_fetch_ms_ago not in heard]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group by its name."""

    group: str
    state: str
    protocol_type: str
    members: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    metadata: bytes
    """Its subscription, as the group's protocol writes it."""
    assignment: bytes
    """What it was given, likewise."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Why a group was rebalanced, and when."""

    at_ms: int
    generation: int
    """The one that it ended."""
    cause: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, who is in it, and what moved it."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    """How partitions are shared: the assignor that all members know."""
    generation: int
    leader: str
    """The member that shares them out."""
    coordinator: int
    members: list[MemberDescription]
    rebalances: list[Rebalance]
    """The last few, oldest first."""


class CommittedOffset(NamedTuple):
    """What a group has committed in a partition."""

    offset: int
    """The next record to read."""
    leader_epoch: int
    metadata: str
    commit_time_ms: int


class GroupLag(NamedTuple):
    """How far a group is in one partition; offsets are the next ones."""

    topic: str
    partition: int
    committed: int | None
    """None: nothing is."""
    end: int
    lag: int | None
    member_id: str
    """Who reads it; empty if nobody does."""
    metadata: str = ""
    """What was committed beside the offset."""
    behind_ms: int | None = None
    """How long ago the first record was written that it has not read, to the batch; 0: it has read
    all. None: not known, because its coordinator has no replica."""


class GroupMove(NamedTuple):
    """Where a group goes on in a partition, before and after."""

    topic: str
    partition: int
    committed: int | None
    new: int
    limited: bool = False
    """What was asked for lies outside of the log: it goes on where that begins or ends."""


_PARTS: dict[type, type] = {
    m.PartitionMetadata: PartitionDescription,
    m.BrokerInfo: BrokerDescription,
    m.ReplicaInfo: ReplicaDescription,
    n.EpochStart: EpochStart,
    q.QuorumReplica: QuorumReplica,
    a.AclRule: Acl,
    u.ScramCredentialInfo: UserCredential,
    g.DescribedMember: MemberDescription,
    g.Rebalance: Rebalance,
}
"""What the parts of answers become."""


def described(kind: type[T], message: m.Message) -> T:
    """An answer, or a part of one, as users see it: the fields of `kind`, by their names."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type] # they are dataclasses
    return kind(**{name: _value(getattr(message, name)) for name in names})


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(each) for each in value]
    kind = _PARTS.get(type(value))
    return value if kind is None else described(kind, value)
