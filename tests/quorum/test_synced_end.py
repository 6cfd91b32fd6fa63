"""`synced-end`, the floor of the metadata log: it never says more than was on disk.

Goal: whatever failed when it was raised, a cut lowers what the file says, and the log opens again.
Method: the log on a simulated disk whose sync of a directory fails once the new name is there, as
it does on a real one; the process dies after that, or the power fails.
"""

from __future__ import annotations

import random

import pytest
import trio
from logkit import put
from test_metadata_log import FATES, HERE, changes_to, check, grow, open_log

from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.synced_end import SYNCED_END, SyncedEnd

FILE = f"{HERE}/{SYNCED_END}"


class UnsyncedName(SimDisk):
    """A disk where a file takes its new name, and then the sync of its directory fails, once."""

    fails_next = False

    def replace(self, path: str, data: bytes, *, unless: str | None = None) -> None:
        super().replace(path, data, unless=unless)
        if self.fails_next and path == FILE:
            self.fails_next = False
            raise DiskError(path, "sync", "Input/output error")


def floor_on(disk: SimDisk, said: int) -> SyncedEnd:
    disk.make_dirs(HERE)
    put(disk, FILE, b"%d\n" % said)
    return SyncedEnd(disk, HERE)


@pytest.mark.parametrize("fate", FATES)
def test_a_log_that_was_cut_after_a_raise_that_failed_opens_again(fate: int | None) -> None:
    """15 to 20 are of a leader that lost its term: never committed, and other entries in the
    next."""
    disk = UnsyncedName()
    log = open_log(disk)
    grow(log, disk, 20)
    disk.fails_next = True
    with pytest.raises(DiskError, match=SYNCED_END):
        trio.run(log.write_snapshot, log.snapshot_id(15), changes_to(15))
    log.truncate_to(15)
    assert int(disk.read_file(FILE)) == 15
    disk.kill() if fate is None else disk.crash(random.Random(fate))
    again = open_log(disk)
    assert again.synced_end == check(again, disk) == 15
    grow(again, disk, 18, epoch=2)
    assert check(open_log(disk), disk) == 18


def failed_raise() -> tuple[SimDisk, SyncedEnd]:
    """From 10 to 20."""
    disk = UnsyncedName()
    floor = floor_on(disk, 10)
    disk.fails_next = True
    with pytest.raises(DiskError):
        floor.raise_to(20)
    return disk, floor


def test_what_a_failed_raise_may_have_said_is_lowered_by_a_cut() -> None:
    disk, floor = failed_raise()
    assert int(disk.read_file(FILE)) == 20
    floor.lower_to(15)
    assert int(disk.read_file(FILE)) == 15
    assert SyncedEnd(disk, HERE).missed_by(15) == ""


def test_a_cut_above_what_was_said_before_the_failed_raise_is_said_as_well() -> None:
    """Which of the two names a crash leaves is not known: neither may say more than the log has."""
    disk, floor = failed_raise()
    for cut in (15, 12, 10, 3):
        floor.lower_to(cut)
        assert int(disk.read_file(FILE)) == cut


def test_a_cut_that_could_not_be_said_is_said_by_the_next_try() -> None:
    disk = SimDisk()
    floor = floor_on(disk, 20)
    disk.fail_once("replace", SYNCED_END)
    with pytest.raises(DiskError):
        floor.lower_to(15)
    assert int(disk.read_file(FILE)) == 20
    floor.lower_to(15)
    assert int(disk.read_file(FILE)) == 15


def test_without_room_what_was_said_before_stays_and_a_later_raise_says_more() -> None:
    disk = SimDisk()
    floor = floor_on(disk, 10)
    disk.capacity = 0
    floor.raise_to(20)
    assert int(disk.read_file(FILE)) == 10
    disk.capacity = 1 << 30
    floor.raise_to(30)
    assert int(disk.read_file(FILE)) == 30
    assert "on disk up to offset 30" in SyncedEnd(disk, HERE).missed_by(29)
