"""Groups by Kafka's protocol, in every version: members, offsets, descriptions.

Goal: Kafka's classic protocol with the coordinator that hightide's own clients have. Method: a real
node, and bare clients that say each word themselves; what clients of others make of it is in
`test_kafka_clients.py`.
"""

from contextlib import asynccontextmanager

import pytest
from kafkakit import both

NONE = ""


async def join(client, version, member_id=NONE, *, group="g", wait=True, **more):
    fields = {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0meta"}],
        **more,
    }
    if not wait:
        return await client.send("join_group", version, **fields)
    return await client.call("join_group", version, **fields)


async def joined(client, version=5, **more):
    """A member of its own group; in two steps, where there are two."""
    first = await join(client, version, **more)
    if version < 4:
        return first
    assert (first["error_code"], first["leader"]) == (79, NONE)
    return await join(client, version, first["member_id"], **more)


async def sync(client, version, member, *, group="g", assignments=(), instance=None):
    return await client.call(
        "sync_group",
        version,
        group_id=group,
        generation_id=member["generation_id"],
        member_id=member["member_id"],
        group_instance_id=instance,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": name, "assignment": data} for name, data in assignments],
    )


@asynccontextmanager
async def coordinated(*, delay_ms=0, partitions=1):
    """A client that has found its coordinator."""
    over = {
        "group.initial.rebalance.delay.ms": str(delay_ms),
        "offsets.topic.num.partitions": "1",
    }
    async with both(over, partitions=partitions) as (_ours, client):
        answer = await client.call("find_coordinator", 0, key="g")
        assert answer["error_code"] == 0
        yield client


@pytest.mark.parametrize("version", range(10))
async def test_one_joins_syncs_beats_and_leaves(version):
    async with coordinated() as client:
        member = await joined(client, version)
        assert (member["error_code"], member["generation_id"]) == (0, 1)
        assert member["leader"] == member["member_id"]
        assert member["protocol_name"] == "range"
        if version >= 7:
            assert member["protocol_type"] == "consumer"
        (only,) = member["members"]
        assert only["metadata"] == b"\0meta"
        mine = [(member["member_id"], b"\0mine")]
        synced = await sync(client, min(version, 5), member, assignments=mine)
        assert (synced["error_code"], synced["assignment"]) == (0, b"\0mine")
        if version >= 5:
            assert (synced["protocol_type"], synced["protocol_name"]) == ("consumer", "range")
        who = {"group_id": "g", "member_id": member["member_id"]}
        beat = await client.call("heartbeat", min(version, 4), generation_id=1, **who)
        assert beat["error_code"] == 0
        beat = await client.call("heartbeat", min(version, 4), generation_id=9, **who)
        assert beat["error_code"] == 22
        leaving = {"members": [{"member_id": member["member_id"]}]} if version >= 3 else {}
        for number in (0, 25):
            left = await client.call("leave_group", min(version, 5), **who, **leaving)
            if version < 3:
                assert left["error_code"] == number
            else:
                assert [each["error_code"] for each in left["members"]] == [number]


async def test_a_second_member_starts_a_rebalance_that_the_first_hears_of():
    async with coordinated() as client:
        first = await joined(client)
        await sync(client, 3, first, assignments=[(first["member_id"], b"all")])
        answer = await join(client, 5)
        second_id = answer["member_id"]
        assert answer["error_code"] == 79
        beat = {"group_id": "g", "generation_id": 1, "member_id": first["member_id"]}
        assert (await client.call("heartbeat", 3, **beat))["error_code"] == 0
        assert second_id != first["member_id"]


async def test_what_comes_behind_a_join_that_waits_is_answered_behind_it():
    async with coordinated(delay_ms=300) as client:
        waiting = await join(client, 3, wait=False)
        asked = await client.send("metadata", 0, topics=[])
        assert (await client.receive("join_group", 3))[0] == waiting
        assert (await client.receive("metadata", 0))[0] == asked


@pytest.mark.parametrize("version", range(2, 10))
async def test_offsets_are_committed_and_read_in_every_version(version):
    async with coordinated(partitions=2) as client:
        part = {"partition_index": 1, "committed_offset": 7, "committed_metadata": "note"}
        lost = {"partition_index": 9, "committed_offset": 7, "committed_metadata": None}
        answer = await client.call(
            "offset_commit",
            version,
            group_id="g",
            member_id=NONE,
            committed_leader_epoch=-1,
            topics=[{"name": "t", "partitions": [part, lost]}],
        )
        (topic,) = answer["topics"]
        found = {part["partition_index"]: part["error_code"] for part in topic["partitions"]}
        assert found == {1: 0, 9: 3}
        for reading in range(1, 10):
            some = [{"name": "t", "partition_indexes": [0, 1]}]
            assert await fetched(client, reading, some) == {0: (-1, ""), 1: (7, "note")}
            if reading >= 2:
                assert await fetched(client, reading, None) == {1: (7, "note")}


async def fetched(client, version, topics):
    """Committed offsets and notes by partition."""
    if version < 8:
        answer = await client.call("offset_fetch", version, group_id="g", topics=topics)
        found = answer
    else:
        groups = [{"group_id": "g", "topics": topics}, {"group_id": "other", "topics": []}]
        answer = await client.call("offset_fetch", version, groups=groups)
        found, other = answer["groups"]
        assert (other["group_id"], other["topics"], other["error_code"]) == ("other", [], 0)
    assert found.get("error_code", 0) == 0
    return {
        part["partition_index"]: (part["committed_offset"], part["metadata"])
        for topic in found["topics"]
        for part in topic["partitions"]
    }


