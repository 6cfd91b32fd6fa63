"""Two who remove one group at a time, a client and the time that is up; and commits let go.

Goal: whichever of them is first, none ends the broker, a group that was removed is gone for both,
and who comes meanwhile is not; an offset that was refused after it was appended counts once it is
committed. Method: broker 1 leads the partition of the groups with real replicas and coordinators;
what broker 2 has fetched, and so what is committed, the test says. Steps are chosen in many orders.
"""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
from brokers import FakeClock
from leaderkit import ME, TWO, Here, settled

from hightide.protocol import group_messages as g
from hightide.protocol.consumer_protocol import pack_subscription
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC
from hightide_broker.core.groups.records import OffsetKey, OffsetValue
from hightide_broker.runtime.base.call import Call
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.groups.coordinators import Coordinators
from hightide_broker.runtime.server.group_handlers import GroupHandlers
from hightide_broker.simulation.scheduler import run_seeded

CHECK_S = 10.0
"""How often old offsets are looked for."""
LONG_MS = 1 << 40
"""After so long every offset is too old."""
SEEDS = range(8)
GROUPS = ["g", "h"]


class Desk(Here):
    """Broker 1 coordinates groups; what it appends is committed once broker 2 has fetched it."""

    def __init__(self):
        super().__init__(
            offsets_retention_check_interval_ms=f"{CHECK_S:.0f}s", offsets_commit_timeout_ms="60s"
        )
        self.clock = FakeClock()
        applied = Watermark(LONG_MS)  # whatever is decided is done here
        self.coordinators = Coordinators(
            self, applied, self.replicas, config=self.config, clock=self.clock
        )
        self.handlers = GroupHandlers(
            self.coordinators, broker=ME, clock=self.clock, random=random.Random(1)
        )
        self.answers, self.joined = [], []

    async def open(self, nursery):
        """Coordinate, and hold an offset in each group."""
        self.replica = await self.create(OFFSETS_TOPIC, replicas=(ME, TWO), min_insync_replicas="2")
        await self.create("t")
        nursery.start_soon(self.coordinators.run)
        await settled()
        self.acknowledge()
        for name in GROUPS:
            nursery.start_soon(self.commit, name, 3)
            await settled()
            self.acknowledge()
            await settled()
            assert await self.committed(name) == {("t", 0): 3}

    async def commit(self, name, offset):
        """An offset of a group; its refusal, if there is one."""
        found = await self.coordinators.of(name)
        value = OffsetValue(offset=offset, topic_id="id-of-t", commit_time_ms=self.clock.ms)
        try:
            await found.commit_offsets(name, [(OffsetKey(name, "t", 0), value)])
        except Refused as refusal:
            self.answers.append(refusal.code)

    async def committed(self, name):
        known = (await self.coordinators.of(name)).offsets[name]
        return {where: each.offset for where, each in known.all({"t": "id-of-t"}).items()}

    def acknowledge(self):
        """Broker 2 fetches: it has all that is there."""
        self.fetch_one(self.replica.log.log_end, topic=OFFSETS_TOPIC)

    async def live(self, nursery, name):
        """A member comes and goes: the group has a generation, which is kept."""
        nursery.start_soon(self.join, name)
        await trio.sleep(CHECK_S / 2)
        gone = [g.LeavingMember(member_id="", instance_id="i", reason="")]
        await self.handlers.leave_group(Call(g.LeaveGroupRequest(group=name, members=gone)))
        await settled()
        await self.calm()
        assert len(self.joined) == 1

    async def delete(self, name):
        answer = await self.handlers.delete_groups(Call(g.DeleteGroupsRequest(groups=[name])))
        self.answers.append(answer.body.groups[0].error)

    async def known(self):
        """The groups that there are still, as a client is told."""
        answer = await self.handlers.list_groups()
        return {each.group for each in answer.body.groups}

    async def calm(self):
        """Whatever is appended is committed, until nothing more comes."""
        while self.replica.high_watermark < self.replica.log.log_end:
            self.acknowledge()
            await settled()

    async def join(self, name):
        """A member with an instance of its own comes."""
        request = g.JoinGroupRequest(
            group=name,
            instance_id="i",
            protocols=[
                g.Protocol(
                    name="range", metadata=pack_subscription(g.Subscription(topics=["t"]), "range")
                )
            ],
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
        )
        joined = (await self.handlers.join_group(Call(request))).body
        assert joined.error is None, joined
        self.joined.append(joined.member_id)


async def begin(desk, nursery, count, *, has_lived=False):
    """A deletion has its first step committed at the very moment at which the time is up, so that
    both have appended what is committed next."""
    began = trio.current_time()
    await desk.open(nursery)
    if has_lived:
        await desk.live(nursery, GROUPS[0])
    desk.clock.ms += LONG_MS
    for _ in range(count):
        nursery.start_soon(desk.delete, GROUPS[0])
    await trio.sleep_until(began + CHECK_S)
    desk.acknowledge()
    await settled()


async def remove_together(count):
    desk = Desk()
    async with trio.open_nursery() as nursery:
        await begin(desk, nursery, count)
        await desk.calm()
        assert set(desk.answers) <= {None, ErrorCode.GROUP_ID_NOT_FOUND}
        assert len(desk.answers) == count
        await trio.sleep(2 * CHECK_S)
        await desk.calm()
        assert await desk.known() == set()
        nursery.cancel_scope.cancel()


async def join_between():
    """A member comes when the first removal is done, and the second one not."""
    desk = Desk()
    async with trio.open_nursery() as nursery:
        await begin(desk, nursery, 1, has_lived=True)
        desk.acknowledge()
        await settled()
        nursery.start_soon(desk.join, GROUPS[0])
        await settled()
        await desk.calm()
        await trio.sleep(CHECK_S / 2)
        await desk.calm()
        assert len(desk.joined) == 2
        assert GROUPS[0] in await desk.known()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_that_comes_between_two_removals_of_its_group_is_not_forgotten(seed):
    run_seeded(seed, join_between)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_group_that_is_deleted_while_its_time_is_up_is_gone_and_ends_nothing(count, seed):
    run_seeded(seed, partial(remove_together, count))


async def refuse_and_commit():
    """The replica that would have made it committed leaves the ISR, and comes back."""
    desk = Desk()
    async with trio.open_nursery() as nursery:
        await desk.open(nursery)
        nursery.start_soon(desk.commit, GROUPS[0], 4)
        await settled()
        await desk.change(OFFSETS_TOPIC, isr=(ME,))
        await settled()
        assert desk.answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert await desk.committed(GROUPS[0]) == {("t", 0): 3}
        await desk.change(OFFSETS_TOPIC, isr=(ME, TWO))
        await desk.calm()
        await settled()
        assert desk.replica.high_watermark == desk.replica.log.log_end
        assert await desk.committed(GROUPS[0]) == {("t", 0): 4}
        nursery.cancel_scope.cancel()


def test_a_commit_that_had_too_few_replicas_after_its_append_counts_once_it_has_enough():
    run_seeded(1, refuse_and_commit)
