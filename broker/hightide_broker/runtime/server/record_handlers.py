"""Requests about records: produce, fetch, offsets. The one door where a refusal becomes a code.

Each handler is one synchronous stretch that gives a `Reply`, or the rest of the work to be awaited.
What changes state (an append) happens in that stretch, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import trio

from hightide.net.ports import WallClock
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.records import NO_PRODUCER_ID
from hightide.protocol.rows import make_ready
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster import offsets_topic
from hightide_broker.core.cluster.image import ClusterImage
from hightide_broker.core.cluster.leader_hint import leader_hint
from hightide_broker.core.replication.leader import Leader
from hightide_broker.core.replication.refusals import BatchRefused
from hightide_broker.core.replication.validation import Facts, at_once_if_short
from hightide_broker.ports import Disk
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.call import Call, CloseConnection, Later, Outcome, Reply
from hightide_broker.runtime.base.slices import in_slices
from hightide_broker.runtime.replication.by_time import finding_newest, finding_timestamp
from hightide_broker.runtime.replication.known_brokers import KnownBrokers
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replicas import Replicas
from hightide_broker.runtime.server.fetch_handler import FetchHandler, ParkedFetch
from hightide_broker.runtime.server.fetch_sessions import FetchSessions, ParkedNews
from hightide_broker.runtime.server.parked_changes import ParkedChange, Waiting

REPEATS_MAX = 100
"""How often partitions may be named again where offsets are looked for."""
LOOKS_MAX = 2
"""Batches that take long and are looked into at a time: each may inflate to
message.inflated.max.bytes, and came in a few thousand."""
PRODUCERS_TOLD_MAX = 5000
"""Producers in one answer: as many as a frame has room for."""


class Metadata(Protocol):
    """What the node knows of the cluster."""

    @property
    def image(self) -> ClusterImage: ...


class RecordHandlers:
    """produce, fetch, list_offsets, offset_for_leader_epoch, describe_producers, delete_records."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        brokers: KnownBrokers,
        *,
        config: BrokerConfig,
        clock: WallClock,
        agenda: Agenda,
        disk: Disk,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._agenda = agenda
        self._in_thread = disk.in_thread
        self._has_looked = False
        self._looking = trio.CapacityLimiter(LOOKS_MAX)
        self._dating = trio.CapacityLimiter(LOOKS_MAX)
        self._fetching = FetchHandler(replicas, brokers, config, agenda, self._hint)
        self._sessions = FetchSessions(self._fetching, agenda)

    # -- produce ---------------------------------------------------------------------------------

    async def look(
        self, parts: Sequence[m.ProducePartition], attachments: Sequence[memoryview]
    ) -> dict[int, Facts | Refused]:
        """What is in batches, or why they are refused."""
        if not self._has_looked:
            self._has_looked = True
            await self._in_thread(make_ready)
        found: dict[int, Facts | Refused] = {}
        for part in parts:
            await trio.lowlevel.checkpoint()  # there may be many, and each refused at once
            try:
                replica = self._replicas.get(part.topic, part.partition, topic_id=part.topic_id)
                replica.require_leadership()
                found[part.records] = await self._look_into(replica, attachments[part.records])
            except Refused as refusal:
                # Also who does not lead now: it may by then, and has not looked.
                found[part.records] = refusal
        return found

    async def _look_into(self, replica: Replica, batch: memoryview) -> Facts:
        """A small batch waits for nobody's large one."""
        facts = at_once_if_short(replica.looking_at(batch))
        if facts is not None:
            return facts
        async with self._looking:
            return await in_slices(replica.looking_at(batch))

    def produce(self, call: Call[m.ProduceRequest]) -> Outcome:
        """Append each batch; with acks=all answer once all are committed or time is up."""
        request = call.request
        results: list[m.ProduceResult] = []
        waiting: list[Waiting] = []
        for number, part in enumerate(request.partitions):
            try:
                result, wait = self._append(number, part, call)
            except Refused as refusal:
                result, wait = self._not_stored(part, refusal), None
                if isinstance(refusal, BatchRefused):
                    self._replicas.traffic.rejected[refusal.cause] += 1
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
        too_late = "not committed within {:g} s; the records may still be"

        def reply(refusals: Mapping[int, Refused]) -> Reply:
            for number, refusal in refusals.items():
                results[number] = self._not_stored(request.partitions[number], refusal)
            return Reply(m.ProduceResponse(partitions=results))

        return ParkedChange(waiting, request.timeout_ms, too_late, reply, self._agenda)

    def _not_stored(self, part: m.ProducePartition, refusal: Refused) -> m.ProduceResult:
        return m.ProduceResult(
            topic=part.topic,
            partition=part.partition,
            error=refusal.code,
            message=refusal.message,
            current_leader=self._hint(part.topic, part.partition, refusal.code),
            record_errors=[
                m.RecordError(index=index, message=why) for index, why in refusal.records.items()
            ],
        )

    def _hint(self, topic: str, partition: int, refused: ErrorCode) -> m.LeaderHint | None:
        return leader_hint(self._metadata.image, topic, partition, refused)

    def _append(
        self, number: int, part: m.ProducePartition, call: Call[m.ProduceRequest]
    ) -> tuple[m.ProduceResult, Waiting | None]:
        acks, attachments = call.request.acks, call.attachments
        if acks not in (0, 1, m.ACKS_ALL):
            raise Refused(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}, expected 0, 1 or -1 (all)"
            )
        if not 0 <= part.records < len(attachments):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"records is attachment {part.records}, {len(attachments)} came with the request",
            )
        offsets_topic.check_produce(part.topic)
        replica = self._replicas.get(part.topic, part.partition, topic_id=part.topic_id)
        facts: Facts | Refused | None = call.facts.get(part.records)
        if isinstance(facts, Refused):
            raise facts
        appended = replica.append(
            attachments[part.records],
            acks_all=acks == m.ACKS_ALL,
            now_ms=self._clock.now_ms(),
            facts=facts,
            feature_levels=self._replicas.feature_levels,
        )
        self._replicas.mark_dirty(replica)
        result = m.ProduceResult(
            topic=part.topic,
            partition=part.partition,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.append_time_ms,
            is_repeated=appended.is_repeated,
            log_start_offset=replica.log.log_start,
        )
        if acks == m.ACKS_ALL and replica.committed.value < appended.end_offset:
            held_up = partial(_held_up, replica, appended.end_offset)
            return result, Waiting(number, replica.committed, appended.end_offset, held_up)
        return result, None

    def fetch(self, call: Call[m.FetchRequest]) -> Reply | ParkedFetch | ParkedNews:
        """Records for followers and consumers."""
        request = call.request
        in_session = request.session_id >= 0
        return self._sessions.fetch(request) if in_session else self._fetching.fetch(request)

    # -- offsets ---------------------------------------------------------------------------------

    def list_offsets(self, call: Call[m.ListOffsetsRequest]) -> Reply | Later:
        """Earliest, latest, by timestamp, or of the largest timestamp."""
        request = call.request
        named = {(part.topic, part.partition) for part in request.partitions}
        if (repeats := len(request.partitions) - len(named)) > REPEATS_MAX:
            # A time is looked for in batches: a small request would take long.
            why = f"partitions are named again {repeats} times, expected {REPEATS_MAX} or less"
            raise Refused(ErrorCode.INVALID_REQUEST, why)
        look = partial(self._list_offset, request.replica_id >= 0)
        if any(map(_is_time, request.partitions)):
            return partial(self._look_for_times, request, look)
        results = _each(request.partitions, look, m.ListOffsetsResult)
        return Reply(m.ListOffsetsResponse(partitions=results))

    async def _look_for_times(
        self,
        request: m.ListOffsetsRequest,
        look: Callable[[m.ListOffsetsPartition], m.ListOffsetsResult],
    ) -> Reply:
        results = []
        for part in request.partitions:
            await trio.lowlevel.checkpoint()
            try:
                results.append(await self._at_time(part) if _is_time(part) else look(part))
            except Refused as refusal:
                results.append(_refused(m.ListOffsetsResult, part, refusal))
        return Reply(m.ListOffsetsResponse(partitions=results))

    async def _at_time(self, part: m.ListOffsetsPartition) -> m.ListOffsetsResult:
        replica = self._replicas.get(part.topic, part.partition, topic_id=part.topic_id)
        replica.require_leader(part.current_leader_epoch)
        async with self._dating:
            if part.timestamp == m.MAX_TIMESTAMP:
                found = await in_slices(finding_newest(replica))
            else:
                found = await in_slices(finding_timestamp(replica, part.timestamp))
        leader = replica.require_leader(part.current_leader_epoch)
        if found is None:
            require_watermark(replica, leader)
        timestamp, offset, epoch = found or (-1, -1, -1)
        return _listed(part, offset, epoch, timestamp)

    def _list_offset(self, is_follower: bool, part: m.ListOffsetsPartition) -> m.ListOffsetsResult:
        replica = self._replicas.get(part.topic, part.partition, topic_id=part.topic_id)
        leader = replica.require_leader(part.current_leader_epoch)
        log = replica.log
        if part.timestamp == m.EARLIEST:
            return _listed(part, log.log_start, log.epochs.epoch_for_offset(log.log_start))
        if part.timestamp != m.LATEST:
            raise Refused(ErrorCode.INVALID_REQUEST, f"timestamp {part.timestamp} has no meaning")
        if is_follower:
            return _listed(part, log.log_end, leader.epoch)
        require_watermark(replica, leader)
        return _listed(part, replica.high_watermark, leader.epoch)

    def offset_for_leader_epoch(self, call: Call[m.OffsetForLeaderEpochRequest]) -> Reply:
        """Where an epoch ends here."""
        results = _each(call.request.partitions, self._epoch_end, m.EpochResult)
        return Reply(m.OffsetForLeaderEpochResponse(partitions=results))

    def _epoch_end(self, part: m.EpochPartition) -> m.EpochResult:
        replica = self._replicas.get(part.topic, part.partition)
        replica.require_leader(part.current_leader_epoch)
        epoch, end = replica.log.epochs.end_offset_for(part.leader_epoch, replica.log.log_end)
        return m.EpochResult(
            topic=part.topic, partition=part.partition, leader_epoch=epoch, end_offset=end
        )

    def describe_producers(self, call: Call[p.DescribeProducersRequest]) -> Reply:
        """How far producers have got here."""
        room = PRODUCERS_TOLD_MAX

        def one(part: p.ProducerQuestion) -> p.ProducerState:
            nonlocal room
            state = self._producer(part, room)
            room -= len(state.producers)
            return state

        results = _each(call.request.partitions, one, p.ProducerState)
        return Reply(p.DescribeProducersResponse(partitions=results))

    def _producer(self, part: p.ProducerQuestion, room: int) -> p.ProducerState:
        replica = self._replicas.get(part.topic, part.partition)
        leader = replica.require_leader(-1)
        require_watermark(replica, leader)
        if part.producer_id == NO_PRODUCER_ID:
            return _every_producer(part, replica, room)
        known = replica.producers.get(part.producer_id)
        last = known.batches[-1] if known is not None and known.batches else None
        return p.ProducerState(
            topic=part.topic,
            partition=part.partition,
            producer_epoch=-1 if known is None else known.epoch,
            last_sequence=-1 if last is None else last.last_sequence,
            last_offset=-1 if last is None else last.last_offset,
            high_watermark=replica.committed.value,
        )

    def delete_records(self, call: Call[m.DeleteRecordsRequest]) -> ParkedChange:
        """Move log starts up; answer once they are up on every live replica, or time is up."""
        request = call.request
        results = _each(request.partitions, self._delete_records, m.DeleteRecordsResult)
        waiting = []
        for number, each in enumerate(results):
            if each.low_watermark >= 0:
                replica = self._replicas.get(each.topic, each.partition)
                deleted = replica.require_leadership().deleted
                waiting.append(Waiting(number, deleted, each.low_watermark))
        too_late = "not deleted everywhere within {:g} s; the records will still be"

        def reply(refusals: Mapping[int, Refused]) -> Reply:
            for number, refusal in refusals.items():
                part = request.partitions[number]
                results[number] = _refused(m.DeleteRecordsResult, part, refusal)
            return Reply(m.DeleteRecordsResponse(partitions=results))

        return ParkedChange(waiting, request.timeout_ms, too_late, reply, self._agenda)

    def _delete_records(self, part: m.DeleteRecordsPartition) -> m.DeleteRecordsResult:
        log_start = self._replicas.get(part.topic, part.partition).delete_records(part.offset)
        return m.DeleteRecordsResult(
            topic=part.topic, partition=part.partition, low_watermark=log_start
        )


