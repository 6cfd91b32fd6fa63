"""Messages leave whole and in order, however little a socket takes; what it takes, at once."""

import random

import pytest
import trio

from hightide.net.outbox import PUSH_BYTES, FilePart, Outbox, SendTimeout

FILES = {7: b"seven" * 100, 8: b"eight" * 300, 9: bytes(5 * PUSH_BYTES)}
"""What is in the files of these descriptors."""


class Narrow:
    """A stream with so much room; `sent` is what it took, `turns` how much at a time."""

    def __init__(self, room=0):
        self.room = room
        self.sent = b""
        self.calls = 0
        self.turns = [0]
        self._widened = trio.Event()

    def widen(self, room):
        self.room += room
        widened, self._widened = self._widened, trio.Event()
        widened.set()

    def _take(self, data):
        self.calls += 1
        taken = data[: min(self.room, PUSH_BYTES)]
        self.sent += taken
        self.turns[-1] += len(taken)
        self.room -= len(taken)
        return len(taken)

    def send_now(self, buffers):
        assert sum(map(len, buffers)), "there is something to send"
        return self._take(b"".join(buffers))

    def send_file_now(self, fd, position, size):
        return self._take(FILES[fd][position : position + size])

    async def wait_writable(self):
        self.turns.append(0)
        await trio.lowlevel.checkpoint()
        while not self.room:
            await self._widened.wait()


def put(outbox, *parts, timeout_s=10.0):
    """Put a message in; a list that is empty until it has left."""
    left = []
    outbox.put(parts, timeout_s=timeout_s, sent=lambda: left.append(trio.current_time()))
    return left


async def test_what_there_is_room_for_leaves_at_once():
    stream = Narrow(room=1 << 20)
    outbox = Outbox(stream)
    left = put(outbox, b"head", bytearray(b"body"), b"", memoryview(b"tail"))
    assert (stream.sent, stream.calls, len(left)) == (b"headbodytail", 1, 1)
    assert outbox.is_empty


async def test_a_message_of_nothing_has_left():
    outbox = Outbox(Narrow())
    assert put(outbox, b"") != []
    assert outbox.is_empty


async def test_the_rest_leaves_when_there_is_room_and_before_what_comes_after(nursery):
    stream = Narrow(room=3)
    outbox = Outbox(stream)
    nursery.start_soon(outbox.run)
    first, second = put(outbox, b"first"), put(outbox, b"second")
    assert (stream.sent, first, second, outbox.is_empty) == (b"fir", [], [], False)
    stream.widen(3)
    await trio.testing.wait_all_tasks_blocked()
    assert (stream.sent, len(first), second) == (b"firsts", 1, [])
    stream.widen(100)
    await outbox.wait_empty()
    assert (stream.sent, len(second)) == (b"firstsecond", 1)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(30))
async def test_bytes_leave_in_order_however_little_is_taken_at_a_time(seed, nursery):
    dice = random.Random(seed)
    stream, expected, left = Narrow(), b"", []
    outbox = Outbox(stream)
    nursery.start_soon(outbox.run)
    for _ in range(40):
        parts = []
        for _ in range(dice.randrange(5)):
            if dice.random() < 0.3:
                descriptor = dice.choice([7, 8])
                start = dice.randrange(400)
                part = FilePart(descriptor, start, dice.randrange(100))
                expected += FILES[descriptor][start : start + part.size]
            else:
                part = dice.randbytes(dice.randrange(60))
                expected += part
            parts.append(part)
        left.append(put(outbox, *parts))
        stream.widen(dice.choice([0, 1, 7, 90]))
        if dice.random() < 0.5:
            await trio.testing.wait_all_tasks_blocked()
        done = [bool(each) for each in left]
        assert done == sorted(done, reverse=True), "one has left before one that came earlier"
        assert expected.startswith(stream.sent)
    stream.widen(1 << 20)
    await outbox.wait_empty()
    assert stream.sent == expected
    assert all(len(each) == 1 for each in left)
    nursery.cancel_scope.cancel()


async def test_a_message_that_is_not_taken_in_time_is_an_error(autojump_clock):
    stream = Narrow(room=2)
    outbox = Outbox(stream)
    put(outbox, b"in time", timeout_s=5)
    with pytest.raises(SendTimeout, match=r"^5 s$"):
        await outbox.run()
    assert trio.current_time() == pytest.approx(5)


async def test_what_is_put_in_while_one_leaves_has_a_time_of_its_own(autojump_clock):
    outbox = Outbox(Narrow(room=5))

    def then():
        put(outbox, b"late", timeout_s=20)

    outbox.put([b"first"], timeout_s=1, sent=then)
    with pytest.raises(SendTimeout, match=r"^20 s$"):
        await outbox.run()
    assert trio.current_time() == pytest.approx(20)


async def test_what_is_dropped_in_the_turn_in_which_its_time_is_up_is_no_error(mock_clock, nursery):
    for _ in range(50):
        outbox = Outbox(Narrow())
        put(outbox, b"late", timeout_s=5)
        nursery.start_soon(outbox.run)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(5)
        outbox.drop()
        await trio.testing.wait_all_tasks_blocked()
    nursery.cancel_scope.cancel()


async def test_the_time_of_a_message_begins_when_those_before_it_have_left(autojump_clock, nursery):
    stream = Narrow()
    outbox = Outbox(stream)
    put(outbox, b"slow", timeout_s=20)
    put(outbox, b"next", timeout_s=6)

    async def widen():
        await trio.sleep(15)
        stream.widen(4)

    nursery.start_soon(widen)
    with pytest.raises(SendTimeout, match=r"^6 s$"):
        await outbox.run()
    assert stream.sent == b"slow"
    assert trio.current_time() == pytest.approx(15 + 6)


async def test_what_is_dropped_never_leaves_and_nobody_waits_for_it(nursery):
    stream = Narrow(room=1)
    outbox = Outbox(stream)
    left = [put(outbox, b"one"), put(outbox, b"two")]
    nursery.start_soon(outbox.wait_empty)
    await trio.testing.wait_all_tasks_blocked()
    outbox.drop()
    assert [len(each) for each in left] == [1, 1]
    assert outbox.is_empty
    stream.widen(100)
    assert stream.sent == b"o"


async def test_what_is_put_in_while_one_leaves_leaves_after_it():
    """What hears that a message has left may send the next."""
    stream = Narrow(room=100)
    outbox = Outbox(stream)
    outbox.put([b"one,"], timeout_s=1, sent=lambda: outbox.put([b"three,"], timeout_s=1))
    outbox.put([b"two,"], timeout_s=1)
    assert stream.sent == b"one,three,two,"
    assert outbox.is_empty


async def test_a_large_message_takes_turns_with_everything_else(nursery):
    """However much the socket takes, the event loop is not held up for long."""
    stream = Narrow(room=1 << 30)
    outbox = Outbox(stream)
    nursery.start_soon(outbox.run)
    left = [put(outbox, FilePart(9, 0, 5 * PUSH_BYTES))]
    left += [put(outbox, bytes(PUSH_BYTES // 2)) for _ in range(4)]
    await outbox.wait_empty()
    assert all(left)
    assert len(stream.sent) == 7 * PUSH_BYTES
    assert max(stream.turns) < 2 * PUSH_BYTES
    nursery.cancel_scope.cancel()
