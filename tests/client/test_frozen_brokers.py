"""A broker that is frozen keeps its connections and says nothing.

Goal: whoever waits for it hears whom it waits for, and asks another one once others say that this
one is gone. Method: the admin client and brokers that are fakes, in virtual time.
"""

from contextlib import asynccontextmanager

import pytest
import trio
from fake_broker import IGNORE, FakeBroker, in_memory

from hightide import Admin, RequestTimedOut
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol.messages import LATEST

OPTIONS = {"default_api_timeout_ms": 9_000, "request_timeout_ms": 3_000}


@pytest.fixture
def pair():
    """One that answers, and says that another one leads, which is frozen."""
    frozen = FakeBroker({"t": 1}, id=2, port=2)
    answers = FakeBroker({"t": 1}, leaders={("t", 0): 2})
    answers.others.append(m.BrokerInfo(id=2, host=frozen.host, port=frozen.port))
    for kind in (m.ListOffsetsRequest, g.ListGroupsRequest, m.MetadataRequest):
        frozen.always(kind, IGNORE)
    return answers, frozen


@asynccontextmanager
async def admin_of(pair, failover=lambda: None):
    """A client of both; after two seconds there is another leader."""

    async def later():
        await trio.sleep(2)
        failover()

    async with (
        in_memory(*pair) as network,
        Admin(pair[0].address, network=network, **OPTIONS) as admin,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(later)
        yield admin


async def test_who_is_waited_for_is_named(pair, autojump_clock):
    _, frozen = pair
    async with admin_of(pair) as admin:
        for ask in (admin.list_groups, lambda: admin.offsets([("t", 0)], LATEST)):
            began = trio.current_time()
            with pytest.raises(RequestTimedOut) as caught:
                await ask()
            assert caught.value.broker == frozen.address
            assert 8 < trio.current_time() - began < 10


async def test_it_is_asked_no_more_once_others_lead(pair, autojump_clock):
    answers, frozen = pair
    answers.groups.append(g.ListedGroup(group="ours", state="Empty"))

    def failover():
        answers.others.clear()
        answers.leaders.clear()

    async with admin_of(pair, failover) as admin:
        assert [group.group for group in await admin.list_groups()] == ["ours"]
        assert trio.current_time() < 4
    assert frozen.count(g.ListGroupsRequest) == 1


async def test_the_next_leader_is_asked_after_one_request(pair, autojump_clock):
    answers, frozen = pair
    async with admin_of(pair, answers.leaders.clear) as admin:
        assert len(await admin.offsets([("t", 0)], LATEST)) == 1
        assert trio.current_time() < 4
    assert frozen.count(m.ListOffsetsRequest) == 1
