"""Which partition a record goes to: by its key as Kafka does, or sticky when it has none. Pure.

Source: Kafka's DefaultPartitioner and KIP-794.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from hightide.net.ports import Random
from hightide.produce.murmur2 import murmur2, murmur2_of_all

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""One of one's own: (topic, key, value, how many partitions) → partition."""
_NO_SIGN = 0x7FFFFFFF


@lru_cache(maxsize=65_536)
def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key; an empty key is a key too."""
    return (murmur2(key) & _NO_SIGN) % partition_count


def partitions_for_keys(keys: Sequence[bytes | None], partition_count: int) -> list[int | None]:
    """`partition_for_key` of each; None, for any partition, of a record without a key."""
    hashes = murmur2_of_all([key for key in keys if key is not None])
    if len(hashes) == len(keys):
        return [(number & _NO_SIGN) % partition_count for number in hashes]
    left = iter(hashes)
    return [None if k is None else (next(left) & _NO_SIGN) % partition_count for k in keys]


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
