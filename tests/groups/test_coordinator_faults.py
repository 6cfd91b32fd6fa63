"""Groups when their broker stops, loses its power, its leadership or its disk; and old offsets.

Goal: what a group was told survives, members go on with the ids they have, nothing is told that was
not kept, and what nobody needs is forgotten in the end. Method: nodes of the simulation on virtual
time that are killed or lose power, disks that sync when the test lets them, leaders that are moved.
"""

import logging
from dataclasses import replace

import pytest
import trio
from brokers import batch
from group_world import (
    SESSION_MS,
    group_led_by,
    in_sync,
    later,
    outcome,
    refusal,
    site,
    until,
    virtual,
)

from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC
from hightide_broker.core.groups.records import GroupKey, GroupValue, OffsetKey, OffsetValue, encode

E = ErrorCode
ENDS = pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])


# --- another life of the broker -----------------------------------------------------------------


@ENDS
@virtual
async def test_a_group_goes_on_in_the_next_life_of_its_broker_as_if_nothing_had_happened(power):
    async with site(topic=2) as at:
        async with at.client() as client:
            await client.find()
            one = await client.join(instance_id="i")
            await client.sync(one, **{one.member_id: b"mine"})
            parts = [
                g.CommitPartition(topic="t", partition=0, offset=5, metadata="m", leader_epoch=2),
                g.CommitPartition(topic="t", partition=1, offset=6),
            ]
            await client.commit_all(parts, one)
            assert await client.forget(("t", 1)) == [E.GROUP_SUBSCRIBED_TO_TOPIC]
            before = (await client.describe(), await client.committed())
        await at.again(power=power)
        async with at.client() as client:
            await client.beat(one)
            told, offsets = await client.describe(), await client.committed()
            assert told.rebalances == []
            assert told.members == before[0].members
            assert (told.state, told.generation, told.leader, told.protocol) == (
                "Stable",
                one.generation,
                one.member_id,
                "range",
            )
            assert offsets == before[1] == {("t", 0): 5, ("t", 1): 6}
            assert await client.sync(one) == b"mine"
            assert await client.commit(7, one) is None
            old = await client.join(instance_id="i")
            assert (old.generation, old.member_id != one.member_id) == (one.generation, True)
            assert await refusal(client.beat(one)) is E.UNKNOWN_MEMBER_ID


@ENDS
@virtual
async def test_whatever_was_acknowledged_is_there_after_many_ends(power):
    async with site(offsets_topic_num_partitions="3") as at:
        kept = {}
        for life in range(6):
            async with at.client() as client:
                await client.find()
                for number in range(8):
                    name = f"g{(life + number) % 10}"
                    offset = 10 * life + number
                    assert await client.commit(offset, group=name) is None
                    kept[name] = {("t", 0): offset}
                gone = f"g{life}"
                assert await client.delete(gone) is None
                kept[gone] = {}
            await at.again(power=power)
            async with at.client() as client:
                await client.find()
                assert {name: await client.committed(name) for name in kept} == kept
                assert set(await client.groups()) == {name for name in kept if kept[name]}


@virtual
async def test_members_have_a_whole_session_to_show_up_and_who_does_not_is_out():
    async with site() as at:
        async with at.client() as client:
            await client.find()
            await client.member()
            await trio.sleep(0.9 * SESSION_MS / 1000)
        await at.again()
        async with at.client() as client:
            start = trio.current_time()
            other = await client.enter(session_timeout_ms=300_000)
            assert 0.9 * SESSION_MS <= (trio.current_time() - start) * 1000 <= 1.1 * SESSION_MS
            assert other.generation == 2


@virtual
async def test_a_group_that_was_being_rebalanced_comes_back_in_its_last_generation_that_was_kept():
    async with site() as at:
        async with at.client() as client, trio.open_nursery() as nursery:
            await client.find()
            one = await client.member()
            await later(nursery, client.enter)
            nursery.cancel_scope.cancel()
        await at.again()
        async with at.client() as client:
            told = await client.describe()
            assert (told.state, told.generation) == ("Stable", 1)
            await client.beat(one)
            assert [each.member_id for each in told.members] == [one.member_id]


@virtual
async def test_an_empty_group_keeps_its_generation():
    async with site() as at:
        async with at.client() as client:
            await client.find()
            one = await client.member()
            await client.commit(1, one)
            await client.leave(one.member_id)
        await at.again(power=True)
        async with at.client() as client:
            assert await client.groups() == {"g": "Empty"}
            assert (await client.member()).generation == 3


# --- what could not be kept -----------------------------------------------------------------------


