"""`hightide bench backlog`: whether who reads what is old slows those who read what is new.

One partition with a backlog. One client sends a record, reads it back, and sends the next; in turns
it has the machine to itself, a process computes that knows no broker, another one reads the backlog
from its start, over and over, as fast as it can, and then as fast as a quota lets it. The second is
the floor: where processors are few, whoever takes one slows the others, whatever they take it for.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hightide_cli.bench.client import data_option
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show_one
from hightide_cli.own_cluster import OwnCluster

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

TOPIC = "backlog"
BROKERS = 3
RECORD_BYTES = 1000
BATCH_RECORDS = 1000
TRIPS = 500
"""Records that are sent and read back in each turn."""
POLL_MS = 1000
START_S = 300.0
EAGER, HELD = "backlog-eager", "backlog-held"
"""What the readers call themselves; only the second has a quota."""
AHEAD_S = 2.0
"""So long the other process is at work first: who has a quota has had by then what that lets
everybody have, and is held to it."""


@click.command(epilog="Example: hightide bench backlog --backlog-mb 2000 --rounds 5")
@click.option(
    "--backlog-mb",
    type=click.IntRange(1, 100_000),
    default=500,
    show_default=True,
    help="How much there is to read.",
)
@click.option(
    "--quota-mb",
    type=click.IntRange(1, 100_000),
    default=30,
    show_default=True,
    help="How much a second the reader may have that a quota holds.",
)
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True)
@data_option
@output_option
def backlog(backlog_mb: int, quota_mb: int, rounds: int, data: Path | None, output: str) -> None:
    """How long a new record takes to be read while another consumer reads a backlog, with a quota
    and without, beside how long it takes alone, and beside a process that only computes; three
    brokers, acks=all."""
    times: dict[str, list[float]] = {"alone": [], "busy": [], "beside": [], "held": []}
    read = {EAGER: 0.0, HELD: 0.0}
    with OwnCluster(brokers=BROKERS, directory=data) as cluster:
        run(_fill, cluster.address, backlog_mb, quota_mb)
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}")
            times["alone"] += run(_round_trips, cluster.address)
            with _other_process(_compute):
                times["busy"] += run(_round_trips, cluster.address)
            for name, reader in (("beside", EAGER), ("held", HELD)):
                with _other_process(_read, cluster.address, backlog_mb, reader) as speed:
                    times[name] += run(_round_trips, cluster.address)
                read[reader] += speed() / rounds
    fields: dict[str, Any] = {"bench": "backlog", "backlog_mb": backlog_mb, "rounds": rounds}
    for name, some in times.items():
        shares = statistics.quantiles(some, n=100)
        fields[f"{name}_p50_ms"] = round(shares[49] * 1000, 3)
        fields[f"{name}_p99_ms"] = round(shares[98] * 1000, 3)
    for ratio, name, floor in (
        ("ratio", "beside", "alone"),
        ("ratio_busy", "beside", "busy"),
        ("ratio_held", "held", "alone"),
    ):
        for share in ("p50", "p99"):
            fields[f"{ratio}_{share}"] = round(
                fields[f"{name}_{share}_ms"] / fields[f"{floor}_{share}_ms"], 2
            )
    fields |= {"read_mb_per_s": round(read[EAGER], 1), "held_mb_per_s": round(read[HELD], 1)}
    show_one(fields, output)


async def _fill(address: str, backlog_mb: int, quota_mb: int) -> None:
    from hightide import Admin, Producer, Quota

    async with Admin(address) as admin, Producer(address, batch_size=1 << 19) as producer:
        await admin.create_topic(TOPIC, partitions=1, replication_factor=BROKERS)
        quota = Quota(key="consumer_byte_rate", value=quota_mb * 1_000_000, client_id=HELD)
        await admin.alter_quotas([quota])
        for _ in range(backlog_mb):
            await producer.send_many(TOPIC, [os.urandom(RECORD_BYTES)] * BATCH_RECORDS)
        await producer.flush()


async def _round_trips(address: str) -> list[float]:
    """Seconds until each of some records was read by who waited for it."""
    from hightide import LATEST, Consumer, Producer, TopicPartition

    value, times = os.urandom(RECORD_BYTES), []
    async with (
        Producer(address, acks="all", linger_ms=0) as producer,
        Consumer(address, topics=[TOPIC]) as consumer,
    ):
        ends = await consumer.offsets(LATEST)
        consumer.seek(TOPIC, 0, ends[TopicPartition(TOPIC, 0)].offset)
        for _ in range(TRIPS):
            began = time.perf_counter()
            await producer.send(TOPIC, value)
            await anext(consumer)
            times.append(time.perf_counter() - began)
    return times


@contextmanager
def _other_process(does: Callable[..., None], *about: object) -> Iterator[Callable[[], float]]:
    """A process that does something while the block lasts; of how much it said, in MB a second."""
    spawn = multiprocessing.get_context("spawn")
    begun, over = spawn.Event(), spawn.Event()
    size = spawn.Value("d", 0.0)
    process = spawn.Process(target=does, args=(*about, begun, over, size), daemon=True)
    process.start()
    until = time.perf_counter() + START_S
    while not begun.wait(1.0):
        if not process.is_alive() or time.perf_counter() > until:
            raise click.ClickException("the other process did not begin")
    time.sleep(AHEAD_S)
    started, before = time.perf_counter(), size.value
    took = 0.0
    try:
        yield lambda: (size.value - before) / 1e6 / took
    finally:
        took = time.perf_counter() - started
        over.set()
        process.join()


def _read(
    address: str, backlog_mb: int, client_id: str, begun: Event, over: Event, size: Any
) -> None:
    """Read what is old, over and over; never what is new."""
    from hightide.blocking import Consumer

    with Consumer(
        address, topics=[TOPIC], auto_offset_reset="earliest", client_id=client_id
    ) as consumer:
        old = backlog_mb * BATCH_RECORDS
        left = old
        while not over.is_set():
            records = consumer.poll(timeout_ms=POLL_MS)
            size.value += sum(len(record.value or b"") for record in records)
            if records:
                begun.set()
            left -= len(records)
            if left <= 0:
                consumer.seek(TOPIC, 0, 0)
                left = old


def _compute(begun: Event, over: Event, size: Any) -> None:
    """Take a processor, and nothing else of the machine."""
    begun.set()
    while not over.is_set():
        sum(range(10_000))
