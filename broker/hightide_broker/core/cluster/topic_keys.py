"""The keys of a topic's configuration: Kafka's names and units, hightide's `flush` beside them."""

from __future__ import annotations

from typing import Any

from hightide_broker.core.cluster.config_key import (
    I64_MAX,
    Key,
    Unfit,
    count,
    ratio,
    switch,
    word,
    words,
)

_DAY_MS = 24 * 3600 * 1000
COMPACT, DELETE = "compact", "delete"
POLICIES = (DELETE, COMPACT)
SYNCED = "synced"

POLICY = words(
    "cleanup.policy",
    "delete",
    "delete: old segments go by retention; compact: the newest record of each key stays",
    choices=POLICIES,
)
RETENTION_MS = count(
    "retention.ms", str(7 * _DAY_MS), "how long records stay, -1 = for ever", low=-1
)
RETENTION_BYTES = count(
    "retention.bytes", "-1", "how many bytes a partition keeps, -1 = no limit", low=-1
)
SEGMENT_BYTES = count(
    "segment.bytes", str(1 << 30), "a segment rolls at this size", low=1024, high=1 << 31
)
SEGMENT_MS = count("segment.ms", str(7 * _DAY_MS), "a segment rolls at this age", low=1)
SEGMENT_INDEX_BYTES = count(
    "segment.index.bytes", str(10 << 20), "the largest index of a segment", low=64
)
INDEX_INTERVAL_BYTES = count("index.interval.bytes", "4096", "bytes between two index entries")
MAX_MESSAGE_BYTES = count("max.message.bytes", "1048588", "the largest batch a producer may send")
MIN_ISR = count("min.insync.replicas", "1", "in-sync replicas that acks=all needs", low=1)
UNCLEAN = switch(
    "unclean.leader.election.enable",
    "false",
    "whether a replica that may miss records may lead when no other is left",
)
TIMESTAMP_TYPE = word(
    "message.timestamp.type",
    "CreateTime",
    "whose clock sets a record's timestamp: the producer's or the broker's",
    choices=("CreateTime", "LogAppendTime"),
)
TIMESTAMP_BEFORE_MAX_MS = count(
    "message.timestamp.before.max.ms",
    str(I64_MAX),
    "how far a CreateTime may lie before the broker's time",
)
TIMESTAMP_AFTER_MAX_MS = count(
    "message.timestamp.after.max.ms",
    str(3600 * 1000),
    "how far a CreateTime may lie after the broker's time",
)
DELETE_RETENTION_MS = count(
    "delete.retention.ms", str(_DAY_MS), "how long a tombstone stays after compaction"
)
MIN_COMPACTION_LAG_MS = count(
    "min.compaction.lag.ms", "0", "records younger than this are not compacted"
)
MIN_CLEANABLE_RATIO = ratio(
    "min.cleanable.dirty.ratio", "0.5", "how much of a log must be new before compaction runs"
)
FILE_DELETE_DELAY_MS = count(
    "file.delete.delay.ms", "60000", "how long a deleted segment's file stays"
)


def _codec(key: Key[str], text: str) -> str:
    if text == key.default:
        return text
    raise Unfit(
        key.name,
        text,
        f"{key.default}: what a producer sent stays as it came; choose a codec with "
        f"{key.name} of the producers",
    )


COMPRESSION = Key(
    "compression.type",
    "producer",
    "producer: batches keep the codec that they were sent with; brokers compress nothing anew",
    _codec,
    choices=("producer",),
)
FLUSH = word(
    "flush",
    SYNCED,
    "synced: a record counts as replicated once it is on disk; replicated: once it "
    "is in the page cache of every in-sync replica, as in Kafka",
    choices=(SYNCED, "replicated"),
)

TOPIC_KEYS: dict[str, Key[Any]] = {
    each.name: each for each in tuple(globals().values()) if isinstance(each, Key)
}
"""By name, in the order above."""
CLUSTER_KEYS: dict[str, Key[Any]] = {each.name: each for each in (MIN_ISR, FLUSH, UNCLEAN)}
"""What leaders, followers and controllers must agree about, or committed records get lost: their
defaults are records, written by the first controller from its own configuration."""
