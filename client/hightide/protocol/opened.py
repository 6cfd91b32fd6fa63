"""An opened batch: its records as columns, whichever form they are stored in. Pure."""

from __future__ import annotations

from typing import NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]
"""A record's headers: names and values in order; a name may come twice."""


AS_THEY_ARE = "surrogateescape"
"""Python's word for text that keeps bytes which are no UTF-8 (PEP 383): nobody may lose them who
reads a header's name only to write it again."""


class SparseHeaders(NamedTuple):
    """The header columns: `header_counts[i]` headers belong to record `indexes[i]`."""

    indexes: memoryview
    header_counts: memoryview
    name_lengths: memoryview
    names: memoryview
    value_lengths: memoryview
    values: memoryview


class Columns(NamedTuple):
    """A decoded payload; views into the batch's bytes where those were columns, and not compressed.

    `timestamp_deltas` has items of 4 or 8 bytes; the other integer columns have items of 4.
    """

    record_count: int
    offset_deltas: memoryview | None
    """None: they are 0..n-1."""
    timestamp_deltas: memoryview
    key_lengths: memoryview
    """A length of -1 is a null."""
    keys: memoryview
    value_lengths: memoryview
    values: memoryview
    headers: SparseHeaders | None
