"""`hightide bench`: what this machine does, as ratios to a floor measured in the same run.

Absolute numbers say more about the machine than about the code, so each figure comes with the same
bytes pushed through the barest thing that could do the job: a raw loopback socket for the wire, an
append with a sync for the disk.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from hightide_broker.runtime.base.system import sync_data
from hightide_cli.bench.access import logins, rules
from hightide_cli.bench.backlog import backlog
from hightide_cli.bench.client import client, data_option, groups, secure_option
from hightide_cli.bench.connections import connections
from hightide_cli.bench.console import console
from hightide_cli.bench.failover import failover
from hightide_cli.bench.growth import growth
from hightide_cli.bench.segments import segments
from hightide_cli.bench.spark import spark
from hightide_cli.bench.usage import IDLE_S, Spent, spending
from hightide_cli.bench.watching import watching
from hightide_cli.client_config import client_config_option, client_settings
from hightide_cli.options import output_option, run
from hightide_cli.output import say, show_one
from hightide_cli.own_cluster import OwnCluster

FLOOR_BYTES = 256 << 20
CHUNK_BYTES = 1 << 20
TOPIC = "bench"
REPLICAS_MAX = 3
E2E_RECORDS_MAX = 2000


@click.group()
def bench() -> None:
    """Measure this machine. Without -b each command starts a cluster of its own, and removes it."""


def bench_options(command: Any) -> Any:
    """What all three measurements share."""
    options = [
        click.option("-b", "--bootstrap", help="A running cluster instead of one of its own."),
        click.option(
            "--brokers",
            type=click.IntRange(1, 9),
            default=1,
            show_default=True,
            help="Brokers of its own cluster; each partition is on up to three of them.",
        ),
        click.option(
            "-n", "--records", type=click.IntRange(min=1), default=1_000_000, show_default=True
        ),
        click.option("--record-size", type=click.IntRange(min=0), default=100, show_default=True),
        click.option(
            "--batch-size", type=click.IntRange(min=1), default=512 << 10, show_default=True
        ),
        click.option(
            "--acks", type=click.Choice(["0", "1", "all"]), default="1", show_default=True
        ),
        click.option(
            "--flush",
            type=click.Choice(["replicated", "synced"]),
            default="replicated",
            show_default=True,
        ),
        click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True),
        click.option(
            "-z", "--compression", type=click.Choice(["none", "lz4", "zstd"]), default="none"
        ),
        data_option,
        secure_option,
        client_config_option,
        output_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


class Subject(NamedTuple):
    """What is measured."""

    address: str
    directory: Path
    """Where a cluster of our own, and the floor of the disk, write."""
    cluster: OwnCluster | None

    def memory_mb(self) -> float | None:
        """The largest broker's resident memory, if they are ours."""
        return self.cluster.memory_mb() if self.cluster else None


@contextmanager
def measured(flags: dict[str, Any]) -> Iterator[Subject]:
    """A cluster of our own for the time of the measurement, or somebody else's, with a topic for
    it."""
    directory = Path(flags["data"] or tempfile.gettempdir())
    flags["way"] = client_settings()
    if flags["bootstrap"]:
        run(_make_topic, flags["bootstrap"], flags)
        yield Subject(flags["bootstrap"], directory, None)
        return
    brokers, secure = flags["brokers"], flags["secure"]
    with OwnCluster(brokers=brokers, directory=directory, secure=secure) as cluster:
        flags["way"] = cluster.client_options
        run(_make_topic, cluster.address, flags)
        yield Subject(cluster.address, directory, cluster)


async def _make_topic(address: str, flags: dict[str, Any]) -> None:
    from hightide import Admin

    async with Admin(address, **flags["way"]) as admin:
        if any(topic.topic == TOPIC for topic in await admin.list_topics()):
            await admin.delete_topic(TOPIC)
        brokers = sum(not b.fenced for b in (await admin.describe_cluster()).brokers)
        await admin.create_topic(
            TOPIC,
            partitions=flags["partitions"],
            replication_factor=min(brokers, REPLICAS_MAX),
            configs={"flush": flags["flush"], "max.message.bytes": str(16 << 20)},
        )


