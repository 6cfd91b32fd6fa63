"""How far the logs of leaderless partitions reach, as their brokers say. Pure.

While nobody leads a partition nothing is appended to it, so what a broker said holds for as long as
the leader epoch in which nobody leads, or until another process speaks for it. A broker that says
that its replica is offline has no log there to speak of. The active controller's memory, not part
of the image: a new controller is told again with the next heartbeats. Source: KIP-966, unclean
recovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hightide.protocol import controller_messages as c
from hightide_broker.core.cluster.partition_changes import NO_ENDS, LogEnd


class LogEnds:
    """Partition → broker → where its log ends."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int, int], dict[int, LogEnd]] = {}
        """By topic id, partition and leader epoch."""
        self._offline: dict[int, set[tuple[str, int]]] = {}

    def heard(
        self,
        broker: int,
        leaderless: Iterable[c.LeaderlessReplica],
        offline: Iterable[c.OfflineReplica] = (),
    ) -> None:
        """All that a broker has to say now; what it said before is over."""
        self.forget(broker)
        self._offline[broker] = {(replica.topic_id, replica.partition) for replica in offline}
        for replica in leaderless:
            key = (replica.topic_id, replica.partition, replica.leader_epoch)
            end = LogEnd(replica.last_epoch, replica.log_end)
            self._ends.setdefault(key, {})[broker] = end

    def forget(self, broker: int) -> None:
        """Another process speaks for this broker, or nobody does."""
        self._offline.pop(broker, None)
        for key in [key for key, ends in self._ends.items() if broker in ends]:
            del self._ends[key][broker]
            if not self._ends[key]:
                del self._ends[key]
        assert all(self._ends.values()), f"nobody said what is kept of {self._ends}"

    def untold(
        self, topic_id: str, partition: int, leader_epoch: int, brokers: Iterable[int]
    ) -> tuple[int, ...]:
        """Of `brokers`, those that have not said how far their log of a partition reaches."""
        ends = self.of(topic_id, partition, leader_epoch)
        return tuple(
            broker
            for broker in brokers
            if broker not in ends and not self.is_offline(broker, topic_id, partition)
        )

    def is_offline(self, broker: int, topic_id: str, partition: int) -> bool:
        """Whether a broker has said that its replica is offline."""
        return (topic_id, partition) in self._offline.get(broker, ())

    def of(self, topic_id: str, partition: int, leader_epoch: int) -> Mapping[int, LogEnd]:
        """What is known of one partition, in the epoch in which nobody leads it."""
        return self._ends.get((topic_id, partition, leader_epoch), NO_ENDS)
