"""Decoded records that wait to be handed out, and the position behind those that were. Pure.

A caller in trio's thread has what it is given. To one in another thread it is lent: it counts as
handed out when that thread takes it, so that nothing is lost on the way to somebody who went away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, repeat, starmap
from typing import TYPE_CHECKING, Protocol

from hightide.arrow import check_installed
from hightide.consume.subscription import Assignment, FetchedBatch, Subscription
from hightide.net.background import Nudge
from hightide.protocol.columns import Record, open_batch, to_records
from hightide.protocol.errors import CorruptBatch, UsageError
from hightide.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from hightide.protocol.columns import Columns
    from hightide.protocol.records import BatchHeader

ARROW_BYTES = 64 << 20
"""Keys and values of a `pyarrow.RecordBatch`, uncompressed: it ends with the batch that reaches
this. Arrow's columns cannot hold more than 2 GiB, and a small batch may inflate to 64 MiB."""


class _Lent(Protocol):
    """Something on its way to another thread."""

    def end(self) -> None:
        """What was not taken by now, never will be."""

    def catch_up(self) -> None:
        """What was taken since is handed out."""


class Lent:
    """Records on their way to another thread, which takes one after the other, or all.

    Nobody waits for a lock: a signal's handler, in the middle of taking, may close the consumer,
    and waits for the thread that then calls `end`. What is taken leaves a list in one step of the
    interpreter, on one side or the other.

    Ctrl-C strikes after a call: what that had taken nobody would have, and it would count as read.
    So each is taken by a loop's step, which calls nothing, and handed on at once."""

    def __init__(self, records: Sequence[Record], note: Callable[[int, Record], None]) -> None:
        self._records = records
        self._note = note
        self._waiting = deque(records)
        self._whole = [self._waiting]
        """Who takes it out of here has all that waits."""
        self._is_over = False
        self._kept = self._noted = 0
        """How many were not taken, in the end; of how many it is known that they were."""

    def __iter__(self) -> Iterator[Record]:
        with suppress(IndexError):
            yield from starmap(deque.popleft, repeat((self._waiting,)))

    def take_all(self) -> list[Record]:
        """Every record that waits; none if it is too late for that."""
        try:
            for records in map(list, map(list.pop, (self._whole,))):
                return records
        except IndexError:
            pass
        return []

    def end(self) -> None:
        """What was not taken by now, never will be."""
        with suppress(IndexError):
            self._whole.pop()
            self._is_over = True
            while True:
                self._waiting.pop()  # who takes meanwhile has those before it
                self._kept += 1

    def catch_up(self) -> None:
        """What was taken since is handed out."""
        is_one_by_one = self._is_over or bool(self._whole)
        waiting = len(self._waiting) if is_one_by_one else 0
        taken = len(self._records) - self._kept - waiting
        if taken > self._noted:
            count, self._noted = taken - self._noted, taken
            self._note(count, self._records[taken - 1 if is_one_by_one else 0])


class LentRows:
    """The same for rows of Arrow, which are taken together."""

    def __init__(
        self, rows: pa.RecordBatch, found: Assignment, size: int, note: Callable[[], None]
    ) -> None:
        """`size`: the bytes that were fetched for them, in whose place others may be fetched."""
        self._whole = [rows]
        self._found = found
        self._note: Callable[[], None] | None = note
        found.lent_bytes = size

    def take_all(self) -> pa.RecordBatch | None:
        """The rows; None if it is too late for that."""
        try:
            for rows in map(list.pop, (self._whole,)):
                return rows
        except IndexError:
            pass
        return None

    def end(self) -> None:
        """What was not taken by now, never will be."""
        with suppress(IndexError):
            self._whole.pop()
            self._note = None
        self._found.lent_bytes = 0

    def catch_up(self) -> None:
        """What was taken since is handed out."""
        note = self._note
        if note is not None and not self._whole:
            self._note = None
            note()


