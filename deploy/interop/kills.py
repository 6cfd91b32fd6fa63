"""Kafka's verifiable producer and consumer, while leaders are killed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compare.processes import Failed, ending, start

from interop.place import Place, expect

VALUES = 60_000
PER_S = 2_000
KILLS = 3
PAUSE_S = 5.0
READING_S = 300.0


def verifiable(place: Place) -> str:
    """VerifiableProducer writes with acks=all while leaders are killed: VerifiableConsumer finds
    all it was acknowledged, once and in order."""
    topic = place.topic("verifiable")
    words = ("--bootstrap-server", place.address, "--topic", topic)
    writes = ("--max-messages", str(VALUES), "--throughput", str(PER_S), "--acks", "-1")
    written, killed = place.directory / "written.json", 0
    with _running(place, written, "VerifiableProducer", *words, *writes) as producer:
        while producer.poll() is None:
            time.sleep(PAUSE_S)
            if killed < KILLS and producer.poll() is None:
                place.kill(place.leader(topic))
                place.start()
                killed += 1
        expect(producer.returncode == 0, f"the producer ended with {producer.returncode}")
    acked = _values(written, "producer_send_success")
    reads = ("--group-id", "verifiable", "--reset-policy", "earliest", "--verbose")
    read = place.directory / "read.json"
    with _running(place, read, "VerifiableConsumer", *words, *reads):
        found = _read_whole(read)
    expect(killed == KILLS, f"{killed} leaders were killed, expected {KILLS}")
    expect(found == sorted(set(found)), "out of order, or twice")
    expect(set(acked) <= set(found), f"lost: {sorted(set(acked) - set(found))[:5]}")
    return f"{len(acked)} acknowledged, {len(found)} read, {killed} leaders killed"


def _read_whole(path: Path) -> list[int]:
    """What the consumer read, once no more of it comes; it does not end by itself."""
    found: list[int] = []
    until = time.monotonic() + READING_S
    while time.monotonic() < until:
        before, found = found, _values(path, "record_data")
        if found and len(found) == len(before):
            return found
        time.sleep(PAUSE_S)
    raise Failed(f"after {READING_S:g} s the consumer still read: {len(found)} so far")


def _values(path: Path, name: str) -> list[int]:
    return [int(row["value"]) for row in _rows(path) if row["name"] == name]


@contextmanager
def _running(place: Place, output: Path, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """One of Kafka's programs, whose lines go to a file."""
    java = place.tools()
    command = java.command(f"org.apache.kafka.tools.{name}", *words)
    joined = ["sh", "-c", 'out="$1"; shift; exec "$@" > "$out"', "sh", str(output), *command]
    with ending(start(joined, log=f"interop-{name}")) as process:
        yield process


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """What was said in whole lines of JSON."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        if line.startswith("{") and line.endswith("}"):
            yield json.loads(line)
