"""Up to where a pass of compaction goes, and looks.

Method: a log on a simulated disk, as in `test_cleaner.py`; keys that are too many for one pass, and
an active segment that nobody may look into.
"""

from brokers import NOW_MS
from logkit import create
from test_cleaner import RETENTION_MS, TINY, clean, fill, fold, pairs, records_of

from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage import cleaner
from hightide_broker.storage.cleaner import (
    last_producer_batches,
    learn_newest,
    plan_cleaning,
)
from hightide_broker.storage.segment import Segment


def tiny():
    disk = SimDisk()
    return disk, create(disk, config=TINY)


def test_a_tombstone_does_not_go_before_what_it_deletes_where_a_pass_ends_early(monkeypatch):
    """A pass may learn so many keys; behind the last of them all stays as it is."""
    disk, log = tiny()
    monkeypatch.setattr(cleaner, "KEYS_MAX", 2)
    fill(log, *pairs("a1 b1 c1 d1 e1 f1 a- g1 h1 i1"))
    begins, now_ms = 0, NOW_MS
    for _ in range(8):
        begins = clean(disk, log, dirty_from=begins, now_ms=now_ms)
        now_ms += 2 * RETENTION_MS
        assert b"a" not in fold(records_of(log))


def test_no_thread_looks_into_the_segment_that_is_appended_to(monkeypatch):
    _, log = tiny()
    fill(log, *pairs("a1 b1 a2 c1 d1 e1"), producer=(7, 0, -1))
    plan = plan_cleaning(
        log, dirty_from=0, high_watermark=log.log_end, dirty_ratio=0.0, newest_ms=2**62
    )
    active = log.segments[-1].base_offset
    assert plan.until == active

    def locate(segment, offset):
        assert segment.base_offset != active
        return located(segment, offset)

    located = Segment.locate
    monkeypatch.setattr(Segment, "locate", locate)
    assert learn_newest(log, plan)[1] == plan
    assert last_producer_batches(log, plan.until)
