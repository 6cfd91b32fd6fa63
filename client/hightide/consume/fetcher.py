"""The consumer's background: finds starting offsets and fetches ahead, one task for each broker.

Each task asks its broker for all partitions it leads that have room, in one fetch that the broker
parks until there is data. What is fetched and not handed out is bounded by `prefetch_bytes`.
Failures that only the caller can judge are kept for the next `poll`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from hightide.consume.health import View, metrics_of
from hightide.consume.offset_reset import StartFinder
from hightide.consume.options import ConsumerOptions
from hightide.consume.subscription import Assignment, FetchedBatch, Subscription
from hightide.consume.troubles import Troubles
from hightide.net.background import Nudge, start
from hightide.net.cluster import Cluster
from hightide.net.retries import NEW_TOPIC_GRACE_S
from hightide.protocol import messages as m
from hightide.protocol.errors import (
    UNREACHABLE,
    ApiError,
    AuthenticationFailed,
    CorruptBatch,
    ErrorCode,
    HightideError,
    LogTruncated,
    error_code,
    is_hopeless,
)
from hightide.protocol.records import check_crc, iter_batches
from hightide.protocol.topic_partition import TopicPartition

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC)
_NEVER = float("inf")
TOGETHER_S = 0.1
"""How long a fetch waits for partitions of the same broker whose offsets are being looked up."""


class _Source(NamedTuple):
    """Where a partition is read, and how that broker is asked; each has a task of its own."""

    broker: int
    names_rack: bool
    """Not where the replica that the leader named failed: the leader would name it again."""


class Fetcher:
    """Fetches what a subscription wants, until its nursery is cancelled."""

    def __init__(
        self,
        subscription: Subscription,
        cluster: Cluster,
        nursery: trio.Nursery,
        options: ConsumerOptions,
        *,
        wake: Nudge,
        on_vanished: Callable[[str], bool],
    ) -> None:
        """`on_vanished` is asked of a topic that is gone: whether that is nothing to fail for.
        `wake` is set by others, too, when there is something to look at."""
        self._subscription = subscription
        self._cluster = cluster
        self._nursery = nursery
        self._options = options
        self._request_timeout_s = options.request_timeout_ms / 1000
        self._whole: Sequence[str] = ()
        self._on_vanished = on_vanished
        self._starts = StartFinder(
            cluster,
            options.auto_offset_reset,
            request_timeout_s=self._request_timeout_s,
            tell=self.tell,
            fail=self._fail,
            found=self.wake,
        )
        self._unknown_since: dict[str, float] = {}
        """Topics that were unknown when they were asked for last, since when that is."""
        self._tasks: dict[_Source, None] = {}
        self._wake = wake
        self._data = trio.Event()
        self.troubles = Troubles(subscription, self.wake)
        self._last_error: HightideError | None = None
        self._arrived_at = trio.current_time()
        self.records = self.bytes = self.fetches = 0
        """What came, and in how many answers."""

    def read_whole(self, topics: Sequence[str]) -> None:
        """Every partition of these is read from here on, also those that are added."""
        self._whole = topics

    def wake(self) -> None:
        """There is news: room, a seek, another assignment."""
        self._wake.set()

    def notify(self) -> None:
        """Callers that wait for data look again at what to do."""
        self._data.set()

    def fail(self, error: Exception) -> None:
        """The caller is told of this."""
        self._fail(error)

    def view(self, polled_at: float, group: str = "", joins_since: float | None = None) -> View:
        """What there is to say about its health."""
        assignments = self._subscription.all()
        return View(
            assignments=assignments,
            leaderless=[a for a in assignments if self._leader_of(a) is None],
            polled_at=polled_at,
            arrived_at=self._arrived_at,
            group=group,
            joins_since=joins_since,
            last_error=self._last_error,
        )

    def metrics(self, polled_at: float) -> dict[str, float]:
        """What it counts, by Kafka's names."""
        counted = self.records, self.bytes, self.fetches
        return metrics_of(self.view(polled_at), *counted, trio.current_time())

    async def wait_for_data(self) -> None:
        """Until something arrived or failed."""
        await self._data.wait()
        self._data = trio.Event()

    def _fail(self, error: Exception, assignment: Assignment | None = None) -> None:
        self.troubles.add(error, assignment)
        self._data.set()

    def _fails(self, assignment: Assignment) -> None:
        if assignment.failing_since is None:
            assignment.failing_since = trio.current_time()

    def tell(self, error: HightideError) -> None:
        """Something went wrong and is tried again: keep it for those who ask for the health, and
        let the user know."""
        self._last_error = error
        if self._options.on_retry is not None:
            self._options.on_retry(error)

    # -- housekeeping ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Find offsets and leaders, start a task for each broker; until cancelled."""
        failures = 0
        while True:
            if not await self._look_after():
                failures += 1
                await trio.sleep(self._cluster.backoff_s(failures))
                continue
            failures = 0
            stale_at = self._cluster.metadata.stale_at if len(self._subscription) else _NEVER
            await self._wake.sleep_until(stale_at)

    async def _look_after(self) -> bool:
        """One round; False if something is missing and has to be tried again."""
        assignments = self._subscription.all()
        self._start_tasks(assignments)
        leaderless = [a for a in assignments if self._leader_of(a) is None]
        if leaderless or (self._cluster.is_stale and assignments):
            topics = list(dict.fromkeys(a.tp.topic for a in assignments))
            try:
                answer = await self._cluster.refresh(topics)
            except HightideError as error:
                self.tell(error)
                if isinstance(error, AuthenticationFailed):
                    self._fail(error)  # the caller is told, and it goes on
                return False
            if self._topic_is_gone(answer):
                return True
            self._add_partitions()
            now = trio.current_time()
            for assignment in assignments:
                assignment.nearby, assignment.nearby_failed = None, False
                assignment.take_news(now)
            # Leaders may be known again: the tasks that fetch from them sleep.
            self._wake.set()
        return self._start_tasks(self._subscription.all())

    def _add_partitions(self) -> None:
        for topic in self._whole:
            for number in range(self._cluster.metadata.partition_count(topic)):
                tp = TopicPartition(topic, number)
                if self._subscription.find(tp) is None:
                    self._subscription.add(tp)

    def _start_tasks(self, assignments: list[Assignment]) -> bool:
        """See that somebody works for each partition; False if one has no leader."""
        complete = True
        for assignment in assignments:
            leader = self._leader_of(assignment)
            if leader is None:
                self._fails(assignment)
                complete = False
                continue
            self._check_topic(assignment)
            if assignment.position is None and assignment.finding_since is None:
                assignment.finding_since = trio.current_time()
                start(self._nursery, self._starts.find, assignment)
            source = _source(assignment, leader)
            if source not in self._tasks:
                self._tasks[source] = None
                start(self._nursery, self._fetch_from, source)
        return complete

    def _topic_is_gone(self, answer: m.MetadataResponse) -> bool:
        now, read = trio.current_time(), {each.tp.topic for each in self._subscription.all()}
        unknown = [t for t in answer.topics if t.error in _UNKNOWN and t.topic in read]
        since, self._unknown_since = self._unknown_since, {}
        for topic in unknown:
            # A broker that is behind says so, too: others are asked before it is believed.
            began = self._unknown_since[topic.topic] = since.get(topic.topic, now)
            if now - began >= NEW_TOPIC_GRACE_S and not self._on_vanished(topic.topic):
                self._fail(ApiError(error_code(topic.error or ""), topic.message))
                return True
        return False

    def _leader_of(self, assignment: Assignment) -> m.PartitionMetadata | None:
        """The leader, but not one from before what was read (KIP-320)."""
        leader = self._cluster.metadata.leader(*assignment.tp)
        if self._is_again(assignment):
            return leader if assignment.topic_told_at is None else None
        is_older = leader is not None and leader.leader_epoch < assignment.fetch_epoch
        return None if is_older else leader

    def _is_again(self, assignment: Assignment) -> bool:
        """Whether the topic is not the one that was read so far."""
        known = self._cluster.metadata.topics.get(assignment.tp.topic)
        return known is not None and assignment.topic_id not in ("", known.topic_id)

    def _check_topic(self, assignment: Assignment) -> None:
        tp, position = assignment.tp, assignment.position
        if position is not None and self._is_again(assignment):
            what = f"{tp.topic!r} was deleted and made again: what was read of {tp} up to offset"
            error = LogTruncated(f"{what} {position} is not there any more")
            self._take_truncation(assignment, error)

    # -- fetching --------------------------------------------------------------------------------

    async def _fetch_from(self, source: _Source) -> None:
        """Fetch what is to be read from there, until cancelled."""
        while True:
            due, next_at = self._due(source)
            if not due:
                await self._wake.sleep_until(next_at)
                continue
            for assignment in due:
                assignment.fetching = True
            nearby = {assignment.tp for assignment in due if assignment.nearby is not None}
            try:
                await self._fetch(source, due, nearby)
            except (ApiError, *UNREACHABLE) as error:
                self.tell(error)
                led = [a for a in due if a.tp not in nearby]
                if led and is_hopeless(error):
                    self._fail(error)
                for assignment in due:
                    if assignment.tp in nearby:
                        assignment.leave_nearby()
                    else:
                        tp = assignment.tp
                        self._cluster.lost_leader(tp.topic, tp.partition)
                        self._fails(assignment)
                        self._back_off(assignment)
                self._wake.set()
            finally:
                for assignment in due:
                    assignment.fetching = False

    def _due(self, source: _Source) -> tuple[list[Assignment], float]:
        """What to ask for there now, and when to look again."""
        now = trio.current_time()
        next_at = now + 3600
        due: list[Assignment] = []
        if self._subscription.ahead_bytes() >= self._options.prefetch_bytes:
            return due, next_at
        for assignment in self._subscription.all():
            leader = self._leader_of(assignment)
            if leader is None or _source(assignment, leader) != source:
                continue
            if (since := assignment.finding_since) is not None and now < since + TOGETHER_S:
                # A fetch without it would be parked, and it would wait for its end.
                return [], since + TOGETHER_S
            if (
                assignment.position is None
                or self._is_again(assignment)
                or assignment.paused
                or assignment.is_held
                or assignment.fetching
                or assignment.is_damaged
                or assignment.ahead_bytes >= self._options.max_partition_fetch_bytes
            ):
                continue
            if assignment.backoff_until > now:
                next_at = min(next_at, assignment.backoff_until)
            else:
                due.append(assignment)
        return due, next_at

    def _back_off(self, assignment: Assignment) -> None:
        assignment.backoff_until = trio.current_time() + self._cluster.backoff_s(1)

    async def _fetch(
        self, source: _Source, due: list[Assignment], nearby: set[TopicPartition]
    ) -> None:
        asked = {a.tp: self._partition_request(a) for a in due}
        options = self._options
        left = options.prefetch_bytes - self._subscription.ahead_bytes()
        request = m.FetchRequest(
            max_wait_ms=int(options.fetch_max_wait_ms),
            min_bytes=options.fetch_min_bytes,
            max_bytes=min(options.fetch_max_bytes, max(left, options.max_partition_fetch_bytes)),
            rack=options.client_rack if source.names_rack else "",
            partitions=[*asked.values()],
            reads_rows=True,
        )
        connection = await self._cluster.connection_to(source.broker)
        response, attachments = await connection.call(
            request, timeout_s=self._request_timeout_s + options.fetch_max_wait_ms / 1000
        )
        self.fetches += 1
        for result in response.partitions:
            tp = TopicPartition(result.topic, result.partition)
            assignment = self._subscription.find(tp)
            part = asked.get(tp)
            if assignment is None or part is None:
                continue
            if part.fetch_offset != assignment.fetch_offset:
                continue
            is_refused = result.error is not None or result.diverging_epoch is not None
            if tp in nearby and is_refused:
                # Never a reason to go elsewhere in the partition: its leader decides.
                if result.error is not None:
                    self.tell(ApiError(error_code(result.error), result.message))
                assignment.leave_nearby()
                self._wake.set()
            else:
                if result.error is None:
                    assignment.take_topic(part.topic_id)
                self._take(assignment, result, attachments, connection.address)

    def _partition_request(self, assignment: Assignment) -> m.FetchPartition:
        tp, leader = assignment.tp, self._leader_of(assignment)
        known = self._cluster.metadata.topics.get(tp.topic)
        return m.FetchPartition(
            topic=tp.topic,
            partition=tp.partition,
            fetch_offset=assignment.fetch_offset,
            topic_id=known.topic_id if known is not None else "",
            current_leader_epoch=leader.leader_epoch if leader else -1,
            last_fetched_epoch=assignment.fetch_epoch,
            max_bytes=self._options.max_partition_fetch_bytes,
        )

    def _take(
        self,
        assignment: Assignment,
        result: m.FetchResult,
        attachments: list[memoryview],
        address: str,
    ) -> None:
        if result.error is not None:
            self._take_error(assignment, result, address)
            return
        assignment.failing_since = assignment.told_at = self._last_error = None
        if result.diverging_epoch is not None:
            self._take_divergence(assignment, result.diverging_epoch, address)
            return
        assignment.high_watermark = result.high_watermark
        assignment.log_start = result.log_start_offset
        if result.preferred_read_replica >= 0:
            assignment.nearby = result.preferred_read_replica
            if assignment.nearby not in self._cluster.metadata.brokers:
                assignment.leave_nearby()
            self._wake.set()
            return
        if not 0 <= result.records < len(attachments):
            return
        try:
            for header, data in iter_batches(attachments[result.records]):
                if header.next_offset <= assignment.fetch_offset:
                    continue
                if self._options.check_crcs:
                    check_crc(data, header)
                assignment.add(FetchedBatch(header, data))
                self.records += header.record_count
                self.bytes += len(data)
                self._arrived_at = trio.current_time()
        except CorruptBatch as error:
            if assignment.nearby is not None:
                self.tell(error)
                assignment.leave_nearby()
                self._wake.set()
                return
            assignment.is_damaged = True
            self._back_off(assignment)
            self._fail(CorruptBatch(f"{assignment.tp} from {address}: {error}"), assignment)
        self._data.set()

    def _take_divergence(self, assignment: Assignment, common: m.EpochEnd, address: str) -> None:
        """The log there parts at `common` from the one that was read (KIP-320)."""
        if common.end_offset >= assignment.fetch_offset:
            assignment.fetch_epoch = common.epoch  # that epoch is gone, and no record of it
        elif assignment.position != assignment.fetch_offset:
            self._back_off(assignment)  # what was fetched is handed out first
        else:
            error = LogTruncated(
                f"{assignment.tp} was read up to offset {assignment.position} of epoch "
                f"{assignment.fetch_epoch}, {address} has only {common.end_offset} of it: the rest "
                "was lost in an unclean election",
                divergent_offset=common.end_offset,
            )
            self._take_truncation(assignment, error, common)
        self._wake.set()

    def _take_truncation(
        self, assignment: Assignment, error: LogTruncated, common: m.EpochEnd | None = None
    ) -> None:
        """Go on behind what both logs have, or by the reset policy; without one the caller has to
        say where."""
        if self._options.auto_offset_reset == "none":
            self._back_off(assignment)
            self._fail(error, assignment)
            return
        self.tell(error)
        if common is None:
            assignment.forget_position()
        else:
            assignment.seek(common.end_offset, common.epoch)

    def _fails_too_long(self, assignment: Assignment) -> bool:
        """Whether errors last longer than request_timeout_ms: then the caller is told, and
        again."""
        now = trio.current_time()
        since = assignment.failing_since if assignment.told_at is None else assignment.told_at
        if since is None or now - since < self._request_timeout_s:
            return False
        assignment.told_at = now
        return True

    def _take_error(self, assignment: Assignment, result: m.FetchResult, address: str) -> None:
        """What a refusal means for a partition."""
        code = error_code(result.error or "")
        error = ApiError(code, result.message, broker=address)
        self.tell(error)
        self._fails(assignment)
        tp = assignment.tp
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and assignment.position != assignment.fetch_offset:
            self._back_off(assignment)  # what was fetched is handed out first
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._options.auto_offset_reset == "none":
                error.knob = "auto_offset_reset, seek()"
                self._back_off(assignment)
                self._fail(error, assignment)
            else:
                assignment.forget_position()
        elif error.retriable and not self._fails_too_long(assignment):
            if error.refresh:
                self._cluster.lost_leader(tp.topic, tp.partition, result.current_leader)
            self._back_off(assignment)
        else:
            self._back_off(assignment)
            self._fail(error, assignment)
        self._wake.set()


def _source(assignment: Assignment, leader: m.PartitionMetadata) -> _Source:
    """A partition's leader, or the replica that the leader named."""
    broker = leader.leader if assignment.nearby is None else assignment.nearby
    return _Source(broker, not assignment.nearby_failed)
