"""The coordinator of groups on a broker, asked over its wire: members, offsets, administration.

Goal: Kafka's answers of find_coordinator, join, sync, heartbeat, leave, of committing and fetching
offsets, and of listing, describing and deleting groups. Method: a whole node of the simulation on
virtual time; once more over a real socket. What becomes of a group when brokers fail is
`test_coordinator_faults.py`'s; what one group decides, `test_group.py`'s.
"""

import msgspec
import pytest
import trio
from clients import one_node
from group_world import QUICK, SESSION_MS, Asking, later, outcome, refusal, site, virtual

from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol.consumer_protocol import unpack_subscription
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC
from hightide_broker.core.groups.records import partition_of
from hightide_broker.runtime.groups.coordinators import GROUP_ID_MAX

E = ErrorCode
BAD_NAMES = ["", "g" * (GROUP_ID_MAX + 1)]


# --- who coordinates ----------------------------------------------------------------------------


@virtual
async def test_the_first_who_asks_for_a_coordinator_has_the_topic_made_and_only_once():
    async with site(brokers=2, offsets_topic_num_partitions="3") as at, at.client() as client:
        assert await refusal(client.join()) is E.NOT_COORDINATOR
        found = []

        async def ask(group):
            found.append(await client.find(group))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(ask, f"g{number % 2}")
        assert all(each.error is None and each.port > 0 for each in found)
        told = await client.call(m.MetadataRequest())
        (topic,) = [each for each in told.topics if each.topic == OFFSETS_TOPIC]
        assert [len(partition.replicas) for partition in topic.partitions] == [2, 2, 2]
        wanted = m.ConfigResource(kind="topic", name=OFFSETS_TOPIC)
        reply = await client.call(m.DescribeConfigsRequest(resources=[wanted]))
        values = {entry.name: entry.value for entry in reply.resources[0].entries}
        assert (values["cleanup.policy"], values["segment.bytes"]) == ("compact", "104857600")


@virtual
async def test_a_group_is_coordinated_by_the_leader_of_its_partition_and_by_nobody_else():
    async with (
        site(brokers=2, offsets_topic_num_partitions="4") as at,
        at.client(0) as one,
        at.client(1) as two,
    ):
        await one.find()
        told = await one.call(m.MetadataRequest(topics=[OFFSETS_TOPIC]))
        leaders = {each.partition: each.leader for each in told.topics[0].partitions}
        assert len(set(leaders.values())) == 2
        by_id = {at.machines[0].id: (one, two), at.machines[1].id: (two, one)}
        for name in ("g", "x", "another", "äöü", "\U0001f30a"):
            found = await one.find(name)
            assert found.broker == leaders[partition_of(name, 4)]
            right, wrong = by_id[found.broker]
            assert (await right.join(group=name)).error == E.MEMBER_ID_REQUIRED
            assert await refusal(wrong.join(group=name)) is E.NOT_COORDINATOR
            assert await refusal(wrong.committed(name)) is E.NOT_COORDINATOR
            assert await wrong.commit(1, group=name) == E.NOT_COORDINATOR
            assert (await wrong.describe(name)).error == E.NOT_COORDINATOR
            assert await wrong.delete(name) == E.NOT_COORDINATOR


@pytest.mark.parametrize("name", BAD_NAMES, ids=["empty", "long"])
@virtual
async def test_a_name_that_cannot_be_is_refused_everywhere(name):
    async with site() as at, at.client() as client:
        assert await refusal(client.find(name)) is E.INVALID_GROUP_ID
        await client.find("g" * GROUP_ID_MAX)
        assert await refusal(client.join(group=name)) is E.INVALID_GROUP_ID
        assert await refusal(client.committed(name)) is E.INVALID_GROUP_ID
        assert await client.commit(1, group=name) == E.INVALID_GROUP_ID
        assert await client.forget(("t", 0), group=name) == [E.INVALID_GROUP_ID]
        assert await client.delete(name) == E.INVALID_GROUP_ID
        assert (await client.describe(name)).error == E.INVALID_GROUP_ID


# --- members ------------------------------------------------------------------------------------


