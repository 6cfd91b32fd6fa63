"""Goal: a program that does not ask to be told hears from its log that nobody answers, once for
each reason, and nothing of what passes by itself; method: the listener alone, and a producer
without a broker.
"""

import logging

import pytest

from hightide import ApiError, ErrorCode, Producer, RequestTimedOut
from hightide.net.options import ClientOptions
from hightide.net.warned import FORGOTTEN_S, REASONS_MAX, TOLD_AT, Warned
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
