"""Loss of power and the names on the simulated disk: what a directory holds after it.

Goal: anybody who relies on a name that nobody synced loses it here, in every way in which a disk
may lose it, and only so: what was done to one directory is kept up to some place in its order, a
rename is kept whole or not at all, and a directory that is lost takes all in it along. Method: the
same steps before many crashes, and the set of all that was left.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import SimDisk

SEEDS = range(80)


class Worst:
    """Chance at its worst: no name and no byte survives that does not have to."""

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int) -> int:
        return 0


def put(disk: SimDisk, path: str, data: bytes = b"x") -> None:
    """A file whose bytes are durable, and whose name is not."""
    file = disk.open(path, create=True)
    file.append(data)
    disk.sync_now([file])


def simulated(*synced: str) -> SimDisk:
    """A disk with a directory `d`, in which these files are durable."""
    disk = SimDisk()
    disk.make_dirs("d")
    for name in synced:
        put(disk, f"d/{name}", name.encode())
    disk.sync_now([], ["d"])
    return disk


def names(disk: SimDisk, path: str) -> frozenset[str]:
    return frozenset(disk.list(path)) if disk.exists(path) else frozenset()


def left_by(steps, *, of=names, path: str = "d") -> set:
    """What crashes leave of a directory after these steps on a new disk."""
    found = set()
    for seed in SEEDS:
        disk = steps()
        disk.crash(random.Random(seed))
        found.add(of(disk, path))
    return found


# --- one directory ------------------------------------------------------------------------------


def test_what_was_done_to_a_directory_is_kept_up_to_some_place_in_its_order():
    def steps():
        disk = simulated("a", "b")
        put(disk, "d/c")
        disk.remove("d/a")
        put(disk, "d/e")
        disk.rename("d/b", "d/f")
        return disk

    states = ["ab", "abc", "bc", "bce", "cef"]
    assert left_by(steps) == {frozenset(state) for state in states}


def test_a_rename_over_another_name_takes_and_gives_at_once():
    def steps():
        disk = simulated("old", "new")
        disk.rename("d/old", "d/new")
        return disk

    def contents(disk, path):
        return tuple((name, disk.read_file(f"{path}/{name}")) for name in disk.list(path))

    before, after = (("new", b"new"), ("old", b"old")), (("new", b"old"),)
    assert left_by(steps, of=contents) == {before, after}


@pytest.mark.parametrize("sync", ["sync_now", "replace", "make_dirs"])
def test_a_sync_of_a_directory_makes_all_durable_that_was_done_to_it(sync):
    disk = simulated("a", "b")
    disk.rename("d/a", "d/c")
    put(disk, "d/new")
    disk.remove("d/b")
    match sync:
        case "sync_now":
            disk.sync_now([], ["d"])
        case "replace":
            disk.replace("d/z", b"")
        case "make_dirs":
            disk.make_dirs("d/z")
    disk.remove("d/c")
    disk.crash(Worst())
    assert disk.list("d") == ["c", "new", "z"][: 2 + (sync != "sync_now")]


def test_a_sync_of_a_file_makes_no_name_durable():
    disk = simulated()
    put(disk, "d/a")
    disk.crash(Worst())
    assert disk.list("d") == []


def test_removed_files_come_back_with_what_was_synced_of_them():
    disk = simulated("a")
    disk.open("d/a").append(b" and more")
    disk.remove("d/a")
    disk.crash(Worst())
    assert disk.read_file("d/a") == b"a"


async def test_a_sync_covers_the_names_that_were_there_when_it_began(autojump_clock):
    disk = simulated("a")
    disk.sync_latency_s = 1.0
    put(disk, "d/before")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.sync, [], ["d"])
        await wait_all_tasks_blocked()
        put(disk, "d/meanwhile")
        disk.remove("d/a")
    disk.crash(Worst())
    assert disk.list("d") == ["a", "before"]


async def test_a_sync_of_a_directory_that_is_renamed_meanwhile_fails(autojump_clock):
    disk = simulated()
    disk.make_dirs("d/sub")
    disk.sync_latency_s = 1.0
    with pytest.RaisesGroup(pytest.RaisesExc(DiskError, match="sync of d/sub failed: No such")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.sync, [], ["d/sub"])
            await wait_all_tasks_blocked()
            disk.rename("d/sub", "d/other")


# --- directories in directories -----------------------------------------------------------------


def test_a_directory_is_durable_once_it_was_made():
    disk = SimDisk()
    disk.make_dirs("one/two/three")
    disk.crash(Worst())
    assert disk.exists("one/two/three")


@pytest.mark.parametrize(("made", "left"), [("one", []), ("one/two", ["one"])])
def test_power_that_fails_while_a_directory_is_made_takes_it_with_all_in_it(made, left):
    disk = SimDisk()
    disk.make_dirs(made.rpartition("/")[0] or ".")
    disk.fail_once("mkdir", made)
    with pytest.raises(DiskError, match=f"mkdir of {made} failed"):
        disk.make_dirs(made)
    assert disk.exists(made)
    disk.make_dirs(made)
    disk.replace(f"{made}/file", b"durable in a directory that is not")
    assert disk.durable_file(f"{made}/file") is None
    disk.crash(Worst())
    assert (disk.list("."), disk.used_bytes()) == (left, 0)


def test_a_directory_whose_name_is_synced_is_there_with_what_was_synced_in_it():
    disk = SimDisk()
    disk.fail_once("mkdir", "one")
    with pytest.raises(DiskError):
        disk.make_dirs("one")
    disk.replace("one/a", b"durable")
    put(disk, "one/b")
    disk.sync_now([], ["."])
    disk.crash(Worst())
    assert (disk.list("."), disk.list("one")) == (["one"], ["a"])


@pytest.mark.parametrize("synced", [False, True])
def test_a_renamed_directory_has_its_old_name_or_its_new_one_and_all_in_it(synced):
    def steps():
        disk = simulated()
        disk.make_dirs("d/t-0/deep")
        disk.replace("d/t-0/deep/a", b"x")
        disk.rename("d/t-0", "d/t-0.id-delete")
        disk.sync_now([], ["d"] if synced else [])
        return disk

    def whole(disk, path):
        (name,) = disk.list(path)
        assert disk.read_file(f"{path}/{name}/deep/a") == b"x"
        return name

    new = {"t-0.id-delete"}
    assert left_by(steps, of=whole) == (new if synced else {"t-0", *new})


def test_a_new_directory_under_the_name_of_a_renamed_one_is_never_mistaken_for_it():
    def steps():
        disk = simulated()
        disk.make_dirs("d/t-0")
        disk.replace("d/t-0/of", b"the old")
        disk.rename("d/t-0", "d/gone")
        disk.make_dirs("d/t-0")
        put(disk, "d/t-0/of", b"the new")
        return disk

    def contents(disk, path):
        assert disk.read_file(f"{path}/gone/of") == b"the old"
        return names(disk, f"{path}/t-0")

    assert left_by(steps, of=contents) == {frozenset(), frozenset({"of"})}


def test_a_removed_tree_may_come_back_with_any_part_of_what_was_in_it():
    held = [str(number) for number in range(5)]

    def steps(times: int = 1):
        disk = simulated()
        for _ in range(times):
            disk.make_dirs("d/other")
            disk.remove_tree("d/other")
        disk.make_dirs("d/tree")
        for name in held:
            put(disk, f"d/tree/{name}")
        disk.sync_now([], ["d/tree"])
        disk.remove_tree("d/tree")
        return disk

    left = left_by(steps, path="d/tree")
    by_size = sorted(left, key=len)
    assert [len(each) for each in by_size] == [0, 1, 2, 3, 4, 5]
    assert all(fewer < more for fewer, more in pairwise(by_size))
    # In no order that anybody could rely on.
    first_to_go = {
        frozenset(held) - each
        for times in range(30)
        for each in left_by(lambda times=times: steps(times), path="d/tree")
        if len(each) == 4
    }
    assert first_to_go == {frozenset(name) for name in held}
    assert left_by(steps) == {frozenset(), frozenset({"tree"})}


def test_a_tree_whose_removal_was_synced_is_gone_whatever_came_of_what_was_in_it():
    disk = simulated()
    disk.make_dirs("d/tree/deep")
    disk.replace("d/tree/deep/a", b"x")
    disk.remove_tree("d/tree")
    disk.sync_now([], ["d"])
    disk.crash(Worst())
    assert (disk.list("d"), disk.used_bytes()) == ([], 0)


def test_what_goes_from_one_directory_to_another_is_left_in_either_in_both_or_in_none():
    def steps():
        disk = simulated("file")
        disk.make_dirs("d/dir")
        disk.make_dirs("other")
        disk.replace("d/dir/a", b"x")
        disk.rename("d/file", "other/file")
        disk.rename("d/dir", "other/dir")
        return disk

    def where(disk, _):
        there = tuple(names(disk, path) for path in ("d", "other"))
        assert not (there[0] & there[1] & {"dir"}), "a directory has one name"
        assert disk.used_bytes() == 4 * any("file" in each for each in there) + any(
            "dir" in each for each in there
        )
        return there

    both, nothing = frozenset({"dir", "file"}), frozenset()
    found = left_by(steps, of=where)
    assert {(both, nothing), (nothing, both), (nothing, nothing)} <= found
    assert any("file" in one and "file" in other for one, other in found)


# --- what is counted and known ------------------------------------------------------------------


def test_the_room_that_is_taken_is_that_of_the_files_there_are_after_anything():
    chance, disk = random.Random(3), SimDisk()
    directories = ["d", "e", "d/s", "e/s"]
    for _ in range(600):
        for path in directories:
            disk.make_dirs(path)
        directory = chance.choice(directories)
        one, other = (f"{directory}/{chance.choice('abc')}" for _ in range(2))
        match chance.randrange(10):
            case 0 | 1 | 2:
                disk.open(one, create=True).append(bytes(chance.randrange(9)))
            case 3 if disk.exists(one):
                disk.open(one).truncate(0)
            case 4 if disk.exists(one):
                disk.rename(one, other)
            case 5:
                disk.remove(one)
            case 6:
                disk.remove_tree(directory)
            case 7:
                disk.replace(one, bytes(chance.randrange(9)))
            case 8:
                disk.sync_now([], [directory])
            case 9:
                disk.crash(chance)
        assert disk.used_bytes() == sum(map(len, disk.files("", "").values()))


def test_a_file_without_a_name_takes_no_room_whatever_is_written_to_it():
    disk = simulated("a")
    file = disk.open("d/a")
    disk.remove("d/a")
    file.append(b"12345")
    file.truncate(2)
    assert (disk.used_bytes(), file.size()) == (0, 2)


def test_what_is_called_durable_is_what_a_crash_leaves_at_its_worst():
    paths = [f"d/{name}" for name in ("a", "b", "c", "new", "missing", "sub", "sub/x", "c/below")]

    def look(tell) -> list[bytes | None]:
        return [tell(path) for path in paths]

    def read(path: str) -> bytes | None:
        return None if path == "d/sub" or not disk.exists(path) else disk.read_file(path)

    disk = simulated("a", "b", "c")
    disk.make_dirs("d/sub")
    disk.remove("d/a")
    disk.rename("d/b", "d/c")
    put(disk, "d/new")
    put(disk, "d/sub/x")
    for synced in ([], ["d/sub"], ["d"]):
        disk.sync_now([], synced)
        durable = look(disk.durable_file)
    assert durable == [None, None, b"b", b"x", None, None, b"x", None]
    disk.rename("d/c", "d/b")
    disk.open("d/new").append(b"y")
    disk.open("d/sub/x").truncate(0)
    disk.remove_tree("d/sub")
    assert look(disk.durable_file) == durable
    disk.crash(Worst())
    assert look(read) == durable


def test_crashes_that_draw_the_same_leave_the_same():
    def story(seed: int) -> dict[str, bytes]:
        chance, disk = random.Random(seed), simulated()
        for number in range(60):
            put(disk, f"d/{chance.randrange(20)}", b"%d " % number)
            disk.make_dirs(f"d/s{chance.randrange(3)}")
            disk.rename(f"d/{chance.choice(disk.list('d'))}", f"d/r{number}")
            if chance.random() < 0.1:
                disk.crash(chance)
        return disk.files("", "")

    assert story(5) == story(5) != story(6)
