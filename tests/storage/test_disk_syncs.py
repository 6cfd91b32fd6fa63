"""Syncs of the simulated disk that fail, overlap or are given up, and what is durable then.

Goal: fsyncgate can be told here: after a failed sync the system calls pages clean that never
reached the disk, and a sync that succeeds later says nothing of them. Method: bytes that are known
by their letters, a loss of power after them, and at last random calls against a plain model.
"""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import PAGE_BYTES, SimDisk, SimFile

SEEDS = range(60)
LATENCY_S = 1.0


class Worst:
    """Chance at its worst: no name and no byte survives that does not have to."""

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int) -> int:
        return 0


class Best:
    """Chance at its best: all that can survive does."""

    def random(self) -> float:
        return 1.0

    def randrange(self, stop: int) -> int:
        return 1 if stop in (2, 4) else stop - 1


def opened(
    *, latency_s: float = 0.0, data: bytes = b"old ", page_bytes: int = 1
) -> tuple[SimDisk, SimFile]:
    """A file with durable bytes."""
    disk = SimDisk(sync_latency_s=latency_s, page_bytes=page_bytes)
    disk.make_dirs("d")
    file = disk.open("d/a", create=True)
    file.append(data)
    disk.sync_now([file], ["d"])
    return disk, file


def fail_to_sync(disk: SimDisk, file: SimFile) -> None:
    disk.fail_once("sync", file.path)
    with pytest.raises(DiskError, match="sync of d/a failed"):
        disk.sync_now([file])


def durable(disk: SimDisk) -> bytes:
    """What a crash leaves at its worst, which is also what is said to be durable."""
    said = disk.durable_file("d/a")
    disk.crash(Worst())
    assert disk.read_file("d/a") == said
    return said


# --- a sync that fails --------------------------------------------------------------------------


@pytest.mark.parametrize("later_syncs", [0, 1, 3])
def test_what_a_failed_sync_should_have_written_is_in_the_page_cache_alone(later_syncs):
    disk, file = opened()
    file.append(b"lost ")
    fail_to_sync(disk, file)
    for _ in range(later_syncs):
        disk.sync_now([file])
    disk.kill()
    assert disk.read_file("d/a") == file.read(0, 99) == b"old lost "
    assert durable(disk) == b"old "


def test_even_chance_at_its_best_does_not_bring_back_what_was_called_clean():
    disk, file = opened()
    file.append(b"lost ")
    fail_to_sync(disk, file)
    file.append(b"new")
    disk.crash(Best())
    assert disk.read_file("d/a") == b"old \0\0\0\0\0new"


def test_what_is_written_after_the_failure_is_durable_behind_a_hole():
    disk, file = opened()
    file.append(b"lost ")
    fail_to_sync(disk, file)
    file.append(b"new ")
    disk.sync_now([file])
    file.append(b"lost too")
    fail_to_sync(disk, file)
    disk.sync_now([file])
    assert file.read(0, 99) == b"old lost new lost too"
    assert durable(disk) == b"old \0\0\0\0\0new "


def test_what_was_durable_before_the_failure_stays_durable():
    disk, file = opened()
    file.append(b"synced ")
    disk.sync_now([file])
    for part in (b"one ", b"two "):
        file.append(part)
        fail_to_sync(disk, file)
    disk.sync_now([file])
    assert durable(disk) == b"old synced "


def test_what_was_durable_and_is_written_once_more_in_vain_stays_durable():
    disk, file = opened()
    file.append(b"synced ")
    disk.sync_now([file])
    file.rewrite(2)
    fail_to_sync(disk, file)
    file.append(b"new")
    disk.sync_now([file])
    assert durable(disk) == b"old synced new"


@pytest.mark.parametrize("below", [0, 2])
def test_what_is_cut_away_and_written_again_is_durable_after_the_next_sync(below):
    disk, file = opened()
    file.append(b"lost ")
    fail_to_sync(disk, file)
    kept = file.read(0, 4 - below)
    file.truncate(len(kept))
    file.append((b"old lost ")[len(kept) :])
    disk.sync_now([file])
    assert durable(disk) == b"old lost "


def test_who_writes_into_a_page_that_was_called_clean_has_all_of_it_written():
    disk, file = opened(page_bytes=4)
    file.append(b"lost, kept")
    fail_to_sync(disk, file)
    file.append(b"!")
    disk.sync_now([file])
    assert durable(disk) == b"old " + bytes(8) + b"pt!"


