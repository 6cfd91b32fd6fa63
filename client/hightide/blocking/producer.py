"""The blocking producer: a `send` only queues the record (`runs.py`), so that a loop of them is not
a loop of thread switches; a pump in trio's thread moves what is queued into the async producer."""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

import hightide.admin.admin
import hightide.consume.consumer
import hightide.produce.producer
from hightide.blocking.base import Blocking
from hightide.blocking.portal import Opened
from hightide.blocking.runs import Delivery, More, Run, RunQueue
from hightide.net.background import is_cancelled
from hightide.net.cluster import closed
from hightide.net.options import arguments, from_config, taking
from hightide.produce.bulk import Deliveries as AsyncDeliveries
from hightide.produce.bulk import RecordRange, listed
from hightide.produce.checks import NewRecord
from hightide.produce.delivery import Unseen
from hightide.produce.options import ProducerOptions
from hightide.protocol.errors import HightideError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_NO_HEADERS: tuple[tuple[str, bytes | None], ...] = ()
RUNS_AT_ONCE = 256
"""So many runs are moved before other tasks of trio's thread have their turn: those that are a
record alone wait for nothing, and a thread that goes on sending would keep it for 0.1 s."""


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
        self._memory = options.buffer_memory
        self._begin_empty()
        self._pumping: Opened | None = None
        """The life of the client in which a pump is at work; it ends with that at the latest."""

    def _begin_empty(self) -> None:
        """Nothing is queued. In a forked child: what the parent had is the parent's."""
        self._queue = RunQueue(self._async.run_record_max, self._memory)
        self._at_pump: list[Run] = []
        """What is on its way, and what a pump was cancelled with."""
        self._unseen = Unseen()
        self._in_vain: dict[str, tuple[float, HightideError]] = {}
        """Topics that were waited for, until when, and why they are not known."""

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
        headers: Iterable[tuple[str, bytes | None]] = _NO_HEADERS,
    ) -> Delivery:
        """Queue a record; waits only while too many are queued. Errors come with `result()`."""
        more = None
        if timestamp is None and headers is _NO_HEADERS:
            if (
                value.__class__ is bytes
                and (key is None or key.__class__ is bytes)
                and topic.__class__ is str
                and (delivery := self._queue.join(topic, value, key, partition)) is not None
            ):
                return delivery
        else:
            more = More(timestamp, tuple(headers))
        return self._begin(Run(self, topic, value, key, partition, more))

    def _begin(self, run: Run) -> Delivery:
        opened = self._opened()
        opened.check()

        def check() -> None:
            opened.check_may_wait()
            if self._pumping is not opened:  # who queued the last run was interrupted
                opened.soon(self._see_to_pump)

        self._queue.begin(run, check)
        if self._pumping is not opened:
            opened.soon(self._see_to_pump)
        self._queue.open(run)
        if not opened.is_at_work and not run.is_over and self._open in (opened, None):
            # The thread that closed it may not have seen this any more.
            self._give_up_queued()
            opened.check()
        return Delivery(run, 0)

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
        # What is iterated may wait, and for others' clients, too: not in trio's thread.
        send = partial(
            self._async.send_many,
            topic,
            listed(values),
            keys=None if keys is None else listed(keys),
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
        passed = self._queue.mark()
        self._see_to_pump()
        await passed.wait()
        return await work()

    def _see_to_pump(self) -> None:
        """In trio's thread: move what is queued, here as far as nothing is to be waited for; the
        rest by one pump: two at once would mix up the order."""
        opened = self._open
        if opened is None or self._pumping is opened or not opened.is_at_work:
            return
        moved = 0
        while (run := self._queue.take()) is not None:
            if moved == RUNS_AT_ONCE or not self._move_now(run):
                self._at_pump.append(run)
                self._pumping = opened
                opened.begin(partial(self._pump, opened, run))
                return
            moved += 1

    async def _pump(self, opened: Opened, first: Run) -> None:
        """Move what is queued into the async producer, in order."""
        run: Run | None = first
        moved = 0
        try:
            while run is not None:
                await self._move(run)
                with suppress(ValueError):  # given up by who sent it to an earlier life
                    self._at_pump.remove(run)
                moved += 1
                if moved % RUNS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                if (run := self._queue.take()) is not None:
                    self._at_pump.append(run)
        finally:
            if self._pumping is opened:
                self._pumping = None
        if self._queue:  # the thread that queued it had seen this at work
            self._see_to_pump()

    def _move_now(self, run: Run) -> bool:
        """Buffer a record that is alone; False if it is not, or has to wait."""
        if len(run.records) > 1:
            return False
        try:
            run.single = self._async.send_at_once(_only_record(run))
        except BaseException as error:  # whatever it is: it belongs to the caller
            run.end(error, self._unseen.add(error))
            return True
        if run.single is not None:
            run.end()
        return run.single is not None

    async def _move(self, run: Run) -> None:
        """Buffer a run, and say what became of it."""
        topic = run.topic if isinstance(run.topic, str) else ""
        until, why = self._in_vain.get(topic, (0.0, None))
        if why is not None and run.begun_at < until:  # it has waited for that long, too
            run.end(why, self._unseen.add(why))
            return
        try:
            if len(run.records) > 1:
                keys, values = run.columns()
                await self._async.send_run(run.topic, run.partition, keys, values, run.placement)
            else:
                run.single = await self._async.send(**_only_record(run)._asdict())
        except BaseException as error:  # whatever it is: it belongs to the caller
            if is_cancelled(error):
                raise
            if isinstance(error, HightideError) and topic and not self._async.knows(topic):
                self._in_vain[topic] = time.monotonic(), error
            run.end(error, self._unseen.add(error))
        else:
            run.end()

    def metrics(self) -> dict[str, float]:
        """Numbers about this producer, by Kafka's names."""
        return self._run_sync(self._async.metrics)

    def flush(self) -> None:
        """Wait until every record sent so far has its outcome."""
        self._run(partial(self._behind, self._async.flush))

    def __enter__(self) -> Self:
        super().__enter__()
        self._unseen = Unseen()
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
        left = [*self._at_pump, *iter(self._queue.take, None)]
        self._at_pump.clear()
        for run in left:
            error = closed("producer")
            is_expected = len(run.asked) == len(run.records)
            run.end(error, None if is_expected else self._unseen.add(error))


def _only_record(run: Run) -> NewRecord:
    """The one of a run that has no other."""
    keys, (value,) = run.columns()
    key = None if keys is None else keys[0]
    return NewRecord(run.topic, value, key, run.partition, *(run.more or More(None, ())))


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


def _open_in_child() -> None:
    for producer in [*_open_producers]:
        producer._begin_empty()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_in_child)
