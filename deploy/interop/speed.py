"""Kafka's performance tools, and librdkafka, against both systems, in turns."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median

from compare.job import Figures, Job
from compare.kafka_nodes import kafka_nodes
from compare.processes import Failed

from interop.place import Java, Place, ran

RECORDS = 500_000
RECORD_BYTES = 100
LOOP_RECORDS = 1_000_000
"""librdkafka is quicker, and a clock wants some seconds."""
ROUNDS = 3
PERFORMANCE_S = 600.0
JVM = ("-server", "-Xmx512m")
WRITES, READS = "writes", "reads"


def producer(place: Place) -> str:
    """ProducerPerformance, 100 B, acks=all, three replicas: medians of records a second."""
    return in_turns(place, partial(_produced, place.tools()))


def consumer(place: Place) -> str:
    """ConsumerPerformance of what ProducerPerformance wrote: medians of records a second."""
    return in_turns(place, partial(_consumed, place.tools()))


def librdkafka(place: Place) -> str:
    """confluent-kafka's loop of `produce`, 100 B, acks=all, idempotent, three replicas, and its
    consumer of what it wrote: medians of records a second."""
    return in_turns(place, _looped)


def in_turns(place: Place, measure: Callable[[str, str], Figures]) -> str:
    """What is measured with an address and a topic that is not there yet, on both systems."""
    ours: list[Figures] = []
    theirs: list[Figures] = []
    with beside(place) as kafka:
        both = ((kafka, theirs), (place.address, ours))
        for number in range(ROUNDS + 1):
            for address, found in both if number % 2 else reversed(both):
                os.sync()  # what the other one left to be written does not disturb this one
                found.append(measure(address, f"turn-{number}"))
    return compared(theirs, ours)


@contextmanager
def beside(place: Place) -> Iterator[str]:
    """The address of three brokers of Kafka, which serve."""
    with kafka_nodes(place.directory, place.tools().jars, "interop-kafka") as kafka:
        kafka.start()
        # It tries again, and soon: librdkafka itself would not look for a controller again that was
        # not there yet.
        client(Job(system="kafka", work="first_ack", address=kafka.address, topic="first"))
        yield kafka.address


def compared(theirs: Sequence[Figures], ours: Sequence[Figures]) -> str:
    """The medians of both, and their ratios; the first of each warmed up."""
    return "; ".join(_told(name, theirs[1:], ours[1:]) for name in ours[0])


def _told(name: str, theirs: Sequence[Figures], ours: Sequence[Figures]) -> str:
    kafka_rate, our_rate = (median(each[name] for each in found) for found in (theirs, ours))
    ratio = our_rate / kafka_rate
    return f"{name} {our_rate:,.0f}/s, Kafka {kafka_rate:,.0f}/s: {ratio:.2f} of it"


def _produced(java: Java, address: str, topic: str) -> Figures:
    made = ("--partitions", "1", "--replication-factor", "3", "--topic", topic)
    java.tool("TopicCommand", "--bootstrap-server", address, "--create", *made)
    told = _performance(
        java,
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={address}", "acks=all"),
    )
    rate = _number(r"([\d.]+) records/sec \([^)]*\), [\d.]+ ms avg latency.*99\.9th", told)
    return {WRITES: rate}


def _consumed(java: Java, address: str, topic: str) -> Figures:
    _produced(java, address, topic)
    server = ("--bootstrap-server", address, "--topic", topic)
    told = _performance(java, "ConsumerPerformance", *server, "--messages", str(RECORDS))
    # Start, end, MB, MB/s, messages, messages/s, …
    row = [line for line in told.splitlines() if line[:2] == "20"][-1]
    return {READS: float(row.split(",")[5])}


def _looped(address: str, topic: str) -> Figures:
    job = Job(
        system="kafka",
        work="send",
        address=address,
        topic=topic,
        records=LOOP_RECORDS,
        size=RECORD_BYTES,
    )
    wrote, read = client(job), client(replace(job, work="consume"))
    return {WRITES: wrote["per_s"], READS: read["per_s"]}


def client(job: Job) -> Figures:
    """What a client process of `compare` measured; raises `Failed`."""
    command = [sys.executable, "-m", "compare.client", job.to_json()]
    told = ran(command, stdin="go\n", timeout_s=PERFORMANCE_S).splitlines()
    figures: Figures = json.loads(next(line for line in reversed(told) if line.startswith("{")))
    return figures


def _performance(java: Java, name: str, *words: str) -> str:
    return java.tool(name, *words, jvm=JVM, timeout_s=PERFORMANCE_S)


def _number(pattern: str, told: str) -> float:
    found = re.findall(pattern, told)
    if not found:
        raise Failed(f"no rate in {told[-200:]!r}")
    return float(found[-1])