def test_a_cut_into_what_was_called_clean_leaves_the_rest_of_it_in_the_page_cache_alone():
    disk, file = opened()
    file.append(b"lost")
    fail_to_sync(disk, file)
    file.truncate(6)
    file.append(b"new")
    disk.sync_now([file])
    assert (file.read(0, 99), durable(disk)) == (b"old lonew", b"old \0\0new")


@pytest.mark.parametrize("position", [0, 4, 6])
def test_what_is_rewritten_is_durable_after_the_next_sync(position):
    disk, file = opened()
    file.append(b"lost ")
    fail_to_sync(disk, file)
    file.append(b"new")
    disk.sync_now([file])
    file.rewrite(position)
    before, lost = disk.durable_file("d/a"), max(position - 4, 0)
    assert before == b"old \0\0\0\0\0new"
    disk.sync_now([file])
    assert durable(disk) == b"old " + bytes(lost) + b"lost new"[lost:]


def test_a_crash_before_the_sync_of_what_was_rewritten_loses_nothing_else():
    left = set()
    for seed in SEEDS:
        disk, file = opened()
        file.append(b"lost ")
        fail_to_sync(disk, file)
        file.append(b"new")
        disk.sync_now([file])
        file.rewrite(0)
        disk.crash(random.Random(seed))
        data = disk.read_file("d/a")
        assert (data[:4], data[9:]) == (b"old ", b"new")
        left.add(data[4:9])
    assert {b"lost ", bytes(5)} < left
    assert all(b"lost ".startswith(each.rstrip(b"\0")) for each in left)


def test_a_failed_sync_of_some_files_fails_the_ones_after_it_without_a_trace():
    disk = SimDisk()
    files = [disk.open(name, create=True) for name in "abc"]
    for file in files:
        file.append(b"x")
    disk.fail_once("sync", "b")
    with pytest.raises(DiskError, match="sync of b failed"):
        disk.sync_now(files, ["."])
    disk.sync_now(files, ["."])
    assert [disk.durable_file(name) for name in "abc"] == [b"x", b"", b"x"]


def test_a_directory_whose_sync_failed_can_be_synced_again():
    disk, _ = opened()
    disk.open("d/b", create=True)
    disk.fail_once("sync", "d")
    with pytest.raises(DiskError, match="sync of d failed"):
        disk.sync_now([], ["d"])
    assert disk.durable_file("d/b") is None
    disk.sync_now([], ["d"])
    assert disk.durable_file("d/b") == b""


def test_a_crash_forgets_which_pages_were_called_clean():
    disk, file = opened()
    file.append(b"lost ")
    fail_to_sync(disk, file)
    disk.crash(Worst())
    file = disk.open("d/a")
    file.append(b"again")
    disk.sync_now([file])
    assert durable(disk) == b"old again"


# --- syncs that overlap -------------------------------------------------------------------------


async def test_a_sync_that_ends_late_takes_nothing_back_of_what_a_later_one_made_durable(
    autojump_clock,
):
    disk, file = opened(latency_s=4.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.sync, [file])
        await wait_all_tasks_blocked()
        disk.sync_latency_s = 0.1
        file.append(b"new")
        await disk.sync([file])
        assert disk.durable_file("d/a") == b"old new"
    assert durable(disk) == b"old new"


async def test_a_cut_during_a_sync_is_not_durable_and_what_comes_after_it_is_neither(
    autojump_clock,
):
    disk, file = opened(latency_s=LATENCY_S)
    file.append(b"captured")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.sync, [file])
        await wait_all_tasks_blocked()
        file.truncate(6)
        file.append(b"--")
    assert disk.durable_file("d/a") == b"old captured"
    disk.sync_now([file])
    assert durable(disk) == b"old ca--"


async def test_a_sync_that_fails_drops_only_what_was_there_when_it_began(autojump_clock):
    disk, file = opened(latency_s=LATENCY_S)
    file.append(b"lost ")
    disk.fail_once("sync", "d/a")
    with pytest.RaisesGroup(pytest.RaisesExc(DiskError, match="sync of d/a failed")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.sync, [file])
            await wait_all_tasks_blocked()
            file.append(b"meanwhile")
    disk.sync_now([file])
    assert durable(disk) == b"old \0\0\0\0\0meanwhile"


