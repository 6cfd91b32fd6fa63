"""The producer's memory: records gather into batches by partition, and batches go out in order.
Pure.

What this room is: batching by size and linger, memory, sequences of idempotence, order under retry,
expiry. What it is not: it sends nothing and waits for nothing (`producer.py` does).

A partition's queue holds `pending` batches (to be sent, in order) and `in_flight` ones. Legal moves
of a batch: filling → pending → in flight → done, and in flight → pending when it is to be sent
again.

Order and idempotence (KIP-98, KIP-360):
* a batch gets its sequence when it is first sent and keeps it over retries;
* while a batch waits to be sent again, nothing later is sent before it;
* a batch that failed for good leaves a gap: when nothing is in flight any more, the epoch is bumped
  and what is pending starts at sequence 0. A sequence is never used for other data; one that may be
  stored nevertheless, as an attempt brought no answer, leaves it open until those behind it tell;
* after its last epoch a partition goes on under another producer id (`wants_id`).

What a topic refused as too large is remembered: later batches are made half as large, and those
that wait are halved before they get a sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

from hightide.protocol.batch_builder import RECORD_OVERHEAD, Batch
from hightide.protocol.columns import Headers
from hightide.protocol.errors import HightideError
from hightide.protocol.records import NO_PRODUCER_ID, NO_SEQUENCE

SEQUENCE_MAX = (1 << 31) - 1
EPOCH_MAX = (1 << 15) - 1


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """One partition's batches, and its place in the producer's sequence."""

    topic: str
    partition: int
    pending: deque[Batch] = field(default_factory=deque)
    in_flight: list[Batch] = field(default_factory=list)
    batch_size: int = 0
    """Its batches are made so large, in bytes as the producer counts them."""
    producer_id: int = NO_PRODUCER_ID
    """Under which it sends, from its first batch on."""
    producer_epoch: int = 0
    next_sequence: int = 0
    last_acknowledged: int = -1
    """Sequence of the last acknowledged record of this epoch."""
    retrying: bool = False
    """Something is being sent again: nothing may overtake it."""
    gap: tuple[int, ...] | None = None
    """The order of the first batch that was refused for good: bump the epoch once everything before
    it has its outcome. What was sent behind it cannot have been stored."""
    batch_count: int = 0
    sequenced_count: int = 0
    is_used_up: bool = False
    """Its last epoch has a gap: it waits for another producer id."""
    unresolved: bool = False
    """A batch that was sent expired, or was refused when it was sent again; whether it is stored is
    not known."""
    backoff_until: float = 0.0
    tried_epoch: int = -1
    """The newest leader epoch that something was sent in."""
    attempts_before: int = 0
    """How often its first batch had been sent when that epoch was new."""

    @property
    def room(self) -> int:
        """Bytes that its last batch still takes."""
        return self.pending[-1].room if self.pending else 0

    @property
    def can_grow(self) -> bool:
        """Whether more may be put into its first batch."""
        return len(self.pending) == 1 and self.room > 0

    @property
    def is_idle(self) -> bool:
        return not self.pending and not self.in_flight


class Accumulator:
    """All queues of a producer. Times are seconds on the caller's monotonic clock, sizes bytes."""

    def __init__(
        self,
        *,
        batch_size: int,
        linger_s: float,
        buffer_memory: int,
        delivery_timeout_s: float,
        max_in_flight: int,
        codec: str,
    ) -> None:
        self._batch_size = batch_size
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._max_in_flight = max_in_flight
        self._codec = codec
        self.free_bytes = buffer_memory
        self.flushing = 0
        """How many flushes wait: nothing lingers meanwhile."""
        self.waiting_for_memory = 0
        """How many senders wait for memory: nothing lingers meanwhile."""
        self.producer_id = NO_PRODUCER_ID
        """What partitions begin with, and go on with after their last epoch."""
        self.acknowledged_records = self.acknowledged_batches = self.failed_records = 0
        self._sizes: dict[str, int] = {}
        """Batch sizes of topics that refused larger ones."""
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._active: dict[PartitionQueue, None] = {}

    epoch_max = EPOCH_MAX

    # -- filling ---------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        size: int,
        now: float,
    ) -> tuple[Batch, bool]:
        """Put a record of `size` bytes at the end of its partition; its batch, of which it is the
        last record, and whether a sender has news: a new batch, for which one before it is full."""
        batch, news = self._open_batch(topic, partition, size, now)
        if headers:
            batch.headers[len(batch.values)] = headers
        batch.keys.append(key)
        batch.values.append(value)
        batch.timestamps.append(timestamp)
        batch.size += size
        batch.room -= size
        self.free_bytes -= size
        return batch, news

    def join(self, batch: Batch, key: bytes | None, value: bytes, timestamp: int) -> int:
        """As `append`, for a record that joins others: its place, or 0 if there is no room now."""
        size = RECORD_OVERHEAD + len(value) + (0 if key is None else len(key))
        if size > batch.room or size > self.free_bytes or self.waiting_for_memory:
            return 0
        place = len(batch.values)
        batch.keys.append(key)
        batch.values.append(value)
        batch.timestamps.append(timestamp)
        batch.size += size
        batch.room -= size
        self.free_bytes -= size
        return place

    def extend(
        self,
        topic: str,
        partition: int,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        timestamp: int,
        size: int,
        now: float,
    ) -> tuple[Batch, bool]:
        """As `append`, for records of one time that fit into one batch together; their batch, whose
        last records they are."""
        batch, news = self._open_batch(topic, partition, size, now)
        batch.keys.extend(keys if keys is not None else repeat(None, len(values)))
        batch.values.extend(values)
        batch.timestamps.extend(repeat(timestamp, len(values)))
        batch.size += size
        batch.room -= size
        self.free_bytes -= size
        return batch, news

    def add(
        self,
        topic: str,
        partition: int,
        make: Callable[[tuple[int, ...]], Batch],
        size: int,
    ) -> Batch:
        """Put a whole batch of `size` bytes behind whatever its partition holds; `make` gets its
        place."""
        queue = self._queue(topic, partition)
        queue.batch_count += 1
        batch = make((queue.batch_count,))
        batch.size = size
        if queue.pending:
            queue.pending[-1].room = 0  # nothing that comes later goes before this one
        queue.pending.append(batch)
        self._active[queue] = None
        self.free_bytes -= size
        return batch

    def _queue(self, topic: str, partition: int) -> PartitionQueue:
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._queues[(topic, partition)] = PartitionQueue(topic, partition)
            queue.batch_size = self.batch_size(topic)
        return queue

    def batch_size(self, topic: str) -> int:
        """How large the batches of a topic are made."""
        return self._sizes.get(topic, self._batch_size)

    def _open_batch(self, topic: str, partition: int, size: int, now: float) -> tuple[Batch, bool]:
        """The batch that takes the next `size` bytes of a partition, and whether it is new."""
        queue = self._queue(topic, partition)
        if size <= queue.room:
            return queue.pending[-1], False
        batch = self.add(topic, partition, partial(Batch, topic, partition, now), 0)
        batch.room = queue.batch_size
        return batch, True

    def room(self, topic: str, partition: int) -> int:
        """Bytes that fit into the batch that is being filled for a partition; if that is full or
        there is none, into the next one."""
        queue = self._queue(topic, partition)
        return queue.room if queue.room > 0 else queue.batch_size

    def has_room(self, size: int) -> bool:
        """Whether there is memory for so many bytes, and nobody waits for some."""
        return size <= self.free_bytes and not self.waiting_for_memory

    def has_room_in_batch(self, topic: str, partition: int, size: int) -> bool:
        """Whether a record fits into the batch that is being filled for a partition."""
        queue = self._queues.get((topic, partition))
        return queue is not None and size <= queue.room

    # -- sending ---------------------------------------------------------------------------------

    def active(self) -> list[PartitionQueue]:
        """The queues that hold anything."""
        return list(self._active)

    def queue_of(self, batch: Batch) -> PartitionQueue:
        """The queue that a batch is in, or was."""
        return self._queues[(batch.topic, batch.partition)]

    def queue_alone(self, batch: Batch) -> PartitionQueue | None:
        """The queue of a batch, if that holds nothing else and none of it is under way."""
        queue = self.queue_of(batch)
        return queue if len(queue.pending) == 1 and not queue.in_flight else None

    def ready_at(self, queue: PartitionQueue, now: float, leader_epoch: int = -1) -> float:
        """When the queue's first batch may be sent to the leader of that epoch: now or before,
        later, or never (infinity)."""
        self._resolve(queue)
        if not queue.pending or len(queue.in_flight) >= self._max_in_flight or queue.is_used_up:
            return float("inf")
        if queue.in_flight and (queue.retrying or queue.gap is not None or queue.unresolved):
            return float("inf")
        if queue.in_flight and self.producer_id != NO_PRODUCER_ID:
            if queue.last_acknowledged < 0:
                # The first batch goes alone: a broker that has never heard of this producer takes
                # whatever comes first for the beginning.
                return float("inf")
            # A broker knows the last five batches: were more sent behind one whose answer is lost,
            # its repetition would not be recognised.
            oldest = min(batch.sequenced for batch in queue.in_flight)
            if queue.sequenced_count - oldest + 1 >= self._max_in_flight:
                return float("inf")
        first = queue.pending[0]
        is_whole = len(queue.pending) > 1 or first.size >= queue.batch_size or first.attempts
        waits_not = is_whole or self.flushing or self.waiting_for_memory
        linger_ends = now if waits_not else first.created_at + self._linger_s
        # Another leader is no reason to wait: it was the one before that failed (KIP-951).
        is_another = leader_epoch > queue.tried_epoch
        return linger_ends if is_another else max(linger_ends, queue.backoff_until)

    def _resolve(self, queue: PartitionQueue) -> None:
        """Close a gap in the sequence once nothing is in flight."""
        gap = queue.gap
        if queue.in_flight or (gap is None and not queue.unresolved):
            return
        if any(b.sequence != NO_SEQUENCE and (gap is None or b.order < gap) for b in queue.pending):
            return  # sent before, outcome unknown: their own retry will tell
        expected = (queue.last_acknowledged + 1) & SEQUENCE_MAX
        if gap is not None or expected != queue.next_sequence:
            is_last = queue.producer_epoch == self.epoch_max
            queue.is_used_up = is_last and queue.producer_id == self.producer_id
            if queue.is_used_up:
                return
            queue.producer_id = self.producer_id if is_last else queue.producer_id
            queue.producer_epoch = 0 if is_last else queue.producer_epoch + 1
            queue.next_sequence = 0
            queue.last_acknowledged = -1
            for batch in queue.pending:
                batch.sequence = NO_SEQUENCE
                batch.encoded = None
        queue.gap = None
        queue.unresolved = False

    @property
    def wants_id(self) -> bool:
        """Whether a partition has used up its epochs: `producer_id` is to become another one."""
        return any(queue.is_used_up for queue in self._active)

    def shrink(self, queue: PartitionQueue) -> list[Batch]:
        """Halve a queue's first batch until its topic takes it, as far as is known; the batches
        that were split."""
        split: list[Batch] = []
        while (batch := queue.pending[0]).size > queue.batch_size and len(batch) > 1:
            if batch.sequence != NO_SEQUENCE:
                break  # it was sent: its outcome has to be known
            queue.pending.popleft()
            self._halve(queue, batch)
            split.append(batch)
        return split

    def drain(
        self, queues: Iterable[PartitionQueue], *, max_bytes: int
    ) -> list[tuple[Batch, bytearray]]:
        """The first batch of each queue, encoded, up to `max_bytes` together but at least one."""
        taken: list[tuple[Batch, bytearray]] = []
        total = 0
        for queue in queues:
            batch = queue.pending[0]
            if queue.producer_id == NO_PRODUCER_ID:
                queue.producer_id = self.producer_id
            if batch.sequence == NO_SEQUENCE and queue.producer_id != NO_PRODUCER_ID:
                batch.sequence = queue.next_sequence
                queue.sequenced_count += 1
                batch.sequenced = queue.sequenced_count
                queue.next_sequence = (queue.next_sequence + len(batch)) & SEQUENCE_MAX
            batch.room = 0
            encoded = batch.encode(self._codec, queue.producer_id, queue.producer_epoch)
            if taken and total + len(encoded) > max_bytes:
                # It keeps the sequence and the bytes it just got, for the next request.
                break
            total += len(encoded)
            queue.pending.popleft()
            queue.in_flight.append(batch)
            # To the end of the line: every partition gets its turn.
            self._active[queue] = self._active.pop(queue)
            batch.attempts += 1
            taken.append((batch, encoded))
        return taken

    # -- outcomes --------------------------------------------------------------------------------

    def succeed(self, batch: Batch, base_offset: int, log_append_time: int = -1) -> None:
        """The batch is acknowledged."""
        queue = self.queue_of(batch)
        if batch.sequence != NO_SEQUENCE:
            queue.last_acknowledged = (batch.sequence + len(batch) - 1) & SEQUENCE_MAX
        batch.base_offset = base_offset
        batch.log_append_time = log_append_time
        self._finish(queue, batch, None)

    def try_with(self, queue: PartitionQueue, leader_epoch: int) -> None:
        """What is ready is about to be sent to the leader of that epoch."""
        if leader_epoch > queue.tried_epoch:
            queue.tried_epoch, queue.attempts_before = leader_epoch, queue.pending[0].attempts

    def attempts_with_leader(self, batch: Batch) -> int:
        """How often a batch was sent to the leader that has it now, at least once."""
        queue = self.queue_of(batch)
        return max(batch.attempts - queue.attempts_before, 1)

    def retry(self, batch: Batch, error: HightideError, *, not_before: float) -> None:
        """The batch is to be sent again, in its place, not before a time."""
        queue = self.queue_of(batch)
        queue.in_flight.remove(batch)
        batch.retry_error = error
        self._put_back(queue, [batch])
        queue.retrying = True
        queue.backoff_until = max(queue.backoff_until, not_before)

    def _put_back(self, queue: PartitionQueue, batches: list[Batch]) -> None:
        """To be sent again, each in its place: `pending` is in order always."""
        for batch in batches:
            place = 0
            while place < len(queue.pending) and queue.pending[place].order < batch.order:
                place += 1
            queue.pending.insert(place, batch)
        self._active[queue] = None

    def is_first_outstanding(self, batch: Batch) -> bool:
        """Whether nothing earlier of its partition is unanswered."""
        queue = self.queue_of(batch)
        return all(other.order >= batch.order for other in (*queue.in_flight, *queue.pending))

    @staticmethod
    def _open_gap(queue: PartitionQueue, batch: Batch) -> None:
        if queue.gap is None or batch.order < queue.gap:
            queue.gap = batch.order

    def refuse_sequence(self, batch: Batch, error: HightideError, *, not_before: float) -> None:
        """The broker misses a batch before this one, and there is none: number again and send
        again."""
        queue = self.queue_of(batch)
        self._open_gap(queue, batch)
        self.retry(batch, error, not_before=not_before)

    def fail(self, batch: Batch, error: HightideError) -> None:
        """The batch was refused for good. It is not stored, unless an attempt before brought no
        answer: who may not write is told so before anybody looks whether it repeats."""
        queue = self.queue_of(batch)
        if batch.sequence != NO_SEQUENCE and batch.attempts > 1:
            queue.unresolved = True
        elif batch.sequence != NO_SEQUENCE:
            self._open_gap(queue, batch)
        self._finish(queue, batch, error)

    def split(self, batch: Batch) -> list[Batch]:
        """The batch was refused as too large: two halves take its place, and its topic gets smaller
        batches from now on."""
        assert len(batch) > 1, f"{batch!r} cannot be split"
        queue = self.queue_of(batch)
        queue.in_flight.remove(batch)
        if batch.sequence != NO_SEQUENCE:
            self._open_gap(queue, batch)
        size = min(self.batch_size(batch.topic), max(batch.size // 2, 1))
        self._sizes[batch.topic] = size
        for other in self._queues.values():
            if other.topic == batch.topic:
                other.batch_size = size
                if other.room > 0:
                    other.pending[-1].room = max(size - other.pending[-1].size, 0)
        return self._halve(queue, batch)

    def _halve(self, queue: PartitionQueue, batch: Batch) -> list[Batch]:
        middle = len(batch) // 2
        halves = [_part(batch, 0, 0, middle), _part(batch, 1, middle, len(batch))]
        self._put_back(queue, halves)
        batch.parts = halves
        batch.is_done = True
        batch.room = 0
        return halves

    def expire(self, now: float) -> list[Batch]:
        """Batches that waited longer than the delivery timeout and are not in flight; removed."""
        expired: list[Batch] = []
        for queue in self._active:
            # The same sum as in `next_expiry`, or rounding makes its caller spin.
            while queue.pending and queue.pending[0].created_at + self._delivery_timeout_s <= now:
                batch = queue.pending.popleft()
                batch.room = 0
                if batch.attempts and self.producer_id != NO_PRODUCER_ID:
                    queue.unresolved = True
                expired.append(batch)
        return expired

    def abandon(self, batch: Batch, error: HightideError) -> None:
        """Tell those who wait for an expired batch."""
        self._finish(self._queues[(batch.topic, batch.partition)], batch, error)

    def next_expiry(self) -> float:
        """When the oldest pending batch expires; infinity if there is none."""
        created = [queue.pending[0].created_at for queue in self._active if queue.pending]
        return min(created, default=float("inf")) + self._delivery_timeout_s

    def unfinished(self) -> list[Batch]:
        """Every batch without an outcome."""
        return [b for queue in self._active for b in (*queue.in_flight, *queue.pending)]

    def _finish(self, queue: PartitionQueue, batch: Batch, error: HightideError | None) -> None:
        for batches in (queue.in_flight, queue.pending):
            if batch in batches:
                batches.remove(batch)
        self.free_bytes += batch.size
        if error is None:
            self.acknowledged_records += len(batch)
            self.acknowledged_batches += 1
        else:
            self.failed_records += len(batch)
        batch.error = error
        batch.is_done = True
        batch.room = 0
        batch.encoded = None
        if queue.retrying and not queue.in_flight and not any(b.attempts for b in queue.pending):
            queue.retrying = False
            queue.backoff_until, queue.attempts_before = 0.0, 0
        if queue.is_idle:
            self._active.pop(queue, None)


def _part(batch: Batch, number: int, start: int, end: int) -> Batch:
    part = batch.part(number, start, end)
    part.size = batch.size * (end - start) // len(batch)
    if end == len(batch):
        part.size = batch.size - batch.size * start // len(batch)
    part.attempts = 1  # so that it does not linger
    return part
