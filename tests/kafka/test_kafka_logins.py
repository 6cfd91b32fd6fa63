"""Users of Kafka's clients log in and may do what rules say, no more: by the same login, under the
same TLS, before the same gate.

Goal: nothing is reachable by Kafka's protocol that is not by ours. Method: the node of the logins'
tests, a bare client that says the words itself, and two clients that nobody here wrote.
"""

from contextlib import asynccontextmanager

import pytest
from brokers import new_node
from kafkakit import kafka_client, quiet_clients
from logins import PASSWORD
from test_login import a_node_with_users
from trio import EndOfChannel
from trio.to_thread import run_sync

from hightide import Acl, Admin
from hightide.net.login import Login, Words
from hightide.protocol.login_messages import MECHANISMS
from hightide_broker.runtime.server.login import FAILED
from hightide_broker.simulation.disk import SimDisk


@asynccontextmanager
async def a_client_of_users(tmp_path, over=None):
    async with (
        a_node_with_users(tmp_path, over) as served,
        kafka_client(served.node, served.files.authorities) as client,
    ):
        yield served, client


async def log_in(client, user="admin", password=PASSWORD, mechanism="SCRAM-SHA-256", version=2):
    """The answer to the last word that was heard."""
    words = Words(Login(mechanism, user, password))
    answer = await client.call("sasl_handshake", 1, mechanism=mechanism)
    assert (answer["error_code"], answer["mechanisms"]) == (0, [*MECHANISMS])
    answer = await client.call("sasl_authenticate", version, auth_bytes=words.first())
    if answer["error_code"]:
        return answer
    final = words.final(answer["auth_bytes"])
    answer = await client.call("sasl_authenticate", version, auth_bytes=final)
    if not answer["error_code"]:
        words.check(answer["auth_bytes"])
    return answer


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_user_logs_in(tmp_path, version, mechanism):
    async with a_client_of_users(tmp_path) as (_served, client):
        offered = await client.call("api_versions", 0)
        assert offered["error_code"] == 0
        answer = await log_in(client, mechanism=mechanism, version=version)
        assert (answer["error_code"], answer["error_message"]) == (0, None)
        assert (await client.call("metadata", 1, topics=None))["topics"] == []


@pytest.mark.parametrize(("user", "password"), [("admin", "wrong"), ("nobody", PASSWORD)])
async def test_who_fails_hears_one_sentence_and_is_out(tmp_path, user, password):
    async with a_client_of_users(tmp_path) as (_served, client):
        answer = await log_in(client, user, password)
        assert (answer["error_code"], answer["error_message"]) == (58, FAILED)
        assert await client.is_closed()


async def test_a_mechanism_that_there_is_not_is_refused_with_those_that_there_are(tmp_path):
    async with a_client_of_users(tmp_path) as (_served, client):
        answer = await client.call("sasl_handshake", 1, mechanism="PLAIN")
        assert answer == {"error_code": 33, "mechanisms": [*MECHANISMS]}
        assert await client.is_closed()


async def test_words_at_the_wrong_moment_are_refused(tmp_path):
    async with a_node_with_users(tmp_path) as served:
        async with kafka_client(served.node, served.files.authorities) as client:
            answer = await client.call("sasl_authenticate", 2, auth_bytes=b"n,,n=admin,r=x")
            assert answer["error_code"] == 34
            assert await client.is_closed()
        async with kafka_client(served.node, served.files.authorities) as client:
            await client.send("metadata", 1, topics=None)
            assert await client.is_closed()
        async with kafka_client(served.node, served.files.authorities) as client:
            with pytest.raises(EndOfChannel):
                await client.call("find_coordinator", 4, key_type=0, coordinator_keys=["g"])


async def test_a_login_is_made_again_in_time_or_ends_the_connection(tmp_path, mock_clock):
    over = {"connections.max.reauth.ms": "60000"}
    async with a_client_of_users(tmp_path, over) as (_served, client):
        for _ in range(2):
            answer = await log_in(client)
            assert (answer["error_code"], answer["session_lifetime_ms"]) == (0, 60_000)
            mock_clock.jump(59)
        assert (await client.call("metadata", 1, topics=None))["topics"] == []
        mock_clock.jump(2)
        await client.send("metadata", 1, topics=None)
        assert await client.is_closed()


