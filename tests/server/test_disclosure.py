"""Who may not have something does not learn from the refusal whether it is there.

Goal: each request that names a topic or a group, about one that is there and about one that is not,
by somebody who may not: the two answers are the same bytes, but for the name. Method: one node with
both doors under TLS; frames as they come off the wire, all with the same number; and as a control
the same two questions by somebody who may ask, whom most answers tell which of them is there.
"""

from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import msgspec
import pytest
import trio
from brokers import batch
from group_world import Asking
from msgspec.structs import replace as exchanged
from patience import PATIENCE_MS
from streams import send_all
from test_gate import EVERYTHING, guarded, part, rules
from test_routes import rows

from hightide.net.connection import FrameReader
from hightide.net.tls import Tls, TlsFiles
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import access_messages as a
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol import producer_messages as p
from hightide.protocol import quorum_messages as q
from hightide.protocol import wire
from hightide.protocol.apis import API_BY_NAME, API_BY_REQUEST
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.acls import Operation
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC
from hightide_broker.runtime.base.call import Peer
from hightide_broker.runtime.server.parts import PARTS

THERE, ABSENT = "apple", "melon"
"""A topic and a group that are there, both called so; and what nothing is called."""
REFUSED = b"_AUTHORIZATION_FAILED"
NUMBER = 7
SESSION_MS = 1_800_000
READING = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
DECIDED = (
    "create_topics",
    "create_partitions",
    "alter_configs",
    "elect_leaders",
    "create_acls",
    "delete_acls",
    "delete_topics",
)
"""What a broker passes on to the active controller."""


class Question(NamedTuple):
    """A request that names one topic or group."""

    about: object
    """Makes it, given the name."""
    rights: tuple = ()
    """What its sender may: all that it takes but for the name."""
    tells: bool = True
    """Whether its answer, to who may ask, depends on whether it is there."""


def of(kind, part_kind, **more):
    """About a partition of the topic."""
    return lambda name: kind(partitions=part(part_kind, name, **more))


def in_group(kind, **more):
    """About a group, by one who may be no member of it."""
    return lambda name: kind(group=name, **more)


def produce(name):
    parts = [m.ProducePartition(topic=name, partition=0, records=0)]
    return m.ProduceRequest(acks=-1, timeout_ms=PATIENCE_MS, partitions=parts)


def fetch(name, topic_id=""):
    return m.FetchRequest(
        max_wait_ms=0, partitions=part(m.FetchPartition, name, fetch_offset=0, topic_id=topic_id)
    )


def commit(group, topic, generation=-1):
    parts = part(g.CommitPartition, topic, offset=1)
    return g.OffsetCommitRequest(group=group, generation=generation, partitions=parts)


def rule(name):
    return a.AclRule(resource="topic", name=name, principal="User:x", operation="READ")


def acls_about(name):
    return a.AclFilter(resource="topic", name=name)


MEMBER = {"member_id": "nobody"}
OF_T = part(g.GroupPartition)
CHANGE = {"kind": "topic", "set": {"retention.ms": "1000"}}