def _every_producer(part: p.ProducerQuestion, replica: Replica, room: int) -> p.ProducerState:
    """Those that wrote last, if there is room for so many in the answer."""
    if min(len(replica.producers), PRODUCERS_TOLD_MAX) > room:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"more than {PRODUCERS_TOLD_MAX} producers in one answer: ask for fewer partitions",
        )
    producers = [
        p.KnownProducer(
            producer_id=number,
            epoch=known.epoch,
            last_sequence=known.batches[-1].last_sequence if known.batches else -1,
            last_timestamp=known.last_timestamp,
        )
        for number, known in replica.producers.latest(PRODUCERS_TOLD_MAX)
    ]
    return p.ProducerState(
        topic=part.topic,
        partition=part.partition,
        high_watermark=replica.committed.value,
        producers=producers,
    )


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


def _is_time(part: m.ListOffsetsPartition) -> bool:
    """Whether a record has to be looked for."""
    return part.timestamp >= 0 or part.timestamp == m.MAX_TIMESTAMP


def _listed(
    part: m.ListOffsetsPartition, offset: int, epoch: int, timestamp: int = -1
) -> m.ListOffsetsResult:
    return m.ListOffsetsResult(
        topic=part.topic,
        partition=part.partition,
        offset=offset,
        timestamp=timestamp,
        leader_epoch=epoch,
    )


