"""The keys of a node's configuration, with Kafka's names and defaults, and what each one means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a node. `unit` is bytes, ms, or empty; `topic_key` the topic key it is a
    default of."""

    name: str
    default: str
    doc: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    topic_key: str = ""
    is_text: bool = False
    is_float: bool = False
    low: int = 0
    high: int = (1 << 63) - 1


_KEYS = (
    Key("node.id", "1", "this node's id, 1 or more", low=1),
    Key(
        "cluster.id", "", "the cluster's id; empty: whatever the data directory says", is_text=True
    ),
    Key(
        "process.roles",
        "broker,controller",
        "what this node is: broker, controller, or both with a comma",
        is_text=True,
    ),
    Key(
        "controller.quorum.voters",
        "",
        "where the controllers are, ID@HOST:PORT with commas, the same on every node: who votes "
        "until that is recorded; empty: this node alone",
        is_text=True,
    ),
    Key("log.dirs", ".hightide/broker-1", "the data directory", is_text=True),
    Key("listen.host", "127.0.0.1", "the address to listen on", is_text=True),
    Key("listen.port", "19092", "the port to listen on, 0 = any free one", low=0, high=65535),
    Key(
        "advertised.host",
        "",
        "the host told to clients and brokers; empty: listen.host",
        is_text=True,
    ),
    Key(
        "advertised.port",
        "0",
        "the port told to clients and brokers, 0: listen.port",
        low=0,
        high=65535,
    ),
    Key("broker.rack", "", "where this broker stands", is_text=True),
    Key("num.partitions", "1", "partitions of a topic that does not say", low=1),
    Key("default.replication.factor", "1", "replicas of a topic that does not say", low=1),
    Key(
        "auto.create.topics.enable",
        "false",
        "make a topic when a producer names it",
        choices=("true", "false"),
    ),
    Key(
        "flush",
        "synced",
        "synced: a record counts once it is on disk; replicated: once it is in "
        "the page cache of every in-sync replica",
        choices=("synced", "replicated"),
        topic_key="flush",
    ),
    Key(
        "log.segment.bytes",
        "1GiB",
        "a segment rolls at this size",
        "bytes",
        topic_key="segment.bytes",
    ),
    Key("log.roll.ms", "7d", "a segment rolls at this age", "ms", topic_key="segment.ms"),
    Key(
        "log.index.size.max.bytes",
        "10MiB",
        "the largest index of a segment",
        "bytes",
        topic_key="segment.index.bytes",
    ),
    Key(
        "log.index.interval.bytes",
        "4096",
        "bytes between two index entries",
        "bytes",
        topic_key="index.interval.bytes",
    ),
    Key(
        "log.retention.ms",
        "7d",
        "how long records stay, -1 = for ever",
        "ms",
        topic_key="retention.ms",
        low=-1,
    ),
    Key(
        "log.retention.bytes",
        "-1",
        "bytes a partition keeps, -1 = no limit",
        "bytes",
        topic_key="retention.bytes",
        low=-1,
    ),
    Key(
        "log.cleanup.policy",
        "delete",
        "delete, compact, or both with a comma",
        is_text=True,
        topic_key="cleanup.policy",
    ),
    Key(
        "log.retention.check.interval.ms",
        "5m",
        "how often retention and compaction look",
        "ms",
        low=1,
    ),
    Key(
        "log.segment.delete.delay.ms",
        "1m",
        "how long a deleted segment's file stays",
        "ms",
        topic_key="file.delete.delay.ms",
    ),
    Key(
        "log.cleaner.delete.retention.ms",
        "1d",
        "how long a tombstone stays",
        "ms",
        topic_key="delete.retention.ms",
    ),
    Key(
        "log.cleaner.min.cleanable.ratio",
        "0.5",
        "how much must be new before compaction runs",
        is_float=True,
        topic_key="min.cleanable.dirty.ratio",
    ),
    Key(
        "log.flush.offset.checkpoint.interval.ms",
        "1m",
        "how often recovery points are kept",
        "ms",
        low=1,
    ),
    Key(
        "replica.high.watermark.checkpoint.interval.ms",
        "5s",
        "how often watermarks are kept",
        "ms",
        low=1,
    ),
    Key(
        "replica.fetch.wait.max.ms",
        "500",
        "how long a leader may wait for news before it answers a follower's fetch",
        "ms",
        low=1,
    ),
    Key("replica.fetch.max.bytes", "1MiB", "bytes of one partition in a follower's fetch", "bytes"),
    Key(
        "replica.fetch.response.max.bytes",
        "10MiB",
        "bytes of all partitions in a follower's fetch; one batch always fits",
        "bytes",
    ),
    Key(
        "replica.fetch.backoff.ms",
        "1s",
        "the longest pause of a follower after an error",
        "ms",
        low=1,
    ),
    Key(
        "replica.socket.timeout.ms",
        "30s",
        "how long a follower waits for its leader's answer, beyond the fetch's own wait",
        "ms",
        low=1,
    ),
    Key(
        "replica.lag.time.max.ms",
        "30s",
        "a replica that has not caught up for so long leaves the in-sync replicas",
        "ms",
        low=1,
    ),
    Key(
        "message.max.bytes",
        "1048588",
        "the largest batch a producer may send",
        "bytes",
        topic_key="max.message.bytes",
    ),
    Key(
        "min.insync.replicas",
        "1",
        "in-sync replicas that acks=all needs",
        low=1,
        topic_key="min.insync.replicas",
    ),
    Key(
        "message.inflated.max.bytes",
        "64MiB",
        "what one compressed batch may inflate to: no more than every reader takes",
        "bytes",
        low=1,
        high=64 << 20,
    ),
    Key(
        "producer.id.expiration.ms", "1d", "a silent idempotent producer is forgotten", "ms", low=1
    ),
    Key("fetch.max.bytes", "55MiB", "the largest answer to a fetch", "bytes", low=1),
    Key(
        "socket.request.max.bytes",
        "100MiB",
        "the largest frame a client may send",
        "bytes",
        low=1024,
    ),
    Key("max.connections", "10000", "connections at a time", low=1),
    Key(
        "max.in.flight.requests.per.connection", "256", "requests of one connection at work", low=1
    ),
    Key("connections.max.idle.ms", "10m", "a connection that says nothing is closed", "ms", low=1),
    Key(
        "write.timeout.ms", "30s", "a client that does not take its answer is dropped", "ms", low=1
    ),
    Key("request.timeout.ms", "30s", "the longest a request waits for commit", "ms", low=1),
    Key(
        "controller.quorum.election.timeout.ms",
        "1s",
        "a voter that knows no leader stands after one to two times this",
        "ms",
        low=1,
    ),
    Key(
        "controller.quorum.fetch.timeout.ms",
        "2s",
        "a follower that has not reached its leader for so long stands; "
        "a leader not fetched from for 1.5 times this resigns",
        "ms",
        low=1,
    ),
    Key(
        "controller.quorum.election.backoff.max.ms",
        "1s",
        "the longest pause after a lost election",
        "ms",
        low=1,
    ),
    Key(
        "controller.quorum.request.timeout.ms",
        "2s",
        "how long a node waits for another one's answer",
        "ms",
        low=1,
    ),
    Key(
        "controller.quorum.retry.backoff.ms",
        "20",
        "the first pause before asking again",
        "ms",
        low=1,
    ),
    Key(
        "controller.quorum.auto.join.enable",
        "false",
        "a controller whose directory was made for a cluster that exists becomes a voter by itself",
        choices=("true", "false"),
    ),
    Key("broker.heartbeat.interval.ms", "2s", "how often a broker says it is alive", "ms", low=1),
    Key(
        "broker.session.timeout.ms",
        "9s",
        "a broker that is silent for so long is fenced",
        "ms",
        low=1,
    ),
    Key(
        "auto.leader.rebalance.enable",
        "true",
        "move leaders back to the preferred replicas",
        choices=("true", "false"),
    ),
    Key(
        "leader.imbalance.check.interval.seconds",
        "300",
        "how often leaders are moved back, in seconds",
        low=1,
    ),
    Key(
        "unclean.leader.election.enable",
        "false",
        "whether a replica that may miss records may lead when no other is left",
        choices=("true", "false"),
        topic_key="unclean.leader.election.enable",
    ),
    Key(
        "metadata.log.segment.bytes", "1GiB", "the metadata log rolls at this size", "bytes", low=1
    ),
    Key(
        "metadata.log.max.record.bytes.between.snapshots",
        "20MiB",
        "so many new bytes of metadata make a snapshot due",
        "bytes",
        low=1,
    ),
    Key(
        "metadata.log.max.snapshot.interval.ms",
        "1h",
        "so much time since new metadata makes a snapshot due",
        "ms",
        low=1,
    ),
    Key(
        "metadata.max.retention.bytes",
        "100MiB",
        "older snapshots, and the log before them, go while metadata takes more",
        "bytes",
        low=1,
    ),
    Key(
        "offsets.topic.num.partitions",
        "50",
        "partitions of __consumer_offsets; decides which broker coordinates which group",
        low=1,
    ),
    Key(
        "offsets.topic.replication.factor",
        "3",
        "replicas of __consumer_offsets, or as many as there are brokers",
        low=1,
    ),
    Key("offsets.retention.ms", "7d", "how long offsets of groups without members stay", "ms"),
    Key(
        "offsets.retention.check.interval.ms",
        "10m",
        "how often old offsets are looked for",
        "ms",
        low=1,
    ),
    Key(
        "offsets.commit.timeout.ms",
        "5s",
        "the longest that keeping an offset or a group may take",
        "ms",
        low=1,
    ),
    Key(
        "offset.metadata.max.bytes",
        "4096",
        "the longest text beside a committed offset",
        "bytes",
        high=1 << 20,
    ),
    Key("group.min.session.timeout.ms", "6s", "the shortest session a member may ask for", "ms"),
    Key("group.max.session.timeout.ms", "30m", "the longest session a member may ask for", "ms"),
    Key(
        "group.initial.rebalance.delay.ms",
        "3s",
        "how long the first member of a group waits for others",
        "ms",
    ),
    Key("group.max.size", "10000", "members of a group", low=1),
    Key("shutdown.timeout.ms", "10s", "an orderly stop waits so long for requests at work", "ms"),
)
KEYS: dict[str, Key] = {key.name: key for key in _KEYS}
