"""One connection: frames in, handlers begun in order of arrival, answers out as they complete.

Requests of one connection are begun in its reader's task, so that their order is the order of their
effects. Most are answered in the same stretch, and what the socket takes is sent there. Those that
wait for offsets (acks=all, an empty fetch) are parked without a task, and answered at the end of
the stretch that brings what they wait for; others finish in a task of their own.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio
from msgspec.structs import replace as exchanged

from hightide.net.background import Bell, let_go, single
from hightide.net.clock import loop_clock
from hightide.net.connection import FrameReader
from hightide.net.outbox import FilePart
from hightide.net.ports import Stream
from hightide.protocol import messages as m
from hightide.protocol.apis import API_BY_REQUEST, Api
from hightide.protocol.codecs import Steps
from hightide.protocol.errors import AuthenticationFailed, Refused, RemoteProtocolError
from hightide.protocol.records import Buffer
from hightide.protocol.strangers import http_refusal, speaks
from hightide_broker.core.cluster.rates import in_ms
from hightide_broker.ports import DiskError, NodeMustStop
from hightide_broker.runtime.base.agenda import Act
from hightide_broker.runtime.base.call import (
    Call,
    CloseConnection,
    Later,
    Outcome,
    Parked,
    Peer,
    Reply,
)
from hightide_broker.runtime.base.slices import in_slices
from hightide_broker.runtime.server.answers import Answers
from hightide_broker.runtime.server.budget import Hold
from hightide_broker.runtime.server.counts import LEFT, LOCAL, REMOTE, reason_of
from hightide_broker.runtime.server.door import Door
from hightide_broker.runtime.server.login import LoginOver, Session
from hightide_broker.runtime.server.terms import Terms
from hightide_broker.runtime.server.throttle import quota_of, without_records
from hightide_broker.runtime.server.tongue import (
    START_BYTES,
    Errand,
    Misheard,
    Parts,
    Question,
    Ticket,
    Tongue,
    Unanswerable,
)

log = logging.getLogger("hightide.server")

SASL = ("sasl_handshake", "sasl_authenticate")


class ServedConnection:
    """A connection that was admitted."""

    def __init__(
        self,
        terms: Terms,
        stream: Stream,
        peer: Peer,
        door: Door,
        session: Session | None = None,
    ) -> None:
        """`session`: the login of its user, where users log in."""
        self._now = loop_clock()
        self._session = session
        self._door = door
        self._tongue = None if session is None else session.tongue
        """What is spoken here; None: nothing has been said."""
        self._may_be_followed = False
        """Whether what was begun last may have another one of its kind behind it."""
        self._terms = terms
        self._peer = peer
        self._stream = stream
        self._reader = FrameReader(stream, frame_limit=terms.frame_limit)
        self._answers = Answers(terms, stream, self._send_later)
        self._nursery: trio.Nursery
        self._reading = trio.CancelScope()
        self._may_be_stopped = True
        """Whether the reader waits for a request, and not for the rest of one."""
        self._stopped = False
        self._at_work = 0
        """Requests that were begun and whose answers have not left."""
        self._answered = Bell()
        self._parked: dict[Parked, str] = {}
        """By the name of its API."""
        self._heard_at = self._now()
        self._throttled: Call[Any] | None = None
        """What was asked last that a quota may be about, without what came with it."""
        self._waits: list[tuple[float, float]] = []
        """Since then, for quotas: from when until when."""
        self._failure: Exception | None = None
        self.ended_by = "left"
        """Of `counts.REASONS`, once it has ended."""

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
                with self._reading:
                    await self._read_requests()
                if self._stopped:
                    self.ended_by = "stopping"
                    await self._finish_work()
                self._nursery.cancel_scope.cancel()
            if self._failure is not None:
                raise self._failure
        except* (RemoteProtocolError, CloseConnection, AuthenticationFailed) as group:
            self.ended_by = reason_of(error := single(group))
            self._terms.log.write(logging.INFO, "closed %s: %s", self._stream.peer, error)
            if isinstance(error, LoginOver):
                self._terms.login_lines.over(self._peer, str(error), self._stream.peer)
            let_go(group)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as group:
            log.debug("lost %s: %s", self._stream.peer, single(group))
            let_go(group)
        except* (AssertionError, NodeMustStop):
            raise
        except* Exception:
            self.ended_by = "bug"
            met = "a request of %s met a bug; its connection was closed"
            log.exception(met, self._stream.peer, extra={"event": "connection.bug"})
        finally:
            self._idle.take_back()
            for parked in self._parked:
                parked.drop()
            self._answers.drop()

    async def _read_requests(self) -> None:
        while not self._stopped:
            length = await self._next_length()
            if length is None:
                # What was answered is still wanted: an end can be closed in one direction only.
                await self._answers.wait_empty()
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
                self._heard_at = self._now()

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
        since = self._now()
        await self._terms.muted.wait(self._peer.principal, held, lambda: self._due_s)
        self._waits.append((since, self._now()))
        self._may_be_stopped = before

    async def _next_length(self) -> int | None:
        if self._reader.has_more:
            await trio.lowlevel.checkpoint()  # it is the turn of other connections
        try:
            return await self._reader.next_length()
        except RemoteProtocolError as error:
            tongue = self._tongue or self._terms.tongues.native
            is_http = speaks(self._reader.unread) == "HTTP"
            self._answers.send([http_refusal()] if is_http else tongue.farewell(str(error)))
            await self._answers.wait_empty()
            raise

    def _look_if_idle(self) -> None:
        """Have the reader end if nothing was said for too long, and nothing is at work."""
        now, idle_s = self._now(), self._terms.idle_s
        is_idle = self._may_be_stopped and not (self._at_work or self._due_s)
        heard_at = self._heard_at if is_idle else now
        if heard_at + idle_s <= now:
            log.info("closed %s: nothing was said for connections.max.idle.ms", self._stream.peer)
            self.ended_by = "idle"
            self._reading.cancel()
        else:
            self._idle = self._terms.agenda.at(heard_at + idle_s, self._look_if_idle)

    async def _one_request(self, length: int, hold: Hold) -> None:
        body = self._reader.body_now(length)
        if body is None:
            body = await self._arriving(length, hold)
        else:
            await self._wait_for_turn(body)
        while self._at_work >= self._terms.in_flight_max:
            await self._answered.wait()
        try:
            heard = await in_slices(self._hearing(body).hearing(body))
        except Misheard as error:
            self._answers.send(error.said)
            await self._answers.wait_empty()
            raise
        if isinstance(heard, Unanswerable):
            return self._refuse(heard.ticket, heard.refusal)
        if isinstance(heard, Question):
            await self._begin_question(heard, length)
        else:
            self._work_begins(heard.ticket)
            self._start_soon(self._run_errand, heard)
        # Who does not take answers is not asked on: each may hold megabytes and descriptors.
        await self._answers.wait_empty()

    async def _arriving(self, length: int, hold: Hold) -> bytearray:
        """A request of which a part has come at most: no room is taken before it is its turn, and
        waiting for that is no time of its sender's."""
        start = body = None
        began, receive_s = self._now(), self._terms.receive_s
        with trio.move_on_after(receive_s):
            start = await self._reader.start_of_body(min(length, START_BYTES))
        left_s = receive_s - (self._now() - began)
        if start:
            self._hearing(start).check_length(length, start)
            await self._wait_for_turn(start)
        if start is not None:
            with hold.arriving(), trio.move_on_after(left_s):
                body = await self._reader.read_body(length, hold.admit)
        if body is None:
            raise CloseConnection(
                f"a frame of {length} bytes did not arrive within request.timeout.ms",
                reason="slow",
            )
        return body

    def _hearing(self, start: bytes | bytearray) -> Tongue:
        """What is spoken here: the start of the first request tells."""
        if self._tongue is None:
            self._tongue = self._terms.tongues.of(start, by_node_door=self._door.of_nodes)
        return self._tongue

    async def _wait_for_turn(self, start: bytes | bytearray) -> None:
        """Where answers leave in order, one request is at work at a time, as in Kafka, so that none
        has to be kept for its turn; but for some behind one of their kind, whose answers are
        small."""
        tongue = self._hearing(start)
        if not tongue.in_order:
            return
        may_follow = tongue.may_follow(start)
        while self._at_work and not (may_follow and self._may_be_followed):
            await self._answered.wait()
        self._may_be_followed = may_follow

    async def _begin_question(self, heard: Question, length: int) -> None:
        begun_at = at = self._now()
        course = self._terms.counts.course_of(heard.request, self._reader.read_at)
        call = Call(
            heard.request, heard.attachments, self._peer, heard.client_id, at=at, course=course
        )
        if self._terms.throttle.is_on:
            call = await self._in_time(heard.api, call, length)
            self._terms.counts.throttled(call, self._waits)
            self._waits.clear()
            begun_at = self._now()
        else:
            self._throttled = None
        self._terms.counts.enters(call, LOCAL, begun_at)
        if heard.looks:
            call = await self._terms.handlers.look(heard.api, call)
        with self._terms.agenda.stretch():
            self._begin(heard.ticket, heard.api, call)

    def _begin(self, ticket: Ticket, api: Api, call: Call[Any]) -> None:
        """Begin a request, and answer it if nothing is to be waited for."""
        try:
            outcome = self._outcome(api, call)
        except Refused as refusal:
            self._terms.counts.answered(call, self._now(), refusal.code)
            self._refuse(ticket, refusal)
            if api.name in SASL and self._session is not None:
                told = (refusal.message, self._session.said, self._stream.peer)
                self._terms.login_lines.refused_again(self._door.name, self._peer, *told)
                raise CloseConnection(refusal.message, reason="login") from refusal
            return
        if outcome is None:
            self._terms.counts.answered(call, self._now())
            return
        self._work_begins(ticket)
        if isinstance(outcome, Reply):
            self._answer(ticket, outcome, call)
        elif callable(outcome):
            self._terms.counts.enters(call, REMOTE, self._now())
            self._start_soon(self._finish, ticket, outcome, call)
        else:
            self._terms.counts.enters(call, REMOTE, self._now())
            self._parked[outcome] = api.name
            outcome.begin(_Asker(self, ticket, outcome, call.begun()))

    def _work_begins(self, ticket: Ticket) -> None:
        self._at_work += 1
        if self._tongue is not None and self._tongue.in_order:
            self._answers.line_up(ticket)

    def _start_soon(self, work: Callable[..., Awaitable[None]], *about: object) -> None:
        self._nursery.start_soon(work, *about)

    def _send_later(self, work: Callable[[], Awaitable[None]]) -> None:
        if not self._nursery.cancel_scope.cancel_called:  # or it may be closed by now
            self._start_soon(work)

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
                answer = self._session.answer(call.request)
                if self._session.is_made:
                    lines = self._terms.login_lines
                    lines.came_again(self._door.name, self._peer, self._stream.peer)
                return Reply(answer)
            self._session.require_time()
        return self._terms.handlers.begin(api, call)

    def _refuse(self, ticket: Ticket, refusal: Refused) -> None:
        self._work_begins(ticket)
        self._send_refusal(ticket, refusal)

    def _send_refusal(self, ticket: Ticket, refusal: Refused) -> None:
        if (refusing := ticket.refusing(refusal)) is None:
            raise CloseConnection(f"{refusal.code}: {refusal.message}") from refusal
        self._frame(ticket, refusing, [])

    def _frame(
        self, ticket: Ticket, framing: Steps[Parts], parts: Parts, call: Call[Any] | None = None
    ) -> None:
        sent = partial(self._has_left, parts, call)
        if (rest := self._answers.frame(ticket, framing, sent, parts)) is not None:
            self._start_soon(rest)

    async def _finish(self, ticket: Ticket, later: Later, call: Call[Any]) -> None:
        try:
            reply = await later()
        except Refused as refusal:
            self._terms.counts.answered(call, self._now(), refusal.code)
            self._send_refusal(ticket, refusal)
        else:
            self._answer(ticket, reply, call)

    async def _run_errand(self, errand: Errand) -> None:
        async def ask(request: m.Message) -> Reply:
            return await self._asked(request, errand.client_id)

        try:
            parts = await errand.run(ask)
        except Refused as refusal:
            self._send_refusal(errand.ticket, refusal)
        else:
            self._answers.answer(errand.ticket, parts, self._has_left)

    async def _asked(self, request: m.Message, client_id: str) -> Reply:
        """Ask something for an errand. Raises `Refused`."""
        await trio.lowlevel.checkpoint()  # it may ask a thousand times
        call = Call(request, (), self._peer, client_id, at=self._now())
        try:
            with self._terms.agenda.stretch():
                outcome = self._outcome(API_BY_REQUEST[type(request)], call)
            reply = outcome if isinstance(outcome, Reply) else await _rest_of(outcome)
        except Refused as refusal:
            self._terms.counts.answered(call, self._now(), refusal.code)
            raise
        assert not reply.attachments, "errands bring no records"
        self._terms.counts.sent(call, self._now(), reply.body, ())
        return reply

    def answer_parked(self, ticket: Ticket, parked: Parked, reply: Reply, call: Call[Any]) -> None:
        self._parked.pop(parked, None)
        if self._session is not None:
            self._session.require_time()
        self._answer(ticket, reply, call)

    def waiting(self) -> Counter[str]:
        """Requests that wait for news, by API."""
        return Counter(self._parked.values())

    def end(self, failure: Exception) -> None:
        """Something failed for this connection, in somebody else's stretch."""
        self._failure = self._failure or failure
        self._nursery.cancel_scope.cancel()

    def _answer(self, ticket: Ticket, reply: Reply, call: Call[Any]) -> None:
        parts: Parts = []
        throttle = self._terms.throttle
        is_limited = throttle.is_on
        if is_limited and reply.attachments and throttle.brings_nothing(call):
            reply = without_records(reply)
        try:
            if (rest := ticket.rest(reply)) is not None:
                self._start_soon(self._finish, ticket, rest, call)
                return
            # In this stretch: from here on the segment may go, the descriptor stays.
            parts.extend(map(self._answers.open, reply.attachments))
            sizes = [*map(len, parts)]
            body = self._told(reply.body, call, sum(sizes)) if is_limited else reply.body
            self._terms.counts.sent(call, self._now(), body, sizes)
            framing = ticket.framing(body, parts)
        except BaseException as error:
            self._answers.close(parts)
            if isinstance(error, DiskError):
                raise OSError(str(error)) from error
            raise
        self._frame(ticket, framing, parts, call)

    def _told(self, body: m.Message, call: Call[Any], size: int) -> m.Message:
        """The answer, with how long nothing is read of who gets it, if a quota wants that."""
        throttle = self._terms.throttle
        if not isinstance(body, m.ProduceResponse | m.FetchResponse):
            return body
        throttle.charge(call, size)
        due_s = throttle.due_s(call)
        if not due_s:
            return body
        self._terms.counts.throttled_s[quota_of(call)] += due_s
        return exchanged(body, throttle_time_ms=in_ms(due_s))

    def _has_left(
        self, parts: Sequence[Buffer | FilePart] = (), call: Call[Any] | None = None
    ) -> None:
        """An answer was sent, or never will be."""
        if call is not None:
            self._terms.counts.enters(call, LEFT, self._now())
        self._answers.close(parts)
        self._at_work -= 1
        self._answered.ring()

    async def _finish_work(self) -> None:
        while self._at_work:
            await self._answered.wait()


async def _rest_of(outcome: Outcome) -> Reply:
    assert callable(outcome), "an errand's requests are answered at once, or in a task"
    return await outcome()


class _Asker:
    """Implements `call.Asker`: a request of a connection."""

    __slots__ = ("_call", "_connection", "_parked", "_ticket")

    def __init__(
        self, connection: ServedConnection, ticket: Ticket, parked: Parked, call: Call[Any]
    ) -> None:
        self._call = call
        self._connection = connection
        self._ticket = ticket
        self._parked = parked

    def answer(self, reply: Reply) -> None:
        def send() -> None:
            self._connection.answer_parked(self._ticket, self._parked, reply, self._call)

        self.work(send)

    def work(self, act: Act) -> None:
        try:
            act()
        except (AssertionError, NodeMustStop):
            raise
        except Exception as failure:
            self._connection.end(failure)
