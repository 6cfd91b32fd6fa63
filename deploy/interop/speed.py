"""Kafka's performance tools against both systems, in turns."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import median

from compare.kafka_nodes import kafka_nodes
from compare.processes import Failed

from interop.place import Java, Place

RECORDS = 500_000
RECORD_BYTES = 100
ROUNDS = 3
PERFORMANCE_S = 600.0
JVM = ("-server", "-Xmx512m")


def producer(place: Place) -> str:
    """ProducerPerformance, 100 B, acks=all, three replicas: medians of records a second."""
    return _ratio(place, _produced)


def consumer(place: Place) -> str:
    """ConsumerPerformance of what ProducerPerformance wrote: medians of records a second."""
    return _ratio(place, _consumed)


def _ratio(place: Place, measure: Callable[[Java, str, str], float]) -> str:
    java = place.tools()
    ours: list[float] = []
    theirs: list[float] = []
    with kafka_nodes(place.directory, java.jars, "interop-kafka") as kafka:
        kafka.start()
        kafka.wait()
        for number in range(ROUNDS + 1):  # the first of each warms up
            topic = f"{measure.__name__.strip('_')}-{number}"
            for address, found in ((kafka.address, theirs), (place.address, ours)):
                made = ("--partitions", "1", "--replication-factor", "3", "--topic", topic)
                java.tool("TopicCommand", "--bootstrap-server", address, "--create", *made)
                found.append(measure(java, address, topic))
    kafka_rate, our_rate = median(theirs[1:]), median(ours[1:])
    return f"{our_rate:,.0f}/s, Kafka {kafka_rate:,.0f}/s: {our_rate / kafka_rate:.2f} of it"


def _produced(java: Java, address: str, topic: str) -> float:
    told = _performance(
        java,
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={address}", "acks=all"),
    )
    return _number(r"([\d.]+) records/sec \([^)]*\), [\d.]+ ms avg latency.*99\.9th", told)


def _consumed(java: Java, address: str, topic: str) -> float:
    _produced(java, address, topic)
    server = ("--bootstrap-server", address, "--topic", topic)
    told = _performance(java, "ConsumerPerformance", *server, "--messages", str(RECORDS))
    # Start, end, MB, MB/s, messages, messages/s, …
    row = [line for line in told.splitlines() if line[:2] == "20"][-1]
    return float(row.split(",")[5])


def _performance(java: Java, name: str, *words: str) -> str:
    return java.tool(name, *words, jvm=JVM, timeout_s=PERFORMANCE_S)


def _number(pattern: str, told: str) -> float:
    found = re.findall(pattern, told)
    if not found:
        raise Failed(f"no rate in {told[-200:]!r}")
    return float(found[-1])
