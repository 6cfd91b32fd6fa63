"""By Kafka's protocol, too, who may not have something does not learn whether it is there; and who
is not in learns nothing.

Goal: each request that names a topic or a group, about one that is there and about one that is not:
the same bytes, but for the name. Method: a node where users log in, and a bare client; as a control
the same questions by somebody who may ask.
"""

from contextlib import asynccontextmanager

import pytest
from kafkakit import API_BY_NAME, kafka_client, records, request_bytes, rows
from test_kafka_logins import log_in
from test_login import a_node_with_users
from trio import sleep

from hightide import Admin
from hightide_broker.kafka import access_table
from hightide_broker.kafka.tables import API_BY_KEY
from hightide_broker.kafka.tongue import TRANSLATORS

THERE, ABSENT = "apple", "melon"
"""A topic and a group, both called so; and what nothing is called."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAEA"
LOGIN = {"api_versions", "sasl_handshake", "sasl_authenticate"}
OF_ACCESS = {api.name for api in access_table.APIS}
NAME_NOTHING = {
    *(LOGIN | OF_ACCESS),
    "describe_cluster",
    "describe_quorum",
    "init_producer_id",
    "list_config_resources",
    "list_groups",
    "list_partition_reassignments",
}
"""What names neither a topic nor a group that could be a secret."""
TIME = {"timeout_ms": 60_000}
IN_GROUP = {"member_id": "nobody", "group_instance_id": None}


def part(number_field, **more):
    return [{number_field: 0, **more}]


def of_name(field, **more):
    """A list of one, called so."""
    return lambda name: [{field: name, **more}]


FETCHED = part("partition", fetch_offset=0, partition_max_bytes=1 << 20)
SETTING = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
QUESTIONS = {
    "produce": lambda name: {
        "acks": -1,
        "timeout_ms": 60_000,
        "topic_data": [
            {"name": name, "partition_data": part("index", records=records(rows(b"x")))}
        ],
    },
    "fetch": lambda name: {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "topics": [{"topic": name, "partitions": FETCHED}],
        "forgotten_topics_data": [],
    },
    "list_offsets": lambda name: {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": name, "partitions": part("partition_index", timestamp=-1)}],
    },
    "offset_for_leader_epoch": lambda name: {
        "topics": [{"topic": name, "partitions": part("partition", leader_epoch=0)}]
    },
    "delete_records": lambda name: {
        "topics": [{"name": name, "partitions": part("partition_index", offset=0)}],
        **TIME,
    },
    "metadata": lambda name: {
        "topics": [{"name": name, "topic_id": ""}],
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    },
    "describe_topic_partitions": lambda name: {
        "topics": [{"name": name}],
        "response_partition_limit": 9,
        "cursor": None,
    },
    "describe_producers": lambda name: {"topics": [{"name": name, "partition_indexes": [0]}]},
    "create_topics": lambda name: {
        "topics": [
            {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
        ],
        "validate_only": True,
    },
    "delete_topics": lambda name: {"topics": [{"name": name, "topic_id": ""}], **TIME},
    "create_partitions": lambda name: {
        "topics": [{"name": name, "count": 2, "assignments": None}],
        "validate_only": True,
        **TIME,
    },
    "elect_leaders": lambda name: {
        "election_type": 0,
        "topic_partitions": [{"topic": name, "partitions": [0]}],
    },
    "describe_log_dirs": lambda name: {"topics": [{"topic": name, "partitions": [0]}]},
    "describe_configs": lambda name: {
        "resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None}]
    },
    "alter_configs": lambda name: {
        "resources": [{"resource_type": 2, "resource_name": name, "configs": [SETTING]}],
        "validate_only": True,
    },
    "incremental_alter_configs": lambda name: {
        "resources": [{"resource_type": 2, "resource_name": name, "configs": [SETTING]}],
        "validate_only": True,
    },
    "find_coordinator": lambda name: {"key_type": 0, "coordinator_keys": [name]},
    "join_group": lambda name: {
        "group_id": name,
        "session_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [],
        **IN_GROUP,
    },
    "sync_group": lambda name: {
        "group_id": name,
        "generation_id": 1,
        "assignments": [],
        **IN_GROUP,
    },
    "heartbeat": lambda name: {"group_id": name, "generation_id": 1, **IN_GROUP},
    "leave_group": lambda name: {"group_id": name, "members": [IN_GROUP]},
    "offset_commit": lambda name: {
        "group_id": name,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {
                "name": name,
                "partitions": part("partition_index", committed_offset=1, committed_metadata=""),
            }
        ],
    },
    "offset_fetch": lambda name: {
        "groups": [
            {"group_id": name, "topics": None},
            {"group_id": name, "topics": [{"name": name, "partition_indexes": [0]}]},
        ],
        "require_stable": False,
    },
    "offset_delete": lambda name: {
        "group_id": name,
        "topics": [{"name": name, "partitions": part("partition_index")}],
    },
    "describe_groups": lambda name: {"groups": [name], "include_authorized_operations": True},
    "delete_groups": lambda name: {"groups_names": [name]},
}
"""Makes a request in its last version that names names, given a name."""
LAST = {"fetch": 12}
"""Where later versions have ids alone."""
TELLS_NOTHING = {"find_coordinator", "heartbeat", "sync_group"}
"""What is answered alike in any case, about who is no member; by numbers alone."""


def version_of(name):
    return LAST.get(name, API_BY_NAME[name].versions.last)


def test_every_api_is_in_the_table_or_names_nothing():
    offered = {API_BY_KEY[key].name for key in TRANSLATORS}
    assert offered == {*QUESTIONS} | NAME_NOTHING


@asynccontextmanager
async def a_secretive_node(tmp_path):
    """With the topic and the group, and bob, who may do nothing."""
    async with a_node_with_users(tmp_path) as served:
        async with Admin(served.address, **served.options("admin")) as admin:
            await admin.create_topic(THERE)
            await admin.set_password("bob", "pw")
        async with a_client(served, "admin") as client:
            await client.call("find_coordinator", 0, key=THERE)
            await settle(client)
        yield served


async def settle(client):
    """The group is there, as soon as its coordinator is."""
    name, error = "offset_commit", -1
    while error:
        answer = await client.call(name, version_of(name), **QUESTIONS[name](THERE))
        ((error,),) = [[p["error_code"] for p in t["partitions"]] for t in answer["topics"]]
        await sleep(0.01)


@asynccontextmanager
async def a_client(served, user=None, **more):
    async with kafka_client(served.node, served.files.authorities) as client:
        if user is not None:
            assert (await log_in(client, user, **more))["error_code"] == 0
        yield client


async def both(client, name):
    """The answers about the one that is there, as if it had the other's name, and the other."""
    found = []
    for each in (THERE, ABSENT):
        await client.stream.send_all(request_bytes(name, version_of(name), QUESTIONS[name](each)))
        found.append(await client.body())
    return found[0].replace(THERE.encode(), ABSENT.encode()), found[1]


