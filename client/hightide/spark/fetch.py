"""An offset range of one partition as Arrow batches: an executor's part of a query.

Wire batches are small and Spark pays for each Arrow batch, so they are joined to some 40 000 rows.
A leader change in the middle changes nothing: the next fetch goes on at the next offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hightide import messages as m
from hightide.arrow import join_arrow
from hightide.columns import Columns, open_batch
from hightide.errors import (
    ApiError,
    ErrorCode,
    RemoteProtocolError,
)
from hightide.records import BatchHeader, check_crc, iter_batches
from hightide.spark.client import TRIED_AGAIN, BlockingClient, client_for
from hightide.spark.connection import Answer, Asked
from hightide.spark.offsets import DataLoss

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("hightide.spark")

ROWS_PER_BATCH = 40_000
BYTES_PER_BATCH = 8 << 20
"""A batch for Spark is handed on when it has so many rows or bytes."""
FETCH_BYTES = 8 << 20
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
    group: list[_Part] = []

    def joined() -> pa.RecordBatch:
        batch = join_arrow(
            [(part.header, part.columns) for part in group],
            wanted.topic,
            wanted.partition,
            include_headers=include_headers,
            include_leader_epoch=include_leader_epoch,
        )
        return _cut(batch, group[0].begin, wanted.end)

    rows = size = 0
    fetches = _Fetches(client_for(bootstrap), wanted, timeout_s)
    for part in _parts(fetches, fail_on_data_loss):
        is_full = rows >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH
        if group and (is_full or part.header.base_offset < part.begin):
            yield joined()
            group, rows, size = [], 0, 0
        group.append(part)
        rows += part.columns.record_count
        size += len(part.columns.keys) + len(part.columns.values)
    if group:
        yield joined()


class _Part(NamedTuple):
    """A batch of the log; what it has before `begin` is not wanted."""

    begin: int
    header: BatchHeader
    columns: Columns


def _parts(fetches: _Fetches, fail_on_data_loss: bool) -> Iterator[_Part]:
    """The batches of a range that have records, in order; raises `DataLoss`."""
    wanted = fetches.wanted
    position = wanted.start
    while position < wanted.end:
        before = position
        answer = _take(fetches, position, fail_on_data_loss)
        if answer is None:
            position = _resume(fetches, position)
        elif answer.data is not None:
            found = [each for each in iter_batches(answer.data) if each[0].next_offset > position]
            if not found:
                raise RemoteProtocolError(f"{wanted}: nothing behind offset {position} was sent")
            position = found[-1][0].next_offset
            if position < wanted.end:
                fetches.ask(position)
            for header, batch in found:
                if header.base_offset >= wanted.end:
                    break  # a gap that compaction left reaches behind the range
                check_crc(batch, header)
                columns = open_batch(batch, header, check_sums=False)
                if columns.record_count and not header.is_control:
                    yield _Part(before, header, columns)
        elif answer.high_watermark < wanted.end:
            why = f"the log now ends at offset {answer.high_watermark}: it was cut"
            _lost(wanted, why, fail_on_data_loss)
            position = wanted.end
        assert position >= before, f"{wanted} went back from {before} to {position}"


class _Fetched(NamedTuple):
    high_watermark: int
    data: memoryview | None


class _Fetches:
    """The fetches of a range, one after the other: the next one is on its way while the last one
    is unpacked. An in-sync replica on this host is asked before the leader (KIP-392)."""

    def __init__(self, client: BlockingClient, wanted: OffsetRange, timeout_s: float) -> None:
        self.client = client
        self.wanted = wanted
        self.timeout_s = timeout_s
        self._near: m.BrokerInfo | None = None
        self._ahead: tuple[int, Asked] | None = None
        with suppress(*TRIED_AGAIN):
            if wanted.topic not in client.topics:
                client.refresh([wanted.topic], timeout_s=timeout_s)
            self._near = client.nearby(wanted.topic, wanted.partition)
        self.ask(wanted.start)

    def ask(self, position: int) -> None:
        """Ask for what comes at `position`, without waiting for it."""
        topic, partition = self.wanted.topic, self.wanted.partition
        if topic not in self.client.topics:
            return  # whoever waits for it looks first, as often as it takes
        near, self._near = self._near, None
        with suppress(*TRIED_AGAIN):
            broker = near or self.client.leader_of(topic, partition, timeout_s=self.timeout_s)
            rack = "" if near is None else broker.rack or broker.host
            asked = self.client.ask((broker.host, broker.port), self._request(position, rack))
            self._ahead, self._near = (position, asked), near

    def take(self, position: int) -> _Fetched:
        """What the log holds from `position` on; raises `ApiError` if trying again is in vain,
        `BrokerUnreachable` and `RequestTimedOut`."""
        answer = self._asked_before(position)
        if answer is None:
            answer = self.client.call_leader(
                self.wanted.topic,
                self.wanted.partition,
                self._request(position),
                timeout_s=self.timeout_s,
            )
        result: m.FetchResult = answer[0].partitions[0]
        data = answer[1][result.records] if result.records >= 0 else None
        return _Fetched(result.high_watermark, data)

    def _asked_before(self, position: int) -> Answer | None:
        """The answer to what was asked before, if it is of use; otherwise the leader is asked from
        now on, as often as it takes."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != position:
            return None
        with suppress(*TRIED_AGAIN):
            answer = self.client.answer(ahead[1], timeout_s=self.timeout_s)
            result = answer[0].partitions[0]
            if result.error is None and (result.records >= 0 or self._near is None):
                return answer
        self._near = None
        return None

    def _request(self, position: int, rack: str = "") -> m.FetchRequest:
        part = m.FetchPartition(
            topic=self.wanted.topic,
            partition=self.wanted.partition,
            topic_id=self.wanted.topic_id,
            fetch_offset=position,
            max_bytes=FETCH_BYTES,
        )
        return m.FetchRequest(
            max_wait_ms=FETCH_WAIT_MS, max_bytes=FETCH_BYTES, partitions=[part], rack=rack
        )


def _take(fetches: _Fetches, position: int, fail_on_data_loss: bool) -> _Fetched | None:
    """One fetch; None if what is at `position` is gone and that is allowed."""
    try:
        return fetches.take(position)
    except ApiError as error:
        gone = (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INCONSISTENT_TOPIC_ID,
        )
        if error.code not in gone:
            raise
        _lost(fetches.wanted, str(error), fail_on_data_loss)
        return None


def _resume(fetches: _Fetches, position: int) -> int:
    """Where what is left of a range begins, behind `position`; its end if nothing is left."""
    client, wanted = fetches.client, fetches.wanted
    where = wanted.topic, wanted.partition
    try:
        first = client.offset(*where, m.EARLIEST, timeout_s=fetches.timeout_s).offset
    except ApiError:
        return wanted.end
    if client.topics[wanted.topic].topic_id != wanted.topic_id:
        return wanted.end
    return first if position < first < wanted.end else wanted.end


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
