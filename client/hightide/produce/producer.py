"""The producer: `send` buffers a record, `sender.py` delivers it, a `Delivery` tells how.

What this room is: options, choosing a partition, waiting for memory, and not leaving before every
record has its outcome.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio

from hightide.net.background import ki_protected, open_background, start
from hightide.net.cluster import Cluster, closed, open_cluster
from hightide.net.options import from_config, taking
from hightide.net.ports import SystemClock
from hightide.net.turns import Turns
from hightide.net.warned import Warned
from hightide.produce.bulk import (
    Cutter,
    Deliveries,
    Part,
    Placement,
    by_partition,
    checked_items,
)
from hightide.produce.checks import (
    NewRecord,
    checked_partition,
    checked_timestamp,
    too_large,
)
from hightide.produce.delivery import Delivery, wait_done
from hightide.produce.joining import Joining
from hightide.produce.options import ProducerOptions, accumulator_of
from hightide.produce.partitioner import StickyPartitioner, partition_for_key, partitions_for_keys
from hightide.produce.sender import Sender
from hightide.protocol.batch_builder import Batch
from hightide.protocol.errors import (
    RequestTimedOut,
    UsageError,
)
from hightide.protocol.words import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from hightide.arrow.from_arrow import Rows


class Producer:
    """Sends records; the arguments are those of `ProducerOptions`, each explained there.

    Use it as `async with Producer(…) as producer`: leaving the block sends what is buffered and
    waits for every acknowledgement; the first error that nobody awaited is raised there.

    Raises `UsageError` for options that cannot be, or cannot work together.
    """

    @taking(ProducerOptions)
    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self._record_max = options.record_max
        self._accumulator, self._pid = accumulator_of(options), os.getpid()
        self._max_block_s = options.max_block_ms / 1000
        self._partitioner = options.partitioner
        self._clock = options.clock or SystemClock()
        self._turns = Turns()  # of those who wait for memory
        self._sticky: dict[str, StickyPartitioner] = {}
        self._cluster: Cluster | None = None
        self._sender: Sender | None = None
        self._stack = AsyncExitStack()
        self._owes_checkpoint = False
        self._joining = Joining({})

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """A producer by Kafka's dotted names, as in `{"bootstrap.servers": "…", "linger.ms": 20}`;
        values may be text. `more` are options by keyword. Raises `UsageError`."""
        return cls(**from_config(ProducerOptions, config, more))

    # -- life ------------------------------------------------------------------------------------

    @ki_protected
    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._running())
        return self

    @ki_protected
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sender = self._sender
        try:
            if kind is None or issubclass(kind, (Exception, SystemExit)):
                await self.flush()
        finally:
            # Also when this is cancelled: nobody may wait for a record for ever.
            try:
                await self._stack.aclose()
            finally:
                if sender is not None:
                    sender.abandon_all(closed("producer"))
                self._cluster = self._sender = None
        if kind is None and sender is not None and sender.unseen.error is not None:
            raise sender.unseen.error

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        options = self._options
        if self._pid != os.getpid():  # its parent's records would be taken for the same
            self._accumulator, self._pid = accumulator_of(options), os.getpid()
        # Somebody's own callback is called in the background alone: what it raises ends this.
        log = options.on_retry if isinstance(options.on_retry, Warned) else None
        async with open_cluster(options, on_retry=log) as cluster, open_background() as nursery:
            self._cluster = cluster
            self._sender = Sender(
                self._accumulator,
                cluster,
                nursery,
                acks=options.required_acks,
                idempotent=options.is_idempotent,
                max_request_size=options.max_request_size,
                delivery_timeout_s=options.delivery_timeout_s,
                request_timeout_s=options.request_timeout_ms / 1000,
                backoff_s=options.retry_backoff_ms / 1000,
                on_retry=options.on_retry,
            )
            self._joining = Joining(self._sender.partition_counts)
            start(nursery, self._sender.keep_house)
            try:
                yield
            finally:
                self._sender.end()

    # -- sending ---------------------------------------------------------------------------------

    @ki_protected
    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> Delivery:
        """Buffer a record; returns when it is buffered, which waits only while memory is full.

        `timestamp` is ms since 1970, by default now. Await the delivery for the offset. Raises
        `ApiError` if the topic does not exist, `RecordTooLarge`, `UsageError`, or `RequestTimedOut`
        after max_block_ms without metadata or memory.
        """
        # Nearly every record of a loop joins the batch of one before it.
        if (
            partition is None
            and timestamp is None
            and headers == ()
            and topic.__class__ is str
            and (batch := self._joining.find(topic, key)) is not None
            and value.__class__ is bytes
            and not self._owes_checkpoint
            and (index := self._accumulator.join(batch, key, value, self._clock.now_ms()))
        ):
            return Delivery(batch, index)
        return await self._send(NewRecord(topic, value, key, partition, timestamp, tuple(headers)))

    async def _send(self, record: NewRecord) -> Delivery:
        sender = self._opened()
        if self._owes_checkpoint:
            # Once a batch, and before the record is buffered: a cancelled send has sent nothing.
            self._owes_checkpoint = False
            await trio.lowlevel.checkpoint()
        await self._partition_count(sender, record.topic)
        size = self._checked_size(record)
        if not self._accumulator.has_room(size):
            await self._wait_for_room(sender, size)
        return self._buffer(sender, record, size)

    @ki_protected
    def send_at_once(self, record: NewRecord) -> Delivery | None:
        """As `send`, if nothing has to be waited for; else None, and nothing is buffered."""
        sender, is_name = self._opened(), record.topic.__class__ is str
        if self._owes_checkpoint or not (is_name and self.knows(record.topic)):
            return None
        size = self._checked_size(record)
        return self._buffer(sender, record, size) if self._accumulator.has_room(size) else None

    def knows(self, topic: str) -> bool:
        """Whether it is known how many partitions a topic has."""
        return self._sender is not None and topic in self._sender.partition_counts

    def _checked_size(self, record: NewRecord) -> int:
        if (size := record.checked_size()) > self._record_max:
            raise too_large(size, self._options)
        return size

    def _buffer(self, sender: Sender, record: NewRecord, size: int) -> Delivery:
        """Put a record into a batch, and send that if nothing is to be waited for."""
        topic, value, key, partition, timestamp, headers = record
        count = sender.partition_counts[topic]
        may_join = partition is None and self._partitioner is None
        if partition is None and self._partitioner is not None:
            partition = self._partitioner(topic, key, value, count)
        if partition is None:
            partition = (
                self._sticky_partition(topic, size, count)
                if key is None
                else partition_for_key(key, count)
            )
        else:
            partition = checked_partition(topic, partition, count)
        timestamp = self._clock.now_ms() if timestamp is None else checked_timestamp(timestamp)
        if self._sender is not sender:
            raise closed("producer")  # its block has ended meanwhile
        batch, news = self._accumulator.append(
            topic, partition, key, value, timestamp, headers, size, trio.current_time()
        )
        if may_join:
            queue = self._accumulator.queue_of(batch)
            self._joining.keep(queue, has_key=key is not None)
        if news:
            if not (is_sent := sender.send_now(batch)):
                sender.tell(batch)
            # Who waits for each record gives others their turn by that.
            self._owes_checkpoint = not is_sent or sender.in_flight > 1
        return Delivery(batch, len(batch.values) - 1)

    @ki_protected
    async def send_many(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        keys: Iterable[bytes | None] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Deliveries:
        """Buffer many records at once, in order; as `send` for each, but much faster without keys.

        Returns when all are buffered. When it raises or is cancelled, the first ones may have been.
        """
        partition = await self._wanted_partition(topic, partition)
        values = checked_items("values", values)
        keys = None if keys is None else checked_items("keys", keys)
        if keys is not None and len(keys) != len(values):
            raise UsageError(f"{len(keys)} keys for {counted(len(values), 'value')}")
        timestamp = self._clock.now_ms() if timestamp is None else checked_timestamp(timestamp)
        placement = Placement()
        await self._fill_places(placement, topic, partition, keys, values, timestamp)
        return Deliveries(placement.parts())

    async def send_run(
        self,
        topic: str,
        partition: int | None,
        keys: Sequence[bytes] | None,
        values: Sequence[bytes],
        placement: Placement,
    ) -> None:
        """As `send` for each of these, none of which takes more than `run_record_max`; `placement`
        gets what was buffered, also where this ends with an error."""
        partition = await self._wanted_partition(topic, partition)
        timestamp = self._clock.now_ms()
        await self._fill_places(placement, topic, partition, keys, values, timestamp)

    async def _fill_places(
        self,
        placement: Placement,
        topic: str,
        partition: int | None,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        timestamp: int,
    ) -> None:
        """Records to the partition that is named, or those that their keys, or the user's
        partitioner, want."""
        if partition is not None or (keys is None and self._partitioner is None):
            parts = placement.group(range(len(values)))
            await self._fill_values(parts, topic, partition, keys, values, timestamp)
            return
        places = self._places(topic, keys, values, self._opened().partition_counts[topic])
        for number, indexes in by_partition(places).items():
            own_keys = None if keys is None else [keys[index] for index in indexes]
            own_values = [values[index] for index in indexes]
            parts = placement.group(indexes)
            await self._fill_values(parts, topic, number, own_keys, own_values, timestamp)

    @property
    def run_record_max(self) -> int:
        """How large a record of a run may be, as records are counted; 0 where a partitioner of the
        user's wants to see each."""
        return self._record_max if self._partitioner is None else 0

    def _places(
        self,
        topic: str,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        count: int,
    ) -> list[int | None]:
        """The partition of each record; None: any."""
        own = self._partitioner
        if own is None:
            return partitions_for_keys(keys or (), count)
        places: list[int | None] = []
        for key, value in zip(keys or repeat(None, len(values)), values, strict=True):
            places.append(checked_partition(topic, own(topic, key, value, count), count))
        return places

    async def _fill_values(
        self,
        parts: list[Part],
        topic: str,
        partition: int | None,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        timestamp: int,
    ) -> None:
        def put(place: int, start: int, end: int, size: int) -> tuple[Batch, bool]:
            own_keys = None if keys is None else keys[start:end]
            now = trio.current_time()
            return self._accumulator.extend(
                topic, place, own_keys, values[start:end], timestamp, size, now
            )

        await self._fill(parts, topic, partition, Cutter.of(values, keys), put)

    async def _fill(
        self,
        parts: list[Part],
        topic: str,
        partition: int | None,
        cutter: Cutter,
        put: Callable[[int, int, int, int], tuple[Batch, bool]],
        *,
        whole: bool = False,
    ) -> None:
        """Records into batches of a partition, or of one after the other if it is None. `put` takes
        a partition, from, to and bytes, and says which batch took them, and whether that is news to
        the sender; `whole`: each time a batch of its own."""
        if cutter.largest > self._record_max:
            raise too_large(cutter.largest, self._options)
        accumulator = self._accumulator
        while not cutter.is_done:
            sender = self._opened()
            if not accumulator.has_room(cutter.next_size):
                await self._wait_for_room(sender, cutter.next_size)
            place = partition
            if place is None:
                needed = accumulator.batch_size(topic) if whole else cutter.next_size
                count = sender.partition_counts[topic]
                place = self._sticky_partition(topic, needed, count)
            room = accumulator.batch_size(topic) if whole else accumulator.room(topic, place)
            start, end, size = cutter.take(min(room, accumulator.free_bytes))
            batch, news = put(place, start, end, size)
            parts.append((batch, len(batch) - (end - start), end - start))
            if news:
                sender.tell(batch)
                await trio.lowlevel.checkpoint()

    @ki_protected
    async def send_arrow(
        self,
        table: pa.Table | pa.RecordBatch,
        topic: str | None = None,
        *,
        partition: int | None = None,
    ) -> Deliveries:
        """Buffer the rows of an Arrow table with the columns of Spark's Kafka sink: `value`, and if
        wanted `key`, `headers`, `timestamp`, `partition`, and `topic` if none is given here. Rows
        of a partition keep their order; no Python per row. Needs pyarrow; otherwise as `send_many`.
        """
        from hightide.arrow import from_arrow as a

        parts: list[Part] = []
        for chunk in a.chunks(table):
            if topic is None and "topic" not in chunk.schema.names:
                raise UsageError("no topic: give one, or a column of that name")
            several = a.topics_of(chunk) if topic is None else {topic: None}
            for name, indexes in several.items():
                own = chunk if indexes is None else a.rows_at(chunk, indexes)
                await self._fill_rows(parts, name, own, partition)
        return Deliveries(parts)

    async def _fill_rows(
        self, parts: list[Part], topic: str, chunk: pa.RecordBatch, partition: int | None
    ) -> None:
        from hightide.arrow import from_arrow as a

        partition = await self._wanted_partition(topic, partition)
        count = self._opened().partition_counts[topic]
        rows = a.rows_of(chunk, self._clock.now_ms())
        if partition is not None:
            await self._add_rows(parts, topic, partition, rows)
            return
        choose = None if self._partitioner is None else partial(self._partitioner, topic)
        for place, indexes in a.by_place(a.places_of(chunk, rows, count, choose)):
            own = rows if indexes is None else rows.take(indexes)
            await self._add_rows(parts, topic, None if place < 0 else place, own)

    async def _add_rows(
        self, parts: list[Part], topic: str, partition: int | None, rows: Rows
    ) -> None:
        from hightide.arrow.from_arrow import ArrowBatch

        def put(place: int, start: int, end: int, size: int) -> tuple[Batch, bool]:
            own, now = rows.slice(start, end), trio.current_time()
            make = partial(ArrowBatch, topic, place, now, rows=own)
            return self._accumulator.add(topic, place, make, size), True

        await self._fill(parts, topic, partition, Cutter(rows.sizes()), put, whole=True)

    def _opened(self) -> Sender:
        if self._sender is None:
            raise closed("producer")
        return self._sender

    async def _wanted_partition(self, topic: str, partition: int | None) -> int | None:
        """The partition that a caller named; raises if the topic has no such one."""
        sender = self._opened()
        count = await self._partition_count(sender, topic)
        return None if partition is None else checked_partition(topic, partition, count)

    def _sticky_partition(self, topic: str, size: int, count: int) -> int:
        """Stay while the open batch has room for the record, then move on."""
        sticky = self._sticky[topic]
        if self._accumulator.has_room_in_batch(topic, sticky.partition, size):
            return sticky.partition
        assert self._cluster is not None
        return sticky.switch(self._cluster.metadata.available(topic) or range(count))

    async def _partition_count(self, sender: Sender, topic: str) -> int:
        if not isinstance(topic, str):
            raise UsageError(f"topic is {topic!r}, expected its name")
        if count := sender.partition_counts.get(topic):
            return count
        assert self._cluster is not None
        found = await self._cluster.topic(topic, timeout_s=self._max_block_s, auto_create=True)
        self._sticky.setdefault(topic, StickyPartitioner(self._cluster.random))
        sender.partition_counts[topic] = len(found.partitions)
        return len(found.partitions)

    async def _wait_for_room(self, sender: Sender, size: int) -> None:
        """First come, first served: a large record is not overtaken for ever by small ones."""
        accumulator, place = self._accumulator, self._turns.take()
        started = trio.current_time()
        accumulator.waiting_for_memory += 1
        sender.wake()
        try:
            with trio.move_on_after(self._max_block_s):
                async with self._turns.turn(place):
                    while accumulator.free_bytes < size and self._sender is sender:
                        await sender.room.wait()
                    if self._sender is not sender:
                        raise closed("producer")
                    return
        finally:
            accumulator.waiting_for_memory -= 1
        raise RequestTimedOut(
            f"no room for {counted(size, 'byte')} in buffer_memory={self._options.buffer_memory} "
            f"within max_block_ms={self._max_block_s * 1000:.0f}",
            elapsed_s=trio.current_time() - started,
            knob="buffer_memory, max_block_ms",
        )

    async def flush(self) -> None:
        """Send everything that is buffered now and wait until each record has its outcome."""
        sender = self._opened()
        self._accumulator.flushing += 1
        sender.wake()
        try:
            waiting = self._accumulator.unfinished()
            while waiting:
                batch = waiting.pop()
                if not batch.is_done:
                    await wait_done(batch)
                waiting += batch.parts  # which may have been split themselves
        finally:
            self._accumulator.flushing -= 1
        await trio.lowlevel.checkpoint()

    def metrics(self) -> dict[str, float]:
        """Numbers about this producer, by Kafka's names; what ends in `_total` rises."""
        return self._opened().metrics()
