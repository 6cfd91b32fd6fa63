"""Hundreds of syncs at a time: each log is synced once, in order; those that cannot be synced go
offline, and the others are synced as before; records do not wait for leader epochs."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.syncer import PASSED_OVER_MAX, SYNCS_MAX, UNHURRIED_MAX, Syncer
from hightide_broker.storage.sync_job import SyncJob


class Log:
    """A subject of the syncer that has something to sync."""

    def __init__(self, *, owes_records: bool = True) -> None:
        self.needs_sync = True
        self.owes_records = owes_records
        self.synced_as = "data"
        self.syncing = False
        self.synced = 0
        self.offline = ""

    def begin_sync(self) -> SyncJob:
        self.needs_sync = False
        return SyncJob([], [], 1, 0)

    def finish_sync(self, _job: SyncJob) -> None:
        self.synced += 1

    def go_offline(self, why: str) -> None:
        self.offline = why


class Disk:
    """A disk that begins no sync while it is `full`; the others end a turn later."""

    def __init__(self) -> None:
        self.full = False
        self.at_work = 0
        self.at_work_max = 0

    def begin_sync(self, nursery, files, directories, what, done):
        if self.full:
            raise DiskError("f", "sync", "Too many open files")
        self.at_work += 1
        self.at_work_max = max(self.at_work_max, self.at_work)

        async def end() -> None:
            await trio.sleep(1)
            self.at_work -= 1
            done([(what, None)])

        nursery.start_soon(end)


@pytest.mark.parametrize("count", [1, 300, 3_000])
async def test_logs_whose_sync_cannot_be_begun_go_offline_and_the_next_is_synced(
    count, autojump_clock, nursery
):
    disk, agenda = Disk(), Agenda()
    syncer = Syncer(disk, agenda)
    nursery.start_soon(agenda.run)
    nursery.start_soon(syncer.run)
    logs = [Log() for _ in range(count)]
    disk.full = True
    with agenda.stretch():
        for log in logs:
            syncer.mark(log)
    await trio.sleep(1)
    assert all("Too many open files" in log.offline and not log.syncing for log in logs)
    disk.full, fresh = False, Log()
    syncer.mark(fresh)
    await trio.sleep(2)
    assert (fresh.synced, fresh.offline, fresh.syncing) == (1, "", False)


async def test_every_log_is_synced_once_and_so_many_at_a_time(autojump_clock, nursery):
    disk, agenda = Disk(), Agenda()
    syncer = Syncer(disk, agenda)
    nursery.start_soon(agenda.run)
    nursery.start_soon(syncer.run)
    logs = [Log() for _ in range(10 * SYNCS_MAX)]
    for log in logs:
        syncer.mark(log)
        syncer.mark(log)
    await trio.sleep(12)
    assert [log.synced for log in logs] == [1] * len(logs)
    assert disk.at_work_max == SYNCS_MAX


async def test_records_do_not_wait_for_a_thousand_leader_epochs(autojump_clock, nursery):
    disk, agenda = Disk(), Agenda()
    syncer = Syncer(disk, agenda)
    nursery.start_soon(agenda.run)
    nursery.start_soon(syncer.run)
    elected = [Log(owes_records=False) for _ in range(10 * UNHURRIED_MAX)]
    with agenda.stretch():
        for log in elected:
            syncer.mark(log)
    written, late = Log(), elected[-1]
    syncer.mark(written)
    late.owes_records = True  # a record came to one that stood last
    syncer.mark(late)
    await trio.testing.wait_all_tasks_blocked()
    assert disk.at_work == UNHURRIED_MAX + 2
    await trio.sleep(1.5)
    assert (written.synced, late.synced) == (1, 1)
    await trio.sleep(10)
    assert [log.synced for log in elected] == [1] * len(elected)
    assert disk.at_work == 0


async def test_as_long_as_there_is_room_logs_are_synced_in_the_order_of_their_marks(
    autojump_clock, nursery
):
    disk, agenda = Disk(), Agenda()
    syncer, begun = Syncer(disk, agenda), []

    class Noted(Log):
        def begin_sync(self) -> SyncJob:
            begun.append(self)
            return super().begin_sync()

    nursery.start_soon(agenda.run)
    logs = [Noted(owes_records=number % 3 == 0) for number in range(UNHURRIED_MAX)]
    for log in logs:
        syncer.mark(log)
    nursery.start_soon(syncer.run)
    await trio.sleep(0.5)
    assert begun == logs


@pytest.mark.parametrize("busy", [4, 12, 2 * SYNCS_MAX])
async def test_leader_epochs_are_written_under_any_load(busy, autojump_clock, nursery):
    disk, agenda = Disk(), Agenda()
    syncer = Syncer(disk, agenda)
    nursery.start_soon(agenda.run)
    nursery.start_soon(syncer.run)

    async def append(log) -> None:
        while True:
            log.needs_sync = True
            syncer.mark(log)
            await trio.sleep(0.25)

    for _ in range(busy):
        nursery.start_soon(append, Log())
    await trio.sleep(1.5)
    elected = Log(owes_records=False)
    syncer.mark(elected)
    # A sync takes a second, and the next record of its log comes a quarter later, or sooner.
    await trio.sleep(1.25 * PASSED_OVER_MAX / min(busy, SYNCS_MAX) + 2)
    assert elected.synced == 1
    nursery.cancel_scope.cancel()


async def test_what_ends_together_is_taken_in_before_anything_follows_from_it(
    autojump_clock, nursery
):
    agenda, followed, waiting = Agenda(), [], []

    class Together(Disk):
        def begin_sync(self, nursery, files, directories, what, done):
            waiting.append((what, None))
            self.done = done

    class Told(Log):
        def finish_sync(self, job: SyncJob) -> None:
            super().finish_sync(job)
            agenda.soon(lambda: followed.append([log.synced for log in logs]))

    disk, logs = Together(), [Told() for _ in range(4)]
    syncer = Syncer(disk, agenda)
    nursery.start_soon(agenda.run)
    nursery.start_soon(syncer.run)
    for log in logs:
        syncer.mark(log)
    await trio.testing.wait_all_tasks_blocked()
    waiting[1] = (waiting[1][0], DiskError("f", "sync", "Input/output error"))
    disk.done(waiting)
    assert [bool(log.offline) for log in logs] == [False, True, False, False]
    assert followed == [[1, 0, 1, 1]] * 3
