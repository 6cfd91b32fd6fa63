"""Looks once a second how far the replicas are, for the trace: what moved is told, all at once.

Nothing is told while records move, so that it costs nothing then; and only those are looked at that
changed, so that it costs nothing where nobody writes, however many there are.
"""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

import trio

from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replicas import Replicas
from hightide_broker.trace.events import Offsets, Tell, WatermarksMoved

EVERY_S = 1.0
SLICE = 256
"""Replicas that are looked at before it is the turn of others."""
IN_ONE = 100
"""Positions in one event."""
IN_ONE_LOOK = 400
"""More than these are told with the next look, or one later."""


class _Told(NamedTuple):
    look: int
    offsets: Offsets


class Positions:
    """What was told of each replica of one broker."""

    def __init__(self, replicas: Replicas, tell: Tell) -> None:
        self._replicas = replicas
        self._tell = tell
        self._told: WeakKeyDictionary[Replica, _Told] = WeakKeyDictionary()
        self._looks = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(EVERY_S)
            await self.look_once()

    async def look_once(self) -> None:
        """Tell what moved since the last look."""
        self._looks += 1
        moved: list[tuple[int, Replica, Offsets]] = []
        for number, replica in enumerate(self._replicas.take_changed()):
            if number % SLICE == SLICE - 1:
                await trio.lowlevel.checkpoint()
            if replica.offline:
                continue
            now, before = offsets_of(replica), self._told.get(replica)
            if before is None or now != before.offsets:
                moved.append((-1 if before is None else before.look, replica, now))
        moved.sort(key=itemgetter(0))  # who waits longest comes first
        for _, replica, now in moved[:IN_ONE_LOOK]:
            self._told[replica] = _Told(self._looks, now)
        for _, replica, _ in moved[IN_ONE_LOOK:]:
            self._replicas.changed(replica)
        told = tuple(now for *_, now in moved[:IN_ONE_LOOK])
        for start in range(0, len(told), IN_ONE):
            self._tell(WatermarksMoved(replicas=told[start : start + IN_ONE]))


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
