"""One contract for two disks: names, what is refused, and files that are open meanwhile.

Goal: what the simulated disk does with a name, the real one does, too, and the other way round; so
that a story told on the one is true on the other. Method: every test runs on both; at last the same
random calls go to both at once, and all that can be seen of them is compared.
"""

from __future__ import annotations

import errno
import os
import random

import pytest

from hightide_broker.ports import Disk, DiskError, LockHeld
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.simulation.disk import SimDisk

FEW_DESCRIPTORS = 16


@pytest.fixture(params=["real", "simulated"])
def disk(request) -> Disk:
    return RealDisk(open_files_max=FEW_DESCRIPTORS) if request.param == "real" else SimDisk()


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


def run_short_of_descriptors(disk: Disk, root: str) -> None:
    """Afterwards no file is open any more that is not detached; those who have it do not know."""
    if isinstance(disk, SimDisk):
        disk.evict()
        return
    disk.make_dirs(f"{root}/many")
    many = [write(disk, f"{root}/many/{number}", b"x") for number in range(2 * FEW_DESCRIPTORS)]
    for file in many:
        file.close()
    disk.remove_tree(f"{root}/many")


# --- long names ---------------------------------------------------------------------------------

LONGEST = ["n" * 255, "ü" * 127 + "n", "€" * 85]
TOO_LONG = ["n" * 256, "ü" * 128, "€" * 85 + "n"]
MAKING = {
    "open": lambda disk, root, name: disk.open(f"{root}/{name}", create=True).close(),
    "make": lambda disk, root, name: disk.make_dirs(f"{root}/{name}"),
    "make below": lambda disk, root, name: disk.make_dirs(f"{root}/{name}/below"),
    "rename": lambda disk, root, name: disk.rename(f"{root}/a", f"{root}/{name}"),
    "lock": lambda disk, root, name: disk.lock(f"{root}/{name}").release(),
}


@pytest.mark.parametrize("call", MAKING.values(), ids=MAKING)
async def test_a_name_has_at_most_255_bytes(disk, root, call):
    write(disk, f"{root}/a", b"x").close()
    for name in TOO_LONG:
        with pytest.raises(DiskError, match="File name too long") as caught:
            call(disk, root, name)
        assert not caught.value.full
    assert disk.list(root) == ["a"]
    call(disk, root, LONGEST[0])
    assert LONGEST[0] in disk.list(root)


@pytest.mark.parametrize("name", LONGEST)
async def test_the_longest_names_work_whatever_their_letters(disk, root, name):
    disk.make_dirs(f"{root}/{name}/{name}")
    file = write(disk, f"{root}/{name}/{name}/{name}", b"deep")
    disk.sync_now([file], [f"{root}/{name}/{name}"])
    assert (file.read(0, 9), disk.list(f"{root}/{name}")) == (b"deep", [name])
    file.close()


async def test_a_replacement_needs_room_in_the_name_for_its_temporary(disk, root):
    for name in ("n" * 255, "n" * 252, "ü" * 126):
        with pytest.raises(DiskError, match=r"replace of .* failed: File name too long"):
            disk.replace(f"{root}/{name}", b"x")
    assert disk.list(root) == []
    disk.replace(f"{root}/{'n' * 240}", b"x")
    assert disk.list(root) == ["n" * 240]


LOOKING = {
    "open": lambda disk, path: disk.open(path),
    "read_file": lambda disk, path: disk.read_file(path),
    "list": lambda disk, path: disk.list(path),
    "remove": lambda disk, path: disk.remove(path),
    "remove_tree": lambda disk, path: disk.remove_tree(path),
    "rename": lambda disk, path: disk.rename(path, "b"),
    "sync": lambda disk, path: disk.sync_now([], [path]),
}


@pytest.mark.parametrize("call", LOOKING.values(), ids=LOOKING)
async def test_a_name_that_is_too_long_is_refused_even_to_who_only_looks(disk, root, call):
    with pytest.raises(DiskError, match="File name too long"):
        call(disk, f"{root}/{TOO_LONG[0]}")
    assert not disk.exists(f"{root}/{TOO_LONG[0]}")


