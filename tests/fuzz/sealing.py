"""Batches out of any bytes: what would stop a fuzzer at the first check is put right for it.

A checksum is not guessed, nor is a compressed payload changed into another one. So the first byte
of an input says what is done to the batch behind it, and an input that says nothing comes as it is.
No test lives here.
"""

import struct

import cramjam

from hightide.protocol.codecs import CODECS, ROW_CODECS, compress
from hightide.protocol.records import (
    CODEC_MASK,
    CRC_FROM,
    HEADER_BYTES,
    PREFIX_BYTES,
    ROWS_MAGIC,
    crc32c,
)

SEALED = 0x01
"""Magic, length and checksum are right."""
PRODUCED = 0x02
"""The header says of its records what a producer's does, whatever they are."""
PACKED = 0x04
"""The payload is compressed by the codec that the header names."""
BARE = 0x08
"""Snappy without the frame that Kafka's Java client puts around its blocks."""
WITH_ARROW = 0x10
"""It is made into a table as well."""
CONVERTED = 0x20
"""It is written in the other form as well, and compacted, and read again."""
JUDGED = 0x40
"""What would be stored is read by a client that nobody here wrote."""
LAST_DELTA_MAX = 0x0FFF
"""So many records, less one, a header may say that was put right."""

_MAGIC_AT, _CRC_AT = 16, 17
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")
_LAST_DELTA_AT, _PRODUCER_AT, _COUNT_AT = 23, 43, 57


def batch_in(data, magic):
    """The flags of an input, and the batch that it stands for."""
    flags, batch = (data[0] if data else 0), bytearray(data[1:])
    if flags & SEALED and len(batch) >= HEADER_BYTES:
        batch = _sealed(batch, flags, magic)
    return flags, batch


def _sealed(batch, flags, magic):
    batch[_MAGIC_AT] = magic
    if flags & PRODUCED:
        _as_a_producers(batch)
    if flags & PACKED:
        batch[HEADER_BYTES:] = _packed(bytes(batch[HEADER_BYTES:]), flags, magic, batch)
    struct.pack_into(">i", batch, 8, len(batch) - PREFIX_BYTES)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def _as_a_producers(batch):
    batch[:8] = bytes(8)
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CRC_FROM)
    _ATTRIBUTES.pack_into(batch, CRC_FROM, attributes & CODEC_MASK)
    (last,) = struct.unpack_from(">i", batch, _LAST_DELTA_AT)
    last &= LAST_DELTA_MAX
    struct.pack_into(">i", batch, _LAST_DELTA_AT, last)
    struct.pack_into(">i", batch, _COUNT_AT, last + 1)
    _PRODUCER.pack_into(batch, _PRODUCER_AT, -1, -1, -1)


def _packed(payload, flags, magic, batch):
    number = batch[CRC_FROM + 1] & CODEC_MASK
    has_rows = magic == ROWS_MAGIC
    names = {at: name for name, at in (ROW_CODECS if has_rows else CODECS).items()}
    codec = names.get(number, "none")
    if codec == "snappy" and flags & BARE:
        return bytes(cramjam.snappy.compress_raw(payload))
    return bytes(compress(payload, codec, lz4_linked=not has_rows))
