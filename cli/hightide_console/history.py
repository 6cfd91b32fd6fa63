"""What happened, as it was learned: events apart from positions, of which there are many, so that
these push out nothing rare. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from operator import itemgetter

from hightide_broker.trace.events import (
    Event,
    QuorumRole,
    QuorumTruncated,
    QuorumVote,
    VotersChanged,
    WatermarksMoved,
)
from hightide_broker.trace.lines import Told

EVENTS_KEPT = 20_000
MOVES_KEPT = 100_000
"""Positions of replicas, however many of them an event tells at once."""
FIRST_EVENTS = 100
FIRST_OF_TOPIC = 300
"""It may have many partitions, and a page shows one."""
Learned = tuple[int, Told]
"""An event with its number: how many were learned before it."""


class History:
    """The newest of what nodes told, in the order in which it was learned."""

    def __init__(self) -> None:
        self.count = 0
        """Of all that was ever learned."""
        self._events: deque[Learned] = deque(maxlen=EVENTS_KEPT)
        self._positions: deque[Learned] = deque()
        self._moves = 0

    def learn(self, told: Iterable[Told]) -> None:
        """Nodes told this."""
        for each in told:
            if isinstance(each.what, WatermarksMoved):
                self._moves += len(each.what.replicas)
                self._positions.append((self.count, each))
            else:
                self._events.append((self.count, each))
            self.count += 1
        while self._moves > MOVES_KEPT:
            _, oldest = self._positions.popleft()
            assert isinstance(oldest.what, WatermarksMoved)
            self._moves -= len(oldest.what.replicas)

    def everything(self) -> Iterator[Told]:
        """Events and positions."""
        return map(itemgetter(1), merge(self._events, self._positions, key=itemgetter(0)))

    def events(self) -> Iterator[Told]:
        """All but positions."""
        return map(itemgetter(1), self._events)

    def since(self, number: int, most: int) -> list[Learned]:
        """Events that were learned from a number on; the newest `most` of them."""
        return self._newest(most, lambda _: True, since=number)

    def to_begin_with(self, topic: str) -> list[Learned]:
        """What a page shows that is opened: the newest events, and also if much else happened
        since, those of the quorum, and of a topic."""
        found = dict(self._newest(FIRST_EVENTS, lambda _: True))
        found |= self._newest(FIRST_EVENTS, _is_of_quorum)
        if topic:
            found |= self._newest(FIRST_OF_TOPIC, lambda what: getattr(what, "topic", "") == topic)
        return sorted(found.items(), key=itemgetter(0))

    def _newest(
        self, most: int, is_wanted: Callable[[Event], bool], *, since: int = 0
    ) -> list[Learned]:
        found: list[Learned] = []
        for number, told in reversed(self._events):
            if number < since or len(found) >= most:
                break
            if is_wanted(told.what):
                found.append((number, told))
        return found[::-1]


def _is_of_quorum(what: Event) -> bool:
    return isinstance(what, QuorumRole | QuorumVote | VotersChanged | QuorumTruncated)
