"""Which node a request says that it comes from. Pure.

Where nodes prove who they are, nobody may speak for another: a fetch is also an acknowledgement, a
vote an election, a heartbeat a lease (CVE-2018-1288 is what happens otherwise).
"""

from __future__ import annotations

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused

_SENDER = {
    c.VoteRequest: "candidate",
    c.BeginQuorumEpochRequest: "leader",
    c.EndQuorumEpochRequest: "leader",
    c.FetchSnapshotRequest: "replica_id",
    m.FetchRequest: "replica_id",
    c.RegisterBrokerRequest: "broker",
    c.BrokerHeartbeatRequest: "broker",
    c.AlterPartitionRequest: "broker",
    c.AllocateProducerIdsRequest: "broker",
}
"""By the kind of request, the field that names it."""


def check_sender(request: m.Message, node: int) -> None:
    """Raise `Refused` if a request of a proven node says that it comes from another one."""
    field = _SENDER.get(type(request))
    if field is None:
        return
    claimed = getattr(request, field)
    if claimed != node:
        raise Refused(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"a {type(request).__name__} of node {claimed} came from node {node}: a node speaks "
            f"for itself alone",
        )
