"""`hightide bench client` and `bench groups`: what a Python program gets out of the client library,
and what a coordinator carries.

Every rate stands beside the barest Python that could do the same: appending to a list for each
record, joining bytes for many, making plain objects. Where a broker is in the way, it is a process
of its own, as for everybody else.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hightide_cli.options import output_option, run
from hightide_cli.output import show_one
from hightide_cli.own_cluster import OwnCluster

if TYPE_CHECKING:
    from hightide import Consumer, Producer
    from hightide.consume.membership import Membership
    from hightide.net.cluster import Cluster

TOPIC = "bench"
Way = dict[str, Any]
"""How a client comes in: the options that any of them takes."""
HEARTBEAT_MS = 3_000
GROUPS_A_CONNECTION = 50
SETTLING_S = 300.0

data_option = click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="Where to write."
)
secure_option = click.option(
    "--secure", is_flag=True, help="Its own cluster under TLS, as `up --secure` has it."
)


@click.command(epilog="Example: hightide bench client --brokers 3 -o json")
@click.option("-n", "--records", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--record-size", type=click.IntRange(min=0), default=100, show_default=True)
@click.option("--brokers", type=click.IntRange(1, 9), default=3, show_default=True)
@data_option
@secure_option
@output_option
def client(
    records: int, record_size: int, brokers: int, data: Path | None, secure: bool, output: str
) -> None:
    """One process sends and reads records in every way there is: records a second, acks=all, each
    partition on up to three brokers."""
    values = [os.urandom(record_size) for _ in range(min(records, 1000))]
    values = (values * (records // len(values) + 1))[:records]
    with OwnCluster(brokers=brokers, directory=data, secure=secure) as cluster:
        blocking = _blocking(cluster.way, values, min(brokers, 3))
        figures = run(_client, cluster.way, values, min(brokers, 3), blocking)
    show_one({"bench": "client", "records": records, "record_size": record_size} | figures, output)


def _blocking(way: Way, values: list[bytes], replicas: int) -> dict[str, float]:
    """A loop of the blocking `send`, without keys and with ten thousand different ones."""
    from hightide.blocking import Admin, Producer

    keys = [b"key-%d" % number for number in range(10_000)]
    keys = (keys * (len(values) // len(keys) + 1))[: len(values)]
    with (
        Admin(**way) as admin,
        Producer(**way, batch_size=1 << 20, max_request_size=4 << 20) as producer,
    ):
        admin.create_topic("bench-blocking", partitions=1, replication_factor=replicas)
        producer.send("bench-blocking", b"").result()

        def send() -> None:
            for value in values:
                producer.send("bench-blocking", value)
            producer.flush()

        def send_keyed() -> None:
            for value, key in zip(values, keys, strict=True):
                producer.send("bench-blocking", value, key=key)
            producer.flush()

        plain, keyed = _rate(len(values), send), _rate(len(values), send_keyed)
        return {"blocking_send": plain, "blocking_send_keyed": keyed}


async def _client(
    way: Way, values: list[bytes], replicas: int, rates: dict[str, float]
) -> dict[str, Any]:
    from hightide import Admin

    async with Admin(**way) as admin:
        await admin.create_topic(TOPIC, partitions=1, replication_factor=replicas)
    count = len(values)
    rates["send"] = await _send(way, values)
    rates["send_many_buffered"], rates["send_many"] = await _send_many(way, values)
    rates["consume"] = await _consume(way, count)
    rates["poll_arrow"] = await _poll_arrow(way, count)
    floors = {
        "floor_append": _rate(count, lambda: _appended(values)),
        "floor_join": _rate(count, lambda: b"".join(values)),
        "floor_objects": _rate(count, lambda: [(n, value) for n, value in enumerate(values)]),
    }
    rounded = {f"{name}_per_s": round(rate) for name, rate in (rates | floors).items()}
    return rounded | {
        "ratio_blocking_send_to_append": round(rates["blocking_send"] / floors["floor_append"], 4),
        "ratio_send_to_append": round(rates["send"] / floors["floor_append"], 4),
        "ratio_send_many_to_join": round(rates["send_many_buffered"] / floors["floor_join"], 4),
        "ratio_consume_to_objects": round(rates["consume"] / floors["floor_objects"], 4),
        "ratio_poll_arrow_to_join": round(rates["poll_arrow"] / floors["floor_join"], 4),
    }


def _appended(values: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    for value in values:
        found.append(value)  # noqa: PERF402 - the loop is what is measured
    return found


def _rate(count: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def _bulk_producer(way: Way) -> Producer:
    from hightide import Producer

    return Producer(**way, batch_size=1 << 20, max_request_size=4 << 20, buffer_memory=256 << 20)


async def _send(way: Way, values: list[bytes]) -> float:
    async with _bulk_producer(way) as producer:
        await (await producer.send(TOPIC, b""))
        started = time.perf_counter()
        for value in values:
            await producer.send(TOPIC, value)
        await producer.flush()
        return len(values) / (time.perf_counter() - started)


async def _send_many(way: Way, values: list[bytes]) -> tuple[float, float]:
    async with _bulk_producer(way) as producer:
        await (await producer.send(TOPIC, b""))
        started = time.perf_counter()
        sent = await producer.send_many(TOPIC, values)
        buffered = time.perf_counter()
        await sent
        ended = time.perf_counter()
    return len(values) / (buffered - started), len(values) / (ended - started)


@asynccontextmanager
async def _reader(way: Way) -> AsyncIterator[Consumer]:
    from hightide import Consumer

    async with Consumer(
        **way,
        topics=[TOPIC],
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 << 20,
        prefetch_bytes=64 << 20,
    ) as consumer:
        yield consumer


async def _consume(way: Way, count: int) -> float:
    left = count
    async with _reader(way) as consumer:
        started = time.perf_counter()
        while left > 0:
            left -= len(await consumer.poll(timeout_ms=1000, max_records=100_000))
        return (count - left) / (time.perf_counter() - started)


async def _poll_arrow(way: Way, count: int) -> float:
    import_module("pyarrow")  # not while the clock runs
    left = count
    async with _reader(way) as consumer:
        started = time.perf_counter()
        while left > 0:
            table = await consumer.poll_arrow(timeout_ms=1000)
            left -= 0 if table is None else len(table)
        return (count - left) / (time.perf_counter() - started)


# -- groups ----------------------------------------------------------------------------------------


@click.command(epilog="Example: hightide bench groups --groups 1000 --partitions 10 -o json")
@click.option("--groups", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--partitions", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--seconds", type=click.IntRange(min=1), default=10, show_default=True)
@data_option
@secure_option
@output_option
def groups(
    groups: int, partitions: int, seconds: int, data: Path | None, secure: bool, output: str
) -> None:
    """How soon a test's cluster serves, a group reads and is rebalanced; and groups with a member
    each that commit all partitions once a second, on one broker."""
    figures = run(_begin, secure) | {"groups": groups, "partitions": partitions}
    at_once = ["group.initial.rebalance.delay.ms=0"]
    with OwnCluster(brokers=1, directory=data, assignments=at_once, secure=secure) as cluster:
        load = run(_load, cluster, groups, partitions, seconds)
    show_one({"bench": "groups"} | figures | load, output)


async def _begin(secure: bool) -> dict[str, Any]:
    """A cluster in this process, the first record of a group, and a third member."""
    import trio

    from hightide import Admin, Consumer, Producer
    from hightide.testing import cluster

    started = time.perf_counter()
    async with cluster(brokers=3, secure=secure) as made, AsyncExitStack() as stack:
        ready = time.perf_counter()
        way = {"bootstrap_servers": made.bootstrap, **made.client_options}
        admin = await stack.enter_async_context(Admin(**way))
        await admin.create_topic(TOPIC, partitions=6)
        producer = await stack.enter_async_context(Producer(**way))
        began = time.perf_counter()
        await producer.send(TOPIC, b"first")
        members = []
        for number in range(3):
            if number == 2:
                joins = trio.current_time()
            member = Consumer(
                **way,
                group_id="g",
                topics=[TOPIC],
                auto_offset_reset="earliest",
                heartbeat_interval_ms=HEARTBEAT_MS,
            )
            members.append(await stack.enter_async_context(member))
            if number == 0:
                await anext(members[0])
                first = time.perf_counter()
            await _shared(members)
        rebalanced_ms = (trio.current_time() - joins) * 1000
    return {
        "cluster_ready_ms": round((ready - started) * 1000, 1),
        "first_group_record_ms": round((first - began) * 1000, 1),
        "rebalance_ms": round(rebalanced_ms, 1),
        "rebalance_beyond_heartbeat_ms": round(max(rebalanced_ms - HEARTBEAT_MS, 0), 1),
    }


async def _shared(members: list[Consumer]) -> None:
    """Until every member has its part of the partitions, and they are six together."""
    import trio

    with trio.fail_after(SETTLING_S):
        while True:
            sizes = [len(member.assignment()) for member in members]
            if sum(sizes) == 6 and min(sizes) == 6 // len(members):
                return
            for member in members:
                await member.poll(timeout_ms=5)


class _Load(NamedTuple):
    """What the groups saw."""

    latencies: list[float]
    late: list[int]


async def _load(cluster: OwnCluster, count: int, partitions: int, seconds: int) -> dict[str, Any]:
    import trio

    from hightide import Admin

    async with Admin(**cluster.way) as admin:
        await admin.create_topic(TOPIC, partitions=partitions)
    seen = _Load([], [0])
    async with _many(cluster.way, count) as connections, trio.open_nursery() as nursery:
        members = [_member(connections[n // GROUPS_A_CONNECTION], n) for n in range(count)]
        for member in members:
            await member.join([])
            nursery.start_soon(member.run)
        before, began = cluster.cpu_s(), time.perf_counter()
        async with trio.open_nursery() as working:
            for number, member in enumerate(members):
                working.start_soon(_commit, member, partitions, seconds, number / count, seen)
        elapsed, spent = time.perf_counter() - began, cluster.cpu_s() - before
        nursery.cancel_scope.cancel()
    times = sorted(seen.latencies)
    return {
        "commits_per_s": round(len(times) / elapsed, 1),
        "offsets_per_s": round(len(times) * partitions / elapsed, 1),
        "late_commits": seen.late[0],
        "commit_p50_ms": round(times[len(times) // 2] * 1000, 2),
        "commit_p99_ms": round(times[int(0.99 * (len(times) - 1))] * 1000, 2),
        "broker_cores": round(spent / elapsed, 3),
        "broker_memory_mb": cluster.memory_mb(),
    }


@asynccontextmanager
async def _many(way: Way, groups: int) -> AsyncIterator[list[Cluster]]:
    """Connections for so many groups."""
    from hightide.net.cluster import open_cluster
    from hightide.net.options import ClientOptions

    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_cluster(ClientOptions(**way)))
            for _ in range(0, groups, GROUPS_A_CONNECTION)
        ]


def _member(cluster: Cluster, number: int) -> Membership:
    """The only member of a group."""
    from hightide.consume.assignors import ASSIGNORS
    from hightide.consume.membership import Membership
    from hightide.net.group_channel import GroupChannel

    return Membership(
        cluster,
        GroupChannel(cluster, f"group-{number}", timeout_s=30),
        [TOPIC],
        assignors={"range": ASSIGNORS["range"]},
        session_timeout_s=45,
        heartbeat_interval_s=HEARTBEAT_MS / 1000,
        max_poll_interval_s=300,
        instance_id="",
        client_id="bench",
        wake=lambda: None,
    )


async def _commit(
    member: Membership, partitions: int, seconds: int, shift_s: float, seen: _Load
) -> None:
    """Once a second, each group at its own time of the second."""
    import trio

    from hightide import OffsetAndMetadata, TopicPartition

    began = trio.current_time() + shift_s
    for second in range(seconds):
        await trio.sleep_until(began + second)
        started = trio.current_time()
        offsets = {TopicPartition(TOPIC, n): OffsetAndMetadata(second) for n in range(partitions)}
        await member.commit(member.commit_request(offsets))
        seen.latencies.append(trio.current_time() - started)
        seen.late[0] += started > began + second + 1
