"""What happened to a partition, with where its replicas stood after each event. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hightide_broker.trace.events import (
    Event,
    FollowerBegan,
    GroupChanged,
    LeaderBegan,
    OfPartition,
    PartitionChanged,
    QuorumTruncated,
    TopicChanged,
    Truncated,
    WatermarksMoved,
)
from hightide_broker.trace.lanes import Lanes, PartitionLanes, badge_of
from hightide_broker.trace.lines import Told
from hightide_broker.trace.order import in_order
from hightide_broker.trace.text import sentence

FRAMES_MAX = 5_000
"""More than anybody steps through; the newest are kept."""


def event_view(told: Told) -> dict[str, Any]:
    """An event, as a page lists it."""
    what = told.what
    return {
        "ms": told.ms,
        "node": told.node,
        "number": told.number,
        "kind": type(what).__struct_config__.tag,
        "topic": getattr(what, "topic", ""),
        "partition": getattr(what, "partition", -1),
        "text": sentence(told.node, what),
    }


def frames(events: Iterable[Told], topic: str, partition: int) -> list[dict[str, Any]]:
    """The story of one partition: each event that concerns it, and its lanes after that. `starts`:
    where each leader epoch began, as far as it is known by then. Events may come as they were
    learned: a broker that was away tells late."""
    lanes, starts, last_epochs = Lanes(), dict[int, int](), dict[int, int]()
    cuts: list[Told] = []
    found: list[dict[str, Any]] = []
    for told in in_order(events):
        lanes.take(told)
        if not concerns(told.what, topic, partition):
            continue
        if _is_end_of(told.what, topic):
            starts, last_epochs, cuts = {}, {}, []
        if isinstance(told.what, LeaderBegan):
            starts[told.what.leader_epoch] = told.what.log_end
        told = _of_one(told, topic, partition)
        if (epoch := _last_epoch(told.what)) is not None:
            last_epochs[told.node] = epoch
        if isinstance(told.what, Truncated):
            cuts.append(told)
        state = lanes.partitions.get((topic, partition))
        if state is not None:
            cut = notches(cuts, topic, {partition: state.leader_epoch})
            shown = _state(state, last_epochs, {node: place for (_, node), place in cut.items()})
            found.append({**event_view(told), **shown, "starts": sorted(starts.items())})
    return found[-FRAMES_MAX:]


def _last_epoch(what: Event) -> int | None:
    """The epoch of a replica's last record, where an event tells it. A follower may have a tail of
    an old epoch that its new leader does not have."""
    match what:
        case LeaderBegan():
            return what.leader_epoch
        case FollowerBegan():
            return what.last_epoch
        case Truncated():
            return what.epoch_after
        case WatermarksMoved(replicas=(ours,)):
            return ours.leader_epoch
    return None


def _of_one(told: Told, topic: str, partition: int) -> Told:
    """The event without what it says of other partitions."""
    what = told.what
    if not isinstance(what, WatermarksMoved):
        return told
    ours = [each for each in what.replicas if (each.topic, each.partition) == (topic, partition)]
    return msgspec.structs.replace(told, what=WatermarksMoved(replicas=tuple(ours)))


def concerns(what: Event, topic: str, partition: int) -> bool:
    """Whether an event is about a partition, or about the nodes that it lies on."""
    match what:
        case OfPartition() | PartitionChanged():
            return (what.topic, what.partition) == (topic, partition)
        case WatermarksMoved():
            return any((each.topic, each.partition) == (topic, partition) for each in what.replicas)
        case TopicChanged():
            return what.topic == topic
        case GroupChanged():
            return False
    return True


def _is_end_of(what: Event, topic: str) -> bool:
    """Whether a topic is deleted: one that gets its name begins again, with its epochs."""
    return isinstance(what, TopicChanged) and (what.topic, what.state) == (topic, "deleted")


def epoch_starts(events: Iterable[Told], topic: str) -> dict[int, list[tuple[int, int]]]:
    """By partition of a topic: where leader epochs began, (epoch, offset) in order."""
    found: dict[int, dict[int, int]] = {}
    for told in events:
        what = told.what
        if _is_end_of(what, topic):
            found = {}
        if isinstance(what, LeaderBegan) and what.topic == topic:
            found.setdefault(what.partition, {})[what.leader_epoch] = what.log_end
    return {partition: sorted(starts.items()) for partition, starts in found.items()}


def notches(
    events: Iterable[Told], topic: str, epochs: Mapping[int, int]
) -> dict[tuple[int, int], list[int]]:
    """By partition of a topic, and node: from where to where a log was cut last, as long as the
    leader epoch lasts in which it was (`epochs`: today's, by partition)."""
    found: dict[tuple[int, int], list[int]] = {}
    for told in events:
        what = told.what
        if _is_end_of(what, topic):
            found = {}
        if not isinstance(what, Truncated) or what.topic != topic:
            continue
        is_shorter = what.after < what.before  # else it was given up, and begins again above
        if is_shorter and what.leader_epoch == epochs.get(what.partition):
            found[what.partition, told.node] = [what.before, what.after]
    return found


def quorum_notches(events: Iterable[Told], epoch: int) -> dict[int, list[int]]:
    """By node: from where to where its metadata log was cut last in today's epoch."""
    return {
        told.node: [what.before, what.after]
        for told in events
        if isinstance(what := told.what, QuorumTruncated) and what.epoch == epoch
    }


def _state(
    state: PartitionLanes, last_epochs: Mapping[int, int], cut: Mapping[int, list[int]]
) -> dict[str, Any]:
    return {
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "elr": list(state.elr),
        "lanes": [
            {
                "broker": broker,
                "leads": broker == state.leader,
                "badge": badge_of(broker, state.isr, state.elr),
                "stale": lane.role == "down",
                "error": "offline" if lane.role == "offline" else "",
                "log_start": lane.log_start,
                "high_watermark": lane.high_watermark,
                "log_end": lane.log_end,
                "synced": lane.synced_end,
                "epoch": lane.leader_epoch,
                "last_epoch": last_epochs.get(broker, lane.leader_epoch),
                "cut": cut.get(broker, []),
            }
            for broker, lane in sorted(state.lanes.items())
        ],
    }
