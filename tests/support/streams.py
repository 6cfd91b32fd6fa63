"""What tests send on a stream themselves, and a stream without a socket."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

from hightide.net import outbox
from hightide.net.ports import Stream
from hightide.protocol.records import Buffer

End = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


async def send_all(stream: Stream, *buffers: Buffer) -> None:
    """Send everything, however long that takes."""
    await trio.lowlevel.checkpoint()
    await outbox.send_all(stream, buffers)


class MemoryStream:
    """One end of a connection without a socket; implements `ports.Stream`. The other end may be one
    of trio's."""

    can_send_file = False
    peer = "memory"
    common_name = ""

    def __init__(self, here: End, there: End) -> None:
        self._here = here
        self._there = there
        self._is_closed = False

    async def receive_into(self, view: memoryview, wanted: int = 1) -> int:
        data = await self._here.receive_some(len(view))
        view[: len(data)] = data
        return len(data)

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        if self._is_closed:
            raise trio.ClosedResourceError("this end was closed")
        data = b"".join(bytes(buffer) for buffer in buffers)
        try:
            self._there.receive_stream.put_data(data)
        except trio.ClosedResourceError as error:
            raise trio.BrokenResourceError("the other end was closed") from error
        return len(data)

    def send_file_now(self, fd: int, position: int, size: int) -> int:
        raise AssertionError("there is no file to send")

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._is_closed = True
        await trio.aclose_forcefully(self._here)


def memory_stream() -> tuple[MemoryStream, End]:
    """A stream, and its other end."""
    here, there = memory_stream_pair()
    return MemoryStream(here, there), there


def memory_streams() -> tuple[MemoryStream, MemoryStream]:
    """Both ends of a connection."""
    here, there = memory_stream_pair()
    return MemoryStream(here, there), MemoryStream(there, here)
