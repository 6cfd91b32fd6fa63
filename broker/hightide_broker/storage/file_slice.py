"""What is found for a reader: a range of a file; and the last batch of a log, from memory."""

from __future__ import annotations

from typing import NamedTuple

from hightide.protocol.records import ROWS_MAGIC, BatchHeader, Buffer
from hightide_broker.ports import DiskFile

TAIL_BYTES_MAX = 4 << 10
"""A batch up to this size stays in memory until it is committed: followers ask for it within a
millisecond, each, and to find, read and check it is a tenth of what a leader does then."""


class FileSlice(NamedTuple):
    """Checked batches, as a range of a file: sent by `sendfile` or read when they are needed."""

    file: DiskFile
    position: int
    size: int
    next_offset: int
    """The offset after the last batch of the slice."""
    has_rows: bool = False
    """Whether any of them is one of Kafka's rows."""
    has_columns: bool = True
    """Whether any of them may be one of columns."""
    batch_count: int = 1
    in_memory: bytes = b""
    """The bytes, if they need not be read."""

    def read(self) -> bytes:
        """The bytes of the slice. Raises `DiskError`, and `OSError` if the file became shorter."""
        if self.in_memory:
            return self.in_memory
        data = self.file.read(self.position, self.size)
        if len(data) != self.size:
            raise OSError(f"{self.file.path} shrank while it was being read")
        return data


class Tail(NamedTuple):
    """The last batch of a log, which is small and not committed yet."""

    header: BatchHeader
    found: FileSlice

    @classmethod
    def of(cls, batch: Buffer, header: BatchHeader, file: DiskFile, position: int) -> Tail | None:
        """A batch that was just written at a position; None if it is too large."""
        if len(batch) > TAIL_BYTES_MAX:
            return None
        has_rows = header.magic == ROWS_MAGIC
        found = FileSlice(
            file,
            position,
            len(batch),
            header.next_offset,
            has_rows=has_rows,
            has_columns=not has_rows,
            in_memory=bytes(batch),
        )
        return cls(header, found)

    def holds(self, offset: int) -> bool:
        """Whether a reader from there gets this batch first."""
        return self.header.base_offset <= offset < self.header.next_offset

    def within(self, max_bytes: int, limit_offset: int, *, at_least_one: bool) -> FileSlice | None:
        """The batch, if limits as of `Segment.read` have room for it."""
        fits = at_least_one or self.found.size <= max_bytes
        return self.found if fits and self.header.next_offset <= limit_offset else None
