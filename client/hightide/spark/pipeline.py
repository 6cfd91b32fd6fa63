"""The shipped pipeline: topics → rows → windows, to Parquet and to a results topic.

Each output is a streaming query with a checkpoint of its own, so each is exactly once for itself:
Spark's file sink keeps a log of its files, hightide's sink stores a batch's rows once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from hightide.protocol.errors import HightideError, UsageError
from hightide.spark.offsets import Position
from hightide.spark.pipeline_config import (
    CORRUPT,
    EXCLUSIVE,
    RESULTS,
    ROWS,
    WINDOWS,
    Aggregate,
    PipelineConfig,
    check_same,
    remember,
)
from hightide.spark.starts import TOO_LATE, came_too_late, started

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_EVENT_TIME = "_event_time"


class PipelineFailed(HightideError):
    """A query of the pipeline ended with an error."""


class Progress(NamedTuple):
    """How far a query is, after a batch."""

    query: str
    batch: int
    rows: int
    """What the batch read."""
    rows_per_s: float
    lag: dict[str, int]
    """Topic → records that are committed and not read yet."""


class FinishedBatch(NamedTuple):
    """A batch that is finished; seconds since 1970."""

    began: float
    ended: float
    rows: int


@dataclass(frozen=True)
class Running:
    """The queries of a pipeline, by name; each ends by itself if it runs once."""

    queries: dict[str, StreamingQuery]

    @property
    def is_active(self) -> bool:
        """Whether one of them runs."""
        return any(query.isActive for query in self.queries.values())

    def check(self) -> None:
        """Raise `PipelineFailed` if one of them failed."""
        for name, query in self.queries.items():
            if (error := query.exception()) is not None:
                reason = TOO_LATE if came_too_late(query) else _reason(str(error))
                raise PipelineFailed(f"query {name}: {reason}")

    def wait(self, seconds: int) -> None:
        """Wait so many seconds, or until one has ended; raises `PipelineFailed`."""
        for query in self.queries.values():
            if query.isActive:
                with _told_by_check():
                    query.awaitTermination(seconds)
                break
        self.check()

    def progress(self) -> list[Progress]:
        """Of each query its last batch."""
        found = [(name, query.lastProgress) for name, query in self.queries.items()]
        return [_progress(name, last) for name, last in found if last is not None]

    def batches(self, name: str) -> list[FinishedBatch]:
        """The last batches of a query that had rows, as many as Spark remembers."""
        return [_batch(each) for each in self.queries[name].recentProgress if each["numInputRows"]]

    def stop(self) -> None:
        """Stop all of them; a batch that is not finished is run again at the next start."""
        for query in self.queries.values():
            query.stop()


def _reason(text: str) -> str:
    """What a person needs of Spark's account of a failure: our own error, if it was one, without
    the plan of the query."""
    ours = re.findall(r"^hightide\.[\w.]+: (.+)", text, re.MULTILINE)
    return ours[-1] if ours else text.partition("\n=== Streaming Query")[0].strip()


@contextmanager
def _told_by_check() -> Iterator[None]:
    """What ended a query is asked for afterwards, by name."""
    from pyspark.errors import StreamingQueryException

    try:
        yield
    except StreamingQueryException:
        return


def start(spark: SparkSession, config: PipelineConfig, *, once: bool = False) -> Running:
    """Start every query of a pipeline; `once`: up to what is committed now.

    Raises `UsageError` for settings that Spark refuses, or that do not suit the checkpoint.
    """
    check_same(config)
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": config.trigger}
    running = Running({})
    with ExitStack() as undo, _spark_says_no():
        undo.callback(running.stop)
        for name, writer in _writers(spark, config).items():
            writer = writer.queryName(config.query_name(name)).trigger(**trigger)
            writer = writer.option("checkpointLocation", f"{config.checkpoint}/{name}")
            running.queries[name] = started(writer)
        undo.pop_all()
    remember(config)
    return running


def _writers(spark: SparkSession, config: PipelineConfig) -> dict[str, DataStreamWriter]:
    """What makes each output that is wanted, by the name of its query."""
    found = {}
    if config.parquet:
        found[ROWS] = _to_parquet(rows(spark, config, ROWS), config.parquet)
    if (aggregate := config.aggregate) is None:
        return found
    if aggregate.parquet:
        frame = windows(rows(spark, config, WINDOWS), config, aggregate)
        found[WINDOWS] = _to_parquet(frame, aggregate.parquet)
    if aggregate.topic:
        frame = windows(rows(spark, config, RESULTS), config, aggregate)
        found[RESULTS] = _to_topic(results(frame, aggregate), config, aggregate.topic)
    return found


@contextmanager
def _spark_says_no() -> Iterator[None]:
    """A schema, an expression or an interval that Spark does not understand is a usage error; what
    fails in Java is told without where."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException

    try:
        yield
    except (AnalysisException, IllegalArgumentException, ParseException) as error:
        raise UsageError(f"pipeline: {error}") from error
    except Py4JJavaError as error:
        raise PipelineFailed(f"pipeline: {error.java_exception.toString()}") from error


# -- frames --------------------------------------------------------------------------------------


