"""Writes the rows of one task of one micro-batch, so that writing them again stores nothing twice.

A task's producer id and epoch follow from the query, the number of the task and the number of the
batch; sequences count the task's rows of a partition from 0. So a leader knows how many of these
rows it has, whoever sent them: who writes asks it, and goes on behind them. An attempt that is late
is fenced by the epoch of the next batch. Sources: KIP-98, KIP-664.

Rows must come in the same order when a batch is run again, and go to the same partitions. So the
partition counts that a sink reckons with are kept, beside the number of its next batch, as the one
offset of the group `sink-<id>`; they change between batches only. A batch that is below that number
is there as a whole.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from hightide import group_messages as g
from hightide import messages as m
from hightide.arrow_rows import (
    ArrowBatch,
    Rows,
    by_place,
    in_one_order,
    places_of,
    rows_at,
    rows_of,
    topics_of,
)
from hightide.bulk import Cutter
from hightide.errors import ApiError, ErrorCode, HightideError, RequestTimedOut
from hightide.spark.client import BlockingClient

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

DERIVED_IDS = 1 << 62
"""Producer ids from here on are derived; brokers give out those from 0 on."""
EPOCHS = 1 << 15
BATCH_BYTES = 900_000
"""What a batch may take of memory; below max.message.bytes of a topic, 1 MiB."""
RUN_ROWS = 1_000
"""So many rows without a key go to a partition before the next one has its turn."""
GATHERED_ROWS = 65_536
GATHERED_BYTES = 16 << 20
Place = tuple[str, int]


class Attempt(NamedTuple):
    """One task of one batch, whichever attempt at it this is."""

    sink: str
    task: int
    batch: int

    @property
    def producer(self) -> tuple[int, int]:
        """Its producer id and epoch."""
        name = f"{self.sink}/{self.task}/{self.batch // EPOCHS}".encode()
        digest = hashlib.blake2b(name, digest_size=8).digest()
        return DERIVED_IDS | (int.from_bytes(digest, "big") >> 2), self.batch % EPOCHS


class Mark(NamedTuple):
    """What is kept of a sink."""

    next_batch: int = 0
    counts: Mapping[str, int] = {}
    """Topic → partitions, for batches from `next_batch` on."""

    @classmethod
    def read(cls, client: BlockingClient, sink: str, *, timeout_s: float) -> Mark | None:
        """The mark of a sink; None if there is none yet."""
        kept = client.retrying(lambda _: client.committed(group_of(sink)), timeout_s=timeout_s)
        marks = [cls(each.offset, json.loads(each.metadata)) for each in kept]
        return max(marks, key=lambda mark: (mark.next_batch, len(mark.counts)), default=None)

    def write(self, client: BlockingClient, sink: str, *, timeout_s: float) -> None:
        """Keep it."""
        part = g.CommitPartition(
            topic=min(self.counts),
            partition=0,
            offset=self.next_batch,
            metadata=json.dumps(dict(self.counts), sort_keys=True),
        )
        group = group_of(sink)
        client.retrying(lambda _: client.commit_offsets(group, [part]), timeout_s=timeout_s)


def group_of(sink: str) -> str:
    """The group that keeps a sink's mark."""
    return f"sink-{sink}"


class Superseded(HightideError):
    """A later batch was written already: this attempt comes too late."""


