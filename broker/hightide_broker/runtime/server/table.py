"""Every request that a node answers: who answers it, what its sender must be permitted, and who may
ask. What it is called, asked and answered with, and in which versions, is in `protocol/apis.py`.

What is `nodes_only` comes by the nodes' door, from the node that it names: which field names it is
in `core/cluster/senders.py`, for what an envelope carries as well. An envelope speaks in somebody
else's name: who sends one by the clients' door is cut off, as in Kafka (KIP-590). Permissions say
what a sender needs, where authorizer.enable is true (`gate.py`). What only an envelope carries
(registrations, heartbeats, ISR changes, blocks of producer ids) is decided by
`core/cluster/controller.py`, and has no row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace as exchanged

from hightide.protocol import access_messages as a
from hightide.protocol import controller_messages as c
from hightide.protocol import group_messages as g
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import node_messages as n
from hightide.protocol import producer_messages as p
from hightide.protocol import quorum_messages as q
from hightide.protocol import quota_messages as k
from hightide.protocol.apis import API_BY_REQUEST
from hightide_broker.core.cluster.acls import Operation, Resource
from hightide_broker.core.quorum.leader import METADATA_TOPIC
from hightide_broker.runtime.base.call import Call, Later, Outcome, Reply
from hightide_broker.runtime.cluster.controller_channel import ControllerChannel
from hightide_broker.runtime.quorum.driver import QuorumDriver
from hightide_broker.runtime.server.access_handlers import AccessHandlers
from hightide_broker.runtime.server.admin_handlers import AdminHandlers
from hightide_broker.runtime.server.gate import Permission, Reserved
from hightide_broker.runtime.server.group_handlers import GroupHandlers
from hightide_broker.runtime.server.offset_handlers import OffsetHandlers
from hightide_broker.runtime.server.record_handlers import RecordHandlers
from hightide_broker.runtime.server.routes import Route, every_one, wordless

M = TypeVar("M", bound=m.Message)


def _may(resource: Resource | None, operation: str, *, or_on_cluster: str = "") -> Permission:
    instead = Operation(or_on_cluster) if or_on_cluster else None
    return Permission(Operation(operation), resource, instead)


topic = partial(_may, Resource.TOPIC)
group = partial(_may, Resource.GROUP)
cluster = partial(_may, Resource.CLUSTER)
configured = partial(_may, None)


def row(
    request: type[M],
    begin: Callable[[Call[M]], Outcome],
    *permissions: Permission,
    nodes_only: bool = False,
    broker: bool = False,
    early: bool = False,
    fatal: bool = False,
    reserved: Reserved | None = None,
    when: Callable[[M], bool] = every_one,
) -> Route:
    """A request whose effects are there when `begin` returns, in order of arrival."""
    return Route(
        API_BY_REQUEST[request],
        begin,
        permissions,
        is_for_clients=not nodes_only,
        is_of_broker=broker,
        is_early=early,
        is_fatal=fatal,
        reserved=reserved,
        fits=when,
    )


def later(
    request: type[M],
    answer: Callable[[Call[M]], Awaitable[Reply]],
    *permissions: Permission,
    broker: bool = False,
    reserved: Reserved | None = None,
) -> Route:
    """A request that waits before anything is decided, and so has no order."""

    def begin(call: Call[M]) -> Later:
        return partial(answer, call)

    return row(request, begin, *permissions, broker=broker, reserved=reserved)


def about_records(records: RecordHandlers) -> list[Route]:
    """Records, and offsets of partitions."""
    here, its = partial(row, broker=True), records
    action = cluster("CLUSTER_ACTION")
    return [
        here(m.ProduceRequest, its.produce, topic("WRITE")),
        here(m.FetchRequest, its.fetch, action, when=_is_by_follower, nodes_only=True),
        here(m.FetchRequest, its.fetch, topic("READ"), when=_is_by_consumer),
        here(m.ListOffsetsRequest, its.list_offsets, action, when=_is_by_follower, nodes_only=True),
        here(m.ListOffsetsRequest, its.list_offsets, topic("DESCRIBE"), when=_is_by_consumer),
        here(m.OffsetForLeaderEpochRequest, its.offset_for_leader_epoch, topic("DESCRIBE")),
        here(p.DescribeProducersRequest, its.describe_producers, topic("READ")),
        here(m.DeleteRecordsRequest, its.delete_records, topic("DELETE")),
    ]


def about_groups(groups: GroupHandlers, offsets: OffsetHandlers) -> list[Route]:
    """Groups, and their offsets."""
    here = partial(later, broker=True)
    return [
        here(g.FindCoordinatorRequest, groups.find_coordinator, group("DESCRIBE")),
        here(g.JoinGroupRequest, groups.join_group, group("READ")),
        here(g.SyncGroupRequest, groups.sync_group, group("READ")),
        here(g.GroupHeartbeatRequest, groups.heartbeat, group("READ")),
        here(g.LeaveGroupRequest, groups.leave_group, group("READ")),
        here(
            g.ListGroupsRequest,
            wordless(groups.list_groups),
            group("DESCRIBE", or_on_cluster="DESCRIBE"),
        ),
        here(g.DescribeGroupsRequest, groups.describe_groups, group("DESCRIBE")),
        here(g.DeleteGroupsRequest, groups.delete_groups, group("DELETE")),
        here(g.OffsetCommitRequest, offsets.offset_commit, group("READ"), topic("READ")),
        here(g.OffsetFetchRequest, offsets.offset_fetch, group("DESCRIBE"), topic("DESCRIBE")),
        here(g.OffsetDeleteRequest, offsets.offset_delete, group("DELETE"), topic("READ")),
    ]


def about_the_cluster(admin: AdminHandlers) -> list[Route]:
    """What every node knows or passes on to the active controller; and producers' ids, of which
    each broker has a block."""
    its_own = partial(row, broker=True)
    return [
        its_own(
            p.InitProducerIdRequest,
            wordless(admin.init_producer_id),
            topic("WRITE", or_on_cluster="IDEMPOTENT_WRITE"),
        ),
        row(m.MetadataRequest, admin.metadata, topic("DESCRIBE")),
        row(m.DescribeClusterRequest, wordless(admin.describe_cluster)),
        row(m.DescribeLogDirsRequest, admin.describe_log_dirs, cluster("DESCRIBE")),
        row(n.DescribeNodeRequest, wordless(admin.describe_node), cluster("DESCRIBE")),
        row(
            n.DescribeMetadataLogRequest,
            wordless(admin.describe_metadata_log),
            cluster("DESCRIBE"),
        ),
        later(n.ReadTraceRequest, admin.read_trace, cluster("DESCRIBE")),
        row(m.DescribeConfigsRequest, admin.describe_configs, configured("DESCRIBE_CONFIGS")),
        later(m.CreateTopicsRequest, admin.change, topic("CREATE", or_on_cluster="CREATE")),
        later(m.DeleteTopicsRequest, admin.change, topic("DELETE")),
        later(m.CreatePartitionsRequest, admin.change, topic("ALTER")),
        later(m.AlterConfigsRequest, admin.change, configured("ALTER_CONFIGS")),
        later(m.ElectLeadersRequest, admin.change, cluster("ALTER")),
        later(q.AddVoterRequest, admin.change, cluster("ALTER")),
        later(q.RemoveVoterRequest, admin.change, cluster("ALTER")),
        later(
            q.DescribeQuorumRequest,
            admin.describe_quorum,
            cluster("DESCRIBE"),
            reserved=Reserved((Operation.ALTER, Operation.CLUSTER_ACTION), _without_addresses),
        ),
    ]


def about_access(access: AccessHandlers, admin: AdminHandlers) -> list[Route]:
    """Who may come in, who may do what, and how much of it."""

    async def change(call: Call[m.Message]) -> Reply:
        access.check_on()
        return await admin.change(call)

    alter, describe = cluster("ALTER"), cluster("DESCRIBE")
    return [
        row(u.SaslHandshakeRequest, access.too_late),
        row(u.SaslAuthenticateRequest, access.too_late),
        later(k.AlterClientQuotasRequest, admin.change, cluster("ALTER_CONFIGS")),
        row(
            k.DescribeClientQuotasRequest,
            wordless(access.describe_quotas),
            cluster("DESCRIBE_CONFIGS"),
        ),
        later(u.AlterUserScramCredentialsRequest, admin.change, alter),
        row(u.DescribeUserScramCredentialsRequest, access.describe_users, describe),
        later(a.CreateAclsRequest, change, alter),
        later(a.DeleteAclsRequest, change, alter),
        row(a.DescribeAclsRequest, access.describe_acls, describe),
        row(a.ExplainAccessRequest, access.explain_access, describe),
    ]


def about_the_quorum(quorum: QuorumDriver, channel: ControllerChannel) -> list[Route]:
    """What nodes ask each other, also before they serve anybody."""
    action = cluster("CLUSTER_ACTION")
    asked = partial(row, nodes_only=True, early=True)
    return [
        asked(c.VoteRequest, quorum.begin, action),
        asked(c.BeginQuorumEpochRequest, quorum.begin, action),
        asked(c.EndQuorumEpochRequest, quorum.begin, action),
        asked(c.FetchSnapshotRequest, quorum.begin, action),
        asked(m.FetchRequest, quorum.begin, action, when=_is_of_metadata),
        asked(c.EnvelopeRequest, channel.open_envelope, action, fatal=True),
    ]


def _without_addresses(found: q.DescribeQuorumResponse) -> q.DescribeQuorumResponse:
    """Where voters listen is the nodes' door: who changes the voters has to name it, nobody else
    has anything to do there."""
    voters = [exchanged(voter, host="", port=-1) for voter in found.voters]
    return exchanged(found, voters=voters)


def _is_of_metadata(request: m.FetchRequest) -> bool:
    return any(part.topic == METADATA_TOPIC for part in request.partitions)


def _is_by_follower(request: m.FetchRequest | m.ListOffsetsRequest) -> bool:
    return request.replica_id >= 0


def _is_by_consumer(request: m.FetchRequest | m.ListOffsetsRequest) -> bool:
    return request.replica_id < 0
