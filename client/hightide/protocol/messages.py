"""Requests and responses as frozen Structs: those of clients and of everybody.

What only nodes say to each other is in `controller_messages.py`; `apis.py` lists the APIs.

The evolution rule: unknown keys are ignored, missing ones take the defaults here. A field without a
default has been there since version 1 and must be sent; each element of a list has at least one, so
that a small message cannot decode into a large one. Field meanings are Kafka's (KAFKA protocol
guide, same names); `error` is a name of `errors.ErrorCode` or None. `records` is the position of an
attachment, -1 for none. Offsets are records, `_ms` is milliseconds, sizes are bytes. Pure.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

EARLIEST = -2
"""ListOffsets timestamp: the log start offset."""
LATEST = -1
"""ListOffsets timestamp: the high watermark (for a replica, the log end offset)."""
MAX_TIMESTAMP = -3
"""ListOffsets timestamp: the record with the largest timestamp (KIP-734)."""
ACKS_ALL = -1


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The root of what is said on the wire."""


class ErrorBody(Message, frozen=True, kw_only=True):
    code: str
    message: str = ""


class RequestEnvelope(Message, frozen=True, kw_only=True):
    """What every request frame starts with."""

    api: str
    version: int
    id: int
    client: str = ""
    body: msgspec.Raw = msgspec.Raw(b"\x80")


class ResponseEnvelope(Message, frozen=True, kw_only=True):
    """What every response frame starts with."""

    id: int
    error: ErrorBody | None = None
    body: msgspec.Raw = msgspec.Raw(b"\x80")


class ApiRange(Message, frozen=True, kw_only=True):
    name: str
    min_version: int
    max_version: int


class ApiVersionsRequest(Message, frozen=True, kw_only=True):
    client_name: str = ""
    client_version: str = ""


class ApiVersionsResponse(Message, frozen=True, kw_only=True):
    apis: list[ApiRange]
    broker_version: str = ""


class BrokerInfo(Message, frozen=True, kw_only=True):
    id: int
    host: str
    port: int
    rack: str = ""
    roles: list[str] = []
    fenced: bool = False
    epoch: int = -1


class PartitionMetadata(Message, frozen=True, kw_only=True):
    partition: int
    leader: int
    """Broker id, -1 while there is none."""
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int] = []
    """Replicas outside the ISR that have all that is committed (KIP-966)."""
    last_known_elr: list[int] = []
    last_leader: int = -1
    """Who led when the ISR became empty; -1: it is not."""
    error: str | None = None
    message: str = ""
    """Why nobody leads it, and what it waits for."""


class TopicMetadata(Message, frozen=True, kw_only=True):
    topic: str
    topic_id: str = ""
    internal: bool = False
    error: str | None = None
    message: str = ""
    partitions: list[PartitionMetadata] = []


class MetadataRequest(Message, frozen=True, kw_only=True):
    topics: list[str] | None = None
    """None: every topic."""
    auto_create: bool = False
    """Make missing topics, where auto.create.topics.enable allows it."""


class MetadataResponse(Message, frozen=True, kw_only=True):
    cluster_id: str
    controller: int
    brokers: list[BrokerInfo]
    topics: list[TopicMetadata]
    metadata_offset: int = -1
    """Up to where of the metadata log this is known; -1: not said. Of two answers that disagree
    about a topic the one that knows less is wrong."""


class ProducePartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    records: int
    topic_id: str = ""
    """Records for this topic, and for none of its name that was made since; "": for any."""


class ProduceRequest(Message, frozen=True, kw_only=True):
    acks: int
    """0, 1, or -1 for all."""
    timeout_ms: int
    partitions: list[ProducePartition]


class LeaderHint(Message, frozen=True, kw_only=True):
    """Who leads now, inside a refusal (KIP-951)."""

    leader: int
    leader_epoch: int


class RecordError(Message, frozen=True, kw_only=True):
    """Why one record has its batch refused (KIP-467)."""

    index: int
    """Its place in the batch."""
    message: str