async def test_nobody_becomes_another_on_a_connection(tmp_path):
    async with a_client_of_users(tmp_path) as (_served, client):
        await log_in(client)
        assert (await log_in(client, "alice", "pw"))["error_code"] == 58
        assert await client.is_closed()


async def test_where_nobody_logs_in_there_is_nothing_to_log_in_to():
    async with (
        new_node(SimDisk()) as node,
        kafka_client(node) as client,
    ):
        assert (await client.call("sasl_handshake", 1, mechanism=MECHANISMS[0]))["error_code"] == 34
        assert (await client.call("metadata", 1, topics=None))["topics"] == []


async def rules_for_alice(served):
    async with Admin(served.address, **served.options("admin")) as admin:
        await admin.create_topic("hers")
        await admin.create_topic("secret")
        await admin.set_password("alice", "pw")
        await admin.create_acls(
            Acl(kind, name, "LITERAL", "User:alice", "*", operation, "ALLOW")
            for kind, name, operation in [
                ("topic", "hers", "WRITE"),
                ("topic", "hers", "READ"),
                ("group", "g", "READ"),
            ]
        )


async def test_rules_hold_by_either_protocol(tmp_path):
    async with a_node_with_users(tmp_path) as served:
        await rules_for_alice(served)
        async with kafka_client(served.node, served.files.authorities) as client:
            assert (await log_in(client, "alice", "pw"))["error_code"] == 0
            answer = await client.call("metadata", 1, topics=None)
            assert [topic["name"] for topic in answer["topics"]] == ["hers"]
            for name, number in (("hers", 0), ("secret", 29), ("missing", 29)):
                (topic,) = (await client.call("metadata", 1, topics=[{"name": name}]))["topics"]
                assert (topic["error_code"], topic["name"]) == (number, name)
            secret = served.node.image.topics["secret"].topic_id
            answer = await client.call(
                "metadata",
                12,
                topics=[{"name": None, "topic_id": secret}],
                include_topic_authorized_operations=False,
            )
            (topic,) = answer["topics"]
            assert (topic["error_code"], topic["name"], topic["topic_id"]) == (100, None, secret)
            answer = await client.call("find_coordinator", 3, key="g2", key_type=0)
            assert answer["error_code"] == 30
            answer = await client.call("describe_groups", 4, groups=["g2"], **NO_OPERATIONS)
            assert answer["groups"][0]["error_code"] == 30


NO_OPERATIONS = {"include_authorized_operations": False}


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_others_clients_come_in_under_tls(tmp_path, mechanism):
    async with a_node_with_users(tmp_path) as served:
        await rules_for_alice(served)
        address, authorities = served.address, served.files.authorities
        await run_sync(confluent_writes, address, authorities, mechanism)
        values = await run_sync(python_reads, address, authorities, mechanism)
        assert values == [b"one", b"two"]


def confluent_writes(address, authorities, mechanism):
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authorities,
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": "pw",
            "enable.idempotence": True,
        }
    )
    found = []

    def delivered(error, message):
        found.append((message.topic(), error and error.name()))

    for value in (b"one", b"two"):
        producer.produce("hers", value, on_delivery=delivered)
    producer.produce("secret", b"no", on_delivery=delivered)
    assert producer.flush(30) == 0
    denied = "TOPIC_AUTHORIZATION_FAILED"
    assert sorted(found, key=str) == [("hers", None), ("hers", None), ("secret", denied)]


def python_reads(address, authorities, mechanism):
    with quiet_clients():
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=address,
            security_protocol="SASL_SSL",
            ssl_cafile=authorities,
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="pw",
            auto_offset_reset="earliest",
        )
        consumer.assign([TopicPartition("hers", 0)])
        found = []
        while len(found) < 2:
            for records in consumer.poll(500).values():
                found += [record.value for record in records]
        consumer.close()
        return found
