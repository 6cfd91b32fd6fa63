"""Batches of columns, in rows for Kafka's clients, when they are fetched.

What is stored in rows is sent as it is stored. The rest is rewritten a batch at a time, in turn
with everything else on the event loop, and kept for the next reader: consumers that follow the end
of a log want the same batches within a moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import trio
from msgspec.structs import replace as exchanged

from hightide.protocol import messages as m
from hightide.protocol.conversion import converting
from hightide.protocol.errors import CorruptBatch, ErrorCode
from hightide.protocol.records import BatchHeader, Buffer, iter_batches
from hightide_broker.runtime.base.call import Later, Reply
from hightide_broker.runtime.base.slices import in_slices
from hightide_broker.storage.file_slice import FileSlice

KEPT_BYTES_MAX = 32 << 20
"""Converted batches that are kept, over all partitions."""
CONVERTED_BYTES_MAX = 4 << 20
"""So much of one answer is converted; a batch at least, and the rest when it is asked for."""

Key = tuple[str, int, int, int, int]
"""A topic's id, partition, base offset, leader epoch and checksum: compaction rewrites a batch
under the same offset."""
IdOf = Callable[[str], str]
"""The id of a topic by its name."""


class Conversions:
    """Those of one node that are kept, the last used the longest."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.turn = trio.Lock()
        """One batch is converted at a time: others may want the same, and each takes memory."""
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Key, Buffer] = OrderedDict()
        self._size = 0

    def get(self, key: Key) -> Buffer | None:
        """What a batch was converted to."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def keep(self, key: Key, rows: Buffer) -> None:
        """Keep it until there is no room for it."""
        self._size += len(rows) - len(self._kept.pop(key, b""))
        self._kept[key] = rows
        while self._size > self._bytes_max:
            _, oldest = self._kept.popitem(last=False)
            self._size -= len(oldest)


class _Found(NamedTuple):
    """What one partition's part of an answer holds."""

    data: bytes
    has_columns: bool
    has_zstd: bool


def converted(conversions: Conversions, id_of: IdOf, reply: Reply, *, zstd: bool) -> Later | None:
    """The rest of a fetch's answer: None if it may be sent as it is. `zstd`: whether its reader
    knows that codec. Raises `OSError` or `DiskError`."""
    slices = [part for part in reply.attachments if isinstance(part, FileSlice)]
    if zstd and not any(each.has_columns for each in slices):
        return None
    found = [_look(each.read()) for each in slices]
    if not any(each.has_columns or (each.has_zstd and not zstd) for each in found):
        return None
    assert isinstance(reply.body, m.FetchResponse), "what a fetch is answered with"
    return partial(_convert, conversions, id_of, reply.body, found, zstd=zstd)


def _look(data: bytes) -> _Found:
    headers = [header for header, _ in iter_batches(data)]
    return _Found(
        data,
        has_columns=any(not header.has_rows for header in headers),
        has_zstd=any(header.codec == "zstd" for header in headers),
    )


async def _convert(
    conversions: Conversions,
    id_of: IdOf,
    body: m.FetchResponse,
    found: Sequence[_Found],
    *,
    zstd: bool,
) -> Reply:
    results: list[m.FetchResult] = []
    attachments: list[Buffer] = []
    left = CONVERTED_BYTES_MAX
    for result in body.partitions:
        if result.records < 0:
            results.append(result)
            continue
        part = found[result.records]
        if part.has_zstd and not zstd:
            results.append(_refused(result, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, _NO_ZSTD))
            continue
        try:
            topic_id = id_of(result.topic)
            rows = await _in_rows(conversions, (topic_id, result.partition), part, left)
        except CorruptBatch as error:
            results.append(_refused(result, ErrorCode.CORRUPT_MESSAGE, str(error)))
            continue
        left -= len(rows) if part.has_columns else 0
        results.append(exchanged(result, records=len(attachments)))
        attachments.append(rows)
    return Reply(exchanged(body, partitions=results), attachments)


_NO_ZSTD = "batches in zstd, which a fetch of this version may not bring"


def _refused(result: m.FetchResult, error: ErrorCode, message: str) -> m.FetchResult:
    return exchanged(result, error=error, message=message, records=-1)


async def _in_rows(
    conversions: Conversions, whose: tuple[str, int], part: _Found, left: int
) -> Buffer:
    """As many batches as there is room for; where nothing was converted yet, one at least."""
    if not part.has_columns:
        return part.data
    pieces: list[Buffer] = []
    size = 0
    for header, batch in iter_batches(part.data):
        if size >= left and (pieces or left < CONVERTED_BYTES_MAX):
            break
        rows: Buffer = batch
        if not header.has_rows:
            rows = await _one(conversions, whose, header, batch)
        pieces.append(rows)
        size += len(rows)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _one(
    conversions: Conversions, whose: tuple[str, int], header: BatchHeader, batch: memoryview
) -> Buffer:
    key = (*whose, header.base_offset, header.leader_epoch, header.crc)
    if (rows := conversions.get(key)) is None:
        async with conversions.turn:
            if (rows := conversions.get(key)) is None:
                rows = await in_slices(converting(batch, header))
                conversions.keep(key, rows)
    return rows
