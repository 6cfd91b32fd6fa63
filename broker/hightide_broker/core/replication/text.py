"""What a follower does about its leader's answer, in a few words. Pure.

For logs, for the lab, and for the stories in `tests/scenarios/replication`.
"""

from __future__ import annotations

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
