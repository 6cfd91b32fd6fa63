"""What a failed sync left behind is written again by the next process.

Goal: after a failed `fdatasync` the system calls the pages clean (fsyncgate), so the process that
starts next finds the bytes, and its syncs would succeed and count what no disk has. Method: a sync
fails on the simulated disk, which keeps that rule; the process is killed, another one recovers the
log and syncs it, and then the power goes, whatever is kept of what was never synced.
"""

from __future__ import annotations

import pytest
from brokers import LoseAll
from logkit import DIRECTORY, contents, create, fill, reopen, sync

from hightide_broker.ports import DiskError
from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.segment import LogConfig, file_name


@pytest.mark.parametrize("synced", [0, 3, 20])
@pytest.mark.parametrize("config", [LogConfig(), LogConfig(segment_bytes=1000)])
def test_what_a_failed_sync_left_reaches_the_disk_with_the_next_one(
    config: LogConfig, synced: int
) -> None:
    """One segment, or several; the recovery point is somewhere in them."""
    disk = SimDisk()
    log = create(disk, config=config)
    fill(log, synced)
    sync(disk, log)
    fill(log, 25 - synced)
    written = contents(log)
    disk.fail("sync", ".log")
    with pytest.raises(DiskError):
        sync(disk, log)
    disk.kill()
    disk.heal()
    again = reopen(disk, recovery_point=synced, config=config)
    assert contents(again) == written
    sync(disk, again)
    assert again.synced_end == 25
    disk.crash(LoseAll())
    assert contents(reopen(disk, recovery_point=25, config=config)) == written


def test_without_a_sync_after_the_failed_one_nothing_more_is_promised() -> None:
    """The simulated disk does drop what a failed sync was for: the test above could fail."""
    disk = SimDisk()
    log = create(disk)
    fill(log, 3)
    sync(disk, log)
    fill(log, 3)
    disk.fail("sync", ".log")
    with pytest.raises(DiskError):
        sync(disk, log)
    disk.heal()
    disk.sync_now([disk.open(f"{DIRECTORY}/{file_name(0, 'log')}")])
    disk.crash(LoseAll())
    assert len(contents(reopen(disk, recovery_point=3))) == 3
