"""Reading a log while compaction swaps its segments: what was begun before a swap ends well.

Goal: an iterator over batches or headers that began before a swap gives every record that nothing
replaces, none twice, none that never was, and meets no damage. Method: a log of segments larger
than one read, an iterator that stops at some batch, segments rewritten and swapped by hand; on the
simulated disk, on the real one, and there with descriptors that other files have pushed out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from brokers import batch
from cleankit import records_in, records_of, rewrite
from logkit import check_contiguous, create, lead

from hightide_broker.ports import Disk
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.log import Log
from hightide_broker.storage.segment import SCAN_BYTES, LogConfig

VALUE_BYTES = SCAN_BYTES // 4
"""One read holds three batches and the beginning of the next."""
PER_SEGMENT = 9
CONFIG = LogConfig(segment_bytes=(PER_SEGMENT + 1) * VALUE_BYTES)
DESCRIPTORS = 16
"""The fewest that the real disk does with."""


class Place(NamedTuple):
    """A log of three closed segments and an active one, and what happens on its disk meanwhile."""

    disk: Disk
    log: Log
    meanwhile: Callable[[], None]


def push_out(disk: Disk, root: str) -> Callable[[], None]:
    """Read so many other files that every descriptor of the log is closed."""
    others = [disk.open(f"{root}/{number}", create=True) for number in range(2 * DESCRIPTORS)]

    def read_others() -> None:
        for other in others:
            other.read(0, 1)

    return read_others


def fill(log: Log) -> None:
    """Every third record has a key of its own, the others share one."""
    for number in range(3 * PER_SEGMENT + 2):
        key = b"own %d" % number if number % 3 == 1 else b"shared"
        lead(log, batch(b"%d " % number + bytes(VALUE_BYTES), keys=[key]))
    assert len(log.segment_bases()) == 4


@pytest.fixture(params=["simulated", "real", "real, descriptors pushed out"])
def place(request, tmp_path) -> Place:
    directory = f"{tmp_path}/data/jade-0"
    disk = SimDisk() if request.param == "simulated" else RealDisk(DESCRIPTORS)
    log = create(disk, config=CONFIG, directory=directory)
    fill(log)
    evicted = "pushed out" in request.param
    return Place(disk, log, push_out(disk, f"{tmp_path}/data") if evicted else lambda: None)


SWAPPED = {
    "the one being read": lambda base, at: base <= at < base + PER_SEGMENT,
    "a later one": lambda base, at: at < base,
    "every one": lambda base, at: True,
}
TAKEN = [1, PER_SEGMENT + 4]
"""How many batches were taken before the swap."""


def swap(place: Place, at: int, which: str) -> None:
    """Segments are swapped while somebody reads at offset `at`."""
    for segment in rewrite(place.disk, place.log):
        if SWAPPED[which](segment.base, at):
            place.log.replace_segment(segment.base, segment.path)
    place.meanwhile()


@pytest.mark.parametrize("which", SWAPPED)
@pytest.mark.parametrize("taken", TAKEN)
def test_batches_begun_before_a_swap_give_every_record_that_nothing_replaces(place, taken, which):
    before = records_of(place.log)
    iterator = place.log.batches()
    found = [record for _ in range(taken) for record in records_in(*next(iterator))]
    swap(place, taken, which)
    found += [record for pair in iterator for record in records_in(*pair)]
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), "a record came twice, or out of order"
    assert set(records_of(place.log)) <= set(found) <= set(before)
    assert offsets[-1] == place.log.log_end - 1


@pytest.mark.parametrize("which", SWAPPED)
@pytest.mark.parametrize("taken", TAKEN)
def test_headers_begun_before_a_swap_give_every_batch_that_is_left(place, taken, which):
    known = {header.base_offset: header.next_offset for header in place.log.headers(0)}
    iterator = place.log.headers(0)
    found = [next(iterator) for _ in range(taken)]
    swap(place, taken, which)
    found += list(iterator)
    starts = [header.base_offset for header in found]
    assert starts == sorted(set(starts)), "a batch came twice, or out of order"
    assert {header.base_offset: header.next_offset for header in found}.items() <= known.items()
    assert {record.offset for record in records_of(place.log)} <= set(starts)
    assert found[-1].next_offset == place.log.log_end


def test_a_segment_swapped_again_and_again_under_an_iterator_is_read_on(place):
    """Each batch is taken, then every closed segment is swapped for its copy."""
    before, found = records_of(place.log), []
    for number, pair in enumerate(place.log.batches()):
        found += records_in(*pair)
        if number % 4 == 0:
            swap_for_copies(place)
    assert found == before


def swap_for_copies(place: Place) -> None:
    """The cleaner found nothing to drop, and swaps all the same."""
    for base in place.log.segment_bases()[:-1]:
        path = f"{place.log.directory}/{base:020d}.log"
        copy = place.disk.open(f"{path}.cleaned", create=True)
        copy.append(place.disk.read_file(path))
        copy.close()
        place.log.replace_segment(base, copy.path)
    place.meanwhile()
    check_contiguous(place.log)
