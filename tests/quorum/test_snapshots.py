"""Snapshot files: what was written is read back, and nothing else is ever taken for it.

Goal: a snapshot counts only when it is whole, durable and under its name; whatever happened to its
bytes since, reading it gives the changes that were written or raises. Method: files on a simulated
disk; every byte is damaged in turn, the file is cut at every length, batches are taken out, put in
and swapped, and the power fails before every change of the disk.
"""

from __future__ import annotations

import random

import pytest
from logkit import BreakingDisk, PowerFailure, put

from hightide.protocol.columns import encode_columns
from hightide.protocol.records import CONTROL, HEADER_BYTES, encode_batch, iter_batches
from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.snapshots import (
    BATCH_RECORDS,
    SnapshotDamaged,
    SnapshotWriter,
    encode_snapshot,
    list_snapshots,
    read_piece,
    read_snapshot,
    remove_parts,
    remove_snapshot,
    snapshot_path,
)

HERE = "data/__cluster_metadata-0"
ID = (40, 3)
PATH = snapshot_path(HERE, ID)
VALUES = [b"one", b"", b"three" * 10]


def a_disk(kind: type[SimDisk] = SimDisk) -> SimDisk:
    disk = kind()
    disk.make_dirs(HERE)
    return disk


def batches(values: list[bytes], *, epoch: int = ID[1]) -> list[bytes]:
    return list(encode_snapshot(values, epoch=epoch, now_ms=1_000_000))


def write(disk: SimDisk, values: list[bytes], snapshot: tuple[int, int] = ID) -> None:
    writer = SnapshotWriter(disk, HERE, snapshot)
    for batch in batches(values, epoch=snapshot[1]):
        writer.append(batch)
    writer.finish()


def is_refused(data: bytes) -> bool:
    """Whether these bytes are; nothing but `SnapshotDamaged` may come of them."""
    disk = a_disk()
    put(disk, PATH, data)
    try:
        read_snapshot(disk, HERE, ID)
    except SnapshotDamaged as error:
        return PATH in str(error)
    return False


# Round trips.


@pytest.mark.parametrize(
    "count", [0, 1, 2, BATCH_RECORDS - 1, BATCH_RECORDS, BATCH_RECORDS + 1, 3 * BATCH_RECORDS + 1]
)
def test_what_is_written_is_read_back_in_order(count: int) -> None:
    disk = a_disk()
    values = [b"%d" % number for number in range(count)]
    write(disk, values)
    assert read_snapshot(disk, HERE, ID) == values
    assert list_snapshots(disk, HERE) == [ID]


def test_empty_and_long_values_are_kept() -> None:
    disk = a_disk()
    values = [b"", b"x" * 100_000, bytes(range(256)), b""]
    write(disk, values)
    assert read_snapshot(disk, HERE, ID) == values


def test_a_snapshot_is_batches_of_its_epoch_at_offsets_of_its_own() -> None:
    """A header, the changes, a footer; so tools that read logs can read it."""
    headers = [h for h, _ in iter_batches(b"".join(batches([b"v"] * (BATCH_RECORDS + 1))))]
    assert [h.is_control for h in headers] == [True, False, False, True]
    assert [h.base_offset for h in headers] == [0, 1, BATCH_RECORDS + 1, BATCH_RECORDS + 2]
    assert {h.leader_epoch for h in headers} == {ID[1]}


def test_the_file_is_named_by_end_and_epoch() -> None:
    assert snapshot_path("d", (40, 3)) == "d/00000000000000000040-0000000003.checkpoint"


