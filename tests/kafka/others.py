"""Clients of Kafka's that nobody here wrote: how each writes, reads and lists topics. All of it
blocks. No test lives here.

A record is `(key, value, headers, timestamp)`; what is read has its offset before that.
"""

import asyncio

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafkakit import quiet_clients

import hightide
import hightide.blocking

with quiet_clients():
    import aiokafka
    import kafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
    from kafka.coordinator.assignors.range import RangePartitionAssignor

WAIT_S = 60
ALL = ("none", "gzip", "snappy", "lz4", "zstd")
"""What is compressed by; kafka-python takes another library for snappy than everybody else."""


LARGEST = 11 << 20
"""Bytes of a request or record that everybody may send."""


def _checked(error, _message):
    assert error is None, error


class Confluent:
    """librdkafka, its newest."""

    codecs = reads = ALL

    def write(self, address, topic, records, codec):
        options = {"bootstrap.servers": address, "compression.type": codec}
        more = {"enable.idempotence": True, "message.max.bytes": LARGEST}
        producer = Producer({**options, **more})
        for key, value, headers, timestamp in records:
            producer.produce(
                topic, value, key, headers=headers, timestamp=timestamp, on_delivery=_checked
            )
        assert producer.flush(WAIT_S) == 0

    def read(self, address, topic, count):
        consumer = Consumer({"bootstrap.servers": address, "group.id": "unused"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while len(found) < count:
            message = consumer.poll(WAIT_S)
            assert message is not None
            assert message.error() is None
            key, value = message.key(), message.value()
            headers = message.headers() or []
            found.append((message.offset(), key, value, headers, message.timestamp()[1]))
        consumer.close()
        return found

    def read_in_group(self, address, topic, found, enough):
        """Read as a member until there is enough; commits, and leaves."""
        options = {"bootstrap.servers": address, "group.id": "shared"}
        more = {"auto.offset.reset": "earliest", "partition.assignment.strategy": "range"}
        consumer = Consumer({**options, **more, "heartbeat.interval.ms": 200})
        consumer.subscribe([topic])
        while not enough():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append((message.partition(), message.offset()))
        consumer.close()

    def topics(self, address):
        return set(AdminClient({"bootstrap.servers": address}).list_topics(timeout=WAIT_S).topics)


class KafkaPython:
    """Python, of its own; its headers have values."""

    codecs = reads = ("none", "gzip", "lz4", "zstd")

    def write(self, address, topic, records, codec):
        with quiet_clients():
            codec = None if codec == "none" else codec
            producer = kafka.KafkaProducer(
                bootstrap_servers=address, compression_type=codec, max_request_size=LARGEST
            )
            sent = [
                producer.send(topic, value, key, headers, timestamp_ms=timestamp)
                for key, value, headers, timestamp in records
            ]
            producer.flush(WAIT_S)
            assert all(each.succeeded() for each in sent)
            producer.close()

    def read(self, address, topic, count):
        with quiet_clients():
            consumer = kafka.KafkaConsumer(bootstrap_servers=address)
            consumer.assign([kafka.TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            found = []
            while len(found) < count:
                for records in consumer.poll(WAIT_S * 1000).values():
                    found += [
                        (each.offset, each.key, each.value, [*each.headers], each.timestamp)
                        for each in records
                    ]
            consumer.close()
            return found

    def read_in_group(self, address, topic, found, enough):
        """Read as a member until there is enough; commits, and leaves."""
        with quiet_clients():
            consumer = kafka.KafkaConsumer(
                topic,
                bootstrap_servers=address,
                group_id="shared",
                auto_offset_reset="earliest",
                heartbeat_interval_ms=200,
                partition_assignment_strategy=[RangePartitionAssignor],
            )
            while not enough():
                for records in consumer.poll(100).values():
                    found += [(each.partition, each.offset) for each in records]
            consumer.close()

    def topics(self, address):
        with quiet_clients():
            consumer = kafka.KafkaConsumer(bootstrap_servers=address)
            found = consumer.topics()
            consumer.close()
            return set(found)


class Aiokafka:
    """Python on asyncio, with the lowest versions of all."""

    codecs = reads = ALL

    def write(self, address, topic, records, codec):
        async def run():
            codec_or_none = None if codec == "none" else codec
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=codec_or_none,
                enable_idempotence=True,
                max_request_size=LARGEST,
            )
            async with producer:
                for key, value, headers, timestamp in records:
                    more = {"headers": headers, "timestamp_ms": timestamp}
                    await producer.send(topic, value, key, **more)
                await producer.flush()

        asyncio.run(run())

    def read(self, address, topic, count):
        async def run():
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address)
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            async with consumer:
                await consumer.seek_to_beginning()
                found = [await consumer.getone() for _ in range(count)]
            return [
                (each.offset, each.key, each.value, [*each.headers], each.timestamp)
                for each in found
            ]

        return asyncio.run(run())

    def read_in_group(self, address, topic, found, enough):
        """Read as a member until there is enough; commits, and leaves."""

        async def run():
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=address,
                group_id="shared",
                auto_offset_reset="earliest",
                heartbeat_interval_ms=200,
                partition_assignment_strategy=[AioRange],
            )
            async with consumer:
                while not enough():
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        found.extend((each.partition, each.offset) for each in records)

        asyncio.run(run())

    def topics(self, address):
        async def run():
            async with aiokafka.AIOKafkaConsumer(bootstrap_servers=address) as consumer:
                return await consumer.topics()

        return asyncio.run(run())


class Native:
    """Hightide's own."""

    codecs, reads = ("none", "lz4", "zstd"), ALL

    def write(self, address, topic, records, codec):
        options = {"compression_type": codec, "max_request_size": LARGEST}
        with hightide.blocking.Producer(address, **options) as producer:
            for key, value, headers, timestamp in records:
                more = {"key": key, "headers": headers, "timestamp": timestamp}
                producer.send(topic, value, **more)
            producer.flush()

    def read(self, address, topic, count):
        options = {"topics": [topic], "auto_offset_reset": "earliest"}
        with hightide.blocking.Consumer(address, **options) as consumer:
            found = [record for _, record in zip(range(count), consumer, strict=False)]
        return [
            (each.offset, each.key, each.value, [*each.headers], each.timestamp) for each in found
        ]

    def read_in_group(self, address, topic, found, enough):
        """Read as a member until there is enough; commits, and leaves."""
        options = {"group_id": "shared", "topics": [topic], "auto_offset_reset": "earliest"}
        more = {"partition_assignment_strategy": "range", "heartbeat_interval_ms": 200}
        with hightide.blocking.Consumer(address, **options, **more) as consumer:
            while not enough():
                found += [(each.partition, each.offset) for each in consumer.poll(timeout_ms=100)]

    def topics(self, address):
        with hightide.blocking.Admin(address) as admin:
            return {topic.topic for topic in admin.list_topics()}


THEIRS = (Confluent(), KafkaPython(), Aiokafka())
EVERY = (*THEIRS, Native())


def name_of(client):
    return type(client).__name__
