"""Looks once a second how far the replicas are, for the trace: what moved is told, all at once.

Nothing is told while records move, so that it costs nothing then.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.trace.events import Offsets, Tell, WatermarksMoved

EVERY_S = 1.0
SLICE = 256
"""Replicas that are looked at before it is the turn of others."""
IN_ONE = 100
"""Positions in one event."""
IN_ONE_LOOK = 400
"""More than these are told with the next look, or one later."""


class Positions:
    """What was told of each replica of one broker."""

    def __init__(self, replicas: Iterable[Replica], tell: Tell) -> None:
        self._replicas = replicas
        self._tell = tell
        self._told: dict[Replica, Offsets] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(EVERY_S)
            await self.look_once()

    async def look_once(self) -> None:
        """Tell what moved since the last look."""
        moved: list[Offsets] = []
        known, self._told = self._told, {}
        for number, replica in enumerate(self._replicas):
            if number % SLICE == SLICE - 1:
                await trio.lowlevel.checkpoint()
            if replica.offline:
                continue
            now, before = offsets_of(replica), known.get(replica)
            if now != before and len(moved) < IN_ONE_LOOK:
                moved.append(now)
                before = now
            if before is not None:
                self._told[replica] = before
        for start in range(0, len(moved), IN_ONE):
            self._tell(WatermarksMoved(replicas=tuple(moved[start : start + IN_ONE])))


def offsets_of(replica: Replica) -> Offsets:
    """How far a replica is."""
    log = replica.log
    return Offsets(
        replica.topic,
        replica.partition,
        replica.leader_epoch,
        log.log_start,
        replica.high_watermark,
        log.log_end,
        log.synced_end,
    )
