"""The listener: frames in, handlers begun in order of arrival, answers out as they complete.

One connection's failure never reaches another: its bytes are judged at this door, its errors end at
its own edge, and everything it may take has a limit - connections, bytes being received, requests
at work, time to send a request, time to take an answer, time to say nothing.

Requests of one connection are begun in its reader's task, so that their order is the order of their
effects; those that have to wait (acks=all, an empty fetch) finish in a task of their own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import trio

from hightide.net.background import single
from hightide.net.connection import FrameReader
from hightide.net.ports import Stream
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_NAME, Api
from hightide.protocol.bins import bin_header
from hightide.protocol.errors import ErrorCode, Refused, RemoteProtocolError
from hightide.protocol.messages import Message, RequestEnvelope
from hightide.protocol.records import Buffer
from hightide.protocol.strangers import http_refusal, speaks, speaks_kafka
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.ports import DiskError, NodeMustStop
from hightide_broker.runtime.base.call import Call, CloseConnection, Later, Outcome, Reply
from hightide_broker.storage.segment import FileSlice

log = logging.getLogger("hightide.server")

RECEIVE_BYTES_MAX = 256 << 20
"""Bytes of requests that may be on their way in at a time, over all connections."""
SMALL_REQUEST_BYTES = 64 << 10
"""Requests up to this size do not count: max.connections bounds them."""
SENDFILE_BYTES_MIN = 32 << 10
"""Below this, reading is cheaper than `sendfile`."""
CLIENT_BYTES_PER_S_MIN = 256 << 10
"""A client that takes a large answer slower than this, beyond write.timeout.ms, is dropped."""


class Handlers(Protocol):
    """Who answers requests."""

    def begin(self, api: Api, call: Call[Any]) -> Outcome:
        """Begin a request, in order. Raises `Refused` or `CloseConnection`."""
        ...


class _OpenSlice(NamedTuple):
    """A file slice with a descriptor of its own: the segment may be deleted while it is sent."""

    descriptor: int
    position: int
    size: int


class ByteBudget:
    """So many bytes may be held at a time; who needs more waits."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._freed = trio.Event()

    async def take(self, count: int) -> None:
        """Wait for room for `count` bytes."""
        while self._free < count:
            await self._freed.wait()
        self._free -= count

    def give_back(self, count: int) -> None:
        """Those bytes are not held any more."""
        self._free += count
        freed, self._freed = self._freed, trio.Event()
        freed.set()


class _Hold:
    """What one request holds of the budget: only for bytes that came, not for those announced."""

    def __init__(self, budget: ByteBudget, length: int) -> None:
        self._budget = budget
        self._is_small = length <= SMALL_REQUEST_BYTES
        self._held = 0

    async def admit(self, count: int) -> None:
        """Wait for room for the next piece; small requests never wait."""
        if not self._is_small:
            await self._budget.take(count)
            self._held += count

    def release(self) -> None:
        """The request is done."""
        self._budget.give_back(self._held)


