"""Many records at once, in and out: `send_many` and `poll_arrow`.

Goal: what is sent in bulk is stored as if each record had been sent alone, in order, within all
limits; what is read as Arrow is what is read record by record. Method: the pure cutter by drawn
values; producers and consumers against a cluster of this process.
"""

from __future__ import annotations

import pickle

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

import hightide
from hightide.produce.bulk import Cutter, Deliveries, Placement, by_partition
from hightide.produce.delivery import Unseen
from hightide.produce.partitioner import partition_for_key
from hightide.protocol.batch_builder import RECORD_OVERHEAD, Batch
from hightide.protocol.errors import ApiError, ErrorCode, RecordTooLarge, UsageError
from hightide.testing import cluster

blobs = st.lists(st.none() | st.binary(max_size=30), max_size=40)


# --- cutting --------------------------------------------------------------------------------------


@given(values=blobs, room=st.integers(0, 300), keyed=st.booleans())
def test_a_cutter_gives_every_record_once_in_order_within_the_room(values, room, keyed):
    keys = [value and value[:3] for value in values] if keyed else None
    cutter, found = Cutter.of(values, keys), []
    while not cutter.is_done:
        start, end, size = cutter.take(room)
        assert start < end
        sizes = [
            RECORD_OVERHEAD + len(values[n] or b"") + (len(keys[n] or b"") if keys else 0)
            for n in range(start, end)
        ]
        assert size == sum(sizes)
        assert size <= room or end == start + 1, "one that is too large goes alone"
        assert end == len(values) or size + cutter.next_size > room, "as many as fit"
        found += range(start, end)
    assert found == [*range(len(values))]


@given(keys=st.lists(st.none() | st.binary(max_size=4), max_size=30), count=st.integers(1, 5))
def test_records_are_sorted_to_the_partitions_of_their_keys_in_order(keys, count):
    places = [None if key is None else partition_for_key(key, count) for key in keys]
    found = by_partition(places)
    assert sorted(index for own in found.values() for index in own) == list(range(len(keys)))
    for number, own in found.items():
        assert own == sorted(own)
        assert {places[index] for index in own} == {number}


def test_a_placement_finds_each_record_that_is_buffered_and_no_other():
    one, other, third = (Batch("t", n, 0.0, (n,)) for n in range(3))
    placement = Placement()
    parts = placement.group([0, 3, 4, 7])
    parts += [(one, 5, 1), (other, 0, 2)]
    placement.group([1, 2, 9]).append((third, 8, 2))
    found = {index: placement.find(index) for index in range(12)}
    assert {index: each._place() for index, each in found.items() if each} == {
        0: (one, 5),
        3: (other, 0),
        4: (other, 1),
        1: (third, 8),
        2: (third, 9),
    }
    assert placement.parts() == [(one, 5, 1), (other, 0, 2), (third, 8, 2)]


async def test_ranges_follow_batches_that_were_split():
    whole, one, other = (Batch("t", 0, 0.0, (n,)) for n in range(3))
    for batch, size in ((whole, 5), (one, 2), (other, 3)):
        batch.values = [b"x"] * size
    whole.parts, whole.is_done = [one, other], True
    one.base_offset, other.base_offset = 10, 20
    sent = Deliveries([(whole, 1, 4)])
    assert (len(sent), sent.is_done) == (4, False)
    one.is_done = other.is_done = True
    assert [(r.offset, r.length) for r in await sent] == [(11, 1), (20, 3)]
    other.error, unseen = ApiError(ErrorCode.MESSAGE_TOO_LARGE), Unseen()
    other.seen = unseen.add(other.error)
    with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
        await sent
    assert unseen.error is None


def test_a_refusal_survives_the_way_from_another_process():
    error = ApiError(ErrorCode.NOT_COORDINATOR, "elsewhere", broker="b:1", attempts=3, knob="k")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.retriable) == (str(error), error.code, True)


# --- through brokers ------------------------------------------------------------------------------


