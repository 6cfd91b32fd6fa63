"""Records of a partition, as text for a page: bounded in number, in bytes and in time."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import trio

from hightide import EARLIEST, LATEST, Consumer, Record, TopicPartition

LIMIT_MAX = 500
SCANNED_MAX = 50_000
"""Records that are looked at for those with a key."""
SEARCH_S = 5.0
AT_ONCE = 500
TEXT_MAX = 64 << 10
"""Of a key, a value or a header that is shown; more is cut, and said."""


class Wanted(NamedTuple):
    """Which records."""

    topic: str
    partition: int
    offset: int = -1
    """From here on; -1: the newest."""
    time_ms: int = -1
    """From the first one on that is not older."""
    key: str = ""
    """Only those whose key has this text in it."""
    limit: int = 50

    @property
    def newest(self) -> bool:
        """Whether those are wanted that were written last."""
        return self.offset < 0 and self.time_ms < 0


async def search(bootstrap: str, options: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The records, and where to go on; raises what a consumer does."""
    tp = TopicPartition(wanted.topic, wanted.partition)
    limit = min(max(wanted.limit, 1), LIMIT_MAX)
    found: deque[Record] = deque(maxlen=limit)
    """Of the newest, the last ones; of others, the first."""
    async with Consumer(bootstrap, auto_offset_reset="earliest", **options) as consumer:
        await consumer.assign([tp])
        start = (await consumer.offsets(EARLIEST))[tp].offset
        end = (await consumer.offsets(LATEST))[tp].offset
        at = await _begin(consumer, tp, wanted, start, end, limit)
        if at >= end:
            return {"records": [], "start": start, "end": end, "next": end, "scanned": 0}
        consumer.seek(tp.topic, tp.partition, at)
        scanned, next_offset = 0, at
        with trio.move_on_after(SEARCH_S):
            while next_offset < end and scanned < SCANNED_MAX:
                for record in await consumer.poll(timeout_ms=500, max_records=AT_ONCE):
                    if len(found) == limit and not wanted.newest:
                        break
                    scanned, next_offset = scanned + 1, record.offset + 1
                    if wanted.key.encode() in (record.key or b""):
                        found.append(record)
                if len(found) == limit and not wanted.newest:
                    break
    records = [shown(record) for record in found]
    return {"records": records, "start": start, "end": end, "next": next_offset, "scanned": scanned}


async def _begin(
    consumer: Consumer, tp: TopicPartition, wanted: Wanted, start: int, end: int, limit: int
) -> int:
    if wanted.time_ms >= 0:
        at = (await consumer.offsets(wanted.time_ms))[tp].offset
        return end if at < 0 else at
    if wanted.offset >= 0:
        return max(wanted.offset, start)
    return max(end - (SCANNED_MAX if wanted.key else limit), start)


def shown(record: Record) -> dict[str, Any]:
    """A record as text, with what cannot be text in hex."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": [[name, text_of(value)] for name, value in record.headers or ()],
    }


def text_of(data: bytes | None) -> dict[str, Any] | None:
    """Bytes for people: UTF-8 if they are that, else hex; cut if there are too many."""
    if data is None:
        return None
    piece, is_cut = data[:TEXT_MAX], len(data) > TEXT_MAX
    # A cut may lie inside of a character: up to three bytes of it are left out then.
    for left_out in range(4 if is_cut else 1):
        with contextlib.suppress(UnicodeDecodeError):
            text = piece[: len(piece) - left_out].decode()
            return {"text": text, "size": len(data), "cut": is_cut}
    return {"hex": piece.hex(" "), "size": len(data), "cut": is_cut}
