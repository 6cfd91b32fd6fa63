"""The readers that Spark drives: planning on the driver, reading on the executors.

What Spark 4.3 does with a Python source shapes this room: `initialOffset` is not persisted and is
called more than once; positions are compared as text; `latestOffset` is polled without pause; the
reader is pickled, so no socket may be kept on it. A plan ends at the high watermarks: only
committed records are ever planned.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from hightide import group_messages as g
from hightide.errors import HightideError, UsageError
from hightide.messages import EARLIEST, LATEST
from hightide.spark.client import BlockingClient, client_for
from hightide.spark.fetch import OffsetRange, read_range
from hightide.spark.filters import Bounds, bounds_of
from hightide.spark.offsets import (
    DataLoss,
    Json,
    Place,
    Position,
    advanced,
    backlog,
    begin_of,
    no_further_back,
    prorate,
)
from hightide.spark.options import ByTime, Offsets, SourceOptions, Where
from hightide.spark.ranges import split

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("hightide.spark")

TELL_S = 2.0
"""How long a group is told how far the query is, as when its coordinator moves."""
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
        options, timeout_s = self.options, self.options.look_up_timeout_s
        self.client.refresh(None if options.pattern else options.topics, timeout_s=timeout_s)
        return {topic: self.client.topics[topic].topic_id for topic in self.topics()}

    def topics(self) -> list[str]:
        """What is subscribed to, as of the last refresh; a pattern matches no internal topic."""
        options = self.options
        if not options.pattern:
            return sorted(options.topics)
        pattern = re.compile(options.pattern)
        names = sorted(self.client.topics)
        return [name for name in names if pattern.fullmatch(name) and not name.startswith("__")]

    def partitions(self) -> list[tuple[str, int]]:
        """Every partition that is wanted, as of the last refresh."""
        found = [
            (topic, p.partition)
            for topic in self.topics()
            for p in self.client.topics[topic].partitions
            if self.options.reads(topic, p.partition)
        ]
        for topic, numbers in (self.options.assigned or {}).items():
            missing = sorted({*numbers} - {number for name, number in found if name == topic})
            if missing:
                raise UsageError(f"assign names {topic}-{missing[0]}, which does not exist")
        return found

    def place(self, where: tuple[str, int], timestamp: int) -> Place:
        """Where a partition begins (EARLIEST) or ends (LATEST), and its leader epoch."""
        found = self.client.offset(*where, timestamp, timeout_s=self.options.look_up_timeout_s)
        return Place(found.offset, found.leader_epoch)

    def places(self, timestamp: int) -> dict[tuple[str, int], Place]:
        """The same of every partition that is wanted, as of the last refresh."""
        found = self.client.offsets(
            self.partitions(), timestamp, timeout_s=self.options.look_up_timeout_s
        )
        return {where: Place(each.offset, each.leader_epoch) for where, each in found.items()}

    def heads(self) -> Position:
        """The high watermarks now."""
        ids = self.refresh()
        return Position(self.places(LATEST), ids)

    def resolve(self, wanted: Where, side: str) -> Position:
        """Where an option wants to begin (`starting`) or end (`ending`), as places."""
        ids = self.refresh()
        if isinstance(wanted, int):
            return Position(self.places(wanted), ids)
        places = {where: self._resolved(where, wanted, side) for where in self.partitions()}
        named = wanted.times if isinstance(wanted, ByTime) else wanted
        if isinstance(named, dict):
            every = {(topic, number) for topic, numbers in named.items() for number in numbers}
            if unknown := sorted(every - set(places)):
                where = f"{unknown[0][0]}-{unknown[0][1]}"
                raise UsageError(f"{_option(wanted, side)} names {where}, which is not read")
        return Position(places, ids)

    def _resolved(self, where: tuple[str, int], wanted: Offsets | ByTime, side: str) -> Place:
        if isinstance(wanted, ByTime):
            name = _option(wanted, side)
            time = wanted.time if wanted.times is None else _named(wanted.times, where, name)
            assert time is not None, "one of the two is given"
            found = self.place(where, time)
            if found.offset < 0 and not wanted.or_latest:
                raise UsageError(
                    f"{where[0]}-{where[1]} has no record of {time} ms or later; "
                    "startingOffsetsByTimestampStrategy=latest would begin at its end"
                )
            return found if found.offset >= 0 else self.place(where, LATEST)
        name = _option(wanted, side)
        offset = _named(wanted, where, name)
        return self.place(where, offset) if offset < 0 else Place(offset, -1)

    def starts(self, wheres: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The first offsets of partitions that nothing is known of yet."""
        found = self.client.offsets(wheres, EARLIEST, timeout_s=self.options.look_up_timeout_s)
        return {where: each.offset for where, each in found.items()}

    def ranges(
        self, start: Position, end: Position, bounds: Bounds | None = None
    ) -> list[OffsetRange]:
        """What lies between two positions and within `bounds`; partitions that `start` does not
        know begin at their start."""
        ranges = []
        first = self.starts([where for where in end.places if where not in start.places])
        for where, place in sorted(end.places.items()):
            topic, partition = where
            begin = begin_of(start, where, first)
            whole = OffsetRange(topic, end.topic_ids[topic], partition, begin, place.offset)
            if begin < place.offset and (left := self._within(whole, bounds)) is not None:
                ranges.append(left)
        options = self.options
        return split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )

    def _within(self, whole: OffsetRange, bounds: Bounds | None) -> OffsetRange | None:
        if bounds is None or not bounds.reads(whole.topic, whole.partition):
            return whole if bounds is None else None
        since = whole.start
        if bounds.since_ms >= 0:
            found = self.place((whole.topic, whole.partition), int(bounds.since_ms))
            since = found.offset if found.offset >= 0 else whole.end
        return bounds.cut(whole, since)

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """An executor's part."""
        return read_range(
            self.options.bootstrap,
            partition.wanted,
            include_headers=self.options.include_headers,
            include_leader_epoch=self.options.include_leader_epoch,
            fail_on_data_loss=self.options.fail_on_data_loss,
            timeout_s=self.options.fetch_timeout_s,
        )


