"""What the tasks of a sink tell their driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from hightide.protocol.topic_partition import TopicPartition
from hightide.spark.earlier import Wanted
from hightide.spark.marks import Writing


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

    @property
    def places(self) -> set[TopicPartition]:
        """Where its rows belong."""
        return {*self.stored, *(content.tp for content, _ in self.deferred)}