# --- what is refused ----------------------------------------------------------------------------

REFUSED = {
    "rename a directory onto a full one": (
        lambda disk, root: disk.rename(f"{root}/dir", f"{root}/full"),
        "Directory not empty",
    ),
    "rename a directory onto a file": (
        lambda disk, root: disk.rename(f"{root}/dir", f"{root}/file"),
        "Not a directory",
    ),
    "rename a file onto a directory": (
        lambda disk, root: disk.rename(f"{root}/file", f"{root}/dir"),
        "Is a directory",
    ),
    "rename a directory into itself": (
        lambda disk, root: disk.rename(f"{root}/full", f"{root}/full/below"),
        "Invalid argument",
    ),
    "rename into a directory that is missing": (
        lambda disk, root: disk.rename(f"{root}/file", f"{root}/missing/file"),
        "No such file",
    ),
    "remove a directory as a file": (
        lambda disk, root: disk.remove(f"{root}/dir"),
        "Is a directory",
    ),
    "remove a file as a directory": (
        lambda disk, root: disk.remove_tree(f"{root}/file"),
        "Not a directory",
    ),
    "replace a directory": (
        lambda disk, root: disk.replace(f"{root}/dir", b"x"),
        "Is a directory",
    ),
    "read a directory": (lambda disk, root: disk.read_file(f"{root}/dir"), "Is a directory"),
    "read an open directory": (
        lambda disk, root: disk.open(f"{root}/dir").read(0, 1),
        "Is a directory",
    ),
    "lock a directory": (lambda disk, root: disk.lock(f"{root}/dir"), "Is a directory"),
    "list a file": (lambda disk, root: disk.list(f"{root}/file"), "Not a directory"),
    "make a directory where a file is": (
        lambda disk, root: disk.make_dirs(f"{root}/file"),
        "File exists",
    ),
    "make a directory below a file": (
        lambda disk, root: disk.make_dirs(f"{root}/file/below"),
        "Not a directory",
    ),
    "open below a file": (
        lambda disk, root: disk.open(f"{root}/file/below", create=True).append(b"x"),
        "Not a directory",
    ),
    "remove below a file": (
        lambda disk, root: disk.remove(f"{root}/file/below"),
        "Not a directory",
    ),
}


@pytest.mark.parametrize(("call", "why"), REFUSED.values(), ids=REFUSED)
async def test_what_is_refused_leaves_everything_as_it_was(disk, root, call, why):
    disk.make_dirs(f"{root}/dir")
    disk.make_dirs(f"{root}/full")
    write(disk, f"{root}/full/a", b"in it").close()
    write(disk, f"{root}/file", b"kept").close()
    with pytest.raises(DiskError, match=why) as caught:
        call(disk, root)
    assert not caught.value.full
    assert not disk.exists(f"{root}/file/below")
    assert disk.list(root) == ["dir", "file", "full"]
    assert (disk.list(f"{root}/dir"), disk.list(f"{root}/full")) == ([], ["a"])
    assert disk.read_file(f"{root}/file") == b"kept"


# --- renames ------------------------------------------------------------------------------------


async def test_a_directory_may_take_the_place_of_an_empty_one(disk, root):
    disk.make_dirs(f"{root}/new/deep")
    disk.make_dirs(f"{root}/old")
    write(disk, f"{root}/new/a", b"x").close()
    disk.rename(f"{root}/new", f"{root}/old")
    assert (disk.list(root), disk.list(f"{root}/old")) == (["old"], ["a", "deep"])
    assert disk.read_file(f"{root}/old/a") == b"x"


async def test_a_rename_may_lead_into_another_directory(disk, root):
    disk.make_dirs(f"{root}/from/dir/deep")
    disk.make_dirs(f"{root}/to")
    write(disk, f"{root}/from/file", b"mine").close()
    write(disk, f"{root}/to/file", b"theirs").close()
    disk.rename(f"{root}/from/file", f"{root}/to/file")
    disk.rename(f"{root}/from/dir", f"{root}/to/dir")
    assert (disk.list(f"{root}/from"), disk.list(f"{root}/to")) == ([], ["dir", "file"])
    assert (disk.read_file(f"{root}/to/file"), disk.list(f"{root}/to/dir")) == (b"mine", ["deep"])