def test_snapshots_are_listed_oldest_first_and_nothing_else_is() -> None:
    disk = a_disk()
    for snapshot in ((200, 1), (3, 9), (200, 0), (1000, 0)):
        write(disk, [], snapshot)
    for other in ("leader-epoch-checkpoint", "00000000000000000005.log", "x-y.checkpoint"):
        disk.replace(f"{HERE}/{other}", b"")
    disk.replace(f"{snapshot_path(HERE, (7, 7))}.part", b"")
    disk.replace(f"{snapshot_path(HERE, (8, 8))}.deleted", b"")
    assert list_snapshots(disk, HERE) == [(3, 9), (200, 0), (200, 1), (1000, 0)]


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_pieces_make_the_file(size: int) -> None:
    disk = a_disk()
    write(disk, VALUES)
    whole, found = disk.read_file(PATH), b""
    while True:
        total, data = read_piece(disk, HERE, ID, len(found), size)
        assert (total, len(data) <= size) == (len(whole), True)
        if not data:
            break
        found += data
    assert found == whole


# Damage.


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_damage_to_any_byte_is_found(mask: int) -> None:
    whole = b"".join(batches(VALUES))
    accepted = []
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= mask
        if not is_refused(bytes(damaged)):
            accepted.append(position)
    assert accepted == []


def test_damage_to_any_byte_under_the_checksum_is_found() -> None:
    """All but the two fields that the leader of a log stamps: offset and epoch."""
    whole = b"".join(batches(VALUES))
    start = 0
    for batch in batches(VALUES):
        for position in [*range(8, 12), *range(16, len(batch))]:
            damaged = bytearray(whole)
            damaged[start + position] ^= 0xFF
            assert is_refused(bytes(damaged)), position
        start += len(batch)
    assert start == len(whole) > 3 * HEADER_BYTES


def test_a_file_that_is_cut_anywhere_is_refused() -> None:
    whole = b"".join(batches(VALUES))
    assert not is_refused(whole)
    for size in range(len(whole)):
        assert is_refused(whole[:size]), size


@pytest.mark.parametrize("more", [b"\0", b"x" * 61, bytes(100), batches([])[0], batches([b"v"])[1]])
def test_a_file_with_something_behind_its_end_is_refused(more: bytes) -> None:
    assert is_refused(b"".join(batches(VALUES)) + more)


HEADER, FIRST, SECOND, THIRD, FOOTER = batches([b"%d" % n for n in range(2 * BATCH_RECORDS + 1)])


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([FIRST, SECOND, THIRD, FOOTER], id="no header"),
        pytest.param([HEADER, FIRST, SECOND, THIRD], id="no footer"),
        pytest.param([HEADER], id="only a header"),
        pytest.param([HEADER, HEADER, FIRST, SECOND, THIRD, FOOTER], id="two headers"),
        pytest.param([HEADER, FIRST, SECOND, THIRD, FOOTER, FOOTER], id="two footers"),
        pytest.param([FOOTER, FIRST, SECOND, THIRD, HEADER], id="the wrong way round"),
        pytest.param([HEADER, FIRST, SECOND, FOOTER, THIRD], id="changes behind the footer"),
        pytest.param([HEADER, FIRST, THIRD, FOOTER], id="a batch is missing"),
        pytest.param([HEADER, FOOTER], id="all batches are missing"),
        pytest.param([HEADER, FIRST, FIRST, SECOND, THIRD, FOOTER], id="a batch comes twice"),
        pytest.param([HEADER, SECOND, FIRST, THIRD, FOOTER], id="batches are swapped"),
        pytest.param([], id="nothing"),
    ],
)
def test_a_file_that_is_put_together_otherwise_is_refused(parts: list[bytes]) -> None:
    assert not is_refused(b"".join([HEADER, FIRST, SECOND, THIRD, FOOTER]))
    assert is_refused(b"".join(parts))


MARKS = [b"", b"\xc0", b"\x80", b"\x93", b"\x81\xa4type\x01", b"\xa1x", b"\xa1\xff", b"\x91" * 3000]


