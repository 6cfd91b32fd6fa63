"""A file of leader epochs that lags behind its log is repaired when the log is opened.

Goal: every epoch of which a batch survived is known after any start, and no other; what lies below
the recovery point is not scanned for it, and a file that does not lag is left alone. Method: a log
of three segments with an older state of its file put in place, at every recovery point, after
orderly stops and others, beside damaged indexes and deleted or compacted records; and any history
in which files are written late, or not at all, with a loss of power at its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from brokers import LoseAll, batch
from cleankit import clean as compact
from hypothesis import given, settings
from hypothesis import strategies as st
from logkit import (
    DIRECTORY,
    contents,
    create,
    files_of,
    fill,
    follow,
    lead,
    make_batch,
    path_of,
    put,
    reopen,
    stop,
    sync,
)
from test_recovery_properties import (
    APPEND,
    CHECKPOINT,
    CUT,
    ENDLESS,
    FLUSH,
    LEAD,
    ROLL,
    SMALL,
    SYNC,
    Writer,
    check_after_crash,
    histories,
)
from tries import few, tries

from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.epochs import EpochCache
from hightide_broker.storage.log import Log
from hightide_broker.storage.recovery import LogDamaged
from hightide_broker.storage.segment import LogConfig

NAME = "leader-epoch-checkpoint"
PATH = f"{DIRECTORY}/{NAME}"
EPOCHS = {0: 0, 2: 3, 3: 4, 5: 11, 6: 20, 9: 22}
"""Of 25 batches of one record each, in three segments."""
END = 25
BATCH = len(make_batch())


def text(epochs: dict[int, int]) -> bytes:
    lines = [b"0", b"%d" % len(epochs), *(b"%d %d" % each for each in epochs.items())]
    return b"".join(line + b"\n" for line in lines)


LAGGING = {
    "missing": None,
    "empty": text({}),
    **{
        f"without {list(EPOCHS)[count:]}": text(dict([*EPOCHS.items()][:count]))
        for count in range(1, len(EPOCHS))
    },
}
"""What the file said at some time, and the latest epochs were not in it."""


def written_log(disk: SimDisk) -> Log:
    """A log that was stopped in order."""
    log = create(disk)
    starts = [*EPOCHS.values(), END]
    for epoch, (start, end) in zip(EPOCHS, itertools.pairwise(starts), strict=True):
        fill(log, end - start, epoch=epoch)
    stop(disk, log)
    assert len(log.segment_bases()) == 3
    assert disk.read_file(PATH) == text(EPOCHS)
    return log


def lag(disk: SimDisk, state: bytes | None) -> None:
    if state is None:
        disk.remove(PATH)
    else:
        put(disk, PATH, state)


def known_of(state: bytes | None) -> dict[int, int]:
    return dict(list(EPOCHS.items())[: state.count(b"\n") - 2]) if state else {}


def lacks_one_below(state: bytes | None, recovery_point: int) -> bool:
    """Whether the file lacks the epoch of the last batch below there."""
    began = [epoch for epoch, start in EPOCHS.items() if start < recovery_point]
    return bool(began) and began[-1] not in known_of(state)


def check_repaired(disk: SimDisk, log: Log, *, start: int = 0) -> None:
    """All is known, it is in the file after the next sync, and a next start finds it there."""
    expected = {e: max(s, start) for e, s in EPOCHS.items()}
    covering = max(epoch for epoch, at in EPOCHS.items() if at <= start)
    expected = {epoch: at for epoch, at in expected.items() if epoch >= covering}
    assert dict(log.epochs.entries) == expected
    sync(disk, log)
    assert disk.read_file(PATH) == text(expected)
    log.close()
    again = reopen(disk, clean=True, recovery_point=END, log_start=start)
    assert dict(again.epochs.entries) == expected
    assert again.recovery.rebuilt == []


# --- at every recovery point --------------------------------------------------------------------


@pytest.mark.parametrize("name", LAGGING)
def test_after_any_stop_a_lagging_file_is_repaired_by_what_lies_below_and_above_the_recovery_point(
    name,
):
    for recovery_point in range(END + 1):
        disk = SimDisk()
        written_log(disk)
        lag(disk, LAGGING[name])
        log = reopen(disk, recovery_point=recovery_point)
        is_rebuilt = NAME in log.recovery.rebuilt
        assert is_rebuilt == lacks_one_below(LAGGING[name], recovery_point)
        assert log.recovery.scanned_bytes == (END - recovery_point) * BATCH, "and no more than ever"
        assert log.epochs.is_owed(log.log_end)
        check_repaired(disk, log)


@pytest.mark.parametrize("name", LAGGING)
def test_after_an_orderly_stop_a_lagging_file_is_repaired_without_a_scan(name):
    disk = SimDisk()
    written_log(disk)
    lag(disk, LAGGING[name])
    log = reopen(disk, clean=True, recovery_point=END)
    assert log.recovery.rebuilt == [NAME]
    assert log.recovery.scanned_bytes == 0
    assert log.synced_end == END
    check_repaired(disk, log)


@pytest.mark.parametrize("name", LAGGING)
def test_what_was_appended_after_an_orderly_stop_is_scanned_for_epochs(name):
    """The recovery points of an older stop were found."""
    for recovery_point in range(1, END):
        disk = SimDisk()
        written_log(disk)
        lag(disk, LAGGING[name])
        log = reopen(disk, clean=True, recovery_point=recovery_point)
        assert log.recovery.scanned_bytes == (END - recovery_point) * BATCH
        check_repaired(disk, log)


@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_does_not_lag_is_left_alone(clean):
    for recovery_point in range(1, END + 1):
        disk = SimDisk()
        written_log(disk)
        disk.fail("replace", NAME)
        log = reopen(disk, clean=clean, recovery_point=recovery_point)
        assert dict(log.epochs.entries) == EPOCHS
        assert not log.epochs.is_owed(log.log_end)
        assert NAME not in log.recovery.rebuilt


@pytest.mark.parametrize("clean", [True, False])
def test_a_leader_that_wrote_nothing_is_forgotten_by_a_start_and_its_file_is_not_rebuilt(clean):
    disk = SimDisk()
    written_log(disk)
    put(disk, PATH, text({**EPOCHS, 12: END}))
    log = reopen(disk, clean=clean, recovery_point=END)
    assert log.recovery.rebuilt == []
    assert dict(log.epochs.entries) == EPOCHS


def test_epochs_of_batches_that_a_power_loss_took_are_not_known():
    """Those above the recovery point only: below it nothing is lost."""
    for end in range(1, END + 1):
        disk = SimDisk()
        written_log(disk)
        lag(disk, None)
        (base,) = [each for each in (20, 10, 0) if each < end][:1]
        for later in (10, 20):
            if later > base:
                for suffix in ("log", "index", "timeindex"):
                    disk.remove(path_of(later, suffix))
        data = disk.read_file(path_of(base))
        put(disk, path_of(base), data[: (end - base) * BATCH])
        log = reopen(disk, recovery_point=end // 2)
        assert log.log_end == end
        assert dict(log.epochs.entries) == {e: s for e, s in EPOCHS.items() if s < end}


# --- what else may be wrong, or gone ------------------------------------------------------------

INDEXES = {
    "missing": lambda data: None,
    "zeros": lambda data: bytes(len(data)),
    "torn": lambda data: data[:-3],
    "half": lambda data: data[: len(data) // 16 * 8],
    "garbage": lambda data: b"\x00\x00\x00\x05garb" * (len(data) // 8),
    "of another segment": lambda data: data[8:] + b"\x00\x00\x00\x09\x00\x00\x03\x00",
}


@pytest.mark.parametrize("state", ["missing", "without [6, 9]"])
@pytest.mark.parametrize("damage", INDEXES)
def test_a_lagging_file_beside_damaged_indexes_is_repaired(damage, state):
    for recovery_point in few(range(END + 1), 6):
        disk = SimDisk()
        written_log(disk)
        lag(disk, LAGGING[state])
        for name, data in files_of(disk).items():
            if name.endswith("index"):
                disk.remove(f"{DIRECTORY}/{name}")
                changed = INDEXES[damage](data)
                if changed is not None:
                    put(disk, f"{DIRECTORY}/{name}", changed)
        log = reopen(disk, recovery_point=recovery_point)
        assert contents(log)[-1].next_offset == END
        check_repaired(disk, log)


@pytest.mark.parametrize("name", LAGGING)
def test_a_lagging_file_of_a_log_with_a_torn_tail_is_repaired_and_the_tail_is_cut(name):
    """Nothing behind the recovery point is looked at for what lies below it."""
    for recovery_point in range(1, END + 1):
        disk = SimDisk()
        written_log(disk)
        lag(disk, LAGGING[name])
        disk.open(path_of(20)).append(b"torn" * 20)
        log = reopen(disk, recovery_point=recovery_point)
        assert (log.log_end, len(log.recovery.cut)) == (END, 1)
        check_repaired(disk, log)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", LAGGING)
def test_a_lagging_file_of_a_log_that_begins_later_is_repaired_from_there_on(name, clean):
    """Segments were deleted, or the log starts within one."""
    for base, start in ((10, 10), (0, 3), (0, 12), (10, 13), (20, 20), (20, 24)):
        disk = SimDisk()
        written_log(disk)
        for gone in range(0, base, 10):
            for suffix in ("log", "index", "timeindex"):
                disk.remove(path_of(gone, suffix))
        lag(disk, LAGGING[name])
        log = reopen(disk, clean=clean, recovery_point=END, log_start=start)
        assert (log.log_start, log.log_end) == (start, END)
        check_repaired(disk, log, start=start)


@pytest.mark.parametrize("clean", [True, False])
def test_a_lagging_file_whose_log_has_a_damaged_header_below_is_not_repaired_by_guesses(clean):
    """What epoch that batch has, nobody can say; the leader's log takes its place."""
    disk = SimDisk()
    written_log(disk)
    lag(disk, None)
    disk.corrupt(path_of(0), 5 * BATCH + 16)
    before = files_of(disk)
    with pytest.raises(LogDamaged) as caught:
        reopen(disk, clean=clean, recovery_point=END)
    assert caught.value.position == 5 * BATCH
    assert files_of(disk) == before


