"""The blocking producer: a `send` only queues the record, so that a loop of them is not a loop of
thread switches; a pump in trio's thread moves what is queued into the async producer."""

from __future__ import annotations

import atexit
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

import hightide.admin.admin
import hightide.consume.consumer
import hightide.produce.producer
from hightide.blocking.base import Blocking
from hightide.blocking.portal import Opened
from hightide.net.background import is_cancelled
from hightide.net.cluster import closed
from hightide.net.options import arguments, from_config, taking
from hightide.net.turns import Places
from hightide.produce.bulk import Deliveries as AsyncDeliveries
from hightide.produce.bulk import RecordRange
from hightide.produce.delivery import Delivery as AsyncDelivery
from hightide.produce.delivery import RecordMetadata, Unseen
from hightide.produce.options import ProducerOptions
from hightide.protocol.errors import RequestTimedOut

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_More = tuple[bytes | None, int | None, int | None, tuple[tuple[str, bytes | None], ...]]
"""Key, partition, timestamp and headers."""
_Queued = tuple["Delivery", str, bytes | None, _More | None]
"""A record: its topic, its value, and what else it has."""

_LOOK_S = 1.0
"""How often a thread that waits for room looks whether the producer still works."""
_QUEUED_RECORDS_MAX = 10_000
"""Records on their way from the caller's thread to trio's."""


