"""The leader epoch cache: Kafka's rules.

Goal: the cache answers as Kafka's does and its file is Kafka's, byte for byte, whenever it is
written; what is not written yet is known to be missing. Method: Kafka's own vectors as tables, with
the file written out by hand; the disk is simulated, so that a crash or a failing write can come at
the worst moment. What a log makes of a file that lags behind: `test_epochs_lagging.py`.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logkit import CONFIG, DIRECTORY, create, follow, make_batch, reopen, stop
from tries import tries

from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.epochs import UNDEFINED, EpochCache

PATH = f"{DIRECTORY}/leader-epoch-checkpoint"
END = (1 << 63) - 1
"""Of the longest log that can be: all that is known begins in it."""
THREE = {5: 11, 6: 12, 7: 13}


def cache_of(entries: dict[int, int], disk: SimDisk | None = None) -> EpochCache:
    """A cache of these entries, with its file."""
    disk = disk or SimDisk()
    disk.make_dirs(DIRECTORY)
    cache = EpochCache(disk, PATH)
    for epoch, start in entries.items():
        assert cache.assign(epoch, start)
    cache.write()
    assert dict(cache.entries) == entries
    assert not cache.is_owed(END)
    return cache


# --- EC1: assign --------------------------------------------------------------------------------

ASSIGNED = {
    "EC9: the same start replaces": (
        ((2, 9), b"0\n1\n2 9\n"),
        ((3, 9), b"0\n1\n3 9\n"),
    ),
    "EC9: an earlier start replaces": (
        ((2, 6), b"0\n1\n2 6\n"),
        ((3, 5), b"0\n1\n3 5\n"),
    ),
    "EC9: an older epoch drops the newer ones": (
        ((1, 5), b"0\n1\n1 5\n"),
        ((2, 6), b"0\n2\n1 5\n2 6\n"),
        ((1, 7), b"0\n1\n1 7\n"),
    ),
    "S3: the newest epoch with an earlier start": (
        ((5, 11), b"0\n1\n5 11\n"),
        ((6, 12), b"0\n2\n5 11\n6 12\n"),
        ((7, 13), b"0\n3\n5 11\n6 12\n7 13\n"),
        ((7, 12), b"0\n2\n5 11\n7 12\n"),
    ),
    "EC1: the newest epoch with a later start changes nothing": (
        ((4, 10), b"0\n1\n4 10\n"),
        ((4, 10), b"0\n1\n4 10\n"),
        ((4, 11), b"0\n1\n4 10\n"),
    ),
    "EC1: a start below all drops all": (
        ((0, 10), b"0\n1\n0 10\n"),
        ((2, 13), b"0\n2\n0 10\n2 13\n"),
        ((4, 17), b"0\n3\n0 10\n2 13\n4 17\n"),
        ((9, 0), b"0\n1\n9 0\n"),
    ),
    "EC1: epoch and start drop together": (
        ((1, 10), b"0\n1\n1 10\n"),
        ((5, 20), b"0\n2\n1 10\n5 20\n"),
        ((7, 30), b"0\n3\n1 10\n5 20\n7 30\n"),
        ((6, 15), b"0\n2\n1 10\n6 15\n"),
    ),
    "EC9: two epochs at offset 0": (
        ((0, 0), b"0\n1\n0 0\n"),
        ((1, 0), b"0\n1\n1 0\n"),
    ),
    "numbers grow wide": (((2**31 - 1, 2**62), b"0\n1\n2147483647 4611686018427387904\n"),),
}


@pytest.mark.parametrize("steps", ASSIGNED.values(), ids=ASSIGNED.keys())
def test_the_file_that_is_written_after_each_assign_is_kafkas_text(steps):
    disk = SimDisk()
    cache = cache_of({}, disk)
    for (epoch, start), text in steps:
        before = disk.read_file(PATH)
        assert cache.assign(epoch, start) == (text != before)
        assert disk.read_file(PATH) == before, "nothing is written on the loop"
        assert cache.is_owed(END) == (text != before)
        cache.write()
        assert not cache.is_owed(END)
        assert disk.read_file(PATH) == text
        assert EpochCache.load(disk, PATH).entries == cache.entries


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1), (-1, -1)])
def test_a_negative_epoch_or_start_is_an_error(epoch, start):
    cache = cache_of({0: 0})
    with pytest.raises(AssertionError, match="negative"):
        cache.assign(epoch, start)
    assert cache.entries == ((0, 0),)


def test_an_assign_that_changes_nothing_leaves_nothing_to_be_written():
    cache = cache_of({4: 10})
    assert not cache.assign(4, 10)
    assert not cache.assign(4, 500)
    assert not cache.is_owed(END)
    assert cache.assign(5, 500)
    assert cache.is_owed(END)


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.assign(8, 20),
        lambda cache: cache.truncate_from_end(12),
        lambda cache: cache.truncate_from_start(12),
        lambda cache: cache.clear(),
        lambda cache: cache.rebuild([], start=0),
    ],
    ids=["assign", "cut at the end", "cut at the start", "clear", "rebuild"],
)
def test_no_change_touches_the_disk_and_each_is_to_be_written(change):
    disk = SimDisk()
    cache = cache_of(THREE, disk)
    for operation in ("read", "write", "truncate", "replace", "sync"):
        disk.fail(operation, "")
    change(cache)
    assert dict(cache.entries) != THREE
    assert cache.is_owed(END)
    disk.heal()
    assert disk.read_file(PATH) == b"0\n3\n5 11\n6 12\n7 13\n"
    cache.write()
    assert EpochCache.load(disk, PATH).entries == cache.entries
    assert not cache.is_owed(END)


@settings(max_examples=tries(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), max_size=12))
def test_both_columns_rise_and_the_newest_entry_is_the_one_assigned(steps):
    cache = cache_of({})
    for epoch, start in steps:
        before = cache.entries
        changed = cache.assign(epoch, start)
        if before and before[-1][0] == epoch and before[-1][1] <= start:
            assert cache.entries == before
            assert not changed
            continue
        assert changed
        # The rule of EC1 as a filter: no entry that is kept reaches the new one in either column.
        kept = [entry for entry in before if entry[0] < epoch and entry[1] < start]
        assert cache.entries == (*kept, (epoch, start))
        assert cache.latest_epoch == epoch


# --- EC3: durability ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_an_epoch_that_was_written_survives_a_power_loss_at_once(seed):
    disk = SimDisk()
    cache = cache_of(THREE, disk)
    cache.assign(8, 20)
    cache.write()
    disk.crash(random.Random(seed))
    assert dict(EpochCache.load(disk, PATH).entries) == {**THREE, 8: 20}


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_before_the_write_leaves_the_file_as_it_was_written_last(seed):
    disk = SimDisk()
    cache = cache_of(THREE, disk)
    cache.assign(8, 20)
    disk.crash(random.Random(seed))
    assert dict(EpochCache.load(disk, PATH).entries) == THREE


def test_a_truncation_leaves_stale_entries_in_the_file_until_it_is_written():
    disk = SimDisk()
    cache = cache_of(THREE, disk)
    assert cache.truncate_from_end(12)
    assert disk.read_file(PATH) == b"0\n3\n5 11\n6 12\n7 13\n"
    assert cache.is_owed(END)
    cache.write()
    assert disk.read_file(PATH) == b"0\n1\n5 11\n"


@pytest.mark.parametrize("later", [False, True], ids=["tried again", "after another epoch"])
def test_an_epoch_that_could_not_be_written_is_written_with_the_next_write(later):
    disk = SimDisk()
    cache = cache_of({0: 0}, disk)
    assert cache.assign(1, 10)
    disk.fail("replace", PATH, "No space left on device")
    with pytest.raises(DiskError):
        cache.write()
    assert cache.is_owed(END)
    assert cache.entries == ((0, 0), (1, 10)), "it is known all the same"
    disk.heal()
    if later:
        cache.assign(2, 20)
    cache.write()
    assert not cache.is_owed(END)
    assert disk.read_file(PATH) == (b"0\n3\n0 0\n1 10\n2 20\n" if later else b"0\n2\n0 0\n1 10\n")


def test_what_a_worker_thread_writes_is_what_was_known_when_it_was_told_to():
    disk = SimDisk()
    cache = cache_of({0: 0}, disk)
    cache.assign(1, 10)
    write = cache.writing(99)
    cache.assign(2, 20)
    cache.truncate_from_start(5)
    write()
    assert disk.read_file(PATH) == b"0\n2\n0 0\n1 10\n"
    assert cache.is_owed(END), "more has become known since"
    cache.writing(99)()
    assert disk.read_file(PATH) == b"0\n3\n0 5\n1 10\n2 20\n"
    assert not cache.is_owed(END)


def test_an_older_write_that_comes_after_a_newer_one_writes_nothing():
    """A worker thread was told to write; before it does, a cut is written on the loop."""
    disk = SimDisk()
    cache = cache_of(THREE, disk)
    cache.assign(8, 20)
    write = cache.writing(99)
    cache.truncate_from_end(12)
    cache.write()
    assert not cache.is_owed(END)
    write()
    assert disk.read_file(PATH) == b"0\n1\n5 11\n"
    assert not cache.is_owed(END)
    disk.fail("replace", PATH)
    with pytest.raises(DiskError):
        cache.write()
    assert cache.is_owed(END), "what failed is to be written again"


def test_an_epoch_whose_first_append_met_a_full_disk_is_in_the_file_after_the_next_one():
    disk = SimDisk()
    log = create(disk)
    disk.capacity = disk.used_bytes()
    with pytest.raises(DiskError) as caught:
        follow(log, make_batch(base_offset=0, epoch=3))
    assert caught.value.full
    disk.capacity = 1 << 20
    follow(log, make_batch(base_offset=0, epoch=3))
    stop(disk, log)
    # After an orderly stop no scan comes that could find the epoch again.
    assert dict(reopen(disk, clean=True, recovery_point=1).epochs.entries) == {3: 0}


# --- EC4, EC5: truncation -----------------------------------------------------------------------

CUT = {2: 6, 3: 8, 4: 11}


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (-1, CUT),
        (0, {}),
        (6, {}),
        (7, {2: 6}),
        (8, {2: 6}),
        (9, {2: 6, 3: 8}),
        (11, {2: 6, 3: 8}),
        (12, CUT),
        (100, CUT),
    ],
)
def test_truncation_from_the_end_drops_what_starts_at_or_above_it(end, left):
    cache = cache_of(CUT)
    assert cache.truncate_from_end(end) == (left != CUT)
    assert dict(cache.entries) == left


@pytest.mark.parametrize(
    ("before", "start", "left"),
    [
        (CUT, 1, CUT),
        (CUT, 6, CUT),
        (CUT, 7, {2: 7, 3: 8, 4: 11}),
        (CUT, 8, {3: 8, 4: 11}),
        (CUT, 9, {3: 9, 4: 11}),
        (CUT, 11, {4: 11}),
        (CUT, 15, {4: 15}),
        ({0: 0, 1: 7, 2: 10}, 5, {0: 5, 1: 7, 2: 10}),
        ({}, 5, {}),
    ],
)
def test_truncation_from_the_start_keeps_the_epoch_that_covers_it(before, start, left):
    cache = cache_of(before)
    assert cache.truncate_from_start(start) == (left != before)
    assert dict(cache.entries) == left


def test_a_cleared_cache_knows_nothing():
    cache = cache_of(THREE)
    cache.clear()
    assert (cache.entries, cache.latest_epoch) == ((), -1)
    assert cache.end_offset_for(7, 20) == UNDEFINED


# --- EC6: the epoch of an offset ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "epoch"),
    [(0, -1), (10, -1), (11, 5), (12, 6), (13, 7), (14, 7), (10**9, 7)],
)
def test_the_epoch_of_an_offset_is_the_newest_that_starts_no_later(offset, epoch):
    assert cache_of(THREE).epoch_for_offset(offset) == epoch


def test_no_offset_has_an_epoch_in_an_empty_cache():
    assert cache_of({}).epoch_for_offset(0) == -1


# --- EC7, EC9, S1, S2: the end of an epoch ------------------------------------------------------

GAPS = {0: 10, 2: 13, 4: 17}
ENDS = [
    # entries, log end, epoch asked for, answer
    (THREE, 20, -1, (-1, -1)),  # case 1
    (THREE, 20, 7, (7, 20)),  # case 2
    (THREE, 20, 8, (-1, -1)),  # case 3
    (THREE, 20, 4, (4, 11)),  # case 4: the epoch asked for, although unknown
    (THREE, 20, 0, (0, 11)),
    (THREE, 20, 5, (5, 12)),  # case 5
    (THREE, 20, 6, (6, 13)),
    (GAPS, 20, 1, (0, 13)),  # case 5: the answer is an older epoch
    (GAPS, 20, 2, (2, 17)),
    (GAPS, 20, 3, (2, 17)),
    (GAPS, 20, 0, (0, 13)),
    (GAPS, 20, 4, (4, 20)),
    ({2: 100}, 120, 3, (-1, -1)),
    ({}, 0, 0, (-1, -1)),  # S2
    ({}, 0, -1, (-1, -1)),
    ({}, 50, 7, (-1, -1)),
    ({5: 11, 7: 12}, 20, 5, (5, 12)),  # after S3
    ({5: 11, 7: 12}, 20, 6, (5, 12)),
    ({1: 7}, 9, 2, (-1, -1)),
    ({1: 0}, 0, 1, (1, 0)),
    ({1: 0}, 0, 0, (0, 0)),  # by case 4
]


@pytest.mark.parametrize(("entries", "log_end", "asked", "answer"), ENDS)
def test_the_end_of_an_epoch_is_the_start_of_the_next_known_one(entries, log_end, asked, answer):
    assert cache_of(entries).end_offset_for(asked, log_end) == answer


def test_undefined_is_minus_one_twice():
    assert UNDEFINED == (-1, -1)


def test_s1_the_newest_epoch_ends_at_the_log_end_of_now_and_closed_epochs_stay_closed():
    cache = cache_of({0: 0})
    assert cache.end_offset_for(0, 10) == (0, 10)
    assert cache.end_offset_for(0, 11) == (0, 11)
    cache.assign(1, 11)
    assert cache.end_offset_for(0, 30) == (0, 11)
    cache.assign(2, 40)
    assert cache.end_offset_for(0, 50) == (0, 11)
    assert cache.end_offset_for(1, 50) == (1, 40)


def test_a_leader_that_has_written_nothing_already_answers_for_its_epoch():
    cache = cache_of({0: 0})
    cache.assign(1, 10)
    assert cache.end_offset_for(1, 10) == (1, 10)


def test_s4_a_reopened_cache_is_the_same_after_many_changes_of_leader():
    disk = SimDisk()
    cache = cache_of({}, disk)
    log_end = 0
    for epoch in range(0, 60, 2):
        cache.assign(epoch, log_end)  # Every third leader is deposed before it writes.
        cache.write()
        log_end += epoch % 3
        loaded = EpochCache.load(disk, PATH)
        assert loaded.entries == cache.entries
        assert repr(loaded) == repr(cache)
    assert len(cache.entries) == 20
    assert [epoch for epoch, _ in cache.entries][:4] == [2, 4, 8, 10]


@pytest.mark.parametrize("target", [29, 30])
def test_s5_cutting_at_the_end_forgets_a_leadership_without_writes(target):
    disk = SimDisk()
    log = create(disk, config=CONFIG)
    log.truncate_fully(27)
    for offset in (27, 28):
        follow(log, make_batch(base_offset=offset, epoch=19))
    log.epochs.assign(20, 29)
    assert dict(log.epochs.entries) == {19: 27, 20: 29}
    assert log.truncate_to(target) == 29
    assert (log.log_start, log.log_end) == (27, 29)
    assert dict(log.epochs.entries) == {19: 27}
    assert disk.read_file(PATH) == b"0\n1\n19 27\n", "the cut is written at once"
    assert not log.epochs.is_owed(log.log_end)
