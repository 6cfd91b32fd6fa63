"""The columns of the Spark source: which may be null, and what `.schema(…)` makes of them.

The pure part needs no Spark but its types; the queries run against a broker process and say what is
read of each record.
"""

# ruff: noqa: F811 - fixtures are imported by name

import pickle

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from patience import PATIENCE_MS
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType
from secure_run import reaching, spark_options
from spark_support import batch_query, broker, numbered, spark, stream  # noqa: F401

from hightide.arrow.to_arrow import schema
from hightide.blocking import Consumer
from hightide.protocol.errors import UsageError
from hightide.spark.schema import named, schema_of

ALWAYS = ["topic", "partition", "offset", "timestamp", "timestampType"]
MORE = {"include_headers": True, "include_leader_epoch": True}


def field(name, kind, nullable=True):
    return StructType([StructField(name, kind, nullable)])


# -- pure ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, MORE])
def test_the_types_are_those_of_the_rows(more):
    assert to_arrow_schema(schema_of(**more), timezone="UTC") == schema(**more)


def test_what_every_record_has_is_not_null():
    assert [each.name for each in schema_of().fields if not each.nullable] == ALWAYS


def test_a_query_that_names_nothing_else_reads_rows_as_they_are():
    assert named(schema_of(), schema_of()) is None


def test_columns_are_read_in_the_order_of_the_query_without_a_copy():
    wanted = StructType([*field("offset", LongType()), *field("value", BinaryType())])
    columns = [pa.array([b"v", None]), pa.array([7, 8])]
    own = pa.schema([("value", pa.binary()), pa.field("offset", pa.int64(), nullable=False)])
    rows = pa.RecordBatch.from_arrays(columns, schema=own)
    found = pickle.loads(pickle.dumps(named(schema_of(), wanted))).of(rows)
    assert found.schema == pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    assert found.to_pylist() == [{"offset": 7, "value": b"v"}, {"offset": 8, "value": None}]
    assert found["offset"].buffers()[1].address == rows["offset"].buffers()[1].address


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (StructType([]), "names no column, expected some of key, value, topic"),
        (field("valeu", BinaryType()), "names column 'valeu', expected some of key, value"),
        (field("OFFSET", LongType()), "names column 'OFFSET', .*, did you mean offset"),
        (StructType([*field("key", BinaryType())] * 2), "names column 'key' more than once"),
        (field("headers", BinaryType()), "names column 'headers', expected some of key, value"),
        (field("offset", IntegerType()), "says that offset is int, expected bigint"),
        (field("key", BinaryType(), nullable=False), "says that key is NOT NULL, but it may be"),
    ],
)
def test_columns_that_the_source_has_not_are_refused(wanted, why):
    with pytest.raises(UsageError, match=f"schema {why}"):
        named(schema_of(), wanted)


# -- queries -------------------------------------------------------------------------------------


@pytest.fixture
def filled(broker):
    topic = broker.topic()
    broker.fill(topic, numbered(0, 3))
    return topic


ROWS = [(offset, b"%06d" % offset) for offset in range(3)]


def reader(spark, broker, topic):
    made = spark.read.format("hightide").options(**spark_options(broker.address))
    return made.option("subscribe", topic)


def rows_of(frame):
    return sorted((row["offset"], bytes(row["value"])) for row in frame.collect())


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_knows_what_is_never_null(spark, broker, filled):
    frame = batch_query(spark, broker, filled, includeHeaders="true", includeLeaderEpoch="true")
    assert [each.name for each in frame.schema if not each.nullable] == [*ALWAYS, "leader_epoch"]
    assert rows_of(frame) == ROWS
    assert frame.where("offset IS NULL").count() == 0


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["offset bigint, value binary", "value binary, offset bigint"])
def test_a_batch_reads_the_columns_that_it_names(spark, broker, filled, kinds):
    frame = reader(spark, broker, filled).schema(kinds).load()
    assert [f"{name} {kind}" for name, kind in frame.dtypes] == kinds.split(", ")
    assert rows_of(frame) == ROWS
    assert rows_of(frame.where("offset > 0")) == ROWS[1:]
    assert frame.count() == 3


@pytest.mark.spark
@pytest.mark.slow
def test_a_schema_that_calls_every_column_nullable_is_read(spark, broker, filled):
    own = batch_query(spark, broker, filled).schema
    nullable = StructType([StructField(each.name, each.dataType) for each in own])
    frame = reader(spark, broker, filled).schema(nullable).load()
    assert all(each.nullable for each in frame.schema)
    assert rows_of(frame) == ROWS


@pytest.mark.spark
@pytest.mark.slow
def test_a_stream_reads_the_columns_that_it_names(filled, stream):
    found = []
    stream.run(
        lambda frame, _: found.extend([frame.columns, *rows_of(frame)]),
        subscribe=filled,
        schema="value binary, offset bigint",
    )
    assert found == [["value", "offset"], *ROWS]


@pytest.mark.spark
@pytest.mark.slow
def test_a_column_that_is_none_of_the_sources_is_refused_by_name(spark, broker, filled):
    with pytest.raises(PySparkException, match="schema names column 'valeu', expected some of"):
        reader(spark, broker, filled).schema("valeu binary").load().count()


def test_rows_of_a_consumer_have_the_same_columns(broker, filled):
    with Consumer(**reaching(broker.address), topics=[filled], auto_offset_reset="earliest") as one:
        rows = one.poll_arrow(timeout_ms=PATIENCE_MS)
    assert rows is not None
    assert rows.schema == schema()
