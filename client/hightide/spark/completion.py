"""The driver's part of a batch: completing what an earlier run or try began, exactly, or saying why
that cannot be done."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from hightide.protocol.columns import Record
from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted
from hightide.spark.attempts import TASKS_MAX, Attempt, producers_of
from hightide.spark.client import BlockingClient
from hightide.spark.earlier import (
    Earlier,
    Wanted,
    earlier_rows,
    places_of_records,
    states_of,
)
from hightide.spark.marks import Mark, TopicMark, ends_of
from hightide.spark.produce import TaskWriter
from hightide.spark.stored import LayoutChanged

if TYPE_CHECKING:
    from hightide.spark.options import SinkOptions
    from hightide.spark.written import Written

log = logging.getLogger("hightide.spark")

PLACES_TOLD = 4


class Completion:
    """All tasks of the batch are done; `known` is the sink's mark now."""

    def __init__(
        self,
        client: BlockingClient,
        known: Mark,
        written: Sequence[Written],
        options: SinkOptions,
    ) -> None:
        self._client, self._written, self._options = client, written, options
        self._attempt = Attempt(written[0].sink, TASKS_MAX - 1, written[0].batch)
        self._job = written[0].writing.job
        self._timeout_s = options.timeout_s
        topics = {topic: self._as_tasks_saw(topic, each) for topic, each in known.topics.items()}
        self._known = replace(known, topics=topics)

    def _as_tasks_saw(self, topic: str, mark: TopicMark) -> TopicMark:
        """Words of a dead run may have moved the boundary between two tasks: what one of them takes
        for rows of its own run is no earlier run's."""
        ends = [
            each.begins[topic]
            for each in self._written
            if topic in each.begins and mark.is_of(each.topic_ids[topic])
        ]
        if not ends:
            return mark
        # Partitions that were added since hold nothing of earlier runs.
        lowest = tuple(map(min, zip_longest(*ends, fillvalue=0)))
        return replace(mark, ends=lowest, at_work=self._job)

    def complete(self) -> None:
        """Store what is missing; raises `LayoutChanged` if more is there than there should be."""
        client, known, timeout_s = self._client, self._known, self._timeout_s
        earlier = earlier_rows(client, self._attempt, known, self._job, timeout_s=timeout_s)
        wanted: Wanted = Counter()
        for each in self._written:
            wanted += each.deferred
        missing, extra = earlier.reconcile(wanted)
        self._check_others(earlier)
        if missing:
            writer = TaskWriter(
                client,
                self._attempt,
                topic=None,
                timeout_s=timeout_s,
                topics=known.topics,
                earlier=earlier,
            )
            for tp, records in places_of_records(missing):
                writer.store(tp, records)
            writer.finish()
        if extra:
            self._refuse(f"{counted(len(extra), 'row')} of {_ranges(extra)}")

    def _check_others(self, earlier: Earlier) -> None:
        """Nobody else may have stored rows of the batch meanwhile: a task of an earlier run that
        was frozen, say."""
        if self._known.is_old:
            return  # brokers may have forgotten who wrote
        told: Counter[TopicPartition] = Counter(earlier.counts)
        for each in self._written:
            told.update(each.stored)
        grown = [tp for tp, count in self._growth() if count > told[tp]]
        producers = producers_of(self._attempt.sink, self._attempt.batch) if grown else {}
        for tp in grown:
            states = states_of(self._client, tp, producers, timeout_s=self._timeout_s)
            count = sum(state.last_sequence + 1 for state in states.values())
            if count > told[tp]:
                self._refuse(f"{counted(count - told[tp], 'row')} in {tp[0]}-{tp[1]}")

    def _growth(self) -> Iterator[tuple[TopicPartition, int]]:
        """How far each partition has grown since the batch was begun, no matter who wrote."""
        for topic, now in self._still_there().items():
            starts = self._known.topics[topic].starts
            for number, end in enumerate(now.starts):
                start = starts[number] if number < len(starts) else 0
                yield TopicPartition(topic, number), end - start

    def _still_there(self) -> dict[str, TopicMark]:
        """The topics as they are now, but for those that are gone, or were made again."""
        topics = self._known.topics
        now = ends_of(self._client, topics, timeout_s=self._timeout_s, gone_ok=True)
        return {topic: each for topic, each in now.items() if topics[topic].is_of(each.topic_id)}

    def _refuse(self, what: str) -> None:
        attempt = self._attempt
        told = (
            f"batch {attempt.batch} of sink {attempt.sink!r}: {what} were stored by an earlier run "
            "of the query and are not among its rows now: they were deleted since, the query was "
            "changed or does not give the same rows twice, or somebody else writes under its name"
        )
        if self._options.may_duplicate:
            log.warning("%s: they stay there, onLayoutChange=duplicate", told)
            return
        told += (
            ". The rows that it gives now are stored as well. To go on with all of them there, set "
            "onLayoutChange=duplicate"
        )
        refused, topics = replace(self._known, refused=told), self._still_there()
        refused.write(self._client, attempt.sink, topics, timeout_s=self._timeout_s)
        raise LayoutChanged(told)


def _ranges(records: Sequence[Record]) -> str:
    places = sorted(places_of_records(records))
    told = [
        f"{topic}-{partition} offsets {min(r.offset for r in found)} to "
        f"{max(r.offset for r in found)}"
        for (topic, partition), found in places[:PLACES_TOLD]
    ]
    more = len(places) - len(told)
    return ", ".join(told) + (f" and {counted(more, 'more partition')}" if more else "")
