"""Whatever an operation was doing when the power failed, opening the log makes it whole.

Goal: each operation that changes more than one file leaves the log as before or as after it, at
every point where it can be interrupted. Method: the operation runs on a disk that stops before its
n-th change, for every n until it runs through; then the process is restarted, with the page cache
kept (kill -9), with what was not synced lost in several ways (power), or with only the bytes lost,
while the directory had been written by itself; then opened again, twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from logkit import (
    CONFIG,
    DIRECTORY,
    BreakingDisk,
    PowerFailure,
    Stored,
    check_contiguous,
    contents,
    create,
    emptied,
    fill,
    follow,
    lead,
    make_batch,
    path_of,
    put,
    record_since,
    reopen,
    stop,
    sync,
)
from tries import few

from hightide.protocol.records import parse_header
from hightide_broker.simulation.disk import PAGE_BYTES, SimDisk
from hightide_broker.storage.indexing import rebuild_indexes
from hightide_broker.storage.log import Log
from hightide_broker.storage.segment import LogConfig, Segment

SIZE = len(make_batch())
PER_SEGMENT = CONFIG.segment_bytes // SIZE


class Fate(NamedTuple):
    """How a process ends."""

    seed: int = -1
    """Of what is lost with the power; it is not, for -1: `kill -9`."""
    keeps_names: bool = False
    """Every change of the directory so far is on the disk, without a sync."""

    def __str__(self) -> str:
        names = ", names kept" if self.keeps_names else ""
        return f"power {self.seed}{names}" if self.loses_power else "kill"

    @property
    def loses_power(self) -> bool:
        return self.seed >= 0

    def befall(self, disk: SimDisk) -> None:
        if self.keeps_names:
            disk.sync_now([], [DIRECTORY])
        if self.loses_power:
            disk.crash(random.Random(self.seed))


FATES = few([Fate(), *(Fate(seed, names) for names in (False, True) for seed in range(4))], 3)


def log_of_three_segments(disk: SimDisk) -> Log:
    log = create(disk)
    fill(log, 2 * PER_SEGMENT, epoch=0)
    fill(log, 5, epoch=1)
    sync(disk, log)
    return log


def every_interruption(
    operation: Callable[[BreakingDisk, Log], object], fate: Fate
) -> Iterator[tuple[BreakingDisk, Log]]:
    """The disk after the operation was interrupted before each of its changes, and run through."""
    for changes in range(1000):
        disk = BreakingDisk()
        log = log_of_three_segments(disk)
        disk.changes_left = changes
        try:
            operation(disk, log)
        except PowerFailure:
            finished = False
        else:
            finished = True
        disk.repair()
        fate.befall(disk)
        yield disk, log
        if finished:
            assert changes > 0, "the operation changes nothing"
            return


def reopen_twice(disk: SimDisk, *, recovery_point: int, log_start: int = 0) -> Log:
    """The log as it is found, and found again by the next start."""
    first = reopen(disk, recovery_point=recovery_point, log_start=log_start)
    found = contents(first)
    again = reopen(disk, recovery_point=recovery_point, log_start=log_start)
    assert contents(again) == found
    # As with Kafka, the epoch of an empty log is forgotten by the second start.
    assert not found or again.epochs.entries == first.epochs.entries
    assert not [name for name in disk.list(DIRECTORY) if name.endswith((".swap", ".cleaned"))]
    return again


def check_epochs(log: Log) -> None:
    """What each batch says of its epoch is what the cache says."""
    for header in log.headers(log.log_start):
        known = log.epochs.epoch_for_offset(max(header.base_offset, log.log_start))
        assert header.leader_epoch == known, f"epoch of the batch at {header.base_offset}"


# --- S28: replacing a segment -------------------------------------------------------------------


def kept_by_the_cleaner(segment: list[Stored], *, every: int) -> list[Stored]:
    """What remains of a segment when each n-th batch is kept; the last one stays, if only empty."""
    kept = [each for each in segment[:-1] if each.base_offset and each.base_offset % every == 0]
    last = segment[-1]
    return [*kept, last if last.base_offset % every == 0 else without_records(last)]


def without_records(batch: Stored) -> Stored:
    return batch._replace(data=emptied(batch.data))


def write_cleaned(disk: SimDisk, base: int, kept: list[Stored], *, indexed: bool) -> str:
    """What the cleaner's thread leaves: a durable segment, and perhaps indexes that are not."""
    file = disk.open(f"{path_of(base)}.cleaned", create=True)
    for batch in kept:
        file.append(batch.data)
    disk.sync_now([file])
    if indexed:
        rebuild_indexes(Segment(disk, DIRECTORY, base, config=CONFIG, suffix=".cleaned"))
    return file.path


