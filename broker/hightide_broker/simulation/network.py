"""A network in memory: latency, loss, cuts, clogs and resets; FIFO inside a connection.

Machines are named. What one sends to another takes a while that the seed decides. A *cut* holds
everything in one direction: bytes wait, connections are not made; when it heals, each connection
either goes on or is reset, as TCP would after a while. A *clog* only slows. *Loss* makes single
messages late, as a retransmission does. Implements `hightide.net.ports.Network` and a listener for
each machine.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import trio
import trio.lowlevel

from hightide.net.ports import Random
from hightide.protocol.records import Buffer


@dataclass(slots=True)
class Weather:
    """How the network behaves; times in seconds."""

    latency_s: float = 0.0005
    jitter_s: float = 0.002
    loss: float = 0.0
    """How likely a message has to be sent again."""
    retransmit_s: float = 0.2


class _Pipe:
    """One direction of a connection."""

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.queue: deque[tuple[float, bytes]] = deque()
        self.held: list[bytes] = []
        self.last_at = 0.0
        self.broken = False
        self.ended_at: float | None = None
        """When an orderly end of the stream arrives."""
        self.end_held = False
        """Whether that end waits for a cut to heal."""
        self.changed = trio.Event()

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class SimStream:
    """One end of a connection; implements `ports.Stream`."""

    can_send_file = False

    def __init__(self, network: SimNetwork, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._network = network
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed = False

    @property
    def peer(self) -> str:
        return self._incoming.source

    @property
    def common_name(self) -> str:
        return ""

    async def receive_into(self, view: memoryview, wanted: int = 1) -> int:
        pipe, waited = self._incoming, False
        while True:
            if self._closed:
                raise trio.ClosedResourceError("this end was closed")
            now = trio.current_time()
            if pipe.queue and pipe.queue[0][0] <= now:
                if waited:
                    return self._take(view)
                waited = True
                await trio.lowlevel.checkpoint()
                continue
            if pipe.broken:
                raise trio.BrokenResourceError("connection reset by peer")
            wake_at = pipe.queue[0][0] if pipe.queue else pipe.ended_at
            if not pipe.queue and pipe.ended_at is not None and pipe.ended_at <= now:
                return 0
            waited = True
            if wake_at is None:
                await pipe.changed.wait()
            else:
                with trio.move_on_at(wake_at):
                    await pipe.changed.wait()

    def _take(self, view: memoryview) -> int:
        at, data = self._incoming.queue.popleft()
        count = min(len(view), len(data))
        view[:count] = data[:count]
        if count < len(data):
            self._incoming.queue.appendleft((at, data[count:]))
        return count

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        if self._outgoing.broken:
            raise trio.BrokenResourceError("connection reset by peer")
        data = b"".join(bytes(each) for each in buffers)
        self._network.transmit(self._outgoing, data)
        return len(data)

    def send_file_now(self, fd: int, position: int, size: int) -> int:
        raise AssertionError("a simulated stream sends no files")

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._network.finish(self._outgoing, self._incoming)


class SimListener:
    """Where a machine is connected to; implements the node's `Listener`."""

    def __init__(self, network: SimNetwork, host: str, port: int) -> None:
        self._network = network
        self._host = host
        self._port = port
        self._send, self._receive = trio.open_memory_channel[SimStream](1000)

    @property
    def port(self) -> int:
        return self._port

    def offer(self, stream: SimStream) -> None:
        """A connection arrived."""
        self._send.send_nowait(stream)

    async def accept(self) -> SimStream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._network.close_listener(self._host, self._port, self)


