"""What a node passes on to the active controller has a limit, and so has waiting for one.

Goal: one request never ends the connection on which others are passed on, and who asks for a thing
hears in time that nobody can do it. Method: a channel whose leader is another node, which is
played, or nobody.
"""

from types import SimpleNamespace

import pytest
import trio

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, ErrorCode, Refused
from hightide.protocol.wire import MESSAGE_BYTES_MAX, encode_request
from hightide_broker.core.quorum.ready import NOBODY
from hightide_broker.runtime.base.call import Peer
from hightide_broker.runtime.cluster.controller_channel import (
    OTHERS_WAIT_S,
    RETRY_MAX_S,
    ControllerChannel,
)


class Quorum:
    node, leader = 1, 2


class Others:
    """The node that leads, as this one hears of it."""

    def __init__(self):
        self.envelopes = []

    async def call(self, node, envelope, *, timeout_s):
        self.envelopes.append(envelope)
        return c.EnvelopeResponse(metadata_offset=7, body=b"\x81\xa6topics\x90"), ()


def asking(names):
    return m.CreateTopicsRequest(topics=[m.NewTopic(topic=name) for name in names])


@pytest.mark.parametrize("client", ["", "c" * 2_000_000])
async def test_what_is_too_large_is_refused_here(client):
    others = Others()
    channel = ControllerChannel(Quorum, None, others, timeout_s=9)
    names = ["t"] if client else ["t" * 20_000] * 100
    with pytest.raises(Refused) as refusal:
        await channel.ask(asking(names), sender=Peer(client_id=client))
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert "ask for less at a time" in refusal.value.message
    assert others.envelopes == []


async def test_what_is_not_goes_through_as_it_is():
    others = Others()
    channel = ControllerChannel(Quorum, None, others, timeout_s=9)
    reply, offset = await channel.ask(asking(["t" * 1000] * 1000))
    assert (reply.topics, offset) == ([], 7)
    (envelope,) = others.envelopes
    frame = b"".join(encode_request(envelope, request_id=1 << 60, client="node-1"))
    assert len(frame) < MESSAGE_BYTES_MAX


class Leaderless:
    node, leader = 1, NOBODY
    core = SimpleNamespace(membership=SimpleNamespace(voters=[1, 2, 3]))

    async def moved(self):
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("sender", "timeout_s", "waits_s"),
    [
        (Peer(client_id="c"), None, OTHERS_WAIT_S),
        (Peer(client_id="c"), 3.0, 3.0),
        (None, None, 30.0),
    ],
)
async def test_who_asks_where_nobody_leads_hears_why_before_it_gives_up(
    sender, timeout_s, waits_s, autojump_clock
):
    channel = ControllerChannel(Leaderless(), None, Others(), timeout_s=30.0)
    began = trio.current_time()
    with pytest.raises(Refused, match=r"no controller was active within .* \[1, 2, 3\]") as refusal:
        await channel.ask(asking(["t"]), timeout_s=timeout_s, sender=sender)
    assert ApiError(refusal.value.code).retriable
    assert trio.current_time() - began == pytest.approx(waits_s, abs=RETRY_MAX_S)


class Wins:
    """A quorum in which nobody leads for two seconds; then another node wins, which needs a moment
    until it is active."""

    node, core, leader = 1, Leaderless.core, NOBODY

    def __init__(self):
        self._wins_at = trio.current_time() + 2

    async def moved(self):
        await trio.sleep_until(self._wins_at)
        if self.leader != NOBODY:
            await trio.sleep_forever()
        self.leader = 2

    async def call(self, node, envelope, *, timeout_s):
        if trio.current_time() < self._wins_at + 0.05:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "it has just won")
        return c.EnvelopeResponse(metadata_offset=7, body=b"\x81\xa6topics\x90"), ()


async def test_one_that_has_just_won_is_asked_again_soon(autojump_clock):
    quorum = Wins()
    channel = ControllerChannel(quorum, None, quorum, timeout_s=30.0)
    began = trio.current_time()
    await channel.ask(asking(["t"]))
    assert 2.05 <= trio.current_time() - began < 2.15
