"""How far a group is behind in a partition, as a replica of it tells: in records, and in time."""

from __future__ import annotations

from typing import NamedTuple

from hightide.protocol.errors import Refused
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.ports import DiskError
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.storage.segment import SegmentDamage


class Lag(NamedTuple):
    """How far a group is with one partition."""

    group: str
    tp: TopicPartition
    committed: int
    replica: Replica

    @property
    def next_offset(self) -> int:
        """What it reads next: what it committed, or where the log begins if that is gone."""
        return max(self.committed, self.replica.log.log_start)

    @property
    def records(self) -> int:
        """What is committed, and not read yet."""
        return max(self.replica.high_watermark - self.next_offset, 0)

    @property
    def labels(self) -> tuple[str, str, str]:
        """Group, topic and partition."""
        return self.group, self.tp.topic, str(self.tp.partition)

    def behind_ms(self, now_ms: int) -> int | None:
        """How old the record is that it reads next, to the batch; 0: there is none; None: it cannot
        be read here."""
        if self.records == 0:
            return 0
        try:
            header, _ = next(self.replica.log.batches(self.next_offset))
        except (StopIteration, SegmentDamage, DiskError, Refused):
            return None
        is_first = self.next_offset <= header.base_offset
        written_ms = header.base_timestamp if is_first else header.max_timestamp
        return max(now_ms - written_ms, 0)
