"""A leader epoch checkpoint that lags behind its log, and catches up when the log is opened.

Batches below the recovery point are not scanned: epochs that begin there and are not in the file
would be missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from hightide.protocol.records import BatchHeader
from hightide_broker.storage.epochs import EpochCache
from hightide_broker.storage.segment import RELATIVE_OFFSET_MAX, Segment, SegmentDamage


def catch_up(
    epochs: EpochCache, segments: list[Segment], log_start: int, recovery_point: int
) -> bool:
    """Rebuild the epochs from the headers below the recovery point, if the file was not written
    since the last of those epochs began; whether that was so."""
    header = _last_below(segments, recovery_point)
    if header is None:
        return False
    known = epochs.epoch_for_offset(max(header.base_offset, log_start))
    if known >= header.leader_epoch:
        return False
    headers = _headers_below(segments, recovery_point)
    epochs.rebuild(headers, start=segments[0].base_offset)
    return True


def _last_below(segments: list[Segment], offset: int) -> BatchHeader | None:
    """The last batch that begins below an offset; a damaged header is not ours to find."""
    last: BatchHeader | None = None
    for segment in reversed(segments):
        with suppress(SegmentDamage):
            for header, _ in segment.headers(_position_before(segment, offset)):
                if header.base_offset >= offset:
                    break
                last = header
        if last is not None:
            break
    return last


def _position_before(segment: Segment, offset: int) -> int:
    """The position of some batch that begins below an offset, not far before it; 0 if there is
    none."""
    relative = min(offset - 1 - segment.base_offset, RELATIVE_OFFSET_MAX)
    return segment.indexed_position(segment.base_offset + relative) if relative >= 0 else 0


def _headers_below(segments: list[Segment], offset: int) -> Iterator[BatchHeader]:
    """The headers of all batches that begin below an offset; nothing behind is looked at."""
    for segment in segments:
        for header, _ in segment.headers():
            yield header
            if header.next_offset >= offset:
                return
