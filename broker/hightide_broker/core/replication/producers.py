"""The idempotence window of one partition: is this batch new, known, or out of order (KIP-98,
KIP-360)?

For each producer id: its epoch and its last five batches. `check` decides for a client's batch on
the leader; `update` takes a stored batch in, also blindly on replicas and in recovery. State
follows the log: it is updated in the same stretch as the append, and rebuilt from a snapshot and
the batches after it when the log is cut. Snapshots are in Kafka's binary form, but with an entry
for each batch that is remembered, where Kafka keeps the last one only: otherwise a leader that
comes back from a snapshot would take a retry of an older batch for a gap, the producer would bump
its epoch, and the record would be stored twice. Pure.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple

from hightide.protocol.errors import ErrorCode
from hightide.protocol.records import NO_PRODUCER_ID, BatchHeader, crc32c
from hightide.protocol.words import counted
from hightide_broker.core.replication.refusals import BatchRefused

BATCHES_KEPT = 5
SEQUENCE_MAX = (1 << 31) - 1
_SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")


class KnownBatch(NamedTuple):
    """A stored batch of an idempotent producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(slots=True)
class Producer:
    """What is known of one producer id. `batches` are of `epoch` only, oldest first."""

    epoch: int
    batches: deque[KnownBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))

    @property
    def last_timestamp(self) -> int:
        """When it last wrote, ms; -1 if that is not known."""
        return self.batches[-1].timestamp if self.batches else -1


class SnapshotDamaged(Exception):
    """A producer snapshot is not one; an older one is used instead."""


class Producers:
    """Every idempotent producer of one partition."""

    def __init__(self) -> None:
        self._by_id: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, producer_id: int) -> Producer | None:
        """What is known of a producer."""
        return self._by_id.get(producer_id)

    def latest(self, most: int) -> list[tuple[int, Producer]]:
        """Those that wrote last, with their ids, the last one first."""
        return nlargest(most, self._by_id.items(), key=lambda known: known[1].last_timestamp)

    def knows(self, header: BatchHeader) -> bool:
        """Whether the batch is stored; raises `BatchRefused` as `check` does."""
        return self.check(header) is not None

    def check(self, header: BatchHeader) -> KnownBatch | None:
        """None if the batch is to be appended, else the stored batch it repeats.

        Raises `BatchRefused` with INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return None
        known = self._by_id.get(header.producer_id)
        if known is None:
            # It may be new, or was silent for so long that it was forgotten: any sequence will do.
            return None
        first, last = header.base_sequence, header.last_sequence
        if header.producer_epoch < known.epoch:
            raise BatchRefused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {header.producer_epoch}, "
                f"epoch {known.epoch} wrote here already",
                "epoch",
            )
        # A producer raises its epoch when it does not know what was stored, and begins again.
        if header.producer_epoch > known.epoch:
            return self._expect(header, 0)
        # Before the order is looked at: what is repeated is never next.
        for batch in known.batches:
            if (batch.first_sequence, batch.last_sequence) == (first, last):
                return batch
        if not known.batches:
            return None  # its epoch alone is known, by a snapshot: any sequence will do
        return self._expect(header, (known.batches[-1].last_sequence + 1) & SEQUENCE_MAX)

    @staticmethod
    def _expect(header: BatchHeader, sequence: int) -> None:
        if header.base_sequence != sequence:
            raise BatchRefused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence "
                f"{header.base_sequence}, expected {sequence}",
                "sequence",
            )

    def update(self, header: BatchHeader, *, now_ms: int) -> None:
        """Take a stored batch in, whatever its sequence is.

        Its age counts from `now_ms`, not from its records' timestamps: somebody who replays last
        year's events is not an expired producer.
        """
        if header.producer_id == NO_PRODUCER_ID or header.is_control:
            return
        known = self._by_id.get(header.producer_id)
        if known is None or header.producer_epoch != known.epoch:
            known = self._by_id[header.producer_id] = Producer(header.producer_epoch)
        last = known.batches[-1].last_offset if known.batches else -1
        assert header.base_offset > last, f"{header} is taken in again, after {last}"
        known.batches.append(
            KnownBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                now_ms,
            )
        )

    def expire(self, *, before_ms: int) -> int:
        """Forget producers that last wrote before a time; how many."""
        gone = [pid for pid, known in self._by_id.items() if known.last_timestamp < before_ms]
        for producer_id in gone:
            del self._by_id[producer_id]
        return len(gone)

    def clear(self) -> None:
        """Forget everything, before a rebuild."""
        self._by_id.clear()

    def snapshot(self) -> bytes:
        """Kafka's snapshot file: version, CRC-32C, and each producer's batches, oldest first."""
        entries = [
            _ENTRY.pack(
                producer_id,
                known.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.last_offset - batch.base_offset,
                batch.timestamp,
                -1,
                -1,
            )
            for producer_id, known in self._by_id.items()
            for batch in known.batches or [KnownBatch(-1, -1, -1, -1, -1)]
        ]
        body = struct.pack(">i", len(entries)) + b"".join(entries)
        return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(body)) + body

    def restore(self, data: bytes) -> None:
        """Become what a snapshot says; raises `SnapshotDamaged` and is then unchanged."""
        if len(data) < _HEAD.size:
            raise SnapshotDamaged(
                f"{counted(len(data), 'byte is', 'bytes are')} no producer snapshot"
            )
        version, crc, count = _HEAD.unpack_from(data)
        if version != _SNAPSHOT_VERSION or crc != crc32c(data[6:]):
            raise SnapshotDamaged(f"version {version} or checksum of a producer snapshot is wrong")
        if len(data) != _HEAD.size + count * _ENTRY.size:
            raise SnapshotDamaged(
                f"producer snapshot of {counted(count, 'entry')} has {counted(len(data), 'byte')}"
            )
        # A producer without batches is one entry of -1: its epoch alone fences older ones.
        self._by_id.clear()
        for entry in _ENTRY.iter_unpack(data[_HEAD.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, _ = entry
            known = self._by_id.get(producer_id)
            if known is None or known.epoch != epoch:
                known = self._by_id[producer_id] = Producer(epoch)
            if last_offset >= 0:
                first = (last_sequence - delta) & SEQUENCE_MAX
                known.batches.append(
                    KnownBatch(first, last_sequence, last_offset - delta, last_offset, timestamp)
                )
        assert len(self._by_id) <= count, (
            f"{len(self._by_id)} producers, of {counted(count, 'entry')}"
        )
