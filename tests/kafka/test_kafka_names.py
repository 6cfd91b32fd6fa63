"""Names that no topic or group can have: what Kafka answers to them, request by request.

Goal: UNKNOWN_SERVER_ERROR is an answer to nothing; a name that can never be one is told apart from
one that may come to be, where Kafka's clients look: they ask again about the latter for a minute.
Method: a node and a bare client; the codes are those of KafkaApis, ConfigHelper and Topic.validate.
"""

import pytest
from kafkakit import both

INVALID_TOPIC, UNKNOWN, INVALID_GROUP_ID = 17, 3, 24
ODD = {
    "empty": "",
    "250 characters": "x" * 250,
    "a dot": ".",
    "two dots": "..",
    "a slash": "a/b",
    "not ASCII": "ü",
    "a NUL": "a\0b",
    "a space": "a b",
}


@pytest.mark.parametrize("name", [pytest.param(name, id=why) for why, name in ODD.items()])
async def test_a_name_that_no_topic_can_have_is_invalid_and_not_unknown(name):
    async with both({"auto.create.topics.enable": "true"}) as (_ours, client):
        for makes in (False, True):
            answer = await client.call(
                "metadata",
                12,
                topics=[{"name": name, "topic_id": ""}],
                allow_auto_topic_creation=makes,
                include_topic_authorized_operations=False,
            )
            (topic,) = answer["topics"]
            assert (topic["name"], topic["error_code"]) == (name, INVALID_TOPIC)
        answer = await client.call(
            "describe_topic_partitions",
            0,
            topics=[{"name": name}],
            response_partition_limit=100,
            cursor=None,
        )
        assert [each["error_code"] for each in answer["topics"]] == [INVALID_TOPIC]
        resource = {"resource_type": 2, "resource_name": name}
        asked = [{**resource, "configuration_keys": None}]
        (found,) = (await client.call("describe_configs", 4, resources=asked))["results"]
        assert found["error_code"] == INVALID_TOPIC
        setting = {"name": "retention.ms", "value": "1000"}
        for api, version, more in (
            ("alter_configs", 2, {}),
            ("incremental_alter_configs", 1, {"config_operation": 0}),
        ):
            changed = [{**resource, "configs": [{**setting, **more}]}]
            answer = await client.call(api, version, resources=changed, validate_only=True)
            (found,) = answer["responses"]
            assert found["error_code"] == INVALID_TOPIC
        new = {"name": name, "num_partitions": 1, "replication_factor": 1}
        topics = [{**new, "assignments": [], "configs": []}]
        answer = await client.call("create_topics", 7, topics=topics, validate_only=True)
        assert [each["error_code"] for each in answer["topics"]] == [INVALID_TOPIC]


async def test_a_name_that_a_topic_can_have_is_unknown_until_there_is_one():
    async with both() as (ours, client):
        for code in (UNKNOWN, 0):
            answer = await client.call(
                "metadata",
                4,
                topics=[{"name": "z"}, {"name": "t"}],
                allow_auto_topic_creation=False,
            )
            assert [each["error_code"] for each in answer["topics"]] == [code, 0]
            await ours.create("z")


@pytest.mark.parametrize("name", [pytest.param(name, id=why) for why, name in ODD.items()])
async def test_what_asks_about_partitions_of_no_topic_hears_that_they_are_unknown(name):
    async with both() as (_ours, client):
        one = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        answer = await client.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=one)
        assert answer["topics"][0]["partitions"][0]["error_code"] == UNKNOWN
        answer = await client.call("delete_topics", 5, topic_names=[name], timeout_ms=1000)
        assert [each["error_code"] for each in answer["responses"]] == [UNKNOWN]
        more = [{"name": name, "count": 3, "assignments": None}]
        answer = await client.call(
            "create_partitions", 3, topics=more, timeout_ms=1000, validate_only=True
        )
        assert [each["error_code"] for each in answer["results"]] == [UNKNOWN]
        one = [{"name": name, "partition_indexes": [0]}]
        answer = await client.call("describe_producers", 0, topics=one)
        assert answer["topics"][0]["partitions"][0]["error_code"] == UNKNOWN


@pytest.mark.parametrize("name", ["", "x" * 32_000])
async def test_a_name_that_no_group_can_have_is_invalid(name):
    async with both() as (_ours, client):
        asked = {"group_id": name, "generation_id": 1, "member_id": "m"}
        for api, version, more in (
            ("heartbeat", 4, {}),
            ("sync_group", 5, {"assignments": []}),
            ("leave_group", 5, {"members": [{"member_id": "m"}]}),
        ):
            answer = await client.call(api, version, **asked, **more)
            assert answer["error_code"] == INVALID_GROUP_ID
