"""Whom a client asks next for what any broker can answer.

Goal: who may answer is asked before who could not, and a controller or a broker that starts leads
on to another; method: the pure rule, which both kinds of client go by, and fake brokers.
"""

from functools import partial

import pytest
import trio
import trio.testing
from fake_broker import IGNORE, FakeBroker, Trick, in_memory

from hightide import ApiError, AuthenticationFailed, ErrorCode, RequestTimedOut
from hightide.net.any_broker import HESITATION_S, AnyBroker
from hightide.net.cluster import open_cluster, parse_bootstrap
from hightide.net.options import ClientOptions
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol.errors import NobodyListens

BOOTSTRAP = [("first", 1), ("b", 2)]
BROKERS = [m.BrokerInfo(id=number, host=host, port=number) for number, host in ((1, "a"), (2, "b"))]


def closed(_):
    return False


def test_known_brokers_come_before_the_bootstrap_addresses_each_once():
    turn = AnyBroker(BOOTSTRAP).in_turn(BROKERS, closed)
    assert [*turn] == [("a", 1), ("b", 2), ("first", 1)]


def test_an_open_connection_comes_first_and_who_could_not_help_last():
    asked = AnyBroker(BOOTSTRAP)
    turn = asked.in_turn(BROKERS, closed)
    assert (next(turn), asked.asking) == (("a", 1), ("a", 1))
    asked.was_unhelpful()
    assert [*asked.in_turn(BROKERS, closed)] == [("b", 2), ("first", 1), ("a", 1)]
    assert [*asked.in_turn(BROKERS, ("first", 1).__eq__)] == [("first", 1), ("b", 2), ("a", 1)]


def test_of_several_failures_the_one_that_says_most_is_told():
    refused, late = ApiError(ErrorCode.BROKER_NOT_AVAILABLE), RequestTimedOut("late")
    away, denied = NobodyListens("away"), AuthenticationFailed("no")
    for failures, told in (
        ([away], away),
        ([refused, away], refused),
        ([away, refused], refused),
        ([late, away, away], late),
        ([refused, late], late),
        ([denied, refused, away], denied),
        ([away, denied], denied),
    ):
        failure = None
        for each in failures:
            failure = AnyBroker.worse(failure, each)
        assert failure is told, failures


@pytest.mark.parametrize("starts_first", [True, False])
async def test_one_that_starts_is_asked_no_more_often_if_another_is_away(
    starts_first, autojump_clock
):
    starting, away = FakeBroker({}), FakeBroker({}, id=2, port=2, is_down=True)
    starting.always(m.MetadataRequest, Trick(envelope=ErrorCode.BROKER_NOT_AVAILABLE))
    brokers = [starting, away] if starts_first else [away, starting]
    async with in_memory(*brokers) as network:
        options = ClientOptions(",".join(each.address for each in brokers), network=network)
        async with open_cluster(options) as cluster:
            with pytest.raises(ApiError, match="BROKER_NOT_AVAILABLE"):
                await cluster.call_any(m.MetadataRequest(), timeout_s=10)
    assert 11 <= starting.count(m.MetadataRequest) <= 16


@pytest.mark.parametrize(
    ("code", "leads_on", "next_time"),
    [
        (ErrorCode.BROKER_NOT_AVAILABLE, True, ("a", 1)),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True, ("a", 1)),
        (ErrorCode.NOT_CONTROLLER, False, ("b", 2)),
        (ErrorCode.INVALID_TOPIC, False, ("a", 1)),
    ],
)
def test_who_starts_or_is_a_controller_leads_on_and_who_may_know_later_is_asked_last(
    code, leads_on, next_time
):
    asked = AnyBroker(BOOTSTRAP)
    next(asked.in_turn(BROKERS, closed))
    assert asked.leads_on(ApiError(code)) is leads_on
    assert next(asked.in_turn(BROKERS, closed)) == next_time


