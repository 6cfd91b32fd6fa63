"""The same three classes for code that has no event loop: scripts, notebooks, tests.

One daemon thread runs trio for all blocking clients of a process; calls from other threads wait for
it. Names, options and errors are those of the async classes. A `Producer.send` only queues the
record, so that a loop of them is not a loop of thread switches.
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import trio

import hightide.admin.admin
import hightide.consume.consumer
import hightide.produce.producer
from hightide.admin.group_admin import GroupLag, GroupMove
from hightide.blocking.base import Blocking
from hightide.blocking.portal import Opened
from hightide.consume.health import Health
from hightide.consume.rebalance import Listener, Offsets
from hightide.consume.subscription import OffsetAndMetadata, TopicPartition
from hightide.net.background import is_cancelled
from hightide.net.cluster import closed
from hightide.net.turns import Places
from hightide.produce.bulk import Deliveries as AsyncDeliveries
from hightide.produce.bulk import RecordRange
from hightide.produce.delivery import Delivery as AsyncDelivery
from hightide.produce.delivery import RecordMetadata, Unseen
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.columns import Record
from hightide.protocol.errors import HightideError, RequestTimedOut

T = TypeVar("T")
_Queued = tuple["Delivery", Callable[[], Awaitable[AsyncDelivery]]]

__all__ = ["Admin", "Consumer", "Delivery", "Producer"]

_LOOK_S = 1.0
"""How often a thread that waits for room looks whether the producer still works."""
_QUEUED_RECORDS_MAX = 10_000
"""Records on their way from the caller's thread to trio's."""


class Delivery:
    """A record on its way; `result()` waits for its `RecordMetadata`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._inner: AsyncDelivery | None = None
        self._error: BaseException | None = None
        self._see: Callable[[], None] | None = None
        self._moved: trio.Event | None = None
        """For somebody who waits until it left the queue."""
        self._was_asked = False

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
            self._inner = await send()
        except BaseException as error:  # whatever it is: it belongs to the caller
            if is_cancelled(error):
                raise
            self._error, self._see = error, unseen.add(error)
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
    """`hightide.Producer` without an event loop; the same options."""

    _name = "producer"

    def __init__(self, *args: Any, **options: Any) -> None:
        self._async = hightide.produce.producer.Producer(*args, **options)
        super().__init__(self._async)
        self._queue: deque[_Queued | trio.Event] = deque()
        """Records, and places that somebody waits to be passed."""
        self._room = Places(_QUEUED_RECORDS_MAX)
        self._at_pump: list[_Queued] = []
        """The record that is on its way, and those that a pump was cancelled with."""
        self._unseen = Unseen()
        self._pumping: Opened | None = None
        """The life of the client in which a pump is at work; it ends with that at the latest."""

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
        listed = tuple(headers)
        self._room.take(opened.check_may_wait, every_s=_LOOK_S)
        delivery = Delivery(self)
        send = partial(
            self._async.send,
            topic,
            value,
            key=key,
            partition=partition,
            timestamp=timestamp,
            headers=listed,
        )
        self._queue.append((delivery, send))
        if self._pumping is not opened:
            opened.soon(self._see_to_pump)
        if not opened.is_at_work and delivery.is_queued:
            raise closed("producer")  # whoever closed it may not have seen this any more
        return delivery

    def send_many(
        self, topic: str, values: Iterable[bytes | None], **options: Any
    ) -> ManyDeliveries:
        """Buffer many records at once, behind those that were sent before; the options of
        `hightide.Producer.send_many`. Returns when all are buffered."""
        send = partial(self._async.send_many, topic, values, **options)
        return ManyDeliveries(self, self._run(partial(self._behind, send)))

    def send_arrow(self, table: Any, topic: str | None = None, **options: Any) -> ManyDeliveries:
        """Buffer the rows of an Arrow table, behind the records that were sent before; the options
        of `hightide.Producer.send_arrow`. Returns when all are buffered."""
        send = partial(self._async.send_arrow, table, topic, **options)
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
                else:
                    self._at_pump.append(item)
                    self._room.leave()
                    await item[0]._move(item[1], self._unseen)
                    self._at_pump.remove(item)
        finally:
            if self._pumping is opened:
                self._pumping = None
        if self._queue:  # whoever queued it had seen this at work
            self._see_to_pump()

    def flush(self) -> None:
        """Wait until every record sent so far has its outcome."""
        self._run(partial(self._behind, self._async.flush))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_at_work = self._open is not None and self._open.is_at_work
        try:
            if is_at_work and (kind is None or issubclass(kind, Exception)):
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
        for delivery, _ in self._at_pump:
            delivery._give_up(self._unseen)
        self._at_pump.clear()
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, tuple):
                item[0]._give_up(self._unseen)


