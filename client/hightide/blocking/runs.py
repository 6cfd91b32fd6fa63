"""What threads have sent and trio's thread has not buffered yet. Records of a topic that have a
value and perhaps a key or a partition gather in runs, so that most of what a record costs is paid
once a run: waking trio's thread, a place in the queue, finding a partition, filling its batch."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence, Sized
from contextlib import suppress
from itertools import chain, count
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import trio

from hightide.net.told import Told, tell, wait_to_be_told
from hightide.net.turns import Places
from hightide.produce.bulk import Placement
from hightide.produce.delivery import Delivery as AsyncDelivery
from hightide.produce.delivery import RecordMetadata
from hightide.protocol.batch_builder import RECORD_OVERHEAD
from hightide.protocol.errors import RequestTimedOut

if TYPE_CHECKING:
    from hightide.blocking.base import Blocking

RUN_KIB = 256
"""How large a run becomes, counted as the producer counts records."""
FIRST_KIB = 4
"""For how much it has places when it begins; each time it is full, it takes as many again, while
there are some: with hundreds of topics there is one for each."""
QUEUE_KIB = 4 << 10
"""How large all runs are together that are on their way to trio's thread, or less where the
producer has less memory; a record alone counts as 1 KiB at least. It is what the two threads work
on between two turns of the interpreter, of 5 ms each: were it much less, they would wait."""
LOOK_S = 1.0
"""How often a thread that waits for a place looks whether the producer still works."""


class More(NamedTuple):
    """What else a record may have."""

    timestamp: int | None
    headers: tuple[tuple[str, bytes | None], ...]


class Run:
    """Records of one topic in the order of sending, and what becomes of them: each is buffered, or
    has the error that all of them have which are not."""

    __slots__ = (
        "asked", "begun_at", "error", "gathers", "indexes", "is_keyed", "is_over", "is_taken",
        "more", "numbers", "partition", "placement", "producer", "records", "room", "see", "single",
        "size", "slots", "told", "topic", "weights",
    )  # fmt: skip

    def __init__(
        self,
        producer: Blocking,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        more: More | None,
    ) -> None:
        self.producer = producer
        self.topic = str.__str__(topic) if isinstance(topic, str) else topic
        """Without what somebody's own kind of text does when it is compared, or hashed."""
        self.partition = partition
        """The one that its sender named, which all its records have in common."""
        self.is_keyed = key is not None
        """Records with keys and without do not gather in one run: a run is buffered by partition,
        and they may go to the same one."""
        self.slots: dict[int, Any] = {0: value if key is None else (key, value)}
        """Values, or pairs of key and value, that trio's thread has not taken: each by its index,
        put here in one step, which no interruption cuts in two."""
        self.numbers = count(1)
        """The indexes of those that come."""
        self.records: list[Any] = []
        """What was taken, in order; and the index of each."""
        self.indexes: list[int] = []
        self.more = more
        """Of its only record, if that has more."""
        self.begun_at = time.monotonic()
        self.gathers = topic.__class__ is str
        """Whether others may join: in the end, not only by its topic."""
        self.room = -1
        """Bytes that it still takes, as records are counted; less than 0: it is not open."""
        self.size = 0
        """Bytes of its first record, as records are counted."""
        self.weights: list[int] = []
        """Places in the queue that it has, of a KiB each, as it took them. Each is given back by
        one side, whichever removes it."""
        self.is_taken = False
        """Whether it has left the queue."""
        self.placement = Placement()
        """Where its records are buffered, by their place in `records`."""
        self.single: AsyncDelivery | None = None
        """The same of its only record."""
        self.error: BaseException | None = None
        self.see: Callable[[], None] | None = None
        """To be called when somebody is told of the error."""
        self.is_over = False
        """Whether every record is buffered or has its error."""
        self.asked: set[int] = set()
        """Records that somebody has asked for."""
        self.told: Told = []
        """Threads that wait until it is over."""

    def take(self) -> None:
        """In trio's thread: what is in by now is all. Who puts a record here later takes it out
        again: each record is taken by one side, whichever removes it."""
        self.is_taken, self.room = True, -1
        taken: dict[int, Any] = {}
        with suppress(KeyError):  # until nothing is left
            while True:
                index, record = self.slots.popitem()
                taken[index] = record
        self.indexes = sorted(taken)
        self.records = [taken[index] for index in self.indexes]

    def find(self, index: int) -> AsyncDelivery | None:
        """A record's delivery, or None while it is queued; raises the error that it has."""
        # Read first: an error counts only for what is not buffered by then.
        error, see = self.error, self.see
        found = self.single or self.placement.find(bisect_left(self.indexes, index))
        if found is None and error is not None:
            if see is not None:
                see()
            raise error
        return found

    def columns(self) -> tuple[Sequence[Any] | None, Sequence[Any]]:
        """Its keys, if it is keyed, and its values."""
        if not self.is_keyed:
            return None, self.records
        keys, values = zip(*self.records, strict=True)
        return keys, values

    def end(
        self, error: BaseException | None = None, see: Callable[[], None] | None = None
    ) -> None:
        """In trio's thread, or once that does nothing with it any more: no record is buffered from
        now on; those that were not have this error."""
        self.see = see
        self.error, self.is_over = error, True
        if self.single is not None:  # all of them wait for its only record
            self.single.tell_later(self.told)
        tell(self.told)


