"""The thread that runs trio for all blocking clients of a process, and the ways into it and back.

A client is entered and left in one task there: its nurseries belong to that task. Its end, expected
or not, is its own: callers that wait for it are told, and the thread and the other clients go on.
What a thread waits for is a `Call`; a thread that is interrupted meanwhile takes its call back. A
user's callbacks run in a thread of the user's that waits for a call, as in Kafka's clients they do.

A forked child has none of its parent's threads: it gets a portal of its own, and clients that it
inherited refuse to work.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from hightide.net.background import Bell, is_cancelled, single
from hightide.protocol.errors import ClosedError, UsageError

T = TypeVar("T")
_LOOK_S = 1.0
"""How often a thread that waits looks whether trio's thread still lives."""
_ENDED = "the thread of the blocking clients has ended"


class _Portal:
    """The thread that runs trio."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self.token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._is_cancelled = False
        self._thread = threading.Thread(
            target=trio.run, args=(self._main,), name="hightide", daemon=True
        )
        self._thread.start()
        self._started.wait()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self.token = trio.lowlevel.current_trio_token()
            self._nursery = nursery
            self._started.set()
            try:
                await trio.sleep_forever()
            finally:
                self._is_cancelled = True

    @property
    def is_alive(self) -> bool:
        """Whether somebody runs what is asked for."""
        return self._thread.is_alive()

    @property
    def is_ending(self) -> bool:
        """Whether nothing new can live there."""
        return self._is_cancelled or not self.is_alive

    def check_may_wait(self) -> None:
        """Raise `UsageError` in trio's thread: it cannot wait for itself."""
        if threading.current_thread() is self._thread:
            raise UsageError("a callback that runs in the clients' own thread cannot wait for them")

    def soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Have trio's thread call a function, after those of earlier calls; raises `ClosedError`
        if it has ended."""
        try:
            self.token.run_sync_soon(partial(function, *args))
        except trio.RunFinishedError as error:
            raise ClosedError(_ENDED) from error

    def start(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """In trio's thread: a task that must end without an exception."""
        self._nursery.start_soon(work, *args)


_portal: _Portal | None = None
_portal_lock = threading.RLock()
"""A signal's handler may open a client while its thread opens the first."""


def _forget_portal() -> None:
    """In a forked child: the parent's thread is not here, and its lock may be held for ever."""
    global _portal, _portal_lock
    _portal, _portal_lock = None, threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_portal)


def _get_portal() -> _Portal:
    global _portal
    with _portal_lock:
        if _portal is None or _portal.is_ending:
            _portal = _Portal()
        return _portal


class _Job:
    """A function that a thread of the user's is to call for a task of trio's."""

    def __init__(self, portal: _Portal, call: Callable[[], Any]) -> None:
        self.done = trio.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_begun = self.is_over = False
        self._portal = portal
        self._call = call

    def run(self) -> None:
        """Make the call; in the thread that was lent for it."""
        self.is_begun = True
        _thread.jobs += 1
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error
        except BaseException as error:  # an interruption is the thread's own
            self.error = ClosedError(f"interrupted by {error!r}")
            raise
        finally:
            _thread.jobs -= 1
            self.is_over = True
            self._portal.soon(self.done.set)

    async def wait(self, call: Call[Any]) -> bool:
        """Until it was run by the thread that waits for a call; False if that went away before."""
        while not self.is_over:
            with trio.move_on_after(_LOOK_S):
                await self.done.wait()
            if not (self.is_begun or call.is_awaited):
                return False
        return True


class _Jobs(threading.local):
    jobs = 0


_thread = _Jobs()
"""How many jobs this thread is in the middle of."""


