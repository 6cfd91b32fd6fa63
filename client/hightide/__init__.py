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
    from hightide.admin.options import AdminOptions
    from hightide.consume.consumer import Consumer
    from hightide.consume.options import ConsumerOptions
    from hightide.consume.subscription import OffsetAndMetadata, TopicPartition
    from hightide.produce.delivery import Delivery, RecordMetadata
    from hightide.produce.options import ProducerOptions
    from hightide.produce.producer import Producer
    from hightide.protocol.columns import Record
    from hightide.protocol.errors import (
        ApiError,
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

    __version__: str

__all__ = [
    "Producer",
    "Consumer",
    "Admin",
    "ProducerOptions",
    "ConsumerOptions",
    "AdminOptions",
    "Record",
    "RecordMetadata",
    "Delivery",
    "OffsetAndMetadata",
    "TopicPartition",
    "blocking",
    "HightideError",
    "ApiError",
    "ErrorCode",
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

_HOME = {
    "Producer": "produce.producer",
    "Consumer": "consume.consumer",
    "Admin": "admin.admin",
    "ProducerOptions": "produce.options",
    "ConsumerOptions": "consume.options",
    "AdminOptions": "admin.options",
    "Record": "protocol.columns",
    "RecordMetadata": "produce.delivery",
    "Delivery": "produce.delivery",
    "HightideError": "protocol.errors",
    "ApiError": "protocol.errors",
    "ErrorCode": "protocol.errors",
    "BrokerUnreachable": "protocol.errors",
    "RequestTimedOut": "protocol.errors",
    "DeliveryTimeout": "protocol.errors",
    "CorruptBatch": "protocol.errors",
    "LogTruncated": "protocol.errors",
    "RemoteProtocolError": "protocol.errors",
    "ClosedError": "protocol.errors",
    "UsageError": "protocol.errors",
    "RecordTooLarge": "protocol.errors",
    "OffsetAndMetadata": "consume.subscription",
    "TopicPartition": "consume.subscription",
}


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
