"""What the tasks of a sink tell their driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from hightide.protocol.topic_partition import TopicPartition
from hightide.spark.earlier import Wanted
from hightide.spark.marks import Mark, TopicMark, Writing
from hightide.spark.stored import LayoutChanged


@dataclass
class Written(WriterCommitMessage):
    """What one task tells the driver."""

    sink: str
    batch: int
    """-1: this is no streaming query."""
    task: int
    writing: Writing
    stored: dict[TopicPartition, int]
    """How many rows of each partition this run has stored as this task."""
    deferred: Wanted
    """Rows that earlier runs have stored such of."""
    rows: int
    bytes: int
    stored_before: int
    """How many of them an earlier attempt had stored."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    """Of the topics that it knew, at least those of its places."""
    done: Mark | None = None
    """The mark that said that all of the batch is there, without its topics."""
    begins: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Where rows of earlier runs end in each partition of its topics, as it went by."""

    @property
    def places(self) -> set[TopicPartition]:
        """Where its rows belong."""
        return {*self.stored, *(content.tp for content, _ in self.deferred)}

    def check(self, now: Mapping[str, TopicMark]) -> None:
        """Raise `LayoutChanged` if one of these topics was made again, without what it wrote."""
        for topic in {topic for topic, _ in self.places} & now.keys():
            topic_id = self.topic_ids.get(topic, "")
            if topic_id not in ("", now[topic].topic_id):
                raise LayoutChanged(
                    f"batch {self.batch} of sink {self.sink!r}: topic {topic!r} was deleted and "
                    f"made again (id {topic_id} became {now[topic].topic_id}) when task "
                    f"{self.task} had written to it. Start the query again: it has all rows of "
                    "the batch stored in the new one"
                )
