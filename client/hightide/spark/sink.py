"""The writers that Spark drives: rows on the executors, marks on the driver.

A streaming query names itself and its batch to its tasks, in `foreachBatch` too; a batch that Spark
runs again, after a lost task or a lost driver, stores nothing twice (`produce.py`). A batch job is
named by a random id that its tasks share.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from hightide.arrow.from_arrow import in_one_order
from hightide.protocol.errors import UsageError
from hightide.spark.attempts import TASKS_MAX, Attempt
from hightide.spark.client import client_for
from hightide.spark.completion import Completion
from hightide.spark.marks import Mark, Writing, ends_of
from hightide.spark.options import SinkOptions
from hightide.spark.produce import TaskWriter
from hightide.spark.written import Written

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
GATHERED_ROWS = 65_536
GATHERED_BYTES = 16 << 20
"""What a task writes at a time, from so much on: each piece costs a request for each partition."""
NOT_WRITTEN = ("offset", "timestampType", "leader_epoch")
"""What the source says of a record besides; who writes it again gives it others."""


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raise `UsageError` for columns that cannot be written."""
    for column in schema.fields:
        if column.name in NOT_WRITTEN:
            continue
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


def refuse_overwrite(overwrite: bool) -> None:
    """Raise `UsageError` for `mode("overwrite")`: rows can be added to a log, and nothing else."""
    if overwrite:
        raise UsageError('mode("overwrite") would have to delete what is there: use "append"')


class _Writer:
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        self.job = secrets.token_hex(8)
        where = f"to {options.topic!r}" if options.topic else "to the topics of a column"
        self.columns = [name for name in schema.fieldNames() if name in COLUMNS]
        self.what = f"{', '.join(self.columns)} {where}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor: the rows of one task."""
        context = TaskContext.get()
        assert context is not None, "Spark writes in tasks"
        options, client = self.options, client_for(self.options.bootstrap, self.options.way)
        task = context.partitionId()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        is_job = query is None or batch is None
        if query is None or batch is None:
            attempt, writing = Attempt(self.job, task, 0), Writing()
        else:
            check_task(task)
            attempt = Attempt(options.sink_id or query, task, int(batch))
            writing = Writing(query, run_of(context), self.what, self.job)
        writer = TaskWriter(
            client,
            attempt,
            topic=options.topic or None,
            timeout_s=options.timeout_s,
            writing=writing,
            topics={} if is_job else None,
            may_duplicate=options.may_duplicate,
        )
        rows = (chunk.select(self.columns) for chunk in iterator)
        for chunk in gathered(sorted_rows(rows) if options.sort_rows else rows):
            writer.write(chunk)
        writer.finish()
        return Written(
            attempt.sink,
            -1 if is_job else attempt.batch,
            task,
            writing,
            writer.stored,
            writer.deferred,
            writer.rows,
            writer.bytes,
            writer.stored_before,
            writer.topic_ids,
            writer.done and replace(writer.done, topics={}),
            writer.begins,
        )

    def finish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: a batch is there as a whole; from the next one on, partitions that were
        added are used."""
        written = [each for each in messages if isinstance(each, Written)]
        if not written or written[0].batch < 0:
            return
        client = client_for(self.options.bootstrap, self.options.way)
        timeout_s = self.options.timeout_s
        sink, batch, writing = written[0].sink, written[0].batch, written[0].writing
        rows, size = sum(each.rows for each in written), sum(each.bytes for each in written)
        known = Mark.read(client, sink, timeout_s=timeout_s)
        if batch < known.next_batch:
            known.check_same(sink, batch, rows, size)
            return
        done = next((each.done for each in written if each.done is not None), None)
        if done is not None and not any(each.stored for each in written):
            # A task that began at the same time wrote its own mark over that one, which holds all
            # the same: a driver keeps it when all of its batch is there.
            done.check_same(sink, batch, rows, size)
            now = ends_of(client, known.topics, timeout_s=timeout_s, gone_ok=True)
        else:
            Completion(client, known, written, self.options).complete()
            topics = {topic for each in written for topic, _ in each.places}
            now = ends_of(client, topics, timeout_s=timeout_s)
        for each in written:
            each.check(now)
        whole = replace(writing, rows=rows, bytes=size)
        Mark(batch + 1, now, whole).write(client, sink, now, timeout_s=timeout_s)


def sorted_rows(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in one order, whichever they came in; all of them are held at once."""
    import pyarrow as pa

    if waiting := [*chunks]:
        yield from in_one_order(pa.Table.from_batches(waiting)).to_batches()


def gathered(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger pieces: each piece costs a request for every partition."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for chunk in chunks:
        waiting.append(chunk)
        rows, size = rows + len(chunk), size + chunk.nbytes
        if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows, size = [], 0, 0
    if rows:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def run_of(context: TaskContext) -> str:
    """Which start of the query it is; "" if the user has put another name there."""
    name = context.getLocalProperty("spark.jobGroup.id") or ""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return ""


def check_task(task: int) -> None:
    """Raise `UsageError` for a task beyond those that are looked for."""
    if task >= TASKS_MAX - 1:
        raise UsageError(
            f"task {task}: {TASKS_MAX - 1} tasks at most write a batch of a streaming query; use "
            "fewer partitions (coalesce, spark.sql.shuffle.partitions)"
        )


class HightideWriter(_Writer, DataSourceArrowWriter):
    """A batch job, or a batch of `foreachBatch`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver."""
        self.finish(messages)


class HightideStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming query. What a batch that was aborted had written stays: the next run of it
    goes on behind that."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver."""
        self.finish(messages)