@virtual
async def test_what_is_not_committed_in_time_is_refused_and_not_told():
    async with site(offsets_commit_timeout_ms="2s") as at, at.client() as client:
        await client.find()
        assert await client.commit(3) is None
        at.gate.shut()
        start = trio.current_time()
        assert await client.commit(4) == E.COORDINATOR_NOT_AVAILABLE
        assert 1.9 < trio.current_time() - start < 2.5
        assert await client.committed() == {("t", 0): 3}
        at.gate.open_again()
        assert await client.commit(5) is None
        assert await client.committed() == {("t", 0): 5}


@virtual
async def test_nothing_is_told_before_it_is_committed():
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        await client.find()
        joined = await client.enter()
        at.gate.shut()
        syncing = await later(nursery, client.sync, joined)
        assert (await client.describe()).state == "CompletingRebalance"
        at.gate.open_again()
        assert await outcome(syncing) == b"x"
        at.gate.shut()
        committing = await later(nursery, client.commit, 8, joined)
        assert await client.committed() == {}
        at.gate.open_again()
        assert await outcome(committing) is None
        assert await client.committed() == {("t", 0): 8}


@virtual
async def test_an_assignment_that_cannot_be_kept_begins_another_rebalance():
    async with site(offsets_commit_timeout_ms="2s") as at, at.client() as client:
        await client.find()
        joined = await client.enter()
        at.gate.shut()
        assert await refusal(client.sync(joined)) is E.COORDINATOR_NOT_AVAILABLE
        told = await client.describe()
        assert told.state == "PreparingRebalance"
        assert "could not be kept: not committed within 2 s" in told.rebalances[-1].cause
        at.gate.open_again()
        again = await client.join(joined.member_id)
        assert await client.sync(again) == b"x"
        assert again.generation == joined.generation + 1


@virtual
async def test_a_commit_that_was_not_acknowledged_may_be_lost_with_the_power():
    async with site() as at:
        async with at.client() as client, trio.open_nursery() as nursery:
            await client.find()
            await client.commit(3)
            at.gate.shut()
            await later(nursery, client.commit, 4)
            nursery.cancel_scope.cancel()
        at.gate.open_again()
        await at.again(power=True)
        async with at.client() as client:
            assert await client.committed() in ({("t", 0): 3}, {("t", 0): 4})


@pytest.mark.parametrize(
    "first",
    [
        "delete",
        pytest.param("commit"),
    ],
)
@virtual
async def test_of_a_commit_and_a_removal_that_are_kept_together_the_later_one_counts(first):
    """Both records are committed at one moment; the first to hear of it must not decide."""
    names = [f"g{number}" for number in range(12)]
    async with site(offsets_commit_timeout_ms="60s") as at:
        async with at.client() as client, trio.open_nursery() as nursery:
            await client.find()
            for name in names:
                await client.commit(3, group=name)
            at.gate.shut()
            found = []
            for name in names:
                calls = [(client.forget, (("t", 0),)), (client.commit, (4,))]
                for function, said in calls if first == "delete" else calls[::-1]:
                    found.append(await later(nursery, function, *said, group=name))
            at.gate.open_again()
            assert {str(await outcome(each)) for each in found} <= {"None", "[None]"}
            told = {name: await client.committed(name) for name in names}
        await at.again()
        async with at.client() as client:
            kept = {name: await client.committed(name) for name in names}
        wanted = {("t", 0): 4} if first == "delete" else {}
        assert kept == dict.fromkeys(names, wanted)
        assert told == kept


@virtual
async def test_a_commit_that_comes_while_its_group_is_being_deleted_is_not_lost():
    names = [f"g{number}" for number in range(12)]
    async with site(offsets_commit_timeout_ms="60s") as at:
        async with at.client() as client, trio.open_nursery() as nursery:
            await client.find()
            for name in names:
                await client.commit(3, group=name)
            at.gate.shut()
            found = []
            for name in names:
                found.append(await later(nursery, client.delete, name))
                found.append(await later(nursery, client.commit, 4, group=name))
            at.gate.open_again()
            assert {await outcome(each) for each in found} == {None}
            told = {name: await client.committed(name) for name in names}
        assert told == {name: {("t", 0): 4} for name in names}


# --- another leader -----------------------------------------------------------------------------