def require_watermark(replica: Replica, leader: Leader) -> None:
    """Raise `Refused` while a new leader cannot say what is committed."""
    if not leader.knows_its_watermark():
        raise Refused(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"the new leader of {replica.name} does not know its watermark yet: it has "
            f"{leader.high_watermark}, and its epoch began at {leader.epoch_start}",
        )


def _each(parts: Sequence[P], answer: Callable[[P], R], result: _Refusable[R]) -> list[R]:
    """The answer about each partition; where it is refused, a `result` that says so."""
    results = []
    for part in parts:
        try:
            results.append(answer(part))
        except Refused as refusal:
            results.append(_refused(result, part, refusal))
    return results


def _held_up(replica: Replica, offset: int) -> str:
    """Why records below an offset are not committed, as the end of a sentence."""
    leader = replica.leader  # of this epoch: who led on waits on
    if leader is not None and leader.is_contested:
        return (
            f". Others than those in sync, {list(leader.isr)}, may yet lead: a controller has to "
            "hear of these first"
        )
    if leader is None or not (waits_for := leader.waits_for(offset)):
        return ""
    return (
        f". In sync are {list(leader.maximal_isr)}, and {waits_for} have not fetched them: a "
        "controller has to be active to take who is away out of the ISR"
    )


def _refused(result: _Refusable[R], part: _Part, refusal: Refused) -> R:
    return result(
        topic=part.topic, partition=part.partition, error=refusal.code, message=refusal.message
    )
