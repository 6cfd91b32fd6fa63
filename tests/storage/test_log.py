"""The log as stories in `scenarios/log`, and what is too small or too large for a story.

Goal: append, roll, read, truncate, find, retire and replace as Kafka's rules has them (1.10, 1.15,
1.17; S5, S6, S8-S11, S14, S15, S29). Method: transcripts on the simulated disk, with time as an
argument; beneath them plain tests of failures and of durability. What a sync makes durable:
`test_sync_job.py`.
"""

from __future__ import annotations

import random

import pytest
import transcripts
from logkit import (
    CONFIG,
    DIRECTORY,
    check_contiguous,
    contents,
    create,
    emptied,
    files_of,
    fill,
    follow,
    lead,
    make_batch,
    newest_record,
    path_of,
    put,
    record_since,
    reopen,
    stop,
    sync,
)

from hightide.protocol.records import iter_batches, parse_header
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage import segment
from hightide_broker.storage.log import Log, OffsetOutOfRange, UnexpectedAppendOffset
from hightide_broker.storage.recovery import LogDamaged
from hightide_broker.storage.segment import LogConfig, SegmentDamage

BATCH_BYTES = 200
"""Every batch of a story has this size unless it says another."""


def span(start: int, end: int) -> str:
    """Offsets as a story shows them: both ends included."""
    return f"{start}..{end - 1}"


def spans(batches: list[bytes]) -> str:
    """Batches by their offsets; one without records is in brackets."""
    found = []
    for header in map(parse_header, batches):
        text = span(header.base_offset, header.next_offset)
        found.append(text if header.record_count else f"[{text}]")
    return " ".join(found)