@virtual
async def test_who_waits_hears_when_the_leadership_moves_and_goes_on_with_the_next_coordinator():
    async with (
        site(brokers=2, offsets_topic_num_partitions="4") as at,
        at.client(0) as first,
        trio.open_nursery() as nursery,
    ):
        name, wanted = await group_led_by(first, at, 1)
        await in_sync(first, wanted.partition, 2)
        await at.machines[1].crash(power=False)
        await until(lambda: at.leads(0, wanted.partition))
        one = await first.member(group=name)
        await first.commit(5, one, group=name)
        at.machines[1].start_again()
        await at.machines[1].serves()
        await in_sync(first, wanted.partition, 2)
        joining = await later(nursery, first.enter, group=name)
        places = [m.PartitionName(topic=OFFSETS_TOPIC, partition=wanted.partition)]
        await first.call(m.ElectLeadersRequest(partitions=places))
        refused = await outcome(joining)
        assert refused.code is E.NOT_COORDINATOR, refused
        assert await refusal(first.beat(one, group=name)) is E.NOT_COORDINATOR
        assert (await first.find(name)).broker == at.machines[1].id
        async with at.client(1) as second:
            await second.beat(one, group=name)
            assert await second.committed(name) == {("t", 0): 5}
            assert await second.commit(6, one, group=name) is None


@virtual
async def test_a_sync_and_a_commit_that_wait_hear_when_the_leadership_is_lost():
    async with site() as at, at.client() as client, trio.open_nursery() as nursery:
        await client.find()
        one = await client.member()
        two = await client.enter(group="h")
        machine = at.machines[0]
        at.gate.shut()
        waiting = [
            await later(nursery, client.sync, two, group="h"),
            await later(nursery, client.commit, 5, one),
            await later(nursery, client.enter),
        ]
        replica = machine.node.replicas.get(OFFSETS_TOPIC, 0)
        state = machine.node.image.topics[OFFSETS_TOPIC].partitions[0]
        replica.become_follower(replace(state, leader=9, leader_epoch=state.leader_epoch + 1))
        syncing, committing, joining = [await outcome(each) for each in waiting]
        assert (syncing.code, committing, joining.code) == (E.NOT_COORDINATOR,) * 3
        assert await refusal(client.beat(one)) is E.NOT_COORDINATOR
        assert await client.groups() == {}
        at.gate.open_again()


# --- loading ------------------------------------------------------------------------------------


@virtual
async def test_a_coordinator_that_still_reads_says_so_and_serves_once_all_of_it_is_committed():
    async with site() as at:
        async with at.client() as client, trio.open_nursery() as nursery:
            await client.find()
            one = await client.member()
            await client.commit(3, one)
            at.gate.shut()
            await later(nursery, client.commit, 4, one)
            nursery.cancel_scope.cancel()
        await at.again()
        async with at.client() as client, trio.open_nursery() as nursery:
            start = trio.current_time()
            assert await refusal(client.committed()) is E.COORDINATOR_LOAD_IN_PROGRESS
            assert 4.9 < trio.current_time() - start < 5.2
            assert await refusal(client.beat(one)) is E.COORDINATOR_LOAD_IN_PROGRESS
            assert await client.commit(5, one) == E.COORDINATOR_LOAD_IN_PROGRESS
            assert (await client.describe()).error == E.COORDINATOR_LOAD_IN_PROGRESS
            asking = await later(nursery, client.committed)
            at.gate.open_again()
            assert await outcome(asking) == {("t", 0): 4}
            await client.beat(one)


@virtual
async def test_the_log_names_partitions_whose_groups_are_read_and_not_those_of_none(caplog):
    async with site(offsets_topic_num_partitions="5") as at:
        async with at.client() as client:
            await client.find()
            await client.commit(3, await client.member())
        caplog.set_level(logging.INFO, logger="hightide.groups")
        await at.again()
        async with at.client() as client:
            assert await client.committed() == {("t", 0): 3}
        told = [each.getMessage() for each in caplog.records if each.name == "hightide.groups"]
        assert [each for each in told if each.endswith("1 group is read")]
        assert not [each for each in told if " 0 groups" in each]