def source(spark: SparkSession, config: PipelineConfig, query: str) -> DataFrame:
    """The topics as a stream; the query's group tells how far it is."""
    options: dict[str, Any] = {
        "bootstrap.servers": config.bootstrap,
        **config.client,
        "startingOffsets": config.starting,
        "failOnDataLoss": config.fail_on_data_loss,
        "groupId": config.query_name(query),
    }
    if config.pattern:
        options["subscribePattern"] = config.pattern
    else:
        options["subscribe"] = ",".join(config.topics)
    if config.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = config.max_offsets_per_trigger
    return spark.readStream.format("hightide").options(**options).load()


def rows(spark: SparkSession, config: PipelineConfig, query: str) -> DataFrame:
    """What is read, parsed and filtered; values that do not parse pass the filter."""
    frame = source(spark, config, query)
    if config.format == "json":
        frame = _parsed(frame, config)
    if config.filter:
        from pyspark.sql import functions as f

        wanted = f.expr(config.filter)
        if config.format == "json":
            wanted = f.col(CORRUPT).isNotNull() | wanted
        frame = frame.where(wanted)
    return frame


def _parsed(frame: DataFrame, config: PipelineConfig) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType.fromDDL(config.schema)
    if not isinstance(schema, StructType):
        raise UsageError(f"schema {config.schema!r}, expected fields: carrier string, delay int")
    taken = {*EXCLUSIVE, CORRUPT} & {name.lower() for name in schema.fieldNames()}
    if taken:
        raise UsageError(
            f"field {min(taken)!r} of the schema is a column of every row: rename it in the values"
        )
    mode = "PERMISSIVE" if config.malformed == "keep" else "FAILFAST"
    options = {"mode": mode, "columnNameOfCorruptRecord": CORRUPT}
    whole = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    text = f.col("value").cast("string")
    event = f.from_json(text, whole, options).alias("event")
    # Spark takes a blank value for a row of nulls.
    refusal = f.raise_error(f.lit("MALFORMED_RECORD: a value is blank")).cast("string")
    blank = f.when(f.trim(text) == "", text if config.malformed == "keep" else refusal)
    frame = frame.select(event, blank.alias("blank"), *EXCLUSIVE)
    fields = [f.col(f"event.`{name}`") for name in schema.fieldNames()]
    corrupt = f.coalesce(f.col(f"event.{CORRUPT}"), f.col("blank")).alias(CORRUPT)
    return frame.select(*fields, corrupt, *EXCLUSIVE)


def windows(frame: DataFrame, config: PipelineConfig, aggregate: Aggregate) -> DataFrame:
    """A row for each window and group: window_start, window_end, the groups, what is computed."""
    from pyspark.sql import functions as f

    if config.format == "json":
        frame = frame.where(f.col(CORRUPT).isNull())
    frame = frame.withColumn(_EVENT_TIME, f.expr(config.event_time).cast("timestamp"))
    frame = frame.withWatermark(_EVENT_TIME, aggregate.watermark)
    window = f.window(_EVENT_TIME, aggregate.window, aggregate.slide or None).alias("_window")
    groups = [f.expr(each) for each in aggregate.by]
    computed = [f.expr(each) for each in aggregate.compute]
    grouped = frame.groupBy(window, *groups).agg(*computed)
    others = [name for name in grouped.columns if name != "_window"]
    return grouped.select(
        f.col("_window.start").alias("window_start"),
        f.col("_window.end").alias("window_end"),
        *[f.col(f"`{name}`") for name in others],
    )


def results(frame: DataFrame, aggregate: Aggregate) -> DataFrame:
    """Windows as records: JSON, the key being the groups' values with commas between them."""
    from pyspark.sql import functions as f

    names = frame.columns[2 : 2 + len(aggregate.by)]
    value = f.to_json(f.struct(*[f.col(f"`{name}`") for name in frame.columns]))
    key: Column = f.lit(None).cast("string")
    if names:
        texts = [f.coalesce(f.col(f"`{name}`").cast("string"), f.lit("")) for name in names]
        key = f.concat_ws(",", *texts)
    return frame.select(key.alias("key"), value.alias("value"))


def _to_parquet(frame: DataFrame, place: str) -> DataStreamWriter:
    return frame.writeStream.format("parquet").option("path", place)


def _to_topic(frame: DataFrame, config: PipelineConfig, topic: str) -> DataStreamWriter:
    place = {"bootstrap.servers": config.bootstrap, **config.client}
    writer = frame.writeStream.format("hightide").options(**place)
    # Windows come out of a shuffle; a store of state promises no order.
    return writer.option("topic", topic).option("sortRows", True)


# -- progress ------------------------------------------------------------------------------------


def _progress(name: str, last: Any) -> Progress:
    source = last["sources"][0]
    return Progress(
        query=name,
        batch=last["batchId"],
        rows=last["numInputRows"],
        rows_per_s=last["processedRowsPerSecond"] or 0.0,
        lag=lag(source["latestOffset"], source["endOffset"]),
    )


def _batch(progress: Any) -> FinishedBatch:
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return FinishedBatch(began, began + progress["batchDuration"] / 1000, progress["numInputRows"])


def lag(head: str | None, done: str | None) -> dict[str, int]:
    """Topic → how many records lie between two positions in a query's own JSON; nothing if one is
    not known."""
    ends = json.loads(head or "null"), json.loads(done or "null")
    if None in ends:
        return {}
    newest, behind = map(Position.from_json, ends)
    found: dict[str, int] = dict.fromkeys(sorted(newest.topic_ids), 0)
    for tp, place in newest.places.items():
        known = behind.places.get(tp)
        if known is not None:
            found[tp[0]] += max(place.offset - known.offset, 0)
    return found
