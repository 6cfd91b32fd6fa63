"""The columns of the source, and those of them that a query names by `.schema(…)`.

Spark asks a Python source for every column, whatever its query needs, so who names fewer spares the
JVM the others. What every record has is NOT NULL, which spares it a look at each value; a query may
call it nullable. Every look-up of a data source imports this: nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hightide.protocol.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def schema_of(*, include_headers: bool = False, include_leader_epoch: bool = False) -> StructType:
    """The columns of Spark's Kafka source, of the types of `arrow.to_arrow.schema`."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("timestampType", IntegerType(), nullable=False),
    ]
    if include_headers:
        fields.append(StructField("headers", ArrayType(_HEADER)))
    if include_leader_epoch:
        fields.append(StructField("leader_epoch", IntegerType(), nullable=False))
    return StructType(fields)


@dataclass(frozen=True, slots=True)
class Named:
    """Columns that a query named, and which of them it takes for nullable."""

    columns: dict[str, bool]

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """These columns of rows that have all; nothing is copied."""
        import pyarrow as pa

        fields = [rows.schema.field(each).with_nullable(may) for each, may in self.columns.items()]
        found = [rows.column(each) for each in self.columns]
        return pa.RecordBatch.from_arrays(found, schema=pa.schema(fields))


def named(own: StructType, wanted: StructType) -> Named | None:
    """What a query reads of a source's own columns; None for all of them as they are. Raises
    `UsageError` for columns that the source has not, or not so."""
    if wanted == own:
        return None
    if not wanted.fields:
        raise UsageError(f"schema names no column, expected some of {', '.join(own.names)}")
    for field in wanted.fields:
        if field.name not in own.names:
            raise UsageError(
                f"schema names column {field.name!r}, expected some of {', '.join(own.names)}"
                + did_you_mean(field.name, own.names)
            )
        if wanted.names.count(field.name) > 1:
            raise UsageError(f"schema names column {field.name!r} more than once")
        ours = own[field.name]
        if field.dataType != ours.dataType:
            found, expected = field.dataType.simpleString(), ours.dataType.simpleString()
            raise UsageError(f"schema says that {field.name} is {found}, expected {expected}")
        if ours.nullable and not field.nullable:
            raise UsageError(f"schema says that {field.name} is NOT NULL, but it may be null")
    return Named({field.name: field.nullable for field in wanted.fields})