class Consumer(Blocking):
    """`hightide.Consumer` without an event loop; the same options."""

    _name = "consumer"

    def __init__(self, *args: Any, **options: Any) -> None:
        """`on_assigned`, `on_revoked` and `on_lost` are called in a thread that waits for this
        consumer, and may call it."""
        for name in LISTENERS & options.keys():
            if options[name] is not None:
                options[name] = partial(_tell, weakref.ref(self), options[name])
        self._async = hightide.consume.consumer.Consumer(*args, **options)
        super().__init__(self._async)

    def poll(self, *, timeout_ms: float = 0, max_records: int | None = None) -> list[Record]:
        """Up to `max_poll_records` records of one partition; empty if none came in time."""
        lend = partial(self._async.lend, timeout_ms=timeout_ms, max_records=max_records)
        return self._run(lend).take_all()

    def poll_arrow(self, *, timeout_ms: float = 0) -> Any:
        """Fetched records of one partition as a `pyarrow.RecordBatch`; None if none came."""
        lent = self._run(partial(self._async.lend_arrow, timeout_ms=timeout_ms))
        if lent is None:
            return None
        rows = lent.take_all()
        self._opened().soon(self._async.settle)  # so that more is fetched meanwhile
        return rows

    def __iter__(self) -> Iterator[Record]:
        """Each record counts as handed out when the loop gets it, and not before: a loop may end in
        the middle, and commit where it is."""
        while True:
            yield from self._run(partial(self._async.lend, timeout_ms=1000))

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions from here on."""
        self._run(self._async.assign, list(partitions))

    def commit(self, offsets: Offsets | None = None) -> None:
        """Keep for the group where it goes on; None: behind everything that was handed out."""
        self._run(self._async.commit, offsets)

    def commit_async(
        self,
        offsets: Offsets | None = None,
        then: Callable[[HightideError | None], None] | None = None,
    ) -> None:
        """As `commit`, in the background; `then` is told of the outcome, in trio's thread."""
        self._run_sync(self._async.commit_async, offsets, then)

    def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of these partitions, or of those that are read."""
        return self._run(self._async.committed, partitions)

    def health(self) -> Health:
        """What this consumer waits for, and since when."""
        return self._run_sync(self._async.health)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        self._opened().check()
        return self._async.assignment()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on reading a partition at `offset`."""
        self._run_sync(self._async.seek, topic, partition, offset)

    def seek_to_time(self, timestamp: int) -> None:
        """Go on at the first record of each partition with a timestamp ≥ `timestamp` (ms)."""
        self._run(self._async.seek_to_time, timestamp)

    def offsets(self, timestamp: int) -> Mapping[TopicPartition, int]:
        """For each partition the offset at a time in ms, or `EARLIEST`, `LATEST`."""
        return self._run(self._async.offsets, timestamp)

    def position(self, topic: str, partition: int) -> int | None:
        """The offset of the next record of a partition."""
        return self._run_sync(self._async.position, topic, partition)

    def lag(self, topic: str, partition: int) -> int | None:
        """How many committed records lie before this consumer."""
        return self._run_sync(self._async.lag, topic, partition)

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """The log start and the high watermark of a partition as the last fetch told them."""
        self._opened().check()
        return self._async.watermarks(topic, partition)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no records of these partitions until `resume`."""
        self._run_sync(self._async.pause, *partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Take back a `pause`."""
        self._run_sync(self._async.resume, *partitions)


LISTENERS = {"on_assigned", "on_revoked", "on_lost"}


async def _tell(
    consumer: weakref.ref[Consumer], listener: Listener, partitions: list[TopicPartition]
) -> None:
    """Call a listener in a thread of its caller's."""
    blocking = consumer()
    opened = None if blocking is None else blocking._open
    del blocking
    if opened is not None:
        outcome = await opened.in_callers_thread(listener, partitions)
        if inspect.isawaitable(outcome):
            await outcome


