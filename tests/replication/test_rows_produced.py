"""Batches of Kafka's rows through a node: stored as they came, read by its own clients.

Goal: what holds for a produced batch holds for one of rows: it is stored byte for byte, once,
committed, found by time; and none is stored before all brokers can read it. Method: one node on a
simulated disk; the batches come by our own protocol.
"""

import pytest
from brokers import NOW_MS, batch, broker, client_of, new_node

from hightide.protocol.conversion import to_rows
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.records import iter_batches, parse_header, stamp
from hightide.protocol.row_spans import SPAN_RECORDS
from hightide_broker.core.cluster.features import ROWS
from hightide_broker.core.cluster.topic_config import TopicConfig
from hightide_broker.core.replication.validation import STEPS_AT_ONCE
from hightide_broker.runtime.base.slices import in_slices
from hightide_broker.simulation.disk import SimDisk


def rows(*values, **over):
    data = batch(*values, **over)
    return bytearray(to_rows(data, parse_header(data)))


async def test_rows_are_stored_as_they_came_among_columns_and_survive_a_restart():
    disk = SimDisk()
    async with new_node(disk) as node, client_of(node) as client:
        await client.create()
        sent = [rows(b"a", b"b", keys=[b"k", None]), batch(b"c"), rows(b"d", codec="zstd")]
        for data in sent:
            assert (await client.send(data)).error is None
        stored = node.replicas.get("t", 0).read(0, limit=4, max_bytes=1 << 20, at_least_one=True)
        found = [bytes(each[16:]) for _, each in iter_batches(stored.read())]
        assert found == [bytes(each[16:]) for each in sent]
    async with broker(disk) as client:
        assert await client.values() == [b"a", b"b", b"c", b"d"]


async def test_a_retried_batch_of_rows_is_stored_once():
    async with broker(SimDisk()) as client:
        await client.create()
        data = rows(b"a", b"b", producer=(7, 0, 0))
        first = await client.send(bytes(data))
        again = await client.send(bytes(data))
        assert (again.base_offset, again.is_repeated) == (first.base_offset, True)
        assert (await client.send(rows(b"c", producer=(7, 0, 2)))).base_offset == 2
        assert await client.values() == [b"a", b"b", b"c"]


async def test_a_record_in_rows_is_found_by_its_time():
    async with broker(SimDisk()) as client:
        await client.create()
        await client.send(rows(b"a", b"b", b"c", times=[NOW_MS, NOW_MS + 10, NOW_MS + 20]))
        found = await client.offset(NOW_MS + 5)
        assert (found.offset, found.timestamp) == (1, NOW_MS + 10)


async def test_the_topics_time_is_stamped_on_rows():
    async with broker(SimDisk()) as client:
        await client.create(configs={"message.timestamp.type": "LogAppendTime"})
        result = await client.send(rows(b"a", b"b", times=[5, 6]))
        records = await client.read_all()
        assert [record.timestamp for record in records] == [result.log_append_time_ms] * 2


async def test_no_rows_are_stored_before_every_broker_can_read_them():
    async with new_node(SimDisk()) as node, client_of(node) as client:
        await client.create()
        assert node.replicas.feature_levels[ROWS] == 1
        node.replicas.feature_levels[ROWS] = 0
        refused = await client.send(rows(b"a"))
        assert refused.error == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        assert "too old" in refused.message
        assert (await client.send(batch(b"b"))).base_offset == 0


async def test_a_consumer_from_before_there_were_rows_is_told_so():
    async with broker(SimDisk()) as client:
        await client.create()
        await client.send(batch(b"a"))
        assert (await client.fetch(0, reads_rows=False)).values == [b"a"]
        await client.send(rows(b"b"))
        refused = (await client.fetch(0, reads_rows=False)).result
        assert refused.error == ErrorCode.UNSUPPORTED_VERSION
        assert "too old" in refused.message
        assert (await client.fetch(0)).values == [b"a", b"b"]


async def test_more_rows_than_one_stretch_bears_are_looked_at_first_and_then_appended():
    async with new_node(SimDisk()) as node, client_of(node) as client:
        await client.create()
        count = STEPS_AT_ONCE * SPAN_RECORDS + 1
        data = rows(*[b"v"] * count, producer=(7, 0, 0))
        refused = await client.send(bytes(data))
        assert refused.error == ErrorCode.MESSAGE_TOO_LARGE
        replica, sent = node.replicas.get("t", 0), memoryview(data)
        facts = await in_slices(replica.looking_at(sent))
        terms = {"acks_all": True, "feature_levels": node.replicas.feature_levels}
        stored = replica.append(sent, now_ms=NOW_MS, facts=facts, **terms)
        assert (stored.base_offset, stored.end_offset) == (0, count)
        again = memoryview(bytearray(sent))
        stamp(again, base_offset=0, leader_epoch=-1)
        # It would be sent as something else if it were too large by now.
        replica.update_config(TopicConfig.of({"max.message.bytes": "100"}, {}))
        with pytest.raises(Refused, match=r"max\.message\.bytes is 100"):
            next(replica.looking_at(rows(*[b"v"] * count, producer=(7, 0, count))))
        facts = await in_slices(replica.looking_at(again))
        assert replica.append(again, now_ms=NOW_MS, facts=facts, **terms).is_repeated
        node.replicas.mark_dirty(replica)
        await replica.committed.wait_for(count)
        assert len(await client.read_all()) == count