# --- a file that says too much ------------------------------------------------------------------


def stale_log(disk: SimDisk, *, epoch: int) -> None:
    """A log that was cut at 12 and goes on with batches of `epoch`, whose file is from before the
    cut."""
    log = create(disk)
    for start in range(0, 20, 4):
        fill(log, 4, epoch=start // 4)
    older = dict(log.epochs.entries)
    log.truncate_to(12)
    fill(log, 8, epoch=epoch)
    stop(disk, log)
    disk.replace(PATH, text(older))
    assert dict(EpochCache.load(disk, PATH).entries) == {0: 0, 1: 4, 2: 8, 3: 12, 4: 16}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("epoch", [2, 3, 4, 5, 9])
def test_a_file_with_epochs_that_were_cut_away_is_repaired(epoch, clean):
    for recovery_point in [20] if clean else range(12, 21):
        disk = SimDisk()
        stale_log(disk, epoch=epoch)
        log = reopen(disk, clean=clean, recovery_point=recovery_point)
        expected = {0: 0, 1: 4, 2: 8} if epoch == 2 else {0: 0, 1: 4, 2: 8, epoch: 12}
        assert dict(log.epochs.entries) == expected, f"recovery point {recovery_point}"
        sync(disk, log)
        assert disk.read_file(PATH) == text(expected)


# --- compacted logs -----------------------------------------------------------------------------


OWN_KEYS = {
    "every third": lambda number: number % 3 == 1,
    "one of a segment": lambda number: number % 10 == 2,
    "none": lambda number: False,
}


def compacted_log(disk: SimDisk, has_own_key: Callable[[int], bool]) -> dict[int, int]:
    """A log of which compaction left the records with a key of their own, and the last batches of
    its segments; where its batches begin, and their epochs."""
    log = create(disk)
    for number in range(END):
        key = b"own %d" % number if has_own_key(number) else b"shared"
        lead(log, batch(b"value", keys=[key]), epoch=number // 2)
    sync(disk, log)
    assert compact(disk, log) == len(log.segment_bases()) - 1
    stop(disk, log)
    return {header.base_offset: header.leader_epoch for header in log.headers(0)}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("keys", OWN_KEYS)
def test_a_lagging_file_of_a_compacted_log_is_repaired(keys, count, clean):
    """There are gaps, and the last batch of a segment may have no records."""
    epochs = compacted_log(SimDisk(), OWN_KEYS[keys])
    for recovery_point in [END] if clean else range(1, END + 1):
        disk = SimDisk()
        compacted_log(disk, OWN_KEYS[keys])
        lag(disk, text({epoch: 2 * epoch for epoch in range(count)}))
        log = reopen(disk, clean=clean, recovery_point=recovery_point)
        for base, epoch in epochs.items():
            known = log.epochs.epoch_for_offset(base)
            assert known == epoch, f"epoch of {base}, recovery point {recovery_point}"
        assert log.epochs.latest_epoch == (END - 1) // 2


# --- any history --------------------------------------------------------------------------------

NO_ROOM = st.tuples(st.just("sync without room"), st.none())
TOLD = st.tuples(st.just("told to write"), st.none())
LATE = st.tuples(st.just("written late"), st.none())
"""The worker thread writes what it was told to before."""


class LateWriter:
    """A log whose epochs are written late, or not at all."""

    def __init__(self, config: LogConfig) -> None:
        self.writer = Writer(config)
        self.write: Callable[[], None] = lambda: None
        """What the worker thread was told to do last."""

    def take(self, step: str, argument) -> None:
        log, disk = self.writer.log, self.writer.disk
        match step:
            case "sync without room":
                job = log.begin_sync()
                if job is not None:
                    disk.sync_now(job.files, job.directories)
                    log.finish_sync(job)
            case "told to write":
                self.write = log.epochs.writing(log.log_end)
            case "written late":
                self.write()
            case _:
                self.writer.take(step, argument)


STEPS = [APPEND, APPEND, LEAD, SYNC, CHECKPOINT, FLUSH, ROLL, CUT, NO_ROOM, NO_ROOM, TOLD, LATE]


@pytest.mark.parametrize("config", [ENDLESS, SMALL], ids=["one segment", "several"])
@settings(max_examples=tries(200), deadline=None)
@given(history=histories(*STEPS), seed=st.integers(0, 1 << 32))
def test_after_a_power_loss_every_batch_has_its_epoch_whenever_the_file_was_written(
    config, history, seed
):
    late = LateWriter(config)
    for step in history:
        late.take(*step)
    writer = late.writer
    again, written = writer.crash(seed)
    found = {each.epoch for each in contents(again)}
    assert [epoch for epoch, _ in again.epochs.entries] == sorted(found)
    check_after_crash(writer, again, [written, *writer.versions])


def test_an_epoch_that_a_power_loss_took_hides_none_that_comes_in_its_place():
    """The file names epoch 7, whose records are gone; those of another leader's epoch 6 come, and
    the process dies before their epoch is written. A follower of old was told to keep its own."""
    disk = SimDisk()
    log = create(disk)
    fill(log, 10, epoch=3)
    sync(disk, log)
    fill(log, 10, epoch=3)
    fill(log, 1, epoch=7)
    log.begin_sync().epochs()
    assert disk.read_file(PATH) == b"0\n2\n3 0\n7 20\n"
    disk.crash(LoseAll())
    log = reopen(disk, recovery_point=10)
    assert (log.log_end, dict(log.epochs.entries)) == (10, {3: 0})
    for _ in range(3):
        follow(log, make_batch(base_offset=log.log_end, epoch=6))
    log.close()
    log = reopen(disk, recovery_point=10)
    assert (log.log_end, dict(log.epochs.entries)) == (13, {3: 0, 6: 10})
    assert log.epochs.end_offset_for(3, log.log_end) == (3, 10)


def test_an_epoch_reaches_its_file_that_was_left_out_of_it_where_the_log_ended():
    disk = SimDisk()
    log = create(disk)
    fill(log, 3, epoch=1)
    log.epochs.assign(2, log.log_end)  # somebody leads, and has stored nothing yet
    sync(disk, log)
    assert disk.read_file(PATH) == b"0\n1\n1 0\n"
    fill(log, 3, epoch=2)
    sync(disk, log)
    assert disk.read_file(PATH) == b"0\n2\n1 0\n2 3\n"
    fill(log, 1, epoch=2)
    assert log.begin_sync().epochs is None
