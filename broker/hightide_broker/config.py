"""A node's configuration: Kafka's names and units, validated once, frozen.

Where a value comes from, the first that has it: `--set key=value`, the environment (`HIGHTIDE_` +
the key in capitals with `_` for `.`), the TOML file, the default here. In TOML the dots make
tables: `log.segment.bytes = "1GiB"` and `[log.segment] bytes = "1GiB"` are the same. Sizes take
KiB, MiB, GiB, times take ms, s, m, h, d. An unknown key is an error that names the nearest known
one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches

from hightide.errors import Refused
from hightide_broker.core.topic_config import TOPIC_KEYS

ENVIRONMENT_PREFIX = "HIGHTIDE_"


class ConfigError(Exception):
    """A configuration key or value that cannot be; the message names key, value and expectation."""


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
        "the controllers, for ever: ID@HOST:PORT with commas, the same on every node; "
        "empty: this node alone",
        is_text=True,
    ),
    Key("log.dirs", ".hightide/broker-1", "the data directory", is_text=True),
    Key("listen.host", "127.0.0.1", "the address to listen on", is_text=True),
    Key("listen.port", "19092", "the port to listen on, 0 = any free one", low=0, high=65535),
    Key("advertised.host", "", "the host told to clients; empty: listen.host", is_text=True),
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
        "what one compressed batch may inflate to",
        "bytes",
        low=1,
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
    Key("shutdown.timeout.ms", "10s", "an orderly stop waits so long for requests at work", "ms"),
)
KEYS: dict[str, Key] = {key.name: key for key in _KEYS}
_UNITS = {
    "bytes": {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40},
    "ms": {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000},
}


def parse_quantity(key: Key, text: str) -> int:
    """A whole number with an optional unit; raises `ConfigError`."""
    stripped = text.strip().lower()
    digits = stripped.rstrip("abcdefghijklmnopqrstuvwxyz").strip()
    unit = stripped[len(stripped.rstrip("abcdefghijklmnopqrstuvwxyz")) :]
    units = _UNITS.get(key.unit, {"": 1})
    number: int | None = None
    with suppress(ValueError):
        number = int(digits.replace("_", ""))
    if number is None or unit not in units:
        kinds = ", ".join(name for name in units if name)
        expected = f"a whole number, units {kinds}" if kinds else "a whole number"
        raise ConfigError(f"{key.name} is {text!r}, expected {expected}")
    value = number * units[unit] if number >= 0 else number
    if value < key.low:
        raise ConfigError(f"{key.name} is {text!r}, expected {key.low} or more")
    if value > key.high:
        raise ConfigError(f"{key.name} is {text!r}, expected {key.high} or less")
    return value


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A node's effective values."""

    values: Mapping[str, str]
    given: frozenset[str] = field(default_factory=frozenset)
    """The keys that somebody set."""

    def text(self, name: str) -> str:
        """A value as it was written."""
        return self.values[name]

    def number(self, name: str) -> int:
        """A value in bytes, in ms, or as a count."""
        return parse_quantity(KEYS[name], self.values[name])

    def seconds(self, name: str) -> float:
        """A value in ms, in seconds."""
        return self.number(name) / 1000

    @property
    def advertised_host(self) -> str:
        return self.values["advertised.host"] or self.values["listen.host"]

    @property
    def roles(self) -> tuple[str, ...]:
        """`broker`, `controller`, or both; raises `ConfigError`."""
        roles = tuple(role.strip() for role in self.text("process.roles").split(","))
        if not roles or set(roles) - {"broker", "controller"} or len(set(roles)) != len(roles):
            raise ConfigError(
                f"process.roles is {self.text('process.roles')!r}, expected broker, controller, "
                f"or broker,controller"
            )
        return roles

    @property
    def voters(self) -> dict[int, tuple[str, int]]:
        """Where each controller listens; this node alone where nothing is set. Raises
        `ConfigError` for what cannot be."""
        text = self.text("controller.quorum.voters")
        node, is_controller = self.number("node.id"), "controller" in self.roles
        voters = {node: (self.advertised_host, self.number("listen.port"))} if not text else {}
        for entry in filter(None, text.split(",")):
            number, at, address = entry.strip().partition("@")
            host, colon, port = address.rpartition(":")
            if not (at and colon and host and number.isdecimal() and port.isdecimal()):
                raise ConfigError(f"controller.quorum.voters has {entry!r}, expected ID@HOST:PORT")
            if int(number) < 1 or not 1 <= int(port) <= 65535:
                raise ConfigError(
                    f"controller.quorum.voters has {entry!r}, expected an id of 1 or more and a "
                    f"port of 1 to 65535"
                )
            if int(number) in voters:
                raise ConfigError(f"controller.quorum.voters names node {number} twice")
            voters[int(number)] = (host, int(port))
        if not voters or (node in voters) != is_controller:
            raise ConfigError(
                f"node {node} has process.roles={self.text('process.roles')} and "
                f"controller.quorum.voters={text!r}: exactly the controllers are voters"
            )
        return voters

    def topic_defaults(self) -> dict[str, str]:
        """What this node sets for topics that do not say themselves, in topic keys."""
        defaults = {}
        for key in _KEYS:
            if key.topic_key:
                plain = key.is_text or key.is_float or key.choices
                value = self.values[key.name] if plain else str(self.number(key.name))
                defaults[key.topic_key] = value
        return defaults


