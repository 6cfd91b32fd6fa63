"""What clients count of themselves: what was done, and what waits.

Method: a node in this process; what a producer sent and a consumer read is known.
"""

import pytest
from clients import one_node, take

from hightide import Admin, ApiError, BrokerUnreachable
from hightide.protocol.errors import ClosedError


async def test_a_producer_counts_what_it_sent_and_what_was_refused():
    async with one_node() as one, one.producer(acks="all") as producer:
        for number in range(10):
            await producer.send("t", b"%d" % number)
        await producer.flush()
        found = producer.metrics()
        assert found["record_send_total"] == 10
        assert found["record_error_total"] == 0
        assert 1 <= found["batch_send_total"] <= 10
        assert found["request_total"] >= 1
        assert found["requests_in_flight"] == 0
        assert found["request_latency_avg"] > 0
        free = found["buffer_available_bytes"]
        async with one.admin() as admin:
            await admin.alter_topic_configs("t", set_={"max.message.bytes": "200"})
        with pytest.raises(ApiError):
            await (await producer.send("t", b"x" * 500))
        found = producer.metrics()
        assert found["record_error_total"] == 1
        assert found["record_send_total"] == 10
        assert found["buffer_available_bytes"] == free, "it has given back what it held"
    with pytest.raises(ClosedError):
        producer.metrics()


async def test_a_consumer_counts_what_came_and_what_is_behind():
    async with one_node() as one, one.producer() as producer:
        for number in range(10):
            await producer.send("t", b"%d" % number)
        await producer.flush()
        async with one.consumer() as consumer:
            assert consumer.metrics()["records_consumed_total"] == 0
            await take(consumer, 4)
            found = consumer.metrics()
            assert found["records_consumed_total"] == 10, "what was fetched ahead, too"
            assert found["bytes_consumed_total"] > 0
            assert found["fetch_total"] >= 1
            assert found["records_lag_max"] == 6
            assert found["assigned_partitions"] == 1
            await take(consumer, 6)
            assert consumer.metrics()["records_lag_max"] == 0


async def test_an_admin_tells_why_it_tries_again():
    told = []
    async with one_node() as one:
        async with one.admin(on_retry=told.append) as admin:
            await admin.list_topics()
        assert told == []
        gone = one.address
    async with Admin(gone, default_api_timeout_ms=200, on_retry=told.append) as admin:
        with pytest.raises(BrokerUnreachable):
            await admin.list_topics()
    assert "refused" in str(told[0])
