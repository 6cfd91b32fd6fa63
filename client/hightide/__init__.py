"""hightide: the client library of a small, real, replicated log.

    async with hightide.Producer("127.0.0.1:19092") as producer:
        delivery = await producer.send("orders", b"value", key=b"key")
        record = await delivery

`Producer`, `Consumer` and `Admin` need trio's event loop; `hightide.blocking` has the same three
classes for code that has none. Everything is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import hightide.blocking as blocking
    from hightide.admin.admin import Admin
    from hightide.admin.descriptions import (
        AccessVerdict,
        Acl,
        AclPattern,
        BrokerDescription,
        ClusterDescription,
        CommittedOffset,
        ConfigEntry,
        CreatedTopic,
        ElectionResult,
        EpochStart,
        GroupDescription,
        GroupLag,
        GroupListing,
        GroupMove,
        LogDirDescription,
        MemberDescription,
        MetadataLogDescription,
        NodeDescription,
        PartitionDescription,
        QuorumDescription,
        QuorumReplica,
        Quota,
        Rebalance,
        ReplicaDescription,
        TopicDescription,
        TracePlace,
        UserCredential,
        UserDescription,
    )
    from hightide.admin.options import AdminOptions
    from hightide.consume.assignors import Assignor
    from hightide.consume.consumer import Consumer
    from hightide.consume.health import Health
    from hightide.consume.options import ConsumerOptions
    from hightide.consume.subscription import Listener, OffsetAndMetadata, OffsetAndTimestamp
    from hightide.net.config_file import read_client_config
    from hightide.net.options import ClientOptions
    from hightide.produce.bulk import Deliveries, RecordRange
    from hightide.produce.delivery import Delivery, RecordMetadata
    from hightide.produce.options import ProducerOptions
    from hightide.produce.partitioner import Partitioner
    from hightide.produce.producer import Producer
    from hightide.protocol.columns import Record
    from hightide.protocol.errors import (
        ApiError,
        AuthenticationFailed,
        BrokerUnreachable,
        ClosedError,
        CorruptBatch,
        DeliveryTimeout,
        ErrorCode,
        HightideError,
        LogTruncated,
        RecordTooLarge,
        RemoteProtocolError,
        RequestTimedOut,
        UsageError,
    )
    from hightide.protocol.messages import EARLIEST, LATEST, MAX_TIMESTAMP
    from hightide.protocol.topic_partition import TopicPartition

    __version__: str

__all__ = [
    "Producer",
    "Consumer",
    "Admin",
    "ClientOptions",
    "ProducerOptions",
    "ConsumerOptions",
    "AdminOptions",
    "Record",
    "RecordMetadata",
    "RecordRange",
    "Delivery",
    "Deliveries",
    "Health",
    "Listener",
    "Assignor",
    "Partitioner",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "TopicPartition",
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Acl",
    "AclPattern",
    "AccessVerdict",
    "UserDescription",
    "UserCredential",
    "Quota",
    "CreatedTopic",
    "TopicDescription",
    "PartitionDescription",
    "ConfigEntry",
    "ClusterDescription",
    "BrokerDescription",
    "LogDirDescription",
    "EpochStart",
    "MetadataLogDescription",
    "NodeDescription",
    "ReplicaDescription",
    "ElectionResult",
    "QuorumDescription",
    "QuorumReplica",
    "TracePlace",
    "GroupListing",
    "GroupDescription",
    "MemberDescription",
    "Rebalance",
    "CommittedOffset",
    "GroupLag",
    "GroupMove",
    "blocking",
    "read_client_config",
    "HightideError",
    "ApiError",
    "ErrorCode",
    "AuthenticationFailed",
    "BrokerUnreachable",
    "RequestTimedOut",
    "DeliveryTimeout",
    "CorruptBatch",
    "LogTruncated",
    "RemoteProtocolError",
    "ClosedError",
    "UsageError",
    "RecordTooLarge",
]

_NAMES = {
    "net.options": "ClientOptions",
    "produce.producer": "Producer",
    "produce.options": "ProducerOptions",
    "produce.delivery": "Delivery RecordMetadata",
    "produce.bulk": "Deliveries RecordRange",
    "produce.partitioner": "Partitioner",
    "consume.assignors": "Assignor",
    "consume.consumer": "Consumer",
    "consume.health": "Health",
    "consume.options": "ConsumerOptions",
    "consume.subscription": "Listener OffsetAndMetadata OffsetAndTimestamp",
    "protocol.topic_partition": "TopicPartition",
    "admin.admin": "Admin",
    "admin.options": "AdminOptions",
    "net.config_file": "read_client_config",
    "admin.descriptions": "Acl AclPattern AccessVerdict UserDescription UserCredential Quota "
    "CreatedTopic TopicDescription PartitionDescription ConfigEntry ClusterDescription "
    "BrokerDescription LogDirDescription EpochStart MetadataLogDescription NodeDescription "
    "ReplicaDescription ElectionResult "
    "QuorumDescription QuorumReplica TracePlace GroupListing GroupDescription MemberDescription "
    "Rebalance CommittedOffset GroupLag GroupMove",
    "protocol.columns": "Record",
    "protocol.messages": "EARLIEST LATEST MAX_TIMESTAMP",
    "protocol.errors": "HightideError ApiError AuthenticationFailed ErrorCode BrokerUnreachable "
    "RequestTimedOut DeliveryTimeout CorruptBatch LogTruncated RemoteProtocolError ClosedError "
    "UsageError RecordTooLarge",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slow to import, and rarely asked for

        return version("hightide")
    if name == "blocking":
        return import_module("hightide.blocking")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'hightide' has no attribute {name!r}")
    return getattr(import_module(f"hightide.{home}"), name)
