"""The metadata log of a quorum of one: append changes, sync, and only then call them committed.

The log is `__cluster_metadata-0`, an ordinary log of ordinary batches whose values are changes
(`core/changes.py`). With one voter this node is candidate and leader at once, in a new epoch at
each start; the epoch is durable in `quorum-state` before the first record of it is written.
The log is synced before it counts; if a sync of it fails, the node stops: it can promise nothing
any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec

from hightide.columns import encode_columns, offsets_of, open_batch, values_of
from hightide.errors import ErrorCode, Refused
from hightide.ports import WallClock
from hightide.records import CONTROL, BatchHeader, encode_batch, parse_header
from hightide_broker.core.changes import AnyChange, decode_change, encode_change
from hightide_broker.ports import Disk, DiskError, NodeMustStop
from hightide_broker.runtime.watermark import Watermark
from hightide_broker.storage.log import Log, SyncJob
from hightide_broker.storage.quorum_state import (
    QuorumState,
    read_quorum_state,
    write_quorum_state,
)
from hightide_broker.storage.segment import LogConfig

log = logging.getLogger("hightide.quorum")

METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""Kafka's fixed id of the metadata topic."""


class MetadataLogFailed(NodeMustStop):
    """The metadata log could not be written or synced."""


class MetadataLog:
    """The log and its commit point; implements `syncer.Syncable`."""

    def __init__(self, disk: Disk, directory: str, *, node: int, clock: WallClock) -> None:
        self._clock = clock
        self.needs_sync = False
        self.syncing = False
        state = read_quorum_state(disk, directory) if disk.exists(directory) else QuorumState()
        config = LogConfig()
        if disk.exists(f"{directory}/partition.metadata"):
            # The metadata log is always scanned whole: it is small, and everything hangs on it.
            self._log = Log.open(
                disk,
                directory,
                topic_id=METADATA_TOPIC_ID,
                config=config,
                log_start=0,
                recovery_point=0,
                clean=False,
            )
        else:
            self._log = Log.create(disk, directory, topic_id=METADATA_TOPIC_ID, config=config)
        self.epoch = max(state.leader_epoch, self._log.epochs.latest_epoch) + 1
        write_quorum_state(disk, directory, QuorumState(node, self.epoch, node))
        self._log.epochs.assign(self.epoch, self._log.log_end)
        self._append_leader_change(node)
        disk.sync_now([], [directory])
        job = self._log.begin_sync()
        assert job is not None, "a leader change was just written"
        disk.sync_now(job.files, job.directories)
        self._log.finish_sync(job)
        self.committed = Watermark(self._log.synced_end)

    @property
    def log_end(self) -> int:
        """The offset of the next change."""
        return self._log.log_end

    def _append_leader_change(self, node: int) -> None:
        value = msgspec.msgpack.encode({"type": "leader_change", "leader": node, "voters": [node]})
        self._write([value], attributes=CONTROL)

    def append(self, changes: Sequence[AnyChange]) -> int:
        """Write changes as one batch, atomically; the offset of the first one.

        They count once `committed` reaches the log end. Raises `Refused` if the disk has no room.
        """
        assert changes, "a batch of no changes"
        try:
            header = self._write([encode_change(change) for change in changes])
        except DiskError as error:
            if error.full:
                raise Refused(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"the controller's disk is full: {error}; nothing was changed, free some room",
                ) from error
            raise MetadataLogFailed(str(error)) from error
        self.needs_sync = True
        return header.base_offset

    def _write(self, values: list[bytes], *, attributes: int = 0) -> BatchHeader:
        now = self._clock.now_ms()
        payload = encode_columns([now] * len(values), None, values, base_timestamp=now)
        batch = encode_batch(
            payload,
            record_count=len(values),
            base_timestamp=now,
            max_timestamp=now,
            attributes=attributes,
        )
        return self._log.append_as_leader(
            batch, parse_header(batch), leader_epoch=self.epoch, now_ms=now
        )

    def changes(self, offset: int) -> Iterator[tuple[int, AnyChange]]:
        """Every committed change at or above `offset`, with its offset."""
        for header, batch in self._log.batches(offset):
            if header.next_offset > self.committed.value:
                return
            if header.is_control:
                continue
            columns = open_batch(batch, header)
            for at, value in zip(offsets_of(columns, header), values_of(columns), strict=True):
                if at >= offset and value is not None:
                    yield at, decode_change(value)

    # -- syncer.Syncable -------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """What is to be synced now."""
        self.needs_sync = False
        return self._log.begin_sync()

    def finish_sync(self, job: SyncJob) -> None:
        """Durable changes are committed changes in a quorum of one."""
        self.committed.advance(self._log.finish_sync(job))

    def go_offline(self, why: str) -> None:
        """The metadata cannot be promised any more."""
        raise MetadataLogFailed(why)

    async def close(self, disk: Disk) -> None:
        """Flush and close."""
        job = self._log.finish()
        if job is not None:
            await disk.sync(job.files, job.directories)
        self._log.close()