class CompletedFetch:
    """The records of one batch of one partition."""

    def __init__(self, subscription: Subscription) -> None:
        self.wake = Nudge()
        """There is news for who fetches, as something to be fetched again."""
        self.in_work: Record | None = None
        """The first record of those that were handed out and may be worked on."""
        self._subscription = subscription
        self._found: Assignment | None = None
        """Whose position they move, as long as it was not moved elsewhere since."""
        self._moves = 0
        self._records: deque[Record] = deque()
        self._end = -1
        self._epoch = -1
        self._lent: _Lent | None = None

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def tp(self) -> TopicPartition | None:
        """Of which partition they are."""
        return None if self._found is None else self._found.tp

    def decode(self, tp: TopicPartition, batch: FetchedBatch) -> None:
        """Take the records of a batch from the position on; raises `CorruptBatch`."""
        found = self._subscription.get(tp)
        header, data = batch
        assert found.position is not None, f"{tp} has data and no position"
        records: list[Record] = []
        if not header.is_control:
            try:
                records = to_records(data, header, tp.topic, tp.partition)
            except CorruptBatch:
                # Never skip what could not be read: the caller may seek past it.
                self._fetch_again(found)
                raise
        if header.base_offset < found.position:
            records = [record for record in records if record.offset >= found.position]
        if not records:
            found.advance(max(found.position, header.next_offset), header.leader_epoch)
            return
        self._records.extend(records)
        self._found, self._moves = found, found.moves
        self._end, self._epoch = header.next_offset, header.leader_epoch

    def pop(self) -> Record:
        """Hand out the next one."""
        self.in_work = record = self._records.popleft()
        self._advance(record)
        return record

    def pop_at_once(self) -> Record | None:
        """The same, if there is one and nothing is lent; written out, as nearly every record of a
        loop comes by here."""
        records, found = self._records, self._found
        if not records or self._lent is not None or found is None:
            return None
        self.in_work = record = records.popleft()
        if found.moves == self._moves:
            found.position = record.offset + 1 if records else self._end
            found.position_epoch = self._epoch
        return record

    def lend(self, limit: int) -> Lent:
        """Up to so many, which are handed out as they are taken."""
        lent = Lent([*islice(self._records, limit)], self._taken)
        self._lent = lent
        return lent

    def _taken(self, count: int, in_work: Record) -> None:
        if count == len(self._records):
            last = self._records[-1]
            self._records.clear()
        else:
            for _ in range(count):
                last = self._records.popleft()
        self.in_work = in_work
        self._advance(last)

    def _advance(self, last: Record) -> None:
        if (found := self._found_where_it_was()) is not None:
            found.advance(last.offset + 1 if self._records else self._end, self._epoch)

    def _found_where_it_was(self) -> Assignment | None:
        """Whose records these are; None once it goes on elsewhere, as where its topic was deleted
        and made again: offsets of the one say nothing of the other."""
        found = self._found
        return found if found is not None and found.moves == self._moves else None

    def lend_rows(self, found: Assignment) -> LentRows:
        """What was fetched of a partition, as Arrow, up to `ARROW_BYTES`; raises `CorruptBatch` if
        its first batch cannot be read: what comes before a bad one is handed out."""
        check_installed("poll_arrow")
        try:
            lent = self._rows_of(found, len(found.fetched))
        except CorruptBatch:
            try:
                lent = self._rows_of(found, 1)
            except CorruptBatch:
                self._fetch_again(found)
                raise
        self._lent = lent
        return lent

    def _rows_of(self, found: Assignment, limit: int) -> LentRows:
        from hightide.arrow.to_arrow import rows_from

        start = found.position
        assert start is not None, f"{found.tp} has data and no position"
        opened: list[tuple[BatchHeader, Columns]] = []
        batches: list[FetchedBatch] = []
        size = 0
        for batch in islice(found.fetched, limit):
            if size >= ARROW_BYTES:
                break
            batches.append(batch)
            if not batch.header.is_control:
                columns = open_batch(batch.data, batch.header, check_sums=False)
                opened.append((batch.header, columns))
                size += len(columns.keys) + len(columns.values)
        rows = rows_from(opened, *found.tp, start=start)

        def note() -> None:
            if not found.fetched or found.fetched[0] is not batches[0]:
                return  # the caller went on elsewhere
            self.in_work = Record(*found.tp, start, 0, None, None)
            for _ in batches:
                found.take()
            last = batches[-1].header
            found.advance(max(start, last.next_offset), last.leader_epoch)

        return LentRows(rows, found, sum(len(batch.data) for batch in batches), note)

    # -- what was lent ---------------------------------------------------------------------------

    def catch_up(self) -> None:
        """What another thread took of what it was lent is handed out."""
        if self._lent is not None:
            self._lent.catch_up()

    def settle(self) -> None:
        """The same, and the rest is not lent any more."""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.end()
            lent.catch_up()

    def give_back(self) -> None:
        """What was not handed out is fetched again."""
        self.settle()
        if self._records:
            if (found := self._found_where_it_was()) is not None:
                self._fetch_again(found)
            self.drop()

    def _fetch_again(self, found: Assignment) -> None:
        found.fetch_again()
        self.wake.set()

    def drop(self) -> None:
        """Forget what was not handed out."""
        if self._lent is not None:
            self._lent.end()
            self._lent = None
        self._records.clear()
        self._found = None

    def drop_of(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget it if it is of one of these."""
        if self.tp in partitions:
            self.drop()


def polled_already() -> UsageError:
    """Two callers ask for records at a time."""
    return UsageError(
        "this consumer is polled already, by another task or thread: a consumer is one reader; "
        "open one for each, in a group or with partitions of its own"
    )
