"""Committed records of a replica, looked for by their time.

In steps of some ms: a batch of a few bytes may hold millions of records, and whoever may ask where
a partition stands may ask for a time.
"""

from __future__ import annotations

from hightide.protocol.codecs import Steps
from hightide.protocol.errors import CorruptBatch, ErrorCode, Refused
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.storage.searches import newest_record, record_since
from hightide_broker.storage.times import TimestampOffset

Found = TimestampOffset | None


def finding_timestamp(replica: Replica, timestamp: int) -> Steps[Found]:
    """The first record with a timestamp ≥ `timestamp`. Raises `Refused`."""
    return _committed(replica, record_since(replica.ask_log, timestamp))


def finding_newest(replica: Replica) -> Steps[Found]:
    """The first record with the largest timestamp (KIP-734). Raises `Refused`."""
    return _committed(replica, newest_record(replica.ask_log))


def _committed(replica: Replica, steps: Steps[Found]) -> Steps[Found]:
    try:
        found = yield from steps
    except CorruptBatch as error:
        # It is as it was stored, and nobody can read what is in it.
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"{replica.name}: {error}") from error
    return found if found is None or found.offset < replica.committed.value else None