def check_found(log: Log, batches: list[Stored]) -> None:
    """Every record of these is found, by its offset and by its timestamp."""
    for batch in batches:
        if parse_header(batch.data).record_count:
            part = log.read(batch.base_offset, max_bytes=1)
            assert part is not None
            assert part.read() == batch.data
            found = record_since(log, 1000 + batch.base_offset)
            assert found is not None
            assert found.offset == batch.base_offset


@pytest.mark.parametrize("fate", FATES, ids=str)
@pytest.mark.parametrize("base", [0, PER_SEGMENT])
@pytest.mark.parametrize("every", [3, 1 << 30], ids=["some kept", "none kept"])
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "not indexed"])
def test_s28_a_replaced_segment_is_the_old_or_the_new_one(base, every, indexed, fate):
    seen = set()
    old = contents(log_of_three_segments(SimDisk()))
    kept = kept_by_the_cleaner(old[base : base + PER_SEGMENT], every=every)
    new = [*old[:base], *kept, *old[base + PER_SEGMENT :]]
    assert len(new) < len(old)

    def replace(disk: BreakingDisk, log: Log) -> None:
        log.replace_segment(base, write_cleaned(disk, base, kept, indexed=indexed))
        assert contents(log) == new
        sync(disk, log)

    for broken, _ in every_interruption(replace, fate):
        log = reopen_twice(broken, recovery_point=2 * PER_SEGMENT)
        found = contents(log)
        assert found in (old, new)
        assert log.log_end == 2 * PER_SEGMENT + 5
        check_contiguous(log)
        check_epochs(log)
        check_found(log, found)
        seen.add(found == new)
    assert seen == {False, True}
    assert found == new, "it had been synced"


@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "not indexed"])
def test_s28_a_replaced_segment_is_durable_with_the_next_sync_and_not_before(indexed):
    disk = SimDisk()
    log = log_of_three_segments(disk)
    old = contents(log)
    kept = kept_by_the_cleaner(old[:PER_SEGMENT], every=3)
    cleaned = write_cleaned(disk, 0, kept, indexed=indexed)
    syncs = disk.sync_count
    disk.fail("sync", "")
    log.replace_segment(0, cleaned)
    assert disk.sync_count == syncs, "nothing is synced on the loop"
    disk.heal()
    names = {name for name in disk.list(DIRECTORY) if name.startswith(f"{0:020d}")}
    assert names == {f"{0:020d}.{suffix}" for suffix in ("log", "index", "timeindex")}
    expected = b"".join(each.data for each in kept)
    assert disk.durable_file(path_of(0)) == b"".join(each.data for each in old[:PER_SEGMENT])
    sync(disk, log)
    assert disk.durable_file(path_of(0)) == expected


def test_s28_indexes_beside_a_cleaned_segment_become_its_own():
    disk = SimDisk()
    log = log_of_three_segments(disk)
    kept = kept_by_the_cleaner(contents(log)[:PER_SEGMENT], every=2)
    cleaned = write_cleaned(disk, 0, kept, indexed=True)
    suffixes = ("index", "timeindex")
    made = {suffix: disk.read_file(f"{path_of(0, suffix)}.cleaned") for suffix in suffixes}
    log.replace_segment(0, cleaned)
    assert {suffix: disk.read_file(path_of(0, suffix)) for suffix in suffixes} == made
    assert len(made["timeindex"]) > 0
    check_found(log, contents(log))


LEFTOVERS = [
    # what else lies beside the old segment; whether the new one counts
    (["cleaned"], False),
    (["swap"], True),
    (["cleaned", "swap"], True),
    (["deleted"], False),
    (["tmp"], False),
]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("suffixes", "new_counts", "old_is_there"),
    [
        *((*each, True) for each in LEFTOVERS),
        # The old segment goes when the new one's name is durable.
        *((*each, False) for each in LEFTOVERS if each[1]),
    ],
)
def test_s28_leftovers_are_finished_or_removed(suffixes, new_counts, old_is_there, clean):
    disk = SimDisk()
    log = log_of_three_segments(disk)
    stop(disk, log)
    old = contents(log)
    if not old_is_there:
        disk.remove(path_of(0))
    kept = [old[0], without_records(old[PER_SEGMENT - 1])]
    new = b"".join(each.data for each in kept)
    for suffix in suffixes:
        put(disk, f"{path_of(0)}.{suffix}", new if suffix == "swap" else b"leftover")
    again = reopen(disk, clean=clean, recovery_point=len(old))
    assert contents(again) == ([*kept, *old[PER_SEGMENT:]] if new_counts else old)
    assert not [name for name in disk.list(DIRECTORY) if name.endswith(tuple(suffixes))]
    assert set(again.recovery.rebuilt) == ({f"{0:020d}.log"} if new_counts else set())


