"""What leaders and followers have, say and do, in a few words. Pure.

For logs, for the lab, and for the stories in `tests/scenarios/replication`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hightide.protocol import messages as m
from hightide_broker.core.replication.follower import (
    Append,
    AskOffsets,
    Ignore,
    Pause,
    Step,
    Stop,
    Truncate,
    TruncateFully,
)


class Held(NamedTuple):
    """A record that somebody has."""

    value: str
    epoch: int
    """The leader epoch that it was appended in."""


def show_replica(
    role: str, leader_epoch: int, log_start: int, held: Iterable[Held], high_watermark: int
) -> str:
    """What a replica has, as its name would be followed by it; `role` is a verb."""
    records = " ".join(f"{each.value}/e{each.epoch}" for each in held) or "-"
    start = f"{log_start}: " if log_start else ""
    return f"{role} e{leader_epoch}: {start}{records} watermark={high_watermark}"


def show_answer(result: m.FetchResult, records: Sequence[str]) -> str:
    """A leader's answer about one partition, as `answers` would be followed by it."""
    if result.error:
        return result.error
    if result.diverging_epoch is not None:
        return f"that e{result.diverging_epoch.epoch} ends at {result.diverging_epoch.end_offset}"
    return f"{' '.join(records) or 'nothing'} watermark={result.high_watermark}"


def show_step(step: Step) -> str:
    """The step, as its follower's name would be followed by it."""
    match step:
        case Append():
            return "takes it"
        case Truncate(offset):
            return f"cuts its log at offset {offset}, and will ask again"
        case TruncateFully(offset):
            return f"drops its log, and begins at offset {offset}"
        case AskOffsets():
            return "asks for the bounds of the log"
        case Pause():
            return "waits"
        case Stop():
            return "stops"
        case Ignore():
            return "ignores it"