def make_config(*sources: Mapping[str, str]) -> BrokerConfig:
    """The configuration of these sources, later ones over earlier ones; raises `ConfigError`."""
    values = {key.name: key.default for key in _KEYS}
    given: dict[str, str] = {}
    for source in sources:
        given.update(source)
    for name, value in given.items():
        key = KEYS.get(name)
        if key is None:
            close = get_close_matches(name, KEYS, n=1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise ConfigError(f"unknown configuration key {name!r}{hint}")
        _check(key, value)
    config = BrokerConfig({**values, **given}, frozenset(given))
    node = config.number("node.id")
    if any(voter != node for voter in config.voters) and not config.text("cluster.id"):
        raise ConfigError(
            "cluster.id is empty, expected the id that all nodes of controller.quorum.voters share "
            "(hightide storage id makes one)"
        )
    return config


def _check(key: Key, value: str) -> None:
    if key.choices and value not in key.choices:
        raise ConfigError(f"{key.name} is {value!r}, expected one of {', '.join(key.choices)}")
    if key.is_float:
        try:
            float(value)
        except ValueError as error:
            raise ConfigError(f"{key.name} is {value!r}, expected a number") from error
    plain = value
    if not (key.is_text or key.is_float or key.choices):
        plain = str(parse_quantity(key, value))
    if key.topic_key:
        try:
            TOPIC_KEYS[key.topic_key].check(plain)
        except Refused as refusal:
            expected = refusal.message.rpartition("expected ")[2]
            raise ConfigError(f"{key.name} is {value!r}, expected {expected}") from refusal


def read_toml(text: str) -> dict[str, str]:
    """The keys of a TOML file, tables joined with dots; raises `ConfigError`."""
    try:
        return _flatten(tomllib.loads(text), "")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the file is no TOML: {error}") from error


def _flatten(table: Mapping[str, object], prefix: str) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{name}."))
        elif isinstance(value, bool):
            flat[prefix + name] = str(value).lower()
        elif isinstance(value, str | int | float):
            flat[prefix + name] = str(value)
        else:
            raise ConfigError(f"{prefix}{name} is {value!r}, expected text or a number")
    return flat


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys that environment variables set; other HIGHTIDE_ variables are not this node's."""
    names = {ENVIRONMENT_PREFIX + name.upper().replace(".", "_"): name for name in KEYS}
    return {names[name]: value for name, value in environment.items() if name in names}


def read_assignments(assignments: tuple[str, ...]) -> dict[str, str]:
    """The keys of `--set key=value` flags; raises `ConfigError`."""
    pairs: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment!r}, expected key=value")
        pairs[name.strip()] = value.strip()
    return pairs
