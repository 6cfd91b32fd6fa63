"""`hightide bench growth`: what partitions cost that nobody uses, at one number of them after the
other, so that the slope is seen and not a single point.

Three brokers, every partition on all of them. At each number: how long the new partitions took to
be made and to get a leader, what the brokers then spend while nobody asks them anything, what they
hold in memory, and how long the cluster takes to stop and to be back with all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hightide.protocol.words import counted
from hightide_cli.bench.client import Way, data_option, secure_option
from hightide_cli.bench.usage import core_percents
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show
from hightide_cli.own_cluster import OwnCluster

if TYPE_CHECKING:
    from hightide import Admin, PartitionDescription

F = TypeVar("F", bound=Callable[..., Any])

BROKERS = 3
TOPIC_PARTITIONS_MAX = 1000
"""Partitions of one topic; more of them are more topics."""
SETTLING_S = 3.0
"""How long brokers are left alone before it is looked at what they spend."""
POLL_S = 0.05
PATIENCE_S = 600.0
TIMEOUT_MS = 600_000
"""A thousand partitions in one request take their time."""


def numbers_option(name: str, *, default: str, what: str) -> Callable[[F], F]:
    """An option with numbers of something to measure at, rising, as `numbers`."""

    def parse(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
        try:
            numbers = sorted({int(word) for word in text.split(",")})
        except ValueError as error:
            raise click.BadParameter(f"{text!r}, expected numbers with commas: 10,100") from error
        if numbers[0] < 1:
            raise click.BadParameter(f"{numbers[0]} {what}, expected 1 or more")
        return numbers

    return click.option(
        name,
        "numbers",
        default=default,
        show_default=True,
        callback=parse,
        help=f"How many {what} at each step, with commas.",
    )


@click.command(epilog="Example: hightide bench growth --partitions 10,100,1000,10000")
@numbers_option("--partitions", default="10,100,1000", what="partitions")
@click.option(
    "--idle",
    "idle_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Seconds in which it is looked at what idle brokers spend.",
)
@data_option
@secure_option
@output_option
def growth(numbers: list[int], idle_s: float, data: Path | None, secure: bool, output: str) -> None:
    """What idle partitions cost, at growing numbers of them, each on three brokers."""
    rows = []
    with OwnCluster(brokers=BROKERS, directory=data, secure=secure) as cluster:
        there = 0
        for number in numbers:
            say(counted(number, "partition"))
            created_s = run(_grow, cluster.way, there, number)
            time.sleep(SETTLING_S)
            (idle,) = core_percents(idle_s, cluster.cpu_s)
            row = {
                "bench": "growth",
                "partitions": number,
                "create_ms_each": round(created_s * 1000 / (number - there), 2),
                "idle_core_percent": round(idle / BROKERS, 2),
                "memory_mb": cluster.memory_mb(),
            }
            rows.append(row | _restart(cluster, number))
            there = number
    show(rows, output, columns=list(rows[0]), key="idle_core_percent")


async def _grow(way: Way, there: int, number: int) -> float:
    """Make the partitions that are missing, if any are; seconds until each of them has a leader
    and everybody in sync."""
    from hightide import Admin

    async with Admin(**way, default_api_timeout_ms=TIMEOUT_MS) as admin:
        began = time.perf_counter()
        while there < number:
            count = min(number - there, TOPIC_PARTITIONS_MAX)
            await admin.create_topic(f"idle-{there}", partitions=count, replication_factor=BROKERS)
            there += count
        await until_in_sync(admin, number)
        return time.perf_counter() - began


async def until_in_sync(admin: Admin, number: int) -> list[PartitionDescription]:
    """All partitions, once so many of them have a leader and a replica in sync on each broker."""
    import trio

    with trio.fail_after(PATIENCE_S):
        while True:
            asked = trio.current_time()
            topics = await admin.list_topics()
            parts = [part for topic in topics for part in topic.partitions]
            if sum(part.leader >= 0 and len(part.isr) == BROKERS for part in parts) >= number:
                return parts
            # To tell of thousands takes a broker's processor: half of its time is enough.
            await trio.sleep(max(POLL_S, trio.current_time() - asked))


def _restart(cluster: OwnCluster, number: int) -> dict[str, Any]:
    """Stop all nodes in order and start them again; seconds of both."""
    ids = [node.node for node in cluster.nodes]
    began = time.perf_counter()
    cluster.stop_all()
    stopped = time.perf_counter()
    cluster.start(*ids)
    started = time.perf_counter()
    run(_grow, cluster.way, number, number)
    return {
        "stop_s": round(stopped - began, 2),
        "start_s": round(started - stopped, 2),
        "all_in_sync_s": round(time.perf_counter() - stopped, 2),
    }
