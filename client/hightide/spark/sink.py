"""The writers that Spark drives: rows on the executors, marks on the driver.

A streaming query names itself and its batch to its tasks, in `foreachBatch` too; a batch that Spark
runs again, after a lost task or a lost driver, stores nothing twice (`produce.py`). A batch job is
named by a random id that its tasks share.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from hightide.errors import UsageError
from hightide.spark.client import client_for
from hightide.spark.options import SinkOptions
from hightide.spark.produce import Attempt, Mark, TaskWriter, gathered, sorted_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = {
    "topic": ("string",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raise `UsageError` for columns that cannot be written."""
    for column in schema.fields:
        kinds = COLUMNS.get(column.name)
        if kinds is None:
            raise UsageError(f"column {column.name!r}, expected some of {', '.join(COLUMNS)}")
        if column.dataType.simpleString() not in kinds:
            found = column.dataType.simpleString()
            raise UsageError(f"column {column.name} is {found}, expected {' or '.join(kinds)}")
    names = schema.fieldNames()
    if "value" not in names:
        raise UsageError(f"columns {', '.join(names)}, expected value among them")
    if not options.topic and "topic" not in names:
        raise UsageError("no topic: set option topic, or give a column of that name")


@dataclass
class Written(WriterCommitMessage):
    """What one task tells the driver."""

    sink: str
    batch: int
    """-1: this is no streaming query."""
    topics: tuple[str, ...]
    rows: int
    stored_before: int
    """How many of them an earlier attempt had stored."""


class _Writer:
    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.job = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor: the rows of one task."""
        context = TaskContext.get()
        assert context is not None, "Spark writes in tasks"
        options, client = self.options, client_for(self.options.bootstrap)
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            attempt, counts = Attempt(self.job, context.partitionId(), 0), dict[str, int]()
        else:
            sink = options.sink_id or query
            attempt, counts = Attempt(sink, context.partitionId(), int(batch)), None
        writer = TaskWriter(
            client,
            attempt,
            topic=options.topic or None,
            timeout_s=options.timeout_s,
            counts=counts,
        )
        rows = sorted_rows(iterator) if options.sort_rows else iterator
        for chunk in gathered(rows):
            writer.write(chunk)
        batch_id = -1 if counts is not None else attempt.batch
        return Written(attempt.sink, batch_id, writer.topics, writer.rows, writer.stored_before)

    def finish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: a batch is there as a whole; from the next one on, partitions that were
        added are used."""
        written = [each for each in messages if isinstance(each, Written)]
        topics = sorted({topic for each in written for topic in each.topics})
        if not topics or written[0].batch < 0:
            return
        client, timeout_s = client_for(self.options.bootstrap), self.options.timeout_s
        client.refresh(topics, timeout_s=timeout_s)
        counts = {topic: len(client.topics[topic].partitions) for topic in topics}
        sink, batch = written[0].sink, written[0].batch
        known = Mark.read(client, sink, timeout_s=timeout_s) or Mark()
        if batch >= known.next_batch:
            mark = Mark(batch + 1, {**known.counts, **counts})
            mark.write(client, sink, timeout_s=timeout_s)


class HightideWriter(_Writer, DataSourceArrowWriter):
    """A batch job, or a batch of `foreachBatch`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver."""
        self.finish(messages)


class HightideStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming query. What a batch that was aborted had written stays: whoever runs it again
    goes on behind that."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver."""
        self.finish(messages)
