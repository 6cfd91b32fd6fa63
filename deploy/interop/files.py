"""Kafka's own reader of files, on those that hightide wrote."""

from __future__ import annotations

import re
from collections import Counter

from interop.place import CODECS, Place, expect

RECORDS = 20_000
RECORD_BYTES = 100
SEGMENT_BYTES = 256 << 10
"""So small that there are several segments."""
KINDS = ("log", "index", "timeindex", "snapshot")
FINE = re.compile(
    r"Dumping |Log starting offset: |baseOffset: |offset: |timestamp: |producerId: |.* is empty\.$"
)
"""Lines that tell what there is. Other ones complain."""


def dump_log_segments(place: Place) -> str:
    """DumpLogSegments reads each record of a topic that Kafka's producer wrote out of the leader's
    files, and finds its indexes and its producers' states in order."""
    java = place.tools()
    topic = place.topic("files", f"segment.bytes={SEGMENT_BYTES}", "max.message.bytes=65536")
    for codec in CODECS:
        java.tool(
            "ProducerPerformance",
            *("--topic", topic, "--num-records", str(RECORDS), "--throughput", "-1"),
            *("--record-size", str(RECORD_BYTES), "--producer-props"),
            *(f"bootstrap.servers={place.address}", "acks=all", f"compression.type={codec}"),
        )
    files = place.segments(topic)
    kinds = Counter(file.suffix.removeprefix(".") for file in files)
    expect(all(kinds[kind] > 1 for kind in KINDS), f"there is too little: {dict(kinds)}")
    names = ",".join(map(str, files))
    told = java.tool("kafka.tools.DumpLogSegments", "--files", names, "--deep-iteration")
    complaints = [line for line in told.splitlines() if not FINE.match(line.removeprefix("| "))]
    expect(not complaints, "\n".join(complaints))
    found = [int(each) for each in re.findall(r"^\| offset: (\d+)", told, re.MULTILINE)]
    count = len(CODECS) * RECORDS
    expect(found == [*range(count)], f"{len(found)} records, expected {count} in order")
    told_kinds = ", ".join(f"{kinds[kind]} .{kind}" for kind in KINDS)
    return f"{count} records in {len(CODECS)} codecs: {told_kinds}"
