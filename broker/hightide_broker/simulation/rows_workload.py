"""Batches of Kafka's rows in a simulated world, as Kafka's clients would send them.

In worlds with rows one more producer writes them, in every codec, among the columns of the others,
and so does the writer of the compacted topic: rows meet cuts, recovery and compaction like
everything else, under the same checks. A batch is sent once: whether one that was not acknowledged
is stored, nobody knows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import trio

from hightide.net.cluster import first_refusal, open_cluster
from hightide.net.options import ClientOptions
from hightide.net.ports import Network, Random
from hightide.protocol import messages as m
from hightide.protocol.codecs import ROW_CODECS
from hightide.protocol.errors import HightideError
from hightide.protocol.records import ROWS_MAGIC, encode_batch
from hightide.protocol.rows import encode_rows
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker.simulation.workload import IN_ROWS, Records
from hightide_broker.simulation.world import SimClock, World

RECORDS_MAX = 4
TIMEOUT_S = 2.0


def make_rows(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], rng: random.Random
) -> bytearray:
    """A batch of rows in any of Kafka's codecs."""
    count, time_ms = len(values), SimClock().now_ms()
    return encode_batch(
        encode_rows([0] * count, range(count), keys, values, {}),
        record_count=count,
        base_timestamp=time_ms,
        max_timestamp=time_ms,
        codec=rng.choice(list(ROW_CODECS)),
        magic=ROWS_MAGIC,
    )


async def store(
    batch: bytearray, tp: TopicPartition, address: str, *, network: Network, random: Random
) -> int:
    """Send a batch to the leader of its partition once; its base offset. Raises `HightideError`:
    nobody knows then whether it was stored."""
    part = m.ProducePartition(topic=tp.topic, partition=tp.partition, records=0)
    request = m.ProduceRequest(acks=m.ACKS_ALL, timeout_ms=int(TIMEOUT_S * 1000), partitions=[part])
    options = ClientOptions(address, network=network, random=random)
    async with open_cluster(options) as cluster:
        found = await cluster.topic(tp.topic, timeout_s=TIMEOUT_S)
        connection = await cluster.connection_to(found.partitions[tp.partition].leader)
        response, _ = await connection.call(request, [batch], timeout_s=TIMEOUT_S)
    if (refusal := first_refusal(response.partitions)) is not None:
        raise refusal
    return int(response.partitions[0].base_offset)


class RowSending:
    """A producer that sends batches of rows to all partitions, one after the other."""

    def __init__(
        self, world: World, places: list[TopicPartition], records: Records, address: str
    ) -> None:
        self._world = world
        self._places = places
        self._records = records
        self._address = address
        self._rng = random.Random(f"rows-of-{world.seed}")
        self._number = 0
        self._resting = trio.Event()

    def rest(self) -> None:
        """Send no more; what is under way is waited for."""
        self._resting.set()

    async def run(self) -> None:
        """Until told to rest."""
        while not self._resting.is_set():
            with suppress(HightideError):
                await self._send()
            with trio.move_on_after(self._rng.expovariate(1 / self._world.knobs.think_s)):
                await self._resting.wait()

    async def _send(self) -> None:
        tp = self._rng.choice(self._places)
        count = self._rng.randint(1, RECORDS_MAX)
        numbers = range(self._number + 1, self._number + 1 + count)
        values = [IN_ROWS + b" %d" % number for number in numbers]
        self._number += count
        self._records.sent += count
        batch = make_rows([None] * count, values, self._rng)
        network = self._world.network.host(IN_ROWS.decode())
        base = await store(batch, tp, self._address, network=network, random=self._rng)
        for offset, value in enumerate(values, base):
            self._records.acknowledge(tp, offset, value)