QUESTIONS = {
    "metadata": [
        Question(lambda name: m.MetadataRequest(topics=[name])),
        Question(lambda name: m.MetadataRequest(topics=[name], auto_create=True), tells=False),
    ],
    "produce": [Question(produce)],
    "fetch": [
        Question(fetch),
        Question(lambda name: fetch(name, "0" * 32)),
        Question(lambda name: exchanged(fetch(name), session_id=1), tells=False),
    ],
    "list_offsets": [
        Question(of(m.ListOffsetsRequest, m.ListOffsetsPartition, timestamp=m.LATEST))
    ],
    "offset_for_leader_epoch": [
        Question(of(m.OffsetForLeaderEpochRequest, m.EpochPartition, leader_epoch=0)),
        Question(
            of(
                m.OffsetForLeaderEpochRequest,
                m.EpochPartition,
                leader_epoch=0,
                current_leader_epoch=99,
            )
        ),
    ],
    "describe_producers": [
        Question(of(p.DescribeProducersRequest, p.ProducerQuestion, producer_id=1))
    ],
    "delete_records": [Question(of(m.DeleteRecordsRequest, m.DeleteRecordsPartition, offset=0))],
    "create_topics": [
        Question(
            lambda name: m.CreateTopicsRequest(topics=[m.NewTopic(topic=name)], validate_only=True)
        ),
        Question(
            lambda name: m.CreateTopicsRequest(
                topics=[m.NewTopic(topic=name, assignment=[[99]])], validate_only=True
            )
        ),
    ],
    "create_partitions": [
        Question(
            lambda name: m.CreatePartitionsRequest(
                topics=[m.MorePartitions(topic=name, count=2)], validate_only=True
            )
        )
    ],
    "describe_configs": [
        Question(
            lambda name: m.DescribeConfigsRequest(
                resources=[m.ConfigResource(kind="topic", name=name)]
            )
        )
    ],
    "alter_configs": [
        Question(
            lambda name: m.AlterConfigsRequest(
                resources=[m.ConfigChange(name=name, **CHANGE)], validate_only=True
            )
        )
    ],
    "elect_leaders": [
        Question(lambda name: m.ElectLeadersRequest(partitions=part(m.PartitionName, name)))
    ],
    "describe_log_dirs": [Question(lambda name: m.DescribeLogDirsRequest(topics=[name]))],
    "create_acls": [Question(lambda name: a.CreateAclsRequest(acls=[rule(name)]), tells=False)],
    "delete_acls": [
        Question(lambda name: a.DeleteAclsRequest(filters=[acls_about(name)]), tells=False)
    ],
    "describe_acls": [
        Question(lambda name: a.DescribeAclsRequest(filter=acls_about(name)), tells=False)
    ],
    "explain_access": [
        Question(
            lambda name: a.ExplainAccessRequest(
                principal="User:x", operation="READ", resource="topic", name=name
            ),
            tells=False,
        )
    ],
    "find_coordinator": [Question(in_group(g.FindCoordinatorRequest), tells=False)],
    "join_group": [Question(in_group(g.JoinGroupRequest, **MEMBER, protocols=[]))],
    "sync_group": [Question(in_group(g.SyncGroupRequest, **MEMBER, generation=1))],
    "heartbeat": [Question(in_group(g.GroupHeartbeatRequest, **MEMBER, generation=1))],
    "leave_group": [
        Question(in_group(g.LeaveGroupRequest, members=[g.LeavingMember(reason="", **MEMBER)]))
    ],
    "offset_commit": [
        Question(lambda name: commit(name, "t", 5), ("READ topic:t",)),
        Question(lambda name: commit("g", name), ("READ group:g",)),
    ],
    "offset_fetch": [
        Question(in_group(g.OffsetFetchRequest), ("DESCRIBE topic:*",)),
        Question(in_group(g.OffsetFetchRequest, partitions=OF_T), ("DESCRIBE topic:*",)),
        Question(
            lambda name: g.OffsetFetchRequest(group="g", partitions=part(g.GroupPartition, name)),
            ("DESCRIBE group:g",),
        ),
    ],
    "offset_delete": [
        Question(in_group(g.OffsetDeleteRequest, partitions=OF_T), ("READ topic:t",)),
        Question(
            lambda name: g.OffsetDeleteRequest(group="g", partitions=part(g.GroupPartition, name)),
            ("DELETE group:g",),
            tells=False,
        ),
    ],
    "describe_groups": [Question(lambda name: g.DescribeGroupsRequest(groups=[name]))],
    "delete_groups": [Question(lambda name: g.DeleteGroupsRequest(groups=[name]))],
    "delete_topics": [Question(lambda name: m.DeleteTopicsRequest(topics=[name]))],
}
"""By API; what deletes comes last."""
EVERY_QUESTION = [(api, each) for api, questions in QUESTIONS.items() for each in questions]
NAME_NOTHING = {
    "add_voter",
    "alter_client_quotas",
    "alter_user_scram_credentials",
    "api_versions",
    "describe_client_quotas",
    "describe_cluster",
    "describe_metadata_log",
    "describe_node",
    "describe_quorum",
    "describe_user_scram_credentials",
    "init_producer_id",
    "list_groups",
    "read_trace",
    "remove_voter",
    "sasl_authenticate",
    "sasl_handshake",
}
"""What clients may ask without naming a topic or a group."""