async def test_of_two_syncs_of_the_same_bytes_one_failure_is_enough(autojump_clock):
    disk, file = opened(latency_s=LATENCY_S)
    file.append(b"lost")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.sync, [file])
        await wait_all_tasks_blocked()
        fail_to_sync(disk, file)
    assert durable(disk) == b"old "


async def test_a_sync_that_is_given_up_leaves_its_bytes_to_the_next(autojump_clock):
    disk, file = opened(latency_s=LATENCY_S)
    file.append(b"new")
    with trio.move_on_after(LATENCY_S / 2) as scope:
        await disk.sync([file], ["d"])
    assert scope.cancelled_caught
    assert disk.durable_file("d/a") == b"old "
    await disk.sync([file])
    assert durable(disk) == b"old new"


async def test_a_sync_that_was_under_way_in_a_crash_makes_nothing_durable(autojump_clock):
    disk, file = opened(latency_s=LATENCY_S)
    file.append(b"new")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.sync, [file])
        await wait_all_tasks_blocked()
        disk.crash(Worst())
        disk.open("d/a").append(b"of the next life")
    assert durable(disk) == b"old "


# --- cuts ---------------------------------------------------------------------------------------


def test_a_cut_that_was_not_synced_happened_or_did_not():
    left = set()
    for seed in SEEDS:
        disk, file = opened(data=b"o" * 2 * PAGE_BYTES)
        file.truncate(PAGE_BYTES)
        file.append(b"n" * PAGE_BYTES)
        assert disk.durable_file("d/a") == b"o" * 2 * PAGE_BYTES
        disk.crash(random.Random(seed))
        data = disk.read_file("d/a")
        assert data[:PAGE_BYTES] == b"o" * PAGE_BYTES
        rest = data[PAGE_BYTES:]
        left.add(bytes(sorted(set(rest))) if rest else b"cut")
        assert rest in (b"o" * PAGE_BYTES, bytes(PAGE_BYTES)) or not rest.strip(b"n")
    assert left == {b"cut", b"n", b"o", b"\0"}


# --- any calls ----------------------------------------------------------------------------------


class Model:
    """A file as a list of bytes, each of which is dirty or clean, and what is on the platter."""

    def __init__(self, page_bytes: int) -> None:
        self.cache: list[tuple[int, str]] = []
        self.platter: list[int] = []
        self.page_bytes = page_bytes

    def append(self, data: bytes) -> None:
        start = len(self.cache)
        self.cache += [(byte, "dirty") for byte in data]
        self.rewrite(start)

    def cut(self, size: int) -> None:
        del self.cache[size:]
        del self.platter[size:]

    def rewrite(self, position: int) -> None:
        position -= position % self.page_bytes
        self.cache[position:] = [(byte, "dirty") for byte, _ in self.cache[position:]]

    def sync(self) -> None:
        for at, (byte, state) in enumerate(self.cache):
            if state == "dirty":
                holes = [0] * (at - len(self.platter))
                self.platter += holes
                self.platter[at : at + 1] = [byte]
        self.fail()

    def fail(self) -> None:
        self.cache = [(byte, "clean") for byte, _ in self.cache]


@pytest.mark.parametrize("page_bytes", [1, 8])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_durable_after_any_calls_is_what_a_plain_model_says(seed, page_bytes):
    chance, model = random.Random(seed), Model(page_bytes)
    disk, file = opened(data=b"", page_bytes=page_bytes)
    for _ in range(200):
        match chance.choice(["append", "append", "cut", "rewrite", "sync", "fail"]):
            case "append":
                data = bytes(chance.randrange(1, 256) for _ in range(chance.randrange(1, 6)))
                file.append(data)
                model.append(data)
            case "cut":
                size = chance.randrange(file.size() + 1)
                file.truncate(size)
                model.cut(size)
                disk.sync_now([file])
                model.sync()
            case "rewrite":
                position = chance.randrange(file.size() + 1)
                file.rewrite(position)
                model.rewrite(position)
            case "sync":
                disk.sync_now([file])
                model.sync()
            case "fail":
                fail_to_sync(disk, file)
                model.fail()
        assert file.read(0, 1 << 20) == bytes(byte for byte, _ in model.cache)
        assert disk.durable_file("d/a") == bytes(model.platter)
    assert durable(disk) == bytes(model.platter)
