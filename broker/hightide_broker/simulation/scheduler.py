"""Virtual time and a seeded scheduler: the same seed runs the same steps, in any process.

trio shuffles the tasks that are ready at a time; it has a private switch that makes the shuffle
depend on nothing but a random generator of its own. This is the only file that touches it, and it
fails loudly if the switch is not where it was. Time is trio's `MockClock`: it stands still while
there is anything to do, and jumps to the next deadline when there is not.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
import trio.testing
from trio._core import _run as trio_internals

T = TypeVar("T")


class SwitchMoved(Exception):
    """This version of trio keeps its deterministic switch elsewhere."""


def check_switch() -> None:
    """Raise `SwitchMoved` unless trio's scheduler can be seeded."""
    switch = getattr(trio_internals, "_ALLOW_DETERMINISTIC_SCHEDULING", None)
    generator = getattr(trio_internals, "_r", None)
    if not isinstance(switch, bool) or not isinstance(generator, random.Random):
        raise SwitchMoved(
            f"trio {trio.__version__} has no _ALLOW_DETERMINISTIC_SCHEDULING and _r: simulated "
            f"worlds would not repeat; see {__name__}"
        )


def run_seeded(seed: int, world: Callable[[], Awaitable[T]]) -> T:
    """Run a world on virtual time, its steps chosen by `seed`."""
    check_switch()
    before = trio_internals._ALLOW_DETERMINISTIC_SCHEDULING
    state = trio_internals._r.getstate()
    trio_internals._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_internals._r.seed(seed)
    try:
        return trio.run(world, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        trio_internals._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
        trio_internals._r.setstate(state)