def named_in(kind):
    """The fields of a message, and of what is in it, that could name a topic or a group."""
    found, waiting, seen = set(), [msgspec.inspect.type_info(kind)], set()
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType) and info.cls not in seen:
            seen.add(info.cls)
            for each in info.fields:
                if (
                    each.name in ("name", "resource")
                    or "topic" in each.name
                    or "group" in each.name
                ):
                    found.add(each.name)
                waiting.append(each.type)
        waiting += getattr(info, "types", ())
        waiting += [getattr(info, part) for part in ("item_type", "type") if hasattr(info, part)]
    return found


def test_every_request_of_clients_is_in_the_table_or_names_nothing():
    """Whoever adds one says how it keeps secrets."""
    asked = {row.api.name for row in rows() if row.is_for_clients} | {"api_versions"}
    assert asked == {*QUESTIONS} | NAME_NOTHING
    assert not {*QUESTIONS} & NAME_NOTHING
    for name in NAME_NOTHING:
        assert not named_in(API_BY_NAME[name].request), name
    for name, questions in QUESTIONS.items():
        assert named_in(API_BY_NAME[name].request), name
        assert {API_BY_REQUEST[type(each.about(THERE))].name for each in questions} == {name}


class Asker:
    """Asks on a stream of its own, always by the same number."""

    def __init__(self, stream):
        self._stream = stream
        self._reader = FrameReader(stream)

    async def ask(self, request):
        """The answer's frame."""
        data = [batch(b"x")] if isinstance(request, m.ProduceRequest) else []
        frame = wire.encode_request(request, request_id=NUMBER, client="c", attachments=data)
        await send_all(self._stream, *frame)
        return bytes(await self._reader.next_frame())

    async def both(self, about):
        """About the one that is there, as if it had the other's name; and about the other."""
        there, absent = await self.ask(about(THERE)), await self.ask(about(ABSENT))
        return there.replace(THERE.encode(), ABSENT.encode()), absent


@asynccontextmanager
async def stream_of(world):
    """A stream of alice's own, to send what she likes."""
    files = [world.options[f"ssl_{kind}_location"] for kind in ("ca", "certificate", "key")]
    stream = await TlsNetwork(Tls(TlsFiles(*files))).connect("127.0.0.1", world.node.port)
    try:
        yield stream
    finally:
        await stream.aclose()


@asynccontextmanager
async def secretive(tmp_path):
    """A node with the topic and the group, and alice, who asks; she may do everything so far."""
    over = {"auto_create_topics_enable": "true", "group_initial_rebalance_delay_ms": "0"}
    async with guarded(tmp_path, **over) as world, stream_of(world) as stream:
        await world.only(*rules(*EVERYTHING))
        await world.admin.create_topic(THERE)
        stored = await world.alice.send(batch(b"x"), topic=THERE, timeout_ms=PATIENCE_MS)
        assert stored.error is None
        member = Asking(world.alice.connection)
        for group in (THERE, "g"):
            await member.find(group)
            await settle(world, group)
        await member.enter(group=THERE, session_timeout_ms=SESSION_MS)
        yield world, Asker(stream)


async def settle(world, group):
    """The group has offsets of both topics, as soon as its coordinator is there."""
    parts = [part(g.CommitPartition, topic, offset=1)[0] for topic in ("t", THERE)]
    while await world.codes(g.OffsetCommitRequest(group=group, partitions=parts)):
        await trio.sleep(0.01)


async def test_a_refusal_does_not_tell_what_is_there(tmp_path):
    denials = partial(rules, permission="DENY")
    names = [f"ALL {kind}:{name}" for kind in ("topic", "group") for name in (THERE, ABSENT)]
    async with secretive(tmp_path) as (world, asker):
        for api, question in EVERY_QUESTION:
            for told, made in (
                ("no rule", ()),
                ("another's", rules(*EVERYTHING, user="bob")),
                ("a rule about the one that is there", denials(names[0], names[2])),
                (
                    "rules that deny",
                    (*rules(*EVERYTHING), *denials(*names, "ALL cluster:cluster")),
                ),
            ):
                await world.only(*rules(*question.rights), *made)
                there, absent = await asker.both(question.about)
                assert REFUSED in absent, f"{api} with {told}: {absent}"
                assert there == absent, f"{api} with {told}"
        assert {*world.node.image.topics} == {"t", THERE, OFFSETS_TOPIC}


