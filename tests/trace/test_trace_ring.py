"""The files of a trace: what is kept, what is given up, and how they are read meanwhile.

Goal: never more bytes than were allowed, never fewer than the newest lines; a disk that fails costs
events and nothing else; a reader gets every line that is there once. Method: rings on the simulated
disk, put to and begun again in any order (Hypothesis); faults planted in it; the real disk where
descriptors are the subject.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tracekit import STOPPED, pieces

from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.trace.lines import line_of, read_line
from hightide_broker.trace.ring import (
    EVENTS,
    FILES_MAX,
    PIECE_BYTES_MAX,
    POSITIONS,
    SHARES,
    Place,
    Ring,
    next_number,
    numbers_in,
    path_of,
    read_piece,
)

AT = "data/trace"
MAX = 8000
SHARE = MAX // SHARES


def a_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(AT)
    return disk


def ring_on(disk: SimDisk, *, prefix: str = EVENTS, max_bytes: int = MAX) -> Ring:
    return Ring(disk, AT, prefix, max_bytes=max_bytes)


def line(number: int) -> bytes:
    return line_of(0, 1, number, STOPPED)


def in_files(disk: SimDisk, kind: str = EVENTS) -> list[bytes]:
    return [*pieces(disk, AT, kind)]


def all_bytes(disk: SimDisk) -> bytes:
    return b"".join(disk.files(AT, ".jsonl").values())


AGAIN = None
"""The process is another one."""


@given(
    st.lists(st.one_of(st.just(AGAIN), st.lists(st.integers(1, SHARE), min_size=1)), max_size=30)
)
@example([[SHARE - 1], [3], [SHARE] * (SHARES + 1), AGAIN, [1]])
@example([AGAIN, *[[SHARE]] * 9, AGAIN, [SHARE]])
def test_there_are_never_more_bytes_than_allowed_and_the_newest_are_there(
    steps: list[list[int] | None],
) -> None:
    """However many lines come at once."""
    disk = a_disk()
    ring, put, waste = ring_on(disk), b"", 0
    for step in steps:
        if step is AGAIN:
            ring, waste = ring_on(disk), waste + SHARE
            continue
        bundle = [b"x" * (size - 1) + b"\n" for size in step]
        assert ring.put(bundle) == 0
        put += b"".join(bundle)
        there = all_bytes(disk)
        assert len(there) <= MAX
        assert put.endswith(there), "only the oldest went"
        # A file ends early by less than a line, and with its process.
        assert len(there) >= min(len(put), MAX - 2 * SHARE) - max(step) * SHARES - waste


def test_a_line_that_is_longer_than_all_that_is_allowed_is_kept_alone() -> None:
    disk = a_disk()
    ring = ring_on(disk)
    for each in (b"1\n", b"x" * MAX + b"\n"):
        assert ring.put([each]) == 0
        assert all_bytes(disk) == each
    disk.fail("write", AT)
    for _ in range(2):
        assert ring.put([b"x" * MAX + b"\n"]) == 1
    disk.heal()
    assert ring.put([b"3\n"]) == 0
    assert [*numbers_in(disk, AT, EVENTS)] == [3], "numbers rise, whatever happens"


def test_a_file_has_an_eighth_of_the_bytes_and_an_eighth_is_given_up_at_a_time() -> None:
    disk = a_disk()
    ring = ring_on(disk)
    for number in range(MAX // 100):
        ring.put([b"x" * 99 + b"\n"])
        assert len(all_bytes(disk)) == 100 * (number + 1)
    assert [*numbers_in(disk, AT, EVENTS)] == [*range(1, SHARES + 1)]
    ring.put([b"x\n"])
    assert [*numbers_in(disk, AT, EVENTS)] == [*range(2, SHARES + 2)]


def test_a_process_that_starts_again_and_again_does_not_push_out_why() -> None:
    disk = a_disk()
    ring_on(disk, max_bytes=1 << 20).put([b"why\n"])
    for _ in range(FILES_MAX - 1):
        ring_on(disk, max_bytes=1 << 20).put([b"it starts\n"])
    assert in_files(disk)[0] == b"why"
    for _ in range(3):
        ring_on(disk, max_bytes=1 << 20).put([b"it starts\n"])
    assert len([*numbers_in(disk, AT, EVENTS)]) == FILES_MAX
    assert b"why" not in in_files(disk)


def test_a_torn_line_is_left_out_and_never_added_to() -> None:
    disk = a_disk()
    ring_on(disk).put([line(0), line(1)[:-9]])
    ring_on(disk).put([line(2)])
    assert in_files(disk) == [line(0)[:-1], line(2)[:-1]]
    assert disk.read_file(path_of(AT, EVENTS, 1)) == line(0) + line(1)[:-9]


def test_strange_files_beside_its_own_are_left_alone() -> None:
    disk = a_disk()
    for name in ("events-1.jsonl", "notes", f"events-{'x' * 20}.jsonl", f"other-{1:020d}.jsonl"):
        disk.replace(f"{AT}/{name}", b"mine\n" * MAX)
    ring = ring_on(disk)
    for _ in range(30):
        ring.put([b"x" * (SHARE - 1) + b"\n"])
    assert {len(each) for each in in_files(disk)} == {SHARE - 1}
    assert len(disk.list(AT)) == 4 + SHARES


# --- numbers --------------------------------------------------------------------------------------


def test_numbers_go_on_above_all_that_are_kept_of_either_kind() -> None:
    disk = a_disk()
    assert next_number(disk, AT) == 0
    ring_on(disk).put([line(3)])
    ring_on(disk, prefix=POSITIONS).put([line(8), line(9)])
    assert next_number(disk, AT) == 10
    ring_on(disk).put([line(11), line(12)[:-5]])
    assert next_number(disk, AT) == 12
    ring_on(disk).put([b"garbage"])
    assert next_number(disk, AT) == 12


def test_numbers_go_on_behind_a_hole_that_a_power_cut_left() -> None:
    """Two lines that cannot be read: one with the hole in it, and a torn one."""
    disk = a_disk()
    holed = b"\0" * 4096 + b'"node_stopped"}\n'
    ring_on(disk).put([line(0)])
    ring_on(disk).put([line(1), line(2), holed, line(9)[:-5]])
    assert next_number(disk, AT) == 3


# --- a disk that fails ----------------------------------------------------------------------------


def test_a_disk_that_fails_loses_lines_and_nothing_else() -> None:
    disk = a_disk()
    ring = ring_on(disk)
    assert ring.put([b"1\n"]) == 0
    disk.fail("write", AT)
    assert ring.put([b"2\n", b"3\n"]) == 2
    disk.heal()
    assert ring.put([b"4\n"]) == 0
    assert in_files(disk) == [b"1", b"4"]


def test_of_lines_that_do_not_all_fit_on_the_disk_the_first_are_kept() -> None:
    disk = a_disk()
    ring = ring_on(disk)
    disk.capacity = disk.used_bytes() + 3 * SHARE
    assert ring.put([b"%d" % n + b"x" * (SHARE // 2 - 2) + b"\n" for n in range(9)]) == 3
    assert [each[:1] for each in in_files(disk)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_full_disk_is_written_to_again_as_soon_as_there_is_room() -> None:
    disk = a_disk()
    ring = ring_on(disk)
    ring.put([b"1\n"])
    disk.capacity = disk.used_bytes() + 3
    assert ring.put([b"22222\n"]) == 1
    assert in_files(disk) == [b"1"]
    disk.capacity = 1 << 20
    assert ring.put([b"3\n"]) == 0
    assert in_files(disk) == [b"1", b"3"]


def test_what_is_kept_outlives_a_disk_that_fails_for_long() -> None:
    """Each time there would be another file, and an older one in its place."""
    disk = a_disk()
    ring = ring_on(disk)
    ring.put([b"why\n"])
    disk.fail("write", AT)
    for _ in range(2 * FILES_MAX):
        assert ring.put([b"x" * SHARE + b"\n"]) == 1
    assert in_files(disk) == [b"why"]
    assert len([*numbers_in(disk, AT, EVENTS)]) <= 2


# --- reading --------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3), st.booleans()), max_size=30),
    st.integers(0, 9),
)
def test_a_reader_gets_each_line_once_while_files_come_and_go(
    steps: list[tuple[int, int, bool]], seed: int
) -> None:
    """It may read none or several pieces between two bundles; what was given up before it came
    there is missing, and nothing else."""
    disk, dice, place = a_disk(), random.Random(seed), Place()
    ring, number, got = ring_on(disk), 0, []
    for count, reads, is_again in [*steps, (1, 99, False)]:
        if is_again:
            ring = ring_on(disk)
        bundle = [line(each) for each in range(number, number + count)]
        number += count
        assert ring.put(bundle) == 0
        for _ in range(reads):
            data, place = read_piece(disk, AT, EVENTS, place)
            got += [read_line(each).number for each in data.splitlines()]
            if dice.random() < 0.1:
                break
    data = b"x"
    while data:
        data, place = read_piece(disk, AT, EVENTS, place)
        got += [read_line(each).number for each in data.splitlines()]
    assert got == sorted(set(got))
    there = [read_line(each).number for each in in_files(disk)]
    assert got[-len(there) :] == there
    assert read_piece(disk, AT, EVENTS, place) == (b"", place)


def test_a_reader_gets_whole_lines_a_piece_at_a_time() -> None:
    disk = a_disk()
    put = [b"%07d" % number + b"." * 992 + b"\n" for number in range(700)]
    ring_on(disk, max_bytes=1 << 23).put(put)
    first, place = read_piece(disk, AT, EVENTS, Place())
    assert PIECE_BYTES_MAX - 1000 < len(first) <= PIECE_BYTES_MAX
    assert first.endswith(b"\n")
    assert place == (1, len(first))
    assert in_files(disk) == [each[:-1] for each in put]


def test_a_file_that_is_given_up_while_it_is_about_to_be_read_is_passed_over() -> None:
    class Slow(SimDisk):
        def list(self, path: str) -> list[str]:
            found = super().list(path)
            self.remove(path_of(AT, EVENTS, 1))
            return found

    disk = Slow()
    disk.make_dirs(AT)
    for each in (b"1\n", b"2\n"):
        disk.replace(path_of(AT, EVENTS, int(each)), each)
    assert read_piece(disk, AT, EVENTS, Place(1, 1)) == (b"2\n", Place(2, 2))


def test_a_file_that_cannot_be_read_is_told() -> None:
    disk = a_disk()
    ring_on(disk).put([b"1\n"])
    disk.fail("read", AT)
    with pytest.raises(DiskError, match="Input/output error"):
        read_piece(disk, AT, EVENTS, Place())


@pytest.mark.parametrize("position", [2, 1 << 40, 1 << 63, (1 << 64) - 1])
def test_a_place_behind_the_end_of_a_file_is_one_with_nothing_behind_it(tmp_path, position) -> None:
    disk, at = RealDisk(), f"{tmp_path}/trace"
    disk.make_dirs(at)
    ring = Ring(disk, at, EVENTS, max_bytes=MAX)
    assert ring.put([b"1\n"]) == 0
    ring.close()
    assert read_piece(disk, at, EVENTS, Place()) == (b"1\n", Place(1, 2))
    assert read_piece(disk, at, EVENTS, Place(1, position)) == (b"", Place(1, position))


def test_what_is_no_file_is_told() -> None:
    disk = a_disk()
    disk.make_dirs(path_of(AT, EVENTS, 1))
    with pytest.raises(DiskError, match="directory"):
        read_piece(disk, AT, EVENTS, Place())


def test_no_directory_is_no_lines() -> None:
    assert read_piece(SimDisk(), AT, EVENTS, Place(3, 4)) == (b"", Place(3, 4))
