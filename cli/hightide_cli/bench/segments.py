"""`hightide bench segments`: what a log of many segments costs its broker to open, after an orderly
stop and after `kill -9`, and to find a record by its time."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from random import Random
from typing import Any

import click

from hightide.protocol.words import counted
from hightide_cli.bench.client import data_option
from hightide_cli.bench.growth import TIMEOUT_MS, numbers_option
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show
from hightide_cli.own_cluster import OwnCluster

TOPIC = "segments"
SEGMENT_BYTES = 1024
RECORD = b"x" * 900
"""A segment holds one of these."""
FIRST_MS = 1_700_000_000_000
STEP_MS = 1000
"""From one record's time to the next one's."""
LOOKUPS = 200


@click.command(epilog="Example: hightide bench segments --segments 100,1000,10000 -o json")
@numbers_option("--segments", default="100,1000", what="segments")
@data_option
@output_option
def segments(numbers: list[int], data: Path | None, output: str) -> None:
    """What the segments of one partition cost, at growing numbers of them, on one broker."""
    rows: list[dict[str, Any]] = []
    with OwnCluster(brokers=1, directory=data) as cluster:
        (node,) = (process.node for process in cluster.nodes)
        there = 0
        for number in numbers:
            say(counted(number, "segment"))
            write_s = run(_write, cluster.address, there, number)
            row = {
                "bench": "segments",
                "segments": number,
                "write_ms_each": round(write_s * 1000 / (number - there), 2),
                "start_s": _restart(cluster, node, kill=False),
                "start_killed_s": _restart(cluster, node, kill=True),
                "lookup_p50_ms": run(_look_up, cluster.address, number),
                "memory_mb": cluster.memory_mb(),
            }
            rows.append(row)
            there = number
    show(rows, output, columns=list(rows[0]), key="start_s")


async def _write(address: str, there: int, number: int) -> float:
    """A record for each segment that is missing; seconds until all are acknowledged."""
    from hightide import Admin, Producer

    if not there:
        async with Admin(address) as admin:
            configs = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
            await admin.create_topic(TOPIC, configs=configs)
    began = time.perf_counter()
    async with Producer(address, batch_size=1, linger_ms=0, delivery_timeout_ms=TIMEOUT_MS) as out:
        for index in range(there, number):
            await out.send(TOPIC, RECORD, timestamp=FIRST_MS + index * STEP_MS)
    return time.perf_counter() - began


def _restart(cluster: OwnCluster, node: int, *, kill: bool) -> float:
    """Seconds from the start of the process until the broker serves."""
    cluster.stop(node, kill=kill)
    began = time.perf_counter()
    cluster.start(node)
    return round(time.perf_counter() - began, 2)


async def _look_up(address: str, number: int) -> float:
    """Milliseconds to find a record by its time; raises `RuntimeError` for a wrong one."""
    from hightide import Consumer

    took, random = [], Random(number)
    async with Consumer(address, partitions=[(TOPIC, 0)]) as consumer:
        for _ in range(LOOKUPS):
            wanted = random.randrange(number)
            began = time.perf_counter()
            (found,) = (await consumer.offsets(FIRST_MS + wanted * STEP_MS)).values()
            took.append(time.perf_counter() - began)
            if found.offset != wanted:
                raise RuntimeError(f"the record of second {wanted} is said to be {found}")
    return round(statistics.median(took) * 1000, 3)
