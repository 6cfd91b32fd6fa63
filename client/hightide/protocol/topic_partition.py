"""A partition by its name."""

from __future__ import annotations

from typing import NamedTuple

INTERNAL = "__"
"""What the names of topics begin with that the cluster keeps for itself."""


class TopicPartition(NamedTuple):
    """A partition by its topic and number; equal to the plain pair of them."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
