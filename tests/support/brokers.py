"""What the broker tests share: nodes on any disk, a client on their wire, batches, crashes.

No test lives here. A node runs in this process and is talked to over a real socket on 127.0.0.1;
its disk is mostly the simulated one, its clock of day stands still unless a test moves it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import trio
from patience import PATIENCE_S
from trio.testing import wait_all_tasks_blocked

from hightide.net.connection import Connection, open_connection
from hightide.net.ports import SystemClock
from hightide.net.tcp import TcpNetwork, listen
from hightide.protocol import messages as m
from hightide.protocol.columns import Headers, Record, encode_columns, to_records
from hightide.protocol.records import encode_batch, iter_batches
from hightide_broker.config import BrokerConfig, make_config
from hightide_broker.formatting import format_node
from hightide_broker.node import Node
from hightide_broker.opening import open_node
from hightide_broker.ports import Disk, DiskFile
from hightide_broker.runtime.server.entrance import Listener
from hightide_broker.simulation.disk import SimDisk

NOW_MS = 1_700_000_000_000
DATA = "data/broker-1"
_SEEDS = itertools.count(7)
"""No two lives of a node draw the same ids."""


class FakeClock:
    """The time of day, as the test sets it."""

    def __init__(self, ms: int = NOW_MS) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms


class LoseAll:
    """The worst luck in a crash: nothing that was not synced stays."""

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int) -> int:
        return 0

    def randbytes(self, n: int) -> bytes:
        return bytes(n)


class GatedDisk(SimDisk):
    """A disk whose background syncs wait until the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = trio.Event()
        self.gate.set()

    def shut(self) -> None:
        self.gate = trio.Event()

    async def while_syncing(self, files: Sequence[DiskFile]) -> None:
        await self.gate.wait()
        await super().while_syncing(files)


async def quiet() -> None:
    """Until nothing happens any more; what was sent on a socket has arrived, too."""
    await wait_all_tasks_blocked(0.005)


async def hard_of_hearing(node: Node) -> trio.SocketStream:
    """A connection on which hardly anything arrives that is not read."""
    sock = trio.socket.socket()
    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await sock.connect(("127.0.0.1", node.port))
    return trio.SocketStream(sock)


def settings(over: dict[str, str] | None = None, *, data: str = DATA) -> BrokerConfig:
    return make_config({"log.dirs": data, "listen.port": "0", **(over or {})})