class Server:
    """All connections of a node's listener."""

    def __init__(self, handlers: Handlers, config: BrokerConfig) -> None:
        self.handlers = handlers
        self.frame_limit = config[keys.SOCKET_REQUEST_MAX_BYTES]
        self.idle_s = config.seconds(keys.CONNECTIONS_MAX_IDLE_MS)
        self.write_s = config.seconds(keys.WRITE_TIMEOUT_MS)
        self.receive_s = config.seconds(keys.REQUEST_TIMEOUT_MS)
        self.in_flight_max = config[keys.MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION]
        self.budget = ByteBudget(max(RECEIVE_BYTES_MAX, self.frame_limit))
        self._connections_max = config[keys.MAX_CONNECTIONS]
        self._connections: dict[_Connection, None] = {}
        self._all_closed = trio.Event()
        self._stopping = False

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return len(self._connections)

    async def serve_stream(self, stream: Stream) -> None:
        """Serve one connection until it ends; never raises for what the peer does."""
        if len(self._connections) >= self._connections_max or self._stopping:
            why = "stopping" if self._stopping else "max.connections"
            count = len(self._connections)
            log.warning("refused %s: %d connections, %s", stream.peer, count, why)
            await stream.aclose()
            return
        connection = _Connection(self, stream)
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]
            if not self._connections:
                self._all_closed.set()
            await stream.aclose()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests, finish those at work, close the connections."""
        self._stopping = True
        self._all_closed = trio.Event()
        if not self._connections:
            return
        for connection in list(self._connections):
            connection.stop_reading()
        with trio.move_on_after(timeout_s):
            await self._all_closed.wait()


class _Connection:
    def __init__(self, server: Server, stream: Stream) -> None:
        self._server = server
        self._stream = stream
        self._reader = FrameReader(stream, frame_limit=server.frame_limit)
        self._sending = trio.Lock()
        self._at_work = trio.Semaphore(server.in_flight_max)
        self._work_count = 0
        self._stopped = False
        self._host = stream.peer.rpartition(":")[0] or stream.peer
        self._reading = trio.CancelScope()

    def stop_reading(self) -> None:
        """Take no more requests; those at work are finished."""
        self._stopped = True
        self._reading.cancel()

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                await self._read_requests(nursery)
                if not self._stopped:
                    nursery.cancel_scope.cancel()
        except* (RemoteProtocolError, CloseConnection) as group:
            log.info("closed %s: %s", self._stream.peer, single(group))
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as group:
            log.debug("lost %s: %s", self._stream.peer, single(group))
        except* (AssertionError, NodeMustStop):
            raise
        except* Exception:
            log.exception("a request of %s met a bug; its connection was closed", self._stream.peer)

    async def _read_requests(self, nursery: trio.Nursery) -> None:
        while True:
            length = await self._next_length()
            if length is None:
                return
            hold = _Hold(self._server.budget, length)
            try:
                await self._one_request(length, hold, nursery)
            finally:
                hold.release()

    async def _next_length(self) -> int | None:
        while not self._stopped:
            deadline = trio.current_time() + self._server.idle_s
            with trio.CancelScope(deadline=deadline) as self._reading:
                try:
                    return await self._reader.next_length()
                except RemoteProtocolError as error:
                    if speaks(self._reader.unread) == "HTTP":
                        await self._send([http_refusal()], [])
                    else:
                        await self._protest(-1, ErrorCode.CORRUPT_FRAME, str(error))
                    raise
            if not self._work_count and not self._stopped:
                raise CloseConnection("nothing was said for connections.max.idle.ms")
        return None

    async def _one_request(self, length: int, hold: _Hold, nursery: trio.Nursery) -> None:
        body: bytearray | None = None
        with trio.move_on_after(self._server.receive_s):
            body = await self._reader.read_body(length, hold.admit)
        if body is None:
            raise CloseConnection(
                f"a frame of {length} bytes did not arrive within request.timeout.ms"
            )
        request_id = -1
        try:
            frame = wire.split_frame(body, message_limit=wire.MESSAGE_BYTES_MAX)
            envelope = wire.decode_request_envelope(frame)
            request_id = envelope.id
            api, request = self._decode(envelope)
        except RemoteProtocolError as error:
            await self._protest(request_id, ErrorCode.INVALID_REQUEST, str(error))
            if speaks_kafka(body):
                raise RemoteProtocolError(
                    "it speaks Kafka's own protocol, and this port hightide's: msgpack over TCP"
                ) from error
            raise
        except Refused as refusal:
            await self._protest(request_id, refusal.code, refusal.message)
            return
        await self._at_work.acquire()
        begun = False
        try:
            call = Call(request, frame.attachments, self._host, envelope.client)
            begun = await self._begin(nursery, request_id, api, call)
        finally:
            if not begun:
                self._at_work.release()

    def _decode(self, envelope: RequestEnvelope) -> tuple[Api, Message]:
        api = API_BY_NAME.get(envelope.api)
        if api is None:
            raise Refused(ErrorCode.INVALID_REQUEST, f"unknown API {envelope.api[:60]!r}")
        if not api.min_version <= envelope.version <= api.max_version:
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{api.name} version {envelope.version}, "
                f"this broker speaks {api.min_version} to {api.max_version}",
            )
        return api, wire.decode_body(envelope.body, api.request)

    async def _begin(
        self, nursery: trio.Nursery, request_id: int, api: Api, call: Call[Any]
    ) -> bool:
        """Begin a request; whether it goes on in a task of its own."""
        try:
            outcome = self._server.handlers.begin(api, call)
        except Refused as refusal:
            await self._protest(request_id, refusal.code, refusal.message)
            return False
        if outcome is None:
            await trio.lowlevel.checkpoint()
        elif isinstance(outcome, Reply):
            await self._answer(request_id, outcome)
        else:
            self._work_count += 1
            nursery.start_soon(self._finish, request_id, outcome)
            return True
        return False

    async def _finish(self, request_id: int, later: Later) -> None:
        try:
            try:
                reply = await later()
            except Refused as refusal:
                await self._protest(request_id, refusal.code, refusal.message)
            else:
                await self._answer(request_id, reply)
        finally:
            self._work_count -= 1
            self._at_work.release()

    async def _protest(self, request_id: int, code: ErrorCode, message: str) -> None:
        payload = wire.encode_response(None, request_id=request_id, error=code, message=message)
        await self._send(wire.frame_buffers(payload, ()), [])

    async def _answer(self, request_id: int, reply: Reply) -> None:
        parts: list[Buffer | _OpenSlice] = []
        try:
            # Before any await: from here on the segment may go, the descriptor stays.
            parts.extend(map(self._open, reply.attachments))
            sizes = [part.size if isinstance(part, _OpenSlice) else len(part) for part in parts]
            payload = wire.encode_response(reply.body, request_id=request_id)
            await self._send([wire.frame_head(payload, sizes)], parts)
        except DiskError as error:
            raise OSError(str(error)) from error
        finally:
            for part in parts:
                if isinstance(part, _OpenSlice):
                    os.close(part.descriptor)

    def _open(self, attachment: FileSlice | Buffer) -> Buffer | _OpenSlice:
        if not isinstance(attachment, FileSlice):
            return attachment
        if self._stream.can_send_file and attachment.size >= SENDFILE_BYTES_MIN:
            descriptor = attachment.file.duplicate_descriptor()
            if descriptor is not None:
                return _OpenSlice(descriptor, attachment.position, attachment.size)
        data = attachment.read()
        if len(data) != attachment.size:
            raise OSError(f"{attachment.file.path} shrank while it was being read")
        return data

    async def _send(self, head: list[Buffer], parts: Sequence[Buffer | _OpenSlice]) -> None:
        total = sum(part.size if isinstance(part, _OpenSlice) else len(part) for part in parts)
        deadline_s = self._server.write_s + total / CLIENT_BYTES_PER_S_MIN
        with trio.move_on_after(deadline_s) as scope:
            async with self._sending:
                await self._send_parts(head, parts)
        if scope.cancelled_caught:
            raise CloseConnection(
                f"an answer was not taken within {deadline_s:.0f} s (write.timeout.ms)"
            )

    async def _send_parts(self, head: list[Buffer], parts: Sequence[Buffer | _OpenSlice]) -> None:
        pending = head
        for part in parts:
            if isinstance(part, _OpenSlice):
                await self._stream.send_all([*pending, bin_header(part.size)])
                await self._stream.send_file(part.descriptor, part.position, part.size)
                pending = []
            else:
                pending = [*pending, bin_header(len(part)), part]
        if pending:
            await self._stream.send_all(pending)
