"""One contract for two disks: what `ports.Disk` promises holds on the real and the simulated one.

Goal: storage proven on the simulated disk is proven for the real one. Method: the first part runs
every test on both, one with random calls against a dictionary as the model; then come the real
disk's descriptors and limits. Names, refusals and open files are in `test_disk_names.py`; what only
the simulated one can do is in `test_disk_faults.py` and the files named like it.
"""

from __future__ import annotations

import os
import random
import resource

import pytest

from hightide_broker.ports import Disk, DiskError, LockHeld
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.simulation.disk import SimDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request) -> Disk:
    return RealDisk() if request.param == "real" else SimDisk()


@pytest.fixture
def root(disk, tmp_path) -> str:
    """A directory that is there, on either disk."""
    path = f"{tmp_path}/data"
    disk.make_dirs(path)
    return path


def write(disk: Disk, path: str, data: bytes):
    file = disk.open(path, create=True)
    file.append(data)
    return file


# --- files --------------------------------------------------------------------------------------


async def test_a_new_file_is_empty_and_grows_at_its_end(disk, root):
    file = disk.open(f"{root}/a", create=True)
    assert (file.path, file.size(), file.read(0, 10)) == (f"{root}/a", 0, b"")
    file.append(b"one ")
    file.append(bytearray(b"two "))
    file.append(memoryview(b"<three>")[1:-1])
    file.append(b"")
    assert file.size() == 13
    assert disk.read_file(f"{root}/a") == file.read(0, 100) == b"one two three"
    file.close()


@pytest.mark.parametrize(
    ("position", "size", "expected"),
    [(0, 3, b"012"), (7, 3, b"789"), (8, 3, b"89"), (10, 3, b""), (99, 3, b""), (4, 0, b"")],
)
async def test_a_read_is_cut_off_at_the_end_of_the_file(disk, root, position, size, expected):
    file = write(disk, f"{root}/a", b"0123456789")
    assert file.read(position, size) == expected
    buffer = bytearray(b"." * size)
    assert file.read_into(memoryview(buffer), position) == len(expected)
    assert bytes(buffer) == expected.ljust(size, b".")
    file.close()


async def test_opening_keeps_what_is_there_with_or_without_create(disk, root):
    write(disk, f"{root}/a", b"kept").close()
    for create in (False, True):
        file = disk.open(f"{root}/a", create=create)
        assert (file.size(), file.read(0, 9)) == (4, b"kept")
        file.close()


async def test_appending_goes_on_at_the_cut(disk, root):
    file = write(disk, f"{root}/a", b"0123456789")
    file.truncate(4)
    assert (file.size(), file.read(0, 99)) == (4, b"0123")
    file.append(b"ab")
    file.truncate(file.size())
    assert file.read(0, 99) == b"0123ab"
    file.truncate(0)
    assert (file.size(), disk.read_file(f"{root}/a")) == (0, b"")
    file.close()


async def test_a_missing_file_is_a_disk_error_that_names_it(disk, root):
    path = f"{root}/missing"
    for call in (
        lambda: disk.open(path),
        lambda: disk.read_file(path),
        lambda: disk.rename(path, f"{root}/b"),
    ):
        with pytest.raises(DiskError, match="missing") as caught:
            call()
        assert (caught.value.path, caught.value.full) == (path, False)
    assert disk.list(root) == []


MISSING_DIRECTORY = {
    "list": lambda disk, path: disk.list(path),
    "open": lambda disk, path: disk.open(f"{path}/a", create=True),
    "replace": lambda disk, path: disk.replace(f"{path}/a", b"x"),
    "sync": lambda disk, path: disk.sync_now([], [path]),
    "lock": lambda disk, path: disk.lock(f"{path}/a"),
    "free_bytes": lambda disk, path: disk.free_bytes(path),
    "total_bytes": lambda disk, path: disk.total_bytes(path),
}


@pytest.mark.parametrize("call", MISSING_DIRECTORY.values(), ids=MISSING_DIRECTORY.keys())
async def test_a_missing_directory_is_a_disk_error(disk, root, call):
    with pytest.raises(DiskError):
        call(disk, f"{root}/missing")


# --- names --------------------------------------------------------------------------------------


async def test_a_directory_lists_its_own_names_sorted(disk, root):
    assert disk.list(root) == []
    disk.make_dirs(f"{root}/sub/deep")
    disk.make_dirs(f"{root}/sub/deep")
    for name in ("b", "a", "c.tmp", "sub/inner", "A"):
        write(disk, f"{root}/{name}", b"").close()
    assert disk.list(root) == ["A", "a", "b", "c.tmp", "sub"]
    assert disk.list(f"{root}/sub") == ["deep", "inner"]
    assert disk.list(f"{root}/sub/deep") == []
    assert all(disk.exists(f"{root}/{name}") for name in ("a", "sub", "sub/deep"))
    assert not disk.exists(f"{root}/su")


async def test_renaming_takes_the_place_of_what_was_there(disk, root):
    write(disk, f"{root}/a", b"new").close()
    write(disk, f"{root}/b", b"old and longer").close()
    disk.rename(f"{root}/a", f"{root}/b")
    assert (disk.list(root), disk.read_file(f"{root}/b")) == (["b"], b"new")


