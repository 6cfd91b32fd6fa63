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
from hightide_broker.core.cluster.senders import may_answer

NOWHERE: Mapping[int, tuple[str, int]] = {}


class NotSent(BrokerUnreachable):
    """There was no connection: the request has certainly had no effect."""


class NodeAddresses:
    """Where other nodes listen, as the records of the voters say, for all who ask them."""

    def __init__(self, configured: Mapping[int, tuple[str, int]] = NOWHERE) -> None:
        self._configured = configured
        self._recorded: dict[int, tuple[str, int]] = {}

    def learn(self, recorded: Mapping[int, tuple[str, int]]) -> None:
        """Newer records; who is not named any more may still be asked."""
        self._recorded.update(recorded)

    def of(self, node: int) -> list[tuple[str, int]]:
        """Where to try, in this order: a node may have moved since its address was recorded."""
        places = (self._recorded.get(node), self._configured.get(node))
        return list(dict.fromkeys(filter(None, places)))


class Peers:
    """Connections to the other nodes, one each; made as they are needed once `run` has begun."""

    def __init__(self, network: Network, addresses: NodeAddresses, *, node: int) -> None:
        self._network = network
        self._addresses = addresses
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
        return await self.call_at(self._addresses.of(node), node, request, timeout_s=timeout_s)

    async def call_at(
        self,
        addresses: Sequence[tuple[str, int]],
        node: int,
        request: Message,
        *,
        timeout_s: float,
    ) -> tuple[Any, list[memoryview]]:
        """The same at the first of these addresses where somebody listens, whatever is known of the
        node."""
        if not addresses or self._pool is None:
            raise NotSent(
                f"node {node} has no address here: neither controller.quorum.voters nor a record "
                f"of the voters names it"
            )
        with trio.move_on_after(timeout_s):
            connection = await self._connection(addresses, timeout_s)
            if not may_answer(connection.common_name, node):
                raise NotSent(
                    f"{connection.common_name} answers there, expected node {node}",
                    broker=connection.address,
                )
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
