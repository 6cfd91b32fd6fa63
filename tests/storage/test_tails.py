"""A batch that followers wait for is read from memory: the last of a leader's log, if it is small.

Goal: what is served is what was appended, within the limits that hold for every read, and never
what was cut away; once it is committed, the disk is asked. Method: a log on the simulated disk,
whose bytes a test damages: what is right all the same did not come from there.
"""

import pytest
from brokers import DATA
from leaderkit import THREE, TWO, Here
from logkit import contents, create, fill, follow, lead, make_batch, path_of, reopen, sync

from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.file_slice import TAIL_BYTES_MAX
from hightide_broker.storage.segment import LogConfig, SegmentDamage

ROOM = LogConfig(segment_bytes=1 << 20)
SIZE = len(make_batch())


def read(log, offset, **limits):
    return log.read(offset, **({"max_bytes": 10_000} | limits))


def damaged(log, disk):
    """The same log; what lies on its disk of the last batch is wrong."""
    disk.corrupt(path_of(0), disk.open(path_of(0)).size() - 1)
    return log


def three(**more):
    disk = SimDisk()
    log = create(disk, config=ROOM)
    fill(log, 3, **more)
    return disk, log


def test_the_last_batch_does_not_come_from_the_disk():
    disk, log = three()
    before = bytes(disk.open(path_of(0)).read(2 * SIZE, SIZE))
    found = read(damaged(log, disk), 2)
    assert found.read() == before
    assert (found.position, found.size, found.next_offset) == (2 * SIZE, SIZE, 3)
    assert (found.has_columns, found.has_rows, found.batch_count) == (True, False, 1)


def test_the_last_batch_of_a_segment_that_was_closed_comes_from_the_disk():
    disk = SimDisk()
    log = create(disk, config=LogConfig(segment_bytes=SIZE))
    fill(log, 2)
    assert log.segment_count == 2
    with pytest.raises(SegmentDamage):
        read(damaged(log, disk), 0)


def test_it_is_found_by_any_of_its_offsets_and_by_no_other():
    _, log = three(count=2)
    assert read(log, 4).read() == read(log, 5).read() == contents(log)[-1].data
    assert read(log, 3, max_bytes=1).read() == contents(log)[1].data
    assert read(log, 6) is None


def test_limits_hold_as_for_every_read():
    _, log = three(count=2)
    size = len(contents(log)[-1].data)
    assert read(log, 4, limit_offset=5) is None
    assert read(log, 4, limit_offset=6).next_offset == 6
    assert read(log, 4, max_bytes=size - 1, at_least_one=False) is None
    assert read(log, 4, max_bytes=size - 1).size == size
    assert read(log, 4, max_bytes=size, at_least_one=False).size == size


def test_what_was_cut_away_is_not_served_nor_what_came_after_it_mistaken():
    _, log = three()
    log.truncate_to(2)
    assert read(log, 2) is None
    assert read(log, 1).next_offset == 2
    lead(log, make_batch(value=b"other"), epoch=1)
    assert read(log, 2).read() == contents(log)[2].data
    assert b"other" in read(log, 2).read()


def test_the_next_batch_takes_its_place():
    disk, log = three()
    damaged(log, disk)
    fill(log, 1)
    with pytest.raises(SegmentDamage):
        read(log, 2)
    assert read(log, 3).next_offset == 4


@pytest.mark.parametrize("why", ["large", "forgotten", "followed", "opened again"])
def test_otherwise_the_disk_is_asked(why):
    disk, log = three(value=b"x" * (TAIL_BYTES_MAX if why == "large" else 1))
    if why == "forgotten":
        log.forget_tail()
    elif why == "followed":
        follow(log, make_batch(base_offset=3, epoch=0))
    elif why == "opened again":
        sync(disk, log)
        log = reopen(disk, config=ROOM)
    with pytest.raises(SegmentDamage):
        read(damaged(log, disk), log.log_end - 1)


@pytest.mark.parametrize("last", [TWO, THREE])
async def test_a_leader_serves_from_memory_until_everybody_in_sync_has_it(last):
    here = Here()
    replica = await here.create()
    here.append(1)
    path = f"{DATA}/jade-0/{0:020d}.log"
    here.disk.corrupt(path, here.disk.open(path).size() - 1)
    first = TWO if last == THREE else THREE
    assert here.fetch_one(0, by=first).offsets == [0]
    here.fetch_one(1, by=first)
    assert here.fetch_one(0, by=last).offsets == [0]
    here.fetch_one(1, by=last)
    assert replica.high_watermark == 1
    assert here.fetch_one(0, by=last).error == "KAFKA_STORAGE_ERROR"
