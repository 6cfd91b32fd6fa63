"""Who is not allowed to does not, and learns nothing; who is allowed is served as ever.

Goal: every API, without a rule, with the rule it needs, with one that denies, with another
user's; answers
that do not tell what exists; what is allowed of a request that names several. Method: one node
with both doors under TLS, users by certificate, requests on the wire.
"""

import logging
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

import msgspec
import pytest
import trio
from brokers import Client, batch, new_node, settings
from certificates import Authority
from patience import PATIENCE_S
from test_doors import inside, outside

from hightide import Acl, AclPattern, Admin, Consumer
from hightide.net.connection import open_connection
from hightide.net.ports import SystemClock
from hightide.net.tls import Tls
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import access_messages as a
from hightide.protocol import controller_messages as c
from hightide.protocol import group_messages as g
from hightide.protocol import login_messages as u
from hightide.protocol import messages as m
from hightide.protocol import node_messages as n
from hightide.protocol import producer_messages as p
from hightide.protocol import quorum_messages as q
from hightide.protocol import quota_messages as k
from hightide.protocol.apis import API_BY_REQUEST, APIS
from hightide.protocol.errors import ApiError, ErrorCode, Refused
from hightide_broker.config import ConfigError, check_listeners
from hightide_broker.runtime.base.call import Call, Peer
from hightide_broker.simulation.disk import SimDisk

TOPIC, GROUP, CLUSTER = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
DENIALS = {TOPIC, GROUP, CLUSTER}
FREE = {"api_versions", "describe_cluster", "sasl_handshake", "sasl_authenticate"}


def part(kind, topic="t", **more):
    return [kind(topic=topic, partition=0, **more)]


def setting(kind, name):
    return m.AlterConfigsRequest(
        resources=[m.ConfigChange(kind=kind, name=name, set={"retention.ms": "1000"})]
    )


def produce(topic="t", acks=-1):
    parts = [m.ProducePartition(topic=topic, partition=0, records=0)]
    return m.ProduceRequest(acks=acks, timeout_ms=1000, partitions=parts)


def commit(topic="t"):
    return g.OffsetCommitRequest(group="g", partitions=part(g.CommitPartition, topic, offset=1))


class Sample(NamedTuple):
    """A request, how it is refused, and the rules that it needs; the last one last."""

    request: m.Message
    refusal: ErrorCode
    needed: tuple[str, ...]


def of_topic(request, *needed):
    return Sample(request, TOPIC, needed)


def of_group(request, *needed):
    return Sample(request, GROUP, needed)


def of_cluster(request, needed):
    return Sample(request, CLUSTER, (f"{needed} cluster:cluster",))


def new_topic(name):
    return m.CreateTopicsRequest(topics=[m.NewTopic(topic=name)])


def configs(kind, name):
    return m.DescribeConfigsRequest(resources=[m.ConfigResource(kind=kind, name=name)])


def fetch(*topics):
    parts = [part(m.FetchPartition, topic, fetch_offset=0)[0] for topic in topics]
    return m.FetchRequest(max_wait_ms=0, partitions=parts)


ONE = part(g.GroupPartition)
END = part(m.ListOffsetsPartition, timestamp=m.LATEST)
EXPLAIN = a.ExplainAccessRequest(principal="User:x", operation="READ", resource="topic", name="t")
MEMBER = {"group": "g", "member_id": "m"}