class Delivery:
    """A record on its way; `result()` waits for its `RecordMetadata`."""

    # Of the class, because there is one of these for each record.
    _inner: AsyncDelivery | None = None
    _error: BaseException | None = None
    _see: Callable[[], None] | None = None
    _moved: trio.Event | None = None
    """For somebody who waits until it left the queue."""
    _was_asked = False

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record is; raises the error that ended it, or `RequestTimedOut`."""
        self._was_asked = True
        self._raise_error()
        if self._inner is not None and self._inner.is_done:
            return self._inner.result()
        return self._producer._run(self._wait, float("inf") if timeout_s is None else timeout_s)

    async def _wait(self, timeout_s: float) -> RecordMetadata:
        with trio.move_on_after(timeout_s):
            if self._inner is None and self._error is None:
                self._moved = trio.Event() if self._moved is None else self._moved
                await self._moved.wait()
            self._raise_error()
            assert self._inner is not None
            return await self._inner
        raise RequestTimedOut(f"no outcome within {timeout_s:g} s", elapsed_s=timeout_s)

    def _raise_error(self) -> None:
        if self._error is not None:
            if self._see is not None:
                self._see()
            raise self._error

    async def _move(self, send: Callable[[], Awaitable[AsyncDelivery]], unseen: Unseen) -> None:
        """Give the record to the async producer."""
        try:
            self._take(await send())
        except BaseException as error:  # whatever it is: it belongs to the caller
            if is_cancelled(error):
                raise
            self._see = unseen.add(error)
            self._take(None, error)

    def _take(self, inner: AsyncDelivery | None, error: BaseException | None = None) -> None:
        """The async producer has the record, or has refused it."""
        self._inner, self._error = inner, error
        if self._moved is not None:
            self._moved.set()

    @property
    def is_queued(self) -> bool:
        """Whether the async producer has not been given the record yet."""
        return self._inner is None and self._error is None

    def _give_up(self, unseen: Unseen) -> None:
        """The producer ended before this was its turn."""
        self._error = closed("producer")
        if not self._was_asked:
            self._see = unseen.add(self._error)


class ManyDeliveries:
    """Many records on their way; ask for their `result`."""

    def __init__(self, producer: Producer, inner: AsyncDeliveries) -> None:
        self._producer = producer
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def result(self) -> list[RecordRange]:
        """Wait for all; where they were stored, or the first error."""

        async def wait() -> list[RecordRange]:
            return await self._inner

        return self._producer._run(wait)


class Producer(Blocking):
    """`hightide.Producer` without an event loop; the arguments are those of `ProducerOptions`."""

    _name = "producer"

    @taking(ProducerOptions)
    def __init__(self, options: ProducerOptions) -> None:
        self._async = hightide.produce.producer.Producer(**arguments(options))
        super().__init__(self._async)
        self._queue: deque[_Queued | trio.Event] = deque()
        """Records, and places that somebody waits to be passed."""
        self._room = Places(_QUEUED_RECORDS_MAX)
        self._at_pump: list[_Queued] = []
        """The record that is on its way, and those that a pump was cancelled with."""
        self._unseen = Unseen()
        self._pumping: Opened | None = None
        """The life of the client in which a pump is at work; it ends with that at the latest."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """As `hightide.Producer.from_config`."""
        return cls(**from_config(ProducerOptions, config, more))

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> Delivery:
        """Queue a record; waits only while too many are queued. Errors come with `result()`."""
        opened = self._opened()
        opened.check()
        more = None
        if not (key is None and partition is None and timestamp is None and headers == ()):
            more = key, partition, timestamp, tuple(headers)
        self._room.take(opened.check_may_wait, every_s=_LOOK_S)
        delivery = Delivery(self)
        self._queue.append((delivery, topic, value, more))
        if self._pumping is not opened:
            opened.soon(self._see_to_pump)
        if not opened.is_at_work and delivery.is_queued:
            raise closed("producer")  # the thread that closed it may not have seen this any more
        return delivery

    def send_many(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        keys: Iterable[bytes | None] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> ManyDeliveries:
        """Buffer many records at once, behind those that were sent before. Returns when all are
        buffered."""
        send = partial(
            self._async.send_many,
            topic,
            values,
            keys=keys,
            partition=partition,
            timestamp=timestamp,
        )
        return ManyDeliveries(self, self._run(partial(self._behind, send)))

    def send_arrow(
        self,
        table: pa.Table | pa.RecordBatch,
        topic: str | None = None,
        *,
        partition: int | None = None,
    ) -> ManyDeliveries:
        """Buffer the rows of an Arrow table, behind the records that were sent before. Returns when
        all are buffered."""
        send = partial(self._async.send_arrow, table, topic, partition=partition)
        return ManyDeliveries(self, self._run(partial(self._behind, send)))

    async def _behind(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns, once everything that was sent before is buffered: what other threads
        send meanwhile does not count."""
        passed = trio.Event()
        self._queue.append(passed)
        self._see_to_pump()
        await passed.wait()
        return await work()

    def _see_to_pump(self) -> None:
        """In trio's thread: one pump is at work; two at once would mix up the order."""
        opened = self._open
        if opened is not None and self._pumping is not opened:
            self._pumping = opened
            opened.begin(partial(self._pump, opened))

    async def _pump(self, opened: Opened) -> None:
        """Move queued records into the async producer, in order."""
        try:
            while self._queue:
                item = self._queue.popleft()
                if isinstance(item, trio.Event):
                    item.set()
                    continue
                self._room.leave()
                delivery, topic, value, more = item
                inner = self._async.send_now(topic, value) if more is None else None
                if inner is not None:
                    delivery._take(inner)
                else:
                    self._at_pump.append(item)
                    await delivery._move(partial(self._sent, *item[1:]), self._unseen)
                    self._at_pump.remove(item)
        finally:
            if self._pumping is opened:
                self._pumping = None
        if self._queue:  # the thread that queued it had seen this at work
            self._see_to_pump()

    async def _sent(self, topic: str, value: bytes | None, more: _More | None) -> AsyncDelivery:
        key, partition, timestamp, headers = more or (None, None, None, ())
        return await self._async.send(
            topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers
        )

    def flush(self) -> None:
        """Wait until every record sent so far has its outcome."""
        self._run(partial(self._behind, self._async.flush))

    def __enter__(self) -> Self:
        super().__enter__()
        _open_producers.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _open_producers.discard(self)
        is_at_work = self._open is not None and self._open.is_at_work
        try:
            if is_at_work and (kind is None or issubclass(kind, (Exception, SystemExit))):
                self.flush()
        finally:
            try:
                super().__exit__(kind, error, traceback)
            finally:
                self._give_up_queued()
        if kind is None and self._unseen.error is not None:
            raise self._unseen.error

    def _give_up_queued(self) -> None:
        """Other threads went on sending while it was closed."""
        for at_pump in self._at_pump:
            at_pump[0]._give_up(self._unseen)
        self._at_pump.clear()
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, tuple):
                item[0]._give_up(self._unseen)


_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


@atexit.register
def _close_what_is_open() -> None:
    """At the end of the program: what was sent is sent, as at the end of a block."""
    for producer in [*_open_producers]:
        # A program that Ctrl-C ended wants to end now.
        kind = getattr(sys, "last_type", None)
        try:
            producer.__exit__(kind if kind is KeyboardInterrupt else None, None, None)
        except Exception as error:
            told = f"a producer that was never closed: {error}"
            warnings.warn(told, RuntimeWarning, stacklevel=1)