def batch(
    *values: bytes | None,
    keys: Sequence[bytes | None] | None = None,
    times: Sequence[int] | None = None,
    headers: dict[int, Headers] | None = None,
    codec: str = "none",
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytearray:
    """A batch as a producer sends it; `producer` is (id, epoch, first sequence)."""
    stamps = [NOW_MS] * len(values) if times is None else list(times)
    payload = encode_columns(stamps, keys, values, headers, base_timestamp=stamps[0])
    return encode_batch(
        payload,
        record_count=len(values),
        base_timestamp=stamps[0],
        max_timestamp=max(stamps),
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


class Fetched(NamedTuple):
    """One partition's part of a fetch."""

    result: m.FetchResult
    records: list[Record]
    next_offset: int
    """The offset after the last batch; compaction may have left it no record."""

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


class Client:
    """Calls with the defaults the tests mean: topic t, partition 0, acks=all."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def call(self, request: m.Message, *attachments: bytes | bytearray) -> Any:
        body, _ = await self.connection.call(request, attachments, timeout_s=PATIENCE_S)
        return body

    async def create(
        self, topic: str = "t", *, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> m.TopicResult:
        new = m.NewTopic(topic=topic, partitions=partitions, configs=configs or {})
        (result,) = (await self.call(m.CreateTopicsRequest(topics=[new]))).topics
        return result

    async def produce(self, *values: bytes, topic: str = "t", partition: int = 0, acks: int = -1):
        return await self.send(batch(*values), topic=topic, partition=partition, acks=acks)

    async def produce_at_last(self, value: bytes) -> None:
        """Try until it is stored."""
        with trio.fail_after(PATIENCE_S):
            while (await self.produce(value)).error is not None:
                await trio.sleep(0.01)

    async def send(
        self,
        data: bytes | bytearray,
        *,
        topic: str = "t",
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 5000,
    ) -> m.ProduceResult:
        answer = await self.begin(
            data, topic=topic, partition=partition, acks=acks, timeout_ms=timeout_ms
        )
        body, _ = await answer.wait(PATIENCE_S)
        return body.partitions[0]

    async def begin(
        self,
        data: bytes | bytearray,
        *,
        topic: str = "t",
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 5000,
    ):
        part = m.ProducePartition(topic=topic, partition=partition, records=0)
        request = m.ProduceRequest(acks=acks, timeout_ms=timeout_ms, partitions=[part])
        return await self.connection.begin(request, [data])

    async def fetch(
        self,
        offset: int = 0,
        *,
        topic: str = "t",
        partition: int = 0,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        reads_rows: bool = True,
    ) -> Fetched:
        part = m.FetchPartition(
            topic=topic, partition=partition, fetch_offset=offset, max_bytes=max_bytes
        )
        request = m.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            partitions=[part],
            reads_rows=reads_rows,
        )
        body, attachments = await self.connection.call(request, timeout_s=PATIENCE_S)
        (result,) = body.partitions
        data = attachments[result.records] if result.records >= 0 else b""
        records: list[Record] = []
        next_offset = offset
        for header, part_of in iter_batches(data):
            records += to_records(part_of, header, topic, partition)
            next_offset = header.next_offset
        return Fetched(result, records, next_offset)

    async def read_all(self, offset: int = 0, *, topic: str = "t", partition: int = 0):
        """Every record a consumer gets from `offset` on; fails if a fetch is refused."""
        found: list[Record] = []
        while True:
            part = await self.fetch(offset, topic=topic, partition=partition)
            assert part.result.error is None, part.result
            if part.next_offset == offset:
                return found
            found += [record for record in part.records if record.offset >= offset]
            offset = part.next_offset

    async def values(self, *, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        return [record.value for record in await self.read_all(topic=topic, partition=partition)]

    async def offset(self, timestamp: int, *, topic: str = "t", partition: int = 0):
        part = m.ListOffsetsPartition(topic=topic, partition=partition, timestamp=timestamp)
        return (await self.call(m.ListOffsetsRequest(partitions=[part]))).partitions[0]

    async def delete_records(self, offset: int, *, topic: str = "t", partition: int = 0):
        part = m.DeleteRecordsPartition(topic=topic, partition=partition, offset=offset)
        return (await self.call(m.DeleteRecordsRequest(partitions=[part]))).partitions[0]

    async def alter(
        self, configs: dict[str, str], *, topic: str = "t", unset: tuple[str, ...] = ()
    ):
        change = m.ConfigChange(kind="topic", name=topic, set=configs, unset=list(unset))
        return (await self.call(m.AlterConfigsRequest(resources=[change]))).resources[0]

    async def log_dirs(self) -> dict[tuple[str, int], m.ReplicaInfo]:
        body = await self.call(m.DescribeLogDirsRequest())
        return {(info.topic, info.partition): info for info in body.replicas}


@asynccontextmanager
async def new_node(
    disk: Disk,
    config: BrokerConfig | None = None,
    clock: FakeClock | None = None,
    *,
    wait: bool = True,
) -> AsyncIterator[Node]:
    """A node for the block, serving unless told not to `wait`, stopped in order at its end."""
    sockets = []

    async def remember(host: str, port: int) -> Listener:
        sockets.append(await listen(host, port))
        return sockets[-1]

    try:
        async with open_node(
            config or settings(),
            disk=disk,
            clock=clock or FakeClock(),
            random=random.Random(next(_SEEDS)),
            listen=remember,
            wait=wait,
        ) as node:
            yield node
    finally:
        # What the end of a process does; `test_crashes` looks at what a node does itself.
        for each in sockets:
            await each.aclose()


@asynccontextmanager
async def client_of(node: Node) -> AsyncIterator[Client]:
    async with open_connection(TcpNetwork(), "127.0.0.1", node.port) as connection:
        yield Client(connection)


@asynccontextmanager
async def broker(
    disk: Disk, config: BrokerConfig | None = None, clock: FakeClock | None = None
) -> AsyncIterator[Client]:
    """A client of a node that stops in order when the block ends."""
    async with new_node(disk, config, clock) as node, client_of(node) as client:
        yield client


def one_of_several(
    number: int, facts: dict[str, str], *, joining: bool = False
) -> AbstractAsyncContextManager[Node]:
    """A node of a cluster in this process, for the block, on a disk of its own and at the real time
    of day; nobody waits until it serves. `joining`: the cluster exists, and it has no vote yet."""
    config, disk = settings(facts, data=f"data/{number}"), SimDisk()
    if joining:
        format_node(config, disk, random.Random(number), joining=True)
    return open_node(
        config,
        disk=disk,
        clock=SystemClock(),
        random=random.Random(number),
        listen=listen,
        wait=False,
    )


@asynccontextmanager
async def crashing_node(
    disk: Disk, config: BrokerConfig | None = None, clock: FakeClock | None = None
) -> AsyncIterator[Node]:
    """A node that is gone at the end of the block as by `kill -9`; `disk.crash` is the caller's."""

    async def live(task_status: Any) -> None:
        async with new_node(disk, config, clock) as node:
            task_status.started(node)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        yield await nursery.start(live)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def crashing_broker(
    disk: Disk, config: BrokerConfig | None = None, clock: FakeClock | None = None
) -> AsyncIterator[Client]:
    """A client of a crashing node."""
    async with crashing_node(disk, config, clock) as node, client_of(node) as client:
        yield client
