"""Opening a log after a stop of any kind: S19-S24, and what was never synced.

Goal: a torn tail is cut, a lost index is rebuilt, lost epochs come back, and a page, or a sector,
that never reached the disk ends the log. Method: a log with known contents on the simulated disk,
its files changed by hand, and the log opened again. Damage is the subject of
`test_recovery_damage.py`, operations that were interrupted that of `test_recovery_interrupted.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

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
    path_of,
    put,
    reopen,
    stop,
    sync,
)

from hightide_broker.simulation.disk import PAGE_BYTES, SimDisk
from hightide_broker.storage.recovery import LogDamaged
from hightide_broker.storage.segment import LogConfig

EPOCHS = f"{DIRECTORY}/leader-epoch-checkpoint"
ONE_SEGMENT = LogConfig(index_interval_bytes=150)
SIZE = len(make_batch())
PER_SEGMENT = CONFIG.segment_bytes // SIZE


def stored_log(disk: SimDisk, batches: int, *, config: LogConfig = CONFIG) -> list[Stored]:
    """A log of one-record batches, synced and closed as by `kill -9`; what is in it."""
    log = create(disk, config=config)
    fill(log, batches)
    sync(disk, log)
    return contents(log)


# --- S19: an orderly stop -----------------------------------------------------------------------


def test_s19_after_an_orderly_stop_nothing_is_scanned_or_changed():
    disk = SimDisk()
    log = create(disk)
    fill(log, 25)
    stop(disk, log)
    before = files_of(disk)
    again = reopen(disk, clean=True, recovery_point=25)
    assert (again.recovery.scanned_bytes, str(again.recovery)) == (0, "scanned 0 bytes")
    assert (again.log_end, again.synced_end) == (25, 25)
    assert files_of(disk) == before
    check_lookups(again)


@pytest.mark.parametrize("cut", [1, SIZE // 2, SIZE, 2 * SIZE, 2 * SIZE + 1])
def test_a_file_that_shrank_after_an_orderly_stop_is_damage(cut):
    disk = SimDisk()
    log = create(disk)
    fill(log, 25)
    stop(disk, log)
    active = path_of(log.segment_bases()[-1])
    file = disk.open(active)
    file.truncate(file.size() - cut)
    with pytest.raises(LogDamaged) as caught:
        reopen(disk, clean=True, recovery_point=25)
    assert caught.value.path == active


@pytest.mark.parametrize("recovery_point", [0, 3 * PER_SEGMENT])
def test_a_hole_between_segments_after_an_orderly_stop_is_damage(recovery_point):
    disk = SimDisk()
    log = create(disk)
    fill(log, 3 * PER_SEGMENT)
    stop(disk, log)
    for suffix in ("log", "index", "timeindex"):
        disk.remove(path_of(PER_SEGMENT, suffix))
    before = files_of(disk)
    with pytest.raises(LogDamaged) as caught:
        reopen(disk, clean=True, recovery_point=recovery_point)
    assert (caught.value.path, caught.value.position) == (path_of(0), PER_SEGMENT * SIZE)
    assert files_of(disk) == before


@pytest.mark.parametrize("recovery_point", [26, 1000])
def test_a_log_that_was_stopped_in_order_does_not_end_before_its_recovery_point(recovery_point):
    disk = SimDisk()
    log = create(disk)
    fill(log, 25)
    stop(disk, log)
    before = files_of(disk)
    with pytest.raises(LogDamaged, match=f"ends at offset 25, .* says {recovery_point}"):
        reopen(disk, clean=True, recovery_point=recovery_point)
    assert files_of(disk) == before
    # Without a checkpoint nothing is known of the end.
    assert reopen(disk, clean=True, recovery_point=0).log_end == 25


# --- S20: epochs --------------------------------------------------------------------------------


NO_EPOCHS = {"missing": None, "emptied": b"0\n0\n"}
MALFORMED_EPOCHS = {
    "short": b"0\n2\n1 0\n",
    "zeros": b"\0\0\0\0",
    "falling": b"0\n2\n3 3\n1 0\n",
    "no number": b"0\n1\n2 one\n",
}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        # After an orderly stop a well-formed file is trusted.
        *((text, False) for text in NO_EPOCHS.values()),
        *((text, clean) for text in MALFORMED_EPOCHS.values() for clean in (False, True)),
    ],
)
def test_s20_lost_epochs_come_back_from_the_batches(text, clean):
    disk = SimDisk()
    log = create(disk)
    for epoch in (1, 2, 2, 3):
        fill(log, 1, epoch=epoch)
    stop(disk, log)
    disk.remove(EPOCHS)
    if text is not None:
        put(disk, EPOCHS, text)
    again = reopen(disk, clean=clean)
    assert dict(again.epochs.entries) == {1: 0, 2: 1, 3: 3}
    assert (again.log_end, again.synced_end) == (4, 4 if clean else 0)
    if text in MALFORMED_EPOCHS.values():
        assert disk.read_file(EPOCHS) == b"0\n3\n1 0\n2 1\n3 3\n"


@pytest.mark.parametrize("clean", [False, True])
def test_epochs_that_begin_behind_the_first_records_come_back_from_the_batches(clean):
    """The log start rose, which shortens the cache; a crash undid the deletion, not the cache. A
    follower that asked for the end of an epoch before it would have kept records that differ."""
    disk = SimDisk()
    log = create(disk)
    for epoch in (1, 3, 8):
        fill(log, 2, epoch=epoch)
    stop(disk, log)
    put(disk, EPOCHS, b"0\n1\n8 4\n")
    again = reopen(disk, clean=clean)
    assert dict(again.epochs.entries) == {1: 0, 3: 2, 8: 4}
    assert again.epochs.end_offset_for(5, again.log_end) == (3, 4)


def test_epochs_beyond_the_log_end_are_dropped_from_cache_and_file():
    disk = SimDisk()
    stored_log(disk, 5)
    put(disk, EPOCHS, b"0\n3\n0 0\n4 5\n7 90\n")
    assert dict(reopen(disk).epochs.entries) == {0: 0}
    assert disk.read_file(EPOCHS) == b"0\n1\n0 0\n"


def test_epochs_below_the_log_start_are_dropped_from_cache_and_file():
    disk = SimDisk()
    log = create(disk)
    for epoch in (1, 2, 3):
        fill(log, 2, epoch=epoch)
    sync(disk, log)
    assert dict(reopen(disk, log_start=3).epochs.entries) == {2: 3, 3: 4}
    assert disk.read_file(EPOCHS) == b"0\n2\n2 3\n3 4\n"


def test_a_log_that_begins_again_behind_what_is_left_is_durable_there():
    """Deleted up to offset 8, and a power loss took the segments behind: the checkpoint may say at
    once that everything up to there is on the disk."""
    disk = SimDisk()
    stored_log(disk, 5)
    log = reopen(disk, log_start=8)
    assert (log.log_start, log.log_end, log.synced_end) == (8, 8, 8)
    disk.crash(LoseAll())
    log = reopen(disk, log_start=8, recovery_point=8)
    assert (log.log_start, log.log_end) == (8, 8)


# --- S21: a torn tail ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_s21_garbage_behind_the_last_batch_is_cut_and_all_records_are_readable(seed):
    chance = random.Random(seed)
    disk = SimDisk()
    before = stored_log(disk, 57)
    active = before[-1].base_offset // PER_SEGMENT * PER_SEGMENT
    file = disk.open(path_of(active))
    size = file.size()
    file.append(chance.randbytes(chance.randint(1, 3000)))
    disk.open(path_of(active, "index"), create=True).append(chance.randbytes(25))
    log = reopen(disk, recovery_point=50)
    assert (log.log_end, log.synced_end) == (57, 50)
    assert contents(log) == before
    assert len(disk.read_file(path_of(active))) == size
    assert [note for note in log.recovery.cut if f"from byte {size} of {path_of(active)}" in note]
    check_lookups(log)


@pytest.mark.parametrize("left", [1, 11, 60, 61, 62, SIZE - 1])
def test_a_batch_cut_short_is_cut_off(left):
    disk = SimDisk()
    before = stored_log(disk, 5)
    file = disk.open(path_of(0))
    file.truncate(4 * SIZE + left)
    log = reopen(disk, recovery_point=3)
    assert contents(log) == before[:4]
    assert disk.read_file(path_of(0)) == b"".join(each.data for each in before[:4])
    assert reopen(disk, recovery_point=3).recovery.cut == []


def test_a_torn_tail_below_the_recovery_point_is_damage():
    disk = SimDisk()
    stored_log(disk, 5)
    disk.open(path_of(0)).truncate(4 * SIZE + 20)
    with pytest.raises(LogDamaged, match="damaged at byte 364"):
        reopen(disk, recovery_point=5)


def test_a_damaged_last_batch_is_taken_for_a_torn_one():
    disk = SimDisk()
    before = stored_log(disk, 5)
    disk.corrupt(path_of(0), 4 * SIZE + 70)
    assert contents(reopen(disk, recovery_point=4)) == before[:4]


def test_a_torn_batch_whose_records_hold_a_whole_batch_is_still_a_torn_tail():
    disk = SimDisk()
    log = create(disk, config=ONE_SEGMENT)
    fill(log, 3)
    before = contents(log)
    # Somebody mirrors batches: the value is a batch as a producer makes it, at offset 0.
    lead(log, make_batch(2, value=bytes(make_batch(value=b"mirrored"))))
    sync(disk, log)
    file = disk.open(path_of(0))
    file.truncate(file.size() - 1)
    assert contents(reopen(disk, recovery_point=3, config=ONE_SEGMENT)) == before


# --- S22, S24: indexes --------------------------------------------------------------------------

ENTRY_BYTES = {"index": 8, "timeindex": 12}
INDEX_DAMAGE: dict[str, Callable[[bytes, int], bytes] | None] = {
    "missing": None,
    "empty": lambda data, entry: b"",
    "junk": lambda data, entry: random.Random(3).randbytes(len(data)),
    "zeros": lambda data, entry: bytes(len(data)),
    "half an entry more": lambda data, entry: data + bytes(entry // 2),
    "half an entry less": lambda data, entry: data[: -entry // 2],
    "an entry less": lambda data, entry: data[:-entry],
    "zeros behind": lambda data, entry: data + bytes(3 * entry),
    "backwards": lambda data, entry: data[::-1],
    "beyond the file": lambda data, entry: data + b"\x7f" * entry,
}


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("change", INDEX_DAMAGE.values(), ids=INDEX_DAMAGE.keys())
def test_s22_with_a_lost_or_damaged_index_every_lookup_is_right(change, suffix, clean):
    disk = SimDisk()
    log = create(disk)
    fill(log, 35)
    stop(disk, log)
    for base in log.segment_bases():
        data = disk.read_file(path_of(base, suffix))
        disk.remove(path_of(base, suffix))
        if change is not None:
            put(disk, path_of(base, suffix), change(data, ENTRY_BYTES[suffix]))
    check_lookups(reopen(disk, clean=clean, recovery_point=35 if clean else 15))


@pytest.mark.parametrize("recovery_point", [0, 15, 35])
def test_timestamps_are_found_in_scanned_segments_after_the_next_orderly_stop(recovery_point):
    disk = SimDisk()
    stored_log(disk, 35)
    log = reopen(disk, recovery_point=recovery_point)
    check_lookups(log)
    stop(disk, log)
    check_lookups(reopen(disk, clean=True, recovery_point=35))


def test_s22_an_index_without_its_segment_is_removed():
    disk = SimDisk()
    before = stored_log(disk, 12)
    for suffix in ("index", "timeindex"):
        put(disk, path_of(5, suffix), b"\0" * 24)
    log = reopen(disk, recovery_point=12)
    assert log.recovery.removed == [f"{5:020d}.index", f"{5:020d}.timeindex"]
    assert not disk.exists(path_of(5, "index"))
    assert contents(log) == before


def test_s24_an_empty_active_segment_without_indexes_is_no_loss():
    disk = SimDisk()
    log = create(disk)
    fill(log, 15)
    base = log.roll()
    sync(disk, log)
    before = contents(log)
    assert not disk.exists(path_of(base, "index"))
    again = reopen(disk, recovery_point=15)
    assert (contents(again), again.log_end) == (before, 15)
    assert again.segment_bases() == log.segment_bases()
    assert disk.read_file(path_of(base, "index")) == b""
    assert disk.read_file(path_of(base, "timeindex")) == b""
    fill(again, 1)
    assert again.segment_bases()[-1] == base


def test_a_start_that_never_got_to_make_a_segment_begins_empty():
    disk = SimDisk()
    create(disk)
    disk.remove(path_of(0))
    log = reopen(disk, log_start=0)
    fill(log, 1)
    assert (log.segment_bases(), log.log_end) == ([0], 1)


# --- S23: the end below the start ---------------------------------------------------------------


def test_s23_a_log_that_ends_below_its_start_begins_empty_at_its_start():
    disk = SimDisk()
    stored_log(disk, 6)
    disk.open(path_of(0)).truncate(SIZE + 7)
    log = reopen(disk, log_start=4)
    assert (log.log_start, log.log_end, log.segment_bases()) == (4, 4, [4])
    assert not disk.exists(path_of(0))
    fill(log, 2)
    sync(disk, log)
    assert contents(reopen(disk, log_start=4)) == contents(log)


# --- bytes that were never synced ---------------------------------------------------------------

PAGES = LogConfig(segment_bytes=5 * PAGE_BYTES, index_interval_bytes=150)
SECTOR = 512
"""What a disk writes at once; a page is eight of them."""
WIDE = 1500
"""Bytes of a batch in these logs; three begin in nearly every page."""


def paged_log(disk: SimDisk, batches: int) -> list[Stored]:
    log = create(disk, config=PAGES)
    for number in range(batches):
        lead(log, make_batch(timestamps=[1000 + number], size=WIDE))
    sync(disk, log)
    return contents(log)


def lose(disk: SimDisk, base: int, start: int, end: int) -> bytes:
    """Make zeros of bytes that never reached the disk; the file as it is then."""
    data = bytearray(disk.read_file(path_of(base)))
    data[start:end] = bytes(min(end, len(data)) - start)
    put(disk, path_of(base), bytes(data))
    return bytes(data)


@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [
        (PAGE_BYTES, 2 * PAGE_BYTES, 2),  # inside the batch 2
        (PAGE_BYTES, 3 * PAGE_BYTES, 2),
        (2 * WIDE, PAGE_BYTES, 2),  # from the start of the batch 2, as far as it was synced
        (2 * PAGE_BYTES, 3 * PAGE_BYTES, 5),
        (0, PAGE_BYTES, 0),
        (2 * PAGE_BYTES, 2 * PAGE_BYTES + SECTOR, 5),  # a page that reached the disk in part
        (2 * WIDE, 6 * SECTOR, 2),  # the same, from the start of the batch 2 on (seed 705788)
        (2 * WIDE + 1, 7 * SECTOR, 2),
    ],
)
def test_what_was_never_written_is_cut_and_what_was_cut_is_kept(start, end, kept):
    disk = SimDisk()
    before = paged_log(disk, 12)
    data = lose(disk, 0, start, end)
    log = reopen(disk, config=PAGES)
    assert contents(log) == before[:kept]
    aside = f"{path_of(0)}.{kept * WIDE}.cut"
    assert disk.read_file(aside) == data[kept * WIDE :]
    assert disk.read_file(path_of(0)) == data[: kept * WIDE]
    assert any(aside in note for note in log.recovery.cut)
    fill(log, 3)
    sync(disk, log)
    assert contents(reopen(disk, config=PAGES)) == contents(log)
    assert disk.exists(aside)


def test_segments_behind_a_lost_page_are_set_aside_whole():
    disk = SimDisk()
    before = paged_log(disk, 30)
    lose(disk, 0, PAGE_BYTES, 2 * PAGE_BYTES)
    later = {name: data for name, data in files_of(disk).items() if name > f"{1:020d}" and data}
    log = reopen(disk, config=PAGES)
    assert (contents(log), log.segment_bases()) == (before[:2], [0])
    logs = [name for name in later if name.endswith(".log")]
    assert len(logs) == 2
    assert all(disk.read_file(f"{DIRECTORY}/{name}.cut") == later[name] for name in logs)
    assert len(log.recovery.cut) == 3


@pytest.mark.parametrize("left", [PER_SEGMENT - 1, 3, 0])
@pytest.mark.parametrize("recovery_point", [0, PER_SEGMENT])
def test_segments_behind_a_sealed_one_that_lost_its_end_are_set_aside(left, recovery_point):
    disk = SimDisk()
    before = stored_log(disk, 4 * PER_SEGMENT)
    disk.open(path_of(PER_SEGMENT)).truncate(left * SIZE)
    later = [path_of(2 * PER_SEGMENT), path_of(3 * PER_SEGMENT)]
    kept = [disk.read_file(path) for path in later]
    for _ in range(2):
        log = reopen(disk, recovery_point=recovery_point)
        assert contents(log) == before[: PER_SEGMENT + left]
        assert log.segment_bases() == [0, PER_SEGMENT]
        assert not any(disk.exists(path) for path in later)
        assert [disk.read_file(f"{path}.cut") for path in later] == kept
    check_lookups(log)


@pytest.mark.parametrize("left", [3, 0])
def test_a_sealed_segment_that_lost_what_was_durable_is_damage_and_nothing_is_cut(left):
    disk = SimDisk()
    stored_log(disk, 3 * PER_SEGMENT)
    disk.open(path_of(PER_SEGMENT)).truncate(left * SIZE)
    before = {name: data for name, data in files_of(disk).items() if not name.endswith("index")}
    for recovery_point in (PER_SEGMENT + 4, 2 * PER_SEGMENT + 1):
        with pytest.raises(LogDamaged, match="What follows may have been acknowledged"):
            reopen(disk, recovery_point=recovery_point)
        after = files_of(disk)
        assert {name: after[name] for name in after if not name.endswith("index")} == before


@pytest.mark.parametrize("start", [PAGE_BYTES + 1, PAGE_BYTES + SECTOR // 2])
@pytest.mark.parametrize("lost", [5, 100, SECTOR - 1])
def test_zeros_that_are_not_a_lost_sector_are_damage(start, lost):
    disk = SimDisk()
    paged_log(disk, 9)
    lose(disk, 0, start, start + lost)
    with pytest.raises(LogDamaged):
        reopen(disk, config=PAGES)


@pytest.mark.parametrize("inside", [1, 7, 8, 11, 12, 40])
def test_a_batch_that_begins_in_the_last_bytes_of_a_lost_page_hides_no_hole(inside):
    # The first bytes of a batch are zeros anyway, and its offset is in no checksum.
    disk = SimDisk()
    log = create(disk, config=PAGES)
    for size in (1000, PAGE_BYTES - 1000 - inside, 700, 700):
        lead(log, make_batch(size=size))
    sync(disk, log)
    before = contents(log)
    lose(disk, 0, 1000, PAGE_BYTES)
    assert contents(reopen(disk, recovery_point=1, config=PAGES)) == before[:1]


@pytest.mark.parametrize("seed", range(40))
def test_a_power_loss_around_a_roll_leaves_a_prefix(seed):
    # Neither the sealed segment nor the new one was synced, nor was the name of either.
    disk = SimDisk()
    log = create(disk, config=PAGES)
    for number in range(20):
        lead(log, make_batch(timestamps=[1000 + number], size=WIDE))
    assert len(log.segment_bases()) == 2
    before = contents(log)
    disk.crash(random.Random(seed))
    again = reopen(disk, config=PAGES)
    found = contents(again)
    assert found == before[: len(found)]
    assert (again.log_start, again.log_end) == (0, len(found))
