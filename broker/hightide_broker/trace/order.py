"""The events of several nodes in one order. Pure.

Clocks differ, so time alone tells lies: a follower must not be seen to cut its log before its
leader was elected. What came after what is known of the epochs: a node's own events are in their
order, and what happens in an epoch happens after whoever made the epoch wrote it down. Everything
else goes by the clocks.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from hightide_broker.trace.events import (
    OfPartition,
    PartitionChanged,
    QuorumRole,
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
    if isinstance(what, QuorumRole) and what.leader not in (-1, told.node):
        return "", -1, what.epoch
    return None


def in_order(events: Iterable[Told]) -> list[Told]:
    """All events, each once, every one after what it rests on, else by time. Where what is told
    contradicts itself, time decides."""
    lanes = _lanes(events)
    begins = {epoch: told for lane in lanes for told in lane if (epoch := begun_by(told))}
    after: dict[int, list[int]] = defaultdict(list)
    waits: dict[int, int] = {}
    all_of_them = [told for lane in lanes for told in lane]
    place = {(told.node, told.number): at for at, told in enumerate(all_of_them)}
    for before, then in _arrows(lanes, begins):
        first, second = place[before.node, before.number], place[then.node, then.number]
        after[first].append(second)
        waits[second] = waits.get(second, 0) + 1
    return [all_of_them[at] for at in _sorted(all_of_them, after, waits)]


def _lanes(events: Iterable[Told]) -> list[list[Told]]:
    """By node, in the order in which it told them."""
    by_node: dict[int, dict[int, Told]] = defaultdict(dict)
    for told in events:
        by_node[told.node].setdefault(told.number, told)
    return [[lane[number] for number in sorted(lane)] for _, lane in sorted(by_node.items())]


def _arrows(lanes: list[list[Told]], begins: dict[_Epoch, Told]) -> Iterator[tuple[Told, Told]]:
    """What came before what."""
    for lane in lanes:
        yield from pairwise(lane)
        for told in lane:
            epoch = rests_on(told)
            begin = begins.get(epoch) if epoch else None
            if begin is not None and begin.node != told.node:
                yield begin, told


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
