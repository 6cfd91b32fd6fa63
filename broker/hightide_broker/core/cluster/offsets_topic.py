"""What nobody may do to `__consumer_offsets`, because groups would lose what they committed. Pure.

The number of its partitions decides where a group is looked for, and what is in them is the
coordinators' to write and to compact.
"""

from __future__ import annotations

from collections.abc import Mapping

from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.topic_keys import COMPACT, POLICY

OFFSETS_TOPIC = "__consumer_offsets"


def check_produce(topic: str) -> None:
    """Raise `Refused` for records of a client."""
    if topic == OFFSETS_TOPIC:
        raise Refused(
            ErrorCode.INVALID_TOPIC,
            f"{OFFSETS_TOPIC} is written by coordinators only: commit offsets as a group",
        )


def check_more_partitions(topic: str) -> None:
    """Raise `Refused` for another number of partitions."""
    if topic == OFFSETS_TOPIC:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"{OFFSETS_TOPIC} keeps its partitions: groups would be looked for in others, and "
            f"what they committed would not be found (offsets.topic.num.partitions holds when it "
            f"is made)",
        )


def check_configs(topic: str, changed: Mapping[str, str | None]) -> None:
    """Raise `Refused` for settings that let committed offsets go."""
    policy = changed.get(POLICY.name, COMPACT) or POLICY.default
    if topic == OFFSETS_TOPIC and policy != COMPACT:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{POLICY.name} of {OFFSETS_TOPIC} is {policy}, expected {COMPACT}: "
            f"what groups committed would be deleted (offsets.retention.ms says how long it stays)",
        )
