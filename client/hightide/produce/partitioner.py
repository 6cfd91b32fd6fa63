"""Which partition a record goes to: by its key as Kafka does, or sticky when it has none. Pure.

Source: Kafka's DefaultPartitioner and KIP-794; murmur2 is Kafka's, with its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from hightide.net.ports import Random

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""One of one's own: (topic, key, value, how many partitions) → partition."""
_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2, as a signed number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if length > whole:
        h ^= int.from_bytes(data[whole:], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


@lru_cache(maxsize=65_536)
def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key; an empty key is a key too."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """For records without a key: stay on one partition for a batch, then go to another one."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.partition = -1
        """The partition in use; -1 before the first record."""

    def switch(self, available: Sequence[int]) -> int:
        """A batch is full: move on, to another partition if there is one; the new partition."""
        others = [partition for partition in available if partition != self.partition]
        choices = others or list(available)
        self.partition = choices[self._random.randrange(len(choices))]
        return self.partition
