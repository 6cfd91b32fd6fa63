"""`hightide partitions diff`: do all replicas hold the same bytes below their watermarks?

Every replica is read where it is, by its own broker, batch by batch; batches are compared by
offsets, leader epoch and checksum. Compacted topics may differ for a while: each replica compacts
by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hightide.protocol.words import counted
from hightide_cli.client_config import client_settings
from hightide_cli.failures import CORRUPT, UNREACHABLE
from hightide_cli.options import admin, check_partition, client_options, parse_partition, run
from hightide_cli.output import say, show

if TYPE_CHECKING:
    from hightide.net.connection import Connection

FETCH_BYTES = 4 << 20
SHOWN_MAX = 20
DAMAGED = "KAFKA_STORAGE_ERROR"
ANY_REPLICA = "partitions-diff"
"""A rack that is nobody's: a consumer that names one may be answered by a follower (KIP-392)."""


class ComparedBatch(NamedTuple):
    """What is compared of a batch."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int

    def __str__(self) -> str:
        return (
            f"offsets {self.base_offset} to {self.next_offset - 1} of epoch {self.leader_epoch} "
            f"with checksum {self.crc:08x}"
        )


@dataclass(slots=True)
class Side:
    """One replica, as far as it was read."""

    broker: int
    high_watermark: int = -1
    log_start: int = -1
    batches: int = 0
    error: str = ""


@click.command(epilog="Example: hightide partitions diff orders:0")
@click.argument("part", metavar="TOPIC:PARTITION")
@client_options
def diff(part: str, bootstrap: str, output: str, timeout_s: float) -> None:
    """Compare all replicas of a partition, batch by batch; exit 7 if they differ or one is
    damaged, 3 if one cannot be asked."""
    topic, number = parse_partition(part)
    sides, differences = run(_compare, bootstrap, timeout_s, topic, number)
    rows = [
        {
            "broker": side.broker,
            "log_start_offset": side.log_start,
            "high_watermark": side.high_watermark,
            "batches": side.batches,
            "error": side.error or None,
        }
        for side in sides
    ]
    show(rows, output, columns=[*rows[0]], key="broker")
    for difference in differences[:SHOWN_MAX]:
        say(difference)
    if len(differences) > SHOWN_MAX:
        say(f"and {len(differences) - SHOWN_MAX} more")
    if differences:
        raise click.exceptions.Exit(CORRUPT)
    if any(side.error.startswith(DAMAGED) for side in sides):
        raise click.exceptions.Exit(CORRUPT)
    if any(side.error for side in sides):
        raise click.exceptions.Exit(UNREACHABLE)
    say(counted(len(sides), "replica agrees", "replicas agree"))


async def _compare(
    bootstrap: str, timeout_s: float, topic: str, number: int
) -> tuple[list[Side], list[str]]:
    async with admin(bootstrap, timeout_s) as client:
        known = await client.describe_topic(topic)
        check_partition(topic, number, len(known.partitions))
        addresses = {b.id: (b.host, b.port) for b in (await client.describe_cluster()).brokers}
    sides: list[Side] = []
    first: dict[int, tuple[int, ComparedBatch]] = {}
    differences: list[str] = []
    for broker in known.partitions[number].replicas:
        side = Side(broker)
        sides.append(side)
        async for batch in _batches(side, *addresses[broker], topic, number, timeout_s):
            side.batches += 1
            other, expected = first.setdefault(batch.base_offset, (broker, batch))
            if batch != expected:
                differences.append(f"broker {broker} has {batch}, broker {other} {expected}")
    return sides, differences + _missing(sides, first)


def _missing(sides: list[Side], first: dict[int, tuple[int, ComparedBatch]]) -> list[str]:
    """Batches that one replica has and another, whose watermark is above them, has not."""
    found = []
    for side in sides:
        if side.error:
            continue
        within = [
            base
            for base, (_, batch) in first.items()
            if base >= side.log_start and batch.next_offset <= side.high_watermark
        ]
        if len(within) != side.batches:
            found.append(
                f"broker {side.broker} has {counted(side.batches, 'batch')}, not {len(within)}"
            )
    return found


async def _batches(
    side: Side, host: str, port: int, topic: str, number: int, timeout_s: float
) -> AsyncIterator[ComparedBatch]:
    """Every committed batch of one replica; ends with `side.error` where that fails."""
    from hightide.net.connection import open_connection
    from hightide.net.options import ClientOptions, network_for
    from hightide.protocol.errors import HightideError
    from hightide.protocol.records import iter_batches

    try:
        network = network_for(ClientOptions(**client_settings()))
        async with open_connection(network, host, port, client="diff") as connection:
            offset = 0
            while True:
                result, data = await _fetch(connection, topic, number, offset, timeout_s)
                side.high_watermark, side.log_start = result.high_watermark, result.log_start_offset
                if result.error == "OFFSET_OUT_OF_RANGE" and offset < result.log_start_offset:
                    offset = result.log_start_offset
                    continue
                if result.error:
                    side.error = f"{result.error}: {result.message}"
                    return
                for header, _ in iter_batches(data):
                    offset = header.next_offset
                    yield ComparedBatch(header.base_offset, offset, header.leader_epoch, header.crc)
                if not data:
                    return
    except HightideError as error:
        side.error = str(error)


async def _fetch(
    connection: Connection, topic: str, number: int, offset: int, timeout_s: float
) -> Any:
    from hightide.protocol import messages as m

    part = m.FetchPartition(
        topic=topic, partition=number, fetch_offset=offset, max_bytes=FETCH_BYTES
    )
    request = m.FetchRequest(max_wait_ms=0, partitions=[part], rack=ANY_REPLICA)
    response, attachments = await connection.call(request, timeout_s=timeout_s)
    result = response.partitions[0]
    return result, attachments[result.records] if result.records >= 0 else b""
