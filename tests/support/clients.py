"""What the client tests share: a node with a topic `t`, its clients, and what is stored there.

No test lives here. The node runs in this process on a simulated disk and is talked to over a real
socket; clocks of day stand still. A broker that misbehaves is `fake_broker.py`'s.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from brokers import Client, FakeClock, client_of, new_node, settings
from patience import PATIENCE_MS

from hightide import Admin, Consumer, Producer
from hightide.protocol.columns import Record
from hightide_broker.node import Node
from hightide_broker.simulation.disk import SimDisk

FOR_EVER_MS = 60_000


class OneNode:
    """A node with one topic, `t`; `client` is the broker tests' own."""

    def __init__(self, node: Node, client: Client, partitions: int) -> None:
        self.client = client
        self.partitions = partitions
        self.address = node.address

    def producer(self, **options) -> Producer:
        return Producer(self.address, **{"clock": FakeClock(), **options})

    def consumer(self, **options) -> Consumer:
        """A consumer of all of `t` from the start, unless told otherwise."""
        wanted = {} if "partitions" in options else {"topics": ["t"]}
        return Consumer(self.address, **{"auto_offset_reset": "earliest", **wanted, **options})

    def admin(self, **options) -> Admin:
        return Admin(self.address, **options)

    async def records(self, partition: int = 0) -> list[Record]:
        return await self.client.read_all(partition=partition)

    async def values(self, partition: int = 0) -> list[bytes | None]:
        return await self.client.values(partition=partition)

    async def everything(self) -> dict[int, list[bytes | None]]:
        return {number: await self.values(number) for number in range(self.partitions)}


@asynccontextmanager
async def one_node(partitions: int = 1, **over: str) -> AsyncIterator[OneNode]:
    """A world for the block; `over` are broker settings, with `_` for dots."""
    config = settings({name.replace("_", "."): value for name, value in over.items()})
    async with new_node(SimDisk(), config) as node, client_of(node) as client:
        await client.create("t", partitions=partitions)
        yield OneNode(node, client, partitions)


async def take(consumer: Consumer, count: int) -> list[Record]:
    """The next `count` records."""
    found: list[Record] = []
    while len(found) < count:
        found += await consumer.poll(timeout_ms=PATIENCE_MS, max_records=count - len(found))
    return found


def values_of(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]
