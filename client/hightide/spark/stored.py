"""What is stored of a batch already, row by row: read back from the log, and matched with the rows
of the task that writes the batch again.

A row is known by what is in it, not by its number: it may come in another order, behind a shuffle
it does. Rows that are the same in everything are interchangeable.
"""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from hightide.protocol import messages as m
from hightide.protocol.columns import Headers, Record, to_records
from hightide.protocol.errors import HightideError, RemoteProtocolError, RequestTimedOut
from hightide.protocol.records import BatchHeader, check_crc, iter_batches
from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted
from hightide.spark.client import BlockingClient

if TYPE_CHECKING:
    import numpy as np

    from hightide.arrow.from_arrow import Rows

FETCH_BYTES = 8 << 20
FETCH_WAIT_MS = 100
LOOK_BACK_OFFSETS = 10_000
"""How far from the last row of a task the others are looked for first."""
LOOK_S = 60.0
"""How long nothing may come of what is read back."""
ANY_TIME = -1
"""Of rows that were given the broker's time."""


class LayoutChanged(HightideError):
    """Rows of a batch are stored that are not among those of who writes it again: the query gives
    its tasks other rows than before."""


class Lane(NamedTuple):
    """The rows that one task of a batch has in one partition, whichever attempt stored them."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int

    def holds(self, header: BatchHeader) -> bool:
        """Whether a batch of the log is of it."""
        return (header.producer_id, header.producer_epoch) == self[1:]


def batches_of(
    client: BlockingClient, tp: TopicPartition, start: int, end: int, *, timeout_s: float
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """What lies in [start, end) of a partition, all of it committed; from the first offset that is
    there. Raises `RequestTimedOut` if nothing more comes: a log that was cut ends before `end`."""
    first = client.offset(*tp, m.EARLIEST, timeout_s=timeout_s)
    position, since = max(start, first.offset), time.monotonic()
    while position < end:
        part = m.FetchPartition(
            topic=tp[0], partition=tp[1], fetch_offset=position, max_bytes=FETCH_BYTES
        )
        request = m.FetchRequest(
            max_wait_ms=FETCH_WAIT_MS, max_bytes=FETCH_BYTES, partitions=[part], reads_rows=True
        )
        answer, received = client.call_leader(*tp, request, timeout_s=timeout_s)
        number = answer.partitions[0].records
        before = position
        for header, batch in iter_batches(received[number]) if number >= 0 else ():
            if before < header.next_offset:
                check_crc(batch, header)
                position = header.next_offset
                yield header, batch
        if position == before and number >= 0:
            raise RemoteProtocolError(f"{tp[0]}-{tp[1]}: nothing behind {position} was sent")
        if position > before:
            since = time.monotonic()
        elif (waited_s := time.monotonic() - since) > timeout_s:
            why = f"{tp[0]}-{tp[1]} has nothing from offset {position} on, expected up to {end}"
            raise RequestTimedOut(f"{why}: was its log cut?", elapsed_s=waited_s)


def first_sequence(client: BlockingClient, lane: Lane, begin: int, end: int) -> int | None:
    """That of a lane's first batch in [begin, end); None: it has none there. Raises as
    `batches_of`."""
    found = (
        header.base_sequence
        for header, _ in batches_of(client, lane.tp, begin, end, timeout_s=LOOK_S)
        if lane.holds(header) and header.base_offset >= begin
    )
    return next(found, None)


class Stored:
    """The rows of a task that are stored, and that nobody has matched yet."""

    def __init__(self) -> None:
        self.count = 0
        self._times: dict[tuple[TopicPartition, bytes], list[int]] = {}
        """(where, digest) → the times of the rows that are the same but for those, sorted: there
        may be as many as there are rows."""
        self._offsets: dict[TopicPartition, tuple[int, int]] = {}

    def __str__(self) -> str:
        """Where they lie, among others that were matched."""
        return ", ".join(
            f"{topic}-{partition} offsets {first} to {last}"
            for (topic, partition), (first, last) in sorted(self._offsets.items())
        )

    def add(self, record: Record) -> None:
        """Count a record that is stored."""
        tp = TopicPartition(record.topic, record.partition)
        name = tp, digest(record.key, record.value, record.headers)
        time = ANY_TIME if record.timestamp_type else record.timestamp
        insort(self._times.setdefault(name, []), time)
        first, last = self._offsets.get(tp, (record.offset, record.offset))
        self._offsets[tp] = min(first, record.offset), max(last, record.offset)
        self.count += 1

    def read(
        self, client: BlockingClient, lane: Lane, sequences: range, begin: int, last_offset: int
    ) -> None:
        """Add the rows of a lane with these numbers, which lie from `begin` at the earliest to
        `last_offset`; raises `LayoutChanged` if some of them are gone."""
        before, seen = self.count, set[int]()
        for start, end in _backwards(begin, last_offset + 1, len(sequences)):
            for header, batch in batches_of(client, lane.tp, start, end, timeout_s=LOOK_S):
                if not lane.holds(header) or header.base_sequence not in sequences:
                    continue
                # One that reaches into the range before was found there.
                if header.base_offset not in seen:
                    seen.add(header.base_offset)
                    for record in to_records(batch, header, *lane.tp):
                        self.add(record)
            if self.count - before == len(sequences):
                break
        if self.count - before != len(sequences):
            raise LayoutChanged(
                f"of {counted(len(sequences), 'row')} that a task stored in "
                f"{lane.tp[0]}-{lane.tp[1]} from offset {begin} to {last_offset} only "
                f"{self.count - before} are there: the others were deleted or compacted since, "
                "and nobody can tell which"
            )

    def left_of(
        self, tp: TopicPartition, rows: Rows, *, is_last: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """The indexes of the rows that are not stored, and of those of which that is to be seen
        when all rows came (`is_last`): they name no time, and others that are the same may."""
        import numpy as np

        left, late = [], []
        for index, (key, value, headers) in enumerate(rows_as_python(rows)):
            times = self._times.get((tp, digest(key, value, headers)))
            names_none = rows.is_timed is not None and not rows.is_timed[index]
            # One that has the time of this attempt is of it, or no other than that.
            if times and names_none and not is_last and _place(times, rows.times[index]) < 0:
                late.append(index)
            elif not times or not self._match(times, rows, index):
                left.append(index)
        return np.array(left, np.int64), np.array(late, np.int64)

    def _match(self, times: list[int], rows: Rows, index: int) -> bool:
        """A row that named its time is matched by that; another one was given the time of day, by
        this attempt or another one."""
        if not _took(times, rows.times[index]):
            if rows.is_timed is None or not rows.is_timed[index]:
                times.pop()
            elif not _took(times, ANY_TIME):
                return False
        self.count -= 1
        return True


def _place(times: list[int], time: int) -> int:
    """Where it is among the sorted ones, the last of those that are the same; -1: nowhere."""
    at = bisect_right(times, time) - 1
    return at if at >= 0 and times[at] == time else -1


def _took(times: list[int], time: int) -> bool:
    """Take it out of the sorted ones, once; whether it was there."""
    at = _place(times, time)
    if at >= 0:
        del times[at]
    return at >= 0


def _backwards(begin: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    """Ranges from `end` down to `begin`, each larger than the one before: so many rows lie near the
    end, unless others have written much between them."""
    size = max(2 * count, LOOK_BACK_OFFSETS)
    while begin < end:
        start = max(begin, end - size)
        yield start, end
        end, size = start, 2 * size


def rows_as_python(rows: Rows) -> Iterator[tuple[bytes | None, bytes | None, Headers]]:
    """Key, value and headers of each row."""
    keys = [None] * len(rows) if rows.keys is None else rows.keys.to_pylist()
    lists = [()] * len(rows) if rows.headers is None else rows.headers.to_pylist()
    for key, value, pairs in zip(keys, rows.values.to_pylist(), lists, strict=True):
        yield key, value, tuple((pair["key"], pair["value"]) for pair in pairs or ())


def digest(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """A row by its content."""
    found = blake2b(digest_size=16)
    for item in (key, value, *(part for name, value in headers for part in (name.encode(), value))):
        found.update(b"-" if item is None else b"%d:" % len(item))
        found.update(item or b"")
    return found.digest()
