"""The configuration keys of a topic: Kafka's names and units, hightide's `flush` beside them. Pure.

A topic's value is what is set on it, else the default: for the keys that decide what is lost, the
cluster's, which is part of the metadata (`CLUSTER_KEYS`); for all others that of the broker's own
file; else the default here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hightide.protocol.errors import ErrorCode, Refused, did_you_mean

_I64_MAX = (1 << 63) - 1
FLUSH, SYNCED = "flush", "synced"
POLICY, COMPACT = "cleanup.policy", "compact"
MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
CLUSTER_KEYS = (MIN_ISR, FLUSH, UNCLEAN)
"""What leaders, followers and controllers must agree about, or committed records get lost: their
defaults are records, written by the first controller from its own configuration."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key: its default as text, what values it takes, and what it means."""

    name: str
    default: str
    doc: str
    choices: tuple[str, ...] = ()
    """The allowed words; empty for numbers."""
    low: float = 0
    high: float = _I64_MAX
    is_float: bool = False
    many: bool = False
    """Whether several choices may be given, with commas."""

    def check(self, value: str) -> None:
        """Raise `Refused` INVALID_CONFIG unless `value` is one of this key's values."""
        if self.choices:
            words = value.split(",") if self.many else [value]
            if not all(word.strip() in self.choices for word in words):
                self._refuse(value, f"one of {', '.join(self.choices)}")
            return
        try:
            number = float(value) if self.is_float else int(value)
        except ValueError:
            self._refuse(value, "a number" if self.is_float else "a whole number")
        if not self.low <= number <= self.high:
            self._refuse(value, f"a number from {self.low} to {self.high}")

    def _refuse(self, value: str, expected: str) -> None:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{self.name} is {value!r}, expected {expected}")


_DAY_MS = 24 * 3600 * 1000
TOPIC_KEYS: dict[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey(
            "cleanup.policy",
            "delete",
            "delete: old segments go by retention; compact: the newest record of each key stays",
            choices=("delete", "compact"),
            many=True,
        ),
        ConfigKey("retention.ms", str(7 * _DAY_MS), "how long records stay, -1 = for ever", low=-1),
        ConfigKey(
            "retention.bytes", "-1", "how many bytes a partition keeps, -1 = no limit", low=-1
        ),
        ConfigKey(
            "segment.bytes", str(1 << 30), "a segment rolls at this size", low=1024, high=1 << 31
        ),
        ConfigKey("segment.ms", str(7 * _DAY_MS), "a segment rolls at this age", low=1),
        ConfigKey("segment.index.bytes", str(10 << 20), "the largest index of a segment", low=64),
        ConfigKey("index.interval.bytes", "4096", "bytes between two index entries"),
        ConfigKey("max.message.bytes", "1048588", "the largest batch a producer may send"),
        ConfigKey(MIN_ISR, "1", "in-sync replicas that acks=all needs", low=1),
        ConfigKey(
            UNCLEAN,
            "false",
            "whether a replica that may miss records may lead when no other is left",
            choices=("true", "false"),
        ),
        ConfigKey(
            "message.timestamp.type",
            "CreateTime",
            "whose clock sets a record's timestamp: the producer's or the broker's",
            choices=("CreateTime", "LogAppendTime"),
        ),
        ConfigKey(
            "message.timestamp.before.max.ms",
            str(_I64_MAX),
            "how far a CreateTime may lie before the broker's time",
        ),
        ConfigKey(
            "message.timestamp.after.max.ms",
            str(3600 * 1000),
            "how far a CreateTime may lie after the broker's time",
        ),
        ConfigKey(
            "delete.retention.ms", str(_DAY_MS), "how long a tombstone stays after compaction"
        ),
        ConfigKey("min.compaction.lag.ms", "0", "records younger than this are not compacted"),
        ConfigKey(
            "min.cleanable.dirty.ratio",
            "0.5",
            "how much of a log must be new before compaction runs",
            high=1,
            is_float=True,
        ),
        ConfigKey("file.delete.delay.ms", "60000", "how long a deleted segment's file stays"),
        ConfigKey(
            FLUSH,
            SYNCED,
            "synced: a record counts as replicated once it is on disk; replicated: once it is in "
            "the page cache of every in-sync replica, as in Kafka",
            choices=(SYNCED, "replicated"),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's effective values."""

    values: Mapping[str, str]

    @classmethod
    def of(cls, in_metadata: Mapping[str, str], broker_defaults: Mapping[str, str]) -> TopicConfig:
        """Defaults, then the broker's, but for what the whole cluster must agree about, then what
        the metadata says (`ClusterImage.topic_settings`)."""
        defaults = {name: key.default for name, key in TOPIC_KEYS.items()}
        own = {key: value for key, value in broker_defaults.items() if key not in CLUSTER_KEYS}
        return cls({**defaults, **own, **in_metadata})

    def number(self, name: str) -> int:
        """The value of a key whose values are whole numbers."""
        return int(self.values[name])

    @property
    def min_cleanable_dirty_ratio(self) -> float:
        return float(self.values["min.cleanable.dirty.ratio"])

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.values["cleanup.policy"]

    @property
    def is_deleted(self) -> bool:
        """Whether old segments go by retention."""
        return "delete" in self.values["cleanup.policy"]

    @property
    def append_time(self) -> bool:
        """Whether the broker sets timestamps."""
        return self.values["message.timestamp.type"] == "LogAppendTime"

    @property
    def synced(self) -> bool:
        """Whether only synced records count as replicated."""
        return self.values[FLUSH] == SYNCED


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Raise `Refused` INVALID_CONFIG for an unknown key (with a suggestion) or a wrong value."""
    for name, value in configs.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            raise Refused(ErrorCode.INVALID_CONFIG, unknown_key(name, TOPIC_KEYS))
        key.check(value)


def unknown_key(name: str, known: Iterable[str]) -> str:
    """The sentence for a key that does not exist."""
    return f"unknown configuration key {name!r}{did_you_mean(name, known)}"