async def test_a_member_comes_works_and_goes_over_a_real_socket():
    over = {name.replace(".", "_"): value for name, value in QUICK.items()}
    async with one_node(**over) as found:
        client = Asking(found.client.connection)
        assert (await client.find()).port == int(found.address.rpartition(":")[2])
        joined = await client.enter(client_id="me")
        assert (joined.generation, joined.protocol) == (1, "range")
        assert joined.leader == joined.member_id
        assert joined.member_id.startswith("me-")
        assert await client.sync(joined, **{joined.member_id: b"all"}) == b"all"
        await client.beat(joined)
        (member,) = (await client.describe()).members
        assert (member.client_id, member.host) == ("me", "127.0.0.1")
        assert await client.commit(7, joined) is None
        assert await client.committed() == {("t", 0): 7}
        assert await client.groups() == {"g": "Stable"}
        assert await client.leave(joined.member_id) is None
        assert await client.groups() == {"g": "Empty"}
        assert await client.delete() is None
        assert (await client.groups(), await client.committed()) == ({}, {})


@virtual
async def test_members_wait_for_each_other_and_each_gets_its_part():
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        await client.find()
        one = await client.member()
        joining = await later(nursery, client.enter)
        assert await refusal(client.beat(one)) is E.REBALANCE_IN_PROGRESS
        one = await client.join(one.member_id)
        two = await outcome(joining)
        assert (one.generation, two.generation) == (2, 2)
        assert two.leader == one.leader == one.member_id
        assert ([each.member_id for each in one.members], two.members) == (
            [one.member_id, two.member_id],
            [],
        )
        syncing = await later(nursery, client.sync, two)
        given = {one.member_id: b"first", two.member_id: b"second"}
        assert await client.sync(one, **given) == b"first"
        assert await outcome(syncing) == b"second"
        assert await client.sync(two) == b"second"


@virtual
async def test_the_first_member_waits_for_others_for_the_initial_delay():
    async with site(group_initial_rebalance_delay_ms="3s") as at, at.client() as client:
        await client.find()
        start = trio.current_time()
        joined = await client.enter()
        assert 2.9 < trio.current_time() - start < 3.5
        assert joined.generation == 1


@virtual
async def test_a_silent_member_is_out_although_nothing_is_asked_meanwhile():
    async with site() as at, at.client() as client:
        await client.find()
        one = await client.member()
        start = trio.current_time()
        other = await client.enter(session_timeout_ms=300_000)
        # This join was answered by the clock alone.
        assert abs(trio.current_time() - start - SESSION_MS / 1000) < 0.1
        assert (other.leader, other.generation) == (other.member_id, 2)
        assert await refusal(client.beat(one)) is E.UNKNOWN_MEMBER_ID
        await client.sync(other)
        await trio.sleep(301)
        told = await client.describe()
        why = f"{other.member_id} was silent for 300 s (session.timeout.ms)"
        assert (told.state, told.rebalances[-1].cause) == ("Empty", why)


@virtual
async def test_heartbeats_and_commits_keep_a_member_alive():
    async with site() as at, at.client() as client:
        await client.find()
        one = await client.member()
        for call in (client.beat(one), client.commit(3, one), client.beat(one)):
            await trio.sleep(0.8 * SESSION_MS / 1000)
            assert await call is None
        await trio.sleep(1.1 * SESSION_MS / 1000)
        assert await refusal(client.beat(one)) is E.UNKNOWN_MEMBER_ID
        assert await client.groups() == {"g": "Empty"}


@virtual
async def test_an_id_that_was_given_out_and_not_used_is_forgotten_after_its_session():
    async with site() as at, at.client() as client:
        await client.find()
        first = await client.join()
        await trio.sleep(1.1 * SESSION_MS / 1000)
        assert await refusal(client.join(first.member_id)) is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"session_timeout_ms": 5999}, E.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "who"}, E.UNKNOWN_MEMBER_ID),
    ],
)
@virtual
async def test_a_join_that_cannot_be_is_refused_and_makes_no_group(said, error):
    async with site() as at, at.client() as client:
        await client.find()
        assert await refusal(client.join(**said)) is error
        assert await client.groups() == {}
        assert (await client.describe()).error == E.GROUP_ID_NOT_FOUND