@virtual
async def test_records_that_no_coordinator_wrote_are_skipped_with_a_warning(caplog):
    value = encode(OffsetValue(offset=9, topic_id="of no topic"))
    strange = GroupValue(generation=7, leader="nobody", protocol="x", members=[])
    async with site() as at:
        async with at.client() as client:
            await client.find()
            await client.commit(3)
            keys = [
                b"",
                b"\xc1",
                b"what",
                encode(OffsetKey("g", "t", 0)),
                encode(GroupKey("g")),
                encode(["other", 1]),
                encode(OffsetKey("g", "nowhere", -1)),
                encode(GroupKey("strange")),
                encode(GroupKey("")),
                encode(GroupKey("never")),
            ]
            values = [b"", value, None, b"\xc1", value, value, value, encode(strange), None, None]
            refused = await client.send(batch(*values, keys=keys), topic=OFFSETS_TOPIC)
            assert refused.error == E.INVALID_TOPIC
            replica = at.machines[0].node.replicas.get(OFFSETS_TOPIC, 0)
            strangers = memoryview(bytearray(batch(*values, keys=keys)))
            replica.append(strangers, acks_all=True, now_ms=at.machines[0].clock.now_ms())
            replica.needs_sync = True
            at.machines[0].node.replicas.mark_dirty(replica)
            await client.commit(4, group="h")
        caplog.set_level(logging.WARNING, logger="hightide.groups")
        await at.again()
        async with at.client() as client:
            assert await client.committed() == {("t", 0): 3}
            told = [each for each in caplog.records if each.name == "hightide.groups"]
            warned = [each.getMessage() for each in told]
            assert len(warned) == 6, warned
            assert all(each.startswith(f"{OFFSETS_TOPIC}-0: record ") for each in warned)
            assert await client.committed("h") == {("t", 0): 4}
            assert set(await client.groups()) == {"g", "h", "strange"}
            assert (await client.member()).generation == 1
            assert (await client.member(group="strange")).generation == 8


# --- forgetting ---------------------------------------------------------------------------------

FORGETFUL = {"offsets_retention_ms": "60s", "offsets_retention_check_interval_ms": "5s"}


@virtual
async def test_offsets_that_nobody_needs_are_forgotten_for_good():
    async with site(**FORGETFUL) as at:
        async with at.client() as client:
            await client.find()
            await client.commit(3, group="simple")
            await trio.sleep(30)
            await client.commit(4, group="later")
            one = await client.member()
            await client.commit(5, one)
            await client.leave(one.member_id)
            await trio.sleep(40)
            assert set(await client.groups()) == {"later", "g"}
            assert await client.committed("simple") == {}
            assert await client.committed() == {("t", 0): 5}
            await trio.sleep(40)
            assert await client.groups() == {}
        await at.again()
        async with at.client() as client:
            assert await client.groups() == {}
            assert await client.committed() == await client.committed("later") == {}


@virtual
async def test_of_a_group_with_members_only_what_they_do_not_read_is_forgotten():
    async with site(**FORGETFUL) as at, at.client() as client:
        await client.find()
        await client.create("other")
        one = await client.member(topics=["t"], session_timeout_ms=300_000)
        await client.commit(3, one)
        await client.commit(4, one, topic="other")
        await trio.sleep(100)
        assert await client.committed() == {("t", 0): 3}
        assert await client.groups() == {"g": "Stable"}


@virtual
async def test_the_time_of_an_empty_group_goes_on_in_the_next_life_of_its_broker():
    async with site(**FORGETFUL) as at:
        async with at.client() as client:
            await client.find()
            one = await client.member(session_timeout_ms=300_000)
            await client.commit(3, one)
            await trio.sleep(100)
            await client.leave(one.member_id)
            await trio.sleep(40)
        await at.again()
        async with at.client() as client:
            assert await client.committed() == {("t", 0): 3}
            await trio.sleep(30)
            assert (await client.groups(), await client.committed()) == ({}, {})


@virtual
async def test_offsets_of_a_group_that_begins_again_are_not_forgotten_while_it_is_being_joined():
    """Who subscribes to what is known, the assignor is not chosen yet."""
    over = FORGETFUL | {"group_initial_rebalance_delay_ms": "12s"}
    async with site(**over) as at, at.client() as client:
        await client.find()
        one = await client.member(session_timeout_ms=300_000)
        await client.commit(3, one)
        await trio.sleep(100)
        await client.leave(one.member_id)
        await client.member(session_timeout_ms=300_000)
        assert await client.committed() == {("t", 0): 3}


@virtual
async def test_offsets_of_a_group_of_another_kind_stay_while_it_has_members():
    async with site(**FORGETFUL) as at, at.client() as client:
        await client.find()
        said = {"protocol_type": "workers", "metadata": b"\xc1", "session_timeout_ms": 300_000}
        one = await client.member(**said)
        await client.commit(3, one)
        await trio.sleep(100)
        assert await client.committed() == {("t", 0): 3}


@virtual
async def test_a_deleted_group_does_not_come_back_with_offsets_of_a_deleted_topic():
    async with site() as at:
        async with at.client() as client:
            await client.find()
            await client.create("other")
            await client.commit(3)
            await client.commit(4, topic="other")
            await client.call(m.DeleteTopicsRequest(topics=["t"]))
            assert await client.delete() is None
            assert await client.groups() == {}
        await at.again()
        async with at.client() as client:
            assert await client.groups() == {}
