"""Groups whose clients go away, and groups that change, while something is being kept.

Goal: what a coordinator knows is what its log says, no matter who still waits for it: the next
broker that reads the log must not know of more, or of less. Method: nodes of the simulation on
virtual time, whose disk syncs when the test lets it; what is told is held against what the next
life of the broker tells.
"""

import pytest
import trio
from group_world import later, outcome, refusal, site, virtual

from hightide.protocol.errors import ErrorCode

E = ErrorCode
SOON_S = 1.0


async def told(at, *names):
    """What a stranger is told of groups: members, generation and offsets of each; and who is
    there."""
    async with at.client() as client:
        found = {}
        for name in names or ("g",):
            group = await client.describe(name)
            members = [each.member_id for each in group.members]
            offsets = await client.committed(name)
            found[name] = (group.error, group.state, group.generation, members, offsets)
        return found, await client.groups()


async def told_in_both_lives(at, *names):
    """What is told now, which is what the next life of the broker tells, too."""
    now = await told(at, *names)
    await at.again()
    assert await told(at, *names) == now
    return now[0]


# --- the one that asked goes away
# ----------------------------------------------------------------------


async def ask_and_go(at, *calls):
    """Somebody asks while nothing is synced, and is gone before it is answered."""
    at.gate.shut()
    async with at.client() as client, trio.open_nursery() as nursery:
        for name, *said in calls:
            await later(nursery, getattr(client, name), *said)
        nursery.cancel_scope.cancel()
    await trio.sleep(SOON_S)  # the broker has seen the end of the connection
    at.gate.open_again()
    await trio.sleep(SOON_S)


@virtual
async def test_an_offset_counts_though_who_committed_it_went_away():
    async with site() as at:
        async with at.client() as client:
            await client.find()
            await client.commit(3)
        await ask_and_go(at, ("commit", 4))
        found = await told_in_both_lives(at)
        assert found["g"][-1] == {("t", 0): 4}


@virtual
async def test_the_first_offset_of_a_group_counts_though_who_committed_it_went_away():
    async with site() as at:
        async with at.client() as client:
            await client.find()
            await client.commit(3, group="another")
        await ask_and_go(at, ("commit", 4))
        found = await told_in_both_lives(at, "g", "another")
        assert [each[-1] for each in found.values()] == [{("t", 0): 4}, {("t", 0): 3}]


@virtual
async def test_of_commits_of_which_one_was_given_up_the_last_one_counts():
    async with site() as at:
        async with at.client() as patient:
            await patient.find()
            at.gate.shut()
            async with trio.open_nursery() as nursery:
                first = await later(nursery, patient.commit, 3)
                async with at.client() as client, trio.open_nursery() as brief:
                    await later(brief, client.commit, 4)
                    brief.cancel_scope.cancel()
                await trio.sleep(SOON_S)
                at.gate.open_again()
                assert await outcome(first) is None
        found = await told_in_both_lives(at)
        assert found["g"][-1] == {("t", 0): 4}


@virtual
async def test_offsets_are_forgotten_though_who_asked_for_it_went_away():
    async with site(topic=2) as at:
        async with at.client() as client:
            await client.find()
            await client.commit(3)
            await client.commit(5, partition=1)
        await ask_and_go(at, ("forget", ("t", 0)))
        found = await told_in_both_lives(at)
        assert found["g"][-1] == {("t", 1): 5}


@pytest.mark.parametrize("has_lived", [False, True])
@virtual
async def test_of_a_removal_that_was_given_up_the_log_and_the_broker_know_the_same(
    has_lived,
):
    """Whether all of it goes is not said; but nothing may come back with the next leader."""
    async with site() as at:
        async with at.client() as client:
            await client.find()
            if has_lived:
                one = await client.member()
                await client.commit(2, one)
                await client.leave(one.member_id)
            await client.commit(3)
        await ask_and_go(at, ("delete",))
        found = await told_in_both_lives(at)
        assert found["g"][-1] == {}, "its tombstone was in the log when nobody waited any more"


