"""The batch that a record may join whose partition nobody named. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hightide.produce.accumulator import PartitionQueue
from hightide.produce.partitioner import partition_for_key
from hightide.protocol.batch_builder import Batch


class Joining:
    """By topic, the queues that records without and with keys came to last."""

    def __init__(self, partition_counts: Mapping[str, int]) -> None:
        """`partition_counts`: how many each topic has, kept up to date by somebody else."""
        self._counts = partition_counts
        self._sticky: dict[str, PartitionQueue] = {}
        self._by_key: dict[str, list[PartitionQueue | None]] = {}
        """One for each partition, in the order of their numbers."""

    def find(self, topic: str, key: bytes | None) -> Batch | None:
        """The last batch that was not sent of the partition that the record would go to, if it is
        known."""
        if key is None:
            queue = self._sticky.get(topic)
        elif (
            key.__class__ is bytes
            and (queues := self._by_key.get(topic)) is not None
            and len(queues) == (count := self._counts[topic])
        ):
            queue = queues[partition_for_key(key, count)]
        else:
            return None
        return queue.pending[-1] if queue is not None and queue.pending else None

    def keep(self, queue: PartitionQueue, *, has_key: bool) -> None:
        """A record came to this queue. If its topic has more partitions than before, keys have
        other ones: none joins what is in its old one."""
        if not has_key:
            self._sticky[queue.topic] = queue
            return
        queues, count = self._by_key.get(queue.topic), self._counts[queue.topic]
        if queues is None or len(queues) != count:
            queues = self._by_key[queue.topic] = [None] * count
        queues[queue.partition] = queue
