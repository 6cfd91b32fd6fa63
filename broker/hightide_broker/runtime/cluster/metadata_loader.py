"""Follows the committed metadata: replays it into this node's image, then has it carried out.

Changes are applied in the order of the log and in whole batches; callers that wait for `applied` to
reach an offset may rely on everything below it. From time to time the image is written down as a
snapshot, and the log before it may go; a node that fell too far behind gets the image from one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import trio

from hightide.protocol.words import counted
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.changes import AnyChange
from hightide_broker.core.cluster.image import ClusterImage, differences
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.quorum.metadata_log import MetadataFailed, MetadataLog
from hightide_broker.storage.segment import SegmentDamage
from hightide_broker.storage.snapshots import SnapshotDamaged

log = logging.getLogger("hightide.metadata")

ROUND_BYTES = 1 << 20
"""So much of the log is replayed before what it says is carried out."""
_NEVER = float("inf")


class Follower(Protocol):
    """Who carries out what the metadata says: the replicas of a broker."""

    async def load(self, image: ClusterImage) -> None:
        """Begin with this image."""
        ...

    async def apply(self, image: ClusterImage, changes: Sequence[AnyChange]) -> None:
        """Carry out changes that are in `image` already."""
        ...


class ImageInstrument(Protocol):
    """Told after the fact, in the same stretch; it changes nothing."""

    def image_applied(self, node: int, image: ClusterImage) -> None:
        """A node's image has followed the metadata up to `image.offset`."""
        ...


class MetadataLoader:
    """This node's image of the cluster."""

    def __init__(
        self,
        metadata: MetadataLog,
        committed: Watermark,
        *,
        node: int,
        config: BrokerConfig,
        instrument: ImageInstrument | None = None,
    ) -> None:
        self.image = ClusterImage()
        self.applied = Watermark()
        """Everything below it is in the image, and carried out by who is attached."""
        self.errors = 0
        """Snapshots that could not be written."""
        self._node = node
        self._instrument = instrument
        self._metadata = metadata
        self._committed = committed
        self._follower: Follower | None = None
        self._applying = trio.Lock()
        self._snapshot_bytes = config[keys.METADATA_LOG_MAX_RECORD_BYTES_BETWEEN_SNAPSHOTS]
        self._snapshot_s = config.seconds(keys.METADATA_LOG_MAX_SNAPSHOT_INTERVAL_MS)
        self._retention_bytes = config[keys.METADATA_MAX_RETENTION_BYTES]
        self._bytes_since = 0
        self._snapshot_at = _NEVER
        if metadata.latest_snapshot is not None:
            self._load_snapshot()
            self.applied.advance(self.image.offset)

    async def attach(self, follower: Follower) -> None:
        """From here on `follower` carries out what the metadata says.

        It begins with the image of now, which may take minutes of recovery; the image goes on
        meanwhile, as a controller of this node needs it to decide for all others.
        """
        async with self._applying:
            begun = self.image.copy()
        await follower.load(begun)
        async with self._applying:
            await follower.apply(self.image, differences(begun, self.image))
            self._follower = follower

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            with trio.move_on_at(self._snapshot_at):
                await self._committed.wait_for(self.applied.value + 1)
            async with self._applying:
                if self._committed.value > self.applied.value:
                    await self._apply()
                if self._snapshot_is_due():
                    await self._write_snapshot()

    async def _apply(self) -> None:
        try:
            changes = self._read()
        except (DiskError, SegmentDamage, SnapshotDamaged) as error:
            raise MetadataFailed(f"what is committed cannot be read: {error}") from error
        assert self.image.offset > self.applied.value, "what is committed ends inside a batch"
        if self._instrument is not None:
            self._instrument.image_applied(self._node, self.image)
        if self._follower is not None:
            await self._follower.apply(self.image, changes)
        self.applied.advance(self.image.offset)

    def _read(self) -> Sequence[AnyChange]:
        """Take what is committed into the image, or the first part of it; what that changed."""
        if self.applied.value >= self._metadata.log_start:
            return self._replay()
        old = self.image
        self._load_snapshot()
        return differences(old, self.image)

    def _load_snapshot(self) -> None:
        snapshot = self._metadata.latest_snapshot
        assert snapshot is not None, "the log begins behind what is applied, without a snapshot"
        changes = self._metadata.load_snapshot(snapshot)
        self.image = ClusterImage.of_snapshot(changes, snapshot.end_offset)
        self._bytes_since, self._snapshot_at = 0, _NEVER

    def _replay(self) -> list[AnyChange]:
        """Take the next batches into the image; what they changed."""
        changes: list[AnyChange] = []
        size = 0
        for batch in self._metadata.batches(self.applied.value, self._committed.value):
            for offset, change in batch.changes:
                self.image.replay(change, offset)
                changes.append(change)
            self.image.reached(batch.next_offset)
            size += batch.size
            if size >= ROUND_BYTES:
                break
        if not self._bytes_since and changes:
            self._snapshot_at = trio.current_time() + self._snapshot_s
        if changes:
            self._bytes_since += size
        return changes

    def _snapshot_is_due(self) -> bool:
        return self._bytes_since >= self._snapshot_bytes or trio.current_time() >= self._snapshot_at

    async def _write_snapshot(self) -> None:
        snapshot = self._metadata.snapshot_id(self.image.offset)
        self._bytes_since, self._snapshot_at = 0, _NEVER
        try:
            size = await self._metadata.write_snapshot(snapshot, self.image.changes())
            self._metadata.prune(self._retention_bytes)
        except (DiskError, SnapshotDamaged) as error:
            self.errors += 1
            log.warning(
                "no snapshot was written, trying again later: %s",
                error,
                extra={"event": "metadata_loader.snapshot_failed"},
            )
            # Not 0: the next change would put the second try off.
            self._bytes_since, self._snapshot_at = 1, trio.current_time() + self._snapshot_s
            return
        log.info("snapshot %d-%d: %s", *snapshot, counted(size, "byte"))
