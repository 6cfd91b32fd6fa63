"""How far the logs of leaderless partitions reach, as their brokers say. Pure.

While nobody leads a partition nothing is appended to it, so what a broker said holds until it leads
or follows again, or another process speaks for it. The active controller's memory, not part of the
image: a new controller is told again with the next heartbeats. Source: KIP-966, unclean recovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hightide import controller_messages as c
from hightide_broker.core.partition_changes import NO_ENDS, LogEnd


class LogEnds:
    """Partition → broker → where its log ends."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], dict[int, LogEnd]] = {}
        self._told: set[int] = set()

    def heard(self, broker: int, leaderless: Iterable[c.LeaderlessReplica]) -> None:
        """All that a broker has to say now; what it said before is over."""
        self.forget(broker)
        self._told.add(broker)
        for replica in leaderless:
            key = (replica.topic_id, replica.partition)
            end = LogEnd(replica.last_epoch, replica.log_end)
            self._ends.setdefault(key, {})[broker] = end

    def forget(self, broker: int) -> None:
        """Another process speaks for this broker, or nobody does."""
        self._told.discard(broker)
        for key in [key for key, ends in self._ends.items() if broker in ends]:
            del self._ends[key][broker]
            if not self._ends[key]:
                del self._ends[key]

    def untold(self, brokers: Iterable[int]) -> list[int]:
        """Those of them that have said nothing yet."""
        return [broker for broker in brokers if broker not in self._told]

    def of(self, topic_id: str, partition: int) -> Mapping[int, LogEnd]:
        """What is known of one partition."""
        return self._ends.get((topic_id, partition), NO_ENDS)