async def test_a_rename_onto_itself_changes_nothing(disk, root):
    disk.make_dirs(f"{root}/dir/deep")
    write(disk, f"{root}/file", b"x").close()
    for name in ("dir", "file"):
        disk.rename(f"{root}/{name}", f"{root}/{name}")
    assert (disk.list(root), disk.list(f"{root}/dir")) == (["dir", "file"], ["deep"])
    assert disk.read_file(f"{root}/file") == b"x"


# --- open files ---------------------------------------------------------------------------------


def replace_by_renaming(disk: Disk, root: str) -> None:
    write(disk, f"{root}/dir/b", b"of another").close()
    disk.rename(f"{root}/dir/b", f"{root}/dir/a")


LOSING = {
    "it is renamed": lambda disk, root: disk.rename(f"{root}/dir/a", f"{root}/dir/b"),
    "it is removed": lambda disk, root: disk.remove(f"{root}/dir/a"),
    "it is replaced": lambda disk, root: disk.replace(f"{root}/dir/a", b"of another"),
    "another is renamed onto it": replace_by_renaming,
    "its directory is renamed": lambda disk, root: disk.rename(f"{root}/dir", f"{root}/other"),
    "its directory is removed": lambda disk, root: disk.remove_tree(f"{root}/dir"),
}


@pytest.mark.parametrize("is_detached", [True, False])
@pytest.mark.parametrize("lose", LOSING.values(), ids=LOSING)
async def test_a_file_in_use_keeps_its_bytes_whatever_becomes_of_its_name(
    disk, root, lose, is_detached
):
    disk.make_dirs(f"{root}/dir")
    file = write(disk, f"{root}/dir/a", b"its own")
    if is_detached:
        file.detach()
    lose(disk, root)
    if is_detached:
        run_short_of_descriptors(disk, root)
    assert (file.size(), file.read(0, 99)) == (7, b"its own")
    file.append(b" bytes")
    file.truncate(9)
    buffer = bytearray(5)
    assert (file.read_into(memoryview(buffer), 4), bytes(buffer)) == (5, b"own b")
    disk.sync_now([file])
    await disk.sync([file])
    if disk.exists(f"{root}/dir/a"):
        assert disk.read_file(f"{root}/dir/a") == b"of another"
    file.close()


async def test_what_is_written_through_an_open_file_is_found_under_its_new_name(disk, root):
    file = write(disk, f"{root}/a", b"before")
    disk.rename(f"{root}/a", f"{root}/b")
    file.append(b" and after")
    assert disk.read_file(f"{root}/b") == b"before and after"
    file.close()


@pytest.mark.parametrize("lose", ["it is removed", "it is renamed", "its directory is renamed"])
async def test_a_file_that_is_not_detached_may_be_gone_with_its_name(disk, root, lose):
    disk.make_dirs(f"{root}/dir")
    file = write(disk, f"{root}/dir/a", b"its own")
    LOSING[lose](disk, root)
    run_short_of_descriptors(disk, root)
    calls = [lambda: file.read(0, 9), lambda: file.append(b"x"), lambda: disk.sync_now([file])]
    for call in (*calls, file.detach):
        with pytest.raises(DiskError, match="No such file"):
            call()
    file.close()


@pytest.mark.parametrize("lose", ["it is replaced", "another is renamed onto it"])
async def test_a_file_that_is_not_detached_may_become_the_one_that_took_its_name(disk, root, lose):
    disk.make_dirs(f"{root}/dir")
    file = write(disk, f"{root}/dir/a", b"its own")
    LOSING[lose](disk, root)
    run_short_of_descriptors(disk, root)
    assert file.read(0, 99) == b"of another"
    file.close()


async def test_writing_once_more_what_is_there_changes_nothing(disk, root):
    file = write(disk, f"{root}/a", b"0123456789" * 1000)
    for position in (0, 7, 9999, 10_000, 20_000):
        file.rewrite(position)
    assert (file.size(), file.read(0, 20_000)) == (10_000, b"0123456789" * 1000)
    file.append(b"!")
    assert disk.read_file(f"{root}/a") == b"0123456789" * 1000 + b"!"
    file.close()


