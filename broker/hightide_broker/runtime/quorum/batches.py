"""What the batches of the metadata log say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hightide.protocol.columns import offsets_of, open_batch, values_of
from hightide_broker.core.cluster.changes import AnyChange, decode_change
from hightide_broker.storage.log import Log


class MetadataBatch(NamedTuple):
    """The changes of one batch, with their offsets; none if it was the quorum's own."""

    changes: list[tuple[int, AnyChange]]
    next_offset: int
    size: int


def read_batches(log: Log, offset: int, end: int) -> Iterator[MetadataBatch]:
    """Every batch from `offset` on that ends at or below `end`."""
    for header, batch in log.batches(offset):
        if header.next_offset > end:
            return
        changes: list[tuple[int, AnyChange]] = []
        if not header.is_control:
            columns = open_batch(batch, header)
            for at, value in zip(offsets_of(columns, header), values_of(columns), strict=True):
                if at >= offset and value is not None:
                    changes.append((at, decode_change(value)))
        yield MetadataBatch(changes, header.next_offset, header.size)
