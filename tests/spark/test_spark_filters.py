"""What a WHERE leaves to be fetched: never too little, and little where it says so.

Goal: rows that Spark would keep are always fetched. Method: conditions over a small log, drawn at
random, against the plain meaning of the conditions; then a query with and without the option, whose
tasks tell how much they were asked to read.
"""

# ruff: noqa: F811 - fixtures are imported by name

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from secure_run import direct, spark_options
from spark_support import broker, numbered, spark  # noqa: F401

from hightide.protocol.errors import UsageError
from hightide.spark.client import client_for
from hightide.spark.filters import bounds_of
from hightide.spark.options import read_options
from hightide.spark.ranges import OffsetRange
from hightide.spark.source import FilteringReader, HightideReader

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOG = [(t, p, o) for t in ("a", "b") for p in range(3) for o in range(6)]
"""topic, partition, offset; the time of a record is ten seconds for each offset."""
MEANING = {
    EqualTo: lambda found, wanted: found == wanted,
    GreaterThan: lambda found, wanted: found > wanted,
    GreaterThanOrEqual: lambda found, wanted: found >= wanted,
    LessThan: lambda found, wanted: found < wanted,
    LessThanOrEqual: lambda found, wanted: found <= wanted,
    In: lambda found, wanted: found in wanted,
}


def at(seconds):
    return EPOCH + timedelta(seconds=seconds)


def column(row, name):
    topic, partition, offset = row
    values = {"topic": topic, "partition": partition, "offset": offset}
    return {**values, "timestamp": at(offset * 10)}[name]


VALUES = {
    "topic": st.sampled_from("abc"),
    "partition": st.integers(-1, 3),
    "offset": st.integers(-1, 7),
    "timestamp": st.integers(-1, 70).map(at),
}
CONDITIONS = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.one_of(
        st.builds(
            lambda kind, value: kind((name,), value),
            st.sampled_from([kind for kind in MEANING if kind is not In]),
            VALUES[name],
        ),
        st.lists(VALUES[name], min_size=1, max_size=3).map(lambda found: In((name,), found)),
    )
)


def since(bounds, rows):
    """The offset of the first row of that time, as a broker finds it; behind the last if none."""
    times = [offset for _, _, offset in rows if offset * 10_000 >= bounds.since_ms]
    return min(times, default=rows[-1][2] + 1)


@given(st.lists(CONDITIONS, max_size=4))
def test_every_row_that_passes_is_fetched(conditions):
    bounds = bounds_of(conditions)
    for topic, partition in {row[:2] for row in LOG}:
        rows = [row for row in LOG if row[:2] == (topic, partition)]
        whole = OffsetRange(topic, "id", partition, 0, len(rows))
        left = bounds.cut(whole, since(bounds, rows))
        for row in rows:
            if all(MEANING[type(c)](column(row, c.attribute[0]), c.value) for c in conditions):
                assert left is not None
                assert left.start <= row[2] < left.end


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ([EqualTo(("offset",), 4)], (4, 5)),
        ([GreaterThanOrEqual(("offset",), 2), LessThanOrEqual(("offset",), 3)], (2, 4)),
        ([In(("offset",), [5, 3])], (3, 6)),
        ([GreaterThan(("offset",), 90)], None),
        ([EqualTo(("partition",), 1)], None),
        ([EqualTo(("topic",), "b")], None),
        ([In(("topic",), ["a", "b"]), EqualTo(("partition",), 0)], (0, 10)),
        ([IsNotNull(("offset",)), Not(EqualTo(("offset",), 4))], (0, 10)),
        ([EqualTo(("value", "offset"), 4)], (0, 10)),
    ],
)
def test_a_range_is_cut_to_what_is_wanted(conditions, left):
    found = bounds_of(conditions).cut(OffsetRange("a", "id", 0, 0, 10), 0)
    assert left == (None if found is None else (found.start, found.end))


def test_the_reader_filters_if_it_was_asked_to():
    options = {"bootstrap.servers": "b:1", "subscribe": "t"}
    assert not read_options(options, streaming=False).push_down_filters
    assert read_options({**options, "pushDownFilters": "true"}, streaming=False).push_down_filters
    with pytest.raises(UsageError, match="pushDownFilters"):
        read_options({**options, "pushDownFilters": "yes please"}, streaming=False)


@pytest.mark.live
@pytest.mark.slow
def test_a_reader_plans_what_the_filters_leave(broker):
    topic = broker.topic(2)
    for partition in (0, 1):
        broker.fill(topic, numbered(0, 20), partition)
    given_options = {**spark_options(broker.address), "subscribe": topic}
    options = read_options(given_options, streaming=False)
    reader = FilteringReader(options)
    filters = [GreaterThan(("offset",), 7), EqualTo(("partition",), 1)]
    assert list(reader.pushFilters(filters)) == filters, "Spark is to apply them, too"
    (planned,) = reader.partitions()
    assert str(planned.wanted) == f"{topic}-1[7, 20)"
    later = [GreaterThan(("timestamp",), datetime.now(UTC) + timedelta(days=1))]
    reader.pushFilters(later)
    assert [each.wanted.end for each in reader.partitions()] == [0]
    assert len(HightideReader(options).partitions()) == 2
    client_for(*direct(broker.address)).close()


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("pushes", ["true", "false"])
def test_a_query_finds_the_same_rows_either_way(spark, broker, pushes):
    topic = broker.topic(2)
    for partition in (0, 1):
        broker.fill(topic, numbered(0, 30), partition)
    reader = spark.read.format("hightide").options(**spark_options(broker.address))
    frame = reader.option("subscribe", topic).option("pushDownFilters", pushes).load()
    wanted = frame.where(
        "offset > 4 AND offset <= 9 AND partition = 1 AND timestamp > '2020-01-01'"
    )
    found = wanted.select("partition", "offset").collect()
    assert sorted(map(tuple, found)) == [(1, offset) for offset in range(5, 10)]
