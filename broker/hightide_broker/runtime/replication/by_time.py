"""Committed records of a replica, looked for by their time.

In steps of some ms: a batch of a few bytes may hold millions of records, and whoever may ask where
a partition stands may ask for a time. Between two steps the log may move on; what was found in a
batch stays so, and the next batch is looked for anew.
"""

from __future__ import annotations

from typing import TypeVar

from hightide.protocol.codecs import Steps
from hightide.protocol.errors import CorruptBatch, ErrorCode, Refused
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.storage.log import Log
from hightide_broker.storage.times import Dated, TimestampOffset, first_since, newest_from

T = TypeVar("T")


def finding_timestamp(replica: Replica, timestamp: int) -> Steps[TimestampOffset | None]:
    """The first record with a timestamp ≥ `timestamp`. Raises `Refused`."""
    start = replica.log.log_start
    while (batch := _batch_since(replica, timestamp, start)) is not None:
        steps = first_since(batch, timestamp, start_offset=start)
        if (found := (yield from _readable(replica, steps))) is not None:
            return found if found.offset < replica.committed.value else None
        start = batch.header.next_offset
    return None


def finding_newest(replica: Replica) -> Steps[TimestampOffset | None]:
    """The first record with the largest timestamp (KIP-734). Raises `Refused`."""
    start = replica.log.log_start
    newest, cut = replica.ask_log(Log.newest)
    if cut is not None:
        newest = max(newest, (yield from _readable(replica, newest_from(cut, start))))
    return None if newest < 0 else (yield from finding_timestamp(replica, newest))


def _batch_since(replica: Replica, timestamp: int, start: int) -> Dated | None:
    return replica.ask_log(lambda log: log.batch_since(timestamp, start_offset=start))


def _readable(replica: Replica, steps: Steps[T]) -> Steps[T]:
    try:
        return (yield from steps)
    except CorruptBatch as error:
        # It is as it was stored, and nobody can read what is in it.
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"{replica.name}: {error}") from error