SAMPLES = [
    of_topic(m.MetadataRequest(topics=["t"]), "DESCRIBE topic:t"),
    of_topic(produce(), "WRITE topic:t"),
    of_topic(fetch("t"), "READ topic:t"),
    of_topic(m.ListOffsetsRequest(partitions=END), "DESCRIBE topic:t"),
    of_topic(
        m.OffsetForLeaderEpochRequest(partitions=part(m.EpochPartition, leader_epoch=0)),
        "DESCRIBE topic:t",
    ),
    of_topic(
        p.DescribeProducersRequest(partitions=part(p.ProducerQuestion, producer_id=1)),
        "READ topic:t",
    ),
    of_topic(
        m.DeleteRecordsRequest(partitions=part(m.DeleteRecordsPartition, offset=0)),
        "DELETE topic:t",
    ),
    of_topic(p.InitProducerIdRequest(), "WRITE topic:whatever"),
    of_topic(p.InitProducerIdRequest(), "IDEMPOTENT_WRITE cluster:cluster"),
    of_topic(new_topic("new"), "CREATE topic:new"),
    of_topic(new_topic("other"), "CREATE cluster:cluster"),
    of_topic(
        m.CreatePartitionsRequest(topics=[m.MorePartitions(topic="t", count=2)]), "ALTER topic:t"
    ),
    of_topic(configs("topic", "t"), "DESCRIBE_CONFIGS topic:t"),
    of_cluster(configs("broker", "1"), "DESCRIBE_CONFIGS"),
    of_topic(setting("topic", "t"), "ALTER_CONFIGS topic:t"),
    of_cluster(setting("cluster", ""), "ALTER_CONFIGS"),
    of_cluster(m.DescribeLogDirsRequest(), "DESCRIBE"),
    of_cluster(n.DescribeNodeRequest(), "DESCRIBE"),
    of_cluster(n.DescribeMetadataLogRequest(), "DESCRIBE"),
    of_cluster(n.ReadTraceRequest(), "DESCRIBE"),
    of_cluster(m.ElectLeadersRequest(), "ALTER"),
    of_cluster(q.AddVoterRequest(id=9, host="h", port=1), "ALTER"),
    of_cluster(q.RemoveVoterRequest(id=9), "ALTER"),
    of_cluster(q.DescribeQuorumRequest(), "DESCRIBE"),
    of_cluster(k.AlterClientQuotasRequest(quotas=[]), "ALTER_CONFIGS"),
    of_cluster(k.DescribeClientQuotasRequest(), "DESCRIBE_CONFIGS"),
    of_cluster(u.AlterUserScramCredentialsRequest(), "ALTER"),
    of_cluster(u.DescribeUserScramCredentialsRequest(), "DESCRIBE"),
    of_cluster(a.CreateAclsRequest(acls=[]), "ALTER"),
    of_cluster(a.DeleteAclsRequest(filters=[]), "ALTER"),
    of_cluster(a.DescribeAclsRequest(), "DESCRIBE"),
    of_cluster(EXPLAIN, "DESCRIBE"),
    of_group(g.FindCoordinatorRequest(group="g"), "DESCRIBE group:g"),
    of_group(g.JoinGroupRequest(**MEMBER, protocols=[]), "READ group:g"),
    of_group(g.SyncGroupRequest(**MEMBER, generation=1), "READ group:g"),
    of_group(g.GroupHeartbeatRequest(**MEMBER, generation=1), "READ group:g"),
    of_group(g.LeaveGroupRequest(group="g", members=[]), "READ group:g"),
    of_group(commit(), "READ group:g", "READ topic:t"),
    of_group(
        g.OffsetFetchRequest(group="g", partitions=ONE), "DESCRIBE group:g", "DESCRIBE topic:t"
    ),
    of_group(g.OffsetDeleteRequest(group="g", partitions=ONE), "DELETE group:g", "READ topic:t"),
    of_group(g.DescribeGroupsRequest(groups=["g"]), "DESCRIBE group:g"),
    of_group(g.DeleteGroupsRequest(groups=["g"]), "DELETE group:g"),
    of_topic(m.DeleteTopicsRequest(topics=["t"]), "DELETE topic:t"),
]
EVERYTHING = ("ALL topic:*", "ALL group:*", "ALL cluster:cluster")


def rules(*texts, user="alice", permission="ALLOW"):
    """Rules as in `READ topic:t`; a name that ends with a star is a prefix."""
    found = []
    for text in texts:
        operation, _, (kind, _, name) = *text.partition(" ")[:2], text.split()[1].partition(":")
        is_prefix = name.endswith("*") and name != "*"
        pattern = "PREFIXED" if is_prefix else "LITERAL"
        name = name.removesuffix("*") if is_prefix else name
        found.append(Acl(kind, name, pattern, f"User:{user}", "*", operation, permission))
    return found


class Guarded:
    """A node that asks for permissions; `admin` may do everything, `alice` what rules say."""

    def __init__(self, node, admin, alice, options):
        self.options = options
        self.node = node
        self.admin = admin
        self.alice = alice

    async def codes(self, request):
        """All that is refused of a request of alice's."""
        data = [batch(b"x")] if isinstance(request, m.ProduceRequest) else []
        try:
            answer = await self.alice.call(request, *data)
        except ApiError as error:
            return {error.code}
        found = {getattr(answer, "error", None)}
        for field in ("partitions", "topics", "groups", "resources", "acls"):
            parts = getattr(answer, field, [])
            found |= {getattr(each, "error", None) for each in parts} if parts != 0 else set()
        return found - {None}

    async def commit_at_last(self):
        """Until the group's coordinator is there."""
        await self.admin.cluster.call_any(g.FindCoordinatorRequest(group="g"), timeout_s=PATIENCE_S)
        with trio.fail_after(PATIENCE_S):
            while await self.codes(commit()):
                await trio.sleep(0.01)

    async def only(self, *made):
        """There are these rules, and no others."""
        await self.admin.delete_acls(AclPattern())
        await self.admin.create_acls(made)


