"""One connection to one broker: frames out in order, one reader task, answers matched by id.

`call` sends a request and waits for its answer under a deadline; `begin` only sends, so that a
caller can have several requests on the way in an order of its own choosing. When the stream breaks
or the peer breaks the protocol, every waiting call fails and the connection is finished for good.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from hightide.net.background import ki_protected, open_background, start
from hightide.net.clock import loop_clock
from hightide.net.outbox import Outbox, SendTimeout
from hightide.net.ports import Network, Stream
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_NAME, API_BY_REQUEST
from hightide.protocol.errors import (
    ApiError,
    AuthenticationFailed,
    BrokerUnreachable,
    HightideError,
    RemoteProtocolError,
    RequestTimedOut,
    error_code,
    no_connection,
)
from hightide.protocol.messages import Message
from hightide.protocol.records import Buffer
from hightide.protocol.words import counted

CONNECT_TIMEOUT_S = 10.0
READ_BYTES_MIN, READ_BYTES_MAX = 2 << 10, 64 << 10
"""How much is read at a time: a connection that is idle holds little, one that is full of small
frames reads many at once."""
LARGE_BYTES = 64 << 10
"""Of a frame like this nobody wants to hear before there is much of it."""
ADMITTED_BYTES_MAX = 1 << 20
"""Bytes of a frame that are admitted, and then read, at a time: first few, then as many as have
come."""
_ZEROS = memoryview(bytes(ADMITTED_BYTES_MAX))
"""What room for a piece is made of: new zeros for each would be pages of memory that are found,
cleared and given back."""
_TRANSPORT_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class FrameReader:
    """Cuts a stream into frames; small ones share one read, large ones are read in place."""

    def __init__(self, stream: Stream, *, frame_limit: int = wire.FRAME_BYTES_MAX) -> None:
        self._stream = stream
        self._now = loop_clock()
        self._limit = frame_limit
        self._buffer = bytearray(READ_BYTES_MIN)
        self._start = 0
        self._end = 0
        self._last_read = 0
        self._last_length = 0
        self.read_at = 0.0
        """When something came last: by then, all of the frame that was taken last."""

    async def next_frame(self) -> bytearray | None:
        """The body of the next frame, None at an orderly end; raises `RemoteProtocolError`."""
        length = await self.next_length()
        return None if length is None else await self.read_body(length)

    @property
    def unread(self) -> bytes:
        """What has come and was not taken for a frame yet."""
        return bytes(memoryview(self._buffer)[self._start : self._end])

    @property
    def has_more(self) -> bool:
        """Whether something has come that was not taken for a frame yet."""
        return self._start < self._end

    def body_now(self, length: int) -> bytearray | None:
        """The `length` bytes of a frame, if all of them have come with others."""
        if self._end - self._start < length:
            return None
        end = self._start + length
        body, self._start = self._buffer[self._start : end], end
        return body

    async def next_length(self) -> int | None:
        """The length of the next frame, None at an orderly end; `read_body` must follow."""
        if not await self._have(wire.LENGTH_BYTES):
            return None
        prefix = memoryview(self._buffer)[self._start : self._end]
        length = wire.frame_length(prefix, limit=self._limit)
        self._start += wire.LENGTH_BYTES
        return length

    async def start_of_body(self, count: int) -> bytes:
        """The first bytes of a frame behind its length, which `read_body` brings again; none at
        the end of the stream."""
        is_there = await self._have(count, "a frame")
        start = self._start
        return bytes(memoryview(self._buffer)[start : start + count]) if is_there else b""

    async def read_body(
        self, length: int, admit: Callable[[int], Awaitable[None]] | None = None
    ) -> bytearray:
        """The `length` bytes of a frame; `admit` is asked before there is room for each piece of
        it: what was only announced takes none. Where nobody is to be asked, there is room at once
        for as much as the last one read so had, if this one is as long."""
        first = READ_BYTES_MAX if admit is not None else max(READ_BYTES_MAX, self._last_length)
        filled = min(length, self._end - self._start)
        body = self._buffer[self._start : self._start + filled]
        self._start += filled
        while filled < length:
            if filled == len(body):
                piece = min(max(first, filled), ADMITTED_BYTES_MAX, length - filled)
                if admit is not None:
                    await admit(piece)
                body += _ZEROS[:piece]
            with memoryview(body)[filled:] as view:
                wanted = length - filled if length >= LARGE_BYTES else 1
                count = await self._stream.receive_into(view, wanted)
            self.read_at = self._now()
            if count == 0:
                raise RemoteProtocolError(
                    f"stream ended {counted(length - filled, 'byte')} before a frame did"
                )
            filled += count
        self._last_length = length
        return body

    async def _have(self, count: int, what: str = "a frame's length") -> bool:
        while self._end - self._start < count:
            self._make_room()
            received = await self._stream.receive_into(memoryview(self._buffer)[self._end :])
            if received == 0:
                if self._end > self._start:
                    raise RemoteProtocolError(f"stream ended inside {what}")
                return False
            self.read_at = self._now()
            self._end += received
            self._last_read = received
        return True

    def _make_room(self) -> None:
        """For the next read: twice as much if the last one was full, half if it brought little."""
        kept, size = self._end - self._start, len(self._buffer)
        wanted = size
        if self._end == size and size < READ_BYTES_MAX:
            wanted = size * 2
        elif not kept and self._last_read < size // 8 and size > READ_BYTES_MIN:
            wanted = size // 2
        if kept or wanted != size:
            rest = self._buffer[self._start : self._end]
            if wanted != size:
                self._buffer = bytearray(wanted)
            self._buffer[:kept] = rest
        self._start, self._end = 0, kept


class Answer:
    """A request on its way."""

    def __init__(
        self,
        connection: Connection,
        request_id: int,
        kind: type[Message],
        sent_at: float,
        arrived: Callable[[], None] | None = None,
    ) -> None:
        self._connection = connection
        self.id = request_id
        self._kind = kind
        self._sent_at = sent_at
        self._arrived = trio.Event()
        self._tell = arrived
        self._frame: wire.Frame | None = None
        self._error: HightideError | None = None

    @property
    def address(self) -> str:
        """The broker that was asked."""
        return self._connection.address

    def arrive(self, frame: wire.Frame | None, error: HightideError | None) -> None:
        """Hand the answer, or the reason there is none, to the caller that waits."""
        self._frame, self._error = frame, error
        self._arrived.set()
        if self._tell is not None:
            self._tell()

    def then(self, tell: Callable[[], None]) -> None:
        """Call `tell` once `take` has something to say; at once, if it has."""
        self._tell = tell
        if self._arrived.is_set():
            tell()

    def give_up(self) -> None:
        """Wait no longer: `take` says so."""
        self._connection.forget(self.id)
        if self._tell is not None and not self._arrived.is_set():
            self._tell()

    async def wait(self, timeout_s: float) -> tuple[Any, list[memoryview]]:
        """The response and its attachments; errors as `take`."""
        with trio.move_on_after(timeout_s):
            await self._arrived.wait()
        return self.take(timeout_s)

    def take(self, timeout_s: float) -> tuple[Any, list[memoryview]]:
        """The response and its attachments, as far as they have arrived; after it nothing will.

        Raises `ApiError` if the broker refused, `RequestTimedOut` if there is none after
        `timeout_s`, `BrokerUnreachable`, or `RemoteProtocolError`.
        """
        self._connection.forget(self.id)
        if not self._arrived.is_set():
            raise RequestTimedOut(
                f"no answer to {_api_name(self._kind)} within {round(timeout_s, 2):g} s",
                broker=self._connection.address,
                elapsed_s=trio.current_time() - self._sent_at,
                knob="request_timeout_ms",
            )
        if self._error is not None:
            raise self._error
        assert self._frame is not None
        envelope = wire.decode_response_envelope(self._frame)
        if envelope.error is not None:
            raise ApiError(
                error_code(envelope.error.code),
                envelope.error.message,
                broker=self._connection.address,
                elapsed_s=trio.current_time() - self._sent_at,
            )
        return wire.decode_body(envelope.body, self._kind), self._frame.attachments


def _api_name(kind: type[Message]) -> str:
    """The name of the API a response type belongs to, for messages."""
    return next(api.name for api in API_BY_NAME.values() if api.response is kind)


Beside = Callable[["Connection"], Awaitable[None]]


class Connection:
    """An open connection; made by `open_connection`."""

    def __init__(self, stream: Stream, *, address: str, client: str) -> None:
        self.address = address
        self._stream = stream
        self._client = client
        self._reader = FrameReader(stream)
        self._outbox = Outbox(stream)
        self._sending = trio.Lock()
        self._waiting: dict[int, Answer] = {}
        self._next_id = 0
        self._broken: HightideError | None = None

    def __repr__(self) -> str:
        state = "broken" if self._broken else "open"
        return f"<Connection {self.address} {state} waiting={len(self._waiting)}>"

    @property
    def stream(self) -> Stream:
        """What it runs on."""
        return self._stream

    @property
    def common_name(self) -> str:
        """Whom the other end has proven to be; empty: nobody."""
        return self._stream.common_name

    @property
    def is_open(self) -> bool:
        """Whether a call can still succeed."""
        return self._broken is None

    @property
    def is_sending(self) -> bool:
        """Whether a request would have to wait for others to leave."""
        return self._sending.locked() or not self._outbox.is_empty

    async def begin(
        self, request: Message, attachments: Sequence[Buffer] = (), *, timeout_s: float = 30.0
    ) -> Answer:
        """Send a request, once those before it have left; its answer is waited for later. Requests
        leave in the order of calls, and whole: one that is cancelled may have left or not."""
        if not self.is_sending:
            await trio.lowlevel.checkpoint_if_cancelled()
            answer = self.begin_now(request, attachments, timeout_s=timeout_s)
        else:
            async with self._sending:
                await self._outbox.wait_empty()
                answer = self.begin_now(request, attachments, timeout_s=timeout_s)
        is_sent = False
        try:
            await self._outbox.wait_empty()
            is_sent = True
        finally:
            if not is_sent:
                self.forget(answer.id)
        if self._broken is not None:
            raise self._broken
        return answer

    @ki_protected
    def begin_now(
        self,
        request: Message,
        attachments: Sequence[Buffer] = (),
        *,
        timeout_s: float,
        arrived: Callable[[], None] | None = None,
    ) -> Answer:
        """The same without waiting; `arrived` is called when `Answer.take` has something to say."""
        if self._broken is not None:
            raise self._broken
        self._next_id += 1
        api = API_BY_REQUEST[type(request)]
        answer = Answer(self, self._next_id, api.response, trio.current_time(), arrived)
        buffers = wire.encode_request(
            request, request_id=self._next_id, client=self._client, attachments=attachments
        )
        self._waiting[answer.id] = answer
        try:
            self._outbox.put(buffers, timeout_s=timeout_s)
        except _TRANSPORT_ERRORS as error:
            self.forget(answer.id)
            self._break(self._unreachable(f"sending failed: {error}"))
            raise self._broken_by() from error
        return answer

    async def call(
        self, request: Message, attachments: Sequence[Buffer] = (), *, timeout_s: float = 30.0
    ) -> tuple[Any, list[memoryview]]:
        """Send a request and wait for its response and attachments; errors as `Answer.wait`."""
        answer = await self.begin(request, attachments, timeout_s=timeout_s)
        try:
            return await answer.wait(timeout_s)
        finally:
            self.forget(answer.id)

    def forget(self, request_id: int) -> None:
        """Drop interest in an answer; it is ignored when it comes."""
        self._waiting.pop(request_id, None)

    async def run(self, beside: Beside | None = None) -> None:
        """Read answers, and send what does not leave at once, until the stream ends or breaks; do
        something `beside` it as long."""
        async with trio.open_nursery() as nursery:
            if beside is not None:
                start(nursery, beside, self)
            start(nursery, self._send_the_rest, nursery.cancel_scope)
            await self._read_answers()
            nursery.cancel_scope.cancel()

    async def _send_the_rest(self, life: trio.CancelScope) -> None:
        try:
            await self._outbox.run()
        except SendTimeout as late:
            self._break(self._unreachable(f"sending took more than {late}"))
        except _TRANSPORT_ERRORS as error:
            self._break(self._unreachable(f"sending failed: {error}"))
        life.cancel()

    async def _read_answers(self) -> None:
        try:
            while (body := await self._reader.next_frame()) is not None:
                frame = wire.split_frame(body, message_limit=wire.RESPONSE_MESSAGE_BYTES_MAX)
                envelope = wire.decode_response_envelope(frame)
                answer = self._waiting.pop(envelope.id, None)
                if answer is not None:
                    answer.arrive(frame, None)
                elif envelope.error is not None and envelope.id < 0:
                    raise RemoteProtocolError(f"{envelope.error.code}: {envelope.error.message}")
            self._break(self._unreachable("the broker closed the connection"))
        except AuthenticationFailed as error:
            error.broker = self.address
            self._break(error)
        except RemoteProtocolError as error:
            self._break(RemoteProtocolError(f"{self.address}: {error}"))
        except _TRANSPORT_ERRORS as error:
            self._break(self._unreachable(f"connection broke: {error}"))

    async def aclose(self) -> None:
        """Close; calls that still wait fail."""
        self._break(self._unreachable("the connection was closed"))
        await self._stream.aclose()

    def _unreachable(self, what: str) -> BrokerUnreachable:
        return BrokerUnreachable(what, broker=self.address)

    def _broken_by(self) -> HightideError:
        assert self._broken is not None, "it has just been broken"
        return self._broken

    def _break(self, error: HightideError) -> None:
        if self._broken is None:
            self._broken = error
        self._outbox.drop()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.arrive(None, self._broken)


async def connect(
    network: Network, host: str, port: int, *, client: str, timeout_s: float = CONNECT_TIMEOUT_S
) -> Connection:
    """A connection whose reader is not running yet; raises `BrokerUnreachable`."""
    address = f"{host}:{port}"
    stream: Stream | None = None
    failure = BrokerUnreachable(f"no connection within {round(timeout_s, 2):g} s", broker=address)
    with trio.move_on_after(timeout_s):
        try:
            stream = await network.connect(host, port)
        except AuthenticationFailed as error:
            error.broker = address
            raise
        except OSError as error:
            failure = no_connection(error, address)
    if stream is None:
        raise failure
    return Connection(stream, address=address, client=client)


@asynccontextmanager
async def open_connection(
    network: Network, host: str, port: int, *, client: str = "hightide"
) -> AsyncIterator[Connection]:
    """A connection with its reader running, closed at the end of the block."""
    connection = await connect(network, host, port, client=client)
    async with open_background() as nursery:
        start(nursery, connection.run)
        try:
            yield connection
        finally:
            await connection.aclose()
