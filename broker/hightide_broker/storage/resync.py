"""Where whole batches begin again behind a damaged place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hightide.protocol.errors import CorruptBatch
from hightide.protocol.records import HEADER_BYTES, BatchHeader, check_crc, parse_header
from hightide_broker.ports import DiskFile
from hightide_broker.storage.segment import Segment

RESYNC_BYTES_MAX = 64 << 20
"""How far behind a damaged batch the scan looks for a whole one."""

_CHUNK_BYTES = 1 << 20
_MAGIC_AT = 16
_MAGIC = re.compile(rb"[\x48\x02](?=.{4}\x00[\x00-\x7f]{2})", re.DOTALL)
"""A magic byte, and behind it a CRC, attributes below 128 and an offset delta that is not
negative."""


def next_whole_batch(segment: Segment, position: int, *, at_least: int = 0) -> int | None:
    """Where the first whole batch at or behind `position` begins, of offset `at_least` or more.

    None if there is none. A batch inside a record's value does not count: nobody stamped it.
    """
    end = min(segment.size, position + RESYNC_BYTES_MAX)
    first = max(segment.base_offset, at_least)
    for header, candidate in _possible_headers(segment.file, position, end):
        if header.base_offset < first or candidate + header.size > segment.size:
            continue
        try:
            check_crc(segment.file.read(candidate, header.size), header)
        except CorruptBatch:
            continue
        return candidate
    return None


def _possible_headers(file: DiskFile, position: int, end: int) -> Iterator[tuple[BatchHeader, int]]:
    """What could be the header of a batch, and where it begins: any magic byte may be one's."""
    while position < end:
        chunk = file.read(position, _CHUNK_BYTES + HEADER_BYTES)
        for match in _MAGIC.finditer(chunk, _MAGIC_AT, _CHUNK_BYTES + HEADER_BYTES):
            at = match.start() - _MAGIC_AT
            if at >= _CHUNK_BYTES:
                break
            try:
                header = parse_header(chunk, at)
            except CorruptBatch:
                continue
            yield header, position + at
        position += _CHUNK_BYTES