class LogWorld:
    """One log on a simulated disk; every command answers with what it changed."""

    refusals = (OffsetOutOfRange, UnexpectedAppendOffset, SegmentDamage, LogDamaged, DiskError)

    def __init__(self) -> None:
        self.disk = SimDisk()
        self._log: Log | None = None
        self._config = LogConfig()

    @property
    def log(self) -> Log:
        assert self._log is not None, "a story begins with `create`"
        return self._log

    def check_invariants(self) -> None:
        self.log.check_invariants()
        check_contiguous(self.log)
        for header in self.log.headers(self.log.log_start):
            known = self.log.epochs.epoch_for_offset(max(header.base_offset, self.log.log_start))
            assert header.leader_epoch == known, f"epoch of {header.base_offset}: {known}"

    def create(self, **options: str) -> str:
        self._config = LogConfig(**{name: int(value) for name, value in options.items()})
        self.disk = SimDisk()
        self._log = create(self.disk, config=self._config)
        return self.offsets()

    # -- writing

    def append(
        self, count: str, epoch: str = "0", ts: str = "1000", at: str = "0", size: str = ""
    ) -> str:
        """As the leader; `ts` is the timestamp of every record, or one for each: 5,7,6."""
        times = [int(each) for each in ts.split(",")] * (int(count) if "," not in ts else 1)
        batch = make_batch(int(count), timestamps=times, size=int(size or BATCH_BYTES))
        stored = lead(self.log, batch, epoch=int(epoch), now_ms=int(at))
        return f"{span(stored.base_offset, stored.next_offset)} {self.bases()}"

    def follow(self, *spans: str, epoch: str = "0") -> str:
        """As a follower, one batch for each span; `4..9` is from 4 to 9."""
        for text in spans:
            first, last = map(int, text.split(".."))
            count = last - first + 1
            batch = make_batch(count, base_offset=first, epoch=int(epoch), size=BATCH_BYTES)
            follow(self.log, batch)
        return f"{self.offsets()} {self.bases()}"

    def roll(self) -> str:
        return f"base={self.log.roll()} {self.bases()}"

    def lead(self, epoch: str) -> str:
        """Become the leader: the epoch begins at the log end, before any append."""
        self.log.epochs.assign(int(epoch), self.log.log_end)
        return self.epochs()

    # -- reading

    def read(self, offset: str, size: str = "1000000", limit: str = "", one: str = "yes") -> str:
        part = self.log.read(
            int(offset),
            max_bytes=int(size),
            limit_offset=int(limit) if limit else None,
            at_least_one=one == "yes",
        )
        if part is None:
            return "nothing"
        found = [batch for _, batch in iter_batches(part.read())]
        return f"{spans(found)} next={part.next_offset}"

    def all(self) -> str:
        return spans([each.data for each in contents(self.log)])

    def find(self, timestamp: str) -> str:
        """The first record at or after a timestamp, or `max`: the one with the largest."""
        found = (
            newest_record(self.log)
            if timestamp == "max"
            else record_since(self.log, int(timestamp))
        )
        if found is None:
            return "nothing"
        return f"offset={found.offset} ts={found.timestamp} epoch={found.leader_epoch}"

    def end_of(self, epoch: str) -> str:
        return str(self.log.epochs.end_offset_for(int(epoch), self.log.log_end))

    # -- cutting

    def truncate(self, offset: str) -> str:
        self.log.truncate_to(int(offset))
        return f"{self.offsets()} {self.bases()} {self.epochs()}"

    def truncate_fully(self, offset: str) -> str:
        self.log.truncate_fully(int(offset))
        return f"{self.offsets()} {self.bases()} {self.epochs()}"

    def start(self, offset: str) -> str:
        news = self.log.advance_log_start(int(offset))
        return f"{self.offsets()} {self.epochs()}" if news else "no news"

    def delete(self, count: str) -> str:
        renamed = [
            path.rpartition("/")[2].lstrip("0") for path in self.log.delete_segments(int(count))
        ]
        return f"{self.offsets()} {self.bases()} renamed={','.join(renamed) or 'none'}"

    def clean(self, base: str, keep: str) -> str:
        """Replace a segment by one that holds only the batches that begin at `keep`: 0,2 or -.

        Its last batch stays in any case, without records if it is not kept.
        """
        kept = [int(each) for each in keep.split(",") if each != "-"]
        old = self.disk.read_file(path_of(int(base)))
        cleaned = path_of(int(base)) + ".cleaned"
        file = self.disk.open(cleaned, create=True)
        *_, (last, _) = iter_batches(old)
        for header, batch in iter_batches(old):
            if header.base_offset in kept:
                file.append(batch)
            elif header.base_offset == last.base_offset:
                file.append(emptied(batch))
        self.disk.sync_now([file])
        self.log.replace_segment(int(base), cleaned)
        return f"{self.offsets()} {self.bases()}"

    # -- the disk

    def sync(self) -> str:
        sync(self.disk, self.log)
        return f"synced={self.log.synced_end}"

    def stop(self) -> str:
        stop(self.disk, self.log)
        return f"synced={self.log.synced_end}"

    def crash(self, seed: str) -> str:
        self.disk.crash(random.Random(int(seed)))
        return "power lost"

    def open(self, how: str, recovery_point: str = "0", log_start: str = "0") -> str:
        self._log = reopen(
            self.disk,
            clean=how == "clean",
            recovery_point=int(recovery_point),
            log_start=int(log_start),
            config=self._config,
        )
        return f"{self.offsets()} {self.bases()} {self.epochs()}"

    # -- looking

    def offsets(self) -> str:
        return f"start={self.log.log_start} end={self.log.log_end}"

    def bases(self) -> str:
        return f"segments={','.join(map(str, self.log.segment_bases()))}"

    def epochs(self) -> str:
        return f"epochs={self.log.epochs!r}".replace(" ", "")

    def segments(self) -> str:
        """Offsets, bytes and largest timestamp of each segment."""
        return " ".join(
            f"{each.base_offset}-{each.next_base_offset}:{each.size}b,ts={each.max_timestamp}"
            for each in self.log.segments
        )

    def files(self) -> str:
        names = [name.lstrip("0") for name in self.disk.list(DIRECTORY)]
        return " ".join(name for name in names if name[0] == "." or name[0].isdigit())


@pytest.mark.parametrize("path", transcripts.stories("log"), ids=lambda path: path.stem)
def test_the_story_is_as_it_is_told(path, rewrite):
    transcripts.play(path, LogWorld(), rewrite=rewrite)


# --- failures and durability --------------------------------------------------------------------


