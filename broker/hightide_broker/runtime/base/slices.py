"""Long work on the event loop, a few ms at a time, in turn with everybody else's.

Not a worker thread: work in Python holds the interpreter for five ms whenever the loop wants it
back, and nothing in the simulated world may depend on when threads run.
"""

from __future__ import annotations

from typing import TypeVar

import trio

from hightide.protocol.codecs import Steps

T = TypeVar("T")


async def in_slices(steps: Steps[T]) -> T:
    """What work in steps comes to; others have their turn between them."""
    try:
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            await trio.lowlevel.checkpoint()
    finally:
        steps.close()