def _option(wanted: Where, side: str) -> str:
    """The option that said it."""
    return f"{side}OffsetsByTimestamp" if isinstance(wanted, ByTime) else f"{side}Offsets"


def _named(offsets: Offsets, where: tuple[str, int], option: str) -> int:
    found = offsets.get(where[0], {}).get(where[1])
    if found is None:
        place = f"{where[0]}-{where[1]}"
        raise UsageError(f"{option} says nothing about {place}: name every partition")
    return found


class HightideReader(DataSourceReader):
    """A batch query: from startingOffsets to endingOffsets, as of now."""

    def __init__(self, options: SourceOptions) -> None:
        self._planner = _Planner(options)
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """One task for each partition that has anything to read."""
        planner = self._planner
        start = planner.resolve(planner.options.starting, "starting")
        end = planner.resolve(planner.options.ending, "ending")
        self._check_range(start, end)
        wanted = planner.ranges(start, end, self._bounds)
        ranges: list[InputPartition] = [RangePartition(each) for each in wanted]
        # Spark wants at least one task, also for nothing.
        nothing = OffsetRange("", "", 0, 0, 0)
        return ranges or [RangePartition(nothing)]

    def _check_range(self, start: Position, end: Position) -> None:
        """Refuse offsets that the log does not hold, when they were given as numbers."""
        planner = self._planner
        for where, place in end.places.items():
            if isinstance(planner.options.ending, dict) and place.leader_epoch < 0:
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


class FilteringReader(HightideReader):
    """A batch query that reads less, by what its WHERE says. Spark refuses such a reader unless
    `spark.sql.python.filterPushdown.enabled` is set, so it has an option: `pushDownFilters`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """All of them come back: Spark applies them to what was read."""
        self._bounds = bounds_of(filters)
        return filters


class HightideStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query; one instance on the driver for each run, others unpickled on executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._planner = _Planner(options)
        self._initial: Json | None = None
        self._pinned = False
        self._checked = False
        self._target: Position | None = None
        self._latest: Json | None = None
        self._triggered_at = float("-inf")
        self._told: Mapping[tuple[str, int], Place] = {}

    # -- driver ----------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, if it is set."""
        limit = self._planner.options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def initialOffset(self) -> Json:
        """Where a new query starts; the same answer however often Spark asks."""
        if self._initial is None:
            options = self._planner.options
            self._initial = self._planner.resolve(options.starting, "starting").to_json()
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
        self._tell_group(begin)
        self._check_start(begin)
        begin = self._check_topics(begin)
        end = self._target if self._target is not None else self._heads_or_wait(begin)
        self._latest = end.to_json()
        end = no_further_back(begin, end)
        if not advanced(begin, end):
            return start
        first = self._planner.starts([where for where in end.places if where not in begin.places])
        if self._waits_for_more(backlog(begin, end, first)):
            return start
        if isinstance(limit, ReadMaxRows):
            end = prorate(begin, end, limit.max_rows, first)
        return end.to_json()

    def _must_pin(self, start: Json) -> bool:
        starting = self._planner.options.starting
        fixed = starting == EARLIEST or (isinstance(starting, ByTime) and not starting.or_latest)
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

    def _waits_for_more(self, waiting: int) -> bool:
        """Whether a batch would be too small yet; not for longer than maxTriggerDelay, and never
        when the query ends at what is there now."""
        options = self._planner.options
        if options.min_offsets_per_trigger is None or self._target is not None:
            return False
        now = time.monotonic()
        is_due = now - self._triggered_at >= options.max_trigger_delay_s
        if not is_due and waiting < options.min_offsets_per_trigger:
            time.sleep(IDLE_WAIT_S)
            return True
        self._triggered_at = now
        return False

    def _tell_group(self, done: Position) -> None:
        """Commit what finished batches have read, for those who look at the group; the checkpoint
        is the truth, so that a refusal is only told."""
        options = self._planner.options
        if not options.group or done.places == self._told:
            return
        offsets = [
            g.CommitPartition(
                topic=topic, partition=number, offset=place.offset, leader_epoch=place.leader_epoch
            )
            for (topic, number), place in done.places.items()
        ]
        try:
            client = self._planner.client
            client.retrying(
                lambda _: client.commit_offsets(options.group, offsets), timeout_s=TELL_S
            )
        except HightideError as error:
            log.warning("group %r was not told how far the query is: %s", options.group, error)
        self._told = done.places

    def _check_topics(self, begin: Position) -> Position:
        """Topics that were made again since are a loss; without them if that is allowed."""
        ids = self._planner.refresh()
        for topic in (gone := [name for name in begin.topic_ids if name not in ids]):
            self._lost(f"{topic}: the topic is gone")
        begin = begin.without(gone)
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
            return "the topic is gone, or no longer subscribed"
        if not self._planner.options.reads(topic, partition):
            return "the partition is no longer assigned"
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
