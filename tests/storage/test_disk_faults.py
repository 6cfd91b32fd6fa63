"""The simulated disk's faults: no room, failures by path, and loss of power by seed.

Goal: anybody who proves a storage rule on this disk has met every fate that unsynced bytes and
names may have, and only those. Method: many seeds for each claim, with the set of fates that were
met compared to the set there is; where one fate is wanted, chance itself is the worst. Directories,
syncs that fail and disks that are swapped have files of their own beside this one.
"""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import PAGE_BYTES, SimDisk, SimFile

SEEDS = range(60)


def write(disk: SimDisk, path: str, data: bytes) -> SimFile:
    file = disk.open(path, create=True)
    file.append(data)
    return file


def simulated(**options) -> SimDisk:
    disk = SimDisk(**options)
    disk.make_dirs("d")
    return disk


# --- room and failures --------------------------------------------------------------------------


def test_a_full_disk_leaves_everything_as_it_was():
    disk = simulated(capacity=10)
    file = write(disk, "d/a", b"12345678")
    for call in (lambda: file.append(b"abc"), lambda: disk.replace("d/b", b"abc")):
        with pytest.raises(DiskError, match="No space") as caught:
            call()
        assert caught.value.full
    assert (disk.list("d"), file.read(0, 99), disk.free_bytes("d")) == (["a"], b"12345678", 2)
    file.append(b"ab")
    disk.replace("d/a", b"0123456789")
    with pytest.raises(DiskError):
        disk.replace("d/a", b"0123456789+")
    assert disk.read_file("d/a") == b"0123456789"
    disk.remove("d/a")
    assert disk.free_bytes("d") == 10


FAILING = {
    "read": lambda disk, file: file.read(0, 1),
    "write": lambda disk, file: file.append(b"x"),
    "truncate": lambda disk, file: file.truncate(0),
    "sync": lambda disk, file: disk.sync_now([file]),
    "replace": lambda disk, file: disk.replace(file.path, b"x"),
    "mkdir": lambda disk, file: disk.make_dirs(f"{file.path}.new"),
}


@pytest.mark.parametrize("operation", FAILING)
def test_a_failure_hits_its_operation_and_path_alone_until_it_is_healed(operation):
    disk = simulated()
    failing, other = write(disk, "d/0.log", b"data"), write(disk, "d/1.log", b"data")
    disk.fail(operation, "0.log", "Input/output error")
    with pytest.raises(DiskError, match=f"{operation} of d/0.log.* failed: Input") as caught:
        FAILING[operation](disk, failing)
    assert not caught.value.full
    for name, call in FAILING.items():
        call(disk, other)
        if name != operation:
            call(disk, disk.open("d/again-0.log", create=True))
    disk.heal()
    assert disk.read_file("d/0.log") == b"data"
    FAILING[operation](disk, failing)


@pytest.mark.parametrize("operation", FAILING)
def test_a_failure_that_was_asked_for_once_happens_once(operation):
    disk = simulated()
    file, other = write(disk, "d/0.log", b"data"), write(disk, "d/1.log", b"data")
    for why in ("the first", "the second"):
        disk.fail_once(operation, "0.log", why)
    for why in ("the first", "the second"):
        FAILING[operation](disk, other)
        with pytest.raises(DiskError, match=f"{operation} of d/0.log.* failed: {why}"):
            FAILING[operation](disk, file)
        disk.remove_tree("d/0.log.new")
    FAILING[operation](disk, file)
    disk.fail_once(operation, "0.log")
    disk.heal()
    disk.remove_tree("d/0.log.new")
    FAILING[operation](disk, file)


# --- loss of power ------------------------------------------------------------------------------


class Worst:
    """Chance at its worst: no name and no byte survives that does not have to."""

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int) -> int:
        return 0


def crashed(disk: SimDisk, seed: int) -> SimDisk:
    disk.crash(random.Random(seed))
    return disk


def test_synced_bytes_survive_and_the_rest_meets_every_fate():
    synced, fresh = b"s" * 5000, b"f" * (3 * PAGE_BYTES)
    fates = set()
    for seed in SEEDS:
        disk = simulated()
        file = write(disk, "d/a", synced)
        disk.sync_now([file], ["d"])
        file.append(fresh)
        left = crashed(disk, seed).read_file("d/a")
        assert left.startswith(synced)
        rest = left[len(synced) :]
        if b"\0" not in rest:
            fates.add("lost" if not rest else "kept" if rest == fresh else "torn")
            assert fresh.startswith(rest)
            continue
        fates.add("holes")
        # Pages are lost whole: a byte is zero exactly if its page is.
        for start in range(PAGE_BYTES, len(left), PAGE_BYTES):
            page = left[max(start, len(synced)) : start + PAGE_BYTES]
            assert set(page) in ({0}, {ord("f")})
    assert fates == {"lost", "kept", "torn", "holes"}


