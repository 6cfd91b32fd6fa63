"""Administration by Kafka's protocol, in every version: topics, settings, directories.

Goal: the answers that Kafka's tools expect, from the controller that hightide's own tools have.
Method: a real node, and a bare client; librdkafka's and kafka-python's admin clients at the end.
"""

import pytest
from brokers import new_node, quiet, settings
from kafkakit import both, kafka_client, quiet_clients
from trio.to_thread import run_sync

from hightide_broker.core.cluster.image import CLUSTER
from hightide_broker.kafka.facts import Facts
from hightide_broker.simulation.disk import SimDisk

TOPIC, BROKER = 2, 4
UNKNOWN_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def new(name, partitions=2, replicas=1, assignments=(), **configs):
    entries = [{"name": key, "value": value} for key, value in configs.items()]
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [
            {"partition_index": number, "broker_ids": brokers}
            for number, brokers in enumerate(assignments)
        ],
        "configs": entries,
    }


async def create(client, version, *topics, **more):
    answer = await client.call("create_topics", version, topics=[*topics], **more)
    return {topic["name"]: topic for topic in answer["topics"]}


@pytest.mark.parametrize("version", range(2, 8))
async def test_topics_are_made(version):
    async with both() as (ours, client):
        compacted = {"cleanup.policy": "compact", "compression.type": "producer"}
        found = await create(
            client,
            version,
            new("two", **compacted),
            new("default", -1, -1),
            new("t"),
            new("wrong", **{"no.such.key": "1"}),
            new("packed", **{"compression.type": "zstd"}),
            new("placed", -1, -1, [[1], [1], [1]]),
            new("nowhere", -1, -1, [[1], []]),
        )
        numbers = {name: topic["error_code"] for name, topic in found.items()}
        made = {"two": 0, "default": 0, "placed": 0}
        assert numbers == {**made, "t": 36, "wrong": 40, "packed": 40, "nowhere": 39}
        assert "no.such.key" in found["wrong"]["error_message"]
        why = "compression.type is 'zstd', expected producer: what a producer sent stays as it came"
        assert found["packed"]["error_message"].startswith(why)
        if version >= 5:
            assert (found["two"]["num_partitions"], found["two"]["configs"]) == (2, [])
            assert found["placed"]["num_partitions"] == 3
        if version >= 7:
            answer = await client.call(
                "metadata",
                12,
                topics=[{"name": None, "topic_id": found["two"]["topic_id"]}],
                include_topic_authorized_operations=False,
            )
            assert [topic["name"] for topic in answer["topics"]] == ["two"]
        await create(client, version, new("tried"), validate_only=True)
        (topic,) = (await client.call("metadata", 4, topics=[{"name": "tried"}], **NONE_MADE))[
            "topics"
        ]
        assert topic["error_code"] == 3
        assert (await ours.produce(b"v", topic="two")).error is not None  # it has no key


NONE_MADE = {"allow_auto_topic_creation": False}


@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted_by_name_and_by_id(version):
    async with both() as (_ours, client):
        made = await create(client, 7, new("a"), new("b"))
        if version < 6:
            names = {"topic_names": ["a", "missing"]}
            answer = await client.call("delete_topics", version, **names, timeout_ms=1000)
            found = {each["name"]: each["error_code"] for each in answer["responses"]}
            assert found == {"a": 0, "missing": 3}
            return
        ids = [made["b"]["topic_id"], UNKNOWN_ID]
        wanted = [{"name": "a", "topic_id": ""}, *({"topic_id": each} for each in ids)]
        answer = await client.call("delete_topics", version, topics=wanted, timeout_ms=1000)
        found = [
            (each["name"], each["topic_id"], each["error_code"]) for each in answer["responses"]
        ]
        assert found == [("a", "", 0), ("b", ids[0], 0), (None, UNKNOWN_ID, 100)]


async def test_a_topic_that_is_meant_by_its_id_is_not_another_one_by_then(monkeypatch):
    """The broker that is asked has not heard yet that it was made again."""
    async with both() as (_ours, client):
        made = await create(client, 7, new("a"))
        monkeypatch.setattr(Facts, "name_of", lambda *_: "a")
        for topic_id, error in ((UNKNOWN_ID, 100), (made["a"]["topic_id"], 0)):
            wanted = [{"name": None, "topic_id": topic_id}]
            answer = await client.call("delete_topics", 6, topics=wanted, timeout_ms=1000)
            (found,) = answer["responses"]
            assert (found["topic_id"], found["error_code"]) == (topic_id, error)


