"""Writes the rows of one task of one micro-batch, so that writing them again stores nothing twice.

A task's producer id and epoch follow from the query, the number of the task and the number of the
batch; sequences count the task's rows of a partition from 0. So a leader knows how many rows of the
task it has, no matter who sent them, and takes a row with the next number only: of two attempts at
a time one is told that the number is taken. An attempt that is late is fenced by the epoch of the
next batch. Sources: KIP-98, KIP-664.

Who finds that rows are stored reads them back (`stored.py`) and stores the others. The rows may
come in any order; but within a run of the query they have to be the rows of this task: if some that
are stored are not among them, the task fails before it stores anything, or, if it is to, stores
what is missing all the same. What earlier runs of the query stored of the batch may be anybody's
(`earlier.py`).

The partition counts that a batch reckons with are kept with the mark of its sink (`marks.py`): they
change between batches only; what a task has to do with that is in `task_mark.py`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hightide.arrow.from_arrow import (
    ArrowBatch,
    Rows,
    by_place,
    hashes_of,
    places_of,
    rows_at,
    rows_of,
    topics_of,
)
from hightide.produce.bulk import Cutter
from hightide.protocol import producer_messages as p
from hightide.protocol.errors import (
    TOO_LARGE,
    ApiError,
    ErrorCode,
    RequestTimedOut,
)
from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted
from hightide.spark.attempts import Attempt, Superseded
from hightide.spark.client import BlockingClient
from hightide.spark.earlier import Earlier, Wanted
from hightide.spark.in_flight import InFlight, produce_request
from hightide.spark.marks import Mark, TopicMark, Writing
from hightide.spark.stored import Lane, LayoutChanged, Stored, first_sequence
from hightide.spark.task_mark import TaskMark

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from hightide.protocol.columns import Record

log = logging.getLogger("hightide.spark")

BATCH_BYTES = 900_000
"""What a batch may take of memory; below max.message.bytes of a topic, 1 MiB."""


class TaskWriter:
    """Writes rows; all of them are committed when `finish` returns."""

    def __init__(
        self,
        client: BlockingClient,
        attempt: Attempt,
        *,
        topic: str | None,
        timeout_s: float,
        writing: Writing | None = None,
        topics: Mapping[str, TopicMark] | None = None,
        earlier: Earlier | None = None,
        may_duplicate: bool = False,
    ) -> None:
        """`topics`: as a batch job found them; None: there is a mark, and `writing` says who
        writes. `may_duplicate`: rows that are stored and are not this task's are left alone.

        Raises `SinkClash`, and what `finish` raises."""
        self.rows = 0
        """How many it was given."""
        self.bytes = 0
        """What they take, as the producer counts."""
        self.stored_before = 0
        """How many of them were there already."""
        self.deferred: Wanted = Counter()
        """Rows that are for the driver: earlier runs stored such."""
        self._ends: dict[TopicPartition, int] = {}
        """How many rows of this task each partition has."""
        self._bases: dict[TopicPartition, int] = {}
        """How many of them earlier runs have stored."""
        self._client, self._attempt = client, attempt
        self._topic, self._timeout_s = topic, timeout_s
        self._may_duplicate, self._earlier = may_duplicate, earlier or Earlier()
        self._topics = dict(topics or {})
        self._mark: TaskMark | None = None
        self._stored = Stored()
        self._held: list[tuple[TopicPartition, Rows]] = []
        """Not stored yet: whether the stored ones are this task's is to be seen first."""
        self._late: list[tuple[TopicPartition, Rows]] = []
        self._is_last = False
        self._batch_bytes: dict[str, int] = {}
        """Of topics that refused larger batches."""
        self._in_flight = InFlight(client, timeout_s=timeout_s)
        self._now_ms = int(time.time() * 1000)
        if topics is None:
            about = client, attempt, writing or Writing()
            self._mark = TaskMark(*about, may_duplicate=may_duplicate, timeout_s=timeout_s)
            self._topics, self._earlier = self._mark.begin()
        if self._topics:
            self._look(self._still_there())

    @property
    def done(self) -> Mark | None:
        """The mark that said that all of this batch is there."""
        return None if self._mark is None else self._mark.done

    @property
    def is_done(self) -> bool:
        """Whether all of this batch is known to be there."""
        return self.done is not None

    @property
    def stored(self) -> dict[TopicPartition, int]:
        """How many rows of each partition this run of the query has stored, as this task."""
        counts = {tp: end - self._bases.get(tp, 0) for tp, end in self._ends.items()}
        return {tp: count for tp, count in counts.items() if count}

    @property
    def topic_ids(self) -> dict[str, str]:
        """Of the topics that it has to do with."""
        return {topic: each.topic_id for topic, each in self._topics.items()}

    @property
    def begins(self) -> dict[str, tuple[int, ...]]:
        """Where rows of earlier runs end in these, as it goes by."""
        return {topic: each.ends for topic, each in self._topics.items()}

    def write(self, chunk: pa.RecordBatch) -> None:
        """Send these rows, but for those that are there."""
        self.rows += len(chunk)
        several = topics_of(chunk) if self._topic is None else {self._topic: None}
        if not self.is_done:
            self._learn(several)
        if self.is_done:
            self.stored_before += len(chunk)
        for topic, indexes in sorted(several.items()):
            own = chunk if indexes is None else rows_at(chunk, indexes)
            rows = rows_of(own, self._now_ms)
            self.bytes += int(rows.sizes()[-1])
            if self.is_done:
                continue
            self._offer_all(
                (TopicPartition(topic, place), rows if which is None else rows.take(which))
                for place, which in by_place(self._places(topic, own, rows))
            )

    def settle(self) -> None:
        """Until nothing is in flight: it is stored, or held as it may be stored already."""
        while self._in_flight:
            self._hear()

    def _without_deferred(self, tp: TopicPartition, rows: Rows) -> Rows:
        if not self._earlier:
            return rows
        left, wanted = self._earlier.deferred(tp, rows)
        self.deferred += wanted
        self.stored_before += len(rows) - len(left)
        return rows.take(left)

    def store(self, tp: TopicPartition, records: Sequence[Record]) -> None:
        """As `write`, for records of one partition; a time of -1 becomes that of day."""
        import pyarrow as pa

        self.rows += len(records)
        self._learn([tp.topic])
        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        headers = [[{"key": k, "value": v} for k, v in each.headers] or None for each in records]
        times = [None if each.timestamp < 0 else each.timestamp for each in records]
        columns = {
            "key": pa.array([each.key for each in records], pa.binary()),
            "value": pa.array([each.value for each in records], pa.binary()),
            "headers": pa.array(headers, pa.list_(pair)),
            "timestamp": pa.array(times, pa.timestamp("ms")),
        }
        self._send_all(tp, rows_of(pa.record_batch(columns), self._now_ms))
        self.settle()

    def finish(self) -> None:
        """All rows came. Raises `LayoutChanged` if some that are stored are not among them."""
        self.settle()
        self._is_last, late, self._late = True, self._late, []
        for tp, rows in late:
            self._offer(tp, rows)
        self.settle()
        if self.is_done or not self._stored.count:
            return
        attempt, what = self._attempt, f"{counted(self._stored.count, 'row')} of {self._stored}"
        told = (
            f"task {attempt.task} of batch {attempt.batch} of sink {attempt.sink!r} was given "
            f"{counted(self.rows, 'row')}; {what} were stored by an earlier attempt and are "
            "not among them"
        )
        if not self._may_duplicate:
            raise LayoutChanged(
                f"{told}: the query shares out its rows in another way than then (cores, "
                "partitions, files, settings, or the query itself are others), or does not give "
                "the same rows twice. This task stored nothing now. Run the batch as it was run "
                "then; or set onLayoutChange=duplicate: no row is lost, and those are stored twice"
            )
        log.warning("%s: they are there twice, onLayoutChange=duplicate", told)
        self._stored = Stored()
        self._send_held()
        self.settle()

    # -- where rows go ---------------------------------------------------------------------------

    def _places(self, topic: str, chunk: pa.RecordBatch, rows: Rows) -> np.ndarray:
        """The partition of each row. It follows from the row alone, also where any would do: who
        writes it again does the same, whatever came before it."""
        import numpy as np

        count = self._topics[topic].count
        named = chunk.column("partition") if "partition" in chunk.schema.names else None
        most = count if named is None or not len(named) else self._most(topic, named, count)
        places = places_of(chunk, rows, most, key_count=count)
        free = np.flatnonzero(places < 0)
        if len(free):
            values = rows.values if len(free) == len(rows) else rows.take(free).values
            places[free] = hashes_of(values) % count
        return places

    def _most(self, topic: str, named: pa.Array, count: int) -> int:
        """How many partitions rows may name: those that were added since, too."""
        import pyarrow.compute as pc

        largest = pc.max(named).as_py()
        if largest is None or largest < count:
            return count
        self._client.refresh([topic], timeout_s=self._timeout_s)
        return max(count, self._client.metadata.partition_count(topic))

    def _learn(self, names: Iterable[str]) -> None:
        """How many partitions topics have, for this batch, from its first attempt on."""
        topics = [topic for topic in names if topic not in self._topics]
        if not topics:
            return
        if self._mark is not None:
            now = self._mark.learn(topics)
            if self.is_done:
                return
        else:  # nobody keeps where the rows of a job begin
            self._client.refresh([*topics], timeout_s=self._timeout_s)
            found = {topic: self._client.metadata.topics[topic] for topic in topics}
            now = {t: TopicMark(f.topic_id, (0,) * len(f.partitions)) for t, f in found.items()}
        self._topics |= now
        self._look(topics)

    # -- what is stored --------------------------------------------------------------------------

    def _still_there(self) -> list[str]:
        """The topics of the batch, but for those that are gone, or were made again, with all that
        was in them; a row that names one finds out more."""
        client, names = self._client, [*self._topics]
        gone = client.refresh(names, timeout_s=self._timeout_s, gone=frozenset(names))
        known = client.metadata.topics
        self._topics = {
            topic: each
            for topic, each in self._topics.items()
            if topic not in gone and each.is_of(known[topic].topic_id)
        }
        return [*self._topics]

    def _look(self, topics: Sequence[str]) -> None:
        """What there is of this task in topics that were just seen."""
        client, timeout_s = self._client, self._timeout_s
        producer_id, _ = self._attempt.producer
        questions = {
            TopicPartition(topic, each.partition): p.ProducerQuestion(
                topic=topic, partition=each.partition, producer_id=producer_id
            )
            for topic in topics
            for each in client.metadata.topics[topic].partitions
        }
        states = client.ask_leaders(p.DescribeProducersRequest, questions, timeout_s=timeout_s)
        for tp, state in states.items():
            self._take(tp, state, time.monotonic() + timeout_s)

    def _take(self, tp: TopicPartition, state: p.ProducerState, deadline: float) -> None:
        """Read back what a leader has of this task beyond what is known."""
        producer_id, epoch = self._attempt.producer
        while True:
            if state.producer_epoch > epoch:
                raise self._superseded(tp)
            if state.last_offset < state.high_watermark:
                break
            if time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"rows of batch {self._attempt.batch} are in {tp[0]}-{tp[1]} up to "
                    f"offset {state.last_offset}, committed is what lies below "
                    f"{state.high_watermark}: they may be lost again",
                    elapsed_s=self._timeout_s,
                    knob="deliveryTimeoutMs",
                )
            time.sleep(0.01)
            state = self._ask(tp, deadline)
        end = state.last_sequence + 1 if state.producer_epoch == epoch else 0
        begin, last = self._topics[tp[0]].begin(tp[1]), state.last_offset
        lane = Lane(tp, producer_id, epoch)
        if tp not in self._bases:
            self._bases[tp] = self._base(lane, end, begin, last)
        known = self._ends.setdefault(tp, self._bases[tp])
        if end > known:
            self._stored.read(self._client, lane, range(known, end), begin, last)
        self._ends[tp] = max(end, known)

    def _base(self, lane: Lane, end: int, begin: int, last_offset: int) -> int:
        """The number of the first row that this run has stored, or will: its rows lie from an
        offset on, and one of them last if any does."""
        if last_offset < begin:
            return end
        before = self._earlier.lanes[lane.tp, lane.producer_id]
        if not before:
            return 0
        # A leader that had forgotten this producer began again with whatever came first.
        first = first_sequence(self._client, lane, begin, last_offset + 1)
        return before if first is None else min(before, first)

    def _ask(self, tp: TopicPartition, deadline: float) -> p.ProducerState:
        producer_id, _ = self._attempt.producer
        question = p.ProducerQuestion(topic=tp[0], partition=tp[1], producer_id=producer_id)
        answer, _ = self._client.call_leader(
            *tp,
            p.DescribeProducersRequest(partitions=[question]),
            timeout_s=max(deadline - time.monotonic(), 0.1),
        )
        state: p.ProducerState = answer.partitions[0]
        return state

    def _superseded(self, tp: TopicPartition) -> Superseded:
        attempt = self._attempt
        return Superseded(
            f"batch {attempt.batch} of sink {attempt.sink!r} comes too late: "
            f"{tp[0]}-{tp[1]} has a later one"
        )

    # -- storing ---------------------------------------------------------------------------------

    def _offer_all(self, parts: Iterable[tuple[TopicPartition, Rows]]) -> None:
        """Offer rows of several partitions, of which each has a batch in flight meanwhile."""
        left = [(tp, self._without_deferred(tp, rows)) for tp, rows in parts]
        if self._stored.count:
            for tp, rows in left:
                self._offer(tp, rows)
            return
        sending = deque(self._sending(tp, rows) for tp, rows in left)
        while sending:
            one = sending.popleft()
            if next(one, None) is not None:
                sending.append(one)

    def _offer(self, tp: TopicPartition, rows: Rows) -> None:
        """Send rows that are not stored yet, as soon as all that are stored have been matched."""
        if not self._stored.count:
            self._send_all(tp, rows)
            return
        # What is heard of these may be told of more that is stored: of the rows here, and of those
        # that are held from now on.
        self.settle()
        left, late = self._stored.left_of(tp, rows, is_last=self._is_last)
        self.stored_before += len(rows) - len(left) - len(late)
        for some, waiting in ((left, self._held), (late, self._late)):
            if len(some):
                waiting.append((tp, rows.take(some)))
        if not self._stored.count:
            self._send_held()

    def _send_held(self) -> None:
        held, self._held, self._late = [*self._held, *self._late], [], []
        for tp, rows in held:
            self._offer(tp, rows)

    def _send_all(self, tp: TopicPartition, rows: Rows) -> None:
        """Send rows as batches; the last one is in flight when this returns."""
        for _ in self._sending(tp, rows):
            pass

    def _sending(self, tp: TopicPartition, rows: Rows) -> Iterator[ArrowBatch]:
        """The same in steps: each batch that was sent."""
        cutter = Cutter(rows.sizes())
        while not cutter.is_done:
            start, end, _ = cutter.take(self._batch_bytes.get(tp[0], BATCH_BYTES))
            # Packed before it is known what became of the one before it, which is mostly nothing.
            batch = self._packed(tp, rows.slice(start, end), self._in_flight.rows_of(tp))
            while not self._in_flight.has_room(tp):
                self._hear()
            if self._stored.count:
                self._offer(tp, rows.slice(start, len(rows)))
                return
            assert batch.sequence == self._ends[tp], "what was packed before is stored"
            self._in_flight.send(tp, batch, self._topics[tp[0]].topic_id)
            yield batch

    def _packed(self, tp: TopicPartition, rows: Rows, ahead: int = 0) -> ArrowBatch:
        """A batch behind those that are stored, and so many rows."""
        batch = ArrowBatch(tp[0], tp[1], 0.0, (), rows)
        batch.sequence = self._ends.setdefault(tp, 0) + ahead
        batch.encode("none", *self._attempt.producer)
        return batch

    def _hear(self) -> None:
        """Hear what became of the batch that was sent first, and have it stored."""
        deadline = time.monotonic() + self._timeout_s
        tp, batch, is_stored = self._in_flight.hear()
        if is_stored:
            self._ends[tp] += len(batch)
        else:
            self._insist(tp, batch.rows, deadline)

    def _insist(self, tp: TopicPartition, rows: Rows, deadline: float) -> None:
        """Have rows stored, batch by batch. A topic that takes none so large gets smaller ones from
        then on."""
        cutter = Cutter(rows.sizes())
        while not cutter.is_done:
            start, end, size = cutter.take(self._batch_bytes.get(tp[0], BATCH_BYTES))
            batch = self._packed(tp, rows.slice(start, end))
            try:
                is_ours = self._send(tp, batch, deadline)
            except ApiError as error:
                if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                    raise self._superseded(tp) from error
                if error.code in TOO_LARGE and len(batch) > 1:
                    self._batch_bytes[tp[0]] = size // 2
                    cutter.position = start
                    continue
                if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise
                is_ours = False
            if is_ours:
                self._ends[tp] += len(batch)
                continue
            # The number is taken: by this very batch, whose answer was lost, or by another attempt
            # at the same task. What is stored tells.
            self._take(tp, self._ask(tp, deadline), deadline)
            if self._ends[tp] > batch.sequence:
                self._offer(tp, rows.slice(start, len(rows)))
                return
            if time.monotonic() > deadline:
                raise LayoutChanged(
                    f"{tp[0]}-{tp[1]} does not take row {batch.sequence} of this task, as if "
                    "rows before it had been lost"
                )
            time.sleep(0.05)
            cutter.position = start

    def _send(self, tp: TopicPartition, batch: ArrowBatch, deadline: float) -> bool:
        """Whether it was stored now."""
        assert batch.encoded is not None, "what is sent was packed"
        timeout_s = max(deadline - time.monotonic(), 0.1)
        request = produce_request(tp, self._topics[tp[0]].topic_id, timeout_s)
        parts = [batch.encoded]
        answer, _ = self._client.call_leader(*tp, request, timeout_s=timeout_s, attachments=parts)
        return not answer.partitions[0].is_repeated
