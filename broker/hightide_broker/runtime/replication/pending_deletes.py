"""The directories of deleted topics: renamed at once, so that a topic of the same name can be made,
and removed later, in a worker thread. Those that a crash left are found at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from hightide_broker.ports import Disk, DiskError
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.storage.aside import clear_away, rename_for_delete

log = logging.getLogger("hightide.replicas")


class PendingDeletes:
    """What is to be removed from one data directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._paths: dict[str, None] = {}

    def keep_only(self, names: Collection[str]) -> None:
        """Find what a crash left to be removed; all other partitions are set aside."""
        self._paths |= dict.fromkeys(clear_away(self._disk, self._directory, {*names}))

    def add(self, replica: Replica) -> None:
        """A replica's directory goes; its log is closed, and nobody is at work in it."""
        try:
            path = rename_for_delete(self._disk, self._directory, replica.name, replica.topic_id)
        except DiskError as error:
            log.error("deleting %s failed, it is left behind: %s", replica.name, error)
        else:
            self._paths[path] = None

    async def carry_out(self) -> None:
        """Remove them; what fails is tried again the next time."""
        pending, self._paths = self._paths, {}
        for path in pending:
            try:
                # The new name first: a power cut must not bring back the old one, half empty.
                await self._disk.sync([], [self._directory])
                await self._disk.in_thread(partial(self._disk.remove_tree, path))
            except DiskError as error:
                log.warning("deleting %s failed, trying again later: %s", path, error)
                self._paths[path] = None
