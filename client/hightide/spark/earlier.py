"""What earlier runs of a query, or earlier tries of a function, stored of a batch that is written
again.

A driver died, or was stopped, in the middle of a batch; the next run may share out its rows over
other tasks. So what is stored belongs to no task any more. Every task looks at all of it: rows of
which nothing like it is stored, it stores; of the others it tells the driver how many it has. When
all tasks are done the driver knows how often each of those is wanted, and stores what is missing;
what it needs for that lies in the log.

What they stored lies below a boundary that is kept with the mark before this job stores anything.
Pure but for `read`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from hightide.protocol import producer_messages as p
from hightide.protocol.columns import Record, to_records
from hightide.protocol.topic_partition import TopicPartition
from hightide.spark.attempts import Attempt, producers_of
from hightide.spark.client import BlockingClient
from hightide.spark.marks import Mark
from hightide.spark.stored import LayoutChanged, batches_of, digest, rows_as_python

if TYPE_CHECKING:
    import numpy as np

    from hightide.arrow.from_arrow import Rows

QUESTIONS_AT_ONCE = 1024


class Content(NamedTuple):
    """A row by what is in it, and where it belongs."""

    tp: TopicPartition
    digest: bytes


Wanted = Counter[tuple[Content, int | None]]
"""How often rows are wanted, by content and the time that they name, if they do."""


class Earlier:
    """Rows of earlier runs, by content."""

    def __init__(self) -> None:
        self.counts: Counter[TopicPartition] = Counter()
        """How many there are in each partition."""
        self.lanes: Counter[tuple[TopicPartition, int]] = Counter()
        """How many a producer has there."""
        self._rows: dict[Content, list[Record]] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, record: Record) -> None:
        """Take in a record of the batch that an earlier attempt stored."""
        tp = TopicPartition(record.topic, record.partition)
        content = Content(tp, digest(record.key, record.value, record.headers))
        self._rows.setdefault(content, []).append(record)
        self.counts[tp] += 1
        self.lanes[tp, record.producer_id] += 1

    @classmethod
    def read(
        cls,
        client: BlockingClient,
        producers: Mapping[int, int],
        between: Mapping[TopicPartition, tuple[int, int]],
        *,
        is_old: bool,
        timeout_s: float,
    ) -> Earlier:
        """Those of these producers (id → epoch), where they lie: from one offset to another.
        `is_old`: brokers may have forgotten the producers."""
        found = cls()
        for tp, (start, end) in between.items():
            if end <= start:
                continue
            if not is_old:
                states = states_of(client, tp, producers, timeout_s=timeout_s)
                last = max((each.last_offset for each in states.values()), default=-1)
                end = min(end, last + 1)
            for header, batch in batches_of(client, tp, start, end, timeout_s=timeout_s):
                is_ours = producers.get(header.producer_id) == header.producer_epoch
                if is_ours and header.base_offset < end:
                    for record in to_records(batch, header, *tp):
                        found.add(record)
        return found

    def deferred(self, tp: TopicPartition, rows: Rows) -> tuple[np.ndarray, Wanted]:
        """The indexes of the rows of which nothing like it is stored; and the others."""
        import numpy as np

        left: list[int] = []
        wanted: Wanted = Counter()
        for index, (key, value, headers) in enumerate(rows_as_python(rows)):
            content = Content(tp, digest(key, value, headers))
            if content not in self._rows:
                left.append(index)
                continue
            is_timed = rows.is_timed is not None and bool(rows.is_timed[index])
            wanted[content, int(rows.times[index]) if is_timed else None] += 1
        return np.array(left, np.int64), wanted

    def reconcile(self, wanted: Wanted) -> tuple[list[Record], list[Record]]:
        """The rows that are wanted more often than they are stored, as records to be stored; and
        the stored ones that nobody wants."""
        free = {content: list(records) for content, records in self._rows.items()}
        missing: list[Record] = []
        # Who named a time gets that one; who did not, any that is left.
        for (content, time), count in sorted(wanted.items(), key=lambda each: each[0][1] is None):
            if content not in free:
                topic, partition = content.tp
                raise LayoutChanged(
                    f"rows of earlier runs in {topic}-{partition} that tasks have seen are not "
                    "there any more: they were deleted, or another run of the query is at work"
                )
            for _ in range(count):
                taken = _take(free[content], time)
                if taken is None:
                    like = self._rows[content][0]
                    missing.append(_copy(like, time))
        return missing, [record for records in free.values() for record in records]


def _take(records: list[Record], time: int | None) -> Record | None:
    for number, record in enumerate(records):
        if time is None or record.timestamp_type or record.timestamp == time:
            return records.pop(number)
    return None


def _copy(record: Record, time: int | None) -> Record:
    """The same row with a time of its own; -1: none that it named."""
    time = -1 if time is None else time
    return Record(
        record.topic, record.partition, -1, time, record.key, record.value, record.headers
    )


def states_of(
    client: BlockingClient, tp: TopicPartition, producers: Mapping[int, int], *, timeout_s: float
) -> dict[int, p.ProducerState]:
    """What a partition's leader has of producers (id → epoch) in these epochs."""
    found: dict[int, p.ProducerState] = {}
    ids = [*producers]
    for start in range(0, len(ids), QUESTIONS_AT_ONCE):
        some = ids[start : start + QUESTIONS_AT_ONCE]
        questions = [
            p.ProducerQuestion(topic=tp[0], partition=tp[1], producer_id=each) for each in some
        ]
        request = p.DescribeProducersRequest(partitions=questions)
        answer, _ = client.call_leader(*tp, request, timeout_s=timeout_s)
        found |= {
            producer: state
            for producer, state in zip(some, answer.partitions, strict=True)
            if state.producer_epoch == producers[producer] and state.last_sequence >= 0
        }
    return found


def places_of_records(records: Sequence[Record]) -> Iterable[tuple[TopicPartition, list[Record]]]:
    """Records by where they belong."""
    found: dict[TopicPartition, list[Record]] = {}
    for record in records:
        tp = TopicPartition(record.topic, record.partition)
        found.setdefault(tp, []).append(record)
    return found.items()


def earlier_rows(
    client: BlockingClient, attempt: Attempt, mark: Mark, job: str, *, timeout_s: float
) -> Earlier:
    """What others stored of a batch before this job began it."""
    between = {
        TopicPartition(topic, number): (start, end)
        for topic, each in mark.topics.items()
        if each.at_work == job
        # Partitions that were added since hold nothing of a batch before.
        for number, (start, end) in enumerate(zip_longest(each.starts, each.ends, fillvalue=0))
    }
    if all(start >= end for start, end in between.values()):
        return Earlier()
    producers = producers_of(attempt.sink, attempt.batch)
    return Earlier.read(client, producers, between, is_old=mark.is_old, timeout_s=timeout_s)
