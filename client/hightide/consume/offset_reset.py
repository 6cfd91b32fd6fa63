"""Where to begin in a partition: offsets by the reset policy, and by time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from hightide.consume.subscription import Assignment
from hightide.net.cluster import Cluster
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, AuthenticationFailed, ErrorCode, HightideError


class Fail(Protocol):
    """Keeps an error for the next poll; it is of a partition, or of all."""

    def __call__(self, error: Exception, assignment: Assignment | None = None) -> None: ...


class StartFinder:
    """Asks leaders for offsets; `reset` is the policy of the consumer."""

    def __init__(
        self,
        cluster: Cluster,
        reset: str,
        *,
        request_timeout_s: float,
        tell: Callable[[HightideError], None],
        fail: Fail,
        found: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._reset = reset
        self._request_timeout_s = request_timeout_s
        self._tell = tell
        self._fail = fail
        self._found = found

    async def find(self, assignment: Assignment) -> None:
        """Set the position of a partition by the reset policy; tried again until it is set."""
        try:
            while assignment.position is None:
                if self._reset == "none" and not assignment.is_added:
                    self._fail(
                        ApiError(
                            ErrorCode.OFFSET_OUT_OF_RANGE,
                            f"{assignment.tp} has no position and auto_offset_reset is 'none'",
                            knob="auto_offset_reset, seek()",
                        )
                    )
                    return
                await self._reset_once(assignment)
        finally:
            assignment.finding_since = None
        self._found()

    async def _reset_once(self, assignment: Assignment) -> None:
        is_first = assignment.is_added or self._reset == "earliest"
        timestamp = m.EARLIEST if is_first else m.LATEST
        try:
            found = await self._cluster.offset(
                *assignment.tp, timestamp, timeout_s=self._request_timeout_s
            )
        except HightideError as error:
            self._tell(error)
            if isinstance(error, ApiError | AuthenticationFailed):
                # It was tried for request_timeout_ms already: the caller is told, and it goes on.
                self._fail(error, assignment)
            await trio.sleep(self._cluster.backoff_s(1))
            return
        if assignment.position is None:
            assignment.seek(found.offset)
            assignment.is_added = False