async def test_a_commit_that_is_refused_as_a_whole_is_refused_for_each_partition():
    async with coordinated() as client:
        await joined(client)
        part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": None}
        answer = await client.call(
            "offset_commit",
            5,
            group_id="g",
            generation_id_or_member_epoch=4,
            member_id="stranger",
            topics=[{"name": "t", "partitions": [part]}],
        )
        assert [each["error_code"] for each in answer["topics"][0]["partitions"]] == [25]


@pytest.mark.parametrize("version", range(7))
async def test_groups_are_described(version):
    async with coordinated() as client:
        member = await joined(client)
        await sync(client, 3, member, assignments=[(member["member_id"], b"\0mine")])
        answer = await client.call(
            "describe_groups",
            version,
            groups=["g", "missing"],
            include_authorized_operations=False,
        )
        group, missing = answer["groups"]
        assert (group["group_state"], group["protocol_data"]) == ("Stable", "range")
        (only,) = group["members"]
        assert (only["client_id"], only["member_assignment"]) == ("kit", b"\0mine")
        assert missing["group_state"] == "Dead"
        assert missing["error_code"] == (69 if version >= 6 else 0)


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed(version):
    async def listed(**filters):
        answer = await client.call(
            "list_groups", version, **{"states_filter": [], "types_filter": [], **filters}
        )
        assert answer["error_code"] == 0
        return [group["group_id"] for group in answer["groups"]]

    async with coordinated() as client:
        await joined(client)
        assert await listed() == ["g"]
        if version >= 4:
            assert await listed(states_filter=["Empty"]) == []
            assert await listed(states_filter=["completingrebalance", "stable"]) == ["g"]
        if version >= 5:
            assert await listed(types_filter=["consumer"]) == []
            assert await listed(types_filter=["Classic"]) == ["g"]


@pytest.mark.parametrize("version", range(3))
async def test_groups_and_offsets_are_deleted(version):
    async def commit(group):
        part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
        topics = [{"name": "t", "partitions": [part]}]
        await client.call("offset_commit", 5, group_id=group, member_id=NONE, topics=topics)

    async with coordinated() as client:
        await joined(client, group="full")
        await commit("g")
        answer = await client.call("delete_groups", version, groups_names=["g", "full", "none"])
        found = {each["group_id"]: each["error_code"] for each in answer["results"]}
        assert found == {"g": 0, "full": 68, "none": 69}
        await commit("g")
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        answer = await client.call("offset_delete", 0, group_id="g", topics=topics)
        assert answer["error_code"] == 0
        assert answer["topics"][0]["partitions"] == [{"partition_index": 0, "error_code": 0}]
        answer = await client.call("offset_delete", 0, group_id="none", topics=topics)
        assert (answer["error_code"], answer["topics"]) == (69, [])


async def test_a_coordinator_is_found_in_every_version():
    async with both() as (_ours, client):
        for version in range(4):
            answer = await client.call("find_coordinator", version, key="g", key_type=0)
            assert (answer["error_code"], answer["node_id"]) == (0, 1)
        answer = await client.call("find_coordinator", 4, coordinator_keys=["g", "h"])
        assert [(each["key"], each["node_id"]) for each in answer["coordinators"]] == [
            ("g", 1),
            ("h", 1),
        ]


async def test_there_are_no_coordinators_of_transactions():
    async with both() as (_ours, client):
        for version in range(1, 4):
            for kind, error in ((1, 53), (2, 42)):
                answer = await client.call("find_coordinator", version, key="x", key_type=kind)
                assert (answer["error_code"], answer["node_id"]) == (error, -1)
                assert answer["error_message"].endswith("there are no transactions here")
        answer = await client.call("find_coordinator", 4, coordinator_keys=["x"], key_type=1)
        assert [each["error_code"] for each in answer["coordinators"]] == [42]


@pytest.mark.parametrize("version", range(5, 10))
async def test_a_static_member_comes_back_as_itself_and_its_predecessor_is_fenced(version):
    async with coordinated() as client:
        first = await join(client, version, group_instance_id="one")
        assert (first["error_code"], first["leader"]) == (0, first["member_id"])
        (only,) = first["members"]
        assert only["group_instance_id"] == "one"
        mine = [(first["member_id"], b"\0mine")]
        await sync(client, 3, first, assignments=mine, instance="one")
        again = await join(client, version, group_instance_id="one")
        assert (again["error_code"], again["generation_id"]) == (0, 1)
        assert again["member_id"] != first["member_id"]
        if version >= 9:
            assert again["skip_assignment"]
        synced = await sync(client, 3, again, instance="one")
        assert (synced["error_code"], synced["assignment"]) == (0, b"\0mine")
        beat = {"group_id": "g", "generation_id": 1, "group_instance_id": "one"}
        for member, number in ((first, 82), (again, 0)):
            answer = await client.call("heartbeat", 3, member_id=member["member_id"], **beat)
            assert answer["error_code"] == number
        leaving = [{"member_id": "", "group_instance_id": "one"}]
        answer = await client.call("leave_group", 5, group_id="g", members=leaving)
        assert [each["error_code"] for each in answer["members"]] == [0]
