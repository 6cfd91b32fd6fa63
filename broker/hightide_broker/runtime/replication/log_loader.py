"""How the log of a replica comes to be: opened as it was left, made new, or repaired.

What lies in a partition's directory is never taken for something else. A directory of another topic
is set aside, and so, when a replica is repaired, is one that does not say what it is of. A log that
others may rely on and that held records is not made new, empty, nor used if it ends before what
was committed and on disk: that replica is damaged, and begins again from its leader once nobody
relies on it. All of this is a worker thread's work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.core.cluster.image import TopicState
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.cluster.topic_keys import (
    INDEX_INTERVAL_BYTES,
    SEGMENT_BYTES,
    SEGMENT_INDEX_BYTES,
    SEGMENT_MS,
)
from hightide_broker.ports import Disk, DiskError
from hightide_broker.runtime.replication.checkpoints import Checkpoints
from hightide_broker.storage.aside import has_records, set_aside
from hightide_broker.storage.checkpoint import (
    PARTITION_METADATA,
    MalformedCheckpoint,
    mend_partition_metadata,
    read_partition_metadata,
)
from hightide_broker.storage.log import Log
from hightide_broker.storage.recovery import LogDamaged, bytes_to_scan
from hightide_broker.storage.segment import LogConfig

log = logging.getLogger("hightide.replicas")

NOWHERE = -1
"""Where a log ends that need not be there."""


def log_config(config: TopicConfig) -> LogConfig:
    """What the log needs of a topic's configuration."""
    return LogConfig(
        segment_bytes=config[SEGMENT_BYTES],
        segment_ms=config[SEGMENT_MS],
        segment_index_bytes=config[SEGMENT_INDEX_BYTES],
        index_interval_bytes=config[INDEX_INTERVAL_BYTES],
    )


class LoadOutcome(NamedTuple):
    """A log, or why there is none."""

    log: Log | None
    why: str = ""
    is_damaged: bool = False
    """What is stored is wrong, or gone: the leader's may take its place."""
    lacks_space: bool = False
    """Only for want of room on the disk."""


