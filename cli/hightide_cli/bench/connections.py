"""`hightide bench connections`: what connections cost a broker that say nothing, at growing numbers
of them, and what is left once they are closed."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hightide.protocol import wire
from hightide.protocol.messages import ApiVersionsRequest
from hightide.protocol.words import counted
from hightide_broker.runtime.base.system import raise_open_files_limit
from hightide_cli.bench.client import data_option, secure_option
from hightide_cli.bench.growth import numbers_option
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show
from hightide_cli.own_cluster import OwnCluster

if TYPE_CHECKING:
    from hightide.net.ports import Stream

SETTLING_S = 1.0
TIMEOUT_S = 60.0
OTHER_FILES = 100
"""Of this process, beside the connections."""


@click.command(epilog="Example: hightide bench connections --counts 100,1000,2000 -o json")
@numbers_option("--counts", default="100,1000,2000", what="connections")
@data_option
@secure_option
@output_option
def connections(numbers: list[int], data: Path | None, secure: bool, output: str) -> None:
    """What idle connections cost one broker: each asks one question, and then says nothing.

    What many took the broker gives back within a minute after they have closed; that is waited for.
    """
    from hightide_cli.settling import GONE, LOOK_S

    if (limit := raise_open_files_limit()) < (count := numbers[-1] + OTHER_FILES):
        raise click.UsageError(f"{count} open files are needed, `ulimit -Hn` allows {limit}")
    rows: list[dict[str, Any]] = []
    with OwnCluster(brokers=1, directory=data, secure=secure) as cluster:
        before = cluster.memory_mb()
        for number in numbers:
            say(counted(number, "connection"))
            seconds, during = run(_held, cluster, number)
            time.sleep(SETTLING_S + (LOOK_S if number >= GONE else 0))
            rows.append(
                {
                    "bench": "connections",
                    "connections": number,
                    "open_ms_each": round(seconds * 1000 / number, 2),
                    "memory_mb_before": before,
                    "memory_mb": during,
                    "memory_mb_after": cluster.memory_mb(),
                    "kb_each": None
                    if during is None or before is None
                    else round((during - before) * 1024 / number, 1),
                }
            )
    show(rows, output, columns=list(rows[0]), key="kb_each")


async def _held(cluster: OwnCluster, number: int) -> tuple[float, float | None]:
    """How long so many connections took, one after the other, and what the broker then holds."""
    import trio

    from hightide.net.options import ClientOptions, network_for

    network = network_for(ClientOptions(**cluster.way))
    host, _, port = cluster.address.rpartition(":")
    async with AsyncExitStack() as opened:
        began = time.perf_counter()
        for _ in range(number):
            with trio.fail_after(TIMEOUT_S):
                stream = await network.connect(host, int(port))
                opened.push_async_callback(stream.aclose)
                await _ask(stream)
        seconds = time.perf_counter() - began
        await trio.sleep(SETTLING_S)
        return seconds, cluster.memory_mb()


async def _ask(stream: Stream) -> None:
    """Have a connection be of use once."""
    from hightide.net.connection import FrameReader
    from hightide.net.outbox import send_all

    await send_all(stream, wire.encode_request(ApiVersionsRequest(), request_id=1, client="bench"))
    await FrameReader(stream).next_frame()
