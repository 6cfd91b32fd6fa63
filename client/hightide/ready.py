"""Decoded records that wait to be handed out, and the position behind those that were. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hightide.columns import Record, to_records
from hightide.errors import CorruptBatch
from hightide.subscription import FetchedBatch, Subscription, TopicPartition


class Ready:
    """The records of one batch of one partition."""

    def __init__(self, subscription: Subscription) -> None:
        self.where: TopicPartition | None = None
        """Of which partition they are."""
        self.in_work: Record | None = None
        """The first record that was handed out by the last call."""
        self._subscription = subscription
        self._records: deque[Record] = deque()
        self._end = -1
        self._epoch = -1

    def __bool__(self) -> bool:
        return bool(self._records)

    def decode(self, where: TopicPartition, batch: FetchedBatch) -> None:
        """Take the records of a batch from the position on; raises `CorruptBatch`."""
        found = self._subscription.get(where)
        header, data = batch
        assert found.position is not None, f"{where} has data and no position"
        records: list[Record] = []
        if not header.is_control:
            try:
                records = to_records(data, header, where.topic, where.partition)
            except CorruptBatch:
                # Never skip what could not be read: the caller may seek past it.
                found.seek(found.position, found.position_epoch)
                raise
        if header.base_offset < found.position:
            records = [record for record in records if record.offset >= found.position]
        if not records:
            found.advance(max(found.position, header.next_offset), header.leader_epoch)
            return
        self._records.extend(records)
        self.where, self._end, self._epoch = where, header.next_offset, header.leader_epoch

    def take(self, limit: int) -> list[Record]:
        """Hand out up to so many."""
        taken = [self._records.popleft() for _ in range(min(limit, len(self._records)))]
        if taken:
            self.in_work = taken[0]
            self._advance(taken[-1])
        return taken

    def pop(self) -> Record:
        """Hand out the next one."""
        self.in_work = record = self._records.popleft()
        self._advance(record)
        return record

    def _advance(self, last: Record) -> None:
        assert self.where is not None, "records of no partition"
        found = self._subscription.find(self.where)
        if found is not None:
            found.advance(last.offset + 1 if self._records else self._end, self._epoch)

    def give_back(self) -> None:
        """What was not handed out is fetched again."""
        if self._records and self.where is not None:
            found = self._subscription.get(self.where)
            assert found.position is not None, f"{found.where} has records and no position"
            found.seek(found.position, found.position_epoch)
            self.drop()

    def drop(self) -> None:
        """Forget what was not handed out."""
        self._records.clear()
        self.where = None

    def drop_of(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget it if it is of one of these."""
        if self.where in partitions:
            self.drop()
