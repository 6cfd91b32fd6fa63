"""Takes the events of a node, and writes them down in bundles.

Events that happen within half a second are written at once, so that a busy node pays one write for
them. What could not be written is counted, and told with the next that can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hightide_broker.trace.events import Event, EventsLost, WatermarksMoved
from hightide_broker.trace.lines import line_of

WAITING_MAX = 1 << 14
"""Events that wait to be written; more are lost."""


class Shelf(Protocol):
    """Where lines are kept."""

    def put(self, lines: Sequence[bytes]) -> int:
        """How many of them, the last ones, could not be kept."""
        ...


class Recorder:
    """The trace of one node. Positions, of which there are many, are kept on a shelf of their own:
    they must not push out what is rare."""

    def __init__(
        self,
        node: int,
        events: Shelf,
        positions: Shelf,
        *,
        now_ms: Callable[[], int],
        first: int = 0,
        soon: Callable[[], None] = lambda: None,
    ) -> None:
        """`first`: the number of the first event. `soon` has `write` called before long."""
        self._node = node
        self._shelves = {False: events, True: positions}
        self._now_ms = now_ms
        self._number = first
        self._soon = soon
        self._waiting: list[tuple[bool, bytes]] = []
        self._lost = 0

    def tell(self, what: Event) -> None:
        """Something happened."""
        if len(self._waiting) >= WAITING_MAX:
            self._lost += 1
            return
        if not self._waiting:
            self._soon()
        self._take(what)

    def write(self) -> None:
        """Have everything kept that was told so far."""
        lost, self._lost = self._lost, 0
        if lost:
            self._take(EventsLost(count=lost))
        waiting, self._waiting = self._waiting, []
        for is_position, shelf in self._shelves.items():
            lines = [line for which, line in waiting if which is is_position]
            gone = shelf.put(lines) if lines else 0
            if gone and lost and not is_position:
                gone += lost - 1  # what was to tell of them is lost with them
            self._lost += gone

    def _take(self, what: Event) -> None:
        line = line_of(self._now_ms(), self._node, self._number, what)
        self._waiting.append((isinstance(what, WatermarksMoved), line))
        self._number += 1
