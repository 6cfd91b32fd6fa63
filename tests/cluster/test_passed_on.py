"""What a node passes on to the active controller has a limit.

Goal: one request never ends the connection on which others are passed on. Method: a channel whose
leader is another node, which is played.
"""

import pytest

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.wire import MESSAGE_BYTES_MAX, encode_request
from hightide_broker.runtime.base.call import Peer
from hightide_broker.runtime.cluster.controller_channel import ControllerChannel


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
