"""What the tests of the trace share: a sample of every event, and words for what was told.

No test lives here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

import msgspec
from brokers import DATA

from hightide_broker.simulation.disk import SimDisk
from hightide_broker.trace.events import (
    AnyEvent,
    Event,
    FollowerBegan,
    LeaderBegan,
    NodeStopped,
    Offsets,
    PartitionChanged,
    QuorumRole,
)
from hightide_broker.trace.lines import Told, read_lines
from hightide_broker.trace.ring import EVENTS, Place, read_piece

KINDS_OF_EVENTS: tuple[type[Event], ...] = get_args(AnyEvent)
_VALUES: dict[Any, Any] = {
    str: "some",
    int: 7,
    bool: True,
    tuple[int, ...]: (1, 2),
    tuple[str, ...]: ("broker", "controller"),
    tuple[Offsets, ...]: (Offsets("t", 0, 1, 2, 3, 4, 5),),
}


def sample(kind: type[Event]) -> Event:
    """An event with a value in every field that no default has."""
    fields = msgspec.structs.fields(kind)
    return kind(**{field.encode_name: _VALUES[field.type] for field in fields})


def told(ms: int, node: int, number: int, what: Event) -> Told:
    return Told(ms=ms, node=node, number=number, what=what)  # type: ignore[arg-type]


STOPPED = NodeStopped(is_clean=True)
"""An event that nothing rests on."""


def elected(epoch: int, leader: int, before: int = -1, **facts: Any) -> PartitionChanged:
    """The controller made a leader of t-0."""
    known = {"offset": epoch, "topic": "t", "partition": 0, "isr": (leader,), **facts}
    return PartitionChanged(leader_epoch=epoch, leader=leader, leader_before=before, **known)


def leads(epoch: int, **facts: Any) -> LeaderBegan:
    known = {"topic": "t", "partition": 0, "log_end": 5, "high_watermark": 4, "isr": (1, 2)}
    return LeaderBegan(leader_epoch=epoch, **{**known, **facts})


def follows(epoch: int, leader: int = 1, **facts: Any) -> FollowerBegan:
    known = {"topic": "t", "partition": 0, "log_end": 7, "last_epoch": 0, "high_watermark": 3}
    return FollowerBegan(leader_epoch=epoch, leader=leader, **{**known, **facts})


def role(name: str, epoch: int, leader: int = -1) -> QuorumRole:
    return QuorumRole(role=name, epoch=epoch, leader=leader)


def kept(disk: SimDisk, kind: str = EVENTS) -> list[Told]:
    """All that a node's files say."""
    return [*read_lines(pieces(disk, f"{DATA}/trace", kind))]


def pieces(disk: SimDisk, directory: str, kind: str) -> Iterator[bytes]:
    """All lines, read piece by piece."""
    place = Place()
    while True:
        data, place = read_piece(disk, directory, kind, place)
        if not data:
            return
        yield from data.splitlines()


def of_kind(events: Iterable[Any], *kinds: type[Event]) -> list[Any]:
    """Those of these kinds, without who told them when."""
    whats = [each.what if isinstance(each, Told) else each for each in events]
    return [what for what in whats if isinstance(what, kinds)]
