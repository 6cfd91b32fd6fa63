"""Goal: who owes an answer and says nothing is told of after a while, once, and nobody else is.

Method: moments by hand; then producers whose broker leaves requests unanswered, or answers while
the program keeps the event loop for itself.
"""

import pytest
import trio
from fake_broker import IGNORE, FakeBroker, in_memory

from hightide import Producer
from hightide.net.warned import SILENT_S
from hightide.produce.silence import Silence
from hightide.protocol import messages as m

NEVER = float("inf")


def test_nobody_is_silent_who_owes_nothing():
    silence = Silence()
    assert (silence.due_at, silence.tell(1e9)) == (NEVER, [])
    silence.asked("a", 1.0)
    silence.settled("a", 2.0, heard=True)
    assert (silence.due_at, silence.tell(1e9)) == (NEVER, [])


def test_each_is_told_of_once_in_its_time():
    silence = Silence()
    silence.asked("a", 1.0)
    silence.asked("b", 2.0)
    silence.asked("a", 3.0)
    assert silence.due_at == 1.0 + SILENT_S
    assert silence.tell(silence.due_at - 0.001) == []
    assert silence.tell(silence.due_at) == ["a"]
    assert silence.due_at == 2.0 + SILENT_S
    assert silence.tell(silence.due_at) == ["b"]
    assert (silence.due_at, silence.tell(1e9)) == (NEVER, [])


def test_who_answers_others_is_not_silent():
    silence = Silence()
    silence.asked("a", 0.0)
    for now in range(1, 100):
        silence.asked("a", now)
        silence.settled("a", now, heard=True)
        assert silence.tell(now) == []
        assert silence.due_at == now + SILENT_S


@pytest.mark.parametrize("owes_more", [True, False])
def test_one_that_was_told_of_is_told_of_again_only_after_it_was_heard(owes_more):
    silence = Silence()
    silence.asked("a", 0.0)
    if owes_more:
        silence.asked("a", 0.0)
    assert silence.tell(10.0) == ["a"]
    silence.settled("a", 10.5, heard=False)
    silence.asked("a", 11.0)
    assert (silence.due_at, silence.tell(100.0)) == (NEVER, [])
    silence.settled("a", 101.0, heard=True)
    silence.asked("a", 102.0)
    assert silence.tell(101.0 + SILENT_S) == (["a"] if owes_more else [])
    assert silence.tell(102.0 + SILENT_S) == ([] if owes_more else ["a"])


class Told:
    """An `on_retry` that wants to know."""

    def __init__(self):
        self.retries, self.silent_ones = [], []

    def __call__(self, error):
        self.retries.append(error)

    def silent(self, broker, patience_s):
        self.silent_ones.append((broker, patience_s))


async def test_a_request_that_waits_while_others_are_answered_is_no_silence(autojump_clock):
    broker, told = FakeBroker({"t": 2}), Told()
    broker.will(m.ProduceRequest, IGNORE)
    async with (
        in_memory(broker) as network,
        Producer(broker.address, network=network, on_retry=told) as producer,
    ):
        waiting = await producer.send("t", b"waits", partition=0)
        await trio.sleep(0.1)  # or the next one is in the same request
        for _ in range(100):
            await (await producer.send("t", b"x", partition=1))
            await trio.sleep(0.2)
        assert told.silent_ones == []
        await trio.sleep(SILENT_S)
        assert told.silent_ones == [(broker.address, 31.0)]
        await waiting
    assert len(told.retries) == 1


@pytest.mark.parametrize("steps", range(12))
async def test_who_has_answered_a_program_that_did_not_listen_is_not_silent(mock_clock, steps):
    broker, told = FakeBroker({"t": 1}), Told()
    async with (
        in_memory(broker) as network,
        Producer(broker.address, network=network, on_retry=told, linger_ms=0) as producer,
    ):
        mock_clock.autojump_threshold = 0
        await (await producer.send("t", b"first"))
        await trio.sleep(1)
        mock_clock.autojump_threshold = NEVER
        delivery = await producer.send("t", b"x")
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        has_answered = broker.count(m.ProduceRequest) == 2
        mock_clock.jump(SILENT_S + 1)
        await delivery
        assert not told.silent_ones or not has_answered


@pytest.mark.parametrize("silent", [False, None])
async def test_what_is_called_so_and_is_no_method_is_not_called(silent, autojump_clock):
    broker, told = FakeBroker({"t": 1}), Told()
    told.silent = silent
    broker.will(m.ProduceRequest, IGNORE)
    async with (
        in_memory(broker) as network,
        Producer(broker.address, network=network, on_retry=told) as producer,
    ):
        await (await producer.send("t", b"x"))
    assert len(told.retries) == 1
