"""What a consumer group's state is made of. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from hightide_broker.core.groups.records import GroupValue


class State(StrEnum):
    """Where a group is; Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Limits(NamedTuple):
    """What a coordinator allows; times in seconds."""

    session_min_s: float = 6.0
    session_max_s: float = 1800.0
    initial_delay_s: float = 3.0
    size_max: int = 10_000


class Cause(NamedTuple):
    """Why a rebalance began, when, and which generation it ended."""

    at: float
    generation: int
    text: str


class Write(NamedTuple):
    """A state of the group that is to be kept; `token` comes back in `on_written`."""

    value: GroupValue
    token: tuple[str, ...]
