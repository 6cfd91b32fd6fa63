"""Recovery at its edges: one byte, one entry, one call more or less, and something is lost.

Goal: each small rule of `storage/recovery.py` is missed when it is gone: that a cut is durable,
which index entries stay, where a log starts, how far behind damage a whole batch is looked for,
when zeros at a file's end are a page that was never written, and that what is removed is said.
Method: logs with known contents whose files are changed by hand, at every offset and at every
distance that could be off by one, compared with a log that is scanned from its beginning.
"""

from __future__ import annotations

import pytest
from brokers import LoseAll
from logkit import (
    CONFIG,
    DIRECTORY,
    Stored,
    check_lookups,
    contents,
    create,
    files_of,
    fill,
    lead,
    make_batch,
    newest_record,
    path_of,
    put,
    reopen,
    stop,
    sync,
)

from hightide_broker.simulation.disk import PAGE_BYTES, SimDisk
from hightide_broker.storage.checkpoint import read_epochs, write_epochs
from hightide_broker.storage.log import Log
from hightide_broker.storage.recovery import LogDamaged, damage_in
from hightide_broker.storage.segment import LogConfig, Segment

ENDLESS = LogConfig(index_interval_bytes=150)
EPOCHS = f"{DIRECTORY}/leader-epoch-checkpoint"
SIZE = len(make_batch())
PER_SEGMENT = CONFIG.segment_bytes // SIZE


def disk_with(files: dict[str, bytes]) -> SimDisk:
    """A disk that holds a log of these files, durably."""
    disk = SimDisk()
    disk.make_dirs(DIRECTORY)
    for name, data in files.items():
        put(disk, f"{DIRECTORY}/{name}", data)
    return disk


# --- a cut is durable ---------------------------------------------------------------------------


@pytest.mark.parametrize("tail", ["garbage", "half a batch", "a damaged batch", "zeros"])
def test_what_a_start_cut_off_does_not_come_back_with_the_next_loss_of_power(tail):
    disk = SimDisk()
    log = create(disk, config=ENDLESS)
    fill(log, 5)
    sync(disk, log)
    before = contents(log)
    last = bytearray(make_batch(base_offset=5, epoch=0))
    last[-1] ^= 1
    file = disk.open(path_of(0))
    tails = {"garbage": b"g" * 999, "half a batch": last[:70], "a damaged batch": last}
    file.append(tails.get(tail, bytes(500)))
    disk.sync_now([file])
    assert contents(reopen(disk, recovery_point=5, config=ENDLESS)) == before
    disk.crash(LoseAll())
    assert disk.read_file(path_of(0)) == b"".join(each.data for each in before)


# --- which index entries stay -------------------------------------------------------------------

COUNTS = [1, 2, 1, 1, 3, 1, 1, 1, 5, 1, 1, 2, 1, 1, 1, 4, 1, 1]
"""Records of the batches; an index entry for every second or third of them."""


def indexed_log(counts: list[int] = COUNTS, *, base: int = 0) -> dict[str, bytes]:
    """The files of a log that was killed with all its index entries written; its last segment
    begins at `base`."""
    disk = SimDisk()
    log = create(disk, config=ENDLESS)
    fill(log, base)
    log.roll()
    for count in counts:
        fill(log, 1, count=count)
    log.flush_indexes()
    sync(disk, log)
    return files_of(disk)


def opened(files: dict[str, bytes], recovery_point: int) -> tuple[Log, dict[str, bytes]]:
    """The log after an unclean stop, and its index files."""
    disk = disk_with(files)
    log = reopen(disk, recovery_point=recovery_point, config=ENDLESS)
    indexes = {name: data for name, data in files_of(disk).items() if name.endswith("index")}
    return log, indexes


