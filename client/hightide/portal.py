"""The thread that runs trio for all blocking clients of a process, and the way into it.

A client is entered and left in one task there: its nurseries belong to that task.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from hightide.errors import ClosedError

T = TypeVar("T")


class _Portal:
    """The thread that runs trio, and the way into it."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self.token: trio.lowlevel.TrioToken
        self.nursery: trio.Nursery
        self._thread = threading.Thread(target=trio.run, args=(self._main,), daemon=True)
        self._thread.start()
        self._started.wait()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self.token = trio.lowlevel.current_trio_token()
            self.nursery = nursery
            self._started.set()
            await trio.sleep_forever()

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in trio's thread and wait for its result."""
        return trio.from_thread.run(function, *args, trio_token=self.token)


_portal: _Portal | None = None
_portal_lock = threading.Lock()


def _get_portal() -> _Portal:
    global _portal
    with _portal_lock:
        if _portal is None:
            _portal = _Portal()
        return _portal


class _Open:
    """An async client that lives in the portal's thread between enter and exit."""

    def __init__(self, client: Any) -> None:
        self.portal = _get_portal()
        self._client = client
        self._leave = trio.Event()
        self._left = threading.Event()
        self._entered = threading.Event()
        self._failure: BaseException | None = None
        self._leave_kind: type[BaseException] | None = None
        self.portal.token.run_sync_soon(partial(self.portal.nursery.start_soon, self._live))
        self._entered.wait()
        self._raise_failure()

    async def _live(self) -> None:
        # Enter and exit in one task: the client's nurseries belong to it.
        try:
            await self._client.__aenter__()
        except BaseException as error:
            self._failure = error
            self._entered.set()
            self._left.set()
            return
        self._entered.set()
        await self._leave.wait()
        try:
            await self._client.__aexit__(self._leave_kind, None, None)
        except Exception as error:
            self._failure = error
        finally:
            self._left.set()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self, kind: type[BaseException] | None) -> None:
        """Leave the async client's block."""
        self._leave_kind = kind
        self.portal.token.run_sync_soon(self._leave.set)
        self._left.wait()
        self._raise_failure()


class Blocking:
    """What blocking clients share: `with`, and calls into trio's thread."""

    _name = "client"

    def __init__(self, client: Any) -> None:
        self._client = client
        self._open: _Open | None = None

    def __enter__(self) -> Self:
        self._open = _Open(self._client)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close(kind)

    def open(self) -> Self:
        """Open it without a block, as in a notebook; `close` it in the end."""
        return self.__enter__()

    def close(self) -> None:
        """What the end of a block does."""
        self.__exit__(None, None, None)

    def _run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return self._portal().run(function, *args)

    def _run_sync(self, function: Callable[..., T], *args: Any) -> T:
        return trio.from_thread.run_sync(function, *args, trio_token=self._portal().token)

    def _portal(self) -> _Portal:
        if self._open is None:
            raise ClosedError(
                f"the {self._name} is closed, or not open yet: use it in a `with` block"
            )
        return self._open.portal
