"""Opening a segment's indexes: are they sound, what do they tell, and building them again.

An index is a cache of its segment. It is believed only if its entries rise, lie inside the file and
its last ones name batches that are there. A segment without batches needs none.
"""

from __future__ import annotations

from itertools import pairwise

from hightide_broker.storage.segment import Segment, SegmentDamage


def load_trusted(segment: Segment) -> bool:
    """Open a segment whose bytes are trusted; whether a damaged or missing index was rebuilt."""
    if not has_sound_indexes(segment):
        rebuild_indexes(segment)
        return True
    note_first_timestamp(segment)
    segment.indexes.go_on_at(segment.size)
    segment.learn(until=segment.size)
    return False


def note_first_timestamp(segment: Segment) -> None:
    """Learn when a segment began, by its first batch."""
    if not segment.size:
        return
    first = segment.header_at(0).max_timestamp
    segment.indexes.first_timestamp = first if first >= 0 else None


def has_sound_indexes(segment: Segment) -> bool:
    """`_indexes_are_sound`; an entry that leads to no batch is not sound."""
    try:
        return _indexes_are_sound(segment)
    except SegmentDamage:
        return False


def _indexes_are_sound(segment: Segment) -> bool:
    """Whole entries, both columns rising, inside the file, and the last one names a batch."""
    offsets, times = segment.indexes.offsets, segment.indexes.times
    if not (segment.size or offsets.exists or times.exists):
        return True
    for index in (offsets, times):
        if not index.exists or not index.has_whole_entries():
            return False
        for before, after in pairwise(index.entries()):
            if before[0] >= after[0] or before[1] > after[1]:
                return False
    last = offsets.last
    if last is not None:
        if last[1] >= segment.size:
            return False
        if segment.header_at(last[1]).last_offset != segment.base_offset + last[0]:
            return False
    last_time = times.last
    if last_time is None:
        return True
    found = segment.locate(segment.base_offset + last_time[1])
    return (
        found is not None
        and found[0].max_timestamp == last_time[0]
        and found[0].last_offset == segment.base_offset + last_time[1]
    )


def rebuild_indexes(segment: Segment) -> None:
    """Index a segment again from its batches' headers; raises `SegmentDamage`."""
    segment.forget_indexes()
    end_offset = segment.base_offset
    for header, position in segment.headers():
        segment.note(header, position)
        end_offset = header.next_offset
    segment.end_offset = end_offset
    segment.indexes.flush(final=True)
