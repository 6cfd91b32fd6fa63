"""An offset range of one partition as Arrow batches: an executor's part of a query.

Wire batches are small and Spark pays for each Arrow batch, so they are joined to some 40 000 rows.
A leader change in the middle changes nothing: the next fetch goes on at the next offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hightide.arrow.to_arrow import cut, join_arrow
from hightide.net.login import DIRECT, Way
from hightide.protocol import messages as m
from hightide.protocol.columns import Columns, open_batch
from hightide.protocol.errors import ApiError, ErrorCode, RemoteProtocolError
from hightide.protocol.records import BatchHeader, check_crc, iter_batches
from hightide.protocol.words import counted
from hightide.spark.client import TRIED_AGAIN, BlockingClient, client_for
from hightide.spark.connection import Answer, Asked
from hightide.spark.offsets import lost
from hightide.spark.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 40_000
BYTES_PER_BATCH = 8 << 20
"""A batch for Spark is handed on when it has so many rows or bytes."""
FETCH_BYTES = 8 << 20
FETCH_WAIT_MS = 100
GONE = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
"""Refusals that may mean a loss."""


def read_range(
    bootstrap: str,
    wanted: OffsetRange,
    *,
    include_headers: bool,
    include_leader_epoch: bool = False,
    fail_on_data_loss: bool,
    timeout_s: float,
    way: Way = DIRECT,
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
        return cut(batch, group[0].begin, wanted.end)

    rows = size = 0
    fetches = _Fetches(client_for(bootstrap, way), wanted, timeout_s)
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
    position, epoch = wanted.start, -1
    while position < wanted.end:
        answer = fetches.take(position, epoch)
        if answer.data is not None:
            found = [each for each in iter_batches(answer.data) if each[0].next_offset > position]
            if not found:
                raise RemoteProtocolError(f"{wanted}: nothing behind offset {position} was sent")
            before, last = position, found[-1][0]
            position, epoch = last.next_offset, last.leader_epoch
            if position < wanted.end:
                fetches.ask(position, epoch)
            yield from _opened(found, before, wanted.end)
        elif answer.refusal or answer.high_watermark < wanted.end:
            why = answer.refusal or f"the log ends at offset {answer.high_watermark}"
            until = fetches.goes_on_at(position)
            if until > position:
                why = f"{counted(until - position, 'offset')} from {position} on: {why}"
            if until > position or answer.is_cut:
                what, remedy = f"records of {wanted} are gone: {why}", "read on without them"
                lost(what, fail=fail_on_data_loss, remedy=remedy)
            position, epoch = until, -1


def _opened(
    found: Sequence[tuple[BatchHeader, memoryview]], begin: int, end: int
) -> Iterator[_Part]:
    """Those of them that have records in [begin, end)."""
    for header, batch in found:
        if header.base_offset >= end:
            return  # a gap that compaction left reaches behind the range
        check_crc(batch, header)
        columns = open_batch(batch, header, check_sums=False)
        if columns.record_count and not header.is_control:
            yield _Part(begin, header, columns)


class _Fetched(NamedTuple):
    """What a leader has at an offset: records, or how far it is, or why it has nothing there."""

    high_watermark: int = -1
    data: memoryview | None = None
    refusal: str = ""
    is_cut: bool = False
    """What was read before that offset is not what the log holds now."""


class _Fetches:
    """The fetches of a range, one after the other: the next one is on its way while the last one
    is unpacked. An in-sync replica on this host is asked before the leader (KIP-392)."""

    def __init__(self, client: BlockingClient, wanted: OffsetRange, timeout_s: float) -> None:
        self.wanted = wanted
        self._client = client
        self._timeout_s = timeout_s
        self._near: m.BrokerInfo | None = None
        self._ahead: tuple[int, Asked] | None = None
        with suppress(*TRIED_AGAIN):
            if client.metadata.leader(wanted.topic, wanted.partition) is None:
                client.refresh([wanted.topic], timeout_s=timeout_s)
            self._near = client.nearby(wanted.topic, wanted.partition)
        self.ask(wanted.start, -1)

    def ask(self, position: int, epoch: int) -> None:
        """Ask for what comes at `position`, behind a record of that leader epoch, without waiting
        for it."""
        client, topic, partition = self._client, self.wanted.topic, self.wanted.partition
        if client.metadata.leader(topic, partition) is None:
            return  # the reader that waits for it looks first, as often as it takes
        near, self._near = self._near, None
        with suppress(*TRIED_AGAIN):
            broker = near or client.leader_of(topic, partition, timeout_s=self._timeout_s)
            rack = "" if near is None else broker.rack or broker.host
            asked = client.ask((broker.host, broker.port), self._request(position, epoch, rack))
            self._ahead, self._near = (position, asked), near

    def take(self, position: int, epoch: int) -> _Fetched:
        """What the log holds from `position` on; raises `ApiError` for what no retry helps and is
        no loss, `BrokerUnreachable` and `RequestTimedOut`."""
        try:
            answer = self._asked_before(position) or self._client.call_leader(
                self.wanted.topic,
                self.wanted.partition,
                self._request(position, epoch),
                timeout_s=self._timeout_s,
            )
        except ApiError as error:
            if error.code not in GONE:
                raise
            return _Fetched(refusal=str(error))
        result: m.FetchResult = answer[0].partitions[0]
        if (common := result.diverging_epoch) is not None:
            cut_at = min(common.end_offset, position)
            why = f"the log was cut at offset {cut_at}, it was read up to {position}"
            return _Fetched(refusal=why, is_cut=True)
        data = answer[1][result.records] if result.records >= 0 else None
        return _Fetched(result.high_watermark, data)

    def _asked_before(self, position: int) -> Answer | None:
        """The answer to what was asked before, if it is of use; otherwise the leader is asked from
        now on, as often as it takes."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != position:
            return None
        with suppress(*TRIED_AGAIN):
            answer = self._client.answer(ahead[1], timeout_s=self._timeout_s)
            result = answer[0].partitions[0]
            if result.error is None and (result.records >= 0 or self._near is None):
                return answer
        self._near = None
        return None

    def goes_on_at(self, position: int) -> int:
        """Where the range goes on if somebody has nothing at `position`: there, if another leader
        has it, or behind what was deleted; at its end if nothing is left of it."""
        first, head = self._client.retrying(self._held, timeout_s=self._timeout_s)
        if position < first:
            return min(first, self.wanted.end)
        return position if position < head else self.wanted.end

    def _held(self, left_s: float) -> tuple[int, int]:
        """The first offset and the high watermark, of a leader that must know all of the range."""
        client, wanted = self._client, self.wanted
        tp, nothing = (wanted.topic, wanted.partition), (wanted.end, wanted.end)
        try:
            head = client.offset(*tp, m.LATEST, timeout_s=left_s)
            if client.metadata.topics[wanted.topic].topic_id != wanted.topic_id:
                return nothing
            if head.leader_epoch < wanted.leader_epoch:
                client.metadata.lost_leader(wanted.topic, wanted.partition)
                why = f"{wanted} was planned in {wanted.leader_epoch}, who leads is still in "
                raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{why}{head.leader_epoch}")
            return client.offset(*tp, m.EARLIEST, timeout_s=left_s).offset, head.offset
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return nothing

    def _request(self, position: int, epoch: int, rack: str = "") -> m.FetchRequest:
        part = m.FetchPartition(
            topic=self.wanted.topic,
            partition=self.wanted.partition,
            topic_id=self.wanted.topic_id,
            fetch_offset=position,
            last_fetched_epoch=epoch,
            max_bytes=FETCH_BYTES,
        )
        return m.FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            max_bytes=FETCH_BYTES,
            partitions=[part],
            rack=rack,
            reads_rows=True,
        )
