"""A batch of a simulated world that is as large inside as readers take.

Compaction writes columns that were not needed before. What is as large as this then grows beyond
what anybody reads, though a record goes: the one that is replaced is small.
"""

from __future__ import annotations

from functools import partial

from hightide.net.cluster import first_refusal, open_cluster
from hightide.net.options import ClientOptions
from hightide.net.ports import Network, Random
from hightide.protocol import messages as m
from hightide.protocol.codecs import INFLATED_BYTES_MAX
from hightide.protocol.columns import encode_columns
from hightide.protocol.records import encode_batch

COUNT = 500
SPARE_BYTES = COUNT
"""What is left below the limit: less than 4 bytes a record."""
KEYS = tuple(b"brim %d" % number for number in range(COUNT))
REPLACED = KEYS[0]
"""Whose value is empty, and is replaced by a newer one."""
TIMEOUT_S = 2.0


def make_batch(time_ms: int) -> tuple[list[bytes], bytearray]:
    """The values of `KEYS`, and the batch, compressed."""
    encode = partial(encode_columns, [time_ms] * COUNT, KEYS, base_timestamp=time_ms)
    empty = len(encode([b""] * COUNT))
    wide, rest = divmod(INFLATED_BYTES_MAX - SPARE_BYTES - empty, COUNT - 2)
    values = [b"", *[bytes(wide)] * (COUNT - 2), bytes(rest)]
    batch = encode_batch(
        encode(values),
        record_count=COUNT,
        base_timestamp=time_ms,
        max_timestamp=time_ms,
        codec="zstd",
    )
    return values, batch


async def store(
    batch: bytearray, topic: str, address: str, *, network: Network, random: Random
) -> int:
    """Send a batch to the leader of partition 0 once; its base offset. Raises `HightideError`:
    nobody knows then whether it was stored."""
    part = m.ProducePartition(topic=topic, partition=0, records=0)
    request = m.ProduceRequest(acks=m.ACKS_ALL, timeout_ms=int(TIMEOUT_S * 1000), partitions=[part])
    options = ClientOptions(address, network=network, random=random)
    async with open_cluster(options) as cluster:
        found = await cluster.topic(topic, timeout_s=TIMEOUT_S)
        connection = await cluster.connection_to(found.partitions[0].leader)
        response, _ = await connection.call(request, [batch], timeout_s=TIMEOUT_S)
    if (refusal := first_refusal(response.partitions)) is not None:
        raise refusal
    return int(response.partitions[0].base_offset)
