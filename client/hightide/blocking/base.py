"""What blocking clients share: `with`, and calls into trio's thread."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from hightide.blocking.portal import Opened
from hightide.protocol.errors import ClosedError, UsageError

T = TypeVar("T")


class Blocking:
    """A client that is opened and closed like a file, around an async one."""

    _name = "client"
    _open: Opened | None = None
    _life: Opened | None = None
    """The last one; it may go on for a while after the thread that closed it was interrupted."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __enter__(self) -> Self:
        if self._open is not None and self._open.is_at_work:
            raise UsageError(f"the {self._name} is open already")
        if self._life is not None and self._life.is_anothers:
            self._life.check()
        self._life = Opened(self._client, self._name, after=self._life)
        self._life.enter()
        self._open = self._life
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._open is not None:
                self._open.close(kind)
        finally:
            self._open = None
            if self._life is not None:
                self._life.abandon()  # who opened or closed it was interrupted

    def __del__(self, _is_too_late: Callable[[], bool] = sys.is_finalizing) -> None:
        if _is_too_late():
            return  # a thread that does not run any more may hold trio's locks
        if self._open is not None and self._open.is_at_work:
            warnings.warn(f"a {self._name} was never closed", ResourceWarning, source=self)
        if self._life is not None:
            self._life.abandon()

    def open(self) -> Self:
        """Open it without a block, as in a notebook; `close` it in the end."""
        return self.__enter__()

    def close(self) -> None:
        """What the end of a block does."""
        self.__exit__(None, None, None)

    def _run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return self._opened().run(partial(function, *args))

    def _run_sync(self, function: Callable[..., T], *args: Any) -> T:
        return self._opened().run_sync(partial(function, *args))

    def _last_life(self) -> Opened:
        """That of what was opened last, whether it has ended or not."""
        return self._life or self._opened()

    def _opened(self) -> Opened:
        if self._open is None:
            raise ClosedError(
                f"the {self._name} is closed, or not open yet: use it in a `with` block"
            )
        return self._open