@virtual
async def test_a_commit_that_was_refused_for_it_took_too_long_counts_once_it_is_in_the_log():
    async with site(offsets_commit_timeout_ms="2s") as at:
        async with at.client() as client:
            await client.find()
            await client.commit(3)
            at.gate.shut()
            assert await client.commit(4) == E.COORDINATOR_NOT_AVAILABLE
            assert await client.committed() == {("t", 0): 3}, "not yet"
            at.gate.open_again()
            await trio.sleep(SOON_S)
        found = await told_in_both_lives(at)
        assert found["g"][-1] == {("t", 0): 4}


@virtual
async def test_nothing_is_told_of_a_commit_before_it_is_committed_though_nobody_waits_for_it():
    async with site() as at:
        async with at.client() as client:
            await client.find()
            await client.commit(3)
        at.gate.shut()
        async with at.client() as client, trio.open_nursery() as nursery:
            await later(nursery, client.commit, 4)
            nursery.cancel_scope.cancel()
        await trio.sleep(SOON_S)
        async with at.client() as client:
            assert await client.committed() == {("t", 0): 3}
        at.gate.open_again()


# --- groups that change while they are removed ----------------------------------------------------


@virtual
async def test_a_member_that_comes_while_its_group_is_being_deleted_stays_one():
    async with site() as at:
        async with at.client() as client, trio.open_nursery() as nursery:
            await client.find()
            await client.commit(3)
            at.gate.shut()
            deleting = await later(nursery, client.delete)
            one = await client.enter(session_timeout_ms=300_000)
            syncing = await later(nursery, client.sync, one)
            at.gate.open_again()
            assert await outcome(syncing) == b"x"
            assert await outcome(deleting) in (None, E.NON_EMPTY_GROUP)
        found = await told_in_both_lives(at)
        assert found["g"][1:4] == ("Stable", one.generation, [one.member_id])
        async with at.client() as client:
            await client.beat(one)
            assert await client.commit(9, one) is None


@virtual
async def test_an_offset_that_came_during_a_removal_leaves_what_the_log_says():
    async with site() as at:
        async with at.client() as client, trio.open_nursery() as nursery:
            await client.find()
            one = await client.member()
            await client.commit(3, one)
            await client.leave(one.member_id)
            at.gate.shut()
            deleting = await later(nursery, client.delete)
            committing = await later(nursery, client.commit, 4)
            at.gate.open_again()
            assert await outcome(committing) is None
            assert await outcome(deleting) in (None, E.NON_EMPTY_GROUP)
        found = await told_in_both_lives(at)
        assert found["g"][-1] == {("t", 0): 4}


@virtual
async def test_a_member_that_came_and_went_during_a_removal_leaves_what_the_log_says():
    async with site() as at:
        async with at.client() as client, trio.open_nursery() as nursery:
            await client.find()
            one = await client.member()
            await client.leave(one.member_id)
            at.gate.shut()
            deleting = await later(nursery, client.delete)
            two = await client.enter()
            syncing = await later(nursery, client.sync, two)
            await client.leave(two.member_id)
            at.gate.open_again()
            await outcome(syncing)
            assert await outcome(deleting) in (None, E.NON_EMPTY_GROUP)
            await trio.sleep(SOON_S)
        await told_in_both_lives(at)


@virtual
async def test_of_several_removals_of_one_group_none_does_harm():
    async with site() as at:
        async with at.client() as client, trio.open_nursery() as nursery:
            await client.find()
            for name in ("g", "h"):
                await client.commit(3, group=name)
            at.gate.shut()
            found = [await later(nursery, client.delete) for _ in range(3)]
            at.gate.open_again()
            assert {await outcome(each) for each in found} <= {None, E.GROUP_ID_NOT_FOUND}
            assert await refusal(client.committed()) is None
        found = await told_in_both_lives(at, "g", "h")
        assert [each[-1] for each in found.values()] == [{}, {("t", 0): 3}]