@pytest.mark.parametrize("base", [0, 4])
@pytest.mark.parametrize("scanned", range(sum(COUNTS)))
def test_trusted_index_entries_and_scanned_ones_are_those_of_a_whole_scan(base, scanned):
    recovery_point = base + sum(COUNTS) - scanned
    files = indexed_log(base=base)
    whole, expected = opened(files, 0)
    assert len(expected[f"{base:020d}.index"]) > 24
    log, indexes = opened(files, recovery_point)
    assert indexes == expected
    untrusted = [each for each in contents(whole) if each.next_offset > recovery_point]
    assert log.recovery.scanned_bytes == sum(len(each.data) for each in untrusted)
    assert log.recovery.rebuilt == []
    check_lookups(log)


@pytest.mark.parametrize("behind", [0, 1, 2, 5], ids=lambda number: f"{number} trusted less")
@pytest.mark.parametrize("batches", range(7, 16))
def test_no_index_entry_leads_to_a_batch_that_was_cut(batches, behind):
    """The last batch is damaged inside; its header is whole, and so is what the indexes say."""
    files = indexed_log([1] * batches)
    name = f"{0:020d}.log"
    files[name] = files[name][:-1] + b"?"
    log, indexes = opened(files, batches - 1 - behind)
    _, expected = opened(indexed_log([1] * (batches - 1)), 0)
    assert (log.log_end, len(log.recovery.cut)) == (batches - 1, 1)
    assert indexes == expected
    assert log.max_timestamp == 1000 + batches - 2
    found = newest_record(log)
    assert found is not None
    assert found.offset == batches - 2
    check_lookups(log)


# --- where a log starts -------------------------------------------------------------------------

STARTS = [(0, 0), (PER_SEGMENT, 0), (0, 4), (PER_SEGMENT, PER_SEGMENT), (PER_SEGMENT, 12)]
"""Where the first segment begins; what is known of the log start, 0 if that is no more."""


def log_from(disk: SimDisk, base: int, log_start: int, *, epochs: int) -> list[Stored]:
    """A log of three segments, of which those below `base` were deleted; what is left."""
    log = create(disk)
    for number in range(3 * PER_SEGMENT):
        fill(log, 1, epoch=number * epochs // (3 * PER_SEGMENT))
    if base:
        log.delete_segments(base // PER_SEGMENT)
    log.advance_log_start(log_start)
    log.epochs.write()
    for name in disk.list(DIRECTORY):
        if name.endswith(".deleted"):
            disk.remove(f"{DIRECTORY}/{name}")
    stop(disk, log)
    return contents(log)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("base", "log_start"), STARTS)
@pytest.mark.parametrize("epochs", [1, 6])
def test_epochs_that_begin_where_the_log_does_are_not_built_again(base, log_start, epochs, clean):
    disk = SimDisk()
    before = log_from(disk, base, log_start, epochs=epochs)
    end = 3 * PER_SEGMENT
    known = disk.read_file(f"{DIRECTORY}/leader-epoch-checkpoint")
    again = reopen(disk, clean=clean, log_start=log_start, recovery_point=end)
    assert again.recovery.scanned_bytes == 0
    assert again.recovery.rebuilt == []
    assert (again.log_start, again.log_end) == (max(base, log_start), end)
    assert contents(again) == before
    assert disk.read_file(f"{DIRECTORY}/leader-epoch-checkpoint") == known


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("base", "log_start"), STARTS)
@pytest.mark.parametrize("late", [1, 3])
def test_epochs_that_begin_behind_the_start_of_a_log_are_built_again(base, log_start, late, clean):
    disk = SimDisk()
    before = log_from(disk, base, log_start, epochs=3)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    known = disk.read_file(path)
    (first, start), *rest = read_epochs(disk, path)
    write_epochs(disk, path, [(first, start + late), *rest])
    again = reopen(disk, clean=clean, log_start=log_start, recovery_point=3 * PER_SEGMENT)
    assert contents(again) == before
    assert disk.read_file(path) == known


# --- a whole batch behind damage ----------------------------------------------------------------

CHUNK = 1 << 20
"""How much is looked through at once."""
DISTANCES = [
    chunks * CHUNK + more
    for chunks, mores in ((1, (-18, -17, -16, -15, -1, 0, 1, 2)), (2, (-16, -1, 0, 1)))
    for more in mores
]


