"""Where the replicas of partitions stood, event by event: a lane for each. Pure.

What is shown is what the nodes told, so a lane may be a second old.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from hightide_broker.trace.events import (
    FollowerBegan,
    LeaderBegan,
    NodeStarted,
    NodeStopped,
    PartitionChanged,
    RepairEnded,
    ReplicaOffline,
    TopicChanged,
    Truncated,
    WatermarksMoved,
)
from hightide_broker.trace.lines import Told
from hightide_broker.trace.text import ids, who

T = TypeVar("T")


@dataclass(slots=True)
class Lane:
    """One replica, as its broker told it; -1: not told yet."""

    role: str = ""
    """`leader`, `follower`, `offline`, `down`, or empty: not known."""
    leader_epoch: int = -1
    log_start: int = -1
    high_watermark: int = -1
    log_end: int = -1
    synced_end: int = -1


@dataclass(slots=True)
class PartitionLanes:
    """One partition: what the controller decided last, and its replicas."""

    leader: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    lanes: dict[int, Lane] = field(default_factory=dict)
    """By broker."""

    def lane(self, broker: int) -> Lane:
        """A replica's, made if there is none."""
        return self.lanes.setdefault(broker, Lane())


class Lanes:
    """All partitions that were told of."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], PartitionLanes] = {}

    def take(self, told: Told) -> None:
        """Follow one event."""
        node, what = told.node, told.what
        match what:
            case PartitionChanged():
                self._decided(what)
            case TopicChanged(state="deleted"):
                gone = [key for key in self.partitions if key[0] == what.topic]
                for key in gone:
                    del self.partitions[key]
            case LeaderBegan() | FollowerBegan():
                lane = self._lane(what.topic, what.partition, node)
                lane.role = "leader" if isinstance(what, LeaderBegan) else "follower"
                lane.leader_epoch = what.leader_epoch
                lane.log_end, lane.high_watermark = what.log_end, what.high_watermark
                if isinstance(what, LeaderBegan):
                    self._led(node, what)
            case Truncated():
                lane = self._lane(what.topic, what.partition, node)
                lane.log_end = what.after
                lane.high_watermark = min(lane.high_watermark, what.after)
            case ReplicaOffline():
                self._lane(what.topic, what.partition, node).role = "offline"
            case RepairEnded():
                self._lane(what.topic, what.partition, node).log_end = what.log_end
            case WatermarksMoved():
                self._moved(node, what)
            case NodeStarted() | NodeStopped():
                for lane in self._lanes_of(node):
                    lane.role = "down"

    def _decided(self, what: PartitionChanged) -> None:
        partition = self.of(what.topic, what.partition)
        partition.leader, partition.leader_epoch = what.leader, what.leader_epoch
        partition.isr, partition.elr = what.isr, what.elr
        for broker in (*what.isr, *what.elr):
            partition.lane(broker)

    def _led(self, node: int, what: LeaderBegan) -> None:
        """A leader knows what was decided; the controllers may tell nobody."""
        partition = self.of(what.topic, what.partition)
        if what.leader_epoch > partition.leader_epoch:
            partition.leader, partition.leader_epoch = node, what.leader_epoch
            partition.isr, partition.elr = what.isr, ()

    def _moved(self, node: int, what: WatermarksMoved) -> None:
        for at in what.replicas:
            lane = self._lane(at.topic, at.partition, node)
            lane.leader_epoch, lane.log_start = at.leader_epoch, at.log_start
            lane.high_watermark, lane.log_end = at.high_watermark, at.log_end
            lane.synced_end = at.synced_end

    def of(self, topic: str, partition: int) -> PartitionLanes:
        """A partition, made if there is none."""
        return self.partitions.setdefault((topic, partition), PartitionLanes())

    def _lane(self, topic: str, partition: int, broker: int) -> Lane:
        return self.of(topic, partition).lane(broker)

    def _lanes_of(self, broker: int) -> Iterator[Lane]:
        for partition in self.partitions.values():
            if broker in partition.lanes:
                yield partition.lanes[broker]


def badge_of(broker: T, isr: Container[T], elr: Container[T] = ()) -> str:
    """`ISR`, `ELR`, or `out`: of neither."""
    return "ISR" if broker in isr else "ELR" if broker in elr else "out"


def show(name: str, partition: PartitionLanes) -> list[str]:
    """A partition as lines: who leads, who is in sync, and a line a replica."""
    elr = f", ELR {ids(partition.elr)}" if partition.elr else ""
    isr, leader = ids(partition.isr), who(partition.leader)
    lines = [f"{name}: {leader} leads in epoch {partition.leader_epoch}, ISR {isr}{elr}"]
    for broker, lane in sorted(partition.lanes.items()):
        crown = "*" if broker == partition.leader else " "
        known = "?" if lane.log_end < 0 else f"committed {lane.high_watermark} of {lane.log_end}"
        badge = badge_of(broker, partition.isr, partition.elr)
        lines.append(f"  {crown} broker {broker}  {badge}  {lane.role or '-':8}  {known}")
    return lines
