"""A rename that is refused for want of room: the log goes on with what it had.

Goal: a segment that could neither be deleted nor swapped is found by its timestamps as before, and
retention judges it by them.
"""

import pytest
from logkit import DIRECTORY, create, fill, path_of, record_since

from hightide_broker.core.replication.retention import deletable
from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import SimDisk

WEEK_MS = 7 * 24 * 3600 * 1000


class Stubborn(SimDisk):
    """A disk that has no room for another name."""

    refuses = False
    refuses_after = None
    """So many renames are carried out first."""

    def rename(self, old, new):
        if self.refuses_after is not None:
            self.refuses = self.refuses_after == 0
            self.refuses_after -= 1
        if self.refuses:
            raise DiskError(old, "rename", "No space left on device", full=True)
        super().rename(old, new)


def delete(log):
    log.delete_segments(1)


def swap(log):
    file = log._disk.open(f"{path_of(0)}.cleaned", create=True)
    file.append(log._disk.read_file(path_of(0)))
    file.close()
    log.replace_segment(0, f"{path_of(0)}.cleaned")


@pytest.mark.parametrize("change", [delete, swap])
def test_what_stays_is_found_and_judged_by_its_timestamps(change):
    disk = Stubborn()
    log = create(disk)
    fill(log, 40)
    assert DIRECTORY in path_of(0)
    assert log.segment_count > 2

    def known():
        young = {"log_start": 0, "high_watermark": log.log_end, "now_ms": WEEK_MS + 500}
        kept = deletable(log.segments, **young, retention_ms=WEEK_MS, retention_bytes=-1)
        return record_since(log, 1000), log.segments[0].max_timestamp, kept

    before = known()
    assert before[-1] == 0
    disk.refuses = True
    with pytest.raises(DiskError):
        change(log)
    assert known() == before


def test_what_was_renamed_is_no_part_of_the_log_whatever_came_next():
    """Of several segments the first is gone, and the room for the name of the second is not there:
    the next time the others go."""
    disk = Stubborn()
    log = create(disk)
    fill(log, 40)
    first, second, third, *_ = log.segment_bases()
    disk.refuses_after = 1
    assert log.delete_segments(3) == [f"{path_of(first)}.deleted"]
    assert (log.segment_bases()[0], log.log_start) == (second, second)
    log.check_invariants()
    disk.refuses_after, disk.refuses = None, False
    assert log.delete_segments(2) == [f"{path_of(base)}.deleted" for base in (second, third)]
    log.check_invariants()
