"""Group commit: one sync covers everything that was appended to a log meanwhile.

Each dirty replica has at most one sync under way; what arrives during it is covered by the next
one. Different replicas sync in parallel, in worker threads. A failed sync takes the replica
offline: the kernel may have dropped the pages, so nothing of it may be trusted or acknowledged
(fsyncgate).
"""

from __future__ import annotations

import logging
from typing import Protocol

import trio

from hightide_broker.ports import Disk, DiskError
from hightide_broker.storage.sync_job import SyncJob, carry_out

log = logging.getLogger("hightide.disk")


class Syncable(Protocol):
    """What can be synced: a replica, or the metadata log."""

    needs_sync: bool
    syncing: bool

    def begin_sync(self) -> SyncJob | None: ...

    def finish_sync(self, job: SyncJob) -> None: ...

    def go_offline(self, why: str) -> None: ...


class Syncer:
    """Runs the syncs of all logs of a broker."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._dirty: dict[Syncable, None] = {}
        self._wake = trio.Event()

    def mark(self, subject: Syncable) -> None:
        """`subject` has something to sync; nothing happens while it is being synced already."""
        if not subject.syncing:
            self._dirty[subject] = None
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                dirty, self._dirty = self._dirty, {}
                for subject in dirty:
                    subject.syncing = True
                    nursery.start_soon(self._sync, subject)

    async def _sync(self, subject: Syncable) -> None:
        try:
            while (job := subject.begin_sync()) is not None:
                await carry_out(job, self._disk)
                subject.finish_sync(job)
                if not subject.needs_sync:
                    break
        except DiskError as error:
            subject.go_offline(str(error))
        finally:
            subject.syncing = False

    async def sync_now(self, subject: Syncable) -> None:
        """Sync one subject and wait for it; raises `DiskError`."""
        job = subject.begin_sync()
        if job is not None:
            await carry_out(job, self._disk)
            subject.finish_sync(job)
