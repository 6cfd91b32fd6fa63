"""Recovery under any history and any small damage, with Hypothesis.

Goal: (a) after a power loss at any point a log is a prefix of what was written and holds at least
what was synced; (b) a flipped bit in any file is detected or harmless, and never makes a reader
skip a record or see another one; (c) the same for a file cut at any byte. Method: histories on the
simulated disk, `SimDisk.crash` for the fate of unsynced bytes, and a list of batches as the model;
the sparse indexes are computed again, by Kafka's rule and without the code under test.
"""

from __future__ import annotations

import random
import struct
from functools import cache
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from logkit import (
    DIRECTORY,
    Stored,
    check_contiguous,
    check_lookups,
    contents,
    create,
    files_of,
    fill,
    follow,
    make_batch,
    path_of,
    put,
    reopen,
    sync,
)
from tries import few, tries

from hightide.protocol.records import iter_batches
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.checkpoint import MalformedCheckpoint
from hightide_broker.storage.log import Log
from hightide_broker.storage.recovery import LogDamaged
from hightide_broker.storage.segment import LogConfig, SegmentDamage

INTERVAL_BYTES = 600
ENDLESS = LogConfig(index_interval_bytes=INTERVAL_BYTES)
SMALL = LogConfig(segment_bytes=9000, index_interval_bytes=INTERVAL_BYTES)

# --- (a) any history, then a power loss ---------------------------------------------------------

APPEND = st.tuples(
    st.just("append"),
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.sampled_from([0, 40, 700, 2500])),
)
SYNC = st.tuples(st.just("sync"), st.none())
CHECKPOINT = st.tuples(st.just("checkpoint"), st.none())
FLUSH = st.tuples(st.just("flush indexes"), st.none())
ROLL = st.tuples(st.just("roll"), st.none())
LEAD = st.tuples(st.just("new leader"), st.none())
GAP = st.tuples(st.just("gap"), st.integers(1, 50))
CUT = st.tuples(st.just("cut"), st.integers(0, 100))

many = settings(max_examples=tries(200), deadline=None, report_multiple_bugs=False)
PLAIN = [APPEND, APPEND, SYNC, CHECKPOINT, FLUSH, LEAD, GAP]


