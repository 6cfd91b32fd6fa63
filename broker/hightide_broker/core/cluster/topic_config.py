"""The configuration of a topic, as it is in force. Pure.

A topic's value is what is set on it, else the default: for the keys that decide what is lost, the
cluster's, which is part of the metadata (`CLUSTER_KEYS`); for all others that of the broker's own
file; else the default of the key (`topic_keys.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hightide.protocol.errors import ErrorCode, Refused, did_you_mean
from hightide_broker.core.cluster.config_key import Key, Unfit
from hightide_broker.core.cluster.topic_keys import (
    CLUSTER_KEYS,
    COMPACT,
    DELETE,
    FLUSH,
    MIN_ISR,
    POLICY,
    SYNCED,
    TIMESTAMP_TYPE,
    TOPIC_KEYS,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's effective values; `config[key]` is one, in the key's type."""

    values: Mapping[str, str]
    """As text, by the keys' names."""
    _parsed: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, in_metadata: Mapping[str, str], broker_defaults: Mapping[str, str]) -> TopicConfig:
        """Defaults, then the broker's, but for what the whole cluster must agree about, then what
        the metadata says (`ClusterImage.topic_settings`)."""
        defaults = {name: key.default for name, key in TOPIC_KEYS.items()}
        own = {key: value for key, value in broker_defaults.items() if key not in CLUSTER_KEYS}
        return cls({**defaults, **own, **in_metadata})

    def __getitem__(self, key: Key[T]) -> T:
        # Asked for with every batch: the text is read once.
        if key.name not in self._parsed:
            self._parsed[key.name] = key.value(self.values[key.name])
        value: T = self._parsed[key.name]
        return value

    @property
    def is_compacted(self) -> bool:
        """Whether the newest record of each key stays."""
        return COMPACT in self[POLICY]

    @property
    def is_deleted(self) -> bool:
        """Whether old segments go by retention."""
        return DELETE in self[POLICY]

    @property
    def min_isr(self) -> int:
        """How many in-sync replicas acks=all needs."""
        return self[MIN_ISR]

    @property
    def append_time(self) -> bool:
        """Whether the broker sets timestamps."""
        return self[TIMESTAMP_TYPE] == "LogAppendTime"

    @property
    def synced(self) -> bool:
        """Whether only synced records count as replicated."""
        return self[FLUSH] == SYNCED


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Raise `Refused` INVALID_CONFIG for an unknown key (with a suggestion) or a wrong value."""
    for name, value in configs.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            raise Refused(ErrorCode.INVALID_CONFIG, unknown_key(name, TOPIC_KEYS))
        try:
            key.parse(value)
        except Unfit as unfit:
            raise Refused(ErrorCode.INVALID_CONFIG, str(unfit)) from unfit


def unknown_key(name: str, known: Iterable[str]) -> str:
    """The sentence for a key that does not exist."""
    return f"unknown configuration key {name!r}{did_you_mean(name, known)}"
