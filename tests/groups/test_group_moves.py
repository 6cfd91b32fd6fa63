"""Moving a group by hand: `Admin.move_group`, with a dry run, by every way there is.

Method: brokers in virtual time; a topic of which the first records were deleted, and a group that
has committed one partition of two.
"""

from contextlib import asynccontextmanager

import pytest
from group_world import fill, site, virtual

from hightide import Admin, ApiError, ErrorCode
from hightide.admin.group_admin import GroupMove
from hightide.protocol.errors import UsageError

START = 1_700_000_000_000


@asynccontextmanager
async def stage():
    """10 records in each of two partitions, the first 2 deleted; 5 is committed in the first."""
    async with (
        site(topic=2) as at,
        at.client() as client,
        Admin(at.bootstrap, network=at.world.network.host("admin")) as admin,
    ):
        await fill(client, 10, partitions=2)
        await admin.delete_records({("t", 0): 2, ("t", 1): 2})
        await client.find()
        await client.commit(5)
        yield admin


@virtual
@pytest.mark.parametrize(
    ("how", "new"),
    [
        ({"to": "start"}, 2),
        ({"to": "end"}, 10),
        ({"to_offset": 7}, 7),
        ({"to_offset": 0}, 2),
        ({"to_offset": 99}, 10),
        ({"shift": 3}, 8),
        ({"shift": -30}, 2),
        ({"to_time_ms": 0}, 2),
        ({"to_time_ms": START + 3_600_000}, 10),
    ],
)
async def test_a_group_goes_where_it_is_told_but_never_outside_the_log(how, new):
    async with stage() as admin:
        is_limited = how in ({"to_offset": 0}, {"to_offset": 99}, {"shift": -30})
        moves = [GroupMove("t", 0, 5, new, is_limited)]
        assert await admin.move_group("g", dry_run=True, **how) == moves
        assert [each.offset for each in (await admin.group_offsets("g")).values()] == [5]
        assert await admin.move_group("g", **how) == moves
        assert [each.offset for each in (await admin.group_offsets("g")).values()] == [new]


@virtual
async def test_partitions_without_a_commit_can_be_given_one_but_not_shifted():
    async with stage() as admin:
        both = [("t", 0), ("t", 1)]
        moves = await admin.move_group("g", both, to="end")
        assert moves == [GroupMove("t", 0, 5, 10), GroupMove("t", 1, None, 10)]
        assert await admin.move_group("other", both, shift=1) == []
        assert await admin.move_group("other", to="end") == []


@virtual
@pytest.mark.parametrize("how", [{}, {"to": "start", "shift": 1}, {"to_offset": 0, "shift": 0}])
async def test_one_way_is_to_be_given(how):
    async with stage() as admin:
        with pytest.raises(UsageError, match="give one of"):
            await admin.move_group("g", **how)


@virtual
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"to": "earliest"}, "to is 'earliest', expected 'start' or 'end'"),
        ({"to_offset": "5"}, "to_offset is '5', expected a whole number"),
        ({"shift": 1.5}, "shift is 1.5, expected a whole number"),
        ({"to_time_ms": "noon"}, "to_time_ms is 'noon', expected a whole number"),
    ],
)
async def test_a_way_that_is_none_is_refused_and_moves_nothing(how, said):
    async with stage() as admin:
        before = await admin.group_offsets("g")
        with pytest.raises(UsageError, match=said):
            await admin.move_group("g", **how)
        assert await admin.group_offsets("g") == before


@virtual
async def test_a_group_with_members_stays_where_it_is():
    async with site() as at, Admin(at.bootstrap, network=at.world.network.host("a")) as admin:
        async with at.consumer() as consumer:
            while not consumer.assignment():
                await consumer.poll(timeout_ms=100)
            with pytest.raises(ApiError) as caught:
                await admin.move_group("g", [("t", 0)], to="end")
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
