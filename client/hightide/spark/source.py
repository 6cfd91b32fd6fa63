"""The readers that Spark drives: planning on the driver, reading on the executors.

What Spark 4.3 does with a Python source shapes this room: `initialOffset` is not persisted and is
called more than once; positions are compared as text; `latestOffset` is polled without pause; the
reader is pickled, so no socket may be kept on it. A plan ends at the high watermarks: only
committed records are ever planned.
"""

from __future__ import annotations

import logging
import sys
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

from hightide.protocol import group_messages as g
from hightide.protocol.errors import HightideError, UsageError
from hightide.protocol.messages import EARLIEST, LATEST
from hightide.protocol.topic_partition import TopicPartition
from hightide.spark.endings import CLOSED, expect_to_be_left
from hightide.spark.filters import EVERYTHING, bounds_of
from hightide.spark.losses import Losses
from hightide.spark.offsets import (
    Json,
    Place,
    Position,
    advanced,
    backlog,
    no_further_back,
    prorate,
)
from hightide.spark.options import ByTime, SourceOptions
from hightide.spark.planner import Planner
from hightide.spark.ranges import OffsetRange

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


class HightideReader(DataSourceReader):
    """A batch query: from startingOffsets to endingOffsets, as of now."""

    def __init__(self, options: SourceOptions) -> None:
        self._planner = Planner(options)
        self._bounds = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        """One task for each partition that has anything to read."""
        planner = self._planner
        start = planner.resolve(planner.options.starting, "starting")
        end = planner.resolve(planner.options.ending, "ending")
        self._check_given(start, "startingOffsets")
        self._check_given(end, "endingOffsets")
        wanted = planner.ranges(start, end, self._bounds)
        ranges: list[InputPartition] = [RangePartition(each) for each in wanted]
        # Spark wants at least one task, also for nothing.
        nothing = OffsetRange("", "", 0, 0, 0)
        return ranges or [RangePartition(nothing)]

    def _check_given(self, position: Position, option: str) -> None:
        """Refuse offsets that the log does not hold: numbers that were given have no epoch."""
        given = [tp for tp, place in position.places.items() if place.leader_epoch < 0]
        for tp, head in self._planner.look_up(dict.fromkeys(given, LATEST)).items():
            if position.places[tp].offset > head.offset:
                raise UsageError(
                    f"{option} of {tp[0]}-{tp[1]} is {position.places[tp].offset}, "
                    f"the high watermark is {head.offset}"
                )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range; on an executor."""
        assert isinstance(partition, RangePartition)
        return self._planner.read(partition.wanted)


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
        self._planner = Planner(options)
        self._losses = Losses(self._planner)
        self._initial: Json | None = None
        self._pinned = False
        self._target: Position | None = None
        self._latest: Json | None = None
        self._planned: Json | None = None
        """Where the last batch ends that this run has planned."""
        self._triggered_at = float("-inf")
        self._told: Mapping[TopicPartition, Place] = {}

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
        self._planner.refresh(gone_ok=True)
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
        begin = self._losses.checked(begin)
        if self._target is None:
            heads = self._heads_or_wait(begin)
        else:
            gone = self._target.topic_ids.keys() - self._planner.topic_ids().keys()
            heads = self._target = self._target.without(gone)
        self._latest = heads.to_json()
        cuts = self._losses.cuts(begin, heads)
        end = no_further_back(begin, heads).at(cuts)
        first = self._planner.starts(tp for tp in end.places if tp not in begin.places)
        self._losses.check_new(first)
        end = end._replace(starts=first | self._initial_starts(start, begin))
        waiting = backlog(begin, end, first)
        if not cuts and (not advanced(begin, end) or self._waits_for_more(waiting)):
            return start
        if isinstance(limit, ReadMaxRows):
            end = prorate(begin, end, limit.max_rows, first)
        self._planned = end.to_json()
        return self._planned

    def _must_pin(self, start: Json) -> bool:
        starting = self._planner.options.starting
        fixed = starting == EARLIEST or (isinstance(starting, ByTime) and not starting.or_latest)
        return not self._pinned and not fixed and self._is_initial(start)

    def _is_initial(self, start: Json) -> bool:
        return self._initial is not None and start == self._initial

    def _initial_starts(self, start: Json, begin: Position) -> dict[TopicPartition, int]:
        """Where the first batch begins, which Spark does not keep."""
        if not self._is_initial(start):
            return {}
        return {tp: place.offset for tp, place in begin.places.items()}

    def _heads_or_wait(self, begin: Position) -> Position:
        """The high watermarks; waits a little for news if there is none."""
        heads = self._planner.heads()
        if not advanced(begin, heads):
            ends = {tp: place.offset for tp, place in heads.places.items()}
            self._planner.client.wait_for_more(ends, IDLE_WAIT_S)
            self._planner.refresh(gone_ok=True)
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

    def reportLatestOffset(self) -> Json | None:
        """The high watermarks as last seen, for the query's progress."""
        return self._latest

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """One task for each partition that has anything to read."""
        begin, until = Position.from_json(start), Position.from_json(end)
        self._planner.refresh(gone_ok=True)
        begin = begin.without(begin.made_again(until.topic_ids))
        if end != self._planned:
            # Of another run: what was planned then may have been cut off since. What came in its
            # place is read by the next batch, which goes back there.
            heads = self._planner.heads()
            until = until.at(self._losses.cuts(until, heads, is_read=False))
            self._latest = heads.to_json()
        told = {tp: Place(offset, -1) for tp, offset in until.starts.items()}
        return [RangePartition(wanted) for wanted in self._planner.ranges(begin.at(told), until)]

    def commit(self, end: Json) -> None:
        """Nothing to do: the checkpoint is the truth."""

    def stop(self) -> None:
        """The query has ended, and with it this process."""
        if isinstance(sys.exception(), (EOFError, *CLOSED)):
            expect_to_be_left()

    # -- executor --------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one range; on an executor."""
        assert isinstance(partition, RangePartition)
        return self._planner.read(partition.wanted)
