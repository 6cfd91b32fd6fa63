"""A producer's batch: records of one partition that are sent together, and what becomes of them.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hightide.protocol.columns import Headers, encode_columns
from hightide.protocol.errors import HightideError
from hightide.protocol.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, encode_batch

RECORD_OVERHEAD = 24
"""Bytes a record is counted with besides key, value and headers: lengths, timestamp, Python
objects."""
HEADER_OVERHEAD = 8
"""The same of a header besides name and value."""


class Batch:
    """Records of one partition that are sent together."""

    __slots__ = (
        "attempts", "base_offset", "created_at", "encoded", "error", "headers", "is_done",
        "is_seen", "keys", "log_append_time", "order", "partition", "parts", "retry_error", "room",
        "seen", "sequence", "sequenced", "size", "timestamps", "told", "topic", "values", "waiter",
    )  # fmt: skip

    def __init__(
        self, topic: str, partition: int, created_at: float, order: tuple[int, ...]
    ) -> None:
        self.order = order
        """Its place among the batches of its partition."""
        self.topic = topic
        self.partition = partition
        self.created_at = created_at
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, Headers] = {}
        self.size = 0
        self.room = 0
        """Bytes that it still takes; 0 for good once it is to be sent."""
        self.sequence = NO_SEQUENCE
        self.sequenced = 0
        """How many batches of its partition had got a sequence when this one did."""
        self.encoded: bytearray | None = None
        self.attempts = 0
        self.retry_error: HightideError | None = None
        """Why it was sent again last."""
        self.is_done = False
        self.base_offset = -1
        self.log_append_time = -1
        self.error: HightideError | None = None
        self.seen: Callable[[], None] | None = None
        """To be called when somebody awaited a record of this batch and gets the error."""
        self.is_seen = False
        """Whether somebody has got it: a thread may be quicker than who puts `seen` here."""
        self.parts: list[Batch] = []
        """What it was split into, when it was too large for the topic."""
        self.waiter: object | None = None
        """The shell's event for those who wait for this batch."""
        self.told: list[Callable[[], None]] = []
        """To be called then, for those that wait in threads of their own."""

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        state = "done" if self.is_done else f"seq={self.sequence} attempts={self.attempts}"
        return f"<Batch {self.topic}-{self.partition} records={len(self)} {state}>"

    def encode(self, codec: str, producer_id: int, producer_epoch: int) -> bytearray:
        """The batch's bytes; the same ones again for a retry."""
        if self.encoded is None:
            payload, base, latest = self.payload()
            idempotent = producer_id != NO_PRODUCER_ID
            self.encoded = encode_batch(
                payload,
                record_count=len(self),
                base_timestamp=base,
                max_timestamp=latest,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch if idempotent else NO_PRODUCER_EPOCH,
                base_sequence=self.sequence if idempotent else NO_SEQUENCE,
            )
        return self.encoded

    def raise_error(self) -> None:
        """Raise what ended the batch, if anything did, to somebody who asked."""
        if self.error is not None:
            self.is_seen = True
            if self.seen is not None:
                self.seen()
            raise self.error

    def timestamp(self, index: int) -> int:
        """The time of a record."""
        return self.timestamps[index]

    def payload(self) -> tuple[bytes, int, int]:
        """The columns, the time they count from, and the largest one."""
        base = self.timestamps[0]
        keys = self.keys if any(key is not None for key in self.keys) else None
        columns = encode_columns(
            self.timestamps, keys, self.values, self.headers, base_timestamp=base
        )
        return columns, base, max(self.timestamps)

    def part(self, number: int, start: int, end: int) -> Batch:
        """A new batch of the records [start, end)."""
        part = Batch(self.topic, self.partition, self.created_at, (*self.order, number))
        part.keys = self.keys[start:end]
        part.values = self.values[start:end]
        part.timestamps = self.timestamps[start:end]
        part.headers = {i - start: h for i, h in self.headers.items() if start <= i < end}
        return part


def header_bytes(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """What headers add to a record's size."""
    return sum(len(name) + len(value or b"") + HEADER_OVERHEAD for name, value in headers)
