"""What came and went, topic by topic: of the topics of which this broker holds, or held, anything.

A topic's numbers stay as long as the topic does, whichever of its replicas come and go.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container

from hightide_broker.core.replication.refusals import Cause


class Traffic:
    """Of one topic, since the process began."""

    __slots__ = (
        "deleted_bytes",
        "failures",
        "in_bytes",
        "in_records",
        "out_bytes",
        "replicated_in",
        "replicated_out",
    )

    def __init__(self) -> None:
        self.in_records = 0
        self.in_bytes = 0
        """As producers sent them."""
        self.out_bytes = 0
        """To consumers."""
        self.replicated_in = 0
        """Bytes from leaders."""
        self.replicated_out = 0
        """Bytes to followers."""
        self.deleted_bytes: Counter[str] = Counter()
        """Of segments that are gone, by `retention`, or smaller by `compaction`."""
        self.failures: Counter[str] = Counter()
        """Of produces and fetches: partitions of a request that were refused, by API."""


class TrafficByTopic(defaultdict[str, Traffic]):
    """Topic → what came and went of it."""

    def __init__(self) -> None:
        super().__init__(Traffic)
        self.rejected: Counter[Cause] = Counter()
        """Batches of producers that were refused for what they are, of any topic."""

    def forget_all_but(self, topics: Container[str]) -> None:
        """Those that there still are are kept."""
        for name in [name for name in self if name not in topics]:
            del self[name]
