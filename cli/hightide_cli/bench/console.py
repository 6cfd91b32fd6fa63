"""`hightide bench console`: what people who look cost the brokers, and how soon they see a change.

The console is a process of its own beside a cluster; who looks is a connection to it, each with
its own session, that takes what a page would take. Browsers, and what they draw, are not measured.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import click

from hightide_cli.bench.client import data_option
from hightide_cli.bench.growth import numbers_option
from hightide_cli.bench.usage import core_percents
from hightide_cli.console_process import NEEDS_MORE, is_installed, start_console
from hightide_cli.failures import REFUSED
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show
from hightide_cli.own_cluster import OwnCluster, cpu_s, memory_mb

BROKERS = 3
TOPIC = "bench-0"
CHANGES_APART_S = 0.13
"""Beside what passes until one was seen: they fall anywhere between two looks."""
PATIENCE_S = 60.0
SETTLING_S = 2.0


@click.command(epilog="Example: hightide bench console --viewers 1,10 --topics 200 -o json")
@numbers_option("--viewers", default="1,10", what="viewers")
@click.option("--topics", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--partitions", type=click.IntRange(min=1), default=10, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Looked at."
)
@click.option("--changes", type=click.IntRange(min=1), default=20, show_default=True)
@data_option
@output_option
def console(
    numbers: list[int],
    topics: int,
    partitions: int,
    seconds: float,
    changes: int,
    data: Path | None,
    output: str,
) -> None:
    """What brokers spend while so many look at a topic's page, beyond what they spend anyway, and
    how long after its acknowledgement a record is seen. Three brokers, each partition on all."""
    if not is_installed():
        say(NEEDS_MORE)
        raise click.exceptions.Exit(REFUSED)
    rows = []
    with OwnCluster(brokers=BROKERS, directory=data) as cluster:
        run(_make_topics, cluster.address, topics, partitions)
        with _console(cluster) as (address, pid, start_s):
            clocks = cluster.cpu_s, partial(cpu_s, pid)
            idle, _ = core_percents(seconds, *clocks)
            for number in numbers:
                say(f"{number} looking")
                with ExitStack() as opened:
                    viewers = [opened.enter_context(_Viewer(address)) for _ in range(number)]
                    time.sleep(SETTLING_S)
                    brokers, console_itself = core_percents(seconds, *clocks)
                    shown = run(_changes, cluster.address, viewers, changes)
                rows.append(
                    {
                        "bench": "console",
                        "viewers": number,
                        "start_s": start_s,
                        "memory_mb": memory_mb(pid, "VmRSS"),
                        "brokers_core_percent": round(brokers - idle, 2),
                        "console_core_percent": round(console_itself, 2),
                        "shown_p50_ms": round(median(shown) * 1000),
                        "shown_max_ms": round(max(shown) * 1000),
                    }
                )
    show(rows, output, columns=list(rows[0]), key="shown_p50_ms")


async def _make_topics(address: str, topics: int, partitions: int) -> None:
    from hightide import Admin

    async with Admin(address) as admin:
        for number in range(topics):
            await admin.create_topic(
                f"bench-{number}", partitions=partitions, replication_factor=BROKERS
            )


@contextmanager
def _console(cluster: OwnCluster) -> Iterator[tuple[str, int, float]]:
    """Its address, its process, and seconds from its start to the first page."""
    (cluster.data / "logs").mkdir(exist_ok=True)
    began = time.monotonic()
    started = start_console(cluster.data, cluster.address, [])
    if started.process is None or not started.address:
        raise click.ClickException("the console did not start")
    try:
        _asked(started.address, "/").read()
        yield started.address, started.process.pid, round(time.monotonic() - began, 2)
    finally:
        started.process.kill()
        started.process.wait()


async def _changes(address: str, viewers: list[_Viewer], count: int) -> list[float]:
    """Seconds from a record's acknowledgement until everybody has seen where the log ends now."""
    import trio

    from hightide import Producer

    times = []
    async with Producer(address, acks="all", linger_ms=0) as producer:
        for number in range(count):
            await trio.sleep(CHANGES_APART_S * (1 + number % 8))
            stored = await (await producer.send(TOPIC, b"", partition=0))
            began = time.monotonic()
            for viewer in viewers:
                await trio.to_thread.run_sync(viewer.wait_until, stored.offset + 1)
            times.append(time.monotonic() - began)
    return times


def _asked(address: str, path: str, cookie: str = "") -> http.client.HTTPResponse:
    host = urlsplit(address).netloc
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise click.ClickException(f"the console answers {answer.status} for {path}")
    return answer


class _Viewer:
    """Who has a topic's page open, for the time of a block."""

    def __init__(self, address: str) -> None:
        session = _asked(address, "/api/session")
        session.read()
        cookie = str(session.getheader("Set-Cookie", "")).partition(";")[0]
        self._stream = _asked(address, f"/api/stream?topic={TOPIC}", cookie)
        self._seen = threading.Condition()
        self._log_end = -1
        self._reading = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> _Viewer:
        self._reading.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def wait_until(self, log_end: int) -> None:
        """Until the leader's log is seen to end there, or behind it."""
        with self._seen:
            if not self._seen.wait_for(lambda: self._log_end >= log_end, PATIENCE_S):
                raise click.ClickException(f"a page did not show a change in {PATIENCE_S:.0f} s")

    def _read(self) -> None:
        event = ""
        with suppress(OSError, ValueError, http.client.HTTPException, AttributeError):
            for line in self._stream:
                name, _, value = line.decode().rstrip().partition(": ")
                if name == "event":
                    event = value
                elif name == "data" and event == "state":
                    self._learn(json.loads(value))

    def _learn(self, state: dict[str, Any]) -> None:
        topic = state.get("topic") or {"partitions": []}
        ends = [lane["log_end"] for part in topic["partitions"][:1] for lane in part["lanes"]]
        with self._seen:
            self._log_end = max((end for end in ends if end is not None), default=-1)
            self._seen.notify_all()