def damaged_before(distance: int, *, batches: int = 2) -> tuple[SimDisk, int]:
    """A log whose first batch is damaged, and where the next one begins: so many bytes behind the
    first byte at which it is looked for."""
    disk = SimDisk()
    log = create(disk, config=ENDLESS)
    lead(log, make_batch(size=distance + 1))
    fill(log, batches - 1)
    sync(disk, log)
    disk.corrupt(path_of(0), 70)
    return disk, distance + 1


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_whole_batch_behind_damage_is_found_wherever_it_begins(distance):
    disk, _ = damaged_before(distance)
    before = disk.read_file(path_of(0))
    with pytest.raises(LogDamaged) as caught:
        reopen(disk, config=ENDLESS)
    assert caught.value.position == 0
    assert disk.read_file(path_of(0)) == before


@pytest.mark.parametrize("distance", DISTANCES)
def test_damage_is_listed_up_to_the_next_whole_batch_wherever_it_begins(distance):
    disk, following = damaged_before(distance, batches=3)
    disk.corrupt(path_of(0), following + SIZE + 70)
    segment = Segment(disk, DIRECTORY, 0, config=ENDLESS)
    assert [each.position for each in damage_in(segment)] == [0, following + SIZE]


# --- zeros at the end of a file -----------------------------------------------------------------

SECTOR = 512
"""What a disk writes at once."""
HALF_PAGE = 2048


def sealed_log(disk: SimDisk, *sizes: int) -> list[Stored]:
    """A closed segment with batches of these sizes, and an active one of one batch."""
    log = create(disk, config=ENDLESS)
    for size in sizes:
        lead(log, make_batch(size=size))
    log.roll()
    fill(log, 1)
    sync(disk, log)
    return contents(log)


def overwrite(disk: SimDisk, start: int, end: int, fill_with: bytes = b"\0") -> dict[str, bytes]:
    """Other bytes in the closed segment; every segment as it is then."""
    data = bytearray(disk.read_file(path_of(0)))
    data[start:end] = fill_with * (end - start)
    put(disk, path_of(0), bytes(data))
    return {name: data for name, data in files_of(disk).items() if name.endswith(".log")}


LOST_TAILS = {
    "from the beginning of a page": (1000, PAGE_BYTES - 1000 + HALF_PAGE, PAGE_BYTES),
    "from the beginning of a batch": (1000, HALF_PAGE, 1000),
    "all of a batch that begins a page": (PAGE_BYTES, HALF_PAGE, PAGE_BYTES),
}


@pytest.mark.parametrize("name", LOST_TAILS)
def test_zeros_up_to_the_end_of_a_closed_segment_are_a_page_that_was_never_written(name):
    first, second, lost_from = LOST_TAILS[name]
    disk = SimDisk()
    before = sealed_log(disk, first, second)
    left = overwrite(disk, lost_from, first + second)
    log = reopen(disk, recovery_point=1, config=ENDLESS)
    assert contents(log) == before[:1]
    assert disk.read_file(path_of(0)) == before[0].data
    assert disk.read_file(f"{path_of(2)}.cut") == left[f"{2:020d}.log"]
    assert len(log.recovery.cut) == 2


NO_LOST_TAILS = {
    "other bytes": ((1000, 1000 + HALF_PAGE), b"?"),
    "zeros but for the last byte of the sector": ((1016, 3 * SECTOR - 1), b"\0"),
    "one byte": ((1000 + 70, 1000 + 71), b"\0"),
}


@pytest.mark.parametrize("name", NO_LOST_TAILS)
def test_a_damaged_end_of_a_closed_segment_that_is_not_all_zeros_is_damage(name):
    (start, end), fill_with = NO_LOST_TAILS[name]
    disk = SimDisk()
    sealed_log(disk, 1000, HALF_PAGE)
    before = overwrite(disk, start, end, fill_with)
    check_refused(disk, before, position=1000)