async def test_a_refusal_does_not_tell_what_is_there(tmp_path):
    async with a_secretive_node(tmp_path) as served:
        async with a_client(served, "bob", password="pw") as client:
            for name in QUESTIONS:
                there, absent = await both(client, name)
                assert there == absent, name
        assert {*served.node.image.topics} == {THERE, "__consumer_offsets"}


async def test_who_may_ask_is_told_what_is_there(tmp_path):
    """Otherwise the answers above would be equal whatever they were."""
    last, told = ("delete_groups", "delete_topics"), set()
    async with a_secretive_node(tmp_path) as served, a_client(served, "admin") as client:
        for name in [*(each for each in QUESTIONS if each not in last), *last]:
            await settle(client)
            there, absent = await both(client, name)
            told.update({name} if there != absent else ())
        assert QUESTIONS.keys() - told == TELLS_NOTHING


def of_ids(name, *ids, more=()):
    """A question about topics by their ids."""
    if name == "fetch":
        topics = [{"topic_id": each, "partitions": FETCHED} for each in ids]
        return {**QUESTIONS[name](""), "topics": topics}
    topics = [{"name": None, "topic_id": each} for each in ids]
    return {**QUESTIONS[name](""), "topics": [*topics, *more]}


BY_IDS = ("metadata", "delete_topics", "fetch")


@pytest.mark.parametrize("name", BY_IDS[:2])
async def test_an_id_does_not_tell_what_is_there_and_never_a_name(tmp_path, name):
    version = API_BY_NAME[name].versions.last
    many = [{"name": f"m{number}", "topic_id": ""} for number in range(10_001)]
    async with a_secretive_node(tmp_path) as served:
        secret = served.node.image.topics[THERE].topic_id
        async with a_client(served, "bob", password="pw") as client:
            for ids in ((secret,), (secret, NO_ID), (NO_ID, secret)):
                answer = await client.call(name, version, **of_ids(name, *ids))
                told = answer["topics" if name == "metadata" else "responses"]
                assert [(each["name"], each["topic_id"]) for each in told] == [
                    (None, each) for each in ids
                ]
                assert {each["error_code"] for each in told} == {100}
            asked = request_bytes(name, version, of_ids(name, secret, more=many))
            await client.stream.send_all(asked)
            # One is asked in portions, the other refused for each.
            assert THERE.encode() not in await client.body()


async def test_before_a_login_nothing_is_told(tmp_path):
    """Not even that there is no such id: answers to who is not in would repeat what was asked, and
    some of it as it is known here."""
    async with a_secretive_node(tmp_path) as served:
        secret = served.node.image.topics[THERE].topic_id
        by_ids = [
            (each, API_BY_NAME[each].versions.last, of_ids(each, NO_ID, secret)) for each in BY_IDS
        ]
        by_names = [(each, version_of(each), QUESTIONS[each](THERE)) for each in QUESTIONS]
        for name, version, fields in (*by_ids, *by_names):
            async with a_client(served) as client:
                await client.send(name, version, **fields)
                assert await client.is_closed(), name
