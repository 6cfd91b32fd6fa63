"""Rows of Arrow tables become the same records as sent one by one.

Goal: `send_arrow` is `send` for every row, but faster: same partitions, same bytes, same order per
partition. Method: properties over any columns against the plain encoding, and `FakeBroker`.
"""

import random

import numpy as np
import pyarrow as pa
import pytest
from fake_broker import FakeBroker, in_memory, refuse
from hypothesis import given
from hypothesis import strategies as st
from secure_run import blocking_cluster, reaching

from hightide import Producer, blocking
from hightide.arrow.from_arrow import (
    ArrowBatch,
    Rows,
    chunks,
    hashes_of,
    in_one_order,
    partitions_of,
    places_of,
    rows_of,
)
from hightide.produce.partitioner import partition_for_key
from hightide.protocol import messages as m
from hightide.protocol.columns import to_records
from hightide.protocol.errors import RecordTooLarge, UsageError
from hightide.protocol.records import parse_header

NOW = 1_700_000_000_000
PAIR = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
blobs = st.none() | st.binary(max_size=20)
pairs = st.none() | st.lists(st.tuples(st.text(max_size=3), blobs), max_size=3)
times = st.none() | st.integers(0, 1 << 41)
rows_in = st.lists(st.tuples(blobs, blobs, times, pairs), min_size=1, max_size=12)


def batch_of(rows, *, kind=None):
    """Tuples (key, value, timestamp, headers) as a record batch."""
    keys, values, stamps, headers = zip(*rows, strict=True)
    kind = kind or pa.binary()
    listed = [h and [{"key": k, "value": v} for k, v in h] for h in headers]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, kind),
            pa.array(values, kind),
            pa.array(stamps, pa.timestamp("ms")),
            pa.array(listed, PAIR),
        ],
        names=["key", "value", "timestamp", "headers"],
    )


def records_of(rows: Rows):
    """What a reader sees of rows that were sent as a batch."""
    batch = ArrowBatch("t", 0, 0.0, (1,), rows)
    data = batch.encode("none", -1, -1)
    assert [batch.timestamp(n) for n in range(len(batch))] == rows.times.tolist()
    return to_records(data, parse_header(data), "t", 0)


def expected_of(rows):
    return [(k, v, NOW if t is None else t, tuple(h or ())) for k, v, t, h in rows]


def seen_of(records):
    return [(r.key, r.value, r.timestamp, r.headers) for r in records]


@given(rows_in, st.data())
def test_any_rows_are_read_back_as_they_are_and_so_are_their_parts(rows, data):
    whole = rows_of(batch_of(rows), NOW)
    assert seen_of(records_of(whole)) == expected_of(rows)
    start = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(start + 1, len(rows)))
    part = ArrowBatch("t", 0, 0.0, (1,), whole).part(1, start, end)
    assert seen_of(records_of(part.rows)) == expected_of(rows[start:end])
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))
    taken = whole.take(pa.array(picked).to_numpy())
    assert seen_of(records_of(taken)) == expected_of([rows[n] for n in picked])
    sliced = rows_of(batch_of(rows).slice(start), NOW)
    assert seen_of(records_of(sliced)) == expected_of(rows[start:])


@given(rows_in)
def test_sizes_are_those_of_single_records(rows):
    sums = rows_of(batch_of(rows), NOW).sizes().tolist()
    for n, (key, value, _, headers) in enumerate(rows):
        size = 24 + len(key or b"") + len(value or b"")
        size += sum(len(name.encode()) + len(v or b"") + 8 for name, v in headers or ())
        assert sums[n + 1] - sums[n] == size


@given(st.lists(st.none() | st.binary(max_size=70), min_size=1), st.integers(1, 50))
def test_keys_go_where_kafka_puts_them(keys, count):
    found = partitions_of(pa.array(keys, pa.binary()), count).tolist()
    assert found == [partition_for_key(key or b"", count) for key in keys]
    rows = rows_of(pa.RecordBatch.from_pydict({"key": keys, "value": keys}), NOW)
    chunk = pa.RecordBatch.from_pydict({"key": keys, "value": keys})
    places = places_of(chunk, rows, count).tolist()
    assert places == [-1 if key is None else partition_for_key(key, count) for key in keys]


@given(st.lists(st.none() | st.binary(max_size=300), min_size=1), st.data())
def test_a_value_has_the_same_number_whatever_stands_beside_it(values, data):
    column = pa.array(values, pa.binary())
    alone = [int(hashes_of(pa.array([value or b""], pa.binary()))[0]) for value in values]
    assert hashes_of(column).tolist() == alone
    start = data.draw(st.integers(0, len(values)))
    assert hashes_of(column.slice(start)).tolist() == alone[start:]
    assert min(alone) >= 0


