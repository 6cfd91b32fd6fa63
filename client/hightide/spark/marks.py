"""What is kept of a sink between its batches, in the offsets of the group `sink-<id>`.

For each partition of each topic that it writes to: the offset from which on the rows of the next
batch lie. Beside that of partition 0, for the topic: which batch is next, how many partitions the
batch reckons with, the topic's id; and who wrote the batch before: of which checkpoint, in which
run of the query, as which write. A batch that is below the next one is there as a whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, ErrorCode, HightideError
from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted
from hightide.spark.client import BlockingClient, or_gone_topic

VERSION = 2
PARTS_AT_ONCE = 1000
REFUSED_MAX = 2000
"""Characters of a refusal that are kept: brokers take 4096 in all."""
PRODUCERS_KEPT_S = 12 * 3600
"""Brokers forget a producer after `producer.id.expiration.ms`, a day; half of it is for clocks."""


class SinkClash(HightideError):
    """The id of a sink is in use by something else: rows would be taken for those of that, and
    dropped."""


@dataclass(frozen=True)
class TopicMark:
    """A topic as a batch reckons with it."""

    topic_id: str
    starts: tuple[int, ...]
    """Where the rows of the batch begin, for each partition."""
    ends: tuple[int, ...] = ()
    """Where those of earlier runs end, as `at_work` found it before it stored any."""
    at_work: str = ""
    """The job that writes the next batch, once one of its tasks began; see `Writing.job`."""

    @property
    def count(self) -> int:
        """How many partitions it has."""
        return len(self.starts)

    def begin(self, partition: int) -> int:
        """The offset from which on this job stores rows; a partition that was added since has 0."""
        begins = self.ends or self.starts
        return begins[partition] if partition < len(begins) else 0

    def is_of(self, topic_id: str) -> bool:
        """Whether it is of the topic with this id, and not of one that was made again."""
        return self.topic_id in ("", topic_id)


@dataclass(frozen=True)
class Writing:
    """Who writes a batch; "" where that is not known."""

    checkpoint: str = ""
    """The id that Spark keeps in the checkpoint of the query."""
    run: str = ""
    """One for each start of the query."""
    write: str = ""
    """What is written: the topic and the columns. A function may write several times."""
    job: str = ""
    """One for each time that Spark begins to write a batch."""
    rows: int = -1
    """How many rows it wrote, in the end."""
    bytes: int = -1
    """What they took."""


@dataclass(frozen=True)
class Mark:
    """What is kept of a sink."""

    next_batch: int = 0
    topics: Mapping[str, TopicMark] = field(default_factory=dict)
    before: Writing = Writing()
    """Who wrote the batch before the next one."""
    refused: str = ""
    """Why the next batch cannot be completed as it was begun; somebody has to decide."""
    kept_at: int = 0
    """When this was kept, ms since 1970."""

    @property
    def is_old(self) -> bool:
        """Whether brokers may have forgotten who wrote since it was kept."""
        return abs(time.time() - self.kept_at / 1000) > PRODUCERS_KEPT_S

    @classmethod
    def read(cls, client: BlockingClient, sink: str, *, timeout_s: float) -> Mark:
        """The mark of a sink; an empty one if there is none yet."""
        kept = client.retrying(lambda _: client.committed(group_of(sink)), timeout_s=timeout_s)
        mark = cls()
        places = [TopicPartition(each.topic, each.partition) for each in kept]
        told = {tp: _words(sink, each.metadata) for tp, each in zip(places, kept, strict=True)}
        starts = {tp: each.offset for tp, each in zip(places, kept, strict=True)}
        for (topic, partition), words in told.items():
            if partition == 0 and "v" in words:
                mark = mark._with(topic, words, starts, told)
            elif partition == 0 and topic in words:
                mark = mark._with_old(words, starts[TopicPartition(topic, 0)])
        return mark

    def _with_old(self, counts: Mapping[str, int], batch: int) -> Mark:
        """Of a version before: the offset was the batch, and no start was kept."""
        old = {name: TopicMark("", (0,) * count) for name, count in counts.items()}
        topics = {**old, **self.topics}
        return replace(self, next_batch=max(self.next_batch, batch), topics=topics)

    def _with(
        self,
        topic: str,
        words: Mapping[str, Any],
        starts: Mapping[TopicPartition, int],
        told: Mapping[TopicPartition, Mapping[str, Any]],
    ) -> Mark:
        places = [TopicPartition(topic, number) for number in range(words["parts"])]
        known = TopicMark(
            words["id"],
            tuple(starts.get(tp, 0) for tp in places[: words["count"]]),
            tuple(told.get(tp, {}).get("end", starts.get(tp, 0)) for tp in places),
            words["at_work"],
        )
        whole = replace(self, topics={**self.topics, topic: known})
        if words["next"] < self.next_batch:
            return whole
        before = Writing(
            words["checkpoint"],
            words["run"],
            words["write"],
            rows=words["rows"],
            bytes=words["bytes"],
        )
        refused = words["refused"] or (self.refused if words["next"] == self.next_batch else "")
        next_batch, kept_at = words["next"], words["at"]
        if next_batch == self.next_batch and self.kept_at:
            kept_at = min(kept_at, self.kept_at)  # rows of the batch may be as old as that
        return replace(
            whole, next_batch=next_batch, before=before, refused=refused, kept_at=kept_at
        )

    def write(
        self, client: BlockingClient, sink: str, topics: Iterable[str], *, timeout_s: float
    ) -> None:
        """Keep it of these topics."""
        parts = [
            g.CommitPartition(
                topic=topic,
                partition=number,
                offset=start or 0,
                metadata=self._metadata(self.topics[topic], number),
                topic_id=self.topics[topic].topic_id,
            )
            for topic in topics
            for number, (start, _) in enumerate(
                zip_longest(self.topics[topic].starts, self.topics[topic].ends)
            )
        ]
        # What speaks for its topic comes last: its readers find the others.
        parts.sort(key=lambda part: part.partition == 0)
        group = group_of(sink)
        for first in range(0, len(parts), PARTS_AT_ONCE):
            some = parts[first : first + PARTS_AT_ONCE]
            commit = partial(_commit, client, group, some)
            client.retrying(commit, timeout_s=timeout_s, is_final=or_gone_topic)

    def _metadata(self, topic: TopicMark, number: int) -> str:
        end = {"end": topic.ends[number]} if number < len(topic.ends) else {}
        if number:
            return json.dumps(end) if end else ""
        told = end | {
            "v": VERSION,
            "at": self.kept_at or int(time.time() * 1000),
            "parts": max(topic.count, len(topic.ends)),
            "at_work": topic.at_work,
            "refused": self.refused[:REFUSED_MAX],
            "next": self.next_batch,
            "id": topic.topic_id,
            "count": topic.count,
            "checkpoint": self.before.checkpoint,
            "run": self.before.run,
            "write": self.before.write,
            "rows": self.before.rows,
            "bytes": self.before.bytes,
        }
        return json.dumps(told, separators=(",", ":"))

    def check_same(self, sink: str, batch: int, rows: int, size: int) -> None:
        """Raise `SinkClash` if a batch that is there as a whole is given again as something else:
        it would be taken for what is there, and dropped."""
        before = self.before
        is_known = batch == self.next_batch - 1 and before.rows >= 0
        if is_known and (before.rows, before.bytes) != (rows, size):
            raise SinkClash(
                f"batch {batch} of sink {sink!r} was stored with {counted(before.rows, 'row')} of "
                f"{counted(before.bytes, 'byte')}, and is given again with {counted(rows, 'row')} "
                f"of {size}: another write of the same function, or the query was changed. "
                "None of them was stored now; give each write its own sinkId"
            )

    def check(self, sink: str, batch: int, writing: Writing) -> None:
        """Raise `SinkClash` if rows of this batch would be taken for others."""
        before, last = self.before, self.next_batch - 1
        ways = "give each its own sinkId"
        so_far = f"up to batch {last}" if last >= 0 else "which began its first batch"
        if before.checkpoint and writing.checkpoint != before.checkpoint:
            raise SinkClash(
                f"sink {sink!r} was written by the query with checkpoint {before.checkpoint}, "
                f"{so_far}; this is another one, {writing.checkpoint}, at batch {batch}: {ways}"
            )
        if batch < last:
            raise SinkClash(
                f"sink {sink!r} has all batches up to {last}, and the query begins again at "
                f"{batch}: its checkpoint is an older one than what was written. Restore a newer "
                "one, or, to write these batches again, give it another sinkId"
            )
        if batch == last and before.write and writing.write != before.write:
            raise SinkClash(
                f"batch {batch} of sink {sink!r} wrote {before.write}, this writes "
                f"{writing.write}: {ways}"
            )
        if batch == last and before.run and writing.run == before.run:
            raise SinkClash(
                f"batch {batch} of sink {sink!r} was written already in this run of the query: one "
                f"write of a function stores a batch; {ways}"
            )


def _words(sink: str, metadata: str) -> dict[str, Any]:
    try:
        words = json.loads(metadata or "{}")
    except ValueError:
        words = None
    if not isinstance(words, dict):
        raise SinkClash(
            f"group {group_of(sink)!r} holds what no sink has written, {metadata[:80]!r}: give the "
            "sink another sinkId"
        )
    return words


def _commit(
    client: BlockingClient, group: str, parts: Sequence[g.CommitPartition], _: float
) -> None:
    client.commit_offsets(group, parts)


def group_of(sink: str) -> str:
    """The group that keeps a sink's mark."""
    return f"sink-{sink}"


