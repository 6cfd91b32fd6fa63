"""A controller that comes to a quorum that exists, and lets itself in, where that is allowed.

With `controller.quorum.auto.join.enable` a node whose directory was made for a cluster that exists
does what an operator would do by `hightide quorum replace` or `add`: the voter that had its id and
another directory is removed, and it is added once it keeps up. Source: KIP-853, KIP-1186.
"""

from __future__ import annotations

import logging

import trio

from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import Refused
from hightide_broker.core.quorum.membership import Membership
from hightide_broker.runtime.cluster.controller_channel import ControllerChannel

log = logging.getLogger("hightide.quorum")

AGAIN_S = 0.5


async def join(
    membership: Membership, channel: ControllerChannel, *, node: int, host: str, port: int
) -> None:
    """Ask to be a voter, again and again, until this node is one."""
    while not membership.is_voter:
        await trio.sleep(AGAIN_S)
        if not membership.is_recorded:
            continue
        request: m.Message = q.AddVoterRequest(
            id=node, host=host, port=port, directory=membership.directory
        )
        if membership.directory_of(node) not in ("", membership.directory):
            request = q.RemoveVoterRequest(id=node, directory=membership.directory_of(node))
        try:
            await channel.ask(request)
        except Refused as refusal:
            log.info("not a voter yet: %s", refusal.message, extra={"event": "joining.refused"})
    log.info("node %d votes with directory %s", node, membership.directory)