@bench.command(
    epilog="Example: hightide bench produce --brokers 3 --acks all --record-size 1024 -o json"
)
@bench_options
def produce(**flags: Any) -> None:
    """One producer process, `send` for each record; the floors are a raw socket and a raw disk."""
    with measured(flags) as subject:
        seconds, spent = run(_watched, _produce, subject.address, flags)
        _report("produce", flags, seconds, spent, subject)


@bench.command(epilog="Example: hightide bench consume -n 2000000")
@bench_options
def consume(**flags: Any) -> None:
    """One consumer process, every record as a Python object."""
    with measured(flags) as subject:
        run(_produce, subject.address, flags)
        seconds, spent = run(_watched, _consume, subject.address, flags)
        _report("consume", flags, seconds, spent, subject)


@bench.command(epilog="Example: hightide bench e2e -n 1000 --acks all")
@bench_options
def e2e(**flags: Any) -> None:
    """One record at a time, at most 2000: how long until it is read back; and, the next ones, until
    they are acknowledged, and how many turns of its event loop that costs a broker."""
    flags["records"] = min(flags["records"], E2E_RECORDS_MAX)
    with measured(flags) as subject:
        latencies = sorted(run(_round_trips, subject.address, flags))
        acknowledged, passes = run(_acknowledgements, subject.address, flags)
        floor = sorted(_socket_round_trips(min(flags["records"], 1000)))
    fields = {
        "bench": "e2e",
        "records": len(latencies),
        "acks": flags["acks"],
        "flush": flags["flush"],
    }
    for kind, times in (("", latencies), ("ack_", sorted(acknowledged))):
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99)):
            fields[kind + name] = round(times[int(share * (len(times) - 1))] * 1000, 3)
    fields["floor_socket_p50_ms"] = round(floor[len(floor) // 2] * 1000, 3)
    fields["ratio_to_socket"] = round(
        fields["p50_ms"] / max(fields["floor_socket_p50_ms"], 1e-6), 1
    )
    show_one(fields | passes, flags["output"])


def _report(
    name: str, flags: dict[str, Any], seconds: float, spent: Spent, subject: Subject
) -> None:
    size = flags["records"] * flags["record_size"]
    rate = size / seconds / 1e6
    say("measuring the floors")
    wire, disk = _socket_floor(), _disk_floor(subject.directory)
    fields = {
        "bench": name,
        "records": flags["records"],
        "record_size": flags["record_size"],
        "acks": flags["acks"],
        "flush": flags["flush"],
        "seconds": round(seconds, 3),
        "records_per_s": round(flags["records"] / seconds),
        "mb_per_s": round(rate, 1),
        "floor_socket_mb_per_s": round(wire, 1),
        "floor_disk_mb_per_s": round(disk, 1),
        "ratio_to_socket": round(rate / wire, 4),
        "ratio_to_disk": round(rate / disk, 4),
        "broker_memory_mb": subject.memory_mb(),
    } | spent.seconds
    show_one(fields, flags["output"])


async def _watched(
    work: Callable[[str, dict[str, Any]], Awaitable[float]], address: str, flags: dict[str, Any]
) -> tuple[float, Spent]:
    """Seconds of a measurement, and what the brokers spent on it."""
    from hightide import Admin

    async with Admin(address, **flags["way"]) as admin, spending(admin) as spent:
        seconds = await work(address, flags)
    return seconds, spent


async def _produce(address: str, flags: dict[str, Any]) -> float:
    from hightide import Producer

    value = os.urandom(flags["record_size"])
    async with Producer(
        address,
        acks=flags["acks"],
        batch_size=flags["batch_size"],
        max_request_size=max(1 << 20, flags["batch_size"] + (64 << 10)),
        linger_ms=5,
        compression_type=flags["compression"],
        **flags["way"],
    ) as producer:
        await (await producer.send(TOPIC, value))
        started = time.perf_counter()
        for _ in range(flags["records"]):
            await producer.send(TOPIC, value)
        await producer.flush()
        return time.perf_counter() - started


async def _consume(address: str, flags: dict[str, Any]) -> float:
    from hightide import Consumer

    left = flags["records"]
    reading = {"topics": [TOPIC], "auto_offset_reset": "earliest", **flags["way"]}
    async with Consumer(address, **reading) as consumer:
        started = time.perf_counter()
        async for _ in consumer:
            left -= 1
            if not left:
                break
        return time.perf_counter() - started


async def _acknowledgements(
    address: str, flags: dict[str, Any]
) -> tuple[list[float], dict[str, float | None]]:
    """Seconds until each record was acknowledged; turns of event loops for one, if all went to one
    partition."""
    from hightide import Admin, Producer

    value = os.urandom(flags["record_size"])
    times = []
    async with (
        Producer(address, acks=flags["acks"], linger_ms=0, **flags["way"]) as producer,
        Admin(address, **flags["way"]) as admin,
    ):
        await (await producer.send(TOPIC, value))
        async with spending(admin, idle_s=IDLE_S) as spent:
            for _ in range(flags["records"]):
                started = time.perf_counter()
                await (await producer.send(TOPIC, value))
                times.append(time.perf_counter() - started)
        first, *more = (await admin.describe_topic(TOPIC)).partitions
    if more:
        return times, {}
    followers = [node for node in first.replicas if node != first.leader]
    return times, spent.passes_per_ack(first.leader, followers, flags["records"])


async def _round_trips(address: str, flags: dict[str, Any]) -> list[float]:
    from hightide import Consumer, Producer

    value = os.urandom(flags["record_size"])
    latencies = []
    reading = {"topics": [TOPIC], "auto_offset_reset": "earliest", **flags["way"]}
    async with (
        Producer(address, acks=flags["acks"], linger_ms=0, **flags["way"]) as producer,
        Consumer(address, **reading) as consumer,
    ):
        for _ in range(flags["records"]):
            started = time.perf_counter()
            await producer.send(TOPIC, value)
            await anext(consumer)
            latencies.append(time.perf_counter() - started)
    return latencies


def _with_echo(serve: Callable[[socket.socket], None], work: Callable[[socket.socket], Any]) -> Any:
    """Run `work` against a thread that serves one loopback connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        with socket.create_connection(listener.getsockname()) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            result = work(client)
        thread.join()
    return result


def _socket_floor() -> float:
    """MB/s of a raw loopback socket, one process sending, one thread receiving."""

    def sink(connection: socket.socket) -> None:
        buffer = bytearray(CHUNK_BYTES)
        while connection.recv_into(buffer):
            pass

    def send(client: socket.socket) -> float:
        chunk = bytes(CHUNK_BYTES)
        started = time.perf_counter()
        for _ in range(FLOOR_BYTES // CHUNK_BYTES):
            client.sendall(chunk)
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
        return FLOOR_BYTES / (time.perf_counter() - started) / 1e6

    return float(_with_echo(sink, send))


def _socket_round_trips(count: int) -> list[float]:
    """Seconds of a one-byte question and answer on a raw loopback socket."""

    def echo(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(64):
            connection.sendall(data)

    def ask(client: socket.socket) -> list[float]:
        found = []
        for _ in range(count):
            started = time.perf_counter()
            client.sendall(b"?")
            client.recv(1)
            found.append(time.perf_counter() - started)
        return found

    result: list[float] = _with_echo(echo, ask)
    return result


def _disk_floor(directory: Path) -> float:
    """MB/s of appending 1 MiB at a time, each made durable."""
    chunk = os.urandom(CHUNK_BYTES)
    with tempfile.NamedTemporaryFile(dir=directory, prefix="hightide-floor-") as file:
        started = time.perf_counter()
        for _ in range(FLOOR_BYTES // CHUNK_BYTES // 4):
            os.write(file.fileno(), chunk)
            sync_data(file.fileno())
        return FLOOR_BYTES / 4 / (time.perf_counter() - started) / 1e6


for command in (
    *(backlog, client, connections, console, failover, groups, growth, logins, rules, segments),
    *(spark, watching),
):
    bench.add_command(command)