class LogLoader:
    """Opens the logs of one data directory; `clean`: the last stop was an orderly one."""

    def __init__(
        self, disk: Disk, directory: str, checkpoints: Checkpoints, *, clean: bool
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._checkpoints = checkpoints
        self._clean = clean
        self._naming = threading.Lock()
        """Two threads must not find the same name free."""

    def open(
        self,
        topic: TopicState,
        number: int,
        config: TopicConfig,
        *,
        must_reach: int = NOWHERE,
        salvage: bool = False,
    ) -> LoadOutcome:
        """Open a log, or make it if there is none; it is damaged if it ends before `must_reach`.
        `salvage` what is whole of a damaged one."""
        open_it = partial(self._open, topic, number, config, must_reach=must_reach, salvage=salvage)
        try:
            return LoadOutcome(open_it() if salvage else self._with_reserve(open_it))
        except (DiskError, LogDamaged, MalformedCheckpoint, _Missing) as error:
            log.error("%s-%d is offline: %s", topic.name, number, error)
            if isinstance(error, DiskError):
                # A damaged one stays that: what it could not be repaired for must not be trusted.
                full = error.full
                return LoadOutcome(
                    None,
                    str(error),
                    is_damaged=full and salvage,
                    lacks_space=full and not salvage,
                )
            return LoadOutcome(None, str(error), is_damaged=True)

    def _with_reserve(self, open_it: Callable[[], Log]) -> Log:
        """What is stored is to be read on a full disk, too: its indexes are written from what is
        kept for that."""
        try:
            return open_it()
        except DiskError as error:
            if not error.full:
                raise
        with self._disk.reserve():
            return open_it()

    def bytes_to_scan(self, tp: TopicPartition) -> int:
        """How much of a log is to be scanned when it is opened, at most."""
        if self._clean:
            return 0
        point = self._checkpoints.recovery_points.get(tp, 0)
        try:
            return bytes_to_scan(self._disk, f"{self._directory}/{tp.topic}-{tp.partition}", point)
        except DiskError:
            return 0  # opening it says why

    def _open(
        self,
        topic: TopicState,
        number: int,
        config: TopicConfig,
        *,
        must_reach: int,
        salvage: bool,
    ) -> Log:
        path, key = f"{self._directory}/{topic.name}-{number}", TopicPartition(topic.name, number)
        self._mend_metadata(path, topic.topic_id)
        if salvage:
            self._set_aside_if_nobodys(f"{topic.name}-{number}")
        found = read_partition_metadata(self._disk, path) if self._disk.exists(path) else None
        if found is None and self._holds_records(path):
            raise _Missing(path, "does not say which topic it is of", "records")
        # The only replica may have been away while its topic was deleted and made again.
        is_remade = found is not None and len(topic.partitions[number].replicas) == 1
        if must_reach != NOWHERE and found != topic.topic_id and not is_remade:
            what = "is gone" if found is None else f"says that it is of topic id {found}"
            raise _Missing(path, what, f"records of {topic.name} (id {topic.topic_id})")
        if found != topic.topic_id:
            # First: who is killed in between finds records that nobody is held to.
            self._checkpoints.forget(key)
            if found is not None:
                aside = self._set_aside(f"{topic.name}-{number}")
                log.warning(
                    "%s is of a deleted topic, set aside: %s",
                    path,
                    aside,
                    extra={"event": "log_loader.set_aside"},
                )
            return Log.create(self._disk, path, topic_id=topic.topic_id, config=log_config(config))
        opened = Log.open(
            self._disk,
            path,
            topic_id=topic.topic_id,
            config=log_config(config),
            log_start=self._checkpoints.log_starts.get(key, 0),
            recovery_point=self._checkpoints.recovery_points.get(key, 0),
            clean=self._clean,
            salvage=salvage,
        )
        if opened.log_end < must_reach:
            opened.close()
            what, held = f"ends at offset {opened.log_end}", f"committed records up to {must_reach}"
            raise _Missing(path, what, held)
        if opened.log_end < self._checkpoints.high_watermarks.get(key, 0):
            # It was not held to that, and the next process must not hold it to that either.
            self._checkpoints.lower_offsets(key, opened.log_end)
        if opened.log_end < self._checkpoints.cleaner_offsets.get(key, 0):
            self._checkpoints.forget_cleaned(key)
        if not self._clean or opened.recovery.cut or opened.recovery.rebuilt:
            told = topic.name, number, opened.recovery
            log.info("%s-%d: recovered, %s", *told, extra={"event": "log_loader.recovered"})
        return opened

    def _mend_metadata(self, path: str, topic_id: str) -> None:
        """A bit that turned does not make another topic's of a directory."""
        if mend_partition_metadata(self._disk, path, topic_id):
            log.warning(
                "%s/%s was damaged, and is written again for topic id %s",
                path,
                PARTITION_METADATA,
                topic_id,
                extra={"event": "log_loader.mended"},
            )

    def _holds_records(self, path: str) -> bool:
        """Whether there are segments with anything in them."""
        return self._disk.exists(path) and has_records(self._disk, path)

    def _set_aside(self, name: str) -> str:
        with self._naming:
            return set_aside(self._disk, self._directory, name)

    def _set_aside_if_nobodys(self, name: str) -> None:
        """A directory that does not say any more which topic it belongs to is not used."""
        path = f"{self._directory}/{name}"
        try:
            found = read_partition_metadata(self._disk, path)
            why = f"{path} does not say which topic it is of"
            is_nobodys = found is None and self._holds_records(path)
        except MalformedCheckpoint as error:
            why, is_nobodys = str(error), True
        if is_nobodys:
            aside = self._set_aside(name)
            log.warning("%s; set aside: %s", why, aside)


class _Missing(Exception):
    """Records that a log held are not there."""

    def __init__(self, path: str, what: str, held: str) -> None:
        super().__init__(
            f"{path} {what}, but held {held} before: restore it from a copy, or give up what only "
            f"it held: stop this broker, then `hightide partitions elect --unclean`"
        )
