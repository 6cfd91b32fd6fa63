"""The traces of a world's nodes: the same events that real nodes keep, so that an incident can be
laid beside a simulated one.

They are kept beside the world: no disk, no task and no chance of it is used, so that a history is
the same whether it is traced or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from hightide_broker.runtime.base.trace import Trace
from hightide_broker.runtime.replication.positions import EVERY_S, offsets_of
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.trace.events import Event, WatermarksMoved
from hightide_broker.trace.lines import line_of


class Book:
    """What the nodes of a world told, in the order in which it happened."""

    def __init__(self, *, keep: bool) -> None:
        self.lines: list[bytes] = []
        self._keep = keep
        self._told: Counter[int] = Counter()
        """How many events of each node."""
        self._looked_at: dict[Replica, float] = {}

    def take(self, node: int, ms: int, what: Event) -> None:
        """A node told something."""
        if self._keep:
            self.lines.append(line_of(ms, node, self._told[node], what))
            self._told[node] += 1

    def position(self, node: int, ms: int, replica: Replica) -> None:
        """A replica changed; told once a second at most."""
        now = trio.current_time()
        is_early = now < self._looked_at.get(replica, float("-inf")) + EVERY_S
        if self._keep and not is_early and not replica.offline:
            self._looked_at[replica] = now
            self.take(node, ms, WatermarksMoved(replicas=(offsets_of(replica),)))


class SimTrace(Trace):
    """Of one machine."""

    def __init__(self, book: Book, node: int, now_ms: Callable[[], int]) -> None:
        self._book = book
        self._node = node
        self._now_ms = now_ms

    def tell(self, what: Event) -> None:
        """Something happened."""
        self._book.take(self._node, self._now_ms(), what)
