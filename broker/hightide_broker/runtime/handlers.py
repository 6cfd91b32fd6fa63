"""Requests about records: produce, fetch, offsets. The one door where a refusal becomes a code.

Each handler is one synchronous stretch that gives a `Reply`, or the rest of the work to be awaited.
What changes state (an append) happens in that stretch, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import trio

from hightide import messages as m
from hightide.errors import ErrorCode, Refused
from hightide.ports import WallClock
from hightide_broker.config import BrokerConfig
from hightide_broker.runtime.replica import Replica
from hightide_broker.runtime.replicas import Replicas
from hightide_broker.runtime.server import CloseConnection, Reply
from hightide_broker.runtime.watermark import Wake, Watermark
from hightide_broker.storage.segment import FileSlice

FETCH_WAIT_MS_MAX = 60_000
"""The longest a fetch is parked, whatever it asks for."""
PRODUCE_WAIT_MS_MAX = 300_000


class _Waiting(NamedTuple):
    """A produced batch that waits for the watermark of the leader epoch it was appended in."""

    number: int
    committed: Watermark
    end_offset: int


class RecordHandlers:
    """produce, fetch, list_offsets, offset_for_leader_epoch, delete_records."""

    def __init__(self, replicas: Replicas, *, config: BrokerConfig, clock: WallClock) -> None:
        self._replicas = replicas
        self._clock = clock
        self._fetch_bytes_max = config.number("fetch.max.bytes")

    # -- produce ---------------------------------------------------------------------------------

    def produce(
        self, request: m.ProduceRequest, attachments: list[memoryview]
    ) -> Reply | Callable[[], Awaitable[Reply]] | None:
        """Append each batch; with acks=all answer once all are committed or time is up."""
        results: list[m.ProduceResult] = []
        waiting: list[_Waiting] = []
        for number, part in enumerate(request.partitions):
            try:
                result, wait = self._append(number, part, request.acks, attachments)
            except Refused as refusal:
                result, wait = self._produce_error(part, refusal), None
            results.append(result)
            if wait is not None:
                waiting.append(wait)
        if request.acks == 0:
            failed = next((r for r in results if r.error), None)
            if failed is not None:
                raise CloseConnection(f"acks=0 and {failed.error}: {failed.message}")
            return None
        if not waiting:
            return Reply(m.ProduceResponse(partitions=results))
        timeout_s = min(max(request.timeout_ms, 0), PRODUCE_WAIT_MS_MAX) / 1000
        return partial(self._await_commit, request, results, waiting, timeout_s)

    def _append(
        self, number: int, part: m.ProducePartition, acks: int, attachments: list[memoryview]
    ) -> tuple[m.ProduceResult, _Waiting | None]:
        if acks not in (0, 1, m.ACKS_ALL):
            raise Refused(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}, expected 0, 1 or -1 (all)"
            )
        if not 0 <= part.records < len(attachments):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"records is attachment {part.records}, {len(attachments)} came with the request",
            )
        replica = self._replicas.get(part.topic, part.partition)
        appended = replica.append(
            attachments[part.records],
            acks_all=acks == m.ACKS_ALL,
            now_ms=self._clock.now_ms(),
        )
        self._replicas.mark_dirty(replica)
        result = m.ProduceResult(
            topic=part.topic,
            partition=part.partition,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.append_time_ms,
            log_start_offset=replica.log.log_start,
        )
        if acks == m.ACKS_ALL and replica.committed.value < appended.end_offset:
            return result, _Waiting(number, replica.committed, appended.end_offset)
        return result, None

    async def _await_commit(
        self,
        request: m.ProduceRequest,
        results: list[m.ProduceResult],
        waiting: list[_Waiting],
        timeout_s: float,
    ) -> Reply:
        committed = 0
        with trio.move_on_after(timeout_s):
            for wait in waiting:
                try:
                    await wait.committed.wait_for(wait.end_offset)
                except Refused as refusal:
                    part = request.partitions[wait.number]
                    results[wait.number] = self._produce_error(part, refusal)
                committed += 1
        for wait in waiting[committed:]:
            if wait.committed.value < wait.end_offset:
                why = Refused(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"not committed within {timeout_s:g} s; the records may still be",
                )
                results[wait.number] = self._produce_error(request.partitions[wait.number], why)
        return Reply(m.ProduceResponse(partitions=results))

    def _produce_error(self, part: m.ProducePartition, refusal: Refused) -> m.ProduceResult:
        return m.ProduceResult(
            topic=part.topic, partition=part.partition, error=refusal.code, message=refusal.message
        )

    # -- fetch -----------------------------------------------------------------------------------

    def fetch(
        self, request: m.FetchRequest, _: list[memoryview]
    ) -> Reply | Callable[[], Awaitable[Reply]]:
        """Answer at once with enough bytes, an error or no time to wait; else park."""
        answer = self._read_all(request)
        if answer.complete or request.max_wait_ms <= 0:
            return answer.reply
        return partial(self._park, request, answer)

    async def _park(self, request: m.FetchRequest, answer: _FetchAnswer) -> Reply:
        with trio.move_on_after(min(request.max_wait_ms, FETCH_WAIT_MS_MAX) / 1000):
            while not answer.complete:
                wake = Wake()
                try:
                    for committed, seen in answer.seen:
                        committed.wake_at(seen + 1, wake)
                    await wake.wait()
                finally:
                    wake.set()
                answer = self._read_all(request)
        return answer.reply

    def _read_all(self, request: m.FetchRequest) -> _FetchAnswer:
        results: list[m.FetchResult] = []
        slices: list[FileSlice] = []
        seen: list[tuple[Watermark, int]] = []
        left = min(max(request.max_bytes, 0), self._fetch_bytes_max)
        complete = not request.partitions
        for part in request.partitions:
            try:
                replica = self._replicas.get(part.topic, part.partition, topic_id=part.topic_id)
                seen.append((replica.committed, replica.committed.value))
                result, found = self._read_one(request, part, replica, left, first=not slices)
            except Refused as refusal:
                results.append(self._fetch_error(part, refusal))
                complete = True
                continue
            if found is not None:
                result = m.FetchResult(
                    topic=part.topic,
                    partition=part.partition,
                    high_watermark=result.high_watermark,
                    log_start_offset=result.log_start_offset,
                    records=len(slices),
                )
                slices.append(found)
                left = max(left - found.size, 0)
            complete = complete or result.diverging_epoch is not None
            results.append(result)
        size = sum(found.size for found in slices)
        complete = complete or size >= max(request.min_bytes, 1)
        return _FetchAnswer(Reply(m.FetchResponse(partitions=results), slices), complete, seen)

    def _read_one(
        self,
        request: m.FetchRequest,
        part: m.FetchPartition,
        replica: Replica,
        left: int,
        *,
        first: bool,
    ) -> tuple[m.FetchResult, FileSlice | None]:
        """One partition, in Kafka's order of checks."""
        leader = replica.require_leader(part.current_leader_epoch)
        if request.replica_id >= 0 and request.replica_id not in leader.replicas:
            known = part.current_leader_epoch >= 0
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if known else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise Refused(
                code,
                f"broker {request.replica_id} is no replica of {replica.name}: {leader.replicas}",
            )
        log_start, high_watermark, log_end = replica.snapshot()
        result = m.FetchResult(
            topic=part.topic,
            partition=part.partition,
            high_watermark=high_watermark,
            log_start_offset=log_start,
        )
        if part.last_fetched_epoch >= 0:
            epoch, end = replica.log.epochs.end_offset_for(part.last_fetched_epoch, log_end)
            if epoch < 0 or part.fetch_offset < log_start:
                raise Refused(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{replica.name}: offset {part.fetch_offset} of epoch "
                    f"{part.last_fetched_epoch}, the log holds {log_start} to {log_end}",
                )
            if epoch < part.last_fetched_epoch or end < part.fetch_offset:
                return m.FetchResult(
                    topic=part.topic,
                    partition=part.partition,
                    high_watermark=high_watermark,
                    log_start_offset=log_start,
                    diverging_epoch=m.EpochEnd(epoch=epoch, end_offset=end),
                ), None
        found = replica.read_committed(
            part.fetch_offset, max_bytes=min(left, max(part.max_bytes, 0)), at_least_one=first
        )
        return result, found

    def _fetch_error(self, part: m.FetchPartition, refusal: Refused) -> m.FetchResult:
        log_start = -1
        if refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            log_start = self._replicas.get(part.topic, part.partition).log.log_start
        return m.FetchResult(
            topic=part.topic,
            partition=part.partition,
            error=refusal.code,
            message=refusal.message,
            log_start_offset=log_start,
        )

    # -- offsets ---------------------------------------------------------------------------------

    def list_offsets(self, request: m.ListOffsetsRequest, _: list[memoryview]) -> Reply:
        """Earliest, latest, by timestamp, or of the largest timestamp."""
        results = _each(request.partitions, self._list_offset, m.ListOffsetsResult)
        return Reply(m.ListOffsetsResponse(partitions=results))

    def _list_offset(self, part: m.ListOffsetsPartition) -> m.ListOffsetsResult:
        replica = self._replicas.get(part.topic, part.partition)
        leader = replica.require_leader(part.current_leader_epoch)
        log = replica.log
        timestamp = -1
        if part.timestamp == m.EARLIEST:
            offset, epoch = log.log_start, log.epochs.epoch_for_offset(log.log_start)
        elif part.timestamp == m.LATEST:
            if not leader.knows_its_watermark():
                raise Refused(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"the new leader of {replica.name} does not know its watermark yet",
                )
            offset, epoch = replica.high_watermark, leader.epoch
        else:
            if part.timestamp < m.MAX_TIMESTAMP:
                raise Refused(
                    ErrorCode.INVALID_REQUEST, f"timestamp {part.timestamp} has no meaning"
                )
            largest = part.timestamp == m.MAX_TIMESTAMP
            found = (
                replica.find_max_timestamp() if largest else replica.find_timestamp(part.timestamp)
            )
            if found is None and not leader.knows_its_watermark():
                raise Refused(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"the new leader of {replica.name} does not know its watermark yet",
                )
            timestamp, offset, epoch = found or (-1, -1, -1)
        return m.ListOffsetsResult(
            topic=part.topic,
            partition=part.partition,
            offset=offset,
            timestamp=timestamp,
            leader_epoch=epoch,
        )

    def offset_for_leader_epoch(
        self, request: m.OffsetForLeaderEpochRequest, _: list[memoryview]
    ) -> Reply:
        """Where an epoch ends here."""
        results = _each(request.partitions, self._epoch_end, m.EpochResult)
        return Reply(m.OffsetForLeaderEpochResponse(partitions=results))

    def _epoch_end(self, part: m.EpochPartition) -> m.EpochResult:
        replica = self._replicas.get(part.topic, part.partition)
        replica.require_leader(part.current_leader_epoch)
        epoch, end = replica.log.epochs.end_offset_for(part.leader_epoch, replica.log.log_end)
        return m.EpochResult(
            topic=part.topic, partition=part.partition, leader_epoch=epoch, end_offset=end
        )

    def delete_records(self, request: m.DeleteRecordsRequest, _: list[memoryview]) -> Reply:
        """Move log starts up."""
        results = _each(request.partitions, self._delete_records, m.DeleteRecordsResult)
        return Reply(m.DeleteRecordsResponse(partitions=results))

    def _delete_records(self, part: m.DeleteRecordsPartition) -> m.DeleteRecordsResult:
        low = self._replicas.get(part.topic, part.partition).delete_records(part.offset)
        return m.DeleteRecordsResult(topic=part.topic, partition=part.partition, low_watermark=low)


class _Part(Protocol):
    """A partition that a request asks about."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...


P = TypeVar("P", bound=_Part)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _Refusable(Protocol[R_co]):
    """A result that may be a refusal."""

    def __call__(self, *, topic: str, partition: int, error: str, message: str) -> R_co: ...


def _each(parts: Sequence[P], answer: Callable[[P], R], result: _Refusable[R]) -> list[R]:
    """The answer about each partition; where it is refused, a `result` that says so."""
    results = []
    for part in parts:
        try:
            results.append(answer(part))
        except Refused as refusal:
            results.append(
                result(
                    topic=part.topic,
                    partition=part.partition,
                    error=refusal.code,
                    message=refusal.message,
                )
            )
    return results


class _FetchAnswer(NamedTuple):
    """One look at all partitions of a fetch."""

    reply: Reply
    complete: bool
    """Whether it may be sent now."""
    seen: list[tuple[Watermark, int]]
    """Each partition's watermark, and what it was."""