@pytest.mark.parametrize("version", range(4))
async def test_topics_get_more_partitions(version):
    async with both() as (_ours, client):
        names = ("placed", "too-few", "nowhere", "elsewhere")
        await create(client, 7, *map(new, names))
        topics = [
            {"name": "t", "count": 3, "assignments": None},
            {"name": "missing", "count": 3, "assignments": None},
            {"name": "placed", "count": 4, "assignments": [{"broker_ids": [1]}] * 2},
            {"name": "too-few", "count": 4, "assignments": [{"broker_ids": [1]}]},
            {
                "name": "nowhere",
                "count": 4,
                "assignments": [{"broker_ids": [1]}, {"broker_ids": []}],
            },
            {"name": "elsewhere", "count": 3, "assignments": [{"broker_ids": [9]}]},
        ]
        answer = await client.call(
            "create_partitions", version, topics=topics, timeout_ms=1000, validate_only=False
        )
        found = {each["name"]: each["error_code"] for each in answer["results"]}
        refused = dict.fromkeys(names[1:], 39)
        assert found == {"t": 0, "missing": 3, "placed": 0, **refused}


async def described(client, version, kind, name, names=None, **more):
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": names}
    answer = await client.call("describe_configs", version, resources=[resource], **more)
    (result,) = answer["results"]
    assert (result["resource_type"], result["resource_name"]) == (kind, name)
    return result["error_code"], {each["name"]: each for each in result["configs"]}


@pytest.mark.parametrize("version", range(1, 5))
async def test_settings_are_described(version):
    async with both() as (ours, client):
        await ours.alter({"retention.ms": "7200000"})
        error, found = await described(client, version, TOPIC, "t")
        assert error == 0
        assert (found["retention.ms"]["value"], found["retention.ms"]["config_source"]) == (
            "7200000",
            1,
        )
        assert found["segment.bytes"]["config_source"] == 5
        if version >= 3:
            types = {name: entry["config_type"] for name, entry in found.items()}
            assert types["retention.ms"] == 5
            assert types["cleanup.policy"] == 7
            assert types["unclean.leader.election.enable"] == 1
            assert found["retention.ms"]["documentation"] is None
            error, found = await described(
                client, version, TOPIC, "t", ["flush"], include_documentation=True
            )
            assert list(found) == ["flush"]
            assert found["flush"]["documentation"]
        error, found = await described(client, version, BROKER, "1", ["node.id"])
        assert (error, found["node.id"]["read_only"]) == (0, True)
        assert (await described(client, version, BROKER, "2"))[0] == 42
        error, found = await described(client, version, BROKER, "")
        assert "min.insync.replicas" in found
        assert (await described(client, version, 8, "1"))[0] == 42
        assert (await described(client, version, TOPIC, "missing"))[0] == 3


@pytest.mark.parametrize("version", range(2))
async def test_single_settings_are_changed(version):
    async def change(operation, key, value, kind=TOPIC, name="t"):
        config = {"name": key, "config_operation": operation, "value": value}
        resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
        answer = await client.call(
            "incremental_alter_configs", version, resources=[resource], validate_only=False
        )
        return answer["responses"][0]["error_code"]

    async def value(key, kind=TOPIC, name="t"):
        return (await described(client, 4, kind, name, [key]))[1][key]["value"]

    async with both() as (_ours, client):
        assert await change(0, "retention.ms", "5000") == 0
        assert await value("retention.ms") == "5000"
        assert await change(1, "retention.ms", None) == 0
        assert await value("retention.ms") != "5000"
        assert await change(2, "cleanup.policy", "compact") == 0
        assert set((await value("cleanup.policy")).split(",")) == {"compact", "delete"}
        assert await change(3, "cleanup.policy", "delete") == 0
        assert await value("cleanup.policy") == "compact"
        assert await change(0, "compression.type", "producer") == 0
        assert await change(0, "compression.type", "gzip") == 40
        assert await change(1, "compression.type", None) == 0
        assert await value("compression.type") == "producer"
        assert await change(2, "retention.ms", "1") == 40
        assert await change(7, "retention.ms", "1") == 42
        assert await change(0, "retention.ms", None) == 42
        assert await change(0, "retention.ms", "long") == 40
        assert await change(0, "retention.ms", "1", name="missing") == 3
        assert await change(0, "min.insync.replicas", "1", BROKER, "") == 0
        assert await change(0, "listen.port", "1", BROKER, "1") != 0
        assert await change(0, "retention.ms", "1", 8) == 42


