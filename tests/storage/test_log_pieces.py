"""A large read is checked in pieces: what it serves does not depend on where they end.

Goal: batches of several pieces come whole and in order, as many as fit, below the limit and up to
the damage. Method: batches of a third of a piece, so that each piece ends inside one; and one that
is larger than a piece between two small ones.
"""

import pytest
from logkit import create, fill, lead, make_batch, path_of

from hightide.protocol.records import iter_batches
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.log import LogConfig
from hightide_broker.storage.segment import SCAN_BYTES, SegmentDamage

BATCHES = 10
CONFIG = LogConfig()
ALL = 1 << 30
SIZE = len(make_batch(value=b"x" * (SCAN_BYTES // 3)))


@pytest.fixture
def disk():
    return SimDisk()


@pytest.fixture
def log(disk):
    log = create(disk, config=CONFIG)
    fill(log, BATCHES, value=b"x" * (SCAN_BYTES // 3))
    return log


def offsets(part):
    return [header.base_offset for header, _ in iter_batches(part.read())]


def test_a_read_of_several_pieces_has_every_batch(log):
    part = log.read(0, max_bytes=ALL)
    assert offsets(part) == list(range(BATCHES))
    assert (part.size, part.next_offset) == (BATCHES * SIZE, BATCHES)
    assert offsets(log.read(3, max_bytes=ALL)) == list(range(3, BATCHES))


@pytest.mark.parametrize("count", range(1, BATCHES + 1))
def test_it_has_as_many_as_fit_and_none_above_the_limit(log, count):
    assert offsets(log.read(0, max_bytes=count * SIZE)) == list(range(count))
    assert offsets(log.read(0, max_bytes=(count + 1) * SIZE - 1)) == list(range(count))
    assert offsets(log.read(0, max_bytes=ALL, limit_offset=count)) == list(range(count))


@pytest.mark.parametrize("damaged", range(1, BATCHES))
@pytest.mark.parametrize("place", [0, 16, 100, SIZE - 1], ids=["offset", "magic", "sizes", "end"])
def test_it_ends_before_damage_in_any_piece(disk, log, damaged, place):
    disk.corrupt(path_of(0), damaged * SIZE + place, bit=7)
    assert offsets(log.read(0, max_bytes=ALL)) == list(range(damaged))
    with pytest.raises(SegmentDamage):
        log.read(damaged, max_bytes=ALL)


def test_a_batch_that_is_larger_than_a_piece_follows_with_the_next_read(disk):
    log = create(disk, config=CONFIG)
    for size in 5, 3 * SCAN_BYTES, 5, 5:
        lead(log, make_batch(value=b"x" * size))
    assert offsets(log.read(0, max_bytes=ALL)) == [0]
    assert offsets(log.read(1, max_bytes=ALL)) == [1, 2, 3]