class SimHost:
    """The network as one machine sees it; implements `ports.Network` and the node's `Listen`."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        self._network = network
        self.name = name

    async def connect(self, host: str, port: int) -> SimStream:
        return await self._network.connect(self.name, host, port)

    async def listen(self, host: str, port: int) -> SimListener:
        """Listen on this machine."""
        await trio.lowlevel.checkpoint()
        return self._network.listen(self.name, port)


class SimNetwork:
    """All machines and the connections between them."""

    def __init__(self, random: Random, weather: Weather | None = None) -> None:
        self.weather = weather or Weather()
        self.messages = 0
        self.fingerprint = 0
        """Of every message: when, from where, to where, how long."""
        self._random = random
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._pipes: list[tuple[_Pipe, _Pipe]] = []
        self._cuts: dict[tuple[str, str], None] = {}
        self._clogs: dict[tuple[str, str], float] = {}
        self._silent: dict[str, None] = {}
        self._frozen: dict[str, bool] = {}
        """Who is paused → whether it goes on when all else is healed."""
        self._healed = trio.Event()

    def host(self, name: str) -> SimHost:
        """The network of one machine."""
        return SimHost(self, name)

    # -- connections -----------------------------------------------------------------------------

    def listen(self, host: str, port: int) -> SimListener:
        """Listen on a machine's port."""
        if (host, port) in self._listeners:
            raise OSError(98, "Address already in use")
        listener = self._listeners[(host, port)] = SimListener(self, host, port)
        return listener

    def close_listener(self, host: str, port: int, listener: SimListener) -> None:
        """Take no more connections."""
        if self._listeners.get((host, port)) is listener:
            del self._listeners[(host, port)]

    async def connect(self, source: str, target: str, port: int) -> SimStream:
        """Connect; hangs while a direction is cut, raises `OSError` if nobody listens."""
        await trio.sleep(self._delay(source, target))
        while self._is_out_of_reach(source, target):
            await self._healed.wait()
        await trio.sleep(self._delay(target, source))
        listener = self._listeners.get((target, port))
        if listener is None:
            raise ConnectionRefusedError(111, "Connection refused")
        there, back = _Pipe(source, target), _Pipe(target, source)
        self._pipes = [pair for pair in self._pipes if not (pair[0].broken and pair[1].broken)]
        self._pipes.append((there, back))
        listener.offer(SimStream(self, back, there))
        return SimStream(self, there, back)

    def _is_out_of_reach(self, source: str, target: str) -> bool:
        is_cut = self.is_cut(source, target) or self.is_cut(target, source)
        return is_cut or target in self._silent

    def _delay(self, source: str, target: str) -> float:
        weather = self.weather
        delay = weather.latency_s + weather.jitter_s * self._random.random()
        if weather.loss and self._random.random() < weather.loss:
            delay += weather.retransmit_s * (1 + self._random.random())
        return delay + self._clogs.get((source, target), 0.0)

    def transmit(self, pipe: _Pipe, data: bytes) -> None:
        """Bytes leave a machine; they arrive in the order in which they left."""
        if pipe.target in self._silent or pipe.source in self._silent:
            return
        if self.is_cut(pipe.source, pipe.target):
            pipe.held.append(data)
            return
        at = trio.current_time() + self._delay(pipe.source, pipe.target)
        at = pipe.last_at = max(at, pipe.last_at)
        pipe.queue.append((at, data))
        pipe.wake()
        self.messages += 1
        text = f"{self.fingerprint} {at:.9f} {pipe.source} {pipe.target} {len(data)}"
        self.fingerprint = _mix(text)

    def finish(self, outgoing: _Pipe, incoming: _Pipe) -> None:
        """An end was closed: the other one sees the end of the stream, after what was sent."""
        incoming.broken = True
        incoming.queue.clear()
        incoming.wake()
        outgoing.end_held = self.is_cut(outgoing.source, outgoing.target)
        if not outgoing.end_held:
            self._end(outgoing)

    def _end(self, pipe: _Pipe) -> None:
        delay = self._delay(pipe.source, pipe.target)
        pipe.ended_at = max(trio.current_time() + delay, pipe.last_at)
        pipe.wake()

    # -- faults ----------------------------------------------------------------------------------

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from one machine to another."""
        is_frozen = source in self._frozen or target in self._frozen
        return is_frozen or (source, target) in self._cuts

    def cut(self, source: str, target: str) -> None:
        """From now on nothing gets through in this direction."""
        self._cuts[(source, target)] = None

    def clog(self, source: str, target: str, delay_s: float) -> None:
        """From now on everything in this direction takes so much longer."""
        self._clogs[(source, target)] = delay_s

    def reset(self, one: str, other: str) -> None:
        """Every connection between two machines breaks."""
        for pair in self._pipes:
            if {pair[0].source, pair[0].target} == {one, other}:
                _break(pair)

    def freeze(self, host: str, *, heals: bool = True) -> None:
        """A machine is paused: nothing leaves it or reaches it, and nothing is lost; unless it
        `heals`, until it is thawed."""
        self._frozen[host] = heals

    def thaw(self, host: str) -> None:
        """A frozen host goes on, and gets what was sent to it meanwhile."""
        self._frozen.pop(host, None)
        self._release(reset=0.0)

    def heal(self) -> None:
        """No more cuts and clogs; what was held goes on, or its connection is reset."""
        self._cuts.clear()
        self._clogs.clear()
        self._frozen = {host: heals for host, heals in self._frozen.items() if not heals}
        self._release(reset=0.5)

    def _release(self, *, reset: float) -> None:
        self._healed.set()
        self._healed = trio.Event()
        for pair in self._pipes:
            if not any(pipe.held or pipe.end_held for pipe in pair):
                continue
            if self._random.random() < reset:
                _break(pair)
                continue
            for pipe in pair:
                held, pipe.held = pipe.held, []
                for data in held:
                    self.transmit(pipe, data)
                if pipe.end_held:
                    pipe.end_held = self.is_cut(pipe.source, pipe.target)
                    if not pipe.end_held:
                        self._end(pipe)

    def drop(self, host: str, *, silently: bool) -> None:
        """A machine's process is gone: its connections break, or (power loss) say nothing more."""
        self._listeners = {key: each for key, each in self._listeners.items() if key[0] != host}
        if silently:
            self._silent[host] = None
            return
        for pair in self._pipes:
            if host in (pair[0].source, pair[0].target):
                _break(pair)

    def boot(self, host: str) -> None:
        """A machine is back; connections from before break as soon as they are used."""
        if host in self._silent:
            del self._silent[host]
            self.drop(host, silently=False)
            self._healed.set()
            self._healed = trio.Event()


def _break(pair: tuple[_Pipe, _Pipe]) -> None:
    for pipe in pair:
        pipe.broken = True
        pipe.queue.clear()
        pipe.held.clear()
        pipe.wake()


def _mix(text: str) -> int:
    return zlib.crc32(text.encode())
