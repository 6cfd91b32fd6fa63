"""An offset range of one partition as Arrow batches: an executor's part of a query.

Wire batches are small and Spark pays for each Arrow batch, so they are joined to some ten thousand
rows. A leader change in the middle changes nothing: the next fetch goes on at the next offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hightide import messages as m
from hightide.arrow import join_arrow
from hightide.columns import Columns, open_batch
from hightide.errors import ApiError, ErrorCode
from hightide.records import BatchHeader, check_crc, iter_batches
from hightide.spark.client import BlockingClient, client_for
from hightide.spark.offsets import DataLoss

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("hightide.spark")

ROWS_PER_BATCH = 10_000
FETCH_BYTES = 4 << 20
FETCH_WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records [start, end) of a partition; all of them were committed when it was planned."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"


def read_range(
    bootstrap: str,
    wanted: OffsetRange,
    *,
    include_headers: bool,
    include_leader_epoch: bool = False,
    fail_on_data_loss: bool,
    timeout_s: float,
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the source's schema; raises `DataLoss` if records of the range are gone."""
    client = client_for(bootstrap)
    position = begin = wanted.start
    parts: list[tuple[BatchHeader, Columns]] = []

    def joined() -> pa.RecordBatch:
        batch = join_arrow(
            parts,
            wanted.topic,
            wanted.partition,
            include_headers=include_headers,
            include_leader_epoch=include_leader_epoch,
        )
        return _cut(batch, begin, wanted.end)

    while position < wanted.end:
        response, attachments = _fetch(
            client, wanted, position, fail_on_data_loss=fail_on_data_loss, timeout_s=timeout_s
        )
        before = position
        if response is None:
            resume = _resume(client, wanted, position, timeout_s)
            position = wanted.end if resume is None else resume
        elif response.records >= 0:
            for header, columns in _opened(attachments[response.records], position, wanted.end):
                position = header.next_offset
                if columns.record_count and not header.is_control:
                    parts.append((header, columns))
        elif response.high_watermark < wanted.end:
            why = f"the log now ends at offset {response.high_watermark}: it was cut"
            _lost(wanted, why, fail_on_data_loss)
            position = wanted.end
        rows = sum(columns.record_count for _, columns in parts)
        if rows >= ROWS_PER_BATCH or response is None or position >= wanted.end:
            if parts:
                yield joined()
            parts, begin = [], position
        assert position >= before, f"{wanted} went back from {before} to {position}"


def _opened(data: memoryview, position: int, end: int) -> Iterator[tuple[BatchHeader, Columns]]:
    """The batches of a fetch that reach into [position, end), checked and opened."""
    for header, batch in iter_batches(data):
        if header.next_offset <= position:
            continue
        if header.base_offset >= end:
            return
        check_crc(batch, header)
        yield header, open_batch(batch, header, check_sums=False)


def _fetch(
    client: BlockingClient,
    wanted: OffsetRange,
    position: int,
    *,
    fail_on_data_loss: bool,
    timeout_s: float,
) -> tuple[m.FetchResult | None, list[memoryview]]:
    """One fetch; None if what is at `position` is gone and that is allowed."""
    part = m.FetchPartition(
        topic=wanted.topic,
        partition=wanted.partition,
        topic_id=wanted.topic_id,
        fetch_offset=position,
        max_bytes=FETCH_BYTES,
    )
    request = m.FetchRequest(max_wait_ms=FETCH_WAIT_MS, max_bytes=FETCH_BYTES, partitions=[part])
    try:
        response, attachments = client.call_leader(
            wanted.topic, wanted.partition, request, timeout_s=timeout_s
        )
    except ApiError as error:
        gone = (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INCONSISTENT_TOPIC_ID,
        )
        if error.code not in gone:
            raise
        _lost(wanted, str(error), fail_on_data_loss)
        return None, []
    return response.partitions[0], attachments


def _resume(
    client: BlockingClient, wanted: OffsetRange, position: int, timeout_s: float
) -> int | None:
    """Where what is left of a range begins, behind `position`; None if nothing is left."""
    try:
        first = client.offset(wanted.topic, wanted.partition, m.EARLIEST, timeout_s=timeout_s)
    except ApiError:
        return None
    if client.topics[wanted.topic].topic_id != wanted.topic_id:
        return None
    return first.offset if position < first.offset < wanted.end else None


def _lost(wanted: OffsetRange, why: str, fail_on_data_loss: bool) -> None:
    if fail_on_data_loss:
        raise DataLoss(
            f"records of {wanted} are gone: {why}. To read on without them set failOnDataLoss=false"
        )


def _cut(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows whose offsets lie in [start, end)."""
    import numpy as np

    offsets = batch.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, [start, end])
    if first == 0 and last == batch.num_rows:
        return batch
    return batch.slice(first, last - first)
