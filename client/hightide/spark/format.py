"""`format("hightide")`: what Spark asks for readers and writers.

Every look-up of a data source in Spark imports this, so it imports nothing heavy; pyarrow comes
when the first batch is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

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