async def test_a_key_is_changed_once_in_a_request_and_so_is_a_resource():
    """Each word more of a list would be compared with all before it: two long values took seconds,
    for whoever asked. And of two changes of one resource the first would be lost, and not said."""

    def resource(*values):
        configs = [
            {"name": "cleanup.policy", "config_operation": 2, "value": value} for value in values
        ]
        return {"resource_type": TOPIC, "resource_name": "t", "configs": configs}

    async def changed(*resources):
        answer = await client.call(
            "incremental_alter_configs", 1, resources=[*resources], validate_only=False
        )
        return [each["error_code"] for each in answer["responses"]]

    async with both() as (_ours, client):
        assert await changed(resource("compact", "delete")) == [42]
        assert await changed(resource("compact"), resource("delete")) == [42, 42]
        configs = (await described(client, 4, TOPIC, "t", ["cleanup.policy"]))[1]
        assert configs["cleanup.policy"]["value"] == "delete"
        assert await changed(resource("compact")) == [0]


@pytest.mark.parametrize("version", range(3))
async def test_what_is_not_named_is_unset(version):
    async with both() as (ours, client):
        await ours.alter({"retention.ms": "5000", "segment.ms": "5000"})
        configs = [{"name": "segment.ms", "value": "6000"}]
        resource = {"resource_type": TOPIC, "resource_name": "t", "configs": configs}
        answer = await client.call(
            "alter_configs", version, resources=[resource], validate_only=False
        )
        assert answer["responses"][0]["error_code"] == 0
        _, found = await described(client, 4, TOPIC, "t")
        assert found["segment.ms"]["value"] == "6000"
        assert found["retention.ms"]["config_source"] == 5


async def test_what_the_brokers_files_say_is_not_set_back_by_naming_something_else():
    """In Kafka a file's value is static; here the first controller takes it over for all."""
    everybody = {"resource_type": BROKER, "resource_name": ""}

    async def altered(client, values):
        configs = [{"name": name, "value": each} for name, each in values.items()]
        resource = {**everybody, "configs": configs}
        answer = await client.call("alter_configs", 2, resources=[resource], validate_only=False)
        (result,) = answer["responses"]
        return result["error_code"], result["error_message"]

    over = settings({"min.insync.replicas": "2"})
    async with new_node(SimDisk(), over) as node, kafka_client(node) as client:
        error, why = await altered(client, {"unclean.leader.election.enable": "false"})
        assert error == 42
        assert "set back min.insync.replicas" in why
        assert "IncrementalAlterConfigs" in why
        every = node.image.configs[CLUSTER]
        assert every["min.insync.replicas"] == "2"
        assert (await altered(client, every))[0] == 0


@pytest.mark.parametrize("version", range(1, 5))
async def test_directories_are_described(version):
    async with both(partitions=2) as (ours, client):
        await ours.produce(b"v", partition=1)
        answer = await client.call("describe_log_dirs", version, topics=None)
        (directory,) = answer["results"]
        (topic,) = [topic for topic in directory["topics"] if topic["name"] == "t"]
        sizes = {part["partition_index"]: part["partition_size"] for part in topic["partitions"]}
        assert sizes[0] == 0 < sizes[1]
        some = [{"topic": "t", "partitions": [1]}]
        answer = await client.call("describe_log_dirs", version, topics=some)
        (topic,) = answer["results"][0]["topics"]
        assert [part["partition_index"] for part in topic["partitions"]] == [1]


