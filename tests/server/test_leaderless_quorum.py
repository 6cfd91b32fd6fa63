"""Goal: who wants to know how the quorum is where nobody leads is told soon, by the broker itself.

Method: the handler with metadata that never gets an answer of the controller, on virtual time.
"""

from types import SimpleNamespace

import pytest
import trio

from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.quorum.ready import NOBODY
from hightide_broker.runtime.server.admin_handlers import (
    DESCRIBE_QUORUM_WAIT_S,
    MISSED_LEADER_WAIT_S,
    AdminHandlers,
)


class Metadata:
    """Of a node that asks a controller who does not answer."""

    def __init__(self, *, heard=NOBODY, heard_later=NOBODY):
        self.cluster_id = "c"
        self.controller_id = heard
        self._later = heard_later

    async def change(self, request, *, timeout_s, sender):
        await trio.sleep(timeout_s)
        self.controller_id = self._later
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, "no controller was active")


KNOWN = SimpleNamespace(epoch=1, high_watermark=1, describe_alone=list)
"""The quorum, to a node that hears of no leader."""


async def ask(metadata, *, even_without_leader):
    """Who leads, and after how long."""
    handlers = AdminHandlers(
        metadata,
        None,
        broker=1,
        config=None,
        disk=None,
        quorum=SimpleNamespace(core=KNOWN),
        usage=None,
        trace=None,
    )
    request = q.DescribeQuorumRequest(even_without_leader=even_without_leader)
    began = trio.current_time()
    reply = await handlers.describe_quorum(SimpleNamespace(request=request, sender=None))
    return reply.body.leader, trio.current_time() - began


async def test_a_broker_that_hears_of_no_leader_tells_what_it_knows_soon(autojump_clock):
    leader, took_s = await ask(Metadata(), even_without_leader=True)
    assert leader == NOBODY
    assert took_s == pytest.approx(MISSED_LEADER_WAIT_S)


async def test_a_leader_that_was_heard_just_now_is_waited_for_longer(autojump_clock):
    leader, took_s = await ask(Metadata(heard=2), even_without_leader=True)
    assert leader == NOBODY
    assert took_s == pytest.approx(DESCRIBE_QUORUM_WAIT_S)


@pytest.mark.parametrize(
    ("metadata", "even_without_leader"),
    [(Metadata(), False), (Metadata(heard=2, heard_later=2), True)],
    ids=["who wants a leader", "while one is heard"],
)
async def test_it_is_refused_otherwise(metadata, even_without_leader, autojump_clock):
    with pytest.raises(Refused) as refused:
        await ask(metadata, even_without_leader=even_without_leader)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
