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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from hightide.spark.filters import EVERYTHING, Bounds, bounds_of
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

    def look_up(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Place]:
        """Where partitions have a time in ms, begin (EARLIEST) or end (LATEST), and the leader
        epochs there; offset -1 where nothing is that late."""
        found = self.client.offsets(wanted, timeout_s=self.options.look_up_timeout_s)
        return {where: Place(each.offset, each.leader_epoch) for where, each in found.items()}

    def heads(self) -> Position:
        """The high watermarks now."""
        return self.resolve(LATEST, "ending")

    def starts(self, wheres: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The first offsets of partitions."""
        found = self.look_up(dict.fromkeys(wheres, EARLIEST))
        return {where: place.offset for where, place in found.items()}

    def resolve(self, wanted: Where, side: str) -> Position:
        """Where an option wants to begin (`starting`) or end (`ending`), as places."""
        ids = self.refresh()
        if isinstance(wanted, ByTime):
            times = _said(wanted.at, self.partitions(), f"{side}OffsetsByTimestamp")
            return Position(self._at_times(times, wanted.or_latest), ids)
        said = _said(wanted, self.partitions(), f"{side}Offsets")
        given = {where: Place(offset, -1) for where, offset in said.items() if offset >= 0}
        asked = {where: offset for where, offset in said.items() if offset < 0}
        return Position(given | self.look_up(asked), ids)

    def _at_times(
        self, times: Mapping[tuple[str, int], int], or_latest: bool
    ) -> dict[tuple[str, int], Place]:
        found = self.look_up(times)
        late = [where for where, place in found.items() if place.offset < 0]
        if late and not or_latest:
            topic, partition = late[0]
            raise UsageError(
                f"{topic}-{partition} has no record of {times[late[0]]} ms or later; "
                "startingOffsetsByTimestampStrategy=latest would begin at its end"
            )
        return found | self.look_up(dict.fromkeys(late, LATEST))

    def ranges(
        self, start: Position, end: Position, bounds: Bounds = EVERYTHING
    ) -> list[OffsetRange]:
        """What lies between two positions and within `bounds`; partitions that `start` does not
        know begin at their start."""
        first = self.starts(where for where in end.places if where not in start.places)
        since = self._since(bounds, end)
        ranges = []
        for where, place in sorted(end.places.items()):
            topic, partition = where
            begin = begin_of(start, where, first)
            whole = OffsetRange(topic, end.topic_ids[topic], partition, begin, place.offset)
            if (left := bounds.cut(whole, since.get(where, begin))) is not None:
                ranges.append(left)
        options = self.options
        return split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )

    def _since(self, bounds: Bounds, end: Position) -> dict[tuple[str, int], int]:
        """Where the earliest time of the bounds begins; empty if they have none."""
        if bounds.since_ms < 0:
            return {}
        wheres = [where for where in end.places if bounds.reads(*where)]
        found = self.look_up(dict.fromkeys(wheres, int(bounds.since_ms)))
        return {
            where: place.offset if place.offset >= 0 else end.places[where].offset
            for where, place in found.items()
        }

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


def _said(
    option: int | Offsets, wheres: Sequence[tuple[str, int]], name: str
) -> dict[tuple[str, int], int]:
    """What an option says of each partition that is read; raises `UsageError` if it leaves one out
    or names another."""
    if isinstance(option, int):
        return dict.fromkeys(wheres, option)
    said = {
        (topic, number): value
        for topic, numbers in option.items()
        for number, value in numbers.items()
    }
    for topic, number in wheres:
        if (topic, number) not in said:
            raise UsageError(f"{name} says nothing about {topic}-{number}: name every partition")
    for topic, number in sorted(said.keys() - {*wheres}):
        raise UsageError(f"{name} names {topic}-{number}, which is not read")
    return said


class HightideReader(DataSourceReader):
    """A batch query: from startingOffsets to endingOffsets, as of now."""

    def __init__(self, options: SourceOptions) -> None:
        self._planner = _Planner(options)
        self._bounds = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        """One task for each partition that has anything to read."""
        planner = self._planner
        start = planner.resolve(planner.options.starting, "starting")
        end = planner.resolve(planner.options.ending, "ending")
        self._check_end(end)
        wanted = planner.ranges(start, end, self._bounds)
        ranges: list[InputPartition] = [RangePartition(each) for each in wanted]
        # Spark wants at least one task, also for nothing.
        nothing = OffsetRange("", "", 0, 0, 0)
        return ranges or [RangePartition(nothing)]

    def _check_end(self, end: Position) -> None:
        """Refuse offsets that the log does not hold: numbers that were given have no epoch."""
        given = [where for where, place in end.places.items() if place.leader_epoch < 0]
        for where, head in self._planner.look_up(dict.fromkeys(given, LATEST)).items():
            if end.places[where].offset > head.offset:
                raise UsageError(
                    f"endingOffsets of {where[0]}-{where[1]} is {end.places[where].offset}, "
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
        first = self._planner.starts(where for where in end.places if where not in begin.places)
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
        planner = self._planner
        ids = planner.refresh()
        known = begin.without(begin.made_again(ids)).places
        there = [where for where in known if where[0] in ids and planner.options.reads(*where)]
        first, heads = planner.starts(there), planner.look_up(dict.fromkeys(there, LATEST))
        for where, place in known.items():
            if where in heads:
                why = self._cut(where, place, first[where], heads[where].offset)
            elif where[0] in ids:
                why = "the partition is no longer assigned"
            else:
                why = "the topic is gone, or no longer subscribed"
            if why is not None:
                name = f"{where[0]}-{where[1]}"
                self._lost(f"{name}: the query goes on at offset {place.offset}, but {why}")
        self._checked = True

    def _lost(self, what: str) -> None:
        """Raise `DataLoss`, or say it in the log if that is allowed."""
        if self._planner.options.fail_on_data_loss:
            raise DataLoss(f"{what}. To go on without what is lost set failOnDataLoss=false")
        log.warning("%s; going on without what is lost", what)

    def _cut(self, where: tuple[str, int], place: Place, first: int, head: int) -> str | None:
        """What a log from `first` to `head` lacks of what was read up to a place of the checkpoint,
        or would be read next; None if it is whole."""
        if place.offset < first:
            return f"the log begins at offset {first}: records were deleted"
        if place.offset > head:
            return f"the high watermark is {head}: the log was cut"
        if place.leader_epoch < 0:
            return None
        timeout_s = self._planner.options.look_up_timeout_s
        end = self._planner.client.epoch_end(*where, place.leader_epoch, timeout_s=timeout_s)
        if 0 <= end.end_offset < place.offset:
            return f"leader epoch {place.leader_epoch} ends at {end.end_offset}: the log was cut"
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