@virtual
async def test_a_full_group_takes_nobody_else():
    async with site(group_max_size="1") as at, at.client() as client:
        await client.find()
        await client.member()
        assert await refusal(client.join()) is E.GROUP_MAX_SIZE_REACHED


@virtual
async def test_requests_of_members_nobody_knows_are_refused():
    async with site() as at, at.client() as client:
        await client.find()
        stranger = g.JoinGroupResponse(member_id="who", generation=1)
        for group in ("g", "never"):
            assert await refusal(client.beat(stranger, group=group)) is E.UNKNOWN_MEMBER_ID
            assert await refusal(client.sync(stranger, group=group)) is E.UNKNOWN_MEMBER_ID
            await client.member(group="g")
        one = await client.member(group="h")
        assert await client.leave("who", group="h") == E.UNKNOWN_MEMBER_ID
        for generation in (one.generation - 1, one.generation + 1):
            call = client.beat(one, group="h", generation=generation)
            assert await refusal(call) is E.ILLEGAL_GENERATION
        assert "never" not in await client.groups()


@virtual
async def test_a_member_whose_connection_ends_while_its_join_waits_is_missed_in_time():
    async with site() as at, at.client() as client:
        await client.find()
        one = await client.member()
        async with at.client() as gone, trio.open_nursery() as inner:
            await later(inner, gone.enter)
            inner.cancel_scope.cancel()
        one = await client.join(one.member_id)
        assert (one.generation, len(one.members)) == (2, 2)
        await client.sync(one)
        rejoined = await client.join(one.member_id)
        assert (rejoined.generation, len(rejoined.members)) == (3, 1)


# --- offsets ------------------------------------------------------------------------------------


@virtual
async def test_a_commit_that_was_given_up_undoes_no_later_one():
    """It waited in a process that slept, or for a coordinator that had still to read, and was taken
    after the next one, which came on another connection."""
    async with site() as at, at.client() as client:
        await client.find()
        one = await client.enter()
        await client.sync(one)
        first = {"sender": "first"}
        assert await client.commit(135, one, **first, number=2) is None
        assert await client.commit(111, one, **first, number=1) == E.INVALID_REQUEST
        assert await client.committed() == {("t", 0): 135}
        assert await client.commit(135, one, **first, number=2) is None, "it may be asked again"
        assert await client.commit(40, one, **first, number=3) is None, "after a seek"
        assert await client.commit(7, one) is None, "one that does not count its commits"
        assert await client.commit(8, one, **first, number=1) is None
        assert await client.committed() == {("t", 0): 8}


@virtual
async def test_commits_without_a_member_are_counted_by_who_sends_them():
    """Two processes in turn read partitions of their own choice; each begins to count again."""
    async with site() as at:
        for process in range(2):
            async with at.consumer(
                group_id="g", partitions=[("t", 0)], topics=(), enable_auto_commit=False
            ) as consumer:
                for offset in (3, 4, 5):
                    await consumer.commit({("t", 0): offset + process})
        async with at.client() as client:
            await client.find()
            assert await client.committed() == {("t", 0): 6}


@virtual
async def test_who_may_commit():
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        await client.find()
        gone = g.JoinGroupResponse(member_id="gone", generation=1)
        assert await client.commit(1, gone) == E.ILLEGAL_GENERATION
        assert await client.commit(1) is None
        assert await client.commit(1, gone) == E.UNKNOWN_MEMBER_ID
        one = await client.enter()
        assert await client.commit(2, one) == E.REBALANCE_IN_PROGRESS
        await client.sync(one)
        assert await client.commit(2, one) is None
        assert await client.commit(9) == E.UNKNOWN_MEMBER_ID
        assert await client.commit(9, gone) == E.UNKNOWN_MEMBER_ID
        for generation in (0, 2):
            other = msgspec.structs.replace(one, generation=generation)
            assert await client.commit(9, other) == E.ILLEGAL_GENERATION
        # While the next generation is prepared, the present one may commit.
        await later(nursery, client.enter)
        assert await client.commit(3, one) is None
        assert await client.committed() == {("t", 0): 3}
        nursery.cancel_scope.cancel()