def histories(*steps: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(st.one_of(*steps), min_size=1, max_size=14)


class Writer:
    """A log with the model beside it: what it holds, and what it held before each cut."""

    def __init__(self, config: LogConfig) -> None:
        self.disk = SimDisk()
        self.config = config
        self.log = create(self.disk, config=config)
        self.epoch = 0
        self.recovery_point = 0
        self.versions: list[list[Stored]] = []

    def take(self, step: str, argument) -> None:
        log = self.log
        match step:
            case "append":
                batches, count, size = argument
                value = b"%d %d " % (self.epoch, log.log_end) + b"v" * size
                fill(log, batches, count=count, epoch=self.epoch, value=value)
            case "gap":
                base = log.log_end + argument
                batch = make_batch(timestamps=[1000 + base], base_offset=base, epoch=self.epoch)
                follow(log, batch)
            case "sync":
                sync(self.disk, log)
            case "checkpoint":
                self.recovery_point = log.synced_end
            case "flush indexes":
                log.flush_indexes()
            case "roll":
                log.roll()
            case "new leader":
                self.epoch += 1
                log.epochs.assign(self.epoch, log.log_end)
            case "cut":
                # Anywhere in a batch or in a gap before one; a new leader caused it.
                stored = contents(log)
                if stored:
                    self.versions.append(stored)
                    number = argument % len(stored)
                    begin = stored[number - 1].next_offset if number else 0
                    target = begin + argument % (stored[number].next_offset - begin)
                    end = log.end_after_cut(target)
                    self.recovery_point = min(self.recovery_point, end)
                    assert log.truncate_to(target) == end == begin
                    self.epoch += 1
        log.check_invariants()
        check_contiguous(log)

    def crash(self, seed: int) -> tuple[Log, list[Stored]]:
        """The log after a power loss, and what it held before."""
        synced_end = self.log.synced_end
        written = contents(self.log)
        self.disk.crash(random.Random(seed))
        again = reopen(self.disk, recovery_point=self.recovery_point, config=self.config)
        assert again.log_end >= synced_end, f"{synced_end} was durable, the log ends at {again!r}"
        assert again.synced_end <= max(self.recovery_point, again.log_start)
        return again, written


def check_after_crash(writer: Writer, again: Log, versions: list[list[Stored]]) -> None:
    found = contents(again)
    assert any(found == version[: len(found)] for version in versions)
    assert contents(again, max_bytes=5000) == found
    assert again.log_end == (found[-1].next_offset if found else 0)
    check_contiguous(again)
    check_lookups(again)
    for header in again.headers(0):
        assert again.epochs.epoch_for_offset(header.base_offset) == header.leader_epoch
    again.flush_indexes()
    for base in again.segment_bases():
        check_indexes(writer, base, whole=writer.recovery_point <= base)
    # The log goes on from here, and what it is given is durable.
    fill(again, 2, epoch=writer.epoch + 1)
    sync(writer.disk, again)
    expected = contents(again)
    writer.disk.crash(random.Random(0))
    last = reopen(writer.disk, recovery_point=again.synced_end, config=writer.config)
    assert contents(last) == expected


def check_indexes(writer: Writer, base: int, *, whole: bool) -> None:
    """The index files of a segment fit its batches; if all was scanned, they are a rebuild's."""
    batches, position = [], 0
    for header, batch in iter_batches(writer.disk.read_file(path_of(base))):
        batches.append((header, position))
        position += len(batch)
    offsets = list(struct.iter_unpack(">II", writer.disk.read_file(path_of(base, "index"))))
    times = list(struct.iter_unpack(">qI", writer.disk.read_file(path_of(base, "timeindex"))))
    assert {*offsets} <= {(header.last_offset - base, at) for header, at in batches}
    assert {*times} <= {(header.max_timestamp, header.last_offset - base) for header, _ in batches}
    assert all(a < b and c < d for (a, c), (b, d) in pairwise(offsets))
    assert all(a < b and c < d for (a, c), (b, d) in pairwise(times))
    if whole:
        expected_offsets, expected_times = kafkas_indexes(base, batches)
        assert offsets == expected_offsets
        assert times[: len(expected_times)] == expected_times
        assert len(times) <= len(expected_times) + 1  # The closing entry of a sealed segment.


def kafkas_indexes(base: int, batches: list) -> tuple[list, list]:
    """SG5 by hand; timestamps rise in these logs, so that each batch has the largest so far."""
    offsets, times, unindexed = [], [], 0
    for header, position in batches:
        if unindexed > INTERVAL_BYTES:
            offsets.append((header.last_offset - base, position))
            times.append((header.max_timestamp, header.last_offset - base))
            unindexed = 0
        unindexed += header.size
    return offsets, times


TORN_TIME_INDEX = [
    ("append", (1, 1, 700)),
    ("append", (1, 1, 0)),
    ("sync", None),
    ("checkpoint", None),
    ("flush indexes", None),
]
"""Its only entry reads as zeros after this power loss, which is an entry as well."""


@many
@example(history=TORN_TIME_INDEX, seed=0)
@given(history=histories(*PLAIN), seed=st.integers(0, 1 << 32))
def test_a_power_loss_leaves_a_prefix_with_all_that_was_synced(history, seed):
    writer = Writer(ENDLESS)
    for step in history:
        writer.take(*step)
    again, written = writer.crash(seed)
    check_after_crash(writer, again, [written])


@many
@given(histories(*PLAIN, ROLL), st.integers(0, 1 << 32))
def test_a_power_loss_leaves_a_prefix_also_across_segments(history, seed):
    writer = Writer(SMALL)
    for step in history:
        writer.take(*step)
    again, written = writer.crash(seed)
    check_after_crash(writer, again, [written])


@many
@given(histories(*PLAIN, CUT), st.integers(0, 1 << 32))
def test_a_power_loss_after_cuts_leaves_a_prefix_of_what_was_held_at_some_time(history, seed):
    writer = Writer(ENDLESS)
    for step in history:
        writer.take(*step)
    again, written = writer.crash(seed)
    check_after_crash(writer, again, [written, *writer.versions])


@many
@given(histories(*PLAIN, ROLL, CUT), st.integers(0, 1 << 32))
def test_a_power_loss_after_cuts_across_segments_leaves_a_prefix_too(history, seed):
    writer = Writer(SMALL)
    for step in history:
        writer.take(*step)
    again, written = writer.crash(seed)
    check_after_crash(writer, again, [written, *writer.versions])


# --- (b) a flipped bit --------------------------------------------------------------------------

FEW = LogConfig(segment_bytes=1100, index_interval_bytes=150)
MANY_CUTS = 200
"""Of a file of a thousand bytes."""
STAMPED = [*range(8), *range(12, 16)]
"""Bytes of a header that no checksum covers: the base offset and the leader epoch."""


@cache
def sound_files() -> tuple[dict[str, bytes], list[Stored]]:
    """The files of a log of three segments and two epochs, and what it holds."""
    disk = SimDisk()
    log = create(disk, config=FEW)
    for epoch in (0, 3):
        for count in (1, 2, 1, 3, 1, 1, 2, 1, 1, 2, 1, 1):
            fill(log, 1, count=count, epoch=epoch, value=b"value %d" % log.log_end)
    log.flush_indexes()
    log.producer_snapshots.write(log.log_end, b"snapshot")
    assert len(log.segment_bases()) == 3
    return files_of(disk), contents(log)


def disk_of(files: dict[str, bytes]) -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(DIRECTORY)
    for name, data in files.items():
        put(disk, f"{DIRECTORY}/{name}", data)
    return disk


def recovery_points() -> list[int]:
    """Everything is scanned, the last segment is, nothing is."""
    _, stored = sound_files()
    return [0, stored[2 * len(stored) // 3].base_offset, stored[-1].next_offset]


@st.composite
def bits(draw, suffixes: tuple[str, ...]) -> tuple[str, int, int]:
    files, _ = sound_files()
    name = draw(st.sampled_from(sorted(n for n in files if n.endswith(suffixes) and files[n])))
    return name, draw(st.integers(0, len(files[name]) - 1)), draw(st.integers(0, 7))


def batch_at(name: str, position: int) -> tuple[Stored, int]:
    """The batch that holds a byte of a segment file, and the byte's place in it."""
    _, stored = sound_files()
    for each in stored:
        if each.base_offset >= int(name[:20]):
            if position < len(each.data):
                return each, position
            position -= len(each.data)
    raise AssertionError(f"{name} has no byte {position}")


def open_flipped(name: str, position: int, bit: int, recovery_point: int) -> Log | None:
    """The log after the flip; None if opening it found the damage."""
    files, _ = sound_files()
    disk = disk_of(files)
    disk.corrupt(f"{DIRECTORY}/{name}", position, bit)
    try:
        return reopen(disk, recovery_point=recovery_point, config=FEW)
    except LogDamaged as damage:
        if not (name.endswith(".log") and damage.path == f"{DIRECTORY}/{name}"):
            raise
    except MalformedCheckpoint:
        if name != "partition.metadata":
            raise
    return None


def check_reads(log: Log) -> set[int]:
    """Every read below the log's end gives the right batch or names damage; the damaged offsets."""
    _, stored = sound_files()
    damaged = set()
    for batch in stored:
        for offset in range(batch.base_offset, min(batch.next_offset, log.log_end)):
            try:
                part = log.read(offset, max_bytes=1)
            except SegmentDamage:
                damaged.add(offset)
                continue
            assert part is not None, f"nothing at {offset}"
            assert part.read() == batch.data, f"a read at {offset} gives another batch"
    return damaged


@settings(max_examples=tries(300), deadline=None, report_multiple_bugs=False)
@given(bits((".log",)), st.sampled_from([0, 1, 2]))
def test_a_flipped_bit_in_a_segment_is_never_served(flip, which):
    name, position, bit = flip
    batch, at = batch_at(name, position)
    if at in STAMPED:
        return
    _, stored = sound_files()
    log = open_flipped(name, position, bit, recovery_points()[which])
    if log is None:
        return
    damaged = check_reads(log)
    if log.log_end < stored[-1].next_offset:
        assert log.log_end == batch.base_offset == stored[-1].base_offset
        assert not damaged
    else:
        assert set(range(batch.base_offset, batch.next_offset)) <= damaged


@settings(max_examples=tries(150), deadline=None)
@given(bits((".log",)), st.sampled_from(STAMPED), st.sampled_from([0, 1, 2]))
def test_a_flipped_bit_in_a_stamp_leaves_the_records_as_they_were(flip, at, which):
    name, position, bit = flip
    _, offset_in_batch = batch_at(name, position)
    _, stored = sound_files()
    log = open_flipped(name, position - offset_in_batch + at, bit, recovery_points()[which])
    if log is None:
        return
    written = {each.data[16:] for each in stored}
    for offset in range(log.log_start, min(log.log_end, stored[-1].next_offset)):
        try:
            part = log.read(offset, max_bytes=1)
        except SegmentDamage:
            continue
        assert part is None or part.read()[16:] in written


@settings(max_examples=tries(300), deadline=None, report_multiple_bugs=False)
@given(bits(("index", "checkpoint", "metadata", "snapshot")), st.sampled_from([0, 1, 2]))
def test_a_flipped_bit_beside_the_segments_costs_no_record_and_skips_none(flip, which):
    _, stored = sound_files()
    log = open_flipped(*flip, recovery_points()[which])
    if log is None:
        return
    assert log.log_end == stored[-1].next_offset
    assert check_reads(log) == set()
    assert contents(log) == stored


# --- (c) a cut at any byte ----------------------------------------------------------------------


def ends_of(data):
    """Where the batches of a file end."""
    return accumulate(len(batch) for _, batch in iter_batches(data))


def cuts_of(data):
    """To how many bytes a file of batches is cut: some all over it, and wherever one ends."""
    return sorted({*few(range(len(data)), MANY_CUTS), *ends_of(data)} - {len(data)})


@pytest.mark.parametrize("which", [0, 1])
def test_the_last_segment_may_be_cut_at_any_byte(which):
    files, stored = sound_files()
    name = max(each for each in files if each.endswith(".log"))
    for size in range(len(files[name]) + 1):
        log = reopen(
            disk_of({**files, name: files[name][:size]}),
            recovery_point=min(recovery_points()[which], int(name[:20])),
            config=FEW,
        )
        found = contents(log)
        assert found == stored[: len(found)], f"cut to {size} bytes"
        left = sum(len(each.data) for each in found if each.base_offset >= int(name[:20]))
        assert left <= size
        assert len(found) == len(stored) or left + len(stored[len(found)].data) > size
        assert log.log_end == max(found[-1].next_offset, int(name[:20]))


@pytest.mark.parametrize("number", [0, 1])
def test_a_sealed_segment_may_be_cut_at_any_byte_and_ends_the_log(number):
    files, stored = sound_files()
    logs = sorted(each for each in files if each.endswith(".log"))
    name = logs[number]
    whole = {0, *ends_of(files[name])}
    for size in cuts_of(files[name]):
        disk = disk_of({**files, name: files[name][:size]})
        log = reopen(disk, recovery_point=int(name[:20]), config=FEW)
        found = contents(log)
        assert found == stored[: len(found)], f"cut to {size} bytes"
        check_contiguous(log)
        left = max(each for each in whole if each <= size)
        assert disk.read_file(f"{DIRECTORY}/{name}") == files[name][:left]
        for later in logs[number + 1 :]:
            assert not disk.exists(f"{DIRECTORY}/{later}")
            assert disk.read_file(f"{DIRECTORY}/{later}.cut") == files[later]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_cut_after_an_orderly_stop_is_damage_at_any_byte_and_changes_nothing(number):
    files, stored = sound_files()
    name = sorted(each for each in files if each.endswith(".log"))[number]
    for size in cuts_of(files[name]):
        disk = disk_of({**files, name: files[name][:size]})
        with pytest.raises(LogDamaged):
            reopen(disk, clean=True, recovery_point=stored[-1].next_offset, config=FEW)
        for each, data in files.items():
            if not each.endswith("index"):
                assert disk.read_file(f"{DIRECTORY}/{each}") == (
                    data if each != name else data[:size]
                )


def test_a_cut_below_the_recovery_point_is_damage_at_any_byte():
    files, stored = sound_files()
    name = max(each for each in files if each.endswith(".log"))
    for size in range(len(files[name])):
        with pytest.raises(LogDamaged):
            reopen(
                disk_of({**files, name: files[name][:size]}),
                recovery_point=stored[-1].next_offset,
                config=FEW,
            )


@settings(max_examples=tries(100), deadline=None)
@example(cut=("index", 0), which=2)
@given(
    cut=st.tuples(st.sampled_from(["index", "timeindex"]), st.integers(0, 200)),
    which=st.sampled_from([0, 1, 2]),
)
def test_an_index_may_be_cut_at_any_byte(cut, which):
    suffix, size = cut
    files, stored = sound_files()
    short = {n: data[:size] if n.endswith(f".{suffix}") else data for n, data in files.items()}
    log = reopen(disk_of(short), recovery_point=recovery_points()[which], config=FEW)
    assert contents(log) == stored
    assert check_reads(log) == set()