# --- cutting, deleting, rolling -----------------------------------------------------------------


@pytest.mark.parametrize("fate", FATES, ids=str)
@pytest.mark.parametrize("target", [3, PER_SEGMENT, PER_SEGMENT + 2, 2 * PER_SEGMENT + 1])
def test_s29_an_interrupted_cut_leaves_a_prefix(target, fate):
    def cut(disk: BreakingDisk, log: Log) -> None:
        log.truncate_to(target)
        sync(disk, log)

    before = contents(log_of_three_segments(SimDisk()))
    for disk, _ in every_interruption(cut, fate):
        log = reopen_twice(disk, recovery_point=target)
        found = contents(log)
        assert found == before[: len(found)]
        assert target <= len(found) == log.log_end
        check_epochs(log)
    assert fate.loses_power or len(found) == target


@pytest.mark.parametrize("fate", FATES, ids=str)
def test_s29_what_is_appended_after_a_cut_never_mixes_with_what_was_cut(fate):
    def cut_and_append(disk: BreakingDisk, log: Log) -> None:
        log.truncate_to(PER_SEGMENT + 2)
        fill(log, 2 * PER_SEGMENT, epoch=2)
        sync(disk, log)

    before = contents(log_of_three_segments(SimDisk()))
    disk = SimDisk()
    log = log_of_three_segments(disk)
    cut_and_append(disk, log)
    after = contents(log)
    for disk, _ in every_interruption(cut_and_append, fate):
        log = reopen_twice(disk, recovery_point=PER_SEGMENT + 2)
        found = contents(log)
        assert found in (before[: len(found)], after[: len(found)])
        assert len(found) >= PER_SEGMENT + 2
        check_epochs(log)
    assert found == after


@pytest.mark.parametrize("fate", FATES, ids=str)
@pytest.mark.parametrize("target", [1, 1000])
def test_a_log_begun_again_is_the_old_one_or_the_new_one(target, fate):
    def begin_again(disk: BreakingDisk, log: Log) -> None:
        log.truncate_fully(target)
        follow(log, make_batch(3, base_offset=target, epoch=4))
        sync(disk, log)

    before = contents(log_of_three_segments(SimDisk()))
    for disk, _ in every_interruption(begin_again, fate):
        log = reopen_twice(disk, recovery_point=0)
        found = contents(log)
        if any(each.epoch == 4 for each in found):
            assert [each.base_offset for each in found] == [target]
        elif found:
            # Dropping from either end is fine, a hole is not.
            first = found[0].base_offset
            assert found == before[first : first + len(found)]
        check_epochs(log)
    assert (log.log_start, log.log_end) == (target, target + 3)


@pytest.mark.parametrize("fate", FATES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_deleted_segments_are_gone_from_the_start_or_back(count, fate):
    def delete(disk: BreakingDisk, log: Log) -> None:
        log.delete_segments(count)
        sync(disk, log)

    before = contents(log_of_three_segments(SimDisk()))
    end = len(before)
    for disk, _ in every_interruption(delete, fate):
        log = reopen_twice(disk, recovery_point=end)
        found = contents(log)
        assert found == before[end - len(found) :]
        assert log.log_end == end
        check_epochs(log)
    assert log.log_start == min(count * PER_SEGMENT, end)


# --- recovery itself ----------------------------------------------------------------------------

PAGES = LogConfig(segment_bytes=4 * PAGE_BYTES, index_interval_bytes=150)


def log_with_a_hole(disk: SimDisk) -> list[Stored]:
    """Three segments, of which the first lost a page that was never synced; what was written."""
    log = create(disk, config=PAGES)
    for _ in range(24):
        lead(log, make_batch(size=1500))
    sync(disk, log)
    before = contents(log)
    assert len(log.segment_bases()) == 3
    data = bytearray(disk.read_file(path_of(0)))
    data[PAGE_BYTES : 2 * PAGE_BYTES] = bytes(PAGE_BYTES)
    put(disk, path_of(0), bytes(data))
    return before


@pytest.mark.parametrize("fate", FATES, ids=str)
def test_a_recovery_that_is_interrupted_is_done_by_the_next_start(fate):
    for changes in range(1000):
        disk = BreakingDisk()
        before = log_with_a_hole(disk)
        disk.changes_left = changes
        try:
            reopen(disk, config=PAGES)
        except PowerFailure:
            finished = False
        else:
            finished = True
        disk.repair()
        fate.befall(disk)
        for _ in range(2):
            log = reopen(disk, config=PAGES)
            assert contents(log) == before[:2], f"after {changes} changes"
            assert log.log_end == 2
        if finished:
            assert changes > 5
            return