@virtual
async def test_what_cannot_be_committed_does_not_keep_the_rest_from_it():
    async with site(topic=2, offset_metadata_max_bytes="4") as at, at.client() as client:
        await client.find()
        parts = [
            g.CommitPartition(topic="t", partition=0, offset=1, metadata="äöü"),
            g.CommitPartition(topic="t", partition=1, offset=2, metadata="äö", leader_epoch=4),
            g.CommitPartition(topic="t", partition=2, offset=3),
            g.CommitPartition(topic="t", partition=-1, offset=3),
            g.CommitPartition(topic="nowhere", partition=0, offset=3),
            g.CommitPartition(topic="t", partition=0, offset=-1),
        ]
        results = await client.commit_all(parts)
        assert [each.error for each in results] == [
            E.OFFSET_METADATA_TOO_LARGE,
            None,
            *[E.UNKNOWN_TOPIC_OR_PARTITION] * 3,
            E.INVALID_REQUEST,
        ]
        wanted = [g.GroupPartition(topic="t", partition=number) for number in (0, 1)]
        answer = await client.ask(g.OffsetFetchRequest(group="g", partitions=wanted))
        none, some = answer.partitions
        assert (none.offset, none.leader_epoch, none.metadata) == (-1, -1, "")
        assert (some.offset, some.leader_epoch, some.metadata) == (2, 4, "äö")
        assert some.commit_time_ms > 0
        assert await client.committed() == {("t", 1): 2}


@virtual
async def test_of_a_group_that_nobody_knows_nothing_is_committed():
    async with site() as at, at.client() as client:
        await client.find()
        wanted = [
            g.GroupPartition(topic="t", partition=0),
            g.GroupPartition(topic="x", partition=9),
        ]
        answer = await client.ask(g.OffsetFetchRequest(group="never", partitions=wanted))
        assert [each.offset for each in answer.partitions] == [-1, -1]
        assert await client.committed("never") == {}
        assert await client.groups() == {}


@virtual
async def test_offsets_of_a_deleted_topic_are_gone_also_for_one_of_the_same_name():
    async with site() as at, at.client() as client:
        await client.find()
        await client.create("other")
        await client.commit(5)
        await client.commit(6, topic="other")
        await client.call(m.DeleteTopicsRequest(topics=["t"]))
        assert await client.committed() == {("other", 0): 6}
        await client.create("t")
        assert await client.committed() == {("other", 0): 6}
        await client.commit(1)
        assert await client.committed() == {("other", 0): 6, ("t", 0): 1}


@virtual
async def test_offsets_are_forgotten_on_request_unless_somebody_reads_the_topic():
    async with site(topic=2) as at, at.client() as client:
        await client.find()
        assert await client.forget(("t", 0)) == [E.GROUP_ID_NOT_FOUND]
        await client.create("other")
        one = await client.member(topics=["t"])
        for place in ({}, {"partition": 1}, {"topic": "other"}):
            assert await client.commit(4, one, **place) is None
        errors = await client.forget(("t", 0), ("other", 0), ("nowhere", 0))
        assert errors == [E.GROUP_SUBSCRIBED_TO_TOPIC, None, None]
        assert await client.committed() == {("t", 0): 4, ("t", 1): 4}
        await client.leave(one.member_id)
        assert await client.forget(("t", 1)) == [None]
        assert await client.committed() == {("t", 0): 4}


# --- administration -----------------------------------------------------------------------------


