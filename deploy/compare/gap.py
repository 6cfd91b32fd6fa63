"""How long nobody can write when the leader is killed, the same way for both systems.

One record after the other is sent; after a while the process of the leader gets SIGKILL. The gap is
the longest time between two acknowledgements. The client goes on for a while after the first one
that came later, because another stall may follow.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise

from compare.job import PATIENCE_S, Figures

STEADY_S = 2.0
"""How long everything works before the kill."""
AFTER_S = 5.0
"""How long after the first record that was acknowledged later."""


def longest_gap(write: Callable[[], bool], leader_pid: int) -> Figures:
    """`write` sends one record, and says whether it was acknowledged."""
    acknowledged: list[float] = []

    def write_until(end: float) -> None:
        while time.monotonic() < end:
            if write():
                acknowledged.append(time.monotonic())

    write_until(time.monotonic() + STEADY_S)
    os.kill(leader_pid, signal.SIGKILL)
    killed, before = time.monotonic(), len(acknowledged)
    while len(acknowledged) == before:
        assert time.monotonic() < killed + PATIENCE_S, "nothing is acknowledged any more"
        write_until(time.monotonic() + 0.001)
    write_until(time.monotonic() + AFTER_S)
    return {"gap_s": max(after - earlier for earlier, after in pairwise(acknowledged))}
