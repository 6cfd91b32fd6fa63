"""Open connections by address: one each, made when it is needed, made again when it broke."""

from __future__ import annotations

import trio

from hightide.net.background import start
from hightide.net.connection import Connection, connect
from hightide.net.login import LoginNetwork
from hightide.net.ports import Network
from hightide.protocol.errors import ClosedError


class ConnectionPool:
    """Connections whose readers run in the nursery given."""

    def __init__(self, network: Network, nursery: trio.Nursery, *, client_id: str) -> None:
        self._network = network
        self._nursery = nursery
        self._client_id = client_id
        self._connections: dict[tuple[str, int], Connection] = {}
        self._is_closed = False
        self._connecting: dict[tuple[str, int], trio.Lock] = {}

    def has_open(self, address: tuple[str, int]) -> bool:
        """Whether a request to this address can leave without connecting first."""
        return self.open_now(address) is not None

    def open_now(self, address: tuple[str, int]) -> Connection | None:
        """The open connection to an address, if there is one."""
        known = self._connections.get(address)
        return known if known is not None and known.is_open else None

    async def connection(self, host: str, port: int) -> Connection:
        """An open connection to an address; raises `BrokerUnreachable`, and `ClosedError` if the
        pool was closed meanwhile."""
        key = (host, port)
        if (known := self.open_now(key)) is not None:
            return known
        async with self._connecting.setdefault(key, trio.Lock()):
            known = self._connections.get(key)
            if known is not None:
                if known.is_open:
                    return known
                await known.aclose()
            self._check_open()
            fresh = await connect(self._network, host, port, client=self._client_id)
            try:
                self._check_open()  # otherwise nobody would read its answers
                network = self._network
                keep = network.keep if isinstance(network, LoginNetwork) else None
                start(self._nursery, fresh.run, keep)
            except (ClosedError, RuntimeError) as error:  # or the nursery is closed by now
                await fresh.aclose()
                raise ClosedError("the client was closed meanwhile") from error
            self._connections[key] = fresh
            return fresh

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the client was closed meanwhile")

    async def aclose(self) -> None:
        """Close every connection, for good; to be called before the nursery ends."""
        self._is_closed = True
        for connection in self._connections.values():
            await connection.aclose()