@virtual
async def test_a_group_is_described_with_its_members_and_why_it_was_rebalanced():
    async with site() as at, at.client() as client:
        await client.find()
        joined = await client.enter(client_id="me", reason="hello")
        told = await client.describe()
        assert (told.state, told.protocol, told.leader) == (
            "CompletingRebalance",
            "range",
            joined.member_id,
        )
        await client.sync(joined)
        told = await client.describe()
        assert (told.state, told.generation, told.protocol_type) == ("Stable", 1, "consumer")
        assert told.coordinator == at.machines[0].id
        (member,) = told.members
        assert (member.member_id, member.client_id) == (joined.member_id, "me")
        assert (member.instance_id, member.assignment) == ("", b"x")
        assert unpack_subscription(member.metadata, "range").topics == ["t"]
        (rebalance,) = told.rebalances
        assert (rebalance.generation, rebalance.cause) == (
            0,
            f"{joined.member_id} joined: hello",
        )
        await client.leave(joined.member_id)
        told = await client.describe()
        assert (told.state, told.members, told.generation) == ("Empty", [], 2)
        assert told.rebalances[-1].cause == f"{joined.member_id} left: enough"
        assert abs(told.rebalances[-1].at_ms - told.rebalances[0].at_ms) < 1000


@virtual
async def test_every_group_of_a_broker_is_listed():
    async with site(offsets_topic_num_partitions="5") as at, at.client() as client:
        assert await client.groups() == {}
        await client.find()
        names = [f"group-{number}" for number in range(12)]
        for name in names[:6]:
            await client.member(group=name)
        for name in names[6:]:
            await client.commit(1, group=name)
        states = dict.fromkeys(names[:6], "Stable") | dict.fromkeys(names[6:], "Empty")
        assert await client.groups() == states
        answer = await client.ask(g.ListGroupsRequest())
        assert {each.members for each in answer.groups if each.state == "Stable"} == {1}
        told = await client.describe(names[7])
        assert (told.error, told.state, told.members) == (None, "Empty", [])


@virtual
async def test_a_partition_whose_disk_failed_does_not_hide_the_groups_of_the_others():
    async with site(offsets_topic_num_partitions="2") as at, at.client() as client:
        await client.find()
        broken, whole = (next(n for n in "abcdef" if partition_of(n, 2) == p) for p in (0, 1))
        for name in (broken, whole):
            assert await client.commit(1, group=name) is None
        at.gate.fail("write", f"{OFFSETS_TOPIC}-0")
        assert await client.commit(2, group=broken) == E.NOT_COORDINATOR
        assert (await client.describe(broken)).error == E.NOT_COORDINATOR
        assert await client.commit(2, group=whole) is None
        assert whole in await client.groups()


@virtual
async def test_groups_are_deleted_when_nobody_is_in_them():
    async with site() as at, at.client() as client:
        await client.find()
        one = await client.member()
        await client.commit(3, one)
        await client.commit(4, group="simple")
        assert await client.delete() == E.NON_EMPTY_GROUP
        assert await client.delete("never") == E.GROUP_ID_NOT_FOUND
        await client.leave(one.member_id)
        answer = await client.ask(g.DeleteGroupsRequest(groups=["g", "never", "simple", "g"]))
        assert [each.error for each in answer.groups] == [
            None,
            E.GROUP_ID_NOT_FOUND,
            None,
            E.GROUP_ID_NOT_FOUND,
        ]
        assert (await client.groups(), await client.committed()) == ({}, {})
        assert await refusal(client.beat(one)) is E.UNKNOWN_MEMBER_ID
        assert (await client.member()).generation == 1


@virtual
async def test_members_are_taken_out_by_their_instance_ids_by_who_administers():
    async with site() as at, at.client() as client:
        await client.find()
        joined = await client.join(instance_id="i")
        await client.sync(joined)
        assert await client.leave("", instance_id="other") == E.UNKNOWN_MEMBER_ID
        assert await client.leave("wrong", instance_id="i") == E.FENCED_INSTANCE_ID
        assert await client.leave("", instance_id="i") is None
        assert await client.groups() == {"g": "Empty"}


@pytest.mark.parametrize("type_", ["consumer", "workers"])
@virtual
async def test_what_members_say_to_each_other_is_not_the_coordinator_s_business(type_):
    async with site() as at, at.client() as client:
        await client.find()
        joined = await client.enter(metadata=b"\xc1 not ours", protocol_type=type_)
        assert joined.members[0].metadata == b"\xc1 not ours"
        assert await client.sync(joined, **{joined.member_id: b"\xff" * 1000}) == b"\xff" * 1000
        assert (await client.describe()).protocol_type == type_
        assert await client.commit(1, joined) is None