class Call(Generic[T]):
    """Something that trio's thread does, and the thread that waits for it."""

    def __init__(self, portal: _Portal, *, is_awaited: bool = True) -> None:
        self.scope = trio.CancelScope()
        self.is_awaited = is_awaited
        self.is_over = self.is_left = False
        self.ended = trio.Event()
        self.owner = threading.get_ident() if is_awaited else None
        """The thread that waits."""
        self.within = frozenset(_waiting_here()) if is_awaited else frozenset()
        """Other calls that it is in the middle of: it was lent to a listener meanwhile, or a signal
        or a finalizer has it ask for something."""
        self._portal = portal
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._result: Any = None
        self._error: BaseException | None = None

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """In trio's thread: this is the outcome."""
        if not self.is_over:
            self._result, self._error, self.is_over = result, error, True
            self.ended.set()
            self._inbox.put(None)

    def give(self, job: _Job) -> None:
        """In trio's thread: the waiting thread is to do this meanwhile."""
        self._inbox.put(job)

    def wait(self) -> T:
        """What came of it. A thread that is interrupted waits until the call has ended, with an
        effect or without; a second interruption leaves at once."""
        self._portal.check_may_wait()
        try:
            self._serve()
        except BaseException:
            with suppress(ClosedError):
                self._portal.soon(self.scope.cancel)
                self._serve()
            raise
        finally:
            self.is_awaited = False
        if self._error is not None:
            raise self._error
        found: T = self._result
        return found

    def leave(self) -> None:
        """In a thread that does not wait any more: what has not ended by now is cancelled."""
        self.is_awaited = False
        if not self.is_over:
            self.is_left = True
            with suppress(ClosedError):
                self._portal.soon(self.scope.cancel)

    def _serve(self) -> None:
        # An interruption may have taken the last word from the inbox.
        while not (self.is_over and self._inbox.empty()):
            try:
                job = self._inbox.get(timeout=_LOOK_S)
            except queue.Empty:
                if not self._portal.is_alive:
                    raise ClosedError(_ENDED) from None
                continue
            if job is None:
                return
            job.run()


