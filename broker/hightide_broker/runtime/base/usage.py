"""What a node's process has used: turns of its event loop, and time of processors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from trio.abc import Instrument


class Used(NamedTuple):
    """Since the process began to count; -1 where nobody counts."""

    loop_passes: int = -1
    user_ms: int = -1
    system_ms: int = -1


Usage = Callable[[], Used]
"""Who counts; `Used` itself is one that does not."""


class ProcessUsage(Instrument):
    """Of this process; one of trio's instruments, to be added to the run that is counted."""

    def __init__(self) -> None:
        self._passes = 0

    def after_io_wait(self, timeout: float) -> None:
        self._passes += 1

    def used(self) -> Used:
        """What was used since the process began to count."""
        times = os.times()
        return Used(self._passes, int(times.user * 1000), int(times.system * 1000))
