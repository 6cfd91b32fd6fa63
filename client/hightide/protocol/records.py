"""Record batches: the 61-byte header, the checksum, and what the broker stamps.

What this room is: everything about a batch that does not look inside its payload. A batch is a
big-endian header with the fields of Kafka's v2 header in the same places, then the payload, in the
form that `magic` names: columns (`columns.py`) or Kafka's rows (`rows.py`). The CRC covers
`attributes` to the end, so a broker can stamp `base_offset` and `leader_epoch` without touching it.
Pure: bytes in, bytes out.

Sources: client/README.md for the batch; Kafka's DefaultRecordBatch for the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c as _crc32c

from hightide.protocol.codecs import CODEC_NAMES, ROW_CODECS, Steps, compress
from hightide.protocol.codecs import Buffer as Buffer
from hightide.protocol.errors import CorruptBatch, UnknownMagic

MAGIC = 0x48
"""A batch whose payload is in columns: hightide's own."""
ROWS_MAGIC = 2
"""A batch whose payload is in rows: Kafka's, version 2, stored as it came."""
MAGICS = (MAGIC, ROWS_MAGIC)
HEADER_BYTES = 61
PREFIX_BYTES = 12
"""`base_offset` and `batch_length`: what the batch's length does not count."""
CRC_FROM = 21
"""The CRC covers everything from here, `attributes`, to the end."""
COUNT_MAX = 1 << 24
"""Records in one batch; bounds what the header of a damaged batch can make a reader allocate."""

CRC_BYTES_AT_ONCE = 4 << 20
"""So much is summed up without a pause, where there may be one."""
OFFSET_MAX = (1 << 63) - 1
TIMESTAMP_MAX = OFFSET_MAX // 1000
"""In ms: later ones do not fit into the microseconds that Arrow and Spark count in."""

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
_STAMP_OFFSET = struct.Struct(">q")
_STAMP_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
assert _HEADER.size == HEADER_BYTES


class BatchHeader(NamedTuple):
    """The header's fields; offsets in records, sizes in bytes, timestamps in ms since 1970."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return PREFIX_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record the batch stands for (compaction may have removed it)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 without one; they wrap after 2**31 - 1 (KIP-98)."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> str:
        """Compression name."""
        number = self.attributes & CODEC_MASK
        return CODEC_NAMES.get(number, f"unknown({number})")

    @property
    def has_rows(self) -> bool:
        """Whether the payload is in Kafka's rows; otherwise it is in columns."""
        return self.magic == ROWS_MAGIC

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction of Kafka's."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the records are for the cluster's own use, not for consumers."""
        return bool(self.attributes & CONTROL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record's timestamp is `max_timestamp`, set by the broker."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def delete_horizon(self) -> int | None:
        """When this batch's tombstones may go, in ms; None if compaction has not seen them."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def crc32c(data: Buffer) -> int:
    """CRC-32C (Castagnoli) of `data`."""
    return int(_crc32c(data))


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`.

    Raises `CorruptBatch` if it is cut off or its fields cannot be those of a batch. The checksum
    is `check_crc`'s.
    """
    try:
        header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
    except struct.error as error:
        raise CorruptBatch(f"batch header at byte {position} is cut off") from error
    if header.magic not in MAGICS:
        raise UnknownMagic(
            f"magic at byte {position} is 0x{header.magic & 0xFF:02x}, expected 0x48, or 0x02 for "
            "Kafka's rows"
        )
    if header.size < HEADER_BYTES:
        raise CorruptBatch(f"batch at byte {position} says {header.size} bytes, less than a header")
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.next_offset > OFFSET_MAX:
        raise CorruptBatch(
            f"batch at byte {position} has offsets {header.base_offset} "
            f"+ {header.last_offset_delta}"
        )
    if not 0 <= header.record_count <= COUNT_MAX:
        raise CorruptBatch(f"batch at byte {position} counts {header.record_count} records")
    return header


def check_crc(batch: Buffer, header: BatchHeader) -> None:
    """Raise `CorruptBatch` unless `batch` is exactly `header.size` bytes with the right
    checksum."""
    view = memoryview(batch)
    if len(view) != header.size:
        raise CorruptBatch(
            f"batch at offset {header.base_offset} has {len(view)} bytes, "
            f"its header says {header.size}"
        )
    found = crc32c(view[CRC_FROM:])
    if found != header.crc:
        raise CorruptBatch(
            f"batch at offset {header.base_offset} has CRC 0x{found:08x}, "
            f"its header says 0x{header.crc:08x}"
        )


def iter_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each whole batch in `buffer` with its bytes, without a copy; a partial tail is left out.

    Raises `CorruptBatch` on a header that cannot be one. Checksums are not looked at.
    """
    view = memoryview(buffer)
    position = 0
    while position + HEADER_BYTES <= len(view):
        header = parse_header(view, position)
        end = position + header.size
        if end > len(view):
            return
        yield header, view[position:end]
        position = end


def encode_batch(
    payload: Buffer,
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    last_offset_delta: int | None = None,
    codec: str = "none",
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    magic: int = MAGIC,
) -> bytearray:
    """A whole batch around the columns or rows in `payload`, which are compressed here if `codec`
    says so."""
    if magic == ROWS_MAGIC and not record_count:
        codec = "none"  # as Kafka does it; its clients inflate nothing from nothing
    batch = bytearray(HEADER_BYTES)
    batch += compress(payload, codec, lz4_linked=magic == MAGIC)
    delta = record_count - 1 if last_offset_delta is None else last_offset_delta
    fields = (
        base_offset,
        len(batch) - PREFIX_BYTES,
        leader_epoch,
        magic,
        0,
        attributes | ROW_CODECS[codec],
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    _HEADER.pack_into(batch, 0, *fields)
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def resealing(batch: bytearray, header: BatchHeader, *, codec: str, magic: int) -> Steps[None]:
    """Write the header of a batch whose records were written anew behind it, in place: of this
    form and codec now, and otherwise as it was. In steps, for large ones."""
    sealed = header._replace(
        batch_length=len(batch) - PREFIX_BYTES,
        magic=magic,
        crc=0,
        attributes=header.attributes & ~CODEC_MASK | ROW_CODECS[codec],
    )
    _HEADER.pack_into(batch, 0, *sealed)
    view, crc = memoryview(batch), 0
    for start in range(CRC_FROM, len(batch), CRC_BYTES_AT_ONCE):
        crc = _crc32c(view[start : start + CRC_BYTES_AT_ONCE], crc)
        yield
    _CRC.pack_into(batch, 17, crc)


def stamp(batch: bytearray | memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Write the two fields a leader assigns, in place; the CRC does not cover them."""
    _STAMP_OFFSET.pack_into(batch, 0, base_offset)
    _STAMP_EPOCH.pack_into(batch, 12, leader_epoch)


def stamp_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Set LogAppendTime: every record's timestamp becomes `now_ms`. The CRC is computed again."""
    attributes = struct.unpack_from(">h", batch, CRC_FROM)[0]
    struct.pack_into(">h", batch, CRC_FROM, attributes | LOG_APPEND_TIME)
    stamp_max_timestamp(batch, now_ms)


def stamp_max_timestamp(batch: bytearray | memoryview, max_timestamp: int) -> None:
    """Correct what a batch says is its newest record's time. The CRC is computed again."""
    struct.pack_into(">q", batch, 35, max_timestamp)
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
