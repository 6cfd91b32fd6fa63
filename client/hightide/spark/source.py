"""The readers that Spark drives: planning on the driver, reading on the executors.

What Spark 4.3 does with a Python source shapes this room: `initialOffset` is not persisted and is
called more than once; positions are compared as text; `latestOffset` is polled without pause; the
reader is pickled, so no socket may be kept on it. A plan ends at the high watermarks: only
committed records are ever planned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from hightide.errors import UsageError
from hightide.messages import EARLIEST, LATEST
from hightide.spark.client import BlockingClient, client_for
from hightide.spark.fetch import OffsetRange, read_range
from hightide.spark.offsets import (
    DataLoss,
    Json,
    Place,
    Position,
    advanced,
    no_further_back,
    prorate,
)
from hightide.spark.options import Offsets, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("hightide.spark")

IDLE_WAIT_S = 0.5
"""How long `latestOffset` waits for news: Spark would ask a hundred times a second."""


@dataclass
class RangePartition(InputPartition):
    """One task's work."""

    wanted: OffsetRange


class _Planner:
    """What both readers do on the driver: look at the cluster, resolve offsets."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    @property
    def client(self) -> BlockingClient:
        return client_for(self.options.bootstrap)

    def refresh(self) -> dict[str, str]:
        """Look at the topics again; their ids."""
        self.client.refresh(self.options.topics, timeout_s=self.options.look_up_timeout_s)
        return {topic: self.client.topics[topic].topic_id for topic in self.options.topics}

    def partitions(self) -> list[tuple[str, int]]:
        """Every partition of the topics, as of the last refresh."""
        return [
            (topic, p.partition)
            for topic in sorted(self.options.topics)
            for p in self.client.topics[topic].partitions
        ]

    def place(self, where: tuple[str, int], timestamp: int) -> Place:
        """Where a partition begins (EARLIEST) or ends (LATEST), and its leader epoch."""
        found = self.client.offset(*where, timestamp, timeout_s=self.options.look_up_timeout_s)
        return Place(found.offset, found.leader_epoch)

    def heads(self) -> Position:
        """The high watermarks now."""
        ids = self.refresh()
        return Position({where: self.place(where, LATEST) for where in self.partitions()}, ids)

    def resolve(self, wanted: int | Offsets, name: str) -> Position:
        """Offsets an option asked for, as places."""
        ids = self.refresh()
        places = {}
        for where in self.partitions():
            topic, partition = where
            offset = wanted if isinstance(wanted, int) else wanted[topic].get(partition)
            if offset is None:
                raise UsageError(
                    f"{name} says nothing about {topic}-{partition}: name every partition"
                )
            places[where] = self.place(where, offset) if offset < 0 else Place(offset, -1)
        if not isinstance(wanted, int):
            named = {(topic, number) for topic, numbers in wanted.items() for number in numbers}
            if unknown := sorted(named - set(places)):
                raise UsageError(
                    f"{name} names {unknown[0][0]}-{unknown[0][1]}, which does not exist"
                )
        return Position(places, ids)

    def ranges(self, start: Position, end: Position) -> list[OffsetRange]:
        """What lies between two positions; partitions that `start` does not know begin at their
        start."""
        ranges = []
        for where, place in sorted(end.places.items()):
            topic, partition = where
            known = start.places.get(where)
            begin = known.offset if known is not None else self.place(where, EARLIEST).offset
            if begin < place.offset:
                ranges.append(
                    OffsetRange(topic, end.topic_ids[topic], partition, begin, place.offset)
                )
        return ranges

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """An executor's part."""
        return read_range(
            self.options.bootstrap,
            partition.wanted,
            include_headers=self.options.include_headers,
            fail_on_data_loss=self.options.fail_on_data_loss,
            timeout_s=self.options.fetch_timeout_s,
        )


class HightideReader(DataSourceReader):
    """A batch query: from startingOffsets to endingOffsets, as of now."""

    def __init__(self, options: SourceOptions) -> None:
        self._planner = _Planner(options)

    def partitions(self) -> list[InputPartition]:
        """One task for each partition that has anything to read."""
        planner = self._planner
        start = planner.resolve(planner.options.starting, "startingOffsets")
        end = planner.resolve(planner.options.ending, "endingOffsets")
        self._check_range(start, end)
        ranges: list[InputPartition] = [RangePartition(r) for r in planner.ranges(start, end)]
        # Spark wants at least one task, also for nothing.
        nothing = OffsetRange(planner.options.topics[0], "", 0, 0, 0)
        return ranges or [RangePartition(nothing)]

    def _check_range(self, start: Position, end: Position) -> None:
        """Refuse offsets that the log does not hold, when they were given as numbers."""
        planner = self._planner
        for where, place in end.places.items():
            if place.leader_epoch < 0:
                head = planner.place(where, LATEST)
                if place.offset > head.offset:
                    raise UsageError(
                        f"endingOffsets of {where[0]}-{where[1]} is {place.offset}, "
                        f"the high watermark is {head.offset}"
                    )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        assert isinstance(partition, RangePartition)
        return self._planner.read(partition)


class HightideStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query; one instance on the driver for each run, others unpickled on executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._planner = _Planner(options)
        self._initial: Json | None = None
        self._pinned = False
        self._checked = False
        self._target: Position | None = None
        self._latest: Json | None = None

    # -- driver ----------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, if it is set."""
        limit = self._planner.options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def initialOffset(self) -> Json:
        """Where a new query starts; the same answer however often Spark asks."""
        if self._initial is None:
            options = self._planner.options
            self._initial = self._planner.resolve(options.starting, "startingOffsets").to_json()
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where an AvailableNow query ends: what is committed now."""
        self._target = self._planner.heads()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Where the next micro-batch ends; `start` itself if there is nothing new."""
        if self._must_pin(start):
            # Spark does not keep the initial offset. An empty first batch makes it keep where a
            # query that starts at "latest" began, also if that batch never commits.
            self._pinned = True
            return start
        begin = Position.from_json(start)
        self._check_start(begin)
        begin = self._check_topics(begin)
        end = self._target if self._target is not None else self._heads_or_wait(begin)
        self._latest = end.to_json()
        end = no_further_back(begin, end)
        if not advanced(begin, end):
            return start
        if isinstance(limit, ReadMaxRows):
            fresh = [where for where in end.places if where not in begin.places]
            first = {where: self._planner.place(where, EARLIEST).offset for where in fresh}
            end = prorate(begin, end, limit.max_rows, first)
        return end.to_json()

    def _must_pin(self, start: Json) -> bool:
        starting = self._planner.options.starting
        fixed = starting == EARLIEST
        return (
            not self._pinned and not fixed and self._initial is not None and start == self._initial
        )

    def _heads_or_wait(self, begin: Position) -> Position:
        """The high watermarks; waits a little for news if there is none."""
        heads = self._planner.heads()
        if not advanced(begin, heads):
            ends = {where: place.offset for where, place in heads.places.items()}
            self._planner.client.wait_for_more(ends, IDLE_WAIT_S)
            heads = self._planner.heads()
        return heads

    def _check_topics(self, begin: Position) -> Position:
        """Topics that were made again since are a loss; without them if that is allowed."""
        ids = self._planner.refresh()
        again = begin.made_again(ids)
        for topic in again:
            self._lost(
                f"{topic}: the topic was deleted and made again "
                f"(id {begin.topic_ids[topic]} became {ids[topic]})"
            )
        return begin.without(again)

    def _check_start(self, begin: Position) -> None:
        """Once for each run: is what the checkpoint says still what the cluster holds?"""
        if self._checked:
            return
        ids = self._planner.refresh()
        again = begin.made_again(ids)
        for (topic, partition), place in begin.places.items():
            why = None if topic in again else self._loss(topic, partition, place, ids)
            if why is not None:
                self._lost(
                    f"{topic}-{partition}: the query goes on at offset {place.offset}, but {why}"
                )
        self._checked = True

    def _lost(self, what: str) -> None:
        """Raise `DataLoss`, or say it in the log if that is allowed."""
        if self._planner.options.fail_on_data_loss:
            raise DataLoss(f"{what}. To go on without what is lost set failOnDataLoss=false")
        log.warning("%s; going on without what is lost", what)

    def _loss(self, topic: str, partition: int, place: Place, ids: dict[str, str]) -> str | None:
        """What is wrong with a place of the checkpoint; None if it is fine."""
        if topic not in ids:
            return "the topic is no longer subscribed"
        first = self._planner.place((topic, partition), EARLIEST).offset
        if place.offset < first:
            return f"the log begins at offset {first}: records were deleted"
        head = self._planner.place((topic, partition), LATEST).offset
        if place.offset > head:
            return f"the high watermark is {head}: the log was cut"
        if place.leader_epoch >= 0:
            timeout_s = self._planner.options.look_up_timeout_s
            end = self._planner.client.epoch_end(
                topic, partition, place.leader_epoch, timeout_s=timeout_s
            )
            if 0 <= end.end_offset < place.offset:
                return (
                    f"leader epoch {place.leader_epoch} ends at {end.end_offset}: the log was cut"
                )
        return None

    def reportLatestOffset(self) -> Json | None:
        """The high watermarks as last seen, for the query's progress."""
        return self._latest

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """One task for each partition that has anything to read."""
        begin, until = Position.from_json(start), Position.from_json(end)
        self._planner.refresh()
        begin = begin.without(begin.made_again(until.topic_ids))
        return [RangePartition(wanted) for wanted in self._planner.ranges(begin, until)]

    def commit(self, end: Json) -> None:
        """Nothing to do: the checkpoint is the truth."""

    # -- executor --------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """On an executor."""
        assert isinstance(partition, RangePartition)
        return self._planner.read(partition)