@pytest.mark.parametrize("version", range(3))
async def test_leaders_are_elected_by_hand(version):
    async def elect(kind, parts):
        answer = await client.call(
            "elect_leaders", version, election_type=kind, topic_partitions=parts
        )
        return {
            (topic["topic"], part["partition_id"]): part["error_code"]
            for topic in answer["replica_election_results"]
            for part in topic["partition_result"]
        }

    async with both() as (_ours, client):
        some = [{"topic": "t", "partitions": [0, 9]}]
        assert await elect(0, some) == {("t", 0): 84, ("t", 9): 3}
        assert set((await elect(0, None)).values()) <= {0, 84}
        if version >= 1:
            assert await elect(5, some) == {}


@pytest.mark.parametrize("version", range(3))
async def test_the_cluster_is_described(version):
    async with both() as (_ours, client):
        answer = await client.call(
            "describe_cluster",
            version,
            include_cluster_authorized_operations=False,
            include_fenced_brokers=True,
        )
        assert (answer["error_code"], answer["controller_id"]) == (0, 1)
        assert [broker["broker_id"] for broker in answer["brokers"]] == [1]
        if version >= 1:
            for kind, number in ((2, 114), (9, 115)):
                answer = await client.call(
                    "describe_cluster",
                    version,
                    include_cluster_authorized_operations=False,
                    include_fenced_brokers=False,
                    endpoint_type=kind,
                )
                assert answer["error_code"] == number


@pytest.mark.parametrize("version", range(3))
async def test_who_votes_about_the_metadata_is_told(version):
    async with both() as (_ours, client):
        asked = [("__cluster_metadata", [0, 1]), ("t", [0])]
        topics = [
            {"topic_name": name, "partitions": [{"partition_index": each} for each in numbers]}
            for name, numbers in asked
        ]
        answer = await client.call("describe_quorum", version, topics=topics)
        assert answer["error_code"] == 0
        parts = {
            (topic["topic_name"], part["partition_index"]): part
            for topic in answer["topics"]
            for part in topic["partitions"]
        }
        assert {place: part["error_code"] for place, part in parts.items()} == {
            ("__cluster_metadata", 0): 0,
            ("__cluster_metadata", 1): 3,
            ("t", 0): 3,
        }
        told = parts["__cluster_metadata", 0]
        assert (told["leader_id"], told["observers"]) == (1, [])
        assert told["leader_epoch"] >= 1
        (voter,) = told["current_voters"]
        assert voter["replica_id"] == 1
        assert voter["log_end_offset"] >= told["high_watermark"] > 0
        if version >= 2:
            assert [node["node_id"] for node in answer["nodes"]] == [1]


# -- clients that nobody here wrote ----------------------------------------------------------------


def by_librdkafka(address):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
    )

    admin = AdminClient({"bootstrap.servers": address})
    (made,) = admin.create_topics([NewTopic("made", 2, 1)]).values()
    made.result(60)
    (more,) = admin.create_partitions([NewPartitions("made", 3)]).values()
    more.result(60)
    assert len(admin.list_topics(timeout=60).topics["made"].partitions) == 3
    entry = ConfigEntry("retention.ms", "9000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("TOPIC", "made", incremental_configs=[entry])
    (changed,) = admin.incremental_alter_configs([resource]).values()
    changed.result(60)
    (configs,) = admin.describe_configs([ConfigResource("TOPIC", "made")]).values()
    assert configs.result(60)["retention.ms"].value == "9000"
    assert admin.describe_cluster().result(60).controller.id == 1
    (deleted,) = admin.delete_records([TopicPartition("t", 0, 1)]).values()
    assert deleted.result(60).low_watermark == 1
    assert admin.list_consumer_groups().result(60).valid == []
    (gone,) = admin.delete_topics(["made"]).values()
    gone.result(60)


def by_kafka_python(address):
    with quiet_clients():
        from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=address)
        admin.create_topics([NewTopic("made", num_partitions=2, replication_factor=1)])
        assert "made" in admin.list_topics()
        topic = ConfigResource(ConfigResourceType.TOPIC, "made", {"retention.ms": "9000"})
        admin.alter_configs([topic])
        assert admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "made")])
        assert admin.list_groups() == []
        admin.delete_topics(["made"])
        admin.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("administer", [by_librdkafka, by_kafka_python])
async def test_admin_clients_of_others_do_their_work(administer):
    async with both() as (ours, _client):
        await ours.produce(b"v")
        await run_sync(administer, ours.connection.address, abandon_on_cancel=True)
        await quiet()
