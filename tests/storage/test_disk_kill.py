"""A killed process on the simulated disk: its locks are gone, what it wrote is still there.

Goal: `kill -9` is told apart from loss of power: the page cache outlives the process, and only a
crash after that may take what was never synced. Method: both in every order, on many seeds.
"""

import random

import pytest

from hightide_broker.ports import DiskError, LockHeld
from hightide_broker.simulation.disk import SimDisk

SEEDS = range(40)


@pytest.fixture
def disk():
    made = SimDisk()
    made.make_dirs("d")
    file = made.open("d/log", create=True)
    file.append(b"synced")
    made.sync_now([file], ["d"])
    file.append(b" and not")
    made.open("d/new", create=True).append(b"never synced")
    return made


def contents(disk):
    return {name: disk.read_file(f"d/{name}") for name in disk.list("d")}


def test_a_kill_keeps_every_byte_and_name_that_was_written(disk):
    before = contents(disk)
    assert before == {"log": b"synced and not", "new": b"never synced"}
    for _ in range(3):
        disk.kill()
        assert contents(disk) == before


def test_a_kill_makes_nothing_durable(disk):
    disk.kill()
    assert disk.durable_file("d/log") == b"synced"
    assert disk.durable_file("d/new") is None


def test_a_kill_frees_the_locks_and_a_lock_from_before_cannot_free_them_twice(disk):
    disk.lock("d/.lock")
    with pytest.raises(LockHeld):
        disk.lock("d/.lock")
    disk.kill()
    disk.lock("d/.lock")
    with pytest.raises(LockHeld):
        disk.lock("d/.lock")


def test_loss_of_power_after_a_kill_may_take_what_was_not_synced_and_nothing_else():
    fates = set()
    for seed in SEEDS:
        disk = SimDisk()
        disk.make_dirs("d")
        file = disk.open("d/log", create=True)
        file.append(b"synced")
        disk.sync_now([file], ["d"])
        file.append(b" and not")
        disk.open("d/new", create=True).append(b"x")
        disk.kill()
        disk.crash(random.Random(seed))
        left = contents(disk)
        assert left["log"].startswith(b"synced")
        fates.add((left["log"] == b"synced and not", "new" in left))
    assert fates == {(False, False), (False, True), (True, False), (True, True)}


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_the_next_process_can_sync_what_the_killed_one_wrote(disk, kills):
    for _ in range(kills):
        disk.kill()
    disk.sync_now([disk.open("d/log"), disk.open("d/new")], ["d"])
    before = contents(disk)
    for seed in SEEDS:
        disk.crash(random.Random(seed))
        assert contents(disk) == before


def test_failures_that_were_planted_outlive_the_process(disk):
    disk.fail("read", "log")
    disk.kill()
    with pytest.raises(DiskError, match="read of d/log"):
        disk.read_file("d/log")
    disk.heal()
    assert disk.read_file("d/log") == b"synced and not"
