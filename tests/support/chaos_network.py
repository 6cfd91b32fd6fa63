"""The network of the chaos test: ways to a broker that hold back what they carry, reset it, or let
nobody in.

No test lives here. A broker of a secure cluster is reached by two of them, one for clients and one
for the other nodes; what befalls the broker befalls both.
"""

import socket
import struct
from contextlib import ExitStack, suppress

import trio

HOST = "127.0.0.1"
_PIPE_BYTES = 64 << 10
_RESET = struct.pack("ii", 1, 0)


def _bound(port=0):
    """A socket that holds a port of loopback; who connects to it is refused until it listens."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, port))
    return trio.socket.from_stdlib_socket(held)


def _free_ports(count):
    """As many different ones."""
    with ExitStack() as held:
        found = [held.enter_context(_bound()) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


class Forwarder:
    """A port whose connections lead to a broker, wherever that listens now."""

    def __init__(self, nursery):
        self.target = 0
        self.accepted = 0
        self._nursery = nursery
        self._listener = _bound()
        self.port = self._listener.getsockname()[1]
        self._streams = set()
        self._flows = trio.Event()
        self._flows.set()

    def admit(self):
        """Take connections."""
        self._listener.listen(100)
        self._nursery.start_soon(self._accept, self._listener)

    def refuse(self):
        """Nobody listens any more; what is connected stays."""
        self._listener.close()
        self._listener = _bound(self.port)

    def cut(self):
        """Carry nothing in either direction, and tell nobody."""
        self._flows = trio.Event()

    def heal(self):
        """What was held back goes on."""
        self._flows.set()

    def reset(self):
        """Every connection ends at once, for both of its sides."""
        for stream in self._streams:
            with suppress(OSError):
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            stream.socket.close()

    def close(self):
        """Let the port go; what is connected ends with the nursery."""
        self._listener.close()

    async def _accept(self, listener):
        with suppress(trio.ClosedResourceError, OSError):
            while True:
                client, _ = await listener.accept()
                self.accepted += 1
                self._nursery.start_soon(self._carry, trio.SocketStream(client))

    async def _carry(self, client):
        self._streams.add(client)
        broker = trio.SocketStream(trio.socket.socket())
        try:
            await self._flows.wait()
            await broker.socket.connect((HOST, self.target))
            self._streams.add(broker)
            async with trio.open_nursery() as both:
                both.start_soon(self._pipe, client, broker, both.cancel_scope)
                both.start_soon(self._pipe, broker, client, both.cancel_scope)
        except OSError:
            pass
        finally:
            for stream in (client, broker):
                self._streams.discard(stream)
                stream.socket.close()

    async def _pipe(self, source, sink, scope):
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(_PIPE_BYTES):
                await self._flows.wait()
                await sink.send_all(data)
        await self._flows.wait()
        scope.cancel()


class Ways:
    """All that lead to a broker: that of the clients, and that of the other nodes where they have
    one of their own."""

    def __init__(self, nursery, *, split):
        self.clients = Forwarder(nursery)
        self.nodes = Forwarder(nursery) if split else self.clients
        self._all = dict.fromkeys([self.clients, self.nodes])

    @property
    def accepted(self):
        """How many connections there were."""
        return sum(way.accepted for way in self._all)

    def lead_to_new_ports(self):
        """The broker will listen elsewhere."""
        for way, port in zip(self._all, _free_ports(len(self._all)), strict=True):
            way.target = port

    def lead_nowhere(self):
        """Whoever is let in finds nobody."""
        for way in self._all:
            way.target = 0

    def admit(self):
        """Take connections."""
        for way in self._all:
            way.admit()

    def refuse(self):
        """Nobody listens any more; what is connected stays."""
        for way in self._all:
            way.refuse()

    def cut(self):
        """Carry nothing in either direction, and tell nobody."""
        for way in self._all:
            way.cut()

    def heal(self):
        """What was held back goes on."""
        for way in self._all:
            way.heal()

    def reset(self):
        """Every connection ends at once."""
        for way in self._all:
            way.reset()

    def close(self):
        """Let the ports go."""
        for way in self._all:
            way.close()
