"""News to a browser, as they come: server-sent events.

What a browser gets is the newest state, never a queue of old ones, so that one that reads slowly
costs nothing; one that does not read at all is closed. Events of the trace are numbered, so that a
browser that comes back goes on where it was, as far as they are still here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import trio
from starlette.types import Receive, Scope, Send

from hightide_console.sessions import Session
from hightide_console.timeline import event_view

KEEP_ALIVE_S = 15.0
SEND_S = 20.0
"""A browser that takes nothing for so long is gone, or might as well be."""
EVENTS_AT_ONCE = 500
STREAMS_MAX = 200


class Streams:
    """How many there are."""

    def __init__(self) -> None:
        self.open = 0


class Stream:
    """The answer to one browser; an ASGI application."""

    def __init__(self, streams: Streams, session: Session, topic: str, last_event: str) -> None:
        """`last_event`: the id of the last one that this browser has, if it was here before."""
        self._streams = streams
        self._session = session
        self._eye = eye = session.eye
        self._topic = topic
        self._next: int | None = None
        """The number of the next event; None: it has none yet."""
        life, _, number = last_event.partition(".")
        if life == eye.life and number.isdecimal() and int(number) <= eye.history.count:
            self._next = int(number)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        if self._streams.open >= STREAMS_MAX:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b"too many pages are open\n"})
            return
        self._streams.open += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
                nursery.start_soon(_until_ended, self._session, nursery.cancel_scope)
                with self._eye.watched(self._topic):
                    await self._tell(send)
                nursery.cancel_scope.cancel()
        finally:
            self._streams.open -= 1

    async def _tell(self, send: Send) -> None:
        """Until this browser takes nothing any more."""
        seen = -1
        while True:
            said = b": nothing new\n\n"
            with trio.move_on_after(KEEP_ALIVE_S):
                await self._eye.news(seen)
                seen = self._eye.version
                said = "".join(self._news()).encode()
            self._session.used_at = trio.current_time()
            with trio.move_on_after(SEND_S) as sending:
                await send({"type": "http.response.body", "body": said, "more_body": True})
            if sending.cancelled_caught:
                return

    def _news(self) -> Iterator[str]:
        eye = self._eye
        state = {
            "cluster": eye.cluster,
            "topic": eye.topics.get(self._topic) if self._topic else None,
            "untraced": eye.is_untraced,
        }
        events = self._events()
        number = f"{eye.life}.{self._next}"
        if events:
            yield _event("trace", events, number)
        yield _event("state", state, number)

    def _events(self) -> list[dict[str, object]]:
        """What happened since, the newest if there is too much of it."""
        history = self._eye.history
        if self._next is None:
            found = history.to_begin_with(self._topic)
        else:
            found = history.since(self._next, EVENTS_AT_ONCE)
        self._next = history.count
        return [{**event_view(told), "seen": number} for number, told in found]


def _event(name: str, data: object, number: str) -> str:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


async def _until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _until_ended(session: Session, scope: trio.CancelScope) -> None:
    await session.ended.wait()
    scope.cancel()