# --- locks --------------------------------------------------------------------------------------


async def test_a_lock_is_a_file_and_stays_one(disk, root):
    for _ in range(2):
        lock = disk.lock(f"{root}/.lock")
        assert disk.list(root) == [".lock"]
        lock.release()
    assert disk.list(root) == [".lock"]


async def test_what_is_locked_is_the_file_and_not_its_name(disk, root):
    lock = disk.lock(f"{root}/.lock")
    disk.rename(f"{root}/.lock", f"{root}/moved")
    with pytest.raises(LockHeld):
        disk.lock(f"{root}/moved")
    other = disk.lock(f"{root}/.lock")
    lock.release()
    disk.lock(f"{root}/moved").release()
    other.release()


# --- the same calls on both ---------------------------------------------------------------------

NAMES = ["a", "b", "dir", "dir/a", "dir/b", "dir/sub", "dir/sub/a", "b/a"]


def outcome(call, argument) -> object:
    """What came of a call: its result, or why it was refused."""
    try:
        return call(argument)
    except DiskError as error:
        return error.why, error.full


def put(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    try:
        file.append(data)
    finally:
        file.close()


def cut(disk: Disk, path: str, part: float) -> int:
    file = disk.open(path)
    try:
        size = int(len(file.read(0, 1 << 20)) * part)
        file.truncate(size)
        return size
    finally:
        file.close()


def is_directory(disk: Disk, path: str) -> bool:
    return isinstance(outcome(disk.list, path), list)


def tree(disk: Disk, path: str) -> dict[str, object]:
    """All names under a path, and what is in the files."""
    if not is_directory(disk, path):
        return {path: disk.read_file(path)}
    found: dict[str, object] = {path: None}
    for name in disk.list(path):
        found.update(tree(disk, f"{path}/{name}"))
    return found


def any_call(chance: random.Random, root: str, disk: Disk):
    """One call, for any disk."""
    path, other = (f"{root}/{chance.choice(NAMES)}" for _ in range(2))
    data, part = chance.randbytes(chance.randrange(1, 9)), chance.random()
    calls = [
        lambda disk: put(disk, path, data),
        lambda disk: cut(disk, path, part),
        lambda disk: disk.rename(path, other),
        lambda disk: disk.remove(path),
        lambda disk: disk.remove_tree(path),
        lambda disk: disk.exists(path),
        lambda disk: disk.read_file(path),
    ]
    if not is_directory(disk, path):
        calls.append(lambda disk: disk.replace(path, data))
    if is_directory(disk, path) or not disk.exists(path):
        calls.append(lambda disk: disk.make_dirs(path))
    return chance.choice(calls)


@pytest.mark.parametrize("seed", range(6))
async def test_the_same_calls_have_the_same_outcome_on_both_disks(tmp_path, seed):
    real, simulated = RealDisk(), SimDisk()
    chance, root, refusals = random.Random(seed), f"{tmp_path}/data", set()
    for disk in (real, simulated):
        disk.make_dirs(root)
    for number in range(250):
        call = any_call(chance, root, simulated)
        on_real, on_simulated = outcome(call, real), outcome(call, simulated)
        assert on_real == on_simulated, f"call {number}"
        assert tree(real, root) == tree(simulated, root), f"call {number}"
        if isinstance(on_real, tuple):
            refusals.add(on_real[0])
    assert len(refusals) >= 3, refusals


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOMEM, errno.ESTALE])
def test_a_disk_that_fails_does_not_say_that_a_file_is_not_there(tmp_path, monkeypatch, number):
    """A checkpoint that cannot be looked at is not a node that never had one."""

    def stat(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(DiskError, match=os.strerror(number)):
        RealDisk().exists(str(tmp_path / "a"))


def test_where_a_file_cannot_be_it_is_not(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    places = ["none", "none/a", "file/a", "n" * 300]
    assert not any(RealDisk().exists(str(tmp_path / place)) for place in places)
