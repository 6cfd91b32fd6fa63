"""The registry of APIs: what may be asked, by which name, in which versions. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hightide.protocol import access_messages as a
from hightide.protocol import controller_messages as c
from hightide.protocol import group_messages as g
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import node_messages as n
from hightide.protocol import producer_messages as p
from hightide.protocol import quorum_messages as q
from hightide.protocol import quota_messages as k


class Api(NamedTuple):
    """One kind of request: its name on the wire, its two messages and the versions spoken here."""

    name: str
    request: type[m.Message]
    response: type[m.Message]
    min_version: int = 1
    max_version: int = 1


APIS: tuple[Api, ...] = (
    Api("api_versions", m.ApiVersionsRequest, m.ApiVersionsResponse),
    Api("metadata", m.MetadataRequest, m.MetadataResponse),
    Api("produce", m.ProduceRequest, m.ProduceResponse),
    Api("fetch", m.FetchRequest, m.FetchResponse),
    Api("list_offsets", m.ListOffsetsRequest, m.ListOffsetsResponse),
    Api("offset_for_leader_epoch", m.OffsetForLeaderEpochRequest, m.OffsetForLeaderEpochResponse),
    Api("init_producer_id", p.InitProducerIdRequest, p.InitProducerIdResponse),
    Api("create_topics", m.CreateTopicsRequest, m.CreateTopicsResponse),
    Api("delete_topics", m.DeleteTopicsRequest, m.DeleteTopicsResponse),
    Api("create_partitions", m.CreatePartitionsRequest, m.CreatePartitionsResponse),
    Api("delete_records", m.DeleteRecordsRequest, m.DeleteRecordsResponse),
    Api("describe_configs", m.DescribeConfigsRequest, m.DescribeConfigsResponse),
    Api("alter_configs", m.AlterConfigsRequest, m.AlterConfigsResponse),
    Api("describe_cluster", m.DescribeClusterRequest, m.DescribeClusterResponse),
    Api("describe_log_dirs", m.DescribeLogDirsRequest, m.DescribeLogDirsResponse),
    Api("describe_node", n.DescribeNodeRequest, n.DescribeNodeResponse),
    Api("describe_metadata_log", n.DescribeMetadataLogRequest, n.DescribeMetadataLogResponse),
    Api("read_trace", n.ReadTraceRequest, n.ReadTraceResponse),
    Api("describe_producers", p.DescribeProducersRequest, p.DescribeProducersResponse),
    Api("register_broker", c.RegisterBrokerRequest, c.RegisterBrokerResponse),
    Api("broker_heartbeat", c.BrokerHeartbeatRequest, c.BrokerHeartbeatResponse),
    Api("allocate_producer_ids", c.AllocateProducerIdsRequest, c.AllocateProducerIdsResponse),
    Api("alter_partition", c.AlterPartitionRequest, c.AlterPartitionResponse),
    Api("elect_leaders", m.ElectLeadersRequest, m.ElectLeadersResponse),
    Api("envelope", c.EnvelopeRequest, c.EnvelopeResponse),
    Api("vote", c.VoteRequest, c.VoteResponse),
    Api("begin_quorum_epoch", c.BeginQuorumEpochRequest, c.BeginQuorumEpochResponse),
    Api("end_quorum_epoch", c.EndQuorumEpochRequest, c.EndQuorumEpochResponse),
    Api("fetch_snapshot", c.FetchSnapshotRequest, c.FetchSnapshotResponse),
    Api("add_voter", q.AddVoterRequest, q.AddVoterResponse),
    Api("remove_voter", q.RemoveVoterRequest, q.RemoveVoterResponse),
    Api("describe_quorum", q.DescribeQuorumRequest, q.DescribeQuorumResponse),
    Api("sasl_handshake", u.SaslHandshakeRequest, u.SaslHandshakeResponse),
    Api("sasl_authenticate", u.SaslAuthenticateRequest, u.SaslAuthenticateResponse),
    Api(
        "alter_user_scram_credentials",
        u.AlterUserScramCredentialsRequest,
        u.AlterUserScramCredentialsResponse,
    ),
    Api(
        "describe_user_scram_credentials",
        u.DescribeUserScramCredentialsRequest,
        u.DescribeUserScramCredentialsResponse,
    ),
    Api("alter_client_quotas", k.AlterClientQuotasRequest, k.AlterClientQuotasResponse),
    Api("describe_client_quotas", k.DescribeClientQuotasRequest, k.DescribeClientQuotasResponse),
    Api("create_acls", a.CreateAclsRequest, a.CreateAclsResponse),
    Api("describe_acls", a.DescribeAclsRequest, a.DescribeAclsResponse),
    Api("delete_acls", a.DeleteAclsRequest, a.DeleteAclsResponse),
    Api("explain_access", a.ExplainAccessRequest, a.ExplainAccessResponse),
    Api("find_coordinator", g.FindCoordinatorRequest, g.FindCoordinatorResponse),
    Api("join_group", g.JoinGroupRequest, g.JoinGroupResponse),
    Api("sync_group", g.SyncGroupRequest, g.SyncGroupResponse),
    Api("heartbeat", g.GroupHeartbeatRequest, g.GroupHeartbeatResponse),
    Api("leave_group", g.LeaveGroupRequest, g.LeaveGroupResponse),
    Api("offset_commit", g.OffsetCommitRequest, g.OffsetCommitResponse),
    Api("offset_fetch", g.OffsetFetchRequest, g.OffsetFetchResponse),
    Api("offset_delete", g.OffsetDeleteRequest, g.OffsetDeleteResponse),
    Api("list_groups", g.ListGroupsRequest, g.ListGroupsResponse),
    Api("describe_groups", g.DescribeGroupsRequest, g.DescribeGroupsResponse),
    Api("delete_groups", g.DeleteGroupsRequest, g.DeleteGroupsResponse),
)
API_BY_NAME: dict[str, Api] = {api.name: api for api in APIS}
API_BY_REQUEST: dict[type[m.Message], Api] = {api.request: api for api in APIS}
