"""A record of some time, looked for in a log: in steps of some ms. Between two steps the log may
move on; what was found in a batch stays so, and the next batch is looked for anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from hightide.protocol.codecs import Steps
from hightide_broker.storage.log import Log
from hightide_broker.storage.times import Dated, TimestampOffset, first_since, newest_from

T = TypeVar("T")


class AskLog(Protocol):
    """What `look` finds in a log as it is now; may raise what it does where the log is not."""

    def __call__(self, look: Callable[[Log], T]) -> T: ...


def record_since(ask: AskLog, timestamp: int) -> Steps[TimestampOffset | None]:
    """The first record with a timestamp ≥ `timestamp`. Raises `CorruptBatch`, and as `ask`."""
    start = ask(lambda log: log.log_start)
    while (batch := _batch_since(ask, timestamp, start)) is not None:
        found = yield from first_since(batch, timestamp, start_offset=start)
        if found is not None:
            return found
        start = batch.header.next_offset
    return None


def newest_record(ask: AskLog) -> Steps[TimestampOffset | None]:
    """The first record with the largest timestamp (KIP-734). Raises as `record_since`."""
    start = ask(lambda log: log.log_start)
    newest, cut = ask(Log.newest)
    if cut is not None:
        newest = max(newest, (yield from newest_from(cut, start)))
    return None if newest < 0 else (yield from record_since(ask, newest))


def _batch_since(ask: AskLog, timestamp: int, start: int) -> Dated | None:
    return ask(lambda log: log.batch_since(timestamp, start_offset=start))
