"""The events of several nodes in one order. Pure.

Clocks differ, so time alone tells lies: a follower must not be seen to cut its log before its
leader was elected. What came after what is known of the epochs: a node's own events are in their
order, and what happens in an epoch happens after whoever made the epoch wrote it down. Everything
else goes by the clocks; also which beginning was meant, if an epoch has several: a topic that was
deleted and made again has its epochs again.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator

from hightide_broker.trace.events import (
    OfPartition,
    PartitionChanged,
    QuorumRole,
    QuorumTruncated,
)
from hightide_broker.trace.lines import Told

_Epoch = tuple[str, int, int]
"""A partition and its leader epoch; the quorum is a topic without a name."""


def begun_by(told: Told) -> _Epoch | None:
    """The epoch that an event began; None for other kinds."""
    what = told.what
    if isinstance(what, PartitionChanged) and what.leader != what.leader_before:
        return what.topic, what.partition, what.leader_epoch
    if isinstance(what, QuorumRole) and what.role == "leader":
        return "", -1, what.epoch
    return None


def rests_on(told: Told) -> _Epoch | None:
    """The epoch that must have begun before an event; None if any order will do."""
    what = told.what
    if isinstance(what, OfPartition):
        return what.topic, what.partition, what.leader_epoch
    if isinstance(what, QuorumRole | QuorumTruncated) and what.leader not in (-1, told.node):
        return "", -1, what.epoch
    return None


def in_order(events: Iterable[Told]) -> list[Told]:
    """All events, each once, every one after what it rests on, else by time. Where what is told
    contradicts itself, time decides."""
    found = _by_node(events)
    after: dict[int, list[int]] = defaultdict(list)
    waits: dict[int, int] = defaultdict(int)
    for first, second in _arrows(found):
        after[first].append(second)
        waits[second] += 1
    return [found[at] for at in _sorted(found, after, waits)]


def _by_node(events: Iterable[Told]) -> list[Told]:
    """Node by node, in the order in which each told them."""
    return sorted(dict.fromkeys(events), key=lambda told: (told.node, told.number, told.ms))


def _arrows(events: list[Told]) -> Iterator[tuple[int, int]]:
    """What came before what, as places."""
    begins: dict[_Epoch, list[int]] = defaultdict(list)
    for at, told in enumerate(events):
        if epoch := begun_by(told):
            begins[epoch].append(at)
    for second, told in enumerate(events):
        if second and events[second - 1].node == told.node:
            yield second - 1, second
        epoch = rests_on(told)
        if epoch is not None and epoch in begins:
            first = _meant(begins[epoch], events, told.ms)
            if events[first].node != told.node:
                yield first, second


def _meant(begins: list[int], events: list[Told], ms: int) -> int:
    """The last one that was there by then; none was, by the clocks: the first."""

    def ms_of(at: int) -> int:
        return events[at].ms

    earlier = [at for at in begins if ms_of(at) <= ms]
    return max(earlier or [min(begins, key=ms_of)], key=ms_of)


def _sorted(events: list[Told], after: dict[int, list[int]], waits: dict[int, int]) -> list[int]:
    def key(at: int) -> tuple[int, int, int, int]:
        return events[at].ms, events[at].node, events[at].number, at

    ready = [key(at) for at in range(len(events)) if not waits.get(at)]
    heapq.heapify(ready)
    found: list[int] = []
    left = dict.fromkeys(range(len(events)))
    while left:
        if not ready:  # a circle: clocks or files were put back
            ready = [min(key(at) for at in left)]
        at = heapq.heappop(ready)[-1]
        if at not in left:
            continue
        del left[at]
        found.append(at)
        for then in after[at]:
            waits[then] -= 1
            if waits[then] == 0 and then in left:
                heapq.heappush(ready, key(then))
    return found