class Admin(Blocking):
    """`hightide.Admin` without an event loop; the same methods."""

    _name = "admin client"

    def __init__(self, *args: Any, **options: Any) -> None:
        self._async = hightide.admin.admin.Admin(*args, **options)
        super().__init__(self._async)

    def create_topic(self, topic: str, **options: Any) -> m.TopicResult:
        """Create a topic; it can be used when this returns."""
        return self._run(partial(self._async.create_topic, topic, **options))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its records."""
        self._run(self._async.delete_topic, topic)

    def create_partitions(self, topic: str, count: int) -> None:
        """Give a topic `count` partitions in all."""
        self._run(self._async.create_partitions, topic, count)

    def list_topics(self) -> list[m.TopicMetadata]:
        """Every topic with its partitions."""
        return self._run(self._async.list_topics)

    def describe_topic(self, topic: str) -> m.TopicMetadata:
        """One topic with its partitions."""
        return self._run(self._async.describe_topic, topic)

    def delete_records(self, offsets: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Move log starts up (-1 = the high watermark); the log starts then."""
        return self._run(self._async.delete_records, offsets)

    def offsets(
        self, partitions: Iterable[tuple[str, int]], timestamp: int
    ) -> dict[tuple[str, int], m.ListOffsetsResult]:
        """The offset of each partition at a time in ms, `EARLIEST`, `LATEST` or `MAX_TIMESTAMP`."""
        return self._run(self._async.offsets, list(partitions), timestamp)

    def describe_configs(self, kind: str, name: str) -> list[m.ConfigEntry]:
        """Every key of a `topic` or a `broker` (by id) with its value."""
        return self._run(self._async.describe_configs, kind, name)

    def alter_topic_configs(
        self, topic: str, *, set_: Mapping[str, str] | None = None, unset: Sequence[str] = ()
    ) -> None:
        """Set keys of a topic, or take them back to their defaults."""
        self._run(partial(self._async.alter_topic_configs, topic, set_=set_, unset=unset))

    def alter_cluster_configs(
        self, *, set_: Mapping[str, str] | None = None, unset: Sequence[str] = ()
    ) -> None:
        """Set what holds for all topics that do not say themselves."""
        self._run(partial(self._async.alter_cluster_configs, set_=set_, unset=unset))

    def describe_cluster(self) -> m.DescribeClusterResponse:
        """The brokers, fenced ones too, and the active controller."""
        return self._run(self._async.describe_cluster)

    def describe_log_dirs(
        self, topics: Sequence[str] | None = None
    ) -> list[m.DescribeLogDirsResponse]:
        """Each broker's replicas with offsets and sizes."""
        return self._run(self._async.describe_log_dirs, topics)

    def describe_quorum(self) -> q.DescribeQuorumResponse:
        """Who leads the metadata quorum, and how far everybody has followed."""
        return self._run(self._async.describe_quorum)

    def add_voter(self, node: int, host: str, port: int, *, directory: str = "") -> str:
        """Admit a node that observes the metadata quorum as a voter; its directory's id."""
        return self._run(partial(self._async.add_voter, node, host, port, directory=directory))

    def remove_voter(self, node: int, *, directory: str = "") -> str:
        """Let a voter of the metadata quorum vote no more; its directory's id."""
        return self._run(partial(self._async.remove_voter, node, directory=directory))

    def elect_leaders(
        self, partitions: Sequence[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> list[m.ElectLeadersResult]:
        """Elect the preferred leaders; or, `unclean`, whoever lives."""
        return self._run(partial(self._async.elect_leaders, partitions, unclean=unclean))

    def list_groups(self) -> list[g.ListedGroup]:
        """All groups, by name."""
        return self._run(self._async.list_groups)

    def describe_group(self, group: str) -> g.DescribedGroup:
        """Members with their assignments, and the causes of the last rebalances."""
        return self._run(self._async.describe_group, group)

    def group_offsets(self, group: str) -> dict[TopicPartition, g.FetchedOffset]:
        """What is committed."""
        return self._run(self._async.group_offsets, group)

    def group_lag(self, group: str) -> list[GroupLag]:
        """How far a group is in every partition that it reads or has committed."""
        return self._run(self._async.group_lag, group)

    def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Have a group without members go on elsewhere."""
        self._run(self._async.set_group_offsets, group, offsets)

    def move_group(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None, **how: Any
    ) -> list[GroupMove]:
        """Have a group without members go on elsewhere; the options of
        `hightide.Admin.move_group`."""
        return self._run(partial(self._async.move_group, group, partitions, **how))

    def delete_group_offsets(self, group: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Forget committed offsets of topics that no member reads."""
        self._run(self._async.delete_group_offsets, group, partitions)

    def delete_group(self, group: str) -> None:
        """Forget a group without members, with its offsets."""
        self._run(self._async.delete_group, group)
