"""One connection: frames in, handlers begun in order of arrival, answers out as they complete.

Requests of one connection are begun in its reader's task, so that their order is the order of their
effects. Most are answered in the same stretch, and what the socket takes is sent there. Those that
wait for offsets (acks=all, an empty fetch) are parked without a task, and answered at the end of
the stretch that brings what they wait for; others finish in a task of their own.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import trio
from msgspec.structs import replace as exchanged

from hightide.net.background import let_go, single
from hightide.net.connection import FrameReader
from hightide.net.outbox import FilePart, Outbox, SendTimeout
from hightide.net.ports import Stream
from hightide.protocol import messages as m
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_NAME, Api
from hightide.protocol.bins import bin_header
from hightide.protocol.errors import (
    AuthenticationFailed,
    ErrorCode,
    Refused,
    RemoteProtocolError,
)
from hightide.protocol.messages import Message, RequestEnvelope
from hightide.protocol.records import Buffer
from hightide.protocol.strangers import http_refusal, speaks, speaks_kafka
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.ports import DiskError, NodeMustStop
from hightide_broker.runtime.base.agenda import Act, Agenda
from hightide_broker.runtime.base.call import (
    Call,
    CloseConnection,
    Later,
    Outcome,
    Parked,
    Peer,
    Reply,
)
from hightide_broker.runtime.base.sparing import SparingLog
from hightide_broker.runtime.server.budget import ByteBudget, Hold
from hightide_broker.runtime.server.counts import LEFT, LOCAL, REMOTE, Counts
from hightide_broker.runtime.server.login import Session
from hightide_broker.runtime.server.muted import MutedRoom
from hightide_broker.runtime.server.throttle import Throttle, quota_of
from hightide_broker.storage.segment import FileSlice

log = logging.getLogger("hightide.server")

RECEIVE_BYTES_MAX = 256 << 20
"""Bytes of requests that may be on their way in at a time, over all connections."""
SASL = ("sasl_handshake", "sasl_authenticate")
SENDFILE_BYTES_MIN = 32 << 10
"""Below this, reading is cheaper than `sendfile`."""
CLIENT_BYTES_PER_S_MIN = 256 << 10
"""A client that takes a large answer slower than this, beyond write.timeout.ms, is dropped."""


class Handlers(Protocol):
    """Who answers requests."""

    def begin(self, api: Api, call: Call[Any]) -> Outcome:
        """Begin a request, in order. Raises `Refused` or `CloseConnection`."""
        ...

    def allowed_bytes(self, api: Api, call: Call[Any]) -> int:
        """How much of what came with a request its sender may send: what is refused is no debt of
        those by whose name it came."""
        ...


class Terms:
    """What holds for every connection of a node."""

    def __init__(
        self,
        handlers: Handlers,
        config: BrokerConfig,
        agenda: Agenda,
        throttle: Throttle,
        counts: Counts,
        *,
        files_max: int,
    ) -> None:
        """`files_max`: how many files may be open to be sent at a time."""
        self.handlers = handlers
        self.throttle = throttle
        self.counts = counts
        self.agenda = agenda
        self.frame_limit = config[keys.SOCKET_REQUEST_MAX_BYTES]
        self.idle_s = config.seconds(keys.CONNECTIONS_MAX_IDLE_MS)
        self.write_s = config.seconds(keys.WRITE_TIMEOUT_MS)
        self.receive_s = config.seconds(keys.REQUEST_TIMEOUT_MS)
        self.in_flight_max = config[keys.MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION]
        self.budget = ByteBudget(max(RECEIVE_BYTES_MAX, self.frame_limit))
        self.muted = MutedRoom()
        self.files_left = files_max
        self.log = SparingLog(log)


def _nothing() -> None:
    """Done when an answer has left of which nobody wants to hear that."""


class ServedConnection:
    """A connection that was admitted."""

    def __init__(
        self, terms: Terms, stream: Stream, peer: Peer, session: Session | None = None
    ) -> None:
        """`session`: the login of its user, where users log in."""
        self._session = session
        self._terms = terms
        self._peer = peer
        self._stream = stream
        self._reader = FrameReader(stream, frame_limit=terms.frame_limit)
        self._outbox = Outbox(stream)
        self._nursery: trio.Nursery | None = None
        self._reading = trio.CancelScope()
        self._may_be_stopped = True
        """Whether the reader waits for a request, and not for the rest of one."""
        self._stopped = False
        self._at_work = 0
        """Requests that were begun and whose answers have not left."""
        self._answered = trio.Event()
        self._parked: dict[Parked, str] = {}
        """By the name of its API."""
        self._heard_at = trio.current_time()
        self._throttled: Call[Any] | None = None
        """What was asked last that a quota may be about, without what came with it."""
        self._failure: Exception | None = None

    def stop_reading(self) -> None:
        """Take no more requests; those at work are finished."""
        self._stopped = True
        if self._may_be_stopped:
            self._reading.cancel()

    async def run(self) -> None:
        """Serve it until it ends; never raises for what the peer does."""
        self._look_if_idle()
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._send_the_rest)
                with self._reading:
                    await self._read_requests()
                if self._stopped:
                    await self._finish_work()
                self._nursery.cancel_scope.cancel()
            if self._failure is not None:
                raise self._failure
        except* (RemoteProtocolError, CloseConnection, AuthenticationFailed) as group:
            self._terms.log.write(logging.INFO, "closed %s: %s", self._stream.peer, single(group))
            let_go(group)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as group:
            log.debug("lost %s: %s", self._stream.peer, single(group))
            let_go(group)
        except* (AssertionError, NodeMustStop):
            raise
        except* Exception:
            log.exception("a request of %s met a bug; its connection was closed", self._stream.peer)
        finally:
            self._idle.take_back()
            for parked in self._parked:
                parked.drop()
            self._outbox.drop()

    async def _read_requests(self) -> None:
        while not self._stopped:
            length = await self._next_length()
            if length is None:
                # What was answered is still wanted: an end can be closed in one direction only.
                await self._outbox.wait_empty()
                return
            if self._throttled and isinstance(self._throttled.request, m.ProduceRequest):
                await self._wait_for_quota(0)  # and take no room for what comes next
            self._may_be_stopped = False
            hold = Hold(self._terms.budget, length, self._peer.principal)
            try:
                await self._one_request(length, hold)
            finally:
                hold.release()
                self._may_be_stopped = True
                self._heard_at = trio.current_time()

    @property
    def _due_s(self) -> float:
        """How long it has to wait for a quota, by what it asked last."""
        return self._terms.throttle.due_s(self._throttled) if self._throttled else 0.0

    async def _wait_for_quota(self, held: int) -> None:
        """Do nothing for who is ahead of its quota, while so many bytes that it sent are `held`:
        what came is taken in its turn, also from who did not stay. Raises `CloseConnection` if
        there is no room for them."""
        if not self._due_s:
            return
        before, self._may_be_stopped = self._may_be_stopped, True
        await self._terms.muted.wait(self._peer.principal, held, lambda: self._due_s)
        self._may_be_stopped = before

    async def _next_length(self) -> int | None:
        if self._reader.has_more:
            await trio.lowlevel.checkpoint()  # it is the turn of other connections
        try:
            return await self._reader.next_length()
        except RemoteProtocolError as error:
            if speaks(self._reader.unread) == "HTTP":
                self._send([http_refusal()])
            else:
                self._protest(-1, ErrorCode.CORRUPT_FRAME, str(error))
            await self._outbox.wait_empty()
            raise

    def _look_if_idle(self) -> None:
        """Have the reader end if nothing was said for too long, and nothing is at work."""
        now, idle_s = trio.current_time(), self._terms.idle_s
        is_idle = self._may_be_stopped and not (self._at_work or self._due_s)
        heard_at = self._heard_at if is_idle else now
        if heard_at + idle_s <= now:
            log.info("closed %s: nothing was said for connections.max.idle.ms", self._stream.peer)
            self._reading.cancel()
        else:
            self._idle = self._terms.agenda.at(heard_at + idle_s, self._look_if_idle)

    async def _one_request(self, length: int, hold: Hold) -> None:
        body = self._reader.body_now(length)
        if body is None:
            with hold.arriving(), trio.move_on_after(self._terms.receive_s):
                body = await self._reader.read_body(length, hold.admit)
        if body is None:
            raise CloseConnection(
                f"a frame of {length} bytes did not arrive within request.timeout.ms"
            )
        while self._at_work >= self._terms.in_flight_max:
            await self._answered.wait()
        request_id = -1
        try:
            frame = wire.split_frame(body, message_limit=wire.MESSAGE_BYTES_MAX)
            envelope = wire.decode_request_envelope(frame)
            request_id = envelope.id
            api, request = self._decode(envelope)
        except RemoteProtocolError as error:
            self._protest(request_id, ErrorCode.INVALID_REQUEST, str(error))
            await self._outbox.wait_empty()
            if speaks_kafka(body):
                raise RemoteProtocolError(
                    "it speaks Kafka's own protocol, and this port hightide's: msgpack over TCP"
                ) from error
            raise
        except Refused as refusal:
            self._refuse(request_id, refusal)
            return
        now = trio.current_time()
        course = self._terms.counts.course_of(request, self._reader.read_at)
        call = Call(request, frame.attachments, self._peer, envelope.client, at=now, course=course)
        call = await self._in_time(api, call, length)
        with self._terms.agenda.stretch():
            self._begin(request_id, api, call)
        # Who does not take answers is not asked on: each may hold megabytes and descriptors.
        await self._outbox.wait_empty()

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

    def _begin(self, request_id: int, api: Api, call: Call[Any]) -> None:
        """Begin a request, and answer it if nothing is to be waited for."""
        self._terms.counts.enters(call, LOCAL)
        try:
            outcome = self._outcome(api, call)
        except Refused as refusal:
            self._terms.counts.answered(call, refusal.code)
            self._refuse(request_id, refusal)
            if api.name in SASL and self._session is not None:
                raise CloseConnection(refusal.message) from refusal
            return
        if outcome is None:
            self._terms.counts.answered(call)
            return
        self._at_work += 1
        if isinstance(outcome, Reply):
            self._answer(request_id, outcome, call)
        elif callable(outcome):
            assert self._nursery is not None, "requests are read inside of it"
            self._terms.counts.enters(call, REMOTE)
            self._nursery.start_soon(self._finish, request_id, outcome, call)
        else:
            self._parked[outcome] = api.name
            self._terms.counts.enters(call, REMOTE)
            outcome.begin(_Asker(self, request_id, outcome, call))

    async def _in_time(self, api: Api, call: Call[Any], held: int) -> Call[Any]:
        """The request, which holds so many bytes, when a quota has it begin, as far as one has it
        ask."""
        request, throttle = call.request, self._terms.throttle
        if isinstance(request, m.ProduceRequest | m.FetchRequest):
            self._throttled = Call(request, (), call.peer, call.client_id)
            await self._wait_for_quota(held)  # for what came by others, or is answered yet
            if call.attachments and throttle.is_limited(call):
                throttle.charge(call, self._terms.handlers.allowed_bytes(api, call))
        most = throttle.bytes_max(call)
        if most is None or request.max_bytes <= most:
            return call
        return call.asking(exchanged(request, max_bytes=most))

    def _outcome(self, api: Api, call: Call[Any]) -> Outcome:
        if self._session is not None:
            if api.name in SASL:
                return Reply(self._session.answer(call.request))
            if self._session.is_over:
                raise CloseConnection("it did not log in again (connections.max.reauth.ms)")
        return self._terms.handlers.begin(api, call)

    def _refuse(self, request_id: int, refusal: Refused) -> None:
        self._at_work += 1
        self._protest(request_id, refusal.code, refusal.message, self._has_left)

    async def _finish(self, request_id: int, later: Later, call: Call[Any]) -> None:
        try:
            reply = await later()
        except Refused as refusal:
            self._terms.counts.answered(call, refusal.code)
            self._protest(request_id, refusal.code, refusal.message, self._has_left)
        else:
            self._answer(request_id, reply, call)

    def answer_parked(self, request_id: int, parked: Parked, reply: Reply, call: Call[Any]) -> None:
        self._parked.pop(parked, None)
        if self._session is not None and self._session.is_over:
            raise CloseConnection("it did not log in again (connections.max.reauth.ms)")
        self._answer(request_id, reply, call)

    def waiting(self) -> Counter[str]:
        """Requests that wait for news, by API."""
        return Counter(self._parked.values())

    def end(self, failure: Exception) -> None:
        """Something failed for this connection, in somebody else's stretch."""
        self._failure = self._failure or failure
        assert self._nursery is not None, "requests are read inside of it"
        self._nursery.cancel_scope.cancel()

    def _protest(
        self, request_id: int, code: ErrorCode, message: str, sent: Callable[[], None] = _nothing
    ) -> None:
        payload = wire.encode_response(None, request_id=request_id, error=code, message=message)
        self._send(wire.frame_buffers(payload, ()), sent)

    def _answer(self, request_id: int, reply: Reply, call: Call[Any]) -> None:
        parts: list[Buffer | FilePart] = []
        try:
            # In this stretch: from here on the segment may go, the descriptor stays.
            parts.extend(map(self._open, reply.attachments))
            sizes = [part.size if isinstance(part, FilePart) else len(part) for part in parts]
            body = self._told(reply.body, call, sum(sizes))
            self._terms.counts.sent(call, body, sizes)
            payload = wire.encode_response(body, request_id=request_id)
            message: list[Buffer | FilePart] = [wire.frame_head(payload, sizes)]
            for size, part in zip(sizes, parts, strict=True):
                message += (bin_header(size), part)
        except BaseException as error:
            self._close(parts)
            if isinstance(error, DiskError):
                raise OSError(str(error)) from error
            raise
        self._send(message, partial(self._has_left, parts, call))

    def _told(self, body: Message, call: Call[Any], size: int) -> Message:
        """The answer, with how long nothing is read of who gets it, if a quota wants that."""
        if not isinstance(body, m.ProduceResponse | m.FetchResponse):
            return body
        self._terms.throttle.charge(call, size)
        due_s = self._terms.throttle.due_s(call)
        if not due_s:
            return body
        self._terms.counts.throttled_s[quota_of(call)] += due_s
        return exchanged(body, throttle_time_ms=math.ceil(due_s * 1000))

    def _open(self, attachment: FileSlice | Buffer) -> Buffer | FilePart:
        if not isinstance(attachment, FileSlice):
            return attachment
        is_large = attachment.size >= SENDFILE_BYTES_MIN
        if is_large and self._stream.can_send_file and self._terms.files_left:
            # One of its own: the segment may be deleted while it is sent.
            descriptor = attachment.file.duplicate_descriptor()
            if descriptor is not None:
                self._terms.files_left -= 1
                return FilePart(descriptor, attachment.position, attachment.size)
        data = attachment.read()
        if len(data) != attachment.size:
            raise OSError(f"{attachment.file.path} shrank while it was being read")
        return data

    def _has_left(
        self, parts: Sequence[Buffer | FilePart] = (), call: Call[Any] | None = None
    ) -> None:
        """An answer was sent, or never will be."""
        if call is not None:
            self._terms.counts.enters(call, LEFT)
        self._close(parts)
        self._at_work -= 1
        answered, self._answered = self._answered, trio.Event()
        answered.set()

    def _close(self, parts: Iterable[Buffer | FilePart]) -> None:
        for part in parts:
            if isinstance(part, FilePart):
                os.close(part.descriptor)
                self._terms.files_left += 1

    def _send(
        self, parts: Sequence[Buffer | FilePart], sent: Callable[[], None] = _nothing
    ) -> None:
        total = sum(part.size if isinstance(part, FilePart) else len(part) for part in parts)
        timeout_s = self._terms.write_s + total / CLIENT_BYTES_PER_S_MIN
        self._outbox.put(parts, timeout_s=timeout_s, sent=sent)

    async def _send_the_rest(self) -> None:
        try:
            await self._outbox.run()
        except SendTimeout as late:
            raise CloseConnection(
                f"an answer was not taken within {late} (write.timeout.ms)"
            ) from late

    async def _finish_work(self) -> None:
        while self._at_work:
            await self._answered.wait()


class _Asker:
    """Implements `call.Asker`: a request of a connection."""

    __slots__ = ("_call", "_connection", "_parked", "_request_id")

    def __init__(
        self, connection: ServedConnection, request_id: int, parked: Parked, call: Call[Any]
    ) -> None:
        self._call = call
        self._connection = connection
        self._request_id = request_id
        self._parked = parked

    def answer(self, reply: Reply) -> None:
        def send() -> None:
            self._connection.answer_parked(self._request_id, self._parked, reply, self._call)

        self.work(send)

    def work(self, act: Act) -> None:
        try:
            act()
        except (AssertionError, NodeMustStop):
            raise
        except Exception as failure:
            self._connection.end(failure)
