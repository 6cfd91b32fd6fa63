"""What became of a record that was sent: `Delivery`, to be awaited or asked."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import trio

from hightide.batch import Batch
from hightide.errors import UsageError


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
        if batch.error is not None:
            batch.error_was_seen = True
            raise batch.error
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        stamped = batch.log_append_time
        timestamp = stamped if stamped >= 0 else batch.timestamp(index)
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp)

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._wait().__await__()

    async def _wait(self) -> RecordMetadata:
        while True:
            batch, _ = self._place()
            if batch.is_done:
                await trio.lowlevel.checkpoint()
                return self.result()
            await wait_done(batch)

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
