"""Goal: of a large frame a reader is woken for much at a time, of all else for anything, and an
end is heard at once; method: sockets of loopback, and a count of the waits.
"""

import socket
import struct

import pytest
import trio
import trio.testing
from patience import PATIENCE_S

from hightide.net import tcp
from hightide.net.connection import LARGE_BYTES, FrameReader
from hightide.net.outbox import send_all
from hightide.net.tcp import WAKE_BYTES_MAX, TcpNetwork, TcpStream, listen, wakes_in_time
from hightide.protocol.errors import RemoteProtocolError

sleeps = pytest.mark.skipif(not tcp.MAY_SLEEP_LONGER, reason="SO_RCVLOWAT is used on Linux")
SEGMENT = 16 << 10


class Counted:
    """How often somebody waited for a socket to be readable."""

    def __init__(self, monkeypatch):
        self.waits = 0
        wait = trio.lowlevel.wait_readable

        async def counted(sock):
            self.waits += 1
            await wait(sock)

        monkeypatch.setattr(trio.lowlevel, "wait_readable", counted)


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


@pytest.fixture
async def ends():
    listener = await listen("127.0.0.1", 0)
    sends = await TcpNetwork().connect("127.0.0.1", listener.port)
    hears = await listener.accept()
    await listener.aclose()
    yield sends, hears
    await sends.aclose()
    await hears.aclose()


def lowest(stream):
    return stream._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


async def say(stream, data, at_a_time):
    for place in range(0, len(data), at_a_time):
        await send_all(stream, [data[place : place + at_a_time]])
        await trio.lowlevel.checkpoint()


@sleeps
async def test_of_a_large_frame_nobody_is_woken_for_each_packet(ends, counted, nursery):
    sends, hears = ends
    body = bytes(range(256)) * (4 * WAKE_BYTES_MAX // 256)
    nursery.start_soon(say, sends, struct.pack(">I", len(body)) + body, SEGMENT)
    with trio.fail_after(PATIENCE_S):
        assert await FrameReader(hears).next_frame() == body
    assert counted.waits < len(body) // SEGMENT // 4


@sleeps
async def test_what_follows_a_large_frame_is_heard_by_the_byte(ends):
    sends, hears = ends
    reader = FrameReader(hears)
    large = bytes(2 * LARGE_BYTES)
    await send_all(sends, [struct.pack(">I", len(large)) + large[:LARGE_BYTES]])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.next_frame)
        await trio.testing.wait_all_tasks_blocked()
        assert lowest(hears) == LARGE_BYTES
        await send_all(sends, [large[LARGE_BYTES:]])
    with trio.fail_after(PATIENCE_S):
        await send_all(sends, [struct.pack(">I", 1) + b"x"])
        assert await reader.next_frame() == b"x"
    assert lowest(hears) == 1


@pytest.mark.parametrize("came", [0, 1, 3 * LARGE_BYTES])
async def test_the_end_of_a_stream_inside_a_large_frame_is_heard_at_once(ends, came, nursery):
    sends, hears = ends

    async def say_and_leave():
        await say(sends, struct.pack(">I", 8 * LARGE_BYTES) + bytes(came), SEGMENT)
        await trio.testing.wait_all_tasks_blocked()
        await sends.aclose()

    nursery.start_soon(say_and_leave)
    with trio.fail_after(PATIENCE_S), pytest.raises(RemoteProtocolError, match="stream ended"):
        await FrameReader(hears).next_frame()


async def test_a_reader_of_what_is_there_lets_others_have_a_turn(ends, nursery):
    """A frame that is all there would be read in one go, however large it is."""
    sends, hears = ends
    turns = 0

    async def turn():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    length = 8 * TcpStream.turn_bytes
    nursery.start_soon(turn)
    nursery.start_soon(say, sends, struct.pack(">I", length) + bytes(length), TcpStream.turn_bytes)
    with trio.fail_after(PATIENCE_S):
        await FrameReader(hears).next_frame()
    assert turns >= length // TcpStream.turn_bytes // 2
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("system", "release", "expected"),
    [
        ("linux", "6.8.0-45-generic", True),
        ("linux", "5.12.0", True),
        ("linux", "5.4.0-216-generic", False),
        ("linux", "4.18.0-553.el8_10.x86_64", False),
        ("linux", "4.4.0", False),
        ("linux", "custom", False),
        ("darwin", "23.1.0", False),
    ],
)
def test_only_kernels_that_wake_in_time_are_asked_to_wait_for_much(system, release, expected):
    assert wakes_in_time(system, release) is expected
