"""A node's small HTTP port: its metrics, whether it is alive, and whether it is ready.

Nothing here can be changed, and nothing that is asked holds the event loop: a page is written in
slices, others have their turn between them. Who speaks no HTTP, too much, or too slowly is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from time import perf_counter
from typing import Any, NamedTuple

import h11
import trio

from hightide.net.outbox import send_all
from hightide.net.ports import Stream
from hightide_broker.runtime.base.sparing import SparingLog

CONNECTIONS_MAX = 32
"""At a time; who comes then is closed at once."""
REQUEST_S = 10.0
"""So long a request may take to arrive, the next one of a connection too."""
ANSWER_S = 60.0
"""So long a page may take to leave."""
HEAD_BYTES_MAX = 16 << 10
SLICE_LINES = 250
SLICE_S = 0.002
"""Lines that are made, and how long that may take, before it is the turn of others."""
READ_BYTES = 16 << 10


class Answer(NamedTuple):
    """What is said to a request."""

    status: int
    content_type: str
    lines: Iterable[str]


Respond = Callable[[str, str], Answer]
"""The answer to a target and an Accept header."""


class Port:
    """Serves connections, a task each."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._open: dict[_Conversation, None] = {}
        """The first come first."""
        self._log = SparingLog(logging.getLogger("hightide.metrics"))

    async def serve(self, stream: Stream) -> None:
        """Serve one connection until it ends; never raises for what the peer does."""
        if len(self._open) >= CONNECTIONS_MAX and not self._make_way():
            await stream.aclose()
            return
        conversation = _Conversation(stream, self._respond)
        self._open[conversation] = None
        try:
            with conversation.waiting:
                await conversation.run()
        except h11.RemoteProtocolError as error:
            self._log.write(logging.INFO, "closed %s: %s", stream.peer, error)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError):
            pass  # it left, or took too long
        finally:
            self._open.pop(conversation, None)
            await stream.aclose()

    def _make_way(self) -> bool:
        """Who says nothing keeps nobody out: of those, who has been there longest goes; whether
        there was one."""
        silent = next((each for each in self._open if each.is_silent), None)
        if silent is not None:
            del self._open[silent]
            silent.waiting.cancel()
        return silent is not None


class _Conversation:
    """One connection: requests, one after the other."""

    def __init__(self, stream: Stream, respond: Respond) -> None:
        self.waiting = trio.CancelScope()
        """Cancelled where its place is needed."""
        self.is_silent = True
        """Whether it has a request to send still."""
        self._stream = stream
        self._respond = respond
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)

    async def run(self) -> None:
        try:
            while True:
                self.is_silent = True
                with trio.fail_after(REQUEST_S):
                    request = await self._request()
                self.is_silent = False
                if request is None:
                    return
                with trio.fail_after(ANSWER_S):
                    await self._answer(request)
                if self._http.our_state is h11.MUST_CLOSE:
                    return
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                with trio.move_on_after(REQUEST_S):
                    await self._say(Answer(error.error_status_hint, "text/plain", [f"{error}\n"]))
            raise

    async def _request(self) -> h11.Request | None:
        """The next request with all of its body, which nobody wants; None: there is none."""
        request = None
        buffer = memoryview(bytearray(READ_BYTES))
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                count = await self._stream.receive_into(buffer)
                self._http.receive_data(bytes(buffer[:count]))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("a body, where nothing can be sent", 413)
            elif isinstance(event, h11.EndOfMessage):
                return request
            else:
                return None

    async def _answer(self, request: h11.Request) -> None:
        if request.method not in (b"GET", b"HEAD"):
            await self._say(Answer(405, "text/plain", ["GET or HEAD\n"]), [("Allow", "GET, HEAD")])
            return
        accept = dict(request.headers).get(b"accept", b"").decode("latin-1")
        target = request.target.decode("latin-1")
        answer = self._respond(target, accept)
        await self._say(answer if request.method == b"GET" else answer._replace(lines=()))

    async def _say(self, answer: Answer, headers: Iterable[tuple[str, str]] = ()) -> None:
        told = [("Content-Type", answer.content_type), ("Cache-Control", "no-store"), *headers]
        reason = HTTPStatus(answer.status).phrase
        await self._send(h11.Response(status_code=answer.status, headers=told, reason=reason))
        lines: list[str] = []
        until = perf_counter() + SLICE_S
        for line in answer.lines:
            lines.append(line)
            if len(lines) == SLICE_LINES or perf_counter() > until:
                await self._send(h11.Data(data="".join(lines).encode()))
                await trio.lowlevel.checkpoint()
                lines.clear()
                until = perf_counter() + SLICE_S
        if lines:
            await self._send(h11.Data(data="".join(lines).encode()))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: Any) -> None:
        if data := self._http.send(event):
            await send_all(self._stream, [data])
