"""`hightide bench failover`: how long nobody can write when a leader dies.

A producer sends one record after the other with acks=all; the leader of its partition is killed,
again and again. The gap is the longest time between two acknowledgements around a kill. The leader
may lead many other partitions, which lose it at the same time. At the end everything that was
acknowledged is read back.
"""

from __future__ import annotations

import math
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hightide_cli.bench.client import data_option, secure_option
from hightide_cli.bench.growth import BROKERS, TIMEOUT_MS, until_in_sync
from hightide_cli.failures import CORRUPT
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show_one
from hightide_cli.own_cluster import OwnCluster

if TYPE_CHECKING:
    from hightide import Admin

TOPIC = "failover"
OTHERS = "failover-beside"
STEADY_S = 1.0
"""How long everything works between two kills."""
PATIENCE_S = 300.0


@click.command(epilog="Examples: hightide bench failover · hightide bench failover --clean")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--clean", is_flag=True, help="Stop the leader in order instead of kill -9.")
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="How many the leader leads when it dies.",
)
@click.option(
    "--flush", type=click.Choice(["replicated", "synced"]), default="synced", show_default=True
)
@data_option
@secure_option
@output_option
def failover(
    rounds: int,
    clean: bool,
    partitions: int,
    flush: str,
    data: Path | None,
    secure: bool,
    output: str,
) -> None:
    """Kill the leader under a producer, and measure how long nothing is acknowledged."""
    with OwnCluster(brokers=BROKERS, directory=data, secure=secure) as cluster:
        writer = Writer(cluster, flush=flush, partitions=partitions)
        gaps = sorted(run(writer.run, rounds, clean))
        lost = run(writer.count_lost)
    fields = {
        "bench": "failover",
        "rounds": rounds,
        "stop": "clean" if clean else "kill -9",
        "flush": flush,
        "partitions": partitions,
        "gap_p50_ms": _share(gaps, 0.5),
        "gap_p99_ms": _share(gaps, 0.99),
        "gap_max_ms": _share(gaps, 1.0),
        "acknowledged": len(writer.acknowledged),
        "lost": lost,
    }
    show_one(fields, output)
    if lost:
        raise click.exceptions.Exit(CORRUPT)


def _share(gaps: list[float], share: float) -> float:
    return round(gaps[max(math.ceil(share * len(gaps)) - 1, 0)] * 1000, 1)


class Writer:
    """The producer that is disturbed, and what it was told."""

    def __init__(self, cluster: OwnCluster, *, flush: str, partitions: int) -> None:
        self.acknowledged: dict[int, bytes] = {}
        """Offset → value."""
        self._cluster = cluster
        self._flush = flush
        self._partitions = partitions
        self._acked_at: list[float] = []

    async def run(self, rounds: int, clean: bool) -> list[float]:
        """The gap of each round, in seconds."""
        import trio

        from hightide import Admin

        async with (
            Admin(**self._cluster.way, default_api_timeout_ms=TIMEOUT_MS) as admin,
            trio.open_nursery() as nursery,
        ):
            await self._make_topics(admin)
            nursery.start_soon(self._write)
            gaps = []
            for number in range(rounds):
                await self._until_in_sync(admin)
                await trio.sleep(STEADY_S)
                gaps.append(await self._one_round(admin, clean))
                say(f"round {number + 1}: {gaps[-1] * 1000:.0f} ms")
            nursery.cancel_scope.cancel()
        return gaps

    async def _make_topics(self, admin: Admin) -> None:
        """All partitions have the same preferred leader."""
        replicas = list(range(1, BROKERS + 1))
        for topic, count in ((TOPIC, 1), (OTHERS, self._partitions - 1)):
            if count:
                await admin.create_topic(
                    topic,
                    assignment=[replicas] * count,
                    configs={"flush": self._flush, "min.insync.replicas": "2"},
                )

    async def _write(self) -> None:
        from hightide import Producer

        number = 0
        async with Producer(**self._cluster.way, acks="all", linger_ms=0) as producer:
            while True:
                value = b"record %d" % number
                record = await (await producer.send(TOPIC, value))
                self._acked_at.append(time.monotonic())
                self.acknowledged[record.offset] = value
                number += 1

    async def _one_round(self, admin: Admin, clean: bool) -> float:
        """End the leader, wait until records are acknowledged again, bring it back."""
        import trio

        leader = (await admin.describe_topic(TOPIC)).partitions[0].leader
        began = time.monotonic()
        await trio.to_thread.run_sync(partial(self._cluster.stop, leader, kill=not clean))
        ended = time.monotonic()
        with trio.fail_after(PATIENCE_S):
            while True:
                await trio.sleep(STEADY_S)
                if self._acked_at and self._acked_at[-1] > ended:
                    break
        around = [at for at in self._acked_at if at >= began - STEADY_S / 2]
        await trio.to_thread.run_sync(self._cluster.start, leader)
        return max(after - before for before, after in pairwise(around))

    async def _until_in_sync(self, admin: Admin) -> None:
        """Until everybody is in sync everywhere, and one broker leads it all."""
        import trio

        with trio.fail_after(PATIENCE_S):
            while len({part.leader for part in await until_in_sync(admin, self._partitions)}) > 1:
                await admin.elect_leaders()
                await trio.sleep(0.05)

    async def count_lost(self) -> int:
        """How many acknowledged records are not where they were acknowledged."""
        from hightide import Consumer

        left = dict(self.acknowledged)
        async with Consumer(
            **self._cluster.way, topics=[TOPIC], auto_offset_reset="earliest"
        ) as consumer:
            while True:
                records = await consumer.poll(timeout_ms=3000)
                if not records:
                    return len(left)
                for record in records:
                    if left.get(record.offset) == record.value:
                        del left[record.offset]