def _waiting_here() -> Iterator[Call[Any]]:
    """The calls in the middle of whose `wait` this thread is, by its frames: what it went away from
    by an interruption has none there, wherever that struck."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code is Call.wait.__code__:
            yield frame.f_locals["self"]


class Opened:
    """An async client that lives in trio's thread between enter and exit."""

    def __init__(self, client: Any, name: str, *, after: Opened | None) -> None:
        """`after`: the life of the same client before this one, which may not have ended yet."""
        self._client, self._name, self._pid = client, name, os.getpid()
        self._portal = _get_portal()
        self._portal.check_may_wait()
        self._entered: Call[None] = Call(self._portal)
        self._leave, self._over = trio.Event(), trio.Event()
        self._leave_kind: type[BaseException] | None = None
        self._death: BaseException | None = None
        """What ended it; its own exit may have raised that, too."""
        self._is_told = self._is_ending = self._is_leaving = False
        self._calls: list[Call[Any]] = []
        """Those that are under way."""
        self._closing: list[Call[None]] = []
        """Those that wait for the end."""
        self._news = Bell()
        is_same = after is not None and (after._pid, after._portal) == (self._pid, self._portal)
        self._after = after if is_same else None
        if self._after is not None:
            self._after.abandon()

    def enter(self) -> None:
        """Returns when it was entered; raises what entering it did."""
        try:
            self._portal.soon(self._portal.start, self._live)
            self._entered.wait()
        except BaseException:
            self._entered.leave()
            self.abandon()
            raise

    # -- in trio's thread ------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            if self._after is not None:
                await self._after._over.wait()
                self._after = None
            with self._entered.scope:
                await self._client.__aenter__()
                self._entered.end()
                await self._until_left()
        except BaseException as error:  # nothing may end the thread of all the others
            self._death = self._death or single(_told(error))
        self._over.set()
        self._cancel_calls()
        if not self._entered.is_over:
            self._entered.end(error=self._why_over())
        for call in self._closing:
            call.end()

    async def _until_left(self) -> None:
        # Exit in the task of enter: the client's nurseries belong to it.
        try:
            await self._leave.wait()
        except BaseException as error:
            self._cancel_calls()  # what they wait for will not come
            await self._client.__aexit__(type(error), error, error.__traceback__)
            raise
        self._cancel_calls()
        await self._client.__aexit__(self._leave_kind, None, None)

    def _cancel_calls(self) -> None:
        self._is_ending = True
        for call in self._calls:
            call.scope.cancel()

    def _why_over(self) -> BaseException:
        """The error that ended the client, to the first who asks; others are told of it."""
        if self._death is not None and not self._is_told:
            self._is_told = True
            return self._death
        error = ClosedError(f"the {self._name} is closed")
        if self._death is not None:
            error = ClosedError(f"the {self._name} has ended: {self._death!r}")
            error.__cause__ = self._death
        return error

    def _begin(self, call: Call[T], work: Callable[[], Awaitable[T]]) -> None:
        self._calls.append(call)
        self._tell()
        self._portal.start(self._do, call, work)

    def _begin_leaving(self, call: Call[None]) -> None:
        self._calls.append(call)
        self._closing.append(call)
        self._tell()
        self._leave.set()
        if self._over.is_set():
            call.end()

    def _tell(self) -> None:
        self._news.ring()

    async def _do(self, call: Call[T], work: Callable[[], Awaitable[T]]) -> None:
        result, error = None, None
        try:
            with call.scope:
                if call.is_awaited and self._has_ended:
                    raise self._why_over()
                await self._until_all_left_have_ended(call)
                result = await work()
        except BaseException as failure:  # nothing may end the thread of all the others
            error = _told(failure)
        if error is None and call.scope.cancelled_caught:
            if not self._is_ending:
                error = ClosedError("the thread that asked for this went away from it")
            else:
                if self._death is None:
                    await self._over.wait()
                error = self._why_over() if call.is_awaited else None
        self._calls.remove(call)
        call.end(result, error)

    async def _until_all_left_have_ended(self, call: Call[Any]) -> None:
        # A thread that was interrupted twice went away from a call, and comes with another one.
        for other in self._calls[: self._calls.index(call)]:
            is_mine = other.owner is not None and other.owner == call.owner
            is_left = other.is_left or (is_mine and other not in call.within)
            if is_left and other not in self._closing:
                other.scope.cancel()
                await other.ended.wait()

    async def in_callers_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Have a thread that waits for this client call a function, as soon as there is one; what
        it returned or raised."""
        while True:
            waiting = [call for call in self._calls if call.is_awaited and not call.is_over]
            if not waiting and self._leave.is_set():
                raise ClosedError("nobody waits for the client any more who could be told")
            if not waiting:
                await self._news.wait()
                continue
            job = _Job(self._portal, partial(function, *args))
            waiting[-1].give(job)
            if await job.wait(waiting[-1]):
                break
        if job.error is not None:
            raise job.error
        found: T = job.result
        return found

    # -- in other threads ------------------------------------------------------------------------

    @property
    def is_at_work(self) -> bool:
        """Whether it is this process's, and has not ended."""
        return self._pid == os.getpid() and not self._has_ended

    @property
    def is_anothers(self) -> bool:
        """Whether it lives in another process, of which this one is a child."""
        return self._pid != os.getpid() and not self._over.is_set()

    @property
    def _has_ended(self) -> bool:
        return self._over.is_set() or self._death is not None

    def check(self) -> None:
        """Raise `ClosedError` if it has ended, or belongs to another process."""
        if self._pid != os.getpid():
            raise ClosedError(
                f"this {self._name} was opened by process {self._pid}, and this is its child "
                f"{os.getpid()}: open one of its own here"
            )
        if self._has_ended:
            raise self._why_over()

    def check_may_wait(self) -> None:
        """The same, and raise `UsageError` where nobody may wait for it."""
        self.check()
        self.check_thread()

    def check_thread(self) -> None:
        """Raise `UsageError` in the thread that it lives in."""
        self._portal.check_may_wait()

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """What an async function returns in trio's thread; raises what it does, or what ended the
        client."""
        self.check()
        call: Call[T] = Call(self._portal)
        try:
            self._portal.soon(self._begin, call, work)
            return call.wait()
        finally:
            call.leave()

    def run_sync(self, function: Callable[[], T]) -> T:
        """The same for a function that waits for nothing."""

        async def work() -> T:
            return function()

        return self.run(work)

    def soon(self, function: Callable[[], None]) -> None:
        """Have trio's thread call a function, and wait for nothing; it must not raise."""
        self._portal.soon(function)

    def begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """In trio's thread: a task of the client's own, which ends with it at the latest. Nobody
        waits for it: a bug in it ends the client, so that who asks for anything is told."""

        async def own() -> None:
            try:
                await work()
            except Exception as error:
                if not self._is_ending:
                    self._death, self._leave_kind = error, type(error)
                    self._leave.set()
                    self._cancel_calls()
                raise

        if not self._has_ended:
            self._begin(Call(self._portal, is_awaited=False), own)

    def close(self, kind: type[BaseException] | None) -> None:
        """Leave the async client's block; raises what that did, or what ended the client before if
        nobody was told yet. In a forked child: nothing, the client is the parent's."""
        if self._pid != os.getpid():
            return
        if not self._leave.is_set():
            self._leave_kind = kind
        call: Call[None] = Call(self._portal, is_awaited=not _thread.jobs)
        self._portal.soon(self._begin_leaving, call)
        self._is_leaving = True
        if _thread.jobs:
            return  # the end waits for the listener that is at work here
        call.wait()
        if self._death is not None and not self._is_told:
            raise self._why_over()

    def abandon(self) -> None:
        """As `close` after an error, waiting for nothing: nobody is left who could. Nothing if it
        was closed."""
        if self.is_at_work and not self._is_leaving:
            self._leave_kind = Exception
            with suppress(ClosedError):
                self._portal.soon(self._leave.set)


def _told(error: BaseException) -> BaseException:
    """What threads of the user's are told of an error. A cancellation that comes this far is the
    portal's end, as every other scope was left before."""
    return ClosedError(_ENDED) if is_cancelled(error) else error
