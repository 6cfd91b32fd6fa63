"""Which records have a batch refused (KIP-467): their places in it, each with its sentence.

Method: a node and a bare client; columns and rows are judged alike.
"""

import pytest
from brokers import NOW_MS, batch, client_of, new_node
from kafkakit import both, kafka_client, records, rows

from hightide.protocol import messages as m
from hightide.protocol.row_spans import SPAN_RECORDS
from hightide_broker.core.replication.validation import RECORDS_TOLD_MAX
from hightide_broker.simulation.disk import SimDisk

INVALID_TIMESTAMP, INVALID_RECORD = 32, 87
COMPACTED = {"cleanup.policy": "compact"}
HOUR_MS = 3_600_000


async def sent(client, version, data, topic="t"):
    part = {"name": topic, "partition_data": [{"index": 0, "records": records(data)}]}
    answer = await client.call("produce", version, acks=-1, timeout_ms=1000, topic_data=[part])
    (found,) = answer["responses"][0]["partition_responses"]
    return found


def told(found):
    return {
        each["batch_index"]: each["batch_index_error_message"] for each in found["record_errors"]
    }


async def test_records_without_a_key_in_a_compacted_topic_are_named():
    why = "a record without a key in a compacted topic"
    data = rows(b"a", b"b", b"c", b"d", keys=[b"k", None, b"k", None])
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as client:
        await ours.create("compacted", configs=COMPACTED)
        for version in (8, 9, 10):
            found = await sent(client, version, data, "compacted")
            assert (found["error_code"], found["error_message"]) == (INVALID_RECORD, why)
            assert told(found) == {1: why, 3: why}
        found = await sent(client, 7, data, "compacted")
        assert found["error_code"] == INVALID_RECORD
        assert (await ours.fetch(0, topic="compacted")).values == []


async def test_of_many_records_the_first_are_named():
    count = 2 * SPAN_RECORDS + 5
    keys = [b"k"] * (SPAN_RECORDS - 10) + [None] * (count - SPAN_RECORDS + 10)
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as client:
        await ours.create("compacted", configs=COMPACTED)
        found = await sent(client, 9, rows(*[b"v"] * count, keys=keys), "compacted")
        first = SPAN_RECORDS - 10
        assert [*told(found)] == [*range(first, first + RECORDS_TOLD_MAX)]


@pytest.mark.parametrize("place", [0, 2, SPAN_RECORDS + 7])
async def test_the_record_of_a_time_that_cannot_be_is_named(place):
    times = [NOW_MS] * (SPAN_RECORDS + 9)
    times[place] = NOW_MS + 2 * HOUR_MS
    async with both() as (_ours, client):
        data = rows(*[b"v"] * len(times), times=times)
        found = await sent(client, 9, data)
        assert found["error_code"] == INVALID_TIMESTAMP
        ((index, why),) = told(found).items()
        assert index == place
        assert why.startswith(f"timestamp {times[place]}, the broker's time is {NOW_MS} and ")
        assert why.endswith(f"message.timestamp.after.max.ms={HOUR_MS}")


async def test_the_oldest_and_the_newest_are_named_where_both_cannot_be():
    bounds = {"message.timestamp.before.max.ms": str(HOUR_MS)}
    times = [NOW_MS, NOW_MS - 3 * HOUR_MS, NOW_MS, NOW_MS + 2 * HOUR_MS, NOW_MS - 2 * HOUR_MS]
    async with new_node(SimDisk()) as node, client_of(node) as ours, kafka_client(node) as client:
        await ours.create("bound", configs=bounds)
        found = await sent(client, 9, rows(*[b"v"] * 5, times=times), "bound")
        assert found["error_code"] == INVALID_TIMESTAMP
        assert [*told(found)] == [1, 3]


async def test_a_batch_that_is_refused_as_a_whole_names_no_record():
    async with both() as (_ours, client):
        data = bytearray(rows(b"v"))
        data[-1] ^= 1
        found = await sent(client, 9, data)
        assert found["error_code"] == 2
        assert (told(found), found["error_message"] is None) == ({}, False)


async def test_clients_of_ours_are_told_the_same():
    async with new_node(SimDisk()) as node, client_of(node) as ours:
        await ours.create("compacted", configs=COMPACTED)
        part = m.ProducePartition(topic="compacted", partition=0, records=0)
        request = m.ProduceRequest(acks=-1, timeout_ms=1000, partitions=[part])
        data = batch(b"a", b"b", keys=[b"k", None])
        (result,) = (await ours.call(request, data)).partitions
        why = "a record without a key in a compacted topic"
        assert result.record_errors == [m.RecordError(index=1, message=why)]
