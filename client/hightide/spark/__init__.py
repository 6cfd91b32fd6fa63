"""hightide in Spark: `spark.read` and `spark.readStream.format("hightide")`, and a ready session.

Columns and options are those of Spark's Kafka source. This module is imported by every look-up of a
data source in Spark, so it imports nothing heavy; pyarrow comes when the first batch is built.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

__all__ = ["HightideDataSource", "session", "started"]

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
_HEADERS = ", headers array<struct<key: string, value: binary>>"
_LEADER_EPOCH = ", leader_epoch int"


class HightideDataSource(DataSource):
    """Reads committed records of topics and writes rows to them, in batches and as a stream."""

    @classmethod
    def name(cls) -> str:
        return "hightide"

    def schema(self) -> str:
        from hightide.spark.options import read_options

        # Options are checked here, so that a wrong one fails at `load()` and not in a task.
        options = read_options(self.options)
        epoch = _LEADER_EPOCH if options.include_leader_epoch else ""
        return SCHEMA + (_HEADERS if options.include_headers else "") + epoch

    def reader(self, schema: StructType) -> DataSourceReader:
        from hightide.spark.options import read_options
        from hightide.spark.source import FilteringReader, HightideReader

        options = read_options(self.options, streaming=False)
        return FilteringReader(options) if options.push_down_filters else HightideReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from hightide.spark.options import read_options
        from hightide.spark.source import HightideStreamReader

        return HightideStreamReader(read_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from hightide.spark.options import read_sink_options
        from hightide.spark.sink import HightideWriter, check_schema, refuse_overwrite

        options = read_sink_options(self.options)
        check_schema(schema, options)
        refuse_overwrite(overwrite)
        return HightideWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from hightide.spark.options import read_sink_options
        from hightide.spark.sink import HightideStreamWriter, check_schema

        options = read_sink_options(self.options)
        check_schema(schema, options)
        return HightideStreamWriter(options, schema)


def session(
    app_name: str = "hightide", master: str | None = None, conf: Mapping[str, Any] | None = None
) -> SparkSession:
    """A session with the settings that suit this source, `conf` over them; see
    `hightide.spark.builder`. `master` None: all cores of this machine, or what `spark-submit`
    was told."""
    from hightide.spark.builder import make_session

    return make_session(app_name, master, conf or {})


def started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query as `writer.start()` does, and wait until its sources are up. On a busy machine
    they may need longer than Spark waits, which no setting changes; then it is started again."""
    from hightide.spark import starts

    return starts.started(writer)


def _use_this_python() -> None:
    """Have a session that is made after this import start its Python processes with the Python that
    has this module. Spark takes the `python3` of PATH, which is another one in a virtual
    environment that is not activated. What `PYSPARK_PYTHON` or `spark-submit` said stays."""
    if {"PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT"} & os.environ.keys() or not sys.executable:
        return
    taken = shutil.which("python3")
    if taken is None or not _is_this_python(taken):
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _is_this_python(path: str) -> bool:
    # Both: an environment's Python is a link to another one, which has not the same packages; and
    # beside each other may lie several versions.
    in_one_place = os.path.dirname(path) == os.path.dirname(sys.executable)
    return in_one_place and os.path.realpath(path) == os.path.realpath(sys.executable)


_use_this_python()
