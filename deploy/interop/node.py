"""kafkajs, which shares no code with any other client."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from compare.places import CACHE

from interop.place import Place, expect, needed, ran

KAFKAJS = "2.2.4"
SCRIPT = Path(__file__).with_name("kafkajs.js")
COUNT = 4_000


def kafkajs(place: Place) -> str:
    """kafkajs makes a topic, writes idempotently, plain and in gzip, and reads with two members of
    a group, which commit."""
    node, topic = needed("node"), "kafkajs"
    modules = _installed(needed("npm"))
    told = ran([node, SCRIPT, place.address, topic, str(COUNT)], environment={"NODE_PATH": modules})
    said = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
    expect(said["committed"] == said["end"] == COUNT, f"{said['committed']} of {said['end']}")
    # A member that joins late may have some read again: at least once is what groups promise.
    found = dict.fromkeys(map(tuple, said["found"]))
    offsets, values = defaultdict(list), defaultdict(list)
    for partition, offset, key, value in found:
        offsets[partition].append(offset)
        values[key].append(int(value))
    in_order = (list(range(len(each))) == each for each in offsets.values())
    expect(all(in_order), "a partition is out of order")
    expect(all(each == sorted(each) for each in values.values()), "a key is out of order")
    written = sorted(int(value) for *_, value in found) == [*range(COUNT)]
    expect(written, "what was read is not what was written")
    native = place.hightide("consume", topic, "-b", place.address, "-o", "beginning", "-e")
    expect(sorted(map(int, native.splitlines()[:COUNT])) == [*range(COUNT)], "hightide differs")
    return f"{COUNT} records once and in order, in {len(offsets)} partitions; {COUNT} committed"


def _installed(npm: str) -> str:
    """Where `node` finds it."""
    directory = CACHE / f"kafkajs-{KAFKAJS}"
    directory.mkdir(exist_ok=True)
    if not (directory / "node_modules" / "kafkajs").exists():
        ran([npm, "install", "--prefix", directory, "--no-audit", f"kafkajs@{KAFKAJS}"])
    return str(directory / "node_modules")
