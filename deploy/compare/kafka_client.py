"""The workloads with confluent-kafka, which most programs in Python use for Kafka."""

from __future__ import annotations

import sys
import time
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from compare.gap import longest_gap
from compare.job import (
    BATCH_BYTES,
    PATIENCE_S,
    POLL_RECORDS,
    REPLICAS,
    Figures,
    Job,
    latencies,
    measured,
    values,
)

PRODUCER = {"acks": "all", "enable.idempotence": True, "batch.size": BATCH_BYTES, "linger.ms": 5}
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 20}
"""For the client that waits for a cluster: by default it would wait longer, for up to 10 s."""
EAGER = {"fetch.queue.backoff.ms": 1}
"""By default librdkafka fetches nothing for up to a second once 100,000 records are waiting
(`queued.min.messages`), which a program that only reads has taken long before."""
ROOM_S = 0.1
FIRST = 0
"""The offset where reading begins. With OFFSET_BEGINNING librdkafka waits for half a second first,
which would say nothing of how fast it reads."""


class _Failures(list[str]):
    """Told of the outcome of each record; keeps those that failed."""

    def told(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.append(str(error))


def _admin(job: Job, **more: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": job.address, **more})


def _make_topic(job: Job, admin: AdminClient, timeout_s: float = PATIENCE_S) -> None:
    """Raises `KafkaException`."""
    topic = NewTopic(job.topic, 1, REPLICAS, config=job.configs)
    admin.create_topics([topic], request_timeout=timeout_s)[job.topic].result()


def _producer(job: Job, **more: Any) -> Producer:
    """On a topic that it has made, and written the first record to: it knows the leader."""
    _make_topic(job, _admin(job))
    producer = Producer({"bootstrap.servers": job.address, **PRODUCER, **more})
    _send_one(producer, job.topic, values(1, job.size)[0])
    return producer


def _send_one(producer: Producer, topic: str, value: bytes) -> bool:
    """Whether it was acknowledged."""
    failures = _Failures()
    producer.produce(topic, value, on_delivery=failures.told)
    left: int = producer.flush()
    return not left and not failures


def _send(job: Job, *, is_told: bool) -> Figures:
    producer, failures = _producer(job), _Failures()
    records = values(job.records, job.size)[1:]
    produce, poll, topic = producer.produce, producer.poll, job.topic
    told = failures.told if is_told else None
    with measured(job.pids) as spent:
        for value in records:
            while True:
                try:
                    produce(topic, value, on_delivery=told)
                    break
                except BufferError:  # as its documentation says: wait for room, and try again
                    poll(ROOM_S)
            poll(0)
        left = producer.flush()
    assert not left, f"{left} records without an outcome"
    assert not failures, f"{len(failures)} records failed: {failures[0]}"
    return spent.figures(len(records), job.size)


def send(job: Job) -> Figures:
    """A `produce` for each record, with a callback for its outcome."""
    return _send(job, is_told=True)


def send_untold(job: Job) -> Figures:
    """A `produce` for each record, and nobody learns what became of it."""
    return _send(job, is_told=False)


def consume(job: Job) -> Figures:
    """Every record as an object whose value is looked at."""
    return _consume(job, {})


def consume_eager(job: Job) -> Figures:
    """The same by a consumer that goes on fetching soon after it had enough."""
    return _consume(job, EAGER)


def _consume(job: Job, more: dict[str, Any]) -> Figures:
    options = {"bootstrap.servers": job.address, "group.id": "unused", "enable.auto.commit": False}
    options |= more
    count = size = 0
    with measured(job.pids) as spent:
        consumer = Consumer(options)
        consumer.assign([TopicPartition(job.topic, 0, FIRST)])
        while count < job.records:
            messages = consumer.consume(POLL_RECORDS, 1.0)
            for message in messages:
                size += len(message.value() or b"")
            count += len(messages)
        consumer.close()
    assert size == job.records * job.size, f"{size} bytes read, not {job.records * job.size}"
    return spent.figures(count, job.size)


def acks(job: Job) -> Figures:
    """One record at a time, until it is acknowledged."""
    producer = _producer(job, **{"linger.ms": 0})
    times = []
    for value in values(job.records, job.size):
        began = time.monotonic()
        assert _send_one(producer, job.topic, value), "not acknowledged"
        times.append(time.monotonic() - began)
    return latencies(times)


def gap(job: Job) -> Figures:
    """The leader is killed."""
    producer = _producer(job, **{"linger.ms": 0})
    value = values(1, job.size)[0]
    topics = _admin(job).list_topics(job.topic, timeout=PATIENCE_S).topics
    leader = topics[job.topic].partitions[0].leader
    return longest_gap(lambda: _send_one(producer, job.topic, value), job.pids[str(leader)])


def first_ack(job: Job) -> Figures:
    """When a cluster that is only starting has acknowledged its first record, by the system's
    monotonic clock."""
    deadline = time.monotonic() + PATIENCE_S
    admin = _admin(job, log_level=0, **QUICK)
    producer = Producer({"bootstrap.servers": job.address, "log_level": 0, **PRODUCER, **QUICK})
    while True:
        try:
            _make_topic(job, admin, timeout_s=5.0)
            break
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                break  # an attempt that was answered too late
            if time.monotonic() > deadline:
                sys.exit(f"no topic after {PATIENCE_S:.0f} s: {error}")
            time.sleep(0.02)
    assert _send_one(producer, job.topic, b"first"), "not acknowledged"
    return {"at": time.monotonic()}


WORK = {
    each.__name__: each
    for each in (send, send_untold, consume, consume_eager, acks, gap, first_ack)
}
