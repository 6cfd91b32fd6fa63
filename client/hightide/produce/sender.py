"""The producer's background: who is sent what when, and what an answer means.

A thin shell around `accumulator.py`. One task for each broker sends, as its `line.py` says;
requests are written in that task, so that batches leave in the order of their sequences, and their
answers are taken in where they arrive. A record that nothing is to be waited for is sent where it
was buffered. A housekeeping task finds leaders, starts those tasks, and expires what waited too
long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from hightide.net.background import Bell, Nudge, start
from hightide.net.cluster import Cluster
from hightide.net.connection import Answer
from hightide.produce.accumulator import Accumulator, PartitionQueue
from hightide.produce.delivery import Unseen, tell_of
from hightide.produce.line import Line, Sent
from hightide.produce.silence import Silence
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol.batch_builder import Batch
from hightide.protocol.errors import (
    TOO_LARGE,
    UNREACHABLE,
    ApiError,
    BrokerUnreachable,
    DeliveryTimeout,
    ErrorCode,
    HightideError,
    RemoteProtocolError,
    error_code,
)
from hightide.protocol.words import counted

_NEVER = float("inf")
_WAY_BACK_S = 1.0
"""A broker answers within request_timeout_ms; a little more is for the way back."""
_GRACE_S = 0.1
"""What is left to one before it is called silent."""


class Sender:
    """Delivers what an accumulator holds, until its nursery is cancelled."""

    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        nursery: trio.Nursery,
        *,
        acks: int,
        idempotent: bool,
        max_request_size: int,
        delivery_timeout_s: float,
        request_timeout_s: float,
        backoff_s: float,
        on_retry: Callable[[HightideError], None] | None,
    ) -> None:
        self.accumulator = accumulator
        self.room = Bell()
        """Rung whenever memory was freed."""
        self.unseen = Unseen()
        """What ended batches, and nobody looked at."""
        self.partition_counts: dict[str, int] = {}
        """The topics in use, with how many partitions they have as of the last refresh."""
        self.requests = self.retries = 0
        self.answer_s = 0.0
        """How long all answers took together."""
        self._cluster = cluster
        cluster.on_learned = self.wake
        self._nursery = nursery
        self._acks = acks
        self._idempotent = idempotent
        self._max_request_size = max_request_size
        self._delivery_timeout_s = delivery_timeout_s
        self._request_timeout_s = request_timeout_s
        self._patience_s = request_timeout_s + _WAY_BACK_S
        self._backoff_s = backoff_s
        self._on_retry = on_retry
        self._lines: dict[int, Line] = {}
        """By broker; each has a task that sends."""
        self._sent: dict[Sent, None] = {}
        """Those without an answer; the first was sent first."""
        self._is_over = False
        self._is_renewing = self._is_looking = False
        self._silence = Silence()
        self._why_no_id: HightideError | None = None
        """Why there is no producer id yet, without which nothing is sent."""
        self._wake = Nudge()
        self._house_sleeps_until = _NEVER
        """When the housekeeping task looks again by itself."""

    def wake(self) -> None:
        """There is news that may concern every partition: leaders, a flush, a need for memory."""
        self._wake.set()
        for line in self._lines.values():
            line.wake()

    def tell(self, batch: Batch) -> None:
        """A batch was begun, or has its outcome: its partition may have something to be sent."""
        now, queue = trio.current_time(), self.accumulator.queue_of(batch)
        way = self._way_of(batch)
        if way is None:
            self._wake.set()
            return
        leader, line = way
        if now + self._delivery_timeout_s < self._house_sleeps_until:
            self._wake.set()
        ready_at = self.accumulator.ready_at(queue, now, leader.leader_epoch)
        line.look_at(line.goes_at(ready_at, can_grow=queue.can_grow))
        if queue.is_used_up:
            line.wake()  # and ask for another producer id

    def _way_of(self, batch: Batch) -> tuple[m.PartitionMetadata, Line] | None:
        """Who leads a batch's partition, and the line there, if there are both."""
        leader = self._cluster.metadata.leader(batch.topic, batch.partition)
        line = self._lines.get(leader.leader) if leader else None
        return None if leader is None or line is None else (leader, line)

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return len(self._sent)

    def metrics(self) -> dict[str, float]:
        """What it counts, by Kafka's names."""
        held = self.accumulator
        return {
            "record_send_total": held.acknowledged_records,
            "record_error_total": held.failed_records,
            "batch_send_total": held.acknowledged_batches,
            "record_retry_total": self.retries,
            "request_total": self.requests,
            "request_latency_avg": self.answer_s / max(self.requests, 1) * 1000,
            "requests_in_flight": self.in_flight,
            "buffer_available_bytes": held.free_bytes,
            "waiting_threads": held.waiting_for_memory,
        }

    def end(self) -> None:
        """Take in no more answers: the tasks of this are about to be cancelled."""
        self._is_over = True

    def abandon_all(self, error: HightideError) -> None:
        """The producer is closed: those who still wait for a record get `error`."""
        self._abandon(self.accumulator.unfinished(), error)
        self.room.ring()

    def _abandon_waiting(self, error: HightideError, topic: str | None = None) -> None:
        """What was not sent, to one topic or to any, never will be."""
        queues = [queue for queue in self.accumulator.active() if topic in (None, queue.topic)]
        self._abandon([batch for queue in queues for batch in queue.pending], error)

    def _abandon(self, batches: list[Batch], error: HightideError) -> None:
        for batch in batches:
            self.accumulator.abandon(batch, error)
            self._announce(batch)

    async def keep_house(self) -> None:
        """Find leaders, start senders, expire what waited too long; until cancelled."""
        if self._idempotent:
            await self._become_idempotent()
        while True:
            now = trio.current_time()
            self._expire(now)
            self._give_up_late(now)
            await self._tell_silent(now)
            queues = self.accumulator.active()
            for queue in queues:
                leader = self._cluster.metadata.leader(queue.topic, queue.partition)
                if leader is not None and leader.leader not in self._lines:
                    line = self._lines[leader.leader] = Line()
                    start(self._nursery, self._send_to, leader.leader, line)
            if not self._is_looking and self._has_to_look():
                self._is_looking = True
                start(self._nursery, self._look_for_leaders)
            deadline = self.accumulator.next_expiry()
            if queues:  # of which some may be sent, and be waited for, while this sleeps
                oldest = next((sent.began for sent in self._sent), now)
                deadline = min(deadline, oldest + self._patience_s, self._silence.due_at)
            if self.partition_counts and not self._is_looking:
                deadline = min(deadline, self._cluster.metadata.stale_at)
            self._house_sleeps_until = deadline
            await self._wake.sleep_until(deadline)

    def _has_to_look(self) -> bool:
        """Whether leaders are not known, or may be others by now."""
        if self._cluster.is_stale and self.partition_counts:
            return True
        leader = self._cluster.metadata.leader
        return any(
            leader(queue.topic, queue.partition) is None for queue in self.accumulator.active()
        )

    async def _look_for_leaders(self) -> None:
        """Until all are known. In a task of its own: brokers that are silent are waited for, and
        what waits too long is given up meanwhile."""
        failures = 0
        while self._has_to_look():
            failures = await self._refresh(failures)
        self._is_looking = False
        self._wake.set()

    async def _refresh(self, failures: int) -> int:
        """Look for leaders again; how often in a row that was in vain."""
        try:
            await self._cluster.refresh(list(self.partition_counts))
        except HightideError as error:
            self._tell_retry(error)
        for topic, why in self._cluster.metadata.denied.items():
            self._abandon_waiting(ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, why), topic)
        for topic in self.partition_counts:
            self.partition_counts[topic] = (
                self._cluster.metadata.partition_count(topic) or self.partition_counts[topic]
            )
        if not self._has_to_look():
            return 0
        await trio.sleep(self._cluster.backoff_s(failures + 1))
        return failures + 1

    async def _become_idempotent(self) -> None:
        """Get a producer id, however long that takes; records wait meanwhile, and are given up if
        it is refused for good."""
        attempts = 0
        while True:
            try:
                reply = await self._cluster.call_any_broker(
                    p.InitProducerIdRequest(), timeout_s=self._request_timeout_s
                )
            except HightideError as error:
                self._tell_retry(error)
                self._why_no_id = error
                if isinstance(error, ApiError) and not error.retriable:
                    self._abandon_waiting(error)
                self._expire(trio.current_time())
                attempts += 1
                await trio.sleep(self._cluster.backoff_s(attempts))
                continue
            self.accumulator.producer_id, self._why_no_id = reply.producer_id, None
            return

    async def _renew_id(self) -> None:
        """A partition used up the epochs of the producer id."""
        await self._become_idempotent()
        self._is_renewing = False
        self.wake()

    def _expire(self, now: float) -> None:
        for batch in self.accumulator.expire(now):
            last = batch.retry_error or self._why_no_id
            why = f"; the last attempt: {last.reason}" if last else ""
            if self._cluster.metadata.leader(batch.topic, batch.partition) is None:
                why += f"; {self._cluster.metadata.why_leaderless(batch.topic, batch.partition)}"
            error = DeliveryTimeout(
                f"{counted(len(batch), 'record')} for {batch.topic}-{batch.partition} "
                f"{'was' if len(batch) == 1 else 'were'} not acknowledged within "
                f"delivery_timeout_ms={self._delivery_timeout_s * 1000:.0f}{why}",
                attempts=batch.attempts,
                elapsed_s=now - batch.created_at,
                knob="delivery_timeout_ms",
            )
            self.accumulator.abandon(batch, error)
            self._announce(batch)

    async def _send_to(self, broker: int, line: Line) -> None:
        """Send what this broker leads, until cancelled."""
        while True:
            now = trio.current_time()
            ready: list[tuple[PartitionQueue, int]] = []
            next_at = _NEVER
            for queue in self.accumulator.active():
                leader = self._cluster.metadata.leader(queue.topic, queue.partition)
                if leader is None or leader.leader != broker:
                    continue
                ready_at = self.accumulator.ready_at(queue, now, leader.leader_epoch)
                if ready_at <= now:
                    ready.append((queue, leader.leader_epoch))
                next_at = min(next_at, line.goes_at(ready_at, can_grow=queue.can_grow))
            if self.accumulator.wants_id and not self._is_renewing:
                self._is_renewing = True
                start(self._nursery, self._renew_id)
            if next_at <= now:  # what is ready goes with it
                await self._send_request(broker, line, ready)
            else:
                await line.sleep_until(next_at)

    def send_now(self, batch: Batch) -> bool:
        """Send a batch that was just begun where nothing is to be waited for, neither more records
        nor anybody's turn: this spares the event loop one. Whether it was sent."""
        queue = self.accumulator.queue_alone(batch)
        now = trio.current_time()
        if queue is None or self._acks == 0 or self._is_over:
            return False
        if self.accumulator.ready_at(queue, now) > now:
            return False
        way = self._way_of(batch)
        if way is None:
            return False
        leader, line = way
        if line.is_busy:
            return False
        connection = self._cluster.connection_now(leader.leader)
        if connection is None or connection.is_sending:
            return False
        try:
            batches, request, records = self._next_request([(queue, leader.leader_epoch)])
            answer = connection.begin_now(request, records, timeout_s=self._request_timeout_s)
        except (BrokerUnreachable, RemoteProtocolError) as error:
            self._send_again(batches, error, lost_leader=True)
        except Exception as error:
            start(self._nursery, _fail, error)  # as in the task that sends: not the caller's
        else:
            self._await_answer(batches, answer, line, now)
        return True

    async def _send_request(
        self, broker: int, line: Line, ready: list[tuple[PartitionQueue, int]]
    ) -> None:
        """One produce request: written here, in order."""
        batches, request, records = self._next_request(ready)
        try:
            connection = await self._cluster.connection_to(broker)
            answer = await connection.begin(request, records, timeout_s=self._request_timeout_s)
        except (BrokerUnreachable, RemoteProtocolError) as error:
            self._send_again(batches, error, lost_leader=True)
            return
        if self._acks == 0:
            connection.forget(answer.id)
            for batch in batches:
                self.accumulator.succeed(batch, -1)
                self._announce(batch)
        else:
            self._await_answer(batches, answer, line, trio.current_time())

    def _next_request(
        self, ready: list[tuple[PartitionQueue, int]]
    ) -> tuple[list[Batch], m.ProduceRequest, list[bytearray]]:
        """What is sent next of some queues, whose leaders' epochs are beside them, and the records
        that go with it."""
        for queue, leader_epoch in ready:
            self.accumulator.try_with(queue, leader_epoch)
            for batch in self.accumulator.shrink(queue):
                self._announce(batch)
        queues = [queue for queue, _ in ready]
        drained = self.accumulator.drain(queues, max_bytes=self._max_request_size)
        batches = [batch for batch, _ in drained]
        request = m.ProduceRequest(
            acks=self._acks,
            timeout_ms=int(self._request_timeout_s * 1000),
            partitions=[
                m.ProducePartition(topic=batch.topic, partition=batch.partition, records=number)
                for number, batch in enumerate(batches)
            ],
        )
        return batches, request, [encoded for _, encoded in drained]

    def _await_answer(self, batches: list[Batch], answer: Answer, line: Line, now: float) -> None:
        sent = Sent(batches, answer, line, now)
        self._sent[sent] = None
        line.sent(now)
        self._silence.asked(answer.address, now)
        if min(now + self._patience_s, self._silence.due_at) < self._house_sleeps_until:
            self._wake.set()
        answer.then(partial(self._take_answer, sent))

    def _give_up_late(self, now: float) -> None:
        """Whatever waited too long for an answer has none."""
        for sent in list(self._sent):
            # The same sum as for the deadline, or rounding makes the task that sleeps spin.
            if sent.began + self._patience_s > now:
                break
            sent.answer.give_up()

    async def _tell_silent(self, now: float) -> None:
        """Say once whose answers do not come, long before they are given up."""
        if self._silence.due_at > now:
            return
        # Where the program itself took all the time, what has arrived meanwhile is taken in first.
        await trio.sleep(_GRACE_S)
        silent = getattr(self._on_retry, "silent", None)
        for address in self._silence.tell(now):
            if callable(silent):
                start(self._nursery, self._call, partial(silent, address, self._patience_s))

    def _take_answer(self, sent: Sent) -> None:
        if self._is_over:
            return
        del self._sent[sent]
        sent.line.answered()
        batches, answer, now = sent.batches, sent.answer, trio.current_time()
        self.requests += 1
        self.answer_s += now - sent.began
        try:
            response, _ = answer.take(self._patience_s)
        except (ApiError, *UNREACHABLE) as error:
            self._silence.settled(answer.address, now, heard=isinstance(error, ApiError))
            if isinstance(error, ApiError) and not error.retriable:
                for batch in batches:
                    self.accumulator.fail(batch, error)
                    self._announce(batch)
            else:
                self._send_again(batches, error, lost_leader=True)
            return
        self._silence.settled(answer.address, now, heard=True)
        by_place = {(r.topic, r.partition): r for r in response.partitions}
        for batch in batches:
            result = by_place.get((batch.topic, batch.partition))
            if result is None:
                missing = RemoteProtocolError(f"no result for {batch.topic}-{batch.partition}")
                self._send_again([batch], missing, lost_leader=False)
            elif result.error is None:
                self.accumulator.succeed(batch, result.base_offset, result.log_append_time_ms)
                self._announce(batch)
            else:
                self._take_error(batch, result, answer.address)

    def _take_error(self, batch: Batch, result: m.ProduceResult, address: str) -> None:
        """What a refusal means for a batch."""
        error = _refusal(batch, result, address)
        code = error.code
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self.accumulator.succeed(batch, -1)
            self._announce(batch)
        elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._idempotent:
            # Not told: it follows from what happened to a batch before it, and that was.
            not_before = self._not_before(batch)
            if self.accumulator.is_first_outstanding(batch):
                self.accumulator.refuse_sequence(batch, error, not_before=not_before)
            else:
                self.accumulator.retry(batch, error, not_before=not_before)
            self.wake()
        elif code in TOO_LARGE and len(batch) > 1:
            self.accumulator.split(batch)
            self._announce(batch)
            self.wake()  # others may be full by this
        elif error.retriable:
            if error.refresh:
                self._cluster.lost_leader(batch.topic, batch.partition, result.current_leader)
            self._send_again([batch], error, lost_leader=False)
        else:  # what came of the attempt before tells whether it may be stored all the same
            self.accumulator.fail(batch, _refusal(batch, result, address, batch.retry_error))
            self._announce(batch)

    def _send_again(self, batches: list[Batch], error: HightideError, *, lost_leader: bool) -> None:
        self.retries += 1
        self._tell_retry(error)
        not_before = self._not_before(batches[0])
        for batch in batches:
            if lost_leader:
                self._cluster.lost_leader(batch.topic, batch.partition)
            self.accumulator.retry(batch, error, not_before=not_before)
        self._expire(trio.current_time())
        self.wake()

    def _not_before(self, batch: Batch) -> float:
        """When a batch that came back may be sent again."""
        attempts = self.accumulator.attempts_with_leader(batch)
        return trio.current_time() + self._cluster.backoff_s(attempts, self._backoff_s)

    def _tell_retry(self, error: HightideError) -> None:
        """In a task of its own: what a user's callback raises ends the producer, whoever met the
        error, and strikes nobody in the middle of something."""
        if self._on_retry is not None:
            start(self._nursery, self._call, partial(self._on_retry, error))

    @staticmethod
    async def _call(tell: Callable[[], None]) -> None:
        tell()

    def _announce(self, batch: Batch) -> None:
        """Wake those who wait for the batch, for room, or for news."""
        self.unseen.keep(batch)
        tell_of(batch)
        self.room.ring()
        self.tell(batch)


def _refusal(
    batch: Batch, result: m.ProduceResult, address: str, before: HightideError | None = None
) -> ApiError:
    """An error of a broker's, as it is told, and the one before it."""
    told = f"; the attempt before: {before.reason}" if before else ""
    return ApiError(
        error_code(result.error or ""),
        f"{result.message} ({batch.topic}-{batch.partition}){told}",
        broker=address,
        attempts=batch.attempts,
        elapsed_s=trio.current_time() - batch.created_at,
    )


async def _fail(error: Exception) -> None:
    raise error