async def test_bulk_is_stored_in_order_and_its_ranges_say_where():
    values = [b"%d" % number if number % 7 else None for number in range(2000)]
    async with cluster(brokers=1) as c:
        async with hightide.Admin(c.bootstrap) as admin:
            await admin.create_topic("t", partitions=3)
        async with hightide.Producer(c.bootstrap, batch_size=500, buffer_memory=4000) as producer:
            one = await producer.send("t", b"first", partition=1)
            sent = await producer.send_many("t", values, partition=1, timestamp=5)
            keyed = await producer.send_many("t", [b"a", b"b", b"c"], keys=[b"k", None, b"k"])
            loose = await producer.send_many("t", [b"x"] * 100)
            assert (await one).offset == 0
            ranges = await sent
            assert sum(each.length for each in await keyed) == 3
            assert sum(each.length for each in await loose) == 100
            assert await (await producer.send_many("t", [])) == []
        assert [r.offset for r in ranges] == [
            1 + sum(x.length for x in ranges[:n]) for n in range(len(ranges))
        ]
        found = await read_all(c, 1, 2001)
        assert [r.value for r in found[:2001]] == [b"first", *values]
        assert {r.timestamp for r in found[1:2001]} == {5}
        expected = partition_for_key(b"k", 3)
        assert [r.value for r in await read_all(c, expected, 2) if r.key == b"k"] == [b"a", b"c"]


async def read_all(c, partition, least):
    found = []
    async with hightide.Consumer(
        c.bootstrap, partitions=[("t", partition)], auto_offset_reset="earliest"
    ) as consumer:
        with trio.fail_after(PATIENCE_S):
            while len(found) < least:
                found += await consumer.poll(timeout_ms=200)
    return found


async def test_wrong_use_of_bulk_is_a_sentence_and_sends_nothing():
    async with cluster(brokers=1) as c:
        async with hightide.Admin(c.bootstrap) as admin:
            await admin.create_topic("t")
        async with hightide.Producer(c.bootstrap, max_request_size=1000) as producer:
            for values, options, why in [
                ([b"a", "b"], {}, "values are bytes or None, not 'b'"),
                ([b"a"], {"keys": [1]}, "keys are bytes or None, not 1"),
                ([b"a"], {"keys": [b"k", b"l"]}, "2 keys for 1 value"),
                ([b"a"], {"partition": 1}, "partition 1, topic 't' has 0 to 0"),
                ([b"a"], {"timestamp": -5}, "timestamp -5"),
            ]:
                with pytest.raises(UsageError, match=why):
                    await producer.send_many("t", values, **options)
            with pytest.raises(RecordTooLarge, match="max_request_size is 1000"):
                await producer.send_many("t", [b"a", b"x" * 1000])
            assert (await (await producer.send("t", b"the only one"))).offset == 0


async def test_arrow_has_what_record_by_record_has():
    pa = pytest.importorskip("pyarrow")
    values = [b"%d" % number for number in range(500)]
    async with cluster(brokers=1) as c:
        async with hightide.Admin(c.bootstrap) as admin:
            await admin.create_topic("t")
        async with hightide.Producer(c.bootstrap, batch_size=700) as producer:
            await (await producer.send_many("t", values))
        async with hightide.Consumer(
            c.bootstrap, group_id="g", topics=["t"], auto_offset_reset="earliest"
        ) as consumer:
            first = []
            while not first:
                first = await consumer.poll(timeout_ms=200, max_records=7)
            tables = []
            with trio.fail_after(PATIENCE_S):
                while sum(map(len, tables)) < 500 - len(first):
                    table = await consumer.poll_arrow(timeout_ms=200)
                    tables += [table] if table is not None else []
            assert await consumer.poll_arrow() is None
            assert consumer.position("t", 0) == 500
        rows = pa.Table.from_batches(tables)
        assert [r.value for r in first] + rows.column("value").to_pylist() == values
        assert rows.column("offset").to_pylist() == [*range(len(first), 500)]
        async with hightide.Admin(c.bootstrap) as admin:
            assert [each.committed for each in await admin.group_lag("g")] == [500]
