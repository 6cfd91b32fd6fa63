"""What a connection's reader keeps, and what is left of buffers that were sent in part.

Goal: no byte is lost, doubled or moved, however streams cut frames and sockets take buffers; a
reader's buffer grows while it is full and shrinks again. Method: streams that bring as many bytes
as they are told; all small cases are gone through.
"""

import struct
from itertools import product

import pytest

from hightide.net.connection import READ_BYTES_MAX, READ_BYTES_MIN, FrameReader
from hightide.protocol.wire import drop_sent


class Portions:
    """A stream that brings so much at a time, in turn."""

    def __init__(self, data, sizes):
        self.data, self.sizes, self.room = data, sizes, []

    async def receive_into(self, view, wanted=1):
        self.room.append(len(view))
        size = self.sizes[len(self.room) % len(self.sizes)]
        brought, self.data = self.data[: min(size, len(view))], self.data[min(size, len(view)) :]
        view[: len(brought)] = brought
        return len(brought)


def frame(body):
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("sizes", [[1], [3, 7], [2048], [2047, 1], [65536], [1, 65536, 5000]])
async def test_frames_come_whole_however_they_are_cut(sizes):
    bodies = [bytes([n % 251]) * n for n in (1, 5, 2044, 2048, 3000, 1, 70_000, 2, 9000, 300)]
    reader = FrameReader(Portions(b"".join(map(frame, bodies)), sizes))
    assert [await reader.next_frame() for _ in bodies] == bodies
    assert await reader.next_frame() is None


async def test_a_reader_has_more_room_while_much_comes_and_less_again_when_little_does():
    stream = Portions(frame(b"x" * 96) * 10_000, [1 << 20])
    reader = FrameReader(stream)
    for _ in range(10_000):
        assert await reader.next_frame() == b"x" * 96
    assert stream.room[0] == READ_BYTES_MIN
    # What is left of a read stays in the buffer.
    assert READ_BYTES_MAX - 100 <= max(stream.room) <= READ_BYTES_MAX
    stream.data, stream.sizes = frame(b"y") * 20, [5]
    for _ in range(20):
        assert await reader.next_frame() == b"y"
    assert stream.room[-1] == READ_BYTES_MIN


def test_what_is_left_of_buffers_is_what_was_not_sent():
    for sizes in product(range(4), repeat=4):
        whole = bytes(range(sum(sizes)))
        for sent in range(len(whole) + 1):
            left, rest = [], memoryview(whole)
            for size in sizes:
                left.append(rest[:size])
                rest = rest[size:]
            drop_sent(left, sent)
            assert b"".join(left) == whole[sent:]
            assert all(map(len, left[:1])), "what is empty would be sent for ever"


def test_more_than_there_was_cannot_be_sent():
    with pytest.raises(AssertionError, match="1 byte too many"):
        drop_sent([memoryview(b"ab"), memoryview(b"c")], 4)
