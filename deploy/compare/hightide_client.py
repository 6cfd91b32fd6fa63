"""The workloads with hightide's blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
from hightide import HightideError
from hightide.blocking import Admin, Consumer, Producer

PRODUCER: dict[str, Any] = {"acks": "all", "batch_size": BATCH_BYTES, "linger_ms": 5}


def _make_topic(job: Job) -> None:
    """Raises `HightideError`."""
    with Admin(job.address) as admin:
        admin.create_topic(
            job.topic, partitions=1, replication_factor=REPLICAS, configs=job.configs
        )


@contextmanager
def _producer(job: Job, **more: Any) -> Iterator[Producer]:
    """On a topic that it has made, and written the first record to: it knows the leader."""
    _make_topic(job)
    with Producer(job.address, **{**PRODUCER, **more}) as producer:
        producer.send(job.topic, values(1, job.size)[0]).result()
        yield producer


def send(job: Job) -> Figures:
    """A `send` for each record; one that failed would be raised at the end of the block."""
    with _producer(job) as producer:
        records = values(job.records, job.size)[1:]
        send_one, topic = producer.send, job.topic
        with measured(job.pids) as spent:
            for value in records:
                send_one(topic, value)
            producer.flush()
    return spent.figures(len(records), job.size)


def send_many(job: Job) -> Figures:
    """One call for all records."""
    with _producer(job) as producer:
        records = values(job.records, job.size)[1:]
        with measured(job.pids) as spent:
            producer.send_many(job.topic, records).result()
    return spent.figures(len(records), job.size)


def consume(job: Job) -> Figures:
    """Every record as an object whose value is looked at."""
    count = size = 0
    with (
        measured(job.pids) as spent,
        Consumer(job.address, topics=[job.topic], auto_offset_reset="earliest") as consumer,
    ):
        while count < job.records:
            records = consumer.poll(timeout_ms=1000, max_records=POLL_RECORDS)
            for record in records:
                size += len(record.value or b"")
            count += len(records)
    assert size == job.records * job.size, f"{size} bytes read, not {job.records * job.size}"
    return spent.figures(count, job.size)


def poll_arrow(job: Job) -> Figures:
    """Records as Arrow's columns."""
    import pyarrow  # noqa: F401 - not while the clock runs

    count = 0
    with (
        measured(job.pids) as spent,
        Consumer(job.address, topics=[job.topic], auto_offset_reset="earliest") as consumer,
    ):
        while count < job.records:
            rows = consumer.poll_arrow(timeout_ms=1000)
            count += 0 if rows is None else len(rows)
    return spent.figures(count, job.size)


def acks(job: Job) -> Figures:
    """One record at a time, until it is acknowledged."""
    times = []
    with _producer(job, linger_ms=0) as producer:
        for value in values(job.records, job.size):
            began = time.monotonic()
            producer.send(job.topic, value).result()
            times.append(time.monotonic() - began)
    return latencies(times)


def gap(job: Job) -> Figures:
    """The leader is killed."""
    value = values(1, job.size)[0]
    with _producer(job, linger_ms=0) as producer, Admin(job.address) as admin:
        leader = admin.describe_topic(job.topic).partitions[0].leader

        def write() -> bool:
            try:
                producer.send(job.topic, value).result()
            except HightideError:
                return False
            return True

        return longest_gap(write, job.pids[str(leader)])


def first_ack(job: Job) -> Figures:
    """When a cluster that is only starting has acknowledged its first record, by the system's
    monotonic clock."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            _make_topic(job)
            break
        except HightideError as error:
            if getattr(error, "code", None) == "TOPIC_ALREADY_EXISTS":
                break  # an attempt that was answered too late
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    with Producer(job.address, **PRODUCER) as producer:
        producer.send(job.topic, b"first").result()
        return {"at": time.monotonic()}


WORK = {
    each.__name__: each for each in (send, send_many, consume, poll_arrow, acks, gap, first_ack)
}
