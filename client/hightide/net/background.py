"""A nursery for a client's own tasks, around the block of code that uses the client; a bell and a
nudge for them.

trio wraps whatever leaves a nursery in an exception group. A user who writes `except ApiError`
around a block that uses a client means the error itself, so the block's own exception is carried
around the nursery and raised as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from traceback import clear_frames
from typing import Any
from weakref import WeakKeyDictionary

import trio

from hightide.protocol.errors import UsageError

_SLEEP_MAX_S = 3600.0

ki_protected = trio.lowlevel.enable_ki_protection
"""For what changes several things that belong together: Ctrl-C strikes it where it waits, and
nowhere else. So are the ends of a client's block, and the calls that start tasks of its own."""


@asynccontextmanager
@ki_protected
async def open_background() -> AsyncIterator[trio.Nursery]:
    """A nursery that is cancelled when the block ends, and not before: a block that is cancelled
    can still say goodbye. The block's exception leaves unwrapped. Raises `UsageError` outside of
    trio."""
    if not trio.lowlevel.in_trio_run():
        raise UsageError(
            "this client runs in trio, inside of `trio.run`; `hightide.blocking` has the same "
            "without an event loop, for asyncio in a thread (`asyncio.to_thread`)"
        )
    failure: BaseException | None = None
    opened: list[trio.Nursery] = []
    is_open = trio.Event()
    life = trio.CancelScope(shield=True)

    async def keep_open() -> None:
        with life:
            async with trio.open_nursery() as nursery:
                opened.append(nursery)
                is_open.set()
                await trio.sleep_forever()

    try:
        async with trio.open_nursery() as around:
            start(around, keep_open)
            try:
                with trio.CancelScope(shield=True):
                    await is_open.wait()
                yield opened[0]
            except (Exception, KeyboardInterrupt) as error:
                failure = error
            finally:
                life.cancel()
    except BaseExceptionGroup as group:
        interruption = single(group)
        if not isinstance(interruption, KeyboardInterrupt):
            raise
        raise interruption from failure  # it struck while the nursery was left
    if failure is not None:
        raise failure


@ki_protected
def start(nursery: trio.Nursery, work: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Start a task of a client's own. Ctrl-C strikes in the user's tasks, never in the middle of
    it, nor half way through its start: trio would wait for ever for a task that never runs."""
    nursery.start_soon(_uninterrupted, work, args, name=work)


@ki_protected
async def _uninterrupted(work: Callable[..., Awaitable[None]], args: Sequence[Any]) -> None:
    await work(*args)


def single(error: BaseException) -> BaseException:
    """The exception that nurseries wrapped; of several the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def let_go(error: BaseException) -> None:
    """Drop what the frames of an error hold, such as what had been received: trio's nurseries keep
    an error until the collector comes, and an idle process has none come."""
    for each in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        let_go(each)
    clear_frames(error.__traceback__)


def is_cancelled(error: BaseException | None) -> bool:
    """Whether an error is trio's word for the end of a scope, alone or in a nursery's group: then
    it has to get there, and nobody else is told of it."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_cancelled, error.exceptions))
    return isinstance(error, trio.Cancelled)


class Bell:
    """Rung for all who wait at that moment. It costs nothing where nobody does: an event for each
    record is what records cost."""

    def __init__(self) -> None:
        self._event: trio.Event | None = None

    def ring(self) -> None:
        """End the wait of all who wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Until it is rung."""
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()


class Nudge:
    """Several tasks look at shared state, act, and sleep until it changes or it is time.

    A nudge that comes while a task is busy is not lost: its next `sleep_until` returns at once.
    """

    def __init__(self) -> None:
        self._count = 0
        self._seen: WeakKeyDictionary[trio.lowlevel.Task, int] = WeakKeyDictionary()
        self._bell = Bell()

    def set(self) -> None:
        """There is news: everybody looks again."""
        self._count += 1
        self._bell.ring()

    async def sleep_until(self, deadline: float) -> None:
        """Until news or `deadline` (trio's clock); look at the state again after it."""
        task = trio.lowlevel.current_task()
        if self._seen.get(task, 0) != self._count:
            await trio.lowlevel.checkpoint()
        else:
            with trio.move_on_at(min(deadline, trio.current_time() + _SLEEP_MAX_S)):
                await self._bell.wait()
        self._seen[task] = self._count