class Delivery(msgspec.Struct, gc=False, eq=False):
    """A record on its way; `result()` waits for its `RecordMetadata`."""

    # A struct, because there is one of these for each record.
    _run: Run
    _index: int

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record is; raises the error that ended it, or `RequestTimedOut`."""
        run, index = self._run, self._index
        run.asked.add(index)
        found = run.find(index)
        if found is not None and found.is_done:
            return found.result()
        return self._awaited(float("inf") if timeout_s is None else timeout_s)

    def _awaited(self, timeout_s: float) -> RecordMetadata:
        run, until = self._run, time.monotonic() + timeout_s
        while True:
            # Looked at first: what has no outcome by then will have none. A producer lives on for a
            # while after the thread that closed it was interrupted.
            life = run.producer._last_life()
            has_ended = not life.is_at_work
            found = run.find(self._index)
            if found is not None and found.is_done:
                return found.result()
            if has_ended:
                life.check()
            life.check_thread()
            if (left_s := until - time.monotonic()) <= 0:
                raise RequestTimedOut(f"no outcome within {timeout_s:g} s", elapsed_s=timeout_s)
            if found is not None:
                found.wait_in_thread(min(left_s, LOOK_S))
            elif not run.is_over:
                wait_to_be_told(run.told, lambda: run.is_over, min(left_s, LOOK_S))


class RunQueue:
    """Runs in order, filled by any thread, emptied by trio's; and marks in between that somebody
    waits to be passed."""

    def __init__(self, record_max: int, memory: int) -> None:
        """`record_max`: the largest record that gathers with others, as records are counted;
        `memory`: bytes that the producer has."""
        self._run_bytes = min(RUN_KIB << 10, record_max)
        self._kib = min(QUEUE_KIB, max(memory >> 10, 1))
        self._places = Places(self._kib)
        self._items: deque[Run | trio.Event] = deque()
        self._last: dict[str, Run] = {}
        """By topic, the run that was queued last, if records may gather in it."""
        self._lock = threading.RLock()
        """Of those who begin runs: the one that is queued last is the last one. Trio's thread needs
        no lock that a thread holds while the handler of a signal makes it wait."""

    def __len__(self) -> int:
        return len(self._items)

    def join(
        self, topic: str, value: bytes, key: bytes | None, partition: int | None
    ) -> Delivery | None:
        """Put a record into the last run of its topic; None if there is none that takes it."""
        run = self._last.get(topic)
        if run is None or run.partition != partition or run.is_keyed is (key is None):
            return None
        size = RECORD_OVERHEAD + len(value) + (0 if key is None else len(key))
        while (room := run.room - size) < 0:
            if not self._grow(run):
                return None
        run.room = room
        record: Any = value if key is None else (key, value)
        index = next(run.numbers)
        run.slots[index] = record
        if run.is_taken and run.slots.pop(index, None) is not None:
            return None  # it came too late
        return Delivery(run, index)

    def _grow(self, run: Run) -> bool:
        """Places for as much again as a run has, if it is open, and not as large as one becomes."""
        has = sum(run.weights)
        more = min(has, (self._run_bytes >> 10) - has)
        if run.room < 0 or more <= 0:
            return False
        try:
            is_larger = self._places.take_now(more, run.weights)
        finally:
            if run.is_taken:  # whoever took it may have looked before
                self._places.leave(run.weights)
        if is_larger:
            run.room += more << 10
        return is_larger

    def begin(self, run: Run, check: Callable[[], None]) -> None:
        """Put a run behind all others; waits only while they are too large, and `check` may raise
        meanwhile."""
        (first,) = run.slots.values()
        parts = first if run.is_keyed else (first,)
        headers = () if run.more is None else run.more.headers
        pairs = [pair for pair in headers if isinstance(pair, tuple | list)]
        run.size = size = RECORD_OVERHEAD + sum(map(_size, [*parts, *chain.from_iterable(pairs)]))
        run.gathers = (
            run.gathers
            and run.more is None
            and all(part.__class__ is bytes for part in parts)
            and run.partition.__class__ in (int, NoneType)
            and size <= self._run_bytes
        )
        weight = min(max(1 + (size >> 10), FIRST_KIB if run.gathers else 1), self._kib)
        is_queued = False
        try:
            self._places.take(check, every_s=LOOK_S, count=weight, into=run.weights)
            with self._lock:
                self._items.append(run)
                is_queued = True
                if isinstance(run.topic, str):
                    # What comes later does not go before it.
                    self._last[run.topic] = run
        finally:
            if not is_queued:
                self._places.leave(run.weights)

    def open(self, run: Run) -> None:
        """More records may gather in a run that was begun, as trio's thread knows of it by now."""
        if run.gathers:
            run.room = min((sum(run.weights) << 10) - run.size, self._run_bytes)

    def mark(self) -> trio.Event:
        """A place behind all that was put here so far; it is set once everything before it was
        taken, and what was taken before the next `take` has its outcome."""
        passed = trio.Event()
        self._items.append(passed)
        return passed

    def take(self) -> Run | None:
        """The next run, in which nothing is put from now on; None if there is none. Sets the marks
        before it."""
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                return None
            if isinstance(item, trio.Event):
                item.set()
                continue
            item.take()
            if isinstance(item.topic, str) and self._last.get(item.topic) is item:
                self._last.pop(item.topic, None)
            self._places.leave(item.weights)
            return item


def _size(part: object) -> int:
    """Also of what is not what it should be, and will be refused."""
    return len(part) if isinstance(part, Sized) else 0
