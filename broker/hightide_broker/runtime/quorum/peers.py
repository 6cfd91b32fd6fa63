"""The other nodes of the quorum, by id: one connection each, and a deadline for every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from hightide.net.connection import Connection
from hightide.net.pool import ConnectionPool
from hightide.net.ports import Network
from hightide.protocol.errors import BrokerUnreachable, RequestTimedOut
from hightide.protocol.messages import Message


class NotSent(BrokerUnreachable):
    """There was no connection: the request has certainly had no effect."""


class Peers:
    """Usable once `run` has begun."""

    def __init__(
        self,
        network: Network,
        addresses: Mapping[int, tuple[str, int]],
        *,
        node: int,
        configured: Mapping[int, tuple[str, int]] | None = None,
    ) -> None:
        """`addresses` may change meanwhile; where nobody listens, `configured` is tried: a node may
        have moved since its address was recorded."""
        self._network = network
        self._addresses = addresses
        self._configured = {} if configured is None else configured
        self._client_id = f"node-{node}"
        self._pool: ConnectionPool | None = None

    async def run(self) -> None:
        """Keep connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self._pool = ConnectionPool(self._network, nursery, client_id=self._client_id)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await self._pool.aclose()

    async def call(
        self, node: int, request: Message, *, timeout_s: float
    ) -> tuple[Any, list[memoryview]]:
        """A node's answer; raises `NotSent` or `BrokerUnreachable` if nobody listens there,
        `RequestTimedOut`, `ApiError`, or `RemoteProtocolError`."""
        places = (self._addresses.get(node), self._configured.get(node))
        addresses = list(dict.fromkeys(filter(None, places)))
        if not addresses or self._pool is None:
            raise NotSent(
                f"node {node} has no address here: neither controller.quorum.voters nor a record "
                f"of the voters names it"
            )
        with trio.move_on_after(timeout_s):
            connection = await self._connection(addresses, timeout_s)
            return await connection.call(request, timeout_s=timeout_s)
        raise RequestTimedOut(
            f"no connection to node {node} within {timeout_s:g} s",
            broker="{}:{}".format(*addresses[0]),
            elapsed_s=timeout_s,
            knob="controller.quorum.request.timeout.ms",
        )

    async def _connection(
        self, addresses: Sequence[tuple[str, int]], timeout_s: float
    ) -> Connection:
        """A connection to the first address where somebody listens, and answers within its share of
        the time; raises `NotSent`."""
        assert self._pool is not None
        *others, last = addresses
        for address in others:
            with suppress(BrokerUnreachable), trio.move_on_after(timeout_s / len(addresses)):
                return await self._pool.connection(*address)
        try:
            return await self._pool.connection(*last)
        except BrokerUnreachable as error:
            raise NotSent(error.message, broker=error.broker) from error