def test_a_value_s_number_is_that_of_every_version():
    """Who writes a batch again may be a newer one, and has to find its rows where they are."""
    values = [b"", b"seven b", b"eight by", b"nine byte", b"a" * 63, b"b" * 128, b"c" * 129]
    assert hashes_of(pa.array(values, pa.binary())).tolist() == [
        *(0, 382622595, 2082331515, 1352858870, 69774998, 1752569279, 2630056692)
    ]


@pytest.mark.parametrize(
    "shape",
    [
        lambda n: b"%d" % n,
        lambda n: b"%012d" % n,
        lambda n: b'{"id": %d, "name": "nobody", "at": [0, 0]}' % n,
        lambda n: n.to_bytes(8, "little"),
        lambda n: n.to_bytes(8, "big"),
        lambda n: b"x" * 40 + n.to_bytes(3, "big") + b"y" * 40,
        lambda n: b"same" * 10 + n.to_bytes(40, "little"),
        lambda n: (n // 251).to_bytes(8, "big") + (n % 251).to_bytes(8, "big"),
        lambda n: bytes([n % 251]) * (n // 251 + 1),
    ],
)
@pytest.mark.parametrize("count", [2, 3, 16, 100])
def test_values_are_spread_evenly_over_partitions(shape, count):
    values = pa.array([shape(n) for n in range(251 * count)], pa.binary())
    rows_of_each = np.bincount(hashes_of(values) % count, minlength=count)
    assert rows_of_each.min() > 251 * 0.6
    assert rows_of_each.max() < 251 * 1.5


few = st.none() | st.sampled_from([b"", b"\0", b"a"])
alike = st.tuples(few, few, st.none(), st.none() | st.lists(st.tuples(st.just("h"), few)))


@given(st.lists(alike, min_size=1, max_size=12), st.randoms())
def test_rows_leave_in_one_order_whichever_they_come_in(rows, luck):
    mixed = luck.sample(rows, len(rows))
    seen = []
    for each in (rows, mixed):
        (chunk,) = in_one_order(pa.Table.from_batches([batch_of(each)])).to_batches()
        seen.append(seen_of(records_of(rows_of(chunk, NOW))))
    assert seen[0] == seen[1]
    assert sorted(seen[0], key=repr) == sorted(expected_of(rows), key=repr)


def test_bytes_under_a_null_are_left_out():
    hidden = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.array([0, 1, 3, 4], pa.int32()).buffers()[1],
            pa.py_buffer(b"abbc"),
        ],
    )
    rows = rows_of(pa.RecordBatch.from_arrays([hidden], names=["value"]), NOW)
    assert [r.value for r in records_of(rows)] == [b"a", None, b"c"]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary(2), pa.binary()], ids=str
)
def test_text_and_every_kind_of_bytes_are_taken(kind):
    chunk = pa.RecordBatch.from_arrays([pa.array(["ab", None, "cd"], kind)], names=["value"])
    assert [r.value for r in records_of(rows_of(chunk, NOW))] == [b"ab", None, b"cd"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": [b"k"]}, "expected value"),
        ({"value": [b"v"], "colour": [1]}, "colour"),
        ({"value": [5]}, "column value is int64, expected binary or string"),
        ({"value": [b"v"], "timestamp": ["now"]}, "column timestamp is string"),
        ({"value": [b"v"], "timestamp": [-5]}, "timestamps -5 to -5"),
        ({"value": [b"v"], "headers": ["x"]}, "column headers is string"),
        ({"value": [b"v"], "partition": ["x"]}, "column partition is string"),
        ({"value": [b"v"], "partition": [4]}, "none of 0 to 2"),
        ({"value": [b"v"], "partition": [-1]}, "none of 0 to 2"),
        ({"value": [b"v"], "topic": [None]}, "names no topic"),
    ],
)
async def test_columns_that_make_no_sense_are_refused_and_nothing_is_sent(columns, words):
    broker = FakeBroker({"t": 3})
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        topic = None if "topic" in columns else "t"
        with pytest.raises(UsageError, match=words):
            await producer.send_arrow(pa.table(columns), topic)
    assert broker.count(m.ProduceRequest) == 0


def producer_of(broker, network, **options):
    return Producer(broker.address, network=network, random=random.Random(1), **options)


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_rows_are_where_single_records_would_be_in_their_order(codec, autojump_clock):
    rng = random.Random(3)
    keys = [rng.choice([None, b"%d" % rng.randrange(50)]) for _ in range(2_000)]
    values = [b"%d" % n for n in range(2_000)]
    broker = FakeBroker({"t": 5})
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, batch_size=4_000, compression_type=codec) as producer,
    ):
        sent = await producer.send_arrow(pa.table({"key": keys, "value": values}), "t")
        ranges = await sent
    assert len(sent) == sum(each.length for each in ranges) == 2_000
    seen = {}
    for place in range(5):
        records = broker.logs[("t", place)].records()
        seen |= {int(r.value): (place, r.key) for r in records}
        for kind in (True, False):
            numbers = [int(r.value) for r in records if (r.key is None) == kind]
            assert numbers == sorted(numbers)
    assert [seen[n][1] for n in range(2_000)] == keys
    assert all(k is None or p == partition_for_key(k, 5) for p, k in seen.values())
    assert len({p for p, k in seen.values() if k is None}) > 1