@pytest.mark.parametrize("mark", MARKS, ids=range(len(MARKS)))
def test_a_control_record_that_says_something_else_is_refused(mark: bytes) -> None:
    payload = encode_columns([0], None, [mark], base_timestamp=0)
    batch = encode_batch(
        payload, record_count=1, base_timestamp=0, max_timestamp=0, attributes=CONTROL
    )
    assert is_refused(bytes(batch) + b"".join(batches(VALUES)[1:]))
    assert is_refused(b"".join(batches(VALUES)[:-1]) + bytes(batch))


def test_the_file_of_another_snapshot_is_refused() -> None:
    """Its epoch is in every batch."""
    assert is_refused(b"".join(batches(VALUES, epoch=ID[1] + 1)))


def test_a_disk_that_cannot_be_read_is_no_damage() -> None:
    disk = a_disk()
    write(disk, VALUES)
    disk.fail("read", PATH)
    with pytest.raises(DiskError):
        read_snapshot(disk, HERE, ID)
    disk.heal()
    assert read_snapshot(disk, HERE, ID) == VALUES


# Unfinished ones.


def test_an_unfinished_snapshot_has_no_name_and_is_removed() -> None:
    disk = a_disk()
    write(disk, VALUES, (9, 1))
    writer = SnapshotWriter(disk, HERE, ID)
    writer.append(b"begun")
    assert list_snapshots(disk, HERE) == [(9, 1)]
    remove_parts(disk, HERE)
    assert disk.list(HERE) == ["00000000000000000009-0000000001.checkpoint"]


def test_a_new_attempt_begins_with_nothing() -> None:
    disk = a_disk()
    SnapshotWriter(disk, HERE, ID).append(b"left behind")
    writer = SnapshotWriter(disk, HERE, ID)
    assert writer.size == 0
    for batch in batches(VALUES):
        writer.append(batch)
    assert writer.size == sum(map(len, batches(VALUES)))
    writer.finish()
    assert read_snapshot(disk, HERE, ID) == VALUES


def test_a_discarded_snapshot_leaves_nothing() -> None:
    disk = a_disk()
    writer = SnapshotWriter(disk, HERE, ID)
    writer.append(b"begun")
    writer.discard()
    assert disk.list(HERE) == []


def test_removing_is_fine_if_it_is_gone() -> None:
    disk = a_disk()
    write(disk, VALUES)
    remove_snapshot(disk, HERE, ID)
    remove_snapshot(disk, HERE, ID)
    assert list_snapshots(disk, HERE) == []


@pytest.mark.parametrize("fate", [None, *range(8)])
def test_a_snapshot_under_its_name_is_whole_whenever_the_power_fails(fate: int | None) -> None:
    """None is `kill -9`, a number is a power loss with this seed."""
    outcomes = set()
    for changes in range(100):
        disk = a_disk(BreakingDisk)
        disk.changes_left = changes
        try:
            write(disk, VALUES)
            finished = True
        except PowerFailure:
            finished = False
        disk.repair()
        if fate is not None:
            disk.crash(random.Random(fate))
        remove_parts(disk, HERE)
        found = list_snapshots(disk, HERE)
        assert found == [ID] if finished else found in ([], [ID])
        assert all(read_snapshot(disk, HERE, each) == VALUES for each in found)
        outcomes.add((finished, len(found)))
        if finished:
            break
    assert {(False, 0), (True, 1)} <= outcomes


def test_no_first_piece_is_served_of_one_that_nobody_could_install():
    """Not every byte is covered by a checksum: who gathered it would ask for it for ever."""
    disk = a_disk()
    write(disk, VALUES)
    for bit in range(8 * len(disk.read_file(PATH))):
        disk.flip(PATH, bit // 8, bit % 8)
        with pytest.raises(SnapshotDamaged):
            read_piece(disk, HERE, ID, 0, 100)
        disk.flip(PATH, bit // 8, bit % 8)
    assert read_piece(disk, HERE, ID, 0, 100)[1] == disk.read_file(PATH)[:100]
