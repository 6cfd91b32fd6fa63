"""Which node a request says that it comes from, and which one an answer. Pure.

Where nodes prove who they are, nobody may speak for another: a fetch is also an acknowledgement, a
vote an election, a heartbeat a lease (CVE-2018-1288 is what happens otherwise).
"""

from __future__ import annotations

import re

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol import quorum_messages as q
from hightide.protocol.errors import ErrorCode, Refused

_NAME = re.compile(r"node-(0|[1-9][0-9]{0,8})")
_SENDER = {
    c.VoteRequest: "candidate",
    c.BeginQuorumEpochRequest: "leader",
    c.EndQuorumEpochRequest: "leader",
    c.FetchSnapshotRequest: "replica_id",
    m.FetchRequest: "replica_id",
    m.ListOffsetsRequest: "replica_id",
    c.RegisterBrokerRequest: "broker",
    c.BrokerHeartbeatRequest: "broker",
    c.AlterPartitionRequest: "broker",
    c.AllocateProducerIdsRequest: "broker",
}
"""By the kind of request, the field that names it."""


def name_of(node: int) -> str:
    """The common name of a node's certificate."""
    return f"node-{node}"


def node_of(name: str) -> int | None:
    """The node whose certificate has this common name; None: it is no node's."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def may_answer(name: str, node: int) -> bool:
    """Whether who has proven to be `name`, or nobody where it is empty, may answer for a node."""
    return name in ("", name_of(node))


def check_sender(request: m.Message, node: int, *, is_its_own: bool = False) -> None:
    """Raise `Refused` if a request of a proven node says that it comes from another one.
    `is_its_own`: nobody is said to have asked the node for it; so it joins for itself alone."""
    field = _SENDER.get(type(request))
    if is_its_own and isinstance(request, q.AddVoterRequest):
        field = "id"
    if field is None:
        return
    claimed = getattr(request, field)
    if claimed != node:
        raise Refused(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"a {type(request).__name__} of node {claimed} came from node {node}: a node speaks "
            f"for itself alone",
        )
