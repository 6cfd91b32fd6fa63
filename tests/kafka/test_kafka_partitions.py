"""Pages of partitions, who wrote to them, and what has settings, by Kafka's protocol.

Goal: the answers that Kafka's newer tools ask for before they fall back to older ones. Method: a
real node, and a bare client.
"""

import pytest
from kafkakit import both, records, rows

TOPIC, BROKER, CLIENT_METRICS = 2, 4, 16
ME = 77


async def page(client, *names, limit=2000, cursor=None):
    """Topics with their partitions, and where the rest begins."""
    if cursor is not None:
        cursor = {"topic_name": cursor[0], "partition_index": cursor[1]}
    answer = await client.call(
        "describe_topic_partitions",
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )
    found = [
        (each["name"], each["error_code"], [part["partition_index"] for part in each["partitions"]])
        for each in answer["topics"]
    ]
    rest = answer["next_cursor"]
    return found, rest and (rest["topic_name"], rest["partition_index"])


async def test_partitions_are_told_page_by_page():
    async with both(partitions=3) as (ours, client):
        await ours.create("s", partitions=2)
        every = [("s", 0, [0, 1]), ("t", 0, [0, 1, 2])]
        assert await page(client) == (every, None)
        assert await page(client, "t", "missing", "s") == (
            [("missing", 3, []), *every],
            None,
        )
        assert await page(client, limit=2) == (every[:1], ("t", 0))
        assert await page(client, limit=3) == ([every[0], ("t", 0, [0])], ("t", 1))
        assert await page(client, limit=2, cursor=("t", 0)) == ([("t", 0, [0, 1])], ("t", 2))
        assert await page(client, cursor=("t", 2)) == ([("t", 0, [2])], None)
        assert await page(client, "s", "t", cursor=("sa", 1)) == (every[1:], None)
        assert await page(client, cursor=("u", 0)) == ([], None)
        assert await page(client, limit=0) == ([("s", 0, [0])], ("s", 1))
        assert await page(client, "t", cursor=("t", -1)) == ([("t", 42, [])], None)


async def test_of_a_partition_everything_is_told():
    async with both() as (_ours, client):
        answer = await client.call(
            "describe_topic_partitions",
            0,
            topics=[{"name": "t"}],
            response_partition_limit=9,
            cursor=None,
        )
        (topic,) = answer["topics"]
        assert topic["topic_id"]
        assert not topic["is_internal"]
        assert topic["partitions"] == [
            {
                "error_code": 0,
                "partition_index": 0,
                "leader_id": 1,
                "leader_epoch": 0,
                "replica_nodes": [1],
                "isr_nodes": [1],
                "eligible_leader_replicas": [],
                "last_known_elr": [],
                "offline_replicas": [],
            }
        ]


async def store(client, partition, producer, *values):
    batch = records(rows(*values, producer=producer))
    answer = await client.call(
        "produce",
        9,
        transactional_id=None,
        acks=-1,
        timeout_ms=1000,
        topic_data=[{"name": "t", "partition_data": [{"index": partition, "records": batch}]}],
    )
    (topic,) = answer["responses"]
    assert topic["partition_responses"][0]["error_code"] == 0


async def producers(client, *numbers):
    answer = await client.call(
        "describe_producers", 0, topics=[{"name": "t", "partition_indexes": list(numbers)}]
    )
    (topic,) = answer["topics"]
    return {
        part["partition_index"]: (
            part["error_code"],
            [
                (each["producer_id"], each["producer_epoch"], each["last_sequence"])
                for each in part["active_producers"]
            ],
        )
        for part in topic["partitions"]
    }


async def test_who_wrote_to_a_partition_is_told():
    async with both(partitions=2) as (_ours, client):
        for producer, values in (((ME, 1, 0), b"ab"), ((ME + 1, 0, 0), b"c")):
            await store(client, 0, producer, *(bytes([each]) for each in values))
        found = await producers(client, 0, 1, 9)
        assert sorted(found.pop(0)[1]) == [(ME, 1, 1), (ME + 1, 0, 0)]
        assert found == {1: (0, []), 9: (3, [])}


async def test_more_producers_than_an_answer_has_room_for(monkeypatch):
    monkeypatch.setattr("hightide_broker.runtime.server.record_handlers.PRODUCERS_TOLD_MAX", 2)
    async with both(partitions=2) as (_ours, client):
        for number, partition in ((1, 0), (2, 0), (3, 0), (4, 1)):
            await store(client, partition, (number, 0, 0), b"v")
        found = await producers(client, 0, 1)
        assert len(found[0][1]) == 2
        assert found[1] == (42, [])
        assert (await producers(client, 1))[1] == (0, [(4, 0, 0)])


async def test_no_partition_is_on_the_move():
    async with both() as (_ours, client):
        answer = await client.call("list_partition_reassignments", 0, topics=None, timeout_ms=1000)
        assert (answer["error_code"], answer["topics"]) == (0, [])


@pytest.mark.parametrize("version", range(2))
async def test_what_has_settings_is_listed(version):
    async def listed(*kinds):
        answer = await client.call("list_config_resources", version, resource_types=list(kinds))
        found = {
            (each["resource_name"], each.get("resource_type"))
            for each in answer["config_resources"]
        }
        return answer["error_code"], found

    async with both() as (_ours, client):
        if version == 0:
            assert await listed() == (0, set())
            return
        topic, broker = ("t", TOPIC), ("1", BROKER)
        assert await listed() == (0, {topic, broker})
        assert await listed(TOPIC) == (0, {topic})
        assert await listed(BROKER, CLIENT_METRICS) == (0, {broker})
        assert await listed(99) == (35, set())
