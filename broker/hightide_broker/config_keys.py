"""The keys of a node's configuration, with Kafka's names and defaults, and what each one means."""

from __future__ import annotations

from typing import Any

from hightide_broker.core.cluster import topic_keys as of_topic
from hightide_broker.core.cluster.config_key import (
    Key,
    count,
    ratio,
    switch,
    text,
    word,
    words,
)

NODE_ID = count("node.id", "1", "this node's id, 1 or more", low=1)
CLUSTER_ID = text("cluster.id", "", "the cluster's id; empty: whatever the data directory says")
PROCESS_ROLES = text(
    "process.roles",
    "broker,controller",
    "what this node is: broker, controller, or both with a comma",
)
CONTROLLER_QUORUM_VOTERS = text(
    "controller.quorum.voters",
    "",
    "where the controllers are, ID@HOST:PORT with commas, the same on every node: "
    "who votes until that is recorded; empty: this node alone",
)
LOG_DIRS = text("log.dirs", ".hightide/broker-1", "the data directory")
LISTEN_HOST = text("listen.host", "127.0.0.1", "the address to listen on")
LISTEN_PORT = count("listen.port", "19092", "the port to listen on, 0 = any free one", high=65535)
ADVERTISED_HOST = text(
    "advertised.host", "", "the host told to clients and brokers; empty: listen.host"
)
ADVERTISED_PORT = count(
    "advertised.port", "0", "the port told to clients and brokers, 0: listen.port", high=65535
)
SECURITY_PROTOCOL = word(
    "security.protocol",
    "PLAINTEXT",
    "how clients come in: PLAINTEXT, or SSL, which is TLS; with SASL_ before it, users log in",
    choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
)
SSL_CERTIFICATE_LOCATION = text(
    "ssl.certificate.location",
    "",
    "the certificate that clients are shown, a PEM file; taken again when it is replaced",
)
SSL_KEY_LOCATION = text(
    "ssl.key.location", "", "the key of it, a PEM file; empty: it is in the certificate's"
)
SSL_KEY_PASSWORD_LOCATION = text(
    "ssl.key.password.location", "", "a file with the password of that key, if it is encrypted"
)
SSL_CA_LOCATION = text(
    "ssl.ca.location", "", "the authorities whose certificates clients may show, a PEM file"
)
SSL_CLIENT_AUTH = word(
    "ssl.client.auth",
    "none",
    "whether clients need a certificate: none, requested, or required",
    choices=("none", "requested", "required"),
)
INTERNAL_LISTEN_PORT = count(
    "internal.listen.port",
    "-1",
    "the port that nodes come in by, 0 = any free one; -1: the same as clients",
    low=-1,
    high=65535,
)
SSL_PRINCIPAL_MAPPING_RULES = text(
    "ssl.principal.mapping.rules",
    "",
    "who a client is by its certificate's whole name: DEFAULT, RULE:pattern/replacement/L, …; "
    "empty: its common name",
)
INTERNAL_LISTEN_HOST = text(
    "internal.listen.host", "", "the address to listen on for nodes; empty: listen.host"
)
INTERNAL_ADVERTISED_HOST = text(
    "internal.advertised.host", "", "the host told to other nodes; empty: internal.listen.host"
)
INTERNAL_ADVERTISED_PORT = count(
    "internal.advertised.port",
    "0",
    "the port told to other nodes, 0: internal.listen.port",
    high=65535,
)
INTERNAL_SECURITY_PROTOCOL = word(
    "internal.security.protocol",
    "PLAINTEXT",
    "how nodes speak to each other: PLAINTEXT, or SSL, where each shows a certificate of node-<id>",
    choices=("PLAINTEXT", "SSL"),
)
INTERNAL_SSL_CERTIFICATE_LOCATION = text(
    "internal.ssl.certificate.location",
    "",
    "this node's certificate for other nodes, a PEM file; its common name is node-<node.id>",
)
INTERNAL_SSL_KEY_LOCATION = text(
    "internal.ssl.key.location", "", "the key of it, a PEM file; empty: it is in the certificate's"
)
INTERNAL_SSL_KEY_PASSWORD_LOCATION = text(
    "internal.ssl.key.password.location",
    "",
    "a file with the password of that key, if it is encrypted",
)
INTERNAL_SSL_CA_LOCATION = text(
    "internal.ssl.ca.location",
    "",
    "the authorities of nodes, a PEM file: who has a certificate of theirs may be a node",
)
ALLOW_INSECURE_LISTENER = switch(
    "allow.insecure.listener",
    "false",
    "whether to listen where others reach it and nobody has to prove who they are",
)
CONNECTIONS_MAX_REAUTH_MS = count(
    "connections.max.reauth.ms",
    "0",
    "how long a login is good for: clients make it again before, on the same connection; 0: for "
    "as long as that lasts",
    unit="ms",
)
AUTHORIZER_ENABLE = switch(
    "authorizer.enable",
    "false",
    "whether clients need permissions (hightide acls); nodes must then prove who they are",
)
SUPER_USERS = text(
    "super.users", "", "who may do anything, without a rule: User:<name>, several with semicolons"
)
ALLOW_EVERYONE_IF_NO_ACL_FOUND = switch(
    "allow.everyone.if.no.acl.found",
    "false",
    "whether everybody may do anything to what no rule names",
)
METRICS_LISTEN = text(
    "metrics.listen",
    "",
    "where /metrics, /healthz and /readyz are answered to everybody, HOST:PORT, or a PORT of "
    "loopback; 0 = any free one; empty: nowhere",
)
LOG_FORMAT = word("log.format", "text", "lines for people, or JSON", choices=("text", "json"))
TRACE_MAX_BYTES = count(
    "trace.max.bytes", "16MiB", "files of what happened here; 0: none are kept", unit="bytes"
)
BROKER_RACK = text("broker.rack", "", "where this broker stands")
NUM_PARTITIONS = count("num.partitions", "1", "partitions of a topic that does not say", low=1)
DEFAULT_REPLICATION_FACTOR = count(
    "default.replication.factor", "1", "replicas of a topic that does not say", low=1
)
AUTO_CREATE_TOPICS_ENABLE = switch(
    "auto.create.topics.enable", "false", "make a topic when a producer names it"
)
FLUSH = word(
    "flush",
    "synced",
    "synced: a record counts once it is on disk; replicated: once it is in the page"
    " cache of every in-sync replica",
    choices=of_topic.FLUSH.choices,
    topic_key=of_topic.FLUSH,
)
LOG_SEGMENT_BYTES = count(
    "log.segment.bytes",
    "1GiB",
    "a segment rolls at this size",
    unit="bytes",
    topic_key=of_topic.SEGMENT_BYTES,
)
LOG_ROLL_MS = count(
    "log.roll.ms", "7d", "a segment rolls at this age", unit="ms", topic_key=of_topic.SEGMENT_MS
)
LOG_INDEX_SIZE_MAX_BYTES = count(
    "log.index.size.max.bytes",
    "10MiB",
    "the largest index of a segment",
    unit="bytes",
    topic_key=of_topic.SEGMENT_INDEX_BYTES,
)
LOG_INDEX_INTERVAL_BYTES = count(
    "log.index.interval.bytes",
    "4096",
    "bytes between two index entries",
    unit="bytes",
    topic_key=of_topic.INDEX_INTERVAL_BYTES,
)
LOG_RETENTION_MS = count(
    "log.retention.ms",
    "7d",
    "how long records stay, -1 = for ever",
    unit="ms",
    low=-1,
    topic_key=of_topic.RETENTION_MS,
)
LOG_RETENTION_BYTES = count(
    "log.retention.bytes",
    "-1",
    "bytes a partition keeps, -1 = no limit",
    unit="bytes",
    low=-1,
    topic_key=of_topic.RETENTION_BYTES,
)
LOG_CLEANUP_POLICY = words(
    "log.cleanup.policy",
    "delete",
    "delete, compact, or both with a comma",
    choices=of_topic.POLICIES,
    topic_key=of_topic.POLICY,
)
LOG_RETENTION_CHECK_INTERVAL_MS = count(
    "log.retention.check.interval.ms",
    "5m",
    "how often retention and compaction look",
    unit="ms",
    low=1,
)
LOG_SEGMENT_DELETE_DELAY_MS = count(
    "log.segment.delete.delay.ms",
    "1m",
    "how long a deleted segment's file stays",
    unit="ms",
    topic_key=of_topic.FILE_DELETE_DELAY_MS,
)
LOG_CLEANER_DELETE_RETENTION_MS = count(
    "log.cleaner.delete.retention.ms",
    "1d",
    "how long a tombstone stays",
    unit="ms",
    topic_key=of_topic.DELETE_RETENTION_MS,
)
LOG_CLEANER_MIN_CLEANABLE_RATIO = ratio(
    "log.cleaner.min.cleanable.ratio",
    "0.5",
    "how much must be new before compaction runs",
    topic_key=of_topic.MIN_CLEANABLE_RATIO,
)
LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS = count(
    "log.flush.offset.checkpoint.interval.ms",
    "1m",
    "how often recovery points are kept",
    unit="ms",
    low=1,
)
REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = count(
    "replica.high.watermark.checkpoint.interval.ms",
    "5s",
    "how often watermarks are kept",
    unit="ms",
    low=1,
)
REPLICA_FETCH_WAIT_MAX_MS = count(
    "replica.fetch.wait.max.ms",
    "500",
    "how long a leader may wait for news before it answers a follower's fetch",
    unit="ms",
    low=1,
)
REPLICA_FETCH_MAX_BYTES = count(
    "replica.fetch.max.bytes", "1MiB", "bytes of one partition in a follower's fetch", unit="bytes"
)
REPLICA_FETCH_RESPONSE_MAX_BYTES = count(
    "replica.fetch.response.max.bytes",
    "10MiB",
    "bytes of all partitions in a follower's fetch; one batch always fits",
    unit="bytes",
)
REPLICA_FETCH_BACKOFF_MS = count(
    "replica.fetch.backoff.ms",
    "1s",
    "the longest pause of a follower after an error",
    unit="ms",
    low=1,
)
REPLICA_SOCKET_TIMEOUT_MS = count(
    "replica.socket.timeout.ms",
    "30s",
    "how long a follower waits for its leader's answer, beyond the fetch's own wait",
    unit="ms",
    low=1,
)
REPLICA_LAG_TIME_MAX_MS = count(
    "replica.lag.time.max.ms",
    "30s",
    "a replica that has not caught up for so long leaves the in-sync replicas",
    unit="ms",
    low=1,
)
MESSAGE_MAX_BYTES = count(
    "message.max.bytes",
    "1048588",
    "the largest batch a producer may send",
    unit="bytes",
    topic_key=of_topic.MAX_MESSAGE_BYTES,
)
MIN_INSYNC_REPLICAS = count(
    "min.insync.replicas",
    "1",
    "in-sync replicas that acks=all needs",
    low=1,
    topic_key=of_topic.MIN_ISR,
)
MESSAGE_INFLATED_MAX_BYTES = count(
    "message.inflated.max.bytes",
    "64MiB",
    "what one compressed batch may inflate to: no more than every reader takes",
    unit="bytes",
    low=1,
    high=64 << 20,
)
PRODUCER_ID_EXPIRATION_MS = count(
    "producer.id.expiration.ms", "1d", "a silent idempotent producer is forgotten", unit="ms", low=1
)
FETCH_MAX_BYTES = count(
    "fetch.max.bytes", "55MiB", "the largest answer to a fetch", unit="bytes", low=1
)
SOCKET_REQUEST_MAX_BYTES = count(
    "socket.request.max.bytes",
    "100MiB",
    "the largest frame a client may send",
    unit="bytes",
    low=1024,
)
MAX_CONNECTIONS = count("max.connections", "10000", "connections at a time", low=1)
CONNECTIONS_MAX_PER_IP = count(
    "connections.max.per.ip",
    "2147483647",
    "connections of clients from one address at a time; Kafka: max.connections.per.ip",
    low=1,
)
CONNECTION_FAILED_AUTHENTICATION_DELAY_MS = count(
    "connection.failed.authentication.delay.ms",
    "100",
    "how long who fails to log in waits to hear so, and is then cut off",
    high=5000,
    unit="ms",
)
MAX_CONNECTION_CREATION_RATE = count(
    "max.connection.creation.rate",
    "2147483647",
    "connections a second that are taken from clients; others wait to be",
    low=1,
)
MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION = count(
    "max.in.flight.requests.per.connection", "256", "requests of one connection at work", low=1
)
CONNECTIONS_MAX_IDLE_MS = count(
    "connections.max.idle.ms", "10m", "a connection that says nothing is closed", unit="ms", low=1
)
WRITE_TIMEOUT_MS = count(
    "write.timeout.ms", "30s", "a client that does not take its answer is dropped", unit="ms", low=1
)
REQUEST_TIMEOUT_MS = count(
    "request.timeout.ms", "30s", "the longest a request waits for commit", unit="ms", low=1
)
CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS = count(
    "controller.quorum.election.timeout.ms",
    "1s",
    "a voter that knows no leader stands after one to two times this",
    unit="ms",
    low=1,
)
CONTROLLER_QUORUM_FETCH_TIMEOUT_MS = count(
    "controller.quorum.fetch.timeout.ms",
    "2s",
    "a follower that has not reached its leader for so long stands; a leader not "
    "fetched from for 1.5 times this resigns",
    unit="ms",
    low=1,
)
CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS = count(
    "controller.quorum.election.backoff.max.ms",
    "1s",
    "the longest pause after a lost election",
    unit="ms",
    low=1,
)
CONTROLLER_QUORUM_REQUEST_TIMEOUT_MS = count(
    "controller.quorum.request.timeout.ms",
    "2s",
    "how long a node waits for another one's answer",
    unit="ms",
    low=1,
)
CONTROLLER_QUORUM_RETRY_BACKOFF_MS = count(
    "controller.quorum.retry.backoff.ms",
    "20",
    "the first pause before asking again",
    unit="ms",
    low=1,
)
CONTROLLER_QUORUM_AUTO_JOIN_ENABLE = switch(
    "controller.quorum.auto.join.enable",
    "false",
    "a controller whose directory was made for a cluster that exists becomes a voter by itself",
)
BROKER_HEARTBEAT_INTERVAL_MS = count(
    "broker.heartbeat.interval.ms", "2s", "how often a broker says it is alive", unit="ms", low=1
)
BROKER_SESSION_TIMEOUT_MS = count(
    "broker.session.timeout.ms",
    "9s",
    "a broker that is silent for so long is fenced",
    unit="ms",
    low=1,
)
AUTO_LEADER_REBALANCE_ENABLE = switch(
    "auto.leader.rebalance.enable", "true", "move leaders back to the preferred replicas"
)
LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS = count(
    "leader.imbalance.check.interval.seconds",
    "300",
    "how often leaders are moved back, in seconds",
    low=1,
)
UNCLEAN_LEADER_ELECTION_ENABLE = switch(
    "unclean.leader.election.enable",
    "false",
    "whether a replica that may miss records may lead when no other is left",
    topic_key=of_topic.UNCLEAN,
)
METADATA_LOG_SEGMENT_BYTES = count(
    "metadata.log.segment.bytes", "1GiB", "the metadata log rolls at this size", unit="bytes", low=1
)
METADATA_LOG_MAX_RECORD_BYTES_BETWEEN_SNAPSHOTS = count(
    "metadata.log.max.record.bytes.between.snapshots",
    "20MiB",
    "so many new bytes of metadata make a snapshot due",
    unit="bytes",
    low=1,
)
METADATA_LOG_MAX_SNAPSHOT_INTERVAL_MS = count(
    "metadata.log.max.snapshot.interval.ms",
    "1h",
    "so much time since new metadata makes a snapshot due",
    unit="ms",
    low=1,
)
METADATA_MAX_RETENTION_BYTES = count(
    "metadata.max.retention.bytes",
    "100MiB",
    "older snapshots, and the log before them, go while metadata takes more",
    unit="bytes",
    low=1,
)
OFFSETS_TOPIC_NUM_PARTITIONS = count(
    "offsets.topic.num.partitions",
    "50",
    "partitions of __consumer_offsets; decides which broker coordinates which group",
    low=1,
)
OFFSETS_TOPIC_REPLICATION_FACTOR = count(
    "offsets.topic.replication.factor",
    "3",
    "replicas of __consumer_offsets, or as many as there are brokers",
    low=1,
)
OFFSETS_RETENTION_MS = count(
    "offsets.retention.ms", "7d", "how long offsets of groups without members stay", unit="ms"
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = count(
    "offsets.retention.check.interval.ms",
    "10m",
    "how often old offsets are looked for",
    unit="ms",
    low=1,
)
OFFSETS_COMMIT_TIMEOUT_MS = count(
    "offsets.commit.timeout.ms", "5s", "the longest that keeping offsets takes", unit="ms", low=1
)
OFFSET_METADATA_MAX_BYTES = count(
    "offset.metadata.max.bytes",
    "4096",
    "the longest text beside a committed offset",
    unit="bytes",
    high=1 << 20,
)
GROUP_MIN_SESSION_TIMEOUT_MS = count(
    "group.min.session.timeout.ms", "6s", "the shortest session a member may ask for", unit="ms"
)
GROUP_MAX_SESSION_TIMEOUT_MS = count(
    "group.max.session.timeout.ms", "30m", "the longest session a member may ask for", unit="ms"
)
GROUP_INITIAL_REBALANCE_DELAY_MS = count(
    "group.initial.rebalance.delay.ms", "3s", "how long a group's first member waits", unit="ms"
)
GROUP_MAX_SIZE = count("group.max.size", "10000", "members of a group", low=1)
SHUTDOWN_TIMEOUT_MS = count(
    "shutdown.timeout.ms", "10s", "an orderly stop waits so long for requests at work", unit="ms"
)

KEYS: dict[str, Key[Any]] = {
    each.name: each for each in tuple(globals().values()) if isinstance(each, Key)
}
"""By name, in the order above."""
