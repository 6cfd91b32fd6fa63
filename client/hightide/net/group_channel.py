"""The way to a group's coordinator, whichever broker that is by now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hightide.net.cluster import Cluster
from hightide.protocol import group_messages as g
from hightide.protocol.errors import UNREACHABLE, ApiError, ErrorCode, HightideError, error_code
from hightide.protocol.messages import Message

_ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NO_REFUSAL = (None, ErrorCode.MEMBER_ID_REQUIRED)


def _no_more(answer: Any) -> None:
    """The whole of an answer was refused or nothing."""


class GroupChannel:
    """Requests to the coordinator of one group."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        *,
        timeout_s: float,
        on_retry: Callable[[HightideError], None] | None = None,
    ) -> None:
        self.group = group
        self.timeout_s = timeout_s
        self._cluster = cluster
        self._on_retry = on_retry
        self._coordinator = -1

    async def call(
        self,
        request: Message,
        *,
        timeout_s: float | None = None,
        grace_s: float = 0.0,
        check: Callable[[Any], ApiError | None] = _no_more,
    ) -> Any:
        """An answer; asked for again, for up to `timeout_s` + `grace_s`, while that may help.

        `check` finds refusals in the parts of an answer. Raises `ApiError` with what was refused,
        `BrokerUnreachable` or `RequestTimedOut`.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s

        async def attempt() -> Any:
            try:
                broker = await self._find()
                connection = await self._cluster.connection_to(broker)
                answer, _ = await connection.call(request, timeout_s=limit_s + grace_s)
                error = getattr(answer, "error", None)
                if error not in _NO_REFUSAL:
                    message = getattr(answer, "message", "")
                    raise ApiError(error_code(error), message, broker=connection.address)
                refusal = check(answer)
                if refusal is not None:
                    refusal.broker = connection.address
                    raise refusal
                return answer
            except (ApiError, *UNREACHABLE) as error:
                if not isinstance(error, ApiError) or error.code in _ELSEWHERE:
                    self._coordinator = -1
                self.tell(error)
                raise

        return await self._cluster.retrying(attempt, timeout_s=limit_s + grace_s)

    async def _find(self) -> int:
        if self._coordinator < 0:
            request = g.FindCoordinatorRequest(group=self.group)
            found, _ = await self._cluster.call_any_broker_once(request)
            assert isinstance(found, g.FindCoordinatorResponse)
            if found.broker not in self._cluster.metadata.brokers:
                await self._cluster.refresh([])
            self._coordinator = found.broker
        return self._coordinator

    def tell(self, error: HightideError) -> None:
        """Let the user know what is tried again."""
        if self._on_retry is not None:
            self._on_retry(error)