async def test_a_broker_that_hangs_costs_one_timeout_and_is_asked_last_from_then_on(
    autojump_clock,
):
    hangs, helps = FakeBroker({"t": 1}, port=1), FakeBroker({"t": 1}, port=2)
    hangs.always(p.InitProducerIdRequest, IGNORE)
    bootstrap = f"{hangs.address},{helps.address}"
    async with in_memory(hangs, helps) as network:
        options = ClientOptions(bootstrap, network=network, request_timeout_ms=1_000)
        async with open_cluster(options) as cluster:
            for _ in range(3):
                await cluster.call_any(p.InitProducerIdRequest(), timeout_s=10)
    assert hangs.count(p.InitProducerIdRequest) == 1
    assert helps.count(p.InitProducerIdRequest) == 3


async def test_who_is_frozen_is_passed_over_soon_and_asked_last_from_then_on(autojump_clock):
    frozen, helps = FakeBroker({"t": 1}, port=1), FakeBroker({"t": 1}, port=2)
    frozen.always(m.ApiVersionsRequest, IGNORE)
    frozen.always(p.InitProducerIdRequest, IGNORE)
    async with in_memory(frozen, helps) as network:
        options = ClientOptions(f"{frozen.address},{helps.address}", network=network)
        async with open_cluster(options) as cluster:
            began = trio.current_time()
            for _ in range(3):
                await cluster.call_any(p.InitProducerIdRequest(), timeout_s=60)
            assert trio.current_time() - began == pytest.approx(HESITATION_S)
    assert (frozen.count(m.ApiVersionsRequest), helps.count(p.InitProducerIdRequest)) == (1, 3)


def test_several_who_could_not_help_come_last_in_the_order_of_their_failure():
    asked = AnyBroker([*BOOTSTRAP, ("c", 3)])
    asked.was_unhelpful(("a", 1))
    asked.was_unhelpful(("c", 3))
    assert [*asked.in_turn(BROKERS, closed)] == [("b", 2), ("first", 1), ("a", 1), ("c", 3)]
    asked.was_unhelpful(("a", 1))
    assert [*asked.in_turn(BROKERS, ("a", 1).__eq__)][-2:] == [("c", 3), ("a", 1)]


def test_who_is_met_now_is_given_less_while_there_are_others():
    asked = AnyBroker([*BOOTSTRAP, ("c", 3)])
    seen = [asked.hesitates for _ in asked.in_turn(BROKERS, ("a", 1).__eq__)]
    assert seen == [False, True, True, False], "one is known, one is the last"


async def test_who_is_passed_over_goes_on_with_what_others_asked_it(autojump_clock):
    """The connection is everybody's: a slow answer is not lost because somebody did not wait."""
    slow, helps = FakeBroker({"t": 1}, port=1), FakeBroker({"t": 1}, port=2)
    slow.always(m.ApiVersionsRequest, IGNORE)
    part = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=1)
    waits_ms = 2_000 * HESITATION_S
    fetch = m.FetchRequest(max_wait_ms=int(waits_ms), max_bytes=1, partitions=[part])
    options = f"{slow.address},{helps.address}"
    async with (
        in_memory(slow, helps) as network,
        open_cluster(ClientOptions(options, network=network)) as cluster,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(partial(cluster.call_any, p.InitProducerIdRequest(), timeout_s=60))
        await trio.testing.wait_all_tasks_blocked()
        await cluster.call_at(parse_bootstrap(slow.address)[0], fetch, timeout_s=60)
    assert slow.count(m.FetchRequest) == 1
    assert helps.count(p.InitProducerIdRequest) == 1


async def test_the_only_one_there_is_has_all_the_time_it_wants(autojump_clock):
    slow = FakeBroker({"t": 1})
    slow.always(m.ApiVersionsRequest, IGNORE)
    async with (
        in_memory(slow) as network,
        open_cluster(ClientOptions(slow.address, network=network)) as cluster,
    ):
        await cluster.call_any(p.InitProducerIdRequest(), timeout_s=60)
    assert slow.count(m.ApiVersionsRequest) == 0