async def test_who_may_ask_is_told_what_is_there(tmp_path):
    """Otherwise the answers above would be equal whatever they were."""
    async with secretive(tmp_path) as (world, asker):
        for api, question in EVERY_QUESTION:
            if question.tells:
                await settle(world, "g")
                there, absent = await asker.both(question.about)
                assert REFUSED not in there + absent, f"{api}: {there} {absent}"
                assert there != absent, api


async def test_beside_what_is_allowed_a_refusal_does_not_tell_either(tmp_path):
    """Of a request that names several, about one of which its sender may ask."""
    read_only = {
        row.api.name
        for row in rows()
        if row.api.request in PARTS and {each.operation for each in row.permissions} <= READING
    }
    asked = set()
    async with secretive(tmp_path) as (world, asker):
        for api, question in EVERY_QUESTION:
            field = PARTS[kind].field if (kind := API_BY_NAME[api].request) in PARTS else ""
            if not (api in read_only and question.tells and getattr(question.about("t"), field, 0)):
                continue

            def beside(name, about=question.about, field=field):
                request, more = about(name), getattr(about("t"), field)
                return exchanged(request, **{field: [*more, *getattr(request, field)]})

            await world.only(*rules(*question.rights, "ALL topic:t", "ALL group:t"))
            there, absent = await asker.both(beside)
            assert REFUSED in absent, f"{api}: {absent}"
            assert there == absent, api
            asked.add(api)
    assert asked == read_only - {"list_groups"}


async def test_where_changes_are_decided_a_refusal_does_not_tell_either(tmp_path):
    """The controller judges what others passed on, by rules that they may not know yet."""
    sender = Peer("10.0.0.1", "User:alice")
    async with secretive(tmp_path) as (world, _):
        await world.only()
        for api in DECIDED:
            for question in QUESTIONS[api]:
                told = []
                for name in (THERE, ABSENT):
                    with pytest.raises(Refused, match="User:alice may not") as refused:
                        await world.node.change(question.about(name), sender=sender)
                    told.append((refused.value.code, refused.value.message.replace(THERE, ABSENT)))
                assert told[0] == told[1], api


async def test_where_nodes_listen_for_each_other_is_told_to_those_who_may_change_the_voters(
    tmp_path,
):
    async with guarded(tmp_path) as world:
        (voter,) = (await world.admin.describe_quorum()).voters
        internal = voter.host, voter.port
        assert internal == ("127.0.0.1", 0), "the record of the voters, as the node was told"
        for right, told in (
            ("DESCRIBE", ("", -1)),
            ("ALTER", internal),
            ("CLUSTER_ACTION", internal),
        ):
            await world.only(*rules("DESCRIBE cluster:cluster", f"{right} cluster:cluster"))
            (voter,) = (await world.alice.call(q.DescribeQuorumRequest())).voters
            assert (voter.host, voter.port) == told, right
            assert voter.log_end_offset > 0


async def test_the_id_of_a_topic_does_not_open_it_nor_tell_that_it_is_there(tmp_path):
    async with secretive(tmp_path) as (world, asker):
        true = world.node.image.topics[THERE].topic_id
        ids = {THERE: true, ABSENT: "0" * len(true)}
        await world.only(*rules("READ topic:t"))
        there, absent = await asker.both(lambda name: fetch(name, ids[name]))
        assert REFUSED in absent
        assert there == absent
        told = [await asker.ask(fetch("t", each)) for each in ids.values()]
        assert told[0].replace(true.encode(), b"?") == told[1].replace(ids[ABSENT].encode(), b"?")
        assert ErrorCode.INCONSISTENT_TOPIC_ID.encode() in told[0], "and no records"
