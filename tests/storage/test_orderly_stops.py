"""Orderly stops that were not quite: an append after the last sync, a checkpoint that was not kept.

Goal: what a stop left behind its recovery point is looked at by the next start, not refused, and a
stop that could not keep its checkpoints does not call itself clean. Method: logs that are opened as
after a clean stop with a recovery point below their end; a node that is stopped with one append too
many, or on a disk that fails just then, and started again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from brokers import DATA, LoseAll, client_of, new_node
from faulty_broker import Frail
from leaderkit import ME, Here
from logkit import (
    CONFIG,
    Stored,
    check_lookups,
    contents,
    create,
    files_of,
    fill,
    make_batch,
    path_of,
    reopen,
    stop,
)

from hightide_broker.simulation.disk import SimDisk
from hightide_broker.storage.checkpoint import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from hightide_broker.storage.directory import CLEAN_SHUTDOWN
from hightide_broker.storage.recovery import LogDamaged

SIZE = len(make_batch())
PER_SEGMENT = CONFIG.segment_bytes // SIZE
END = 2 * PER_SEGMENT + 5


def stopped_log(disk: SimDisk) -> list[Stored]:
    """A log of two closed segments and five batches more, stopped in order; what is in it."""
    log = create(disk)
    fill(log, END)
    stop(disk, log)
    return contents(log)


# --- opening the log ----------------------------------------------------------------------------

BELOW = [1, PER_SEGMENT, PER_SEGMENT + 3, 2 * PER_SEGMENT, END - 1]


@pytest.mark.parametrize("recovery_point", BELOW)
def test_what_lies_behind_the_recovery_point_of_a_clean_stop_is_scanned(recovery_point):
    disk = SimDisk()
    before = stopped_log(disk)
    log = reopen(disk, clean=True, recovery_point=recovery_point)
    assert contents(log) == before
    assert log.recovery.scanned_bytes >= (END - recovery_point) * SIZE
    assert log.recovery.cut == []
    check_lookups(log)


@pytest.mark.parametrize("recovery_point", BELOW)
def test_what_such_a_scan_found_is_not_taken_for_durable(recovery_point):
    disk = SimDisk()
    stopped_log(disk)
    log = reopen(disk, clean=True, recovery_point=recovery_point)
    assert (log.synced_end, log.log_end) == (recovery_point, END)


@pytest.mark.parametrize("left", [1, 60, SIZE - 1])
def test_a_late_append_that_was_torn_is_cut(left):
    disk = SimDisk()
    before = stopped_log(disk)
    active = disk.open(path_of(2 * PER_SEGMENT))
    active.truncate(4 * SIZE + left)
    log = reopen(disk, clean=True, recovery_point=END - 2)
    assert contents(log) == before[:-1]
    assert len(log.recovery.cut) == 1


def test_damage_that_such_a_scan_meets_is_refused_and_left_alone():
    disk = SimDisk()
    stopped_log(disk)
    disk.corrupt(path_of(2 * PER_SEGMENT), SIZE + 70)
    before = disk.read_file(path_of(2 * PER_SEGMENT))
    with pytest.raises(LogDamaged) as caught:
        reopen(disk, clean=True, recovery_point=2 * PER_SEGMENT)
    assert (caught.value.path, caught.value.position) == (path_of(2 * PER_SEGMENT), SIZE)
    assert disk.read_file(path_of(2 * PER_SEGMENT)) == before


@pytest.mark.parametrize("recovery_point", [END + 1, 1000])
def test_a_log_shorter_than_its_recovery_point_is_damaged_however_it_was_stopped(recovery_point):
    disk = SimDisk()
    stopped_log(disk)
    before = files_of(disk)
    for clean in (True, False):
        with pytest.raises(LogDamaged, match=f"ends at offset {END}, .* says {recovery_point}"):
            reopen(disk, clean=clean, recovery_point=recovery_point)
    assert files_of(disk) == before


# --- stopping the replicas ----------------------------------------------------------------------

CHECKPOINTS = [RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS]
MARKER = f"{DATA}/{CLEAN_SHUTDOWN}"


async def test_a_stop_with_everything_kept_is_clean():
    here = Here()
    await here.create(replicas=(1,))
    here.append(3)
    assert await here.replicas.close() is True


@pytest.mark.parametrize("name", CHECKPOINTS)
async def test_a_stop_is_not_clean_if_a_checkpoint_was_not_written(name):
    here = Here()
    await here.create(replicas=(1,))
    here.append(3)
    here.disk.fail("replace", name)
    assert await here.replicas.close() is False


@pytest.mark.parametrize("name", CHECKPOINTS)
async def test_a_node_that_could_not_keep_its_checkpoints_scans_at_its_next_start(name):
    disk = SimDisk()
    sent = [b"%d" % number for number in range(12)]
    async with new_node(disk) as node, client_of(node) as client:
        await client.create()
        await client.produce(*sent[:5])
        await node.replicas.checkpoint_recovery_points()
        await client.produce(*sent[5:])
        disk.fail("replace", name)
    was_clean = disk.exists(MARKER)
    disk.heal()
    async with new_node(disk) as node, client_of(node) as client:
        assert node.replicas.get("t", 0).offline == ""
        assert await client.values() == sent
    assert (was_clean, disk.exists(MARKER)) == (False, True)


# --- an append after the last sync --------------------------------------------------------------


class DiskWithALateComer(SimDisk):
    """Somebody still at work appends when the logs are synced and a checkpoint is written."""

    late: Callable[[], object] | None = None

    def replace(self, path: str, data: bytes, *, unless: Callable[[], bool] | None = None) -> None:
        if self.late is not None and path.endswith(HIGH_WATERMARKS):
            late, self.late = self.late, None
            late()
        super().replace(path, data, unless=unless)


@pytest.mark.parametrize("flush", ["synced", "replicated"])
async def test_an_append_too_late_for_the_last_sync_does_not_cost_the_replica(flush):
    disk = DiskWithALateComer()
    before = Frail(disk)
    replica = await before.create(replicas=(ME,), flush=flush)
    before.append(5)
    disk.late = before.append
    await before.replicas.close()
    assert (disk.late, replica.log.log_end) == (None, 6)
    here = before.again(clean=True)
    await here.applier.load(here.image)
    assert (here.replicas.offline(), here.replica.log.log_end) == ([], 6)
    here.append()
    assert here.replica.log.log_end == 7
    assert [offset for offset, *_ in contents(here.replica.log)] == list(range(7))


async def test_a_late_append_that_never_reached_the_disk_costs_nothing_else():
    disk = DiskWithALateComer()
    before = Frail(disk)
    await before.create(replicas=(ME,))
    before.append(5)
    disk.late = before.append
    await before.replicas.close()
    disk.crash(LoseAll())
    here = before.again(clean=True)
    await here.applier.load(here.image)
    assert (here.replicas.offline(), here.replica.log.log_end) == ([], 5)