@asynccontextmanager
async def guarded(tmp_path, disk=None, **over):
    nodes, clients = Authority(tmp_path / "nodes"), Authority(tmp_path / "clients")
    config = settings(
        {
            **inside(nodes.issue("node-1")),
            **outside(clients.issue("broker"), "required"),
            "authorizer.enable": "true",
            "super.users": "User:admin; User:root",
            **{name.replace("_", "."): value for name, value in over.items()},
        }
    )
    mine, files = clients.issue("admin"), clients.issue("alice")
    options = {
        "security_protocol": "SSL",
        "ssl_ca_location": mine.authorities,
        "ssl_certificate_location": mine.certificate,
        "ssl_key_location": mine.key,
    }
    async with (
        new_node(disk or SimDisk(), config, SystemClock()) as node,
        Admin(f"127.0.0.1:{node.port}", **options) as admin,
        open_connection(TlsNetwork(Tls(files)), "127.0.0.1", node.port) as connection,
    ):
        if "t" not in node.image.topics:
            await admin.create_topic("t")
        alice = options | {
            "ssl_certificate_location": files.certificate,
            "ssl_key_location": files.key,
        }
        yield Guarded(node, admin, Client(connection), alice)


def test_every_request_of_clients_is_in_the_samples_or_free():
    """Whoever adds one says what it takes."""
    asked = {API_BY_REQUEST[type(each.request)].name for each in SAMPLES} | {"list_groups"}
    of_nodes = {"vote", "begin_quorum_epoch", "end_quorum_epoch", "fetch_snapshot", "envelope"}
    of_nodes |= {"register_broker", "broker_heartbeat", "allocate_producer_ids", "alter_partition"}
    assert asked | FREE | of_nodes == {api.name for api in APIS}


async def test_each_request_needs_what_the_table_says_and_nothing_else(tmp_path):
    denials = rules(*EVERYTHING, permission="DENY")
    async with guarded(tmp_path) as world:
        for request, refusal, needed in SAMPLES:
            name = f"{request} with"
            for made, told in (
                ((), "no rule"),
                (rules(*needed, user="bob"), "another's"),
                ([*rules(*EVERYTHING), *denials], "rules that deny"),
            ):
                await world.only(*made)
                assert await world.codes(request) == {refusal}, f"{name} {told}"
            if needed[1:]:
                await world.only(*rules(needed[0]))
                assert await world.codes(request) == {TOPIC}, f"{name} half"
            await world.only(*rules(*needed))
            assert not await world.codes(request) & DENIALS, f"{name} what it needs"


async def test_a_topic_that_is_there_and_one_that_is_not_are_refused_alike(tmp_path):
    async with guarded(tmp_path) as world:
        requests = (
            lambda name: m.MetadataRequest(topics=[name], auto_create=True),
            produce,
            lambda name: m.DeleteTopicsRequest(topics=[name]),
            lambda name: m.CreatePartitionsRequest(topics=[m.MorePartitions(topic=name, count=3)]),
            lambda name: setting("topic", name),
        )
        for request in requests:
            told = []
            for name in ("t", "u"):
                asked = request(name)
                data = [batch(b"x")] if isinstance(asked, m.ProduceRequest) else []
                answer = await world.alice.call(asked, *data)
                text = msgspec.msgpack.encode(answer).replace(b"\xa1" + name.encode(), b"?")
                told.append(text.replace(f"'{name}'".encode(), b"?"))
            assert told[0] == told[1]
        assert "u" not in world.node.image.topics


async def test_what_is_allowed_of_a_request_is_done(tmp_path):
    async with guarded(tmp_path) as world:
        await world.admin.create_topic("secret")
        await world.only(*rules("WRITE topic:t", "READ topic:t", "DESCRIBE topic:t"))
        parts = [
            m.ProducePartition(topic=name, partition=0, records=number)
            for number, name in enumerate(("secret", "t"))
        ]
        request = m.ProduceRequest(acks=-1, timeout_ms=1000, partitions=parts)
        answer = await world.alice.call(request, batch(b"no"), batch(b"yes"))
        assert {each.topic: each.error for each in answer.partitions} == {
            "secret": TOPIC,
            "t": None,
        }
        assert await world.alice.values() == [b"yes"]
        assert world.node.replicas.get("secret", 0).log.log_end == 0
        answer = await world.alice.call(fetch("secret", "t"))
        assert {each.topic: each.error for each in answer.partitions} == {
            "secret": TOPIC,
            "t": None,
        }


