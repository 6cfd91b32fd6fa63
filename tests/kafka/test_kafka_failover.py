"""Kafka's clients and a leader that dies: what was acknowledged is there, once, in order.

Goal: promises 1 and 5 by Kafka's protocol. Method: three brokers in this process, librdkafka with
idempotence that writes all the while, and everybody reads in the end.
"""

import pytest
import trio
from confluent_kafka import Producer
from others import EVERY, name_of
from test_kafka_clients import in_thread

from hightide import Admin
from hightide.testing import cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WANTED = 600


class Writer:
    """Writes numbers until it is told to stop; knows which were acknowledged."""

    def __init__(self, address):
        self.acknowledged = []
        self.stop = False
        options = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 2}
        self._producer = Producer({**options, "delivery.timeout.ms": 120_000})

    def run(self):
        number = 0
        while not self.stop:
            self._producer.produce("t", b"%d" % number, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.002)
        assert self._producer.flush(120) == 0

    def _delivered(self, error, message):
        assert error is None, error
        self.acknowledged.append((message.offset(), int(message.value())))


async def test_a_leader_that_dies_loses_nothing_and_repeats_nothing():
    async with cluster(brokers=3) as three:
        async with Admin(three.bootstrap) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=3)
            (leader,) = {part.leader for part in (await admin.describe_topic("t")).partitions}
        writer = Writer(three.bootstrap)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, writer.run)
            await reached(writer, WANTED // 3)
            await three.kill(leader)
            await reached(writer, len(writer.acknowledged) + WANTED // 3)
            await three.start(leader)
            await reached(writer, len(writer.acknowledged) + WANTED // 3)
            writer.stop = True
        numbers = [number for _, number in sorted(writer.acknowledged)]
        assert numbers == [*range(len(numbers))]
        for reader in EVERY:
            found = await in_thread(reader.read, three.bootstrap, "t", len(numbers))
            assert [int(record[2]) for record in found] == numbers, name_of(reader)


async def reached(writer, count):
    while len(writer.acknowledged) < count:
        await trio.sleep(0.02)
