"""Goal: a program that does not ask to be told hears from its log that nobody answers, once for
each reason, and nothing of what passes by itself; method: the listener alone, a producer without a
broker, and one whose broker says nothing.
"""

import logging

import pytest
import trio
from fake_broker import IGNORE, FakeBroker, in_memory

from hightide import ApiError, ErrorCode, Producer, RequestTimedOut
from hightide.net.options import ClientOptions
from hightide.net.warned import FORGOTTEN_S, REASONS_MAX, SILENT_S, TOLD_AT, Warned
from hightide.protocol import messages as m
from hightide.protocol.errors import BrokerUnreachable


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.WARNING, "hightide")
    return lambda: [each.getMessage() for each in caplog.records if each.name == "hightide"]


def refused(broker="127.0.0.1:1", elapsed_s=0.0):
    return BrokerUnreachable("no connection: refused", broker=broker, elapsed_s=elapsed_s)


def test_who_cannot_be_reached_again_and_again_is_told_once(told):
    warned = Warned()
    for attempt in range(5 * TOLD_AT):
        warned(refused(elapsed_s=attempt))
        assert len(told()) == (attempt + 1 >= TOLD_AT)
    assert told() == ["no connection: refused (broker 127.0.0.1:1); trying again"]


def test_silence_is_told_at_once_and_what_a_broker_says_is_not(told):
    warned = Warned()
    warned(RequestTimedOut("no answer within 30 s", broker="a:1"))
    warned(RequestTimedOut("no answer within 30 s", broker="a:1"))
    for _ in range(TOLD_AT):
        warned(ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "being elected"))
    assert told() == ["no answer within 30 s (broker a:1); trying again"]


def test_the_next_trouble_is_told_again_and_lone_failures_are_none(told):
    now = 0.0
    warned = Warned(lambda: now)
    for _ in range(2 * TOLD_AT):
        warned(refused())
        now += FORGOTTEN_S + 1
    assert told() == []
    for trouble in range(2):
        for _ in range(2 * TOLD_AT):
            warned(refused())
        assert len(told()) == trouble + 1
        now += FORGOTTEN_S + 1


def test_reasons_without_end_are_not_all_kept():
    warned = Warned()
    for number in range(3 * REASONS_MAX):
        warned(refused(broker=f"a:{number}"))
    assert len(warned._heard) <= REASONS_MAX


def test_who_wants_to_be_told_is_told_and_the_log_is_not():
    heard = []
    assert ClientOptions(on_retry=heard.append).on_retry == heard.append
    assert isinstance(ClientOptions().on_retry, Warned)


async def test_a_producer_without_a_broker_says_so_while_it_waits(told, autojump_clock):
    async with Producer("127.0.0.1:1", max_block_ms=5000) as producer:
        with pytest.raises(BrokerUnreachable):
            await producer.send("t", b"x")
    (line,) = told()
    assert "Connection refused (broker 127.0.0.1:1); trying again" in line


async def test_whose_answer_does_not_come_is_told_long_before_it_is_given_up(told, autojump_clock):
    broker = FakeBroker({"t": 1})
    options = {"request_timeout_ms": 20_000, "linger_ms": 0, "batch_size": 1}
    silent = f"broker {broker.address} has said nothing for 5 s; it is given 21 s"
    late = f"no answer to produce within 21 s (broker {broker.address}); trying again"
    async with (
        in_memory(broker) as network,
        Producer(broker.address, network=network, **options) as producer,
    ):
        await (await producer.send("t", b"answered"))
        await trio.sleep(2 * SILENT_S)
        assert told() == []
        for trouble in ([silent, late], [silent]):
            broker.always(m.ProduceRequest, IGNORE)
            deliveries = [await producer.send("t", b"%d" % n) for n in range(3)]
            before = len(told())
            await trio.sleep(SILENT_S - 0.1)
            assert told()[before:] == []
            await trio.sleep(0.3)
            assert told()[before:] == [silent]
            broker.always(m.ProduceRequest, None)
            for delivery in deliveries:
                await delivery
            assert told()[before:] == trouble


async def test_a_program_that_hears_of_each_retry_is_told_of_no_silence(told, autojump_clock):
    broker, heard = FakeBroker({"t": 1}), []
    broker.will(m.ProduceRequest, IGNORE)
    async with (
        in_memory(broker) as network,
        Producer(broker.address, network=network, on_retry=heard.append) as producer,
    ):
        await (await producer.send("t", b"x"))
    assert (told(), len(heard)) == ([], 1)
