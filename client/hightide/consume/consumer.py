"""The consumer: committed records of assigned partitions, in offset order, prefetched.

Reads only what is below the high watermark. One task fetches from each broker, ahead of the caller
and within bounded memory; `poll` and iteration hand out what has arrived. `fetcher.py` is the
background.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio

from hightide.consume.completed_fetch import CompletedFetch, Lent, LentRows, polled_already
from hightide.consume.fetcher import Fetcher
from hightide.consume.health import Health, health_of
from hightide.consume.lookup import check_partitions, partitions_of
from hightide.consume.options import ConsumerOptions
from hightide.consume.rebalance import Committed, Listeners, Offsets, Rebalancer, group_side
from hightide.consume.selection import Selection, selection
from hightide.consume.subscription import (
    Assignment,
    Listener,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Subscription,
    checked_places,
)
from hightide.net.background import is_cancelled, ki_protected, open_background, start
from hightide.net.cluster import Cluster, closed, open_cluster
from hightide.net.options import from_config, taking
from hightide.protocol import messages as m
from hightide.protocol.columns import Record
from hightide.protocol.errors import HightideError, UsageError, seconds, whole
from hightide.protocol.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

Partitions = Iterable[tuple[str, int]]


GOODBYE_S = 0.5
"""How long a consumer that is cancelled may take to leave its group."""


class Consumer:
    """Reads records; the arguments are those of `ConsumerOptions`, each explained there.

    Use it as `async with Consumer(…, topics=[…]) as consumer: async for record in consumer: …`.

    Raises `UsageError` for options that cannot be, or cannot work together.
    """

    _polled_at = 0.0
    _is_polled = False
    _cluster: Cluster | None = None
    _fetcher: Fetcher | None = None
    _rebalancer: Rebalancer | None = None
    _background: trio.Nursery
    _watching: trio.CancelScope
    """Of the task that looks for topics that a pattern matches."""

    @taking(ConsumerOptions)
    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        self._topics: list[str] = []
        self._is_by_pattern = False
        self._partitions = checked_places(options.partitions)
        self._request_timeout_s = options.request_timeout_ms / 1000
        self._api_timeout_s = options.default_api_timeout_ms / 1000
        self._subscription = Subscription()
        self._completed = CompletedFetch(self._subscription)
        self._stack = AsyncExitStack()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """A consumer by Kafka's dotted names, as in `{"bootstrap.servers": "…", "group.id": "g"}`;
        values may be text. `more` are options by keyword. Raises `UsageError`."""
        return cls(**from_config(ConsumerOptions, config, more))

    # -- life ------------------------------------------------------------------------------------

    @ki_protected
    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._running())
        try:
            topics = self._topics
            if self._rebalancer is None:
                await self.assign(self._partitions or await self._partitions_of(topics))
                self._topics = topics
                self._open()[1].read_whole(topics)
            elif self._partitions:
                await check_partitions(
                    self._open()[0], self._partitions, timeout_s=self._api_timeout_s
                )
                await self._rebalancer.begin([], self._partitions)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    @ki_protected
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._rebalancer is not None:
                failed, timeout_s = kind is not None, self._request_timeout_s
                await self._rebalancer.close(failed=failed, timeout_s=timeout_s)
        except BaseException as failure:
            if self._rebalancer is not None and is_cancelled(failure):
                # The others need not wait for the end of its session.
                with trio.move_on_after(GOODBYE_S, shield=True):
                    await self._rebalancer.leave()
            raise
        finally:
            await self._stack.aclose()
            self._cluster = self._fetcher = self._rebalancer = None
            self._completed.drop()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        options, subscription, wake = self._options, self._subscription, self._completed.wake
        opening = open_cluster(options, on_lost_leader=wake.set)
        async with opening as cluster, open_background() as nursery:
            self._now = trio.lowlevel.current_clock().current_time
            self._cluster, self._polled_at = cluster, self._now()
            self._background, self._watching = nursery, trio.CancelScope()
            self._topics = list(options.topics)
            fetcher = self._fetcher = Fetcher(
                *(subscription, cluster, nursery, options), wake=wake, on_vanished=self._vanished
            )
            if options.group_id:
                self._rebalancer = group_side(
                    options, cluster, subscription, fetcher, self._completed, nursery
                )
                if self._topics:
                    self._rebalancer.subscribe(self._topics)
            start(nursery, fetcher.run)
            yield

    def _open(self) -> tuple[Cluster, Fetcher]:
        if self._cluster is None or self._fetcher is None:
            raise closed("consumer")
        return self._cluster, self._fetcher

    async def _partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        return await partitions_of(self._open()[0], topics, timeout_s=self._api_timeout_s)

    # -- what is read ----------------------------------------------------------------------------

    @ki_protected
    async def subscribe(
        self,
        topics: Iterable[str] | str = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read these topics, in place of those before: or, with `pattern`, whichever it matches
        whole, also those that come later (looked for every metadata_max_age_ms).

        In a group the next poll joins it, or joins it again; listeners that are given take the
        place of all before. Raises `UsageError` where partitions were chosen by hand: `unsubscribe`
        first.
        """
        cluster, _ = self._open()
        wanted = selection(topics, pattern)
        rebalancer = self._rebalancer
        if rebalancer is not None and not rebalancer.is_subscribed and self.assignment():
            raise UsageError("partitions are chosen by hand here: unsubscribe first")
        if wanted.pattern is not None:
            every = partial(cluster.refresh, None)
            await cluster.retrying(every, timeout_s=self._api_timeout_s)
        names = wanted.matching(cluster.metadata.topics)
        partitions = await self._partitions_of(names) if rebalancer is None else []
        # From here on in one stretch: who is cancelled before has changed nothing.
        self._choose(wanted, names, partitions)
        if rebalancer is not None and (on_assigned or on_revoked or on_lost):
            rebalancer.listeners = Listeners(on_assigned, on_revoked, on_lost)

    def _choose(
        self, wanted: Selection, names: list[str], partitions: Sequence[TopicPartition]
    ) -> None:
        """Read these topics from here on, or, without a group, these partitions of them."""
        self._forget_choice()
        self._is_by_pattern = wanted.pattern is not None
        self._read(names, partitions)
        if wanted.pattern is not None:
            self._watching = trio.CancelScope()
            start(self._background, self._watch, wanted, self._watching)

    def _forget_choice(self) -> None:
        """Whatever was to be read, and what went wrong with it."""
        _, fetcher = self._open()
        self._completed.catch_up()
        self._watching.cancel()
        fetcher.troubles.forget()
        self._is_by_pattern, self._topics = False, []
        fetcher.read_whole([])

    def _read(self, names: list[str], partitions: Sequence[TopicPartition]) -> None:
        _, fetcher = self._open()
        self._completed.catch_up()
        self._topics = names
        if self._rebalancer is not None:
            self._rebalancer.subscribe(names)
            return
        fetcher.read_whole(names)
        self._subscription.assign(list(partitions))
        if self._completed.tp not in partitions:
            self._completed.drop()
        fetcher.wake()

    def _vanished(self, topic: str) -> bool:
        """Whether only a pattern chose a topic that is gone; a group's next poll lets go of it."""
        if self._is_by_pattern:
            partitions = [tp for tp in self.assignment() if tp.topic != topic]
            self._read([name for name in self._topics if name != topic], partitions)
        return self._is_by_pattern

    async def _watch(self, wanted: Selection, scope: trio.CancelScope) -> None:
        """See that what a pattern matches is read, also what comes later."""
        cluster, _ = self._open()
        with scope:
            while True:
                await trio.sleep(self._options.metadata_max_age_ms / 1000)
                try:
                    await cluster.refresh(None)
                    names = wanted.matching(cluster.metadata.topics)
                    is_alone = self._rebalancer is None
                    partitions = await self._partitions_of(names) if is_alone else []
                    if names != self._topics and not scope.cancel_called:
                        self._read(names, partitions)
                except HightideError as error:
                    if self._options.on_retry is not None:
                        self._options.on_retry(error)

    @ki_protected
    async def unsubscribe(self) -> None:
        """Read nothing: what was handed out is committed as it would be at the end of the block,
        and the group is left. It is carried out even if it is cancelled meanwhile, which takes up
        to request_timeout_ms."""
        self._forget_choice()
        if self._rebalancer is not None:
            await self._rebalancer.unsubscribe(timeout_s=self._request_timeout_s)
        self._subscription.assign([])
        self._completed.drop()
        self._open()[1].wake()
        await trio.lowlevel.checkpoint()

    async def assign(self, partitions: Partitions) -> None:
        """Read exactly these partitions from here on."""
        cluster, fetcher = self._open()
        wanted = checked_places(partitions)
        if self._rebalancer is not None and self._rebalancer.is_subscribed:
            raise UsageError("a member of a group reads what the group gives it: give no topics")
        await check_partitions(cluster, wanted, timeout_s=self._api_timeout_s)
        self._forget_choice()
        if self._rebalancer is not None:
            known = self.assignment()
            kept = [tp for tp in wanted if tp in known]
            await self._rebalancer.begin(kept, [tp for tp in wanted if tp not in kept])
        else:
            self._subscription.assign(wanted)
        if self._completed.tp not in wanted:
            self._completed.drop()
        fetcher.wake()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return [found.tp for found in self._subscription.all()]

    def position(self, topic: str, partition: int) -> int | None:
        """The offset of the next record of a partition; None while it is being looked up."""
        self._completed.catch_up()
        return self._subscription.get(TopicPartition(topic, partition)).position

    def lag(self, topic: str, partition: int) -> int | None:
        """How many committed records lie before this consumer; None while that is not known."""
        self._completed.catch_up()
        return self._subscription.get(TopicPartition(topic, partition)).lag

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """The log start and the high watermark of a partition as the last fetch told them, -1
        before the first."""
        found = self._subscription.get(TopicPartition(topic, partition))
        return found.log_start, found.high_watermark

    def health(self) -> Health:
        """What this consumer waits for, since when, and whether that is as it should be."""
        since = None if self._rebalancer is None else self._rebalancer.joins_since
        view = self._open()[1].view(self._polled_at, self._options.group_id, since)
        return health_of(view, trio.current_time())

    def metrics(self) -> dict[str, float]:
        """Numbers about this consumer, by Kafka's names; what ends in `_total` rises."""
        return self._open()[1].metrics(self._polled_at)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on reading a partition at `offset`."""
        _, fetcher = self._open()
        tp = TopicPartition(topic, partition)
        self._completed.catch_up()
        self._subscription.get(tp).seek(whole("offset", offset))
        self._completed.drop_of([tp])
        fetcher.troubles.forgive(tp)

    async def seek_to_time(self, timestamp: int) -> None:
        """Go on reading every partition at its first record with a timestamp ≥ `timestamp` (ms)."""
        offsets = await self.offsets(whole("timestamp", timestamp))
        ends = await self.offsets(m.LATEST)
        for tp, (offset, *_) in offsets.items():
            self.seek(*tp, offset if offset >= 0 else ends[tp].offset)

    async def offsets(self, timestamp: int) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first offset at a time in ms or later, or at `EARLIEST`, `LATEST`
        or `MAX_TIMESTAMP`; offset -1: there is none."""
        cluster, _ = self._open()
        asked, found = whole("timestamp", timestamp), {}
        for tp in self.assignment():
            at = await cluster.offset(*tp, asked, timeout_s=self._api_timeout_s)
            found[tp] = OffsetAndTimestamp(at.offset, at.timestamp, at.leader_epoch)
        return found

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no records of these partitions until `resume`; they are not fetched either."""
        for topic, number in partitions:
            found = self._subscription.get(TopicPartition(topic, number))
            found.paused = True
            if self._completed.tp == found.tp:
                self._completed.give_back()

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Take back a `pause`."""
        _, fetcher = self._open()
        for topic, number in partitions:
            self._subscription.get(TopicPartition(topic, number)).paused = False
        fetcher.wake()

    # -- commits ---------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Keep for the group where it goes on: (topic, partition) → the next offset to read, or an
        `OffsetAndMetadata`; None: behind everything that was handed out. Raises `ApiError` when
        somebody else owns it now."""
        rebalancer = self._of_group("commit")
        await rebalancer.commit(rebalancer.wanted(offsets))

    def commit_async(self, offsets: Offsets | None = None, then: Committed | None = None) -> None:
        """As `commit`, in the background and in the order of the calls; `then` is told of the
        outcome: None, or the error. Leaving the consumer's block waits for it."""
        rebalancer = self._of_group("commit_async")
        rebalancer.commit_async(rebalancer.wanted(offsets), then)

    async def committed(
        self, partitions: Partitions | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of these partitions, or of those that are read; None where
        it has committed nothing."""
        rebalancer = self._of_group("committed")
        wanted = self.assignment() if partitions is None else checked_places(partitions)
        return await rebalancer.committed(wanted)

    @property
    def generation(self) -> int:
        """The generation of the group that this consumer is a member of; -1 while it is none."""
        return self._of_group("generation").generation

    def _of_group(self, what: str) -> Rebalancer:
        self._open()
        if self._rebalancer is None:
            raise UsageError(f"{what} needs a group: Consumer(…, group_id='name')")
        return self._rebalancer

    # -- records ---------------------------------------------------------------------------------

    @ki_protected
    async def poll(self, *, timeout_ms: float = 0, max_records: int | None = None) -> list[Record]:
        """Up to `max_poll_records` records of one partition; empty if none came in time.

        Raises `ApiError` (OFFSET_OUT_OF_RANGE without a reset policy, a topic that is gone),
        `CorruptBatch`, or what else makes reading on impossible; the next call tries again.
        """
        lent = await self.lend(timeout_ms=timeout_ms, max_records=max_records)
        records = lent.take_all()
        self._completed.settle()
        return records

    async def lend(self, *, timeout_ms: float = 0, max_records: int | None = None) -> Lent:
        """As `poll`, for a caller in another thread: what that one takes counts as handed out."""
        given = self._options.max_poll_records if max_records is None else max_records
        limit, wait_s = whole("max_records", given, least=0), seconds("timeout_ms", timeout_ms)
        with self._alone():
            self._tend()
            if not self._completed:
                with trio.move_on_after(wait_s):
                    await self._wait_for_batch()
            # Before anything is taken: a cancelled poll has taken nothing.
            await trio.lowlevel.checkpoint()
            self._polled_at = trio.current_time()
            return self._completed.lend(limit)

    @ki_protected
    async def poll_arrow(self, *, timeout_ms: float = 0) -> pa.RecordBatch | None:
        """Records of one partition that have been fetched, as a `pyarrow.RecordBatch` with the
        columns of Spark's Kafka source (`arrow.schema`), up to some 64 MiB; None if none came in
        time. No Python per record. Needs pyarrow and numpy; raises as `poll`."""
        lent = await self.lend_arrow(timeout_ms=timeout_ms)
        if lent is None:
            return None
        rows = lent.take_all()
        self._completed.settle()
        return rows

    async def lend_arrow(self, *, timeout_ms: float = 0) -> LentRows | None:
        """As `poll_arrow`, for a caller in another thread: what that one takes counts as handed
        out."""
        with self._alone():
            self._tend()
            self._completed.give_back()
            found = None
            with trio.move_on_after(seconds("timeout_ms", timeout_ms)):
                found = await self._next_with_data()
            # Before anything is taken: a cancelled poll has taken nothing.
            await trio.lowlevel.checkpoint()
        self._polled_at = trio.current_time()
        if found is None or self._subscription.find(found.tp) is not found or not found.fetched:
            return None
        lent = self._completed.lend_rows(found)
        self._open()[1].wake()  # there is room for more
        return lent

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Records go to one caller at a time."""
        if self._is_polled:
            raise polled_already()
        self._is_polled = True
        try:
            yield
        finally:
            self._is_polled = False

    def _tend(self) -> None:
        """What was handed out before is done with."""
        self._completed.settle()
        self._completed.in_work, self._polled_at = None, trio.current_time()
        if self._rebalancer is not None:
            self._rebalancer.tend()

    async def _wait_for_batch(self) -> None:
        """Until decoded records are ready; raises what stands in the way."""
        while not self._completed:
            found = await self._next_with_data()
            self._completed.decode(found.tp, found.take())
            self._open()[1].wake()

    async def _next_with_data(self) -> Assignment:
        """Until something arrived; raises what stands in the way."""
        _, fetcher = self._open()
        while True:
            self._tend()
            fetcher.troubles.tell()
            found = self._subscription.next_with_data()
            if found is not None:
                return found
            with self._rebalancer.awaited() if self._rebalancer else nullcontext():
                await fetcher.wait_for_data()

    def __aiter__(self) -> Self:
        return self

    @ki_protected
    async def __anext__(self) -> Record:
        if self._is_polled:
            raise polled_already()
        if self._rebalancer is None and (record := self._completed.pop_at_once()) is not None:
            self._polled_at = self._now()
            return record  # nearly every one: nothing but the next
        self._tend()
        if not self._completed:
            with self._alone():
                await self._wait_for_batch()
        return self._completed.pop()
