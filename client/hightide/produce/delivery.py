"""What became of a record that was sent: `Delivery`, to be awaited or asked; and the errors that
nobody has looked at."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import trio

from hightide.net.told import Told, pass_on, tell, wait_to_be_told
from hightide.protocol.batch_builder import Batch
from hightide.protocol.errors import UsageError

ERRORS_KEPT = 100


class Unseen:
    """Errors that somebody has yet to look at: some of them, and whether there are any."""

    def __init__(self) -> None:
        self._kept: dict[int, BaseException] = {}
        self._others: set[int] = set()
        self._last: BaseException | None = None
        self._count = 0

    def add(self, error: BaseException) -> Callable[[], None]:
        """One more; to be called when it was seen, which may be often."""
        self._count += 1
        number = self._count
        if len(self._kept) < ERRORS_KEPT:
            self._kept[number] = error
        else:
            self._others.add(number)
            self._last = error

        def see() -> None:
            self._kept.pop(number, None)
            self._others.discard(number)

        return see

    def keep(self, batch: Batch) -> None:
        """The error of a batch, if it has one, unless a thread was quick enough to see it."""
        if batch.error is not None and batch.seen is None:
            batch.seen = self.add(batch.error)
            if batch.is_seen:
                batch.seen()

    @property
    def error(self) -> BaseException | None:
        """The first one that nobody saw; if those that are kept were all seen, the last one that
        there was no place for; None: all were seen."""
        return next(iter(self._kept.values()), self._last if self._others else None)


class RecordMetadata(NamedTuple):
    """Where a record was stored. With acks=0 the offset is -1: nobody told."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """ms since 1970: the producer's, or the broker's with LogAppendTime."""


class Delivery:
    """A record on its way: await it for its `RecordMetadata`, or for the error that ended it."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._place()[0].is_done

    def result(self) -> RecordMetadata:
        """The outcome, which must be known; raises the error that ended the record."""
        batch, index = self._place()
        if not batch.is_done:
            raise UsageError("the outcome of this record is not known yet: await the delivery")
        batch.raise_error()
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        stamped = batch.log_append_time
        timestamp = stamped if stamped >= 0 else batch.timestamp(index)
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp)

    def wait_in_thread(self, timeout_s: float) -> None:
        """In another thread than trio's: until the outcome is known, or its batch was split, or so
        much time has passed."""
        batch, _ = self._place()
        wait_to_be_told(batch.told, lambda: batch.is_done or bool(batch.parts), timeout_s)

    def tell_later(self, told: Told) -> None:
        """In trio's thread: these are told of the outcome, if that is not known yet."""
        batch, _ = self._place()
        if not batch.is_done:
            pass_on(told, batch.told)

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._wait().__await__()

    async def _wait(self) -> RecordMetadata:
        batch, _ = self._place()
        if batch.is_done:
            await trio.lowlevel.checkpoint()
        while not batch.is_done:
            await wait_done(batch)
            batch, _ = self._place()
        return self.result()

    def _place(self) -> tuple[Batch, int]:
        """The batch that holds the record now; batches that were too large have been split."""
        batch, index = self._batch, self._index
        while batch.parts:
            first, second = batch.parts
            batch, index = (first, index) if index < len(first) else (second, index - len(first))
        return batch, index


async def wait_done(batch: Batch) -> None:
    """Until the batch has an outcome, or was split."""
    if batch.waiter is None:
        batch.waiter = trio.Event()
    assert isinstance(batch.waiter, trio.Event)
    await batch.waiter.wait()


def tell_of(batch: Batch) -> None:
    """Wake those who wait for it: it has an outcome, or was split."""
    if isinstance(batch.waiter, trio.Event):
        batch.waiter.set()
    tell(batch.told)