class TaskWriter:
    """Writes rows, all of which are committed when `write` returns."""

    def __init__(
        self,
        client: BlockingClient,
        attempt: Attempt,
        *,
        topic: str | None,
        timeout_s: float,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """`counts` None: those of the sink's mark."""
        self.rows = 0
        """How many it was given."""
        self.stored_before = 0
        """How many of them were there already."""
        self._client = client
        self._attempt = attempt
        self._topic = topic
        self._timeout_s = timeout_s
        self._keeps_marks = counts is None
        self._counts = dict(counts or {})
        self._given: dict[Place, int] = {}
        """How many rows of each partition came so far."""
        self._stored: dict[Place, int] = {}
        """How many of them its leader has."""
        self._without_key: dict[str, int] = {}
        self._batch_bytes: dict[str, int] = {}
        """Of topics that refused larger batches."""
        self._now_ms = int(time.time() * 1000)
        self.is_done = False
        """Whether all of this batch is known to be there."""
        if self._keeps_marks:
            mark = Mark.read(client, attempt.sink, timeout_s=timeout_s) or Mark()
            self._counts, self.is_done = dict(mark.counts), attempt.batch < mark.next_batch

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that rows went to."""
        return tuple(sorted({topic for topic, _ in self._given}))

    def write(self, chunk: pa.RecordBatch) -> None:
        """Send these rows, but for those that are there; returns when they are committed."""
        self.rows += len(chunk)
        if self.is_done:
            self.stored_before += len(chunk)
            return
        several = topics_of(chunk) if self._topic is None else {self._topic: None}
        for topic, indexes in sorted(several.items()):
            own = chunk if indexes is None else rows_at(chunk, indexes)
            self._learn_count(topic)
            rows = rows_of(own, self._now_ms)
            places = self._spread(topic, places_of(own, rows, self._counts[topic]))
            for place, which in by_place(places):
                part = rows if which is None else rows.take(which)
                self._write_to((topic, place), part)

    def _spread(self, topic: str, places: np.ndarray) -> np.ndarray:
        """Rows without a partition in runs, from one partition to the next: whoever writes them
        again does the same."""
        import numpy as np

        free = np.flatnonzero(places < 0)
        if len(free):
            first = self._without_key.get(topic, self._attempt.task * RUN_ROWS)
            numbers = np.arange(first, first + len(free))
            places[free] = numbers // RUN_ROWS % self._counts[topic]
            self._without_key[topic] = first + len(free)
        return places

    def _learn_count(self, topic: str) -> None:
        """How many partitions of a topic this batch reckons with, from its first attempt on."""
        if topic in self._counts:
            return
        client, timeout_s = self._client, self._timeout_s
        client.refresh([topic], timeout_s=timeout_s)
        self._counts[topic] = len(client.topics[topic].partitions)
        if self._keeps_marks:
            mark = Mark(self._attempt.batch, self._counts)
            mark.write(client, self._attempt.sink, timeout_s=timeout_s)

    def _write_to(self, where: Place, rows: Rows) -> None:
        first = self._given.get(where, 0)
        self._given[where] = first + len(rows)
        deadline = time.monotonic() + self._timeout_s
        while True:
            stored = self._stored_in(where, deadline)
            if stored >= self._given[where]:
                self.stored_before += len(rows)
                return
            left = rows.slice(max(stored - first, 0), len(rows))
            try:
                self._send_all(where, left, max(stored, first), deadline)
                self.stored_before += len(rows) - len(left)
                return
            except ApiError as error:
                if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                    raise self._superseded(where) from error
                out_of_order = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                if not out_of_order or time.monotonic() > deadline:
                    raise
                # Another attempt at the same task is ahead: look where it is by now.
                self._stored.pop(where)

    def _superseded(self, where: Place) -> Superseded:
        attempt = self._attempt
        return Superseded(
            f"batch {attempt.batch} of sink {attempt.sink!r} comes too late: "
            f"{where[0]}-{where[1]} has a later one"
        )

    def _stored_in(self, where: Place, deadline: float) -> int:
        """How many rows of this batch a leader has, all of them committed; raises `RequestTimedOut`
        if they are not by the deadline."""
        if where not in self._stored:
            producer_id, epoch = self._attempt.producer
            question = m.ProducerQuestion(
                topic=where[0], partition=where[1], producer_id=producer_id
            )
            request = m.DescribeProducersRequest(partitions=[question])
            while True:
                left = max(deadline - time.monotonic(), 0.1)
                answer, _ = self._client.call_leader(*where, request, timeout_s=left)
                state: m.ProducerState = answer.partitions[0]
                if state.producer_epoch > epoch:
                    raise self._superseded(where)
                if state.last_offset < state.high_watermark:
                    break
                if time.monotonic() > deadline:
                    raise RequestTimedOut(
                        f"rows of batch {self._attempt.batch} are in {where[0]}-{where[1]} up to "
                        f"offset {state.last_offset}, committed is what lies below "
                        f"{state.high_watermark}: they may be lost again",
                        elapsed_s=self._timeout_s,
                        knob="deliveryTimeoutMs",
                    )
                time.sleep(0.01)
            is_ours = state.producer_epoch == epoch
            self._stored[where] = state.last_sequence + 1 if is_ours else 0
        return self._stored[where]

    def _send_all(self, where: Place, rows: Rows, first: int, deadline: float) -> None:
        """Rows as batches; `first` is the number of the first one. A topic that takes none so large
        gets smaller ones from then on."""
        cutter = Cutter(rows.sizes())
        while not cutter.is_done:
            start, end, size = cutter.take(self._batch_bytes.get(where[0], BATCH_BYTES))
            batch = ArrowBatch(where[0], where[1], 0.0, (), rows.slice(start, end))
            batch.sequence = first + start
            try:
                self._send(where, batch, deadline)
            except ApiError as error:
                if error.code is not ErrorCode.MESSAGE_TOO_LARGE or len(batch) == 1:
                    raise
                self._batch_bytes[where[0]] = size // 2
                cutter.position = start
            else:
                self._stored[where] = first + end

    def _send(self, where: Place, batch: ArrowBatch, deadline: float) -> None:
        data = batch.encode("none", *self._attempt.producer)
        timeout_s = max(deadline - time.monotonic(), 0.1)
        part = m.ProducePartition(topic=where[0], partition=where[1], records=0)
        request = m.ProduceRequest(
            acks=m.ACKS_ALL, timeout_ms=int(timeout_s * 1000), partitions=[part]
        )
        self._client.call_leader(*where, request, timeout_s=timeout_s, attachments=[data])


def sorted_rows(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in one order, whichever they came in; all of them are held at once."""
    import pyarrow as pa

    if waiting := [*chunks]:
        yield from in_one_order(pa.Table.from_batches(waiting)).to_batches()


def gathered(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger pieces: each piece costs a request for every partition."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for chunk in chunks:
        waiting.append(chunk)
        rows, size = rows + len(chunk), size + chunk.nbytes
        if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows, size = [], 0, 0
    if rows:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