async def test_a_column_may_name_the_topic_and_the_partition(autojump_clock):
    broker = FakeBroker({"a": 2, "b": 3})
    table = pa.table(
        {
            "topic": ["a", "b", "a", "b"],
            "partition": pa.array([1, 2, 0, None], pa.int32()),
            "value": ["one", "two", "three", "four"],
            "key": [None, None, None, "k"],
        }
    )
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        await (await producer.send_arrow(table))
    assert broker.values("a", 1) == [b"one"]
    assert broker.values("a", 0) == [b"three"]
    assert broker.values("b", 2)[0] == b"two"
    assert b"four" in broker.values("b", partition_for_key(b"k", 3))


async def test_more_rows_than_memory_wait_for_room(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, buffer_memory=20_000, batch_size=7_000) as producer,
    ):
        values = [b"%06d" % n * 10 for n in range(3_000)]
        await producer.send_arrow(pa.table({"value": values}), "t")
    assert broker.values() == values


async def test_a_batch_that_is_too_large_for_the_topic_is_split(autojump_clock):
    broker = FakeBroker({"t": 1})
    broker.will(m.ProduceRequest, refuse("MESSAGE_TOO_LARGE"))
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        sent = await producer.send_arrow(pa.table({"value": [b"%d" % n for n in range(9)]}), "t")
        assert sum(each.length for each in await sent) == 9
    assert broker.values() == [b"%d" % n for n in range(9)]


async def test_a_row_that_is_too_large_is_refused_before_any_is_sent(autojump_clock):
    broker = FakeBroker({"t": 1})
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, max_request_size=1_000) as producer,
    ):
        with pytest.raises(RecordTooLarge, match="record of 1024 bytes, max_request_size is 1000"):
            await producer.send_arrow(pa.table({"value": [b"a", b"x" * 1000]}), "t")
    assert broker.values() == []


def test_a_table_is_cut_into_pieces_of_bounded_size():
    table = pa.table({"value": pa.array([b"x"] * 150_000)})
    assert [len(each) for each in chunks(table)] == [65_536, 65_536, 18_928]


# --- a partitioner of one's own -----------------------------------------------------------------


def by_length(topic, key, value, count):
    assert topic == "t"
    return len(value or key) % count


async def test_a_partitioner_of_one_s_own_decides_however_records_are_sent(autojump_clock):
    broker = FakeBroker({"t": 3})
    values = [b"x" * n for n in (1, 2, 3, 4, 5)]
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, partitioner=by_length) as producer,
    ):
        for value in values:
            await producer.send("t", value)
        await producer.send_many("t", values)
        await producer.send_many("t", values, keys=[b"k"] * 5)
        await producer.send_arrow(pa.table({"value": values}), "t")
        await producer.send("t", b"here", partition=2)
    for place, own in ((0, [b"xxx"]), (1, [b"x", b"xxxx"]), (2, [b"xx", b"xxxxx"])):
        assert broker.values("t", place) == own * 4 + ([b"here"] if place == 2 else [])


@pytest.mark.parametrize("place", [-1, 3])
async def test_a_partition_that_does_not_exist_is_refused(place, autojump_clock):
    broker = FakeBroker({"t": 3})
    async with (
        in_memory(broker) as network,
        producer_of(broker, network, partitioner=lambda *_: place) as producer,
    ):
        for send in (
            producer.send("t", b"v"),
            producer.send_many("t", [b"v"]),
            producer.send_arrow(pa.table({"value": [b"v"]}), "t"),
        ):
            with pytest.raises(UsageError, match="0 to 2"):
                await send
    assert broker.count(m.ProduceRequest) == 0


# --- a real broker ------------------------------------------------------------------------------


@pytest.mark.live
def test_a_table_makes_the_round_trip_through_a_real_broker():
    table = pa.table({"value": [b"a", None, b"c"], "key": ["x", None, ""]})
    with blocking_cluster(1) as cluster:
        way = reaching(cluster.bootstrap)
        with blocking.Admin(**way) as admin, blocking.Producer(**way) as producer:
            admin.create_topic("t", partitions=2)
            producer.send_arrow(table, "t").result()
        with blocking.Consumer(**way, topics=["t"], auto_offset_reset="earliest") as consumer:
            found = []
            while len(found) < 3:
                found += consumer.poll(timeout_ms=5_000)
    assert sorted((r.key, r.value) for r in found if r.value is not None) == [
        (b"", b"c"),
        (b"x", b"a"),
    ]
