"""What both readers do on the driver: look at the cluster, resolve offsets, lay out ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hightide.protocol.errors import UsageError
from hightide.protocol.messages import EARLIEST, LATEST
from hightide.protocol.topic_partition import TopicPartition
from hightide.spark.client import BlockingClient, client_for
from hightide.spark.fetch import read_range
from hightide.spark.filters import EVERYTHING, Bounds
from hightide.spark.offsets import Place, Position, begin_of
from hightide.spark.options import ByTime, Offsets, SourceOptions, Where
from hightide.spark.ranges import OffsetRange, split

if TYPE_CHECKING:
    import pyarrow as pa


class Planner:
    """The driver's view of what a query reads."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._gone: frozenset[str] = frozenset()
        """Topics that were named, or known, and do not exist any more."""

    @property
    def client(self) -> BlockingClient:
        return client_for(self.options.bootstrap, self.options.way)

    def refresh(self, *, gone_ok: bool = False, known: Iterable[str] = ()) -> dict[str, str]:
        """Look at the topics again; their ids. With `gone_ok` those that are gone are left out;
        otherwise it raises `ApiError`. Topics that are `known` are asked for by their names if a
        broker lists them no more: one of old may not have heard of them."""
        options, timeout_s = self.options, self.options.look_up_timeout_s
        asked: Sequence[str] = options.topics
        if options.pattern:
            self.client.refresh(None, timeout_s=timeout_s)
            asked = sorted({*known} - self.client.metadata.topics.keys())
        if asked:
            known_gone = self._gone if gone_ok else None
            self._gone = self.client.refresh(asked, timeout_s=timeout_s, gone=known_gone)
        return self.topic_ids()

    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics, as of the last refresh."""
        return {topic: self.client.metadata.topics[topic].topic_id for topic in self.topics()}

    def topics(self) -> list[str]:
        """What is subscribed to, as of the last refresh; a pattern matches no internal topic."""
        options = self.options
        if not options.pattern:
            return sorted({*options.topics} - self._gone)
        pattern = re.compile(options.pattern)
        names = sorted(self.client.metadata.topics)
        return [name for name in names if pattern.fullmatch(name) and not name.startswith("__")]

    def partitions(self) -> list[TopicPartition]:
        """Every partition that is wanted, as of the last refresh."""
        found = [
            TopicPartition(topic, p.partition)
            for topic in self.topics()
            for p in self.client.metadata.topics[topic].partitions
            if self.options.reads(topic, p.partition)
        ]
        for topic, numbers in (self.options.assigned or {}).items():
            missing = sorted({*numbers} - {number for name, number in found if name == topic})
            if missing and topic not in self._gone:
                raise UsageError(f"assign names {topic}-{missing[0]}, which does not exist")
        return found

    def look_up(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Place]:
        """Where partitions have a time in ms, begin (EARLIEST) or end (LATEST), and the leader
        epochs there; offset -1 where nothing is that late."""
        found = self.client.offsets(wanted, timeout_s=self.options.look_up_timeout_s)
        return {tp: Place(each.offset, each.leader_epoch) for tp, each in found.items()}

    def heads(self) -> Position:
        """The high watermarks now, of the partitions as of the last refresh."""
        ids = self.topic_ids()
        return Position(self.look_up(dict.fromkeys(self.partitions(), LATEST)), ids)

    def starts(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets of partitions."""
        found = self.look_up(dict.fromkeys(tps, EARLIEST))
        return {tp: place.offset for tp, place in found.items()}

    def resolve(self, wanted: Where, side: str) -> Position:
        """Where an option wants to begin (`starting`) or end (`ending`), as places."""
        ids = self.refresh()
        if isinstance(wanted, ByTime):
            times = _said(wanted.at, self.partitions(), f"{side}OffsetsByTimestamp")
            return Position(self._at_times(times, wanted.or_latest), ids)
        said = _said(wanted, self.partitions(), f"{side}Offsets")
        given = {tp: Place(offset, -1) for tp, offset in said.items() if offset >= 0}
        asked = {tp: offset for tp, offset in said.items() if offset < 0}
        return Position(given | self.look_up(asked), ids)

    def _at_times(
        self, times: Mapping[TopicPartition, int], or_latest: bool
    ) -> dict[TopicPartition, Place]:
        found = self.look_up(times)
        late = [tp for tp, place in found.items() if place.offset < 0]
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
        first = self.starts(tp for tp in end.places if tp not in start.places)
        since = self._since(bounds, end)
        ranges = []
        for tp, place in sorted(end.places.items()):
            topic, partition = tp
            begin = begin_of(start, tp, first)
            whole = OffsetRange(
                topic, end.topic_ids[topic], partition, begin, place.offset, place.leader_epoch
            )
            if (left := bounds.cut(whole, since.get(tp, begin))) is not None:
                ranges.append(left)
        options = self.options
        return split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )

    def _since(self, bounds: Bounds, end: Position) -> dict[TopicPartition, int]:
        """Where the earliest time of the bounds begins; empty if they have none."""
        if bounds.since_ms < 0:
            return {}
        tps = [tp for tp in end.places if bounds.reads(*tp)]
        found = self.look_up(dict.fromkeys(tps, int(bounds.since_ms)))
        return {
            tp: place.offset if place.offset >= 0 else end.places[tp].offset
            for tp, place in found.items()
        }

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """An executor's part."""
        rows = read_range(
            self.options.bootstrap,
            wanted,
            include_headers=self.options.include_headers,
            include_leader_epoch=self.options.include_leader_epoch,
            fail_on_data_loss=self.options.fail_on_data_loss,
            timeout_s=self.options.fetch_timeout_s,
            way=self.options.way,
        )
        return rows if self.options.named is None else map(self.options.named.of, rows)


def _said(
    option: int | Offsets, tps: Sequence[TopicPartition], name: str
) -> dict[TopicPartition, int]:
    """What an option says of each partition that is read; raises `UsageError` if it leaves one out
    or names another."""
    if isinstance(option, int):
        return dict.fromkeys(tps, option)
    said = {
        TopicPartition(topic, number): value
        for topic, numbers in option.items()
        for number, value in numbers.items()
    }
    for topic, number in tps:
        if (topic, number) not in said:
            raise UsageError(f"{name} says nothing about {topic}-{number}: name every partition")
    for topic, number in sorted(said.keys() - {*tps}):
        raise UsageError(f"{name} names {topic}-{number}, which is not read")
    return said
