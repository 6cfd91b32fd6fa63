"""`hightide bench connections`: what connections cost a broker that say nothing, at growing numbers
of them, and what is left once they are closed."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from hightide.protocol import wire
from hightide.protocol.messages import ApiVersionsRequest
from hightide.protocol.words import counted
from hightide_broker.runtime.base.system import raise_open_files_limit
from hightide_cli.bench.client import data_option
from hightide_cli.bench.growth import numbers_option
from hightide_cli.options import output_option
from hightide_cli.output import say, show
from hightide_cli.own_cluster import OwnCluster

SETTLING_S = 1.0
TIMEOUT_S = 60.0
OTHER_FILES = 100
"""Of this process, beside the connections."""


@click.command(epilog="Example: hightide bench connections --counts 100,1000,2000 -o json")
@numbers_option("--counts", default="100,1000,2000", what="connections")
@data_option
@output_option
def connections(numbers: list[int], data: Path | None, output: str) -> None:
    """What idle connections cost one broker: each asks one question, and then says nothing."""
    if (limit := raise_open_files_limit()) < (count := numbers[-1] + OTHER_FILES):
        raise click.UsageError(f"{count} open files are needed, `ulimit -Hn` allows {limit}")
    rows: list[dict[str, Any]] = []
    with OwnCluster(brokers=1, directory=data) as cluster:
        host, _, port = cluster.address.rpartition(":")
        before = cluster.memory_mb()
        for number in numbers:
            say(f"{counted(number, 'connection')}")
            began = time.perf_counter()
            with ExitStack() as opened:
                for _ in range(number):
                    opened.enter_context(_one(host, int(port)))
                seconds = time.perf_counter() - began
                time.sleep(SETTLING_S)
                during = cluster.memory_mb()
            time.sleep(SETTLING_S)
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


def _one(host: str, port: int) -> socket.socket:
    """A connection that was of use once."""
    connection = socket.create_connection((host, port), timeout=TIMEOUT_S)
    question = wire.encode_request(ApiVersionsRequest(), request_id=1, client="bench")
    connection.sendall(b"".join(question))
    connection.recv(1 << 16)
    return connection