async def test_of_everything_only_what_may_be_known_is_shown(tmp_path):
    async with guarded(tmp_path) as world:
        for name in ("orders", "orders-old", "secret"):
            await world.admin.create_topic(name)
        await world.only(*rules("READ topic:orders*"))
        shown = await world.alice.call(m.MetadataRequest())
        assert [each.topic for each in shown.topics] == ["orders", "orders-old"]
        await world.only(*rules("READ group:g", "READ topic:t"))
        await world.commit_at_last()
        assert [e.group for e in (await world.alice.call(g.ListGroupsRequest())).groups] == ["g"]
        await world.only(*rules("READ group:g"))
        found = await world.alice.call(g.OffsetFetchRequest(group="g"))
        assert found.partitions == [], "a topic that may not be described"
        await world.only()
        assert (await world.alice.call(g.ListGroupsRequest())).groups == []


async def test_without_acks_the_connection_of_who_may_not_is_closed(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with guarded(tmp_path) as world:
        answer = await world.alice.connection.begin(produce(acks=0), [batch(b"x")])
        world.alice.connection.forget(answer.id)
        with trio.fail_after(PATIENCE_S):
            while world.alice.connection.is_open:
                await trio.sleep(0.01)
        assert world.node.replicas.get("t", 0).log.log_end == 0
    assert "acks=0 and TOPIC_AUTHORIZATION_FAILED" in caplog.text


async def test_who_may_describe_a_topic_does_not_make_one_by_asking(tmp_path):
    async with guarded(tmp_path, auto_create_topics_enable="true") as world:
        asked = m.MetadataRequest(topics=["made"], auto_create=True)
        await world.only(*rules("DESCRIBE topic:made"))
        assert await world.codes(asked) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        await world.only(*rules("DESCRIBE topic:made", "CREATE topic:made"))
        assert await world.codes(asked) == set()
        assert "made" in world.node.image.topics


async def test_a_request_that_is_passed_on_is_judged_as_its_sender_where_it_is_decided(tmp_path):
    """The node that it came to may know less, or may have waited meanwhile."""
    async with guarded(tmp_path) as world:
        new = m.CreateTopicsRequest(topics=[m.NewTopic(topic="n")])
        envelope = partial(
            c.EnvelopeRequest, api="create_topics", body=msgspec.Raw(msgspec.msgpack.encode(new))
        )
        channel, alice = world.node.channel, Peer("10.0.0.1", "User:alice")
        for way in (
            channel.open_envelope(Call(envelope(principal="User:alice"), peer=Peer(node=1))),
            partial(channel.ask, new, sender=alice),
        ):
            with pytest.raises(Refused, match="User:alice may not CREATE topic:'n'") as refused:
                await way()
            assert refused.value.code is TOPIC
        await world.node.change(new, sender=Peer("10.0.0.1", "User:admin"))
        assert "n" in world.node.image.topics


async def test_while_rules_may_be_missing_only_super_users_are_served(tmp_path):
    async with guarded(tmp_path, allow_everyone_if_no_acl_found="true") as world:
        gate = world.node._table._gate
        gate._has_been_current, gate._is_current = False, bool
        assert await world.codes(fetch("t")) == {ErrorCode.BROKER_NOT_AVAILABLE}
        assert len(await world.admin.list_topics()) == 1
        gate._is_current = lambda: True
        assert await world.codes(fetch("t")) == set()
        gate._is_current = bool
        assert await world.codes(fetch("t")) == set(), "it knows them from now on"


async def test_a_request_that_names_more_than_can_be_judged_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("hightide_broker.runtime.server.gate.PARTS_MAX", 2)
    async with guarded(tmp_path) as world:
        for topics, refused in ((["a", "b"], {TOPIC}), (["a", "b", "c"], {"INVALID_REQUEST"})):
            assert await world.codes(m.DeleteTopicsRequest(topics=topics)) == refused


async def test_a_name_that_nothing_has_is_not_remembered_and_is_shown_cut(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hightide.audit")
    async with guarded(tmp_path) as world:
        assert await world.codes(g.FindCoordinatorRequest(group="g" * 10_000)) == {GROUP}
        assert await world.codes(g.FindCoordinatorRequest(group="g")) == {GROUP}
        known = {name for *_, name in world.node._table._gate.authorizer._known}
    assert {name for name in known if name.startswith("g")} == {"g"}
    assert max(map(len, caplog.messages)) < 300


async def test_nobody_hides_behind_the_noise_of_another(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hightide.audit")
    async with guarded(tmp_path) as world:
        gate = world.node._table._gate
        for number in range(50):
            gate.tell_refused(Peer("h", "User:mallory"), f"noise {number}")
        await world.codes(m.DeleteTopicsRequest(topics=["quiet"]))
    assert any("topic:'quiet'" in each for each in caplog.messages)


async def test_decisions_are_written_down_and_names_cannot_forge_lines(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hightide.audit")
    async with guarded(tmp_path) as world:
        asked = m.DeleteTopicsRequest(topics=["x\nallowed: everything"])
        assert await world.codes(asked) == {TOPIC}
    said = [each for each in caplog.messages if "denied" in each]
    assert said == [
        "denied: User:alice may not DELETE topic:'x\\nallowed: everything' "
        "(delete_topics: no rule allows it), from 127.0.0.1"
    ]
    assert "allowed: User:admin create_topics 't', from 127.0.0.1" in caplog.messages
    assert not [each for each in caplog.messages if each.startswith("allowed: User:alice")]


async def test_rules_hold_after_a_restart(tmp_path):
    disk = SimDisk()
    async with guarded(tmp_path, disk) as world:
        await world.only(*rules("READ topic:t"), *rules("DESCRIBE topic:t", permission="DENY"))
        made = await world.admin.describe_acls()
    async with guarded(tmp_path, disk) as world:
        assert await world.codes(fetch("t")) == set()
        assert await world.codes(m.MetadataRequest(topics=["t"])) == {TOPIC}
        assert await world.admin.describe_acls() == made
        assert len(made) == 2


async def test_who_reads_a_topic_that_it_may_not_see_in_a_group_hears_so(tmp_path):
    async with guarded(tmp_path) as world:
        await world.only(*rules("READ topic:t", "READ group:g"))
        address = f"127.0.0.1:{world.node.port}"
        options = {"topics": ["t", "secret"], "group_id": "g", **world.options}
        async with Consumer(address, **options) as consumer:
            with trio.fail_after(PATIENCE_S), pytest.raises(ApiError, match="topic:'secret'"):
                await poll_for_ever(consumer)


async def poll_for_ever(consumer):
    while True:
        await consumer.poll(timeout_ms=50)


async def test_a_member_whose_group_is_taken_away_hears_so_and_goes_on_when_it_is_back(tmp_path):
    async with guarded(tmp_path) as world:
        mine = rules("READ topic:t", "READ group:g")
        await world.only(*mine)
        options = {"group_id": "g", "heartbeat_interval_ms": 50, "auto_offset_reset": "earliest"}
        address = f"127.0.0.1:{world.node.port}"
        async with Consumer(address, topics=["t"], **options, **world.options) as consumer:
            with trio.fail_after(PATIENCE_S):
                while not consumer.assignment():
                    await consumer.poll(timeout_ms=50)
                await world.only(rules("READ topic:t")[0])
                with pytest.raises(ApiError, match="GROUP_AUTHORIZATION_FAILED"):
                    await poll_for_ever(consumer)
                await world.only(*mine)
                while not consumer.assignment():
                    with suppress(ApiError):  # from before
                        await consumer.poll(timeout_ms=50)


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"internal.security.protocol": "PLAINTEXT"}, "expected SSL: who may be taken for a node"),
        ({"super.users": "admin"}, "super.users has 'admin', expected User:<name>"),
    ],
)
def test_permissions_that_anybody_could_go_around_do_not_start(tmp_path, over, said):
    nodes = Authority(tmp_path)
    config = settings({**inside(nodes.issue("node-1")), "authorizer.enable": "true", **over})
    with pytest.raises(ConfigError, match=said):
        check_listeners(config)


async def test_where_nobody_asks_for_permissions_rules_are_refused(tmp_path):
    async with (
        new_node(SimDisk(), settings(), SystemClock()) as node,
        Admin(f"127.0.0.1:{node.port}") as admin,
    ):
        with pytest.raises(ApiError, match=r"authorizer\.enable is false") as refused:
            await admin.create_acls(rules("READ topic:t"))
        assert refused.value.code is ErrorCode.SECURITY_DISABLED
        with pytest.raises(ApiError, match="SECURITY_DISABLED"):
            await admin.describe_acls()
