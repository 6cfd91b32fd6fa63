"""A simulated machine that gets another disk: an empty one, or an older copy of its own.

Goal: the two things that happen to disks in the hands of people can happen in a simulation, durably
and to that one directory alone. Method: a few files at several times, and a loss of power after
each swap, which must find nothing to take.
"""

from __future__ import annotations

import random

import pytest

from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import SimDisk


class Worst:
    """Chance at its worst: no name and no byte survives that does not have to."""

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int) -> int:
        return 0


@pytest.fixture
def disk() -> SimDisk:
    """Two nodes' directories, with durable files in them."""
    made = SimDisk()
    for node in ("data/one", "data/two"):
        made.make_dirs(f"{node}/t-0")
        made.replace(f"{node}/meta", b"whose it is")
        made.replace(f"{node}/t-0/log", b"first")
    return made


def state(disk: SimDisk) -> dict[str, bytes]:
    return disk.files("", "")


def of(disk: SimDisk, node: str) -> dict[str, bytes]:
    return disk.files(f"data/{node}/", "")


def test_a_lost_disk_is_empty_for_good_and_its_neighbour_is_as_it_was(disk):
    beside = of(disk, "two")
    disk.lose("data/one")
    for _ in range(2):
        assert (disk.list("data/one"), disk.list("data")) == ([], ["one", "two"])
        assert (of(disk, "two"), disk.used_bytes()) == (beside, sum(map(len, beside.values())))
        disk.crash(Worst())


def test_a_lost_disk_can_be_used_at_once(disk):
    disk.lose("data/one")
    disk.make_dirs("data/one/t-1")
    disk.replace("data/one/t-1/log", b"again")
    disk.crash(Worst())
    assert of(disk, "one") == {"data/one/t-1/log": b"again"}


def test_a_disk_is_mounted_where_nothing_was_yet(disk):
    disk.lose("mnt/deep")
    disk.crash(Worst())
    assert disk.list("mnt/deep") == []


def test_a_copy_is_what_was_durable_and_comes_back_as_that(disk):
    file = disk.open("data/one/t-0/log")
    file.append(b" and more")
    disk.open("data/one/fresh", create=True).append(b"never synced")
    disk.remove("data/one/meta")
    copy = disk.copy("data/one")
    before = {"data/one/meta": b"whose it is", "data/one/t-0/log": b"first"}
    disk.sync_now([file], ["data/one"])
    disk.make_dirs("data/one/later")
    disk.restore("data/one", copy)
    for _ in range(2):
        assert of(disk, "one") == before
        assert disk.list("data/one") == ["meta", "t-0"]
        assert all(disk.durable_file(path) == data for path, data in before.items())
        disk.crash(Worst())


def test_a_copy_can_be_restored_more_than_once_and_anywhere(disk):
    copy = disk.copy("data/one")
    for target in ("data/one", "data/one", "data/two", "data/three"):
        disk.lose(target)
        disk.restore(target, copy)
        disk.replace(f"{target}/t-0/log", b"changed")
        disk.open(f"{target}/meta").append(b" now")
        assert set(of(disk, target.removeprefix("data/")).values()) == {
            b"changed",
            b"whose it is now",
        }
    disk.restore("data/one", copy)
    assert of(disk, "one") == {"data/one/meta": b"whose it is", "data/one/t-0/log": b"first"}
    assert disk.used_bytes() == sum(map(len, state(disk).values()))


def test_who_has_a_file_of_the_old_disk_open_reads_on_and_harms_nothing(disk):
    file, lock = disk.open("data/one/t-0/log"), disk.lock("data/one/.lock")
    disk.restore("data/one", disk.copy("data/two"))
    before = state(disk)
    file.append(b" of the old disk")
    disk.sync_now([file])
    assert file.read(0, 99) == b"first of the old disk"
    assert state(disk) == before
    other = disk.lock("data/one/.lock")
    lock.release()
    other.release()


def test_no_change_from_before_a_swap_comes_back_after_it():
    for seed in range(40):
        disk = SimDisk()
        disk.make_dirs("data/one")
        disk.make_dirs("data/spare")
        disk.rename("data/one", "data/gone")
        disk.rename("data/spare", "data/one")
        disk.lose("data/one")
        disk.replace("data/one/a", b"new")
        disk.crash(random.Random(seed))
        assert of(disk, "one") == {"data/one/a": b"new"}


def test_there_is_no_copy_of_what_is_not_there(disk):
    for path in ("data/three", "data/one/meta"):
        with pytest.raises(DiskError, match=f"copy of {path}"):
            disk.copy(path)