class ProduceResult(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: str | None = None
    message: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    current_leader: LeaderHint | None = None
    is_repeated: bool = False
    """A batch of this producer with these sequences was stored before, by this request or by
    another one: that is the one at `base_offset`."""
    record_errors: list[RecordError] = []
    """The first of the records for which the batch was refused, if it was for some."""


class ProduceResponse(Message, frozen=True, kw_only=True):
    partitions: list[ProduceResult]
    throttle_time_ms: int = 0
    """How long nothing more is read of who sent this: a quota (KIP-219)."""


class FetchPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    fetch_offset: int
    topic_id: str = ""
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    max_bytes: int = 1 << 20
    high_watermark: int = -1
    """What the fetcher knows of it: a leader that knows more answers at once (KIP-1166); -1: do not
    care."""


class FetchRequest(Message, frozen=True, kw_only=True):
    max_wait_ms: int
    partitions: list[FetchPartition]
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    replica_id: int = -1
    """Broker id of a follower, -1 for a consumer."""
    replica_epoch: int = -1
    rack: str = ""
    cluster_id: str = ""
    """Checked where the metadata log is fetched; empty: not known."""
    replica_directory: str = ""
    """Whose directory fetches the metadata log (KIP-853); empty: no voter that a record names."""
    session_id: int = -1
    """A follower's session, by a number of its own (KIP-227): `partitions` are handed to it, and
    it answers with news of any that it has. What was named leaves it. -1: no session."""
    session_epoch: int = 0
    """0 begins the session, each further request is one more."""
    reads_rows: bool = False  # A consumer that knows batches of Kafka's rows, or one from before.


class EpochEnd(Message, frozen=True, kw_only=True):
    """Where an epoch ends; also the id of a metadata snapshot: what it contains ends there."""

    epoch: int
    end_offset: int


class FetchResult(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: str | None = None
    message: str = ""
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEnd | None = None
    snapshot: EpochEnd | None = None
    """The metadata log no longer holds what was asked for: fetch this snapshot (KIP-630)."""
    current_leader: LeaderHint | None = None
    preferred_read_replica: int = -1
    """The broker that a consumer with a rack should ask from now on (KIP-392); -1: this one."""
    records: int = -1


class FetchResponse(Message, frozen=True, kw_only=True):
    partitions: list[FetchResult]
    session_id: int = -1
    """The session that was asked in; -1: who answers keeps none."""
    throttle_time_ms: int = 0


class ListOffsetsPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: int = -1
    topic_id: str = ""


class ListOffsetsRequest(Message, frozen=True, kw_only=True):
    partitions: list[ListOffsetsPartition]
    replica_id: int = -1


class ListOffsetsResult(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: str | None = None
    message: str = ""
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


class ListOffsetsResponse(Message, frozen=True, kw_only=True):
    partitions: list[ListOffsetsResult]


class EpochPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


class OffsetForLeaderEpochRequest(Message, frozen=True, kw_only=True):
    partitions: list[EpochPartition]
    replica_id: int = -1


class EpochResult(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: str | None = None
    message: str = ""
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderEpochResponse(Message, frozen=True, kw_only=True):
    partitions: list[EpochResult]


class NewTopic(Message, frozen=True, kw_only=True):
    topic: str
    partitions: int = -1
    """-1: the broker's num.partitions."""
    replication_factor: int = -1
    """-1: the broker's default.replication.factor."""
    configs: dict[str, str] = {}
    assignment: list[Annotated[list[int], msgspec.Meta(min_length=1)]] | None = None
    """Replicas of each partition; excludes `partitions` and `replication_factor`."""


class CreateTopicsRequest(Message, frozen=True, kw_only=True):
    topics: list[NewTopic]
    validate_only: bool = False


class TopicResult(Message, frozen=True, kw_only=True):
    topic: str
    error: str | None = None
    message: str = ""
    topic_id: str = ""
    partitions: int = 0
    replication_factor: int = 0
    throttle_time_ms: int = 0
    """When to ask again for what a quota refused (KIP-599)."""


class CreateTopicsResponse(Message, frozen=True, kw_only=True):
    topics: list[TopicResult]


class DeleteTopicsRequest(Message, frozen=True, kw_only=True):
    topics: list[str]
    ids: dict[str, str] = {}
    """By name, of those that are meant by their id: another topic that has the name by then is not
    deleted (KIP-516)."""


class DeleteTopicsResponse(Message, frozen=True, kw_only=True):
    topics: list[TopicResult]


class MorePartitions(Message, frozen=True, kw_only=True):
    topic: str
    count: int
    """How many partitions the topic shall have in all."""
    assignment: list[Annotated[list[int], msgspec.Meta(min_length=1)]] | None = None
    """Replicas of each new one, as many as the topic's others have; None: the controller places
    them."""


class CreatePartitionsRequest(Message, frozen=True, kw_only=True):
    topics: list[MorePartitions]
    validate_only: bool = False


class CreatePartitionsResponse(Message, frozen=True, kw_only=True):
    topics: list[TopicResult]


class DeleteRecordsPartition(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int
    """The new log start offset; -1: the high watermark."""


class DeleteRecordsRequest(Message, frozen=True, kw_only=True):
    partitions: list[DeleteRecordsPartition]
    timeout_ms: int = 30_000


class DeleteRecordsResult(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: str | None = None
    message: str = ""
    low_watermark: int = -1


class DeleteRecordsResponse(Message, frozen=True, kw_only=True):
    partitions: list[DeleteRecordsResult]


class ConfigResource(Message, frozen=True, kw_only=True):
    kind: str
    """`topic` or `broker`."""
    name: str
    """Topic name, or broker id as text."""


class ConfigEntry(Message, frozen=True, kw_only=True):
    name: str
    value: str
    default: bool = True
    """Whether the value is the default and not set on this resource."""
    read_only: bool = False
    doc: str = ""


class DescribeConfigsRequest(Message, frozen=True, kw_only=True):
    resources: list[ConfigResource]


class ConfigResult(Message, frozen=True, kw_only=True):
    kind: str
    name: str
    error: str | None = None
    message: str = ""
    entries: list[ConfigEntry] = []


class DescribeConfigsResponse(Message, frozen=True, kw_only=True):
    resources: list[ConfigResult]


class ConfigChange(Message, frozen=True, kw_only=True):
    kind: str
    name: str
    set: dict[str, str] = {}
    unset: list[str] = []


class AlterConfigsRequest(Message, frozen=True, kw_only=True):
    resources: list[ConfigChange]
    validate_only: bool = False


class AlterConfigsResponse(Message, frozen=True, kw_only=True):
    resources: list[ConfigResult]


class DescribeClusterRequest(Message, frozen=True, kw_only=True):
    pass


class DescribeClusterResponse(Message, frozen=True, kw_only=True):
    cluster_id: str
    controller: int
    brokers: list[BrokerInfo]


class DescribeLogDirsRequest(Message, frozen=True, kw_only=True):
    topics: list[str] | None = None


class ReplicaInfo(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    synced_offset: int = -1
    """Everything below it survives a power loss of this broker."""
    leader_epoch: int = -1
    waits_for_room: bool = False
    """The disk was too full for what it had to write last."""
    error: str = ""
    """Why the replica is offline; empty while it is not."""


class DescribeLogDirsResponse(Message, frozen=True, kw_only=True):
    broker: int
    path: str
    replicas: list[ReplicaInfo]
    free_bytes: int = -1
    error: str = ""
    """Why nothing is known of this broker: it did not answer."""


class PartitionName(Message, frozen=True, kw_only=True):
    topic: str
    partition: int


class ElectLeadersRequest(Message, frozen=True, kw_only=True):
    """An election by hand (KIP-460)."""

    unclean: bool = False
    """False: the preferred replica leads. True: any live one, data may be lost."""
    partitions: list[PartitionName] | None = None
    """None: every partition that needs one."""
    timeout_ms: int = 30_000


class ElectLeadersResult(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: str | None = None
    message: str = ""
    leader: int = -1


class ElectLeadersResponse(Message, frozen=True, kw_only=True):
    partitions: list[ElectLeadersResult]