def test_a_name_that_was_not_synced_may_vanish_even_if_its_bytes_were():
    left = set()
    for seed in SEEDS:
        disk = simulated()
        disk.sync_now([write(disk, "d/synced", b"x")], ["d"])
        disk.sync_now([write(disk, "d/fresh", b"y")])
        left.add(tuple(crashed(disk, seed).list("d")))
        assert all(disk.read_file(f"d/{name}") in (b"x", b"y") for name in disk.list("d"))
    assert left == {("synced",), ("fresh", "synced")}


def test_a_removal_counts_when_the_directory_is_synced():
    came_back = False
    for seed in SEEDS:
        disk = simulated()
        disk.sync_now([write(disk, "d/a", b"x")], ["d"])
        disk.remove("d/a")
        came_back = crashed(disk, seed).exists("d/a") or came_back
        disk.remove("d/a")
        disk.sync_now([], ["d"])
        assert crashed(disk, seed).list("d") == []
    assert came_back


def test_a_rename_is_old_or_new_and_new_for_good_when_the_directory_is_synced():
    left = set()
    for seed in SEEDS:
        disk = simulated()
        files = [write(disk, "d/old", b"mine"), write(disk, "d/new", b"theirs")]
        disk.sync_now(files, ["d"])
        disk.rename("d/old", "d/new")
        crashed(disk, seed)
        left.add((tuple(disk.list("d")), disk.read_file("d/new")))
        if disk.exists("d/old"):
            disk.rename("d/old", "d/new")
        disk.sync_now([], ["d"])
        assert crashed(disk, seed).list("d") == ["new"]
        assert disk.read_file("d/new") == b"mine"
    assert left == {(("new", "old"), b"theirs"), (("new",), b"mine")}


@pytest.mark.parametrize("seed", range(20))
def test_a_replaced_file_and_a_synced_cut_survive(seed):
    disk = simulated()
    file = write(disk, "d/a", b"0123456789")
    disk.sync_now([file], ["d"])
    file.truncate(4)
    disk.sync_now([file])
    disk.replace("d/b", b"whole")
    crashed(disk, seed)
    assert (disk.read_file("d/a"), disk.read_file("d/b")) == (b"0123", b"whole")


def test_a_crash_frees_every_lock():
    disk = simulated()
    disk.lock("d/.lock")
    crashed(disk, 0).lock("d/.lock").release()


def test_a_failed_sync_makes_nothing_durable():
    disk = simulated()
    file = write(disk, "d/a", b"old")
    disk.sync_now([file], ["d"])
    file.append(b" and new")
    disk.fail("sync", "d/a")
    with pytest.raises(DiskError):
        disk.sync_now([file])
    disk.crash(Worst())
    assert disk.read_file("d/a") == b"old"


async def test_a_sync_covers_what_was_there_when_it_began(autojump_clock):
    disk = simulated(sync_latency_s=1.0)
    file = write(disk, "d/a", b"before")
    disk.sync_now([], ["d"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.sync, [file])
        await wait_all_tasks_blocked()
        file.append(b" and meanwhile")
    disk.crash(Worst())
    assert disk.read_file("d/a") == b"before"


def test_a_corrupted_bit_stays_corrupted():
    disk = simulated()
    disk.sync_now([write(disk, "d/a", b"AAAA")], ["d"])
    disk.corrupt("d/a", 2, bit=1)
    disk.crash(Worst())
    assert disk.read_file("d/a") == b"AACA"


async def test_a_thread_that_takes_its_time_has_done_its_work_or_not_begun(autojump_clock):
    disk, done = simulated(), []
    disk.thread_pause = lambda: 1.0
    for patience_s, wanted in ((0.5, []), (1.5, [1]), (2.5, [1, 2])):
        with trio.move_on_after(patience_s) as scope:
            await disk.in_thread(lambda: done.append(len(done) + 1))
        assert (done, scope.cancelled_caught) == (wanted, patience_s == 0.5)
