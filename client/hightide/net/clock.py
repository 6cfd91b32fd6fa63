"""The event loop's clock, for those who look at it for every message."""

from __future__ import annotations

from collections.abc import Callable

import trio


def loop_clock() -> Callable[[], float]:
    """What tells the time of the event loop that runs: as `trio.current_time`, which goes through
    two more functions each time to find it. Raises `RuntimeError` outside of one."""
    return trio.lowlevel.current_clock().current_time