async def test_renaming_a_directory_takes_all_in_it_along(disk, root):
    disk.make_dirs(f"{root}/t-0")
    write(disk, f"{root}/t-0/a", b"x").close()
    write(disk, f"{root}/t-01", b"a neighbour with a longer name").close()
    disk.rename(f"{root}/t-0", f"{root}/t-0.uuid-delete")
    assert disk.list(root) == ["t-0.uuid-delete", "t-01"]
    assert disk.list(f"{root}/t-0.uuid-delete") == ["a"]
    assert disk.read_file(f"{root}/t-0.uuid-delete/a") == b"x"
    assert not disk.exists(f"{root}/t-0")
    assert not disk.exists(f"{root}/t-0/a")


async def test_renaming_a_directory_takes_directories_in_it_along(disk, root):
    disk.make_dirs(f"{root}/old/deep")
    write(disk, f"{root}/old/deep/a", b"x").close()
    disk.rename(f"{root}/old", f"{root}/new")
    assert disk.read_file(f"{root}/new/deep/a") == b"x"
    assert (disk.list(root), disk.list(f"{root}/new")) == (["new"], ["deep"])
    assert not disk.exists(f"{root}/old/deep")


async def test_removing_what_is_gone_is_fine(disk, root):
    disk.make_dirs(f"{root}/sub/deep")
    write(disk, f"{root}/sub/deep/a", b"x").close()
    write(disk, f"{root}/a", b"x").close()
    write(disk, f"{root}/sub2", b"stays").close()
    for _ in range(2):
        disk.remove(f"{root}/a")
        disk.remove_tree(f"{root}/sub")
    assert disk.list(root) == ["sub2"]


async def test_replacing_leaves_the_new_bytes_and_no_other_name(disk, root):
    for data in (b"first", b"", b"third " * 5000):
        disk.replace(f"{root}/a", data)
        assert (disk.list(root), disk.read_file(f"{root}/a")) == (["a"], data)
    file = disk.open(f"{root}/a")
    assert file.size() == 30_000
    file.close()


async def test_a_replacement_is_not_made_if_it_is_said_not_to_be_wanted_any_more(disk, root):
    for path in (f"{root}/a", f"{root}/missing/a"):
        disk.replace(path, b"x", unless=lambda: True)
    assert disk.list(root) == []
    for data, wanted in ((b"first", True), (b"second", False), (b"third", True)):
        disk.replace(f"{root}/a", data, unless=lambda wanted=wanted: not wanted)
        assert disk.read_file(f"{root}/a") == (data if wanted else b"first")


async def test_random_calls_do_what_they_do_to_a_dictionary(disk, root):
    chance = random.Random(7)
    model: dict[str, bytes] = {}
    for _ in range(150):
        path = f"{root}/{chance.choice('abcd')}"
        match chance.choice(["append", "append", "truncate", "rename", "remove", "replace"]):
            case "append":
                data = chance.randbytes(chance.randrange(20))
                write(disk, path, data).close()
                model[path] = model.get(path, b"") + data
            case "truncate" if path in model:
                size = chance.randrange(len(model[path]) + 1)
                file = disk.open(path)
                file.truncate(size)
                file.close()
                model[path] = model[path][:size]
            case "rename" if path in model:
                new = f"{root}/{chance.choice('abcd')}"
                disk.rename(path, new)
                model[new] = model.pop(path)
            case "remove":
                disk.remove(path)
                model.pop(path, None)
            case "replace":
                model[path] = chance.randbytes(chance.randrange(20))
                disk.replace(path, model[path])
        assert disk.list(root) == sorted(name.removeprefix(f"{root}/") for name in model)
        assert all(disk.read_file(name) == data for name, data in model.items())


# --- syncing, threads, room, locks --------------------------------------------------------------


async def test_files_and_directories_can_be_synced_on_the_spot_and_by_waiting(disk, root):
    files = [write(disk, f"{root}/{name}", b"x" * 5000) for name in "abc"]
    disk.sync_now(files, [root])
    await disk.sync(files, [root])
    await disk.sync([], [])
    files[0].append(b"y")
    await disk.sync(files[:1])
    assert disk.read_file(f"{root}/a") == b"x" * 5000 + b"y"
    for file in files:
        file.close()


async def test_work_in_a_thread_gives_back_its_result_or_its_error(disk):
    assert await disk.in_thread(lambda: 6 * 7) == 42
    with pytest.raises(ZeroDivisionError):
        await disk.in_thread(lambda: 1 / 0)


async def test_there_is_room_on_the_disk(disk, root):
    assert 1 << 20 < disk.free_bytes(root) <= disk.total_bytes(root)


