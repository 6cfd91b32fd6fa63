"""A stream's position as JSON in Spark's checkpoint, and the arithmetic on it. Pure.

    {"v": 1, "topics": {"flights": {"id": "…", "partitions": {"0": [1500, 2], "1": [1300, 2]}}}}

For each partition the *next* offset and the leader epoch it was seen in; for each topic its id, so
that a topic that was deleted and made again is noticed. Spark keeps where a batch ends before it
plans it, but not where the first one begins, nor where a partition does that is new: so the end has
these `"starts"`, too, and a batch that is run again has the same rows. Spark compares positions as
text: topics are sorted by name and partitions by number, always.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hightide.protocol.errors import HightideError
from hightide.protocol.topic_partition import TopicPartition

log = logging.getLogger("hightide.spark")

VERSION = 1
Json = dict[str, Any]


class DataLoss(HightideError):
    """Records that a query should have read are gone; says which range and why."""


def lost(what: str, *, fail: bool, remedy: str = "go on without what is lost") -> None:
    """Raise `DataLoss`, or say it in the log: `failOnDataLoss` decides."""
    if fail:
        raise DataLoss(f"{what}. To {remedy} set failOnDataLoss=false")
    log.warning("%s; going on without what is lost", what)


class Place(NamedTuple):
    """How far one partition is."""

    offset: int
    leader_epoch: int


class Position(NamedTuple):
    """How far a query is: places by (topic, partition), ids by topic."""

    places: Mapping[TopicPartition, Place]
    topic_ids: Mapping[str, str]
    starts: Mapping[TopicPartition, int] = MappingProxyType({})
    """Where the batch that ends here begins, of partitions of which no earlier end tells it."""

    def to_json(self) -> Json:
        """The form that Spark keeps."""
        topics: Json = {}
        for (topic, partition), place in sorted(self.places.items()):
            entry = topics.setdefault(topic, {"id": self.topic_ids[topic], "partitions": {}})
            entry["partitions"][str(partition)] = [place.offset, place.leader_epoch]
            if (start := self.starts.get(TopicPartition(topic, partition))) is not None:
                entry.setdefault("starts", {})[str(partition)] = start
        return {"v": VERSION, "topics": topics}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Position:
        """What `to_json` gave; raises `DataLoss` for what it cannot have given."""
        if data.get("v") != VERSION:
            raise DataLoss(f"checkpoint offsets have version {data.get('v')}, expected {VERSION}")
        places: dict[TopicPartition, Place] = {}
        ids: dict[str, str] = {}
        starts: dict[TopicPartition, int] = {}
        try:
            for topic, entry in data["topics"].items():
                ids[topic] = entry["id"]
                for partition, (offset, epoch) in entry["partitions"].items():
                    places[TopicPartition(topic, int(partition))] = Place(offset, epoch)
                for partition, offset in entry.get("starts", {}).items():
                    starts[TopicPartition(topic, int(partition))] = offset
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataLoss(f"checkpoint offsets are damaged: {error!r} in {data!r}") from error
        return cls(places, ids, starts)

    def made_again(self, ids: Mapping[str, str]) -> list[str]:
        """The topics that were deleted and made again since: their ids are others now."""
        return [t for t, topic_id in self.topic_ids.items() if ids.get(t, topic_id) != topic_id]

    def without(self, topics: Collection[str]) -> Position:
        """Nothing known of these topics: they begin at their start."""
        return Position(
            {tp: place for tp, place in self.places.items() if tp[0] not in topics},
            {topic: topic_id for topic, topic_id in self.topic_ids.items() if topic not in topics},
        )

    def at(self, places: Mapping[TopicPartition, Place]) -> Position:
        """The same but for these places."""
        return self._replace(places={**self.places, **places})


def advanced(start: Position, end: Position) -> bool:
    """Whether there is anything between two positions, or a partition is new."""
    for tp, place in end.places.items():
        before = start.places.get(tp)
        if before is None or place.offset > before.offset:
            return True
    return False


def backlog(start: Position, end: Position, first: Mapping[TopicPartition, int]) -> int:
    """How many records lie between two positions; `first` is where new partitions begin."""
    return sum(
        max(place.offset - begin_of(start, tp, first), 0) for tp, place in end.places.items()
    )


def begin_of(start: Position, tp: TopicPartition, first: Mapping[TopicPartition, int]) -> int:
    """Where a partition is read from: a new one from its first record."""
    known = start.places.get(tp)
    return first.get(tp, 0) if known is None else known.offset


_NOWHERE = Place(-1, -1)


def no_further_back(start: Position, end: Position) -> Position:
    """`end`, but nowhere before `start`: a leader of old that does not know yet says less, and a
    broker of old knows of fewer partitions, or not of a topic. One that was made again since stays
    where `start` is: who looks for losses next says so."""
    ids = {**end.topic_ids, **{topic: start.topic_ids[topic] for topic, _ in start.places}}
    places = {tp: at for tp, at in end.places.items() if end.topic_ids[tp[0]] == ids[tp[0]]}
    for tp, before in start.places.items():
        if places.get(tp, _NOWHERE).offset < before.offset:
            places[tp] = before
    return end._replace(places=places, topic_ids=ids)


def prorate(
    start: Position, end: Position, limit: int, first: Mapping[TopicPartition, int]
) -> Position:
    """`end`, cut to about `limit` records in all, each partition by its share of the backlog.

    At least one record of every partition that has any. `first` is where new partitions begin.
    """
    begins = {tp: begin_of(start, tp, first) for tp in end.places}
    waiting = {tp: place.offset - begins[tp] for tp, place in end.places.items()}
    total = backlog(start, end, first)
    if total <= limit:
        return end
    places = {}
    for tp, place in end.places.items():
        share = max(1, limit * waiting[tp] // total) if waiting[tp] > 0 else 0
        places[tp] = Place(min(begins[tp] + share, place.offset), place.leader_epoch)
    return end._replace(places=places)
