"""`hightide bench watching`: what a trace, and being asked for metrics, cost the brokers."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import click

from hightide_cli.bench.usage import spending
from hightide_cli.metrics import page_at
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show_one
from hightide_cli.own_cluster import OwnCluster

TOPIC = "bench"
UNWATCHED = ("trace.max.bytes=0", "metrics.listen=")
WATCHED = ("metrics.listen=0",)
ASKED_EVERY_S = 1.0
"""Prometheus asks every 15 seconds, or more seldom."""
SLICE = 10_000
"""Records that a producer is given at once."""


@click.command(epilog="Example: hightide bench watching --rounds 7 -o json")
@click.option("--brokers", type=click.IntRange(1, 9), default=3, show_default=True)
@click.option("-n", "--records", type=click.IntRange(min=1), default=500_000, show_default=True)
@click.option("--record-size", type=click.IntRange(min=0), default=100, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@output_option
def watching(brokers: int, records: int, record_size: int, rounds: int, output: str) -> None:
    """The same records through two clusters in turns: one that keeps a trace and is asked for its
    metrics every second, and one without either. Medians of all rounds."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    spent: defaultdict[str, list[float]] = defaultdict(list)
    with (
        OwnCluster(brokers=brokers, assignments=UNWATCHED) as unwatched,
        OwnCluster(brokers=brokers, assignments=WATCHED) as watched,
        _asked(watched),
    ):
        for number in range(rounds + 1):
            # Who comes first has a colder, or a quieter, machine: each has its turn.
            sides = [("off", unwatched), ("on", watched)]
            for side, cluster in sides if number % 2 else reversed(sides):
                seconds, cpu = run(_produce, cluster.address, min(brokers, 3), records, record_size)
                if number:  # the first round makes everybody warm
                    rates[side].append(records / seconds)
                    spent[side].append(cpu)
            say(f"round {number} of {rounds}")
    on, off = median(rates["on"]), median(rates["off"])
    show_one(
        {
            "bench": "watching",
            "records": records,
            "rounds": rounds,
            "records_per_s": round(on),
            "records_per_s_unwatched": round(off),
            "ratio": round(on / off, 3),
            "brokers_core_s": round(median(spent["on"]), 3),
            "brokers_core_s_unwatched": round(median(spent["off"]), 3),
            "cost": round(median(spent["on"]) / median(spent["off"]) - 1, 3),
        },
        output,
    )


async def _produce(address: str, replicas: int, records: int, size: int) -> tuple[float, float]:
    """Seconds until all is acknowledged, and what the brokers' processors spent on it."""
    import os
    import time

    from hightide import Admin, Producer

    values = [os.urandom(size)] * SLICE
    async with Admin(address) as admin:
        if all(topic.topic != TOPIC for topic in await admin.list_topics()):
            await admin.create_topic(TOPIC, replication_factor=replicas)
        async with Producer(address, acks="all", linger_ms=5) as producer:
            await (await producer.send(TOPIC, b""))
            async with spending(admin) as spent:
                started = time.perf_counter()
                for at in range(0, records, SLICE):
                    await producer.send_many(TOPIC, values[: min(SLICE, records - at)])
                await producer.flush()
                seconds = time.perf_counter() - started
    found = spent.seconds
    return seconds, sum(value or 0.0 for value in found.values())


@contextmanager
def _asked(cluster: OwnCluster) -> Iterator[None]:
    """Every node's page is read again and again for the time of the block."""
    over = threading.Event()
    addresses = [str(node.facts()["metrics"]) for node in cluster.nodes]
    asking = threading.Thread(target=_ask, args=(addresses, over))
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()


def _ask(addresses: Sequence[str], over: threading.Event) -> None:
    while not over.wait(ASKED_EVERY_S):
        for address in addresses:
            page_at(address, "/metrics")