CHANGES = {
    "make a file": lambda disk, path: disk.open(f"{path}/new", create=True),
    "put a file in the place of one": lambda disk, path: disk.replace(f"{path}/a", b"mine"),
    "rename": lambda disk, path: disk.rename(f"{path}/a", f"{path}/b"),
    "remove": lambda disk, path: disk.remove(f"{path}/a"),
    "remove a tree": lambda disk, path: disk.remove_tree(f"{path}/dir"),
    "make a directory": lambda disk, path: disk.make_dirs(f"{path}/other"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_who_locked_a_directory_does_not_touch_one_that_took_its_name(disk, root, change):
    """A process sleeps, its directory is moved away, and somebody begins again in its place."""
    here = f"{root}/here"
    disk.make_dirs(f"{here}/dir")
    kept = write(disk, f"{here}/a", b"old ")
    lock = disk.lock(f"{here}/.lock")
    disk.rename(here, f"{root}/away")
    with pytest.raises(DiskError):
        CHANGES[change](disk, here)
    disk.make_dirs(f"{root}/next/dir")
    write(disk, f"{root}/next/a", b"of another").close()
    disk.rename(f"{root}/next", here)
    with pytest.raises(DiskError, match="another directory has taken the place"):
        CHANGES[change](disk, here)
    assert disk.list(here) == ["a", "dir"]
    assert disk.read_file(f"{here}/a") == b"of another"
    lock.release()
    CHANGES[change](disk, here)
    kept.close()


async def test_a_lock_is_held_once_until_it_is_released(disk, root):
    lock = disk.lock(f"{root}/.lock")
    with pytest.raises(LockHeld, match=r"in use|uses this data directory") as caught:
        disk.lock(f"{root}/.lock")
    assert isinstance(caught.value, DiskError)
    other = disk.lock(f"{root}/other")
    lock.release()
    disk.lock(f"{root}/.lock").release()
    other.release()


# --- the real disk: descriptors, limits, the operating system's errors --------------------------


def open_descriptors(place) -> int:
    """Of what is in that directory: others of this process come and go."""
    names = (os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd"))
    return sum(name.startswith(str(place)) for name in names)


def test_hundreds_of_files_share_a_few_descriptors(tmp_path):
    disk = RealDisk(open_files_max=20)
    before = open_descriptors(tmp_path)
    files = []
    for number in range(250):
        files.append(write(disk, f"{tmp_path}/{number}", b"%d" % number))
        assert open_descriptors(tmp_path) - before <= 20
    for sign in (b"+", b"-"):
        for number, file in enumerate(files):
            file.append(sign)
            assert file.read(0, 99).rstrip(b"+-") == b"%d" % number
            assert open_descriptors(tmp_path) - before <= 20
    assert disk.read_file(f"{tmp_path}/249") == b"249+-"
    disk.sync_now(files[:40], [str(tmp_path)])
    assert open_descriptors(tmp_path) - before <= 20
    for file in files:
        file.close()
    assert open_descriptors(tmp_path) == before


async def test_a_descriptor_for_sendfile_outlives_the_file(tmp_path):
    disk = RealDisk()
    file = write(disk, f"{tmp_path}/a", b"sent")
    descriptor = file.duplicate_descriptor()
    file.close()
    disk.remove(f"{tmp_path}/a")
    try:
        assert os.pread(descriptor, 10, 0) == b"sent"
    finally:
        os.close(descriptor)
    assert SimDisk().open("a", create=True).duplicate_descriptor() is None


def test_an_append_that_the_system_cuts_short_leaves_the_file_as_it_was(tmp_path):
    file = write(RealDisk(), f"{tmp_path}/a", b"x" * 6000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(DiskError, match="write of"):
            file.append(b"y" * 6000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (file.size(), os.path.getsize(file.path)) == (6000, 6000)
    file.append(b"z")
    assert file.read(5999, 9) == b"xz"
    file.close()


def test_no_room_on_the_real_disk_is_told_apart(tmp_path):
    disk = RealDisk()
    disk.replace(f"{tmp_path}/a", b"old")
    os.symlink("/dev/full", f"{tmp_path}/a.tmp")
    with pytest.raises(DiskError, match="No space left") as caught:
        disk.replace(f"{tmp_path}/a", b"new")
    assert caught.value.full
    assert disk.read_file(f"{tmp_path}/a") == b"old"


def test_a_crashed_replacement_does_not_get_into_the_way_of_the_next(tmp_path):
    disk = RealDisk()
    write(disk, f"{tmp_path}/a.tmp", b"a longer leftover of a crash").close()
    disk.replace(f"{tmp_path}/a", b"new")
    assert (disk.list(str(tmp_path)), disk.read_file(f"{tmp_path}/a")) == (["a"], b"new")


def test_who_holds_the_lock_is_named(tmp_path):
    disk = RealDisk()
    lock = disk.lock(f"{tmp_path}/.lock")
    with pytest.raises(LockHeld, match=f"process {os.getpid()} "):
        RealDisk().lock(f"{tmp_path}/.lock")
    lock.release()


def test_a_sync_that_fails_leaves_no_descriptor_behind(tmp_path):
    disk = RealDisk()
    there, gone = write(disk, f"{tmp_path}/a", b"x"), write(disk, f"{tmp_path}/b", b"x")
    gone.close()
    disk.remove(f"{tmp_path}/b")
    before = open_descriptors(tmp_path)
    with pytest.raises(DiskError):
        disk.sync_now([there, gone])
    assert open_descriptors(tmp_path) == before
    there.close()
