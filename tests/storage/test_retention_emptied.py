"""Retention and segments that compaction emptied: nothing is left in them that could be too young.

Goal: with `cleanup.policy=compact,delete` records go by age although every record before them was
replaced, and what must stay stays. Method: segments written out, as in
`replication/test_retention.py`; a log that is really compacted; a node whose clock goes on.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from brokers import NOW_MS, FakeClock, batch, client_of, new_node
from cleankit import clean
from logkit import create, lead

from hightide_broker.core.replication.retention import deletable
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.log import Log
from hightide_broker.storage.segment import LogConfig

RETENTION_MS = 10_000
OLD, YOUNG, NONE = NOW_MS - RETENTION_MS - 1, NOW_MS, -1


class Piece(NamedTuple):
    """A segment, as far as retention looks at it."""

    next_base_offset: int
    max_timestamp: int
    size: int = 100


def laid_out(*times: int) -> list[Piece]:
    """Segments of ten offsets each; the last one is active."""
    return [Piece(10 * number, time) for number, time in enumerate(times, 1)]


def count(pieces: list[Piece], *, high_watermark: int | None = None) -> int:
    """How many go by age, where nothing else limits."""
    return deletable(
        pieces,
        log_start=0,
        high_watermark=pieces[-1].next_base_offset if high_watermark is None else high_watermark,
        now_ms=NOW_MS,
        retention_ms=RETENTION_MS,
        retention_bytes=-1,
    )


@pytest.mark.parametrize(
    ("times", "gone"),
    [
        ((NONE, OLD, YOUNG), 2),
        ((NONE, NONE, NONE, OLD, YOUNG), 4),
        ((OLD, NONE, OLD, YOUNG), 3),
        ((NONE, OLD, NONE, OLD, YOUNG, YOUNG), 4),
        ((NONE, OLD), 2),
    ],
)
def test_old_segments_behind_emptied_ones_go_and_the_emptied_ones_with_them(times, gone):
    assert count(laid_out(*times)) == gone


@pytest.mark.parametrize("times", [(NONE, YOUNG, OLD, YOUNG), (NONE, NONE, YOUNG, OLD)])
def test_what_is_young_stays_behind_an_emptied_segment_and_keeps_all_after_it(times):
    assert count(laid_out(*times)) <= times.index(YOUNG)


@pytest.mark.parametrize("high_watermark", [0, 9, 10, 19, 20, 25])
def test_no_emptied_segment_leads_past_the_high_watermark(high_watermark):
    pieces = laid_out(NONE, OLD, NONE, OLD, YOUNG)
    gone = count(pieces, high_watermark=high_watermark)
    assert all(piece.next_base_offset <= high_watermark for piece in pieces[:gone])


def test_an_active_segment_that_never_held_anything_stays():
    assert count([*laid_out(OLD, NONE, OLD), Piece(30, NONE, size=0)]) == 3


# --- a log that is compacted --------------------------------------------------------------------

TINY = LogConfig(segment_bytes=600)


def fill(log: Log, keys: str, time: int) -> None:
    """A record of each key, so wide that a segment holds three."""
    for key in keys:
        lead(log, batch(b"v" * 80, keys=[key.encode()], times=[time]))


def test_the_age_of_a_compacted_log_is_that_of_the_records_that_are_left():
    disk = SimDisk()
    log = create(disk, config=TINY)
    fill(log, "aaaaaaaaa", OLD)
    fill(log, "abcdefghi", OLD)
    fill(log, "xyz", YOUNG)
    clean(disk, log)
    times = [segment.max_timestamp for segment in log.segments]
    assert times[0] == NONE, "the first one holds no record any more"
    old = [segment for segment in log.segments if segment.max_timestamp == OLD]
    gone = deletable(
        log.segments,
        log_start=0,
        high_watermark=log.log_end,
        now_ms=NOW_MS,
        retention_ms=RETENTION_MS,
        retention_bytes=-1,
    )
    assert gone >= log.segments.index(old[-1]) + 1
    assert log.segments[gone].max_timestamp == YOUNG


async def test_a_node_deletes_by_age_what_lies_behind_compacted_segments():
    configs = {
        "cleanup.policy": "compact,delete",
        "segment.bytes": "1024",
        "min.cleanable.dirty.ratio": "0",
        "retention.ms": str(RETENTION_MS),
    }
    clock = FakeClock()
    async with new_node(SimDisk(), clock=clock) as node, client_of(node) as client:
        await client.create(configs=configs)
        for key in "aaaaaaaabcdefgh":
            await client.send(batch(b"v" * 300, keys=[key.encode()]))
        log = node.replicas.get("t", 0).log
        await node._housekeeping.look_once()
        assert log.segments[0].max_timestamp == NONE
        clock.ms += RETENTION_MS + 1
        await client.send(batch(b"young", keys=[b"z"], times=[clock.ms]))
        young = log.segments[-1].base_offset
        await node._housekeeping.look_once()
        assert log.log_start == young
        assert [record.key for record in await client.read_all(young)][-1] == b"z"
