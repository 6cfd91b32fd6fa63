"""How much a broker that starts has still to do before it has all of its replicas."""

from __future__ import annotations

from collections.abc import Mapping

from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted


class Recovering:
    """The partitions that are not open yet. Worker threads say which are."""

    def __init__(self) -> None:
        self._left: dict[TopicPartition, int] = {}
        """How many bytes are to be scanned of each, at most."""
        self._total = 0

    def begin(self, found: Mapping[TopicPartition, int]) -> None:
        """These are to be opened, and so many bytes of each are to be scanned."""
        self._left = dict(found)
        self._total = len(found)

    @property
    def told(self) -> str:
        """How it goes, in words; empty where there is nothing to look at."""
        if not self.bytes:
            return ""
        partitions, size = counted(self._total, "partition"), counted(self.bytes, "byte")
        return (
            f"recovers its logs: {self.partitions} of {partitions} are left, "
            f"with {size} to look at, at most"
        )

    def ended(self, tp: TopicPartition) -> None:
        """One is open, or cannot be opened."""
        self._left.pop(tp, None)

    @property
    def partitions(self) -> int:
        """How many are left."""
        return len(self._left)

    @property
    def bytes(self) -> int:
        """What is left to be scanned, at most."""
        return sum(list(self._left.values()))  # at once: threads take some away
