"""What members of consumer groups and their coordinators say to each other, and what they keep.

The rules of `messages.py` hold. Kafka's classic protocol (KIP-62, 345, 394), with its field
meanings; `instance_id` is empty for dynamic members, `generation` -1 for who is no member. A
member's subscription and its assignment are opaque to the coordinator: `Subscription` and
`Assigned` are what consumers put there, in the bytes that `consumer_protocol.py` knows.
"""

from __future__ import annotations

from hightide.protocol.messages import Message

NO_OFFSET = -1
"""Nothing is committed."""


class FindCoordinatorRequest(Message, frozen=True, kw_only=True):
    group: str


class FindCoordinatorResponse(Message, frozen=True, kw_only=True):
    error: str | None = None
    message: str = ""
    broker: int = -1
    host: str = ""
    port: int = -1


class Protocol(Message, frozen=True, kw_only=True):
    """An assignor that a member can work with, and what it subscribes to."""

    name: str
    metadata: bytes


class JoinGroupRequest(Message, frozen=True, kw_only=True):
    group: str
    protocols: list[Protocol]
    member_id: str = ""
    """Empty in the first request: the answer names one (KIP-394)."""
    instance_id: str = ""
    client_id: str = ""
    protocol_type: str = "consumer"
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    reason: str = ""


class JoinedMember(Message, frozen=True, kw_only=True):
    member_id: str
    metadata: bytes
    instance_id: str = ""


class JoinGroupResponse(Message, frozen=True, kw_only=True):
    error: str | None = None
    message: str = ""
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    member_id: str = ""
    members: list[JoinedMember] = []
    """For the leader alone: who is to be given something."""
    skip_assignment: bool = False
    """The leader came back and everything stays as it is (KIP-814)."""


class MemberAssignment(Message, frozen=True, kw_only=True):
    member_id: str
    assignment: bytes


class SyncGroupRequest(Message, frozen=True, kw_only=True):
    group: str
    member_id: str
    generation: int
    instance_id: str = ""
    protocol: str = ""
    """Empty: not checked."""
    assignments: list[MemberAssignment] = []
    """From the leader alone."""


class SyncGroupResponse(Message, frozen=True, kw_only=True):
    error: str | None = None
    message: str = ""
    protocol: str = ""
    assignment: bytes = b""


class GroupHeartbeatRequest(Message, frozen=True, kw_only=True):
    group: str
    member_id: str
    generation: int
    instance_id: str = ""


class GroupHeartbeatResponse(Message, frozen=True, kw_only=True):
    error: str | None = None
    message: str = ""


class LeavingMember(Message, frozen=True, kw_only=True):
    """By member id; an administrator may name a static member by its instance id alone."""

    reason: str
    member_id: str = ""
    instance_id: str = ""


class LeaveGroupRequest(Message, frozen=True, kw_only=True):
    group: str
    members: list[LeavingMember]


class LeaveResult(Message, frozen=True, kw_only=True):
    member_id: str
    instance_id: str = ""
    error: str | None = None
    message: str = ""


class LeaveGroupResponse(Message, frozen=True, kw_only=True):
    error: str | None = None
    message: str = ""
    members: list[LeaveResult] = []


class CommitPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int
    """The next record to read."""
    leader_epoch: int = -1
    """Of the last record that was read (KIP-320)."""
    metadata: str = ""
    topic_id: str = ""
    """Of the topic that was read; empty: of whichever has this name now."""


class OffsetCommitRequest(Message, frozen=True, kw_only=True):
    group: str
    partitions: list[CommitPartition]
    member_id: str = ""
    generation: int = -1
    instance_id: str = ""
    sender: str = ""
    """Who counts its commits: one consumer, whichever members it is in its life; empty: nobody."""
    number: int = -1
    """Rises with each commit of a sender, so that one that comes late undoes no later one."""


class CommitResult(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: str | None = None
    message: str = ""


class OffsetCommitResponse(Message, frozen=True, kw_only=True):
    partitions: list[CommitResult]


class GroupPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int


class OffsetFetchRequest(Message, frozen=True, kw_only=True):
    group: str
    partitions: list[GroupPartition] | None = None
    """None: whatever is committed."""
    wants_age: bool = False
    """Whether `behind_ms` is asked for, too."""


class FetchedOffset(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: str = ""
    """Of the topic that was read; empty: not known."""
    commit_time_ms: int = -1
    behind_ms: int = -1
    """How long ago the first record was written that is not read yet, to the batch; 0: all are
    read; -1: not asked for, or not known to the coordinator, which has no replica."""
    error: str | None = None
    message: str = ""


class OffsetFetchResponse(Message, frozen=True, kw_only=True):
    error: str | None = None
    message: str = ""
    partitions: list[FetchedOffset] = []


class OffsetDeleteRequest(Message, frozen=True, kw_only=True):
    """Forget committed offsets of partitions that nobody in the group reads (KIP-496)."""

    group: str
    partitions: list[GroupPartition]


class OffsetDeleteResponse(Message, frozen=True, kw_only=True):
    partitions: list[CommitResult]


class ListGroupsRequest(Message, frozen=True, kw_only=True):
    """The groups that this broker coordinates."""


class ListedGroup(Message, frozen=True, kw_only=True):
    group: str
    state: str
    protocol_type: str = ""
    members: int = 0


class ListGroupsResponse(Message, frozen=True, kw_only=True):
    error: str | None = None
    message: str = ""
    groups: list[ListedGroup] = []


class DescribeGroupsRequest(Message, frozen=True, kw_only=True):
    groups: list[str]


class DescribedMember(Message, frozen=True, kw_only=True):
    member_id: str
    instance_id: str = ""
    client_id: str = ""
    host: str = ""
    metadata: bytes = b""
    assignment: bytes = b""


class Rebalance(Message, frozen=True, kw_only=True):
    """Why a group was rebalanced, and when."""

    at_ms: int
    generation: int
    """The one that it ended."""
    cause: str


class DescribedGroup(Message, frozen=True, kw_only=True):
    group: str
    error: str | None = None
    message: str = ""
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    generation: int = -1
    leader: str = ""
    coordinator: int = -1
    members: list[DescribedMember] = []
    rebalances: list[Rebalance] = []
    """The last few, oldest first."""


class DescribeGroupsResponse(Message, frozen=True, kw_only=True):
    groups: list[DescribedGroup]


class DeleteGroupsRequest(Message, frozen=True, kw_only=True):
    groups: list[str]


class DeletedGroup(Message, frozen=True, kw_only=True):
    group: str
    error: str | None = None
    message: str = ""


class DeleteGroupsResponse(Message, frozen=True, kw_only=True):
    groups: list[DeletedGroup]


# -- what clients put into the opaque fields -------------------------------------------------------


class TopicPartitions(Message, frozen=True, kw_only=True):
    topic: str
    partitions: list[int]


class Subscription(Message, frozen=True, kw_only=True):
    """What a member subscribes to, and what it still reads (KIP-429, KIP-792)."""

    topics: list[str]
    owned: list[TopicPartitions] = []
    generation: int = -1


class Assigned(Message, frozen=True, kw_only=True):
    """What a member is to read."""

    partitions: list[TopicPartitions]
