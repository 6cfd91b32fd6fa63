"""What one connection has to send: messages, whole and in order.

What the socket takes at once is sent at once, without a task and without a turn of the event loop.
A task that is always there sends the rest when there is room for it (`run`), or one that begins
whenever something is left (`send_the_rest`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from hightide.net.background import Bell
from hightide.net.clock import loop_clock
from hightide.net.ports import Stream
from hightide.protocol.records import Buffer
from hightide.protocol.wire import drop_sent

PUSH_BYTES = 1 << 20
"""About so much leaves at once; what is larger takes turns with everything else."""


async def send_all(stream: Stream, buffers: Sequence[Buffer]) -> None:
    """Send on a stream that has no outbox yet; raises transport errors."""
    left = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while left:
        count = stream.send_now(left)
        drop_sent(left, count)
        if not count:
            await stream.wait_writable()


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of an open file; as long as they are."""

    descriptor: int
    position: int
    size: int

    def __len__(self) -> int:
        return self.size


class SendTimeout(Exception):
    """A message was not taken in time; how long it had is the text."""


class _Message:
    __slots__ = ("left", "sent", "timeout_s")

    def __init__(
        self, parts: Sequence[Buffer | FilePart], sent: Callable[[], None], timeout_s: float
    ) -> None:
        self.left: list[list[memoryview] | FilePart] = []
        """Buffers that can leave in one call, and files between them."""
        self.sent = sent
        self.timeout_s = timeout_s
        run: list[memoryview] = []
        for part in parts:
            if isinstance(part, FilePart):
                if run:
                    self.left.append(run)
                    run = []
                if part.size:
                    self.left.append(part)
            elif len(part):
                run.append(memoryview(part))
        if run:
            self.left.append(run)


def _nothing() -> None:
    """Done when something has left of which nobody wants to hear that."""


class Outbox:
    """Of one connection. Transport errors are raised to who happens to send."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._now = loop_clock()
        self._messages: list[_Message] = []  # a deque has room for 64 from the beginning
        self._until = 0.0
        """When the time of the first is up."""
        self._more = Bell()
        self._emptied = Bell()

    @property
    def is_empty(self) -> bool:
        """Whether everything that was put in was sent."""
        return not self._messages

    def put(
        self,
        parts: Sequence[Buffer | FilePart],
        *,
        timeout_s: float,
        sent: Callable[[], None] = _nothing,
    ) -> None:
        """Send a message after those before it; its time begins when they have left. `sent` is
        called once it has left, too, or never will: until then its parts are used."""
        self._messages.append(_Message(parts, sent, timeout_s))
        if len(self._messages) == 1:
            self._until = self._now() + timeout_s
            self._push()
            if self._messages:
                self._more.ring()

    async def wait_empty(self) -> None:
        """Until everything was sent, or dropped."""
        while self._messages:
            await self._emptied.wait()

    async def run(self) -> None:
        """Send what does not leave at once, until cancelled; raises `SendTimeout`."""
        while True:
            await self.send_the_rest()
            await self._more.wait()

    async def send_the_rest(self) -> None:
        """The same until everything has left."""
        while self._messages:
            with trio.move_on_at(self._until) as scope:
                await self._stream.wait_writable()
            if scope.cancelled_caught and self._messages:
                raise SendTimeout(f"{self._messages[0].timeout_s:g} s")
            self._push()

    def drop(self) -> None:
        """Send nothing more."""
        messages, self._messages = self._messages, []
        for message in messages:
            message.sent()
        self._emptied.ring()

    def _push(self) -> None:
        """Send as much as is taken now, but let others have their turn."""
        room = PUSH_BYTES
        while self._messages and room > 0:
            first = self._messages[0]
            if first.left:
                count = self._push_part(first.left)
                room -= count
                if not count:
                    break
            if not first.left:
                del self._messages[0]
                if self._messages:
                    self._until = self._now() + self._messages[0].timeout_s
                first.sent()
        if not self._messages:
            self._emptied.ring()

    def _push_part(self, parts: list[list[memoryview] | FilePart]) -> int:
        """Send of the first part what is taken; how many bytes."""
        part = parts[0]
        if isinstance(part, FilePart):
            count = self._stream.send_file_now(part.descriptor, part.position, part.size)
            rest = FilePart(part.descriptor, part.position + count, part.size - count)
            parts[0] = rest
            is_done = not rest.size
        else:
            count = self._stream.send_now(part)
            drop_sent(part, count)
            is_done = not part
        if is_done:
            del parts[0]
        return count