def ends_of(
    client: BlockingClient, topics: Collection[str], *, timeout_s: float, gone_ok: bool = False
) -> dict[str, TopicMark]:
    """Topics as they are now: their next rows lie behind these offsets. Raises `ApiError` if one
    does not exist, unless it may be gone."""

    def attempt(left_s: float) -> dict[str, TopicMark]:
        may_be_gone = frozenset(topics) if gone_ok else None
        gone = client.refresh([*topics], timeout_s=left_s, gone=may_be_gone)
        known = {topic: client.metadata.topics[topic] for topic in topics if topic not in gone}
        ids = {topic: each.topic_id for topic, each in known.items()}
        places = [
            TopicPartition(topic, number)
            for topic, each in known.items()
            for number in range(len(each.partitions))
        ]
        latest = dict.fromkeys(places, m.LATEST)
        found = client.offsets(latest, timeout_s=left_s, topic_ids=ids)
        ends: dict[str, list[int]] = {topic: [] for topic in known}
        for tp in places:
            ends[tp.topic].append(found[tp].offset)
        return {topic: TopicMark(ids[topic], tuple(ends[topic])) for topic in known}

    def is_final(error: ApiError, *_: float) -> bool:
        # Leaders were asked often enough; but who told of a topic may know it as it was.
        is_unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return not (error.code is ErrorCode.INCONSISTENT_TOPIC_ID or (is_unknown and gone_ok))

    return client.retrying(attempt, timeout_s=timeout_s, is_final=is_final)