@pytest.mark.parametrize("rolling", [False, True])
def test_an_append_that_fails_changes_nothing_and_can_be_tried_again(rolling):
    disk = SimDisk()
    log = create(disk)
    fill(log, 3)
    before = contents(log)
    size = CONFIG.segment_bytes - 50 if rolling else None
    disk.capacity = disk.used_bytes() + 50
    with pytest.raises(DiskError) as caught:
        lead(log, make_batch(size=size))
    assert caught.value.full
    assert (log.log_end, contents(log)) == (3, before)
    log.check_invariants()
    disk.capacity = 1 << 30
    assert lead(log, make_batch(size=size)).base_offset == 3
    assert log.segment_bases() == ([0, 3] if rolling else [0])
    stop(disk, log)
    assert len(contents(reopen(disk, clean=True, recovery_point=4))) == 4


def test_what_a_reader_left_behind_is_forgotten_by_a_cut():
    log = create(SimDisk(), config=LogConfig())
    fill(log, 6)
    assert len(contents(log)) == 6  # The log remembers where a reader will go on.
    log.truncate_to(2)
    fill(log, 6, epoch=1, value=b"longer than before")
    for offset in (5, 4, 3):
        (header, _) = next(iter_batches(log.read(offset, max_bytes=1).read()))
        assert (header.base_offset, header.leader_epoch) == (offset, 1)


@pytest.mark.parametrize("target", [4, 5])
def test_a_log_cut_inside_a_batch_opens_with_the_recovery_point_its_caller_wrote(target):
    disk = SimDisk()
    log = create(disk)
    fill(log, 2, count=3)
    sync(disk, log)
    recovery_point = log.end_after_cut(target)  # The caller writes it down before it cuts.
    assert log.truncate_to(target) == recovery_point == 3
    sync(disk, log)
    assert reopen(disk, recovery_point=recovery_point).log_end == 3


def test_a_log_cut_in_a_gap_ends_where_its_last_batch_does():
    disk = SimDisk()
    log = create(disk)
    follow(log, make_batch(base_offset=0, epoch=0))
    follow(log, make_batch(base_offset=5, epoch=0))
    sync(disk, log)
    recovery_point = log.end_after_cut(3)
    assert log.truncate_to(3) == recovery_point == 1
    sync(disk, log)
    assert reopen(disk, recovery_point=recovery_point).log_end == log.log_end == 1


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_that_begins_without_timestamps_rolls_no_earlier_after_a_restart(clean):
    config = LogConfig(segment_ms=1000)
    ends = []
    for restart in (False, True):
        disk = SimDisk()
        log = create(disk, config=config)
        lead(log, make_batch(timestamps=[-1]))
        if restart:
            stop(disk, log)
            log = reopen(disk, clean=clean, recovery_point=1, config=config)
        lead(log, make_batch(timestamps=[50_000]))
        ends.append(log.segment_bases())
    assert ends == [[0], [0]]


def test_producer_snapshots_lie_beside_the_segments_and_go_with_them():
    disk = SimDisk()
    log = create(disk)
    fill(log, 25)
    second, third = log.segment_bases()[1:3]
    for offset in (25, 0, second, third):
        log.producer_snapshots.write(offset, b"producers up to %d" % offset)
    put(disk, path_of(7, "snapshot.tmp"), b"a crash while writing")
    sync(disk, log)
    disk.crash(random.Random(0))
    log = reopen(disk, recovery_point=0)
    assert log.producer_snapshots.offsets() == [0, second, third, 25]
    assert log.producer_snapshots.read(third) == b"producers up to %d" % third
    assert not disk.exists(path_of(7, "snapshot.tmp"))
    log.producer_snapshots.remove_durably([third])
    log.delete_segments(1)
    assert log.producer_snapshots.offsets() == [second, 25]


@pytest.mark.parametrize("power", [False, True])
def test_an_emptied_log_still_knows_the_epoch_of_its_last_record(power):
    disk = SimDisk()
    log = create(disk)
    for epoch in (3, 5):
        lead(log, make_batch(), epoch=epoch)
    log.delete_segments(1)
    sync(disk, log)
    assert (log.log_start, log.log_end, log.last_epoch) == (2, 2, 5)
    # An epoch that was to begin, and whose first record was never stored, is none.
    log.epochs.assign(7, 2)
    log.epochs.write()
    if power:
        disk.crash(random.Random(0))
    assert reopen(disk, recovery_point=2, clean=not power).last_epoch == 5


# --- damage and size ----------------------------------------------------------------------------


