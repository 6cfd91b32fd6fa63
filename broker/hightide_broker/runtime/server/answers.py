"""What one connection is told: answers, each in its turn if they have turns, with what is attached
to them.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial

from hightide.net.outbox import FilePart, Outbox, SendTimeout
from hightide.net.ports import Stream
from hightide.protocol.codecs import Steps
from hightide.protocol.records import Buffer
from hightide_broker.runtime.base.call import CloseConnection
from hightide_broker.runtime.base.slices import in_slices
from hightide_broker.runtime.server.terms import Terms
from hightide_broker.runtime.server.tongue import Parts, Ticket
from hightide_broker.storage.file_slice import FileSlice

SENDFILE_BYTES_MIN = 32 << 10
"""Below this, reading is cheaper than `sendfile`."""
CLIENT_BYTES_PER_S_MIN = 256 << 10
"""A client that takes a large answer slower than this, beyond write.timeout.ms, is dropped."""


def nothing() -> None:
    """Done when an answer has left of which nobody wants to hear that."""


class _Place:
    """A request's place in the line of answers."""

    __slots__ = ("answer", "ticket")

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.answer: tuple[Parts, Callable[[], None]] | None = None
        """None: there is none yet."""


class Answers:
    """Those of one connection, on their way out."""

    def __init__(
        self,
        terms: Terms,
        stream: Stream,
        begin: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        """`begin` starts a task for what does not leave at once; it raises `CloseConnection` if an
        answer is not taken in time."""
        self._terms = terms
        self._stream = stream
        self._begin = begin
        self._is_sending = False
        self._outbox = Outbox(stream)
        self._line: list[_Place] = []
        """Requests whose answers leave in this order."""
        self.wait_empty = self._outbox.wait_empty
        self.drop = self._outbox.drop

    def line_up(self, ticket: Ticket) -> None:
        """The answer to this leaves behind those to all before it that did the same."""
        self._line.append(_Place(ticket))

    def answer(self, ticket: Ticket, parts: Parts, sent: Callable[[], None]) -> None:
        """Send an answer, in its turn if it has one; `sent` is as of `Outbox.put`."""
        if not self._line:
            self.send(parts, sent)
            return
        (place,) = (place for place in self._line if place.ticket is ticket)
        place.answer = parts, sent
        while self._line and (ready := self._line[0].answer) is not None:
            del self._line[0]
            self.send(*ready)

    def frame(
        self, ticket: Ticket, framing: Steps[Parts], sent: Callable[[], None], attached: Parts
    ) -> Callable[[], Awaitable[None]] | None:
        """Send an answer that parts are `attached` to: now, but for one that tells so much that
        others have their turn meanwhile, which is returned as work for a task."""
        has_failed = True
        frame: Parts | None = None
        try:
            next(framing)
            has_failed = False
        except StopIteration as done:
            frame, has_failed = done.value, False
        finally:
            if has_failed:
                self.close(attached)
        if frame is None:
            return partial(self._frame_rest, ticket, framing, sent, attached)
        self.answer(ticket, frame, sent)
        return None

    async def _frame_rest(
        self, ticket: Ticket, framing: Steps[Parts], sent: Callable[[], None], attached: Parts
    ) -> None:
        with ExitStack() as failing:
            failing.callback(self.close, attached)
            frame = await in_slices(framing)
            failing.pop_all()
        self.answer(ticket, frame, sent)

    def send(self, parts: Sequence[Buffer | FilePart], sent: Callable[[], None] = nothing) -> None:
        """Send something after all that was sent before."""
        total = sum(map(len, parts))
        timeout_s = self._terms.write_s + total / CLIENT_BYTES_PER_S_MIN
        self._outbox.put(parts, timeout_s=timeout_s, sent=sent)
        if not (self._outbox.is_empty or self._is_sending):
            self._is_sending = True
            self._begin(self._send_the_rest)

    async def _send_the_rest(self) -> None:
        try:
            await self._outbox.send_the_rest()
            self._is_sending = False
        except SendTimeout as late:
            raise CloseConnection(
                f"an answer was not taken within {late} (write.timeout.ms)", reason="slow"
            ) from late

    def open(self, attachment: FileSlice | Buffer) -> Buffer | FilePart:
        """What is attached to an answer, as it is sent; `close` must follow. Raises `OSError` or
        `DiskError`."""
        if not isinstance(attachment, FileSlice):
            return attachment
        is_large = attachment.size >= SENDFILE_BYTES_MIN
        if is_large and self._stream.can_send_file and self._terms.files_left:
            # One of its own: the segment may be deleted while it is sent.
            descriptor = attachment.file.duplicate_descriptor()
            if descriptor is not None:
                self._terms.files_left -= 1
                return FilePart(descriptor, attachment.position, attachment.size)
        return attachment.read()

    def close(self, parts: Iterable[Buffer | FilePart]) -> None:
        """Parts were sent, or never will be."""
        for part in parts:
            if isinstance(part, FilePart):
                os.close(part.descriptor)
                self._terms.files_left += 1