@pytest.mark.parametrize("short", range(14))
def test_damage_in_a_closed_segment_that_ends_with_its_page_is_damage(short):
    """No byte is left behind the last page's end, and none is no lost page."""
    disk = SimDisk()
    sealed_log(disk, 1000, 2 * PAGE_BYTES - 1000 - short)
    before = overwrite(disk, PAGE_BYTES + 100, PAGE_BYTES + 101)
    check_refused(disk, before, position=1000)


def test_zeros_between_the_beginning_of_a_sector_and_a_batch_in_it_are_damage():
    """The sector was written: a whole batch begins in it."""
    disk = SimDisk()
    sealed_log(disk, 1000, 2 * SECTOR - 1000 + 300, 500)
    before = overwrite(disk, 2 * SECTOR, 2 * SECTOR + 300)
    check_refused(disk, before, position=1000)


def check_refused(disk: SimDisk, before: dict[str, bytes], *, position: int) -> None:
    """The log is damaged there, and every segment stays as it is."""
    with pytest.raises(LogDamaged) as caught:
        reopen(disk, recovery_point=1, config=ENDLESS)
    assert caught.value.position == position
    after = files_of(disk)
    assert {name: after[name] for name in after if ".log" in name} == before


# --- what is removed is said --------------------------------------------------------------------


def test_segments_removed_because_the_log_ends_below_its_start_are_listed():
    disk = SimDisk()
    log = create(disk)
    fill(log, 2 * PER_SEGMENT + 2)
    sync(disk, log)
    start = 3 * PER_SEGMENT
    again = reopen(disk, log_start=start)
    gone = [f"{number * PER_SEGMENT:020d}.log" for number in range(3)]
    assert again.recovery.removed == gone
    assert all(f"removed {name}" in str(again.recovery) for name in gone)
    left = [name for name in disk.list(DIRECTORY) if not name.endswith(("checkpoint", "metadata"))]
    assert left == [f"{start:020d}.log"]
    assert (again.log_start, again.log_end) == (start, start)


@pytest.mark.parametrize("clean", [True, False])
def test_leftovers_of_what_was_interrupted_are_listed_as_removed(clean):
    disk = SimDisk()
    log = create(disk)
    fill(log, 3)
    stop(disk, log)
    strangers = [f"{0:020d}.log.cleaned", f"{7:020d}.log.deleted", "leader-epoch-checkpoint.tmp"]
    orphans = [f"{5:020d}.index", f"{5:020d}.timeindex"]
    for name in (*strangers, *orphans):
        put(disk, f"{DIRECTORY}/{name}", b"x" * 24)
    again = reopen(disk, clean=clean, recovery_point=3)
    assert again.recovery.removed == [*strangers, *orphans]
    assert not {*strangers, *orphans} & {*disk.list(DIRECTORY)}
    assert all(f"removed {name}" in str(again.recovery) for name in (*strangers, *orphans))


def test_a_start_that_removed_nothing_says_nothing():
    disk = SimDisk()
    log = create(disk)
    fill(log, 2 * PER_SEGMENT)
    sync(disk, log)
    assert reopen(disk, recovery_point=3).recovery.removed == []


@pytest.mark.parametrize("epochs", ["as they were", "of a later start", "malformed", "gone"])
def test_what_was_synced_is_not_cut_whatever_else_is_scanned(epochs):
    disk = SimDisk()
    log = create(disk, config=ENDLESS)
    fill(log, 100)
    sync(disk, log)
    recovery_point = log.log_end
    if epochs == "of a later start":  # whose checkpoint is written once a minute
        log.advance_log_start(90)
        log.epochs.write()
    if epochs == "malformed":
        put(disk, EPOCHS, b"0\nmany\n")
    if epochs == "gone":
        disk.remove(EPOCHS)
    stored = disk.read_file(path_of(0))
    put(disk, path_of(0), stored[:2048] + bytes(512) + stored[2560:])
    disk.kill()
    with pytest.raises(LogDamaged):
        reopen(disk, recovery_point=recovery_point, clean=False, config=ENDLESS)
    assert len(disk.read_file(path_of(0))) == len(stored)
    assert not [name for name in files_of(disk) if name.endswith(".cut")]