def test_a_read_serves_what_lies_before_the_damage_and_then_names_it():
    disk = SimDisk()
    log = create(disk)
    fill(log, 3)
    position = len(make_batch())
    disk.corrupt(path_of(0), position + 70)
    assert log.read(0, max_bytes=10_000).next_offset == 1
    with pytest.raises(SegmentDamage, match=f"{path_of(0)} is damaged at byte {position}: .*CRC"):
        log.read(1, max_bytes=10_000)
    assert log.read(2, max_bytes=10_000).next_offset == 3


@pytest.mark.parametrize("position", [0, 8, 16], ids=["base offset", "length", "magic"])
def test_a_read_refuses_a_header_that_cannot_be_in_its_place(position):
    disk = SimDisk()
    log = create(disk)
    fill(log, 2)
    disk.corrupt(path_of(0), position, bit=7)
    with pytest.raises(SegmentDamage):
        log.read(0, max_bytes=10_000)


def test_a_batch_of_megabytes_is_read_scanned_and_found():
    disk, config = SimDisk(), LogConfig()
    log = create(disk, config=config)
    lead(log, make_batch(timestamps=[5]))
    lead(log, make_batch(2, timestamps=[6, 7], value=b"x" * 1_300_000))
    lead(log, make_batch(timestamps=[8]))
    assert [stored.next_offset for stored in contents(log)] == [1, 3, 4]
    assert log.read(1, max_bytes=1000).size > 2_600_000
    assert record_since(log, 7).offset == 2
    sync(disk, log)
    again = reopen(disk, config=config)
    assert contents(again) == contents(log)
    assert [header.base_offset for header, _ in again.batches()] == [0, 1, 3]


# --- what the caller must not do ----------------------------------------------------------------

FORBIDDEN = {
    "S14: a log start above the end": lambda log: log.advance_log_start(5),
    "more segments deleted than there are": lambda log: log.delete_segments(2),
    "the active segment cleaned": lambda log: log.replace_segment(0, path_of(0) + ".cleaned"),
    "a segment cleaned that is not there": lambda log: (
        log.roll(),
        log.replace_segment(2, path_of(2) + ".cleaned"),
    ),
}


@pytest.mark.parametrize("call", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_what_no_caller_may_ask_for_is_an_assertion(call):
    log = create(SimDisk())
    fill(log, 4)
    before = contents(log)
    with pytest.raises(AssertionError):
        call(log)
    assert (contents(log), log.log_start, log.log_end) == (before, 0, 4)


# --- both disks ---------------------------------------------------------------------------------


def test_a_log_leads_the_same_life_on_the_real_disk_and_on_the_simulated_one(tmp_path):
    lives = []
    for disk, directory in ((RealDisk(16), f"{tmp_path}/t-0"), (SimDisk(), "t-0")):
        chance = random.Random(11)
        log = create(disk, directory=directory)
        seen = []
        for step in range(60):
            match chance.randrange(12):
                case 0:
                    log.truncate_to(chance.randint(log.log_start, log.log_end))
                case 1:
                    log.advance_log_start(chance.randint(log.log_start, log.log_end))
                case 2:
                    log.delete_segments(chance.randrange(len(log.segment_bases())))
                case 3:
                    stop(disk, log)
                    clean = chance.random() < 0.5
                    how = {"recovery_point": log.log_end if clean else log.log_start}
                    how |= {"clean": clean, "log_start": log.log_start}
                    log = reopen(disk, directory=directory, **how)
                case 4:
                    log.roll()
                case _:
                    fill(log, chance.randrange(4), count=chance.randint(1, 3), epoch=step)
            check_contiguous(log)
            seen.append((contents(log), log.segments, log.epochs.entries))
        log.flush_indexes()
        lives.append((seen, files_of(disk, directory=directory)))
        log.close()
    assert lives[0] == lives[1]
    assert max(len(batches) for batches, _, _ in lives[0][0]) > 10


def test_one_read_brings_so_many_batches_and_the_next_one_goes_on(monkeypatch):
    monkeypatch.setattr(segment, "READ_BATCHES_MAX", 2)
    log = create(SimDisk())
    fill(log, 5)
    brought = []
    offset = 0
    while (part := log.read(offset, max_bytes=1 << 20)) is not None:
        brought.append(part.batch_count)
        offset = part.next_offset
    assert (brought, offset) == ([2, 2, 1], 5)
