"""A batch of a simulated world that is as large inside as readers take.

Compaction writes columns that were not needed before. What is as large as this then grows beyond
what anybody reads, though a record goes: the one that is replaced is small.
"""

from __future__ import annotations

from functools import partial

from hightide.protocol.codecs import INFLATED_BYTES_MAX
from hightide.protocol.columns import encode_columns
from hightide.protocol.records import encode_batch

COUNT = 500
SPARE_BYTES = COUNT
"""What is left below the limit: less than 4 bytes a record."""
KEYS = tuple(b"brim %d" % number for number in range(COUNT))
REPLACED = KEYS[0]
"""Whose value is empty, and is replaced by a newer one."""


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
