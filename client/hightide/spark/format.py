"""`format("hightide")`: what Spark asks for readers and writers.

Every look-up of a data source in Spark imports this, so it imports nothing heavy; pyarrow comes
when the first batch is built.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from hightide.spark.schema import named, schema_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from hightide.spark.options import SourceOptions


class HightideDataSource(DataSource):
    """Reads committed records of topics and writes rows to them, in batches and as a stream."""

    @classmethod
    def name(cls) -> str:
        return "hightide"

    def schema(self) -> StructType:
        from hightide.spark.options import read_options

        # Options are checked here, so that a wrong one fails at `load()` and not later. Who names a
        # schema is not asked for this one: then it fails when the query is planned.
        return _own(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from hightide.spark.options import read_options
        from hightide.spark.source import FilteringReader, HightideReader

        options = _reading(read_options(self.options, streaming=False), schema)
        return FilteringReader(options) if options.push_down_filters else HightideReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from hightide.spark.options import read_options
        from hightide.spark.source import HightideStreamReader

        return HightideStreamReader(_reading(read_options(self.options, streaming=True), schema))

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


def _own(options: SourceOptions) -> StructType:
    return schema_of(
        include_headers=options.include_headers, include_leader_epoch=options.include_leader_epoch
    )


def _reading(options: SourceOptions, schema: StructType) -> SourceOptions:
    """The options with the columns that the query named; raises `UsageError`."""
    return replace(options, named=named(_own(options), schema))
