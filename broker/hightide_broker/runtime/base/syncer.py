"""Group commit: one sync covers everything that was appended to a log meanwhile.

Each dirty replica has at most one sync under way; what arrives during it is covered by the next
one. Different replicas sync in parallel, in worker threads. Those that only have leader epochs to
write, a thousand of them after an election, leave room for those whose records are waited for. A
failed sync takes the replica offline: the kernel may have dropped the pages, so nothing of it may
be trusted or acknowledged (fsyncgate).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

import trio

from hightide_broker.ports import Disk, DiskError, Outcomes
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.runtime.base.measures import Histogram
from hightide_broker.storage.sync_job import SyncJob, carry_out, write_epochs

SYNCS_MAX = 40
"""Threads that sync at a time."""
UNHURRIED_MAX = 8
"""If so many syncs are under way, only those begin whose records are waited for,"""
PASSED_OVER_MAX = 1000
"""but for those that so many others were marked behind: they would wait for as long as there is
load."""


KINDS = ("data", "metadata")
"""What is synced, as it is counted: logs of partitions, the log of the metadata."""


class Syncable(Protocol):
    """What can be synced: a replica, or the metadata log."""

    synced_as: str
    """Of `KINDS`."""
    needs_sync: bool
    syncing: bool

    @property
    def owes_records(self) -> bool:
        """Whether something was appended that is not on disk yet."""
        ...

    def begin_sync(self) -> SyncJob | None: ...

    def finish_sync(self, job: SyncJob) -> None: ...

    def go_offline(self, why: str) -> None: ...


class _UnderWay(NamedTuple):
    """A sync that was begun."""

    subject: Syncable
    job: SyncJob
    began: float


class Syncer:
    """Runs the syncs of all logs of a broker. Each is begun at the end of the stretch that made it
    necessary; what its end brings is done in one stretch with it, and with the ends of others that
    come at the same time."""

    def __init__(self, disk: Disk, agenda: Agenda) -> None:
        self._disk = disk
        self._agenda = agenda
        self.seconds = {kind: Histogram() for kind in KINDS}
        """How long each sync took, by what was synced."""
        self._dirty: dict[Syncable, int] = {}
        """Those that have records to be synced and are not, in order (→ which mark it was)."""
        self._unhurried: dict[Syncable, int] = {}
        """The same for those that have no records that are not on disk."""
        self._marks = 0
        self._under_way = 0
        self._nursery: trio.Nursery | None = None
        self._failure: BaseException | None = None
        self._failed = trio.Event()

    def mark(self, subject: Syncable) -> None:
        """`subject` has something to sync; nothing happens while it is being synced already."""
        if subject.syncing or subject in self._dirty:
            return
        self._marks += 1
        if subject.owes_records:
            self._dirty[subject] = self._unhurried.pop(subject, self._marks)
        elif subject not in self._unhurried:
            self._unhurried[subject] = self._marks
        self._agenda.soon(self._begin)

    async def run(self) -> None:
        """Until cancelled, or a subject cannot go on without its disk."""
        async with trio.open_nursery() as self._nursery:
            try:
                with self._agenda.stretch():
                    self._begin()
                await self._failed.wait()
                assert self._failure is not None, "nothing else ends this wait"
                raise self._failure
            finally:
                self._nursery = None

    def _begin(self) -> None:
        """Begin what is to be synced, as far as threads go."""
        while self._nursery is not None and (waiting := self._whose_turn()):
            subject = next(iter(waiting))
            del waiting[subject]
            self._next(subject)

    def _whose_turn(self) -> dict[Syncable, int]:
        """Of whom the first one begins now: who was marked first, as long as there is room for
        all."""
        if self._under_way >= SYNCS_MAX:
            return {}
        first = next(iter(self._unhurried.values()), None)
        if first is None:
            return self._dirty
        has_waited = self._marks - first >= PASSED_OVER_MAX
        is_next = first < next(iter(self._dirty.values()), first + 1)
        may_begin = self._under_way < UNHURRIED_MAX
        return self._unhurried if has_waited or (may_begin and is_next) else self._dirty

    def _next(self, subject: Syncable) -> None:
        job = subject.begin_sync()
        subject.syncing = job is not None
        if job is None:
            return
        assert self._nursery is not None, "syncs begin while it runs"
        self._under_way += 1
        if job.epochs is None:
            self._start(subject, job)
        else:
            self._nursery.start_soon(self._write_epochs, subject, job)

    async def _write_epochs(self, subject: Syncable, job: SyncJob) -> None:
        try:
            await write_epochs(job, self._disk)
        except DiskError as error:
            self._ended([(_UnderWay(subject, job, trio.current_time()), error)])
        else:
            self._start(subject, job)

    def _start(self, subject: Syncable, job: SyncJob) -> None:
        if self._nursery is None:
            return  # the node has ended
        sync = _UnderWay(subject, job, trio.current_time())
        try:
            self._disk.begin_sync(self._nursery, job.files, job.directories, sync, self._ended)
        except DiskError as error:
            # Not here: hundreds may fail one by one.
            self._agenda.soon(partial(self._ended, [(sync, error)]))

    def _ended(self, ended: Outcomes[_UnderWay]) -> None:
        """Syncs came to their end; whatever fails now must not strike who tells so."""
        if self._nursery is None:
            return
        try:
            with self._agenda.stretch():
                for sync, error in ended:
                    self._count(sync, error)
                self._agenda.soon(self._begin)
        except BaseException as failure:
            self._failure = failure
            self._failed.set()

    def _count(self, sync: _UnderWay, error: BaseException | None) -> None:
        subject, job, began = sync
        self.seconds[subject.synced_as].observe(trio.current_time() - began)
        self._under_way -= 1
        subject.syncing = False
        if isinstance(error, DiskError):
            subject.go_offline(str(error))
        elif error is not None:
            raise error
        else:
            subject.finish_sync(job)
            if subject.needs_sync:
                self.mark(subject)

    async def sync_now(self, subject: Syncable) -> None:
        """Sync one subject and wait for it; raises `DiskError`."""
        job = subject.begin_sync()
        if job is not None:
            await carry_out(job, self._disk)
            subject.finish_sync(job)
