"""Records whose partition nobody named join the batch of one before them, with a key and without.

Goal: a loop of them costs little more than two list appends each, and every key stays where Kafka's
hash puts it, also in a topic that gets more partitions. Method: `FakeBroker` in memory.
"""

import random

import pytest
import trio
from brokers import FakeClock
from clients import FOR_EVER_MS
from fake_broker import FakeBroker, in_memory

from hightide import Producer
from hightide.produce.accumulator import PartitionQueue
from hightide.produce.joining import Joining
from hightide.produce.partitioner import partition_for_key
from hightide.protocol.batch_builder import Batch

KEYS = [b"key-%d" % number for number in range(40)]


def producer_of(broker, network, **options):
    given = {"random": random.Random(3), "clock": FakeClock(), "linger_ms": FOR_EVER_MS}
    return Producer(broker.address, network=network, **(given | options))


def with_key(broker, key, partitions):
    """Where the records of a key are: (partition, value), in order."""
    return [
        (partition, record.value)
        for partition in range(partitions)
        for record in broker.logs[("t", partition)].records()
        if record.key == key
    ]


async def test_keyed_records_share_a_batch_of_their_partition(autojump_clock):
    broker = FakeBroker({"t": 4})
    async with in_memory(broker) as network, producer_of(broker, network) as producer:
        for number in range(1000):
            await producer.send("t", b"%d" % number, key=KEYS[number % len(KEYS)])
        await producer.flush()
        assert producer.metrics()["batch_send_total"] == 4
    for place, key in enumerate(KEYS):
        partition = partition_for_key(key, 4)
        own = [(partition, b"%d" % number) for number in range(place, 1000, len(KEYS))]
        assert with_key(broker, key, 4) == own


async def test_keys_that_go_elsewhere_once_a_topic_has_more_partitions_join_nothing_there(
    autojump_clock,
):
    """Also where what is in their old place was not sent yet."""
    broker = FakeBroker({"t": 2})
    options = {"metadata_max_age_ms": 1000}
    async with in_memory(broker) as network, producer_of(broker, network, **options) as producer:
        for key in KEYS:
            await producer.send("t", b"before", key=key)
        broker.topics["t"] = 7
        await trio.sleep(2)
        for _ in range(2):
            for key in KEYS:
                await producer.send("t", b"after", key=key)
        await producer.send_many("t", [b"after"] * len(KEYS), keys=KEYS)
    for key in KEYS:
        old, new = partition_for_key(key, 2), partition_for_key(key, 7)
        expected = sorted([(old, b"before"), *[(new, b"after")] * 3])
        assert sorted(with_key(broker, key, 7)) == expected


@pytest.mark.parametrize("key", ["text", 5, bytearray(b"k")])
def test_a_key_that_is_none_joins_nothing(key):
    joining, queue = Joining({"t": 1}), PartitionQueue("t", 0)
    queue.pending.append(Batch("t", 0, 0.0, (0,)))
    joining.keep(queue, has_key=True)
    assert joining.find("t", b"k") is queue.pending[0]
    assert joining.find("t", key) is None


def test_nothing_is_held_of_what_was_sent():
    joining, queue = Joining({"t": 1}), PartitionQueue("t", 0)
    for has_key, key in ((False, None), (True, b"k")):
        queue.pending.append(Batch("t", 0, 0.0, (0,)))
        joining.keep(queue, has_key=has_key)
        assert joining.find("t", key) is queue.pending[0]
        queue.pending.clear()
        assert joining.find("t", key) is None
