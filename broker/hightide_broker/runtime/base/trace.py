"""The trace of a node on its disk: what is told is written before long, and read by who asks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from hightide_broker.ports import Disk, DiskError
from hightide_broker.runtime.base.agenda import Agenda
from hightide_broker.trace.events import Event
from hightide_broker.trace.recorder import Recorder
from hightide_broker.trace.ring import (
    KINDS,
    TRACE_DIRECTORY,
    Place,
    Ring,
    next_number,
    read_piece,
)

log = logging.getLogger("hightide.trace")

WRITE_S = 0.5
"""How long an event may wait to be written."""


class Trace:
    """Where the rooms of a node tell what happens."""

    wants_positions = False
    """Whether somebody has to look how far the replicas are."""

    def tell(self, what: Event) -> None:
        """Something happened. Here, nobody keeps it."""

    async def piece(self, kind: str, place: Place) -> tuple[bytes, Place]:
        """Whole lines of a kind from a place on, and where to go on. Raises `DiskError`."""
        return b"", place

    def close(self) -> None:
        """Keep what was told."""


class TraceOnDisk(Trace):
    """One that is kept."""

    wants_positions = True

    def __init__(
        self,
        disk: Disk,
        directory: str,
        agenda: Agenda,
        *,
        node: int,
        max_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Raises `DiskError`."""
        self._disk = disk
        self._directory = f"{directory}/{TRACE_DIRECTORY}"
        self._agenda = agenda
        disk.make_dirs(self._directory)
        self._rings = {
            kind: Ring(disk, self._directory, kind, max_bytes=max_bytes // 2) for kind in KINDS
        }
        self._recorder = Recorder(
            node,
            *self._rings.values(),
            now_ms=now_ms,
            first=next_number(disk, self._directory),
            soon=self._write_soon,
        )

    def tell(self, what: Event) -> None:
        """Something happened."""
        self._recorder.tell(what)

    async def piece(self, kind: str, place: Place) -> tuple[bytes, Place]:
        """Whole lines of a kind from a place on, and where to go on. Raises `DiskError`."""
        self._recorder.write()
        read = partial(read_piece, self._disk, self._directory, kind, place)
        return await self._disk.in_thread(read)

    def close(self) -> None:
        """Keep what was told."""
        self._recorder.write()
        for ring in self._rings.values():
            ring.close()

    def _write_soon(self) -> None:
        self._agenda.at(trio.current_time() + WRITE_S, self._recorder.write)


def open_trace(
    disk: Disk,
    directory: str,
    agenda: Agenda,
    *,
    node: int,
    max_bytes: int,
    now_ms: Callable[[], int],
) -> Trace:
    """The trace of a node. One that cannot be kept, or may not have any bytes, is none: no node
    stays down for that."""
    if max_bytes == 0:
        return Trace()
    try:
        return TraceOnDisk(disk, directory, agenda, node=node, max_bytes=max_bytes, now_ms=now_ms)
    except DiskError as error:
        log.warning("no trace is kept: %s", error)
        return Trace()
