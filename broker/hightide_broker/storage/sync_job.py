"""What has to be synced so that everything written to a log so far is durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hightide_broker.ports import Disk, DiskError, DiskFile


class SyncJob(NamedTuple):
    """What to sync so that everything below `end` is durable."""

    files: list[DiskFile]
    directories: list[str]
    end: int
    cuts: int
    """How often the log had been cut when the job was made."""
    epochs: Callable[[], None] | None = None
    """Writes the leader epochs, if there are more than in their file; a worker thread's work."""
    names: int = 0
    """How often names in the directory had changed."""
    written: int = 0
    """Bytes that had been appended by then."""


async def carry_out(job: SyncJob, disk: Disk) -> None:
    """Do a job. Raises `DiskError`."""
    await write_epochs(job, disk)
    await disk.sync(job.files, job.directories)


async def write_epochs(job: SyncJob, disk: Disk) -> None:
    """The first part of a job. Epochs for which there is no room would be found in the batches
    again. Raises `DiskError`."""
    if job.epochs is not None:
        try:
            await disk.in_thread(job.epochs)
        except DiskError as error:
            if not error.full:
                raise
