"""Requests about the members of consumer groups.

Every handler waits, if it must, for its coordinator to have read what was kept, and decides after
that in one stretch.
"""

from __future__ import annotations

import trio

from hightide.net.ports import Random, WallClock
from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.messages import Message
from hightide.protocol.words import counted
from hightide_broker.core.groups.group import Group
from hightide_broker.core.groups.parts import Heartbeat, Join, Leave, State, Sync
from hightide_broker.runtime.base.call import Call, Reply
from hightide_broker.runtime.cluster.controller import random_id
from hightide_broker.runtime.groups.coordinator import Coordinator, Parked
from hightide_broker.runtime.groups.coordinators import Coordinators

CLOCKS_PART_MS = 1000
"""By less, what is past keeps the time that was told of it; by more (the machine slept, or its
clock was set), it is told by the clock as it is now."""


class GroupHandlers:
    """find_coordinator, join_group, sync_group, heartbeat, leave_group, *_groups."""

    def __init__(
        self, coordinators: Coordinators, *, broker: int, clock: WallClock, random: Random
    ) -> None:
        self._coordinators = coordinators
        self._broker = broker
        self._clock = clock
        self._random = random
        self._epoch_ms = 0
        """When trio's clock was at 0, by the wall clock as it was a while ago."""

    async def find_coordinator(self, call: Call[g.FindCoordinatorRequest]) -> Reply:
        """The broker that coordinates a group."""
        request = call.request
        broker = await self._coordinators.find(request.group)
        return Reply(
            g.FindCoordinatorResponse(broker=broker.broker, host=broker.host, port=broker.port)
        )

    # -- membership ------------------------------------------------------------------------------

    async def join_group(self, call: Call[g.JoinGroupRequest]) -> Reply:
        """Become a member, or join the next generation."""
        request = call.request
        coordinator = await self._coordinators.of(request.group, may_be_new=True)
        if request.member_id and request.group not in coordinator.groups:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group!r} here")
        group, parked = coordinator.group(request.group), Parked()
        new_id = f"{request.instance_id or request.client_id}-{random_id(self._random)}"
        answer = coordinator.step(group, Join(request, parked, new_id, call.peer.host))
        return Reply(answer if answer is not None else await self._answer_to("join", parked))

    async def sync_group(self, call: Call[g.SyncGroupRequest]) -> Reply:
        """Hear one's assignment; the leader brings everybody's."""
        request = call.request
        coordinator = await self._coordinators.of(request.group)
        group, parked = _existing(coordinator, request.group), Parked()
        answer = coordinator.step(group, Sync(request, parked))
        return Reply(answer if answer is not None else await self._answer_to("sync", parked))

    async def _answer_to(self, kind: str, parked: Parked) -> Message:
        with self._coordinators.counts.waits(kind):
            return await parked.wait()

    async def heartbeat(self, call: Call[g.GroupHeartbeatRequest]) -> Reply:
        """Keep a member in its group, and tell it of a rebalance."""
        request = call.request
        coordinator = await self._coordinators.of(request.group)
        coordinator.step(_existing(coordinator, request.group), Heartbeat(request))
        return Reply(g.GroupHeartbeatResponse())

    async def leave_group(self, call: Call[g.LeaveGroupRequest]) -> Reply:
        """Take members out of their group; each has its own answer."""
        request = call.request
        coordinator = await self._coordinators.of(request.group)
        group = _existing(coordinator, request.group)
        answer = coordinator.step(group, Leave(request))
        assert answer is not None, "it never has to wait"
        return Reply(answer)

    # -- administration --------------------------------------------------------------------------

    async def list_groups(self) -> Reply:
        """The groups that this broker coordinates."""
        found = []
        for coordinator in await self._coordinators.all():
            for name in sorted({*coordinator.groups, *coordinator.offsets}):
                if coordinator.is_known(name):
                    group = coordinator.group(name)
                    found.append(
                        g.ListedGroup(
                            group=name,
                            state=group.state,
                            protocol_type=group.protocol_type,
                            members=len(group.members),
                        )
                    )
        return Reply(g.ListGroupsResponse(groups=found))

    async def describe_groups(self, call: Call[g.DescribeGroupsRequest]) -> Reply:
        """Members, assignments, and why there were rebalances."""
        request = call.request
        found = []
        for name in dict.fromkeys(request.groups):  # once each, however often it is named
            try:
                found.append(self._describe(await self._coordinators.of(name), name))
            except Refused as refusal:
                found.append(
                    g.DescribedGroup(group=name, error=refusal.code, message=refusal.message)
                )
        return Reply(g.DescribeGroupsResponse(groups=found))

    def _describe(self, coordinator: Coordinator, name: str) -> g.DescribedGroup:
        if not coordinator.is_known(name):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}")
        group = coordinator.group(name)
        epoch_ms = self._clock.now_ms() - round(trio.current_time() * 1000)
        if abs(epoch_ms - self._epoch_ms) > CLOCKS_PART_MS:
            self._epoch_ms = epoch_ms
        return g.DescribedGroup(
            group=name,
            state=group.state,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            generation=group.generation,
            leader=group.leader,
            coordinator=self._broker,
            members=[
                g.DescribedMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    host=member.host,
                    metadata=member.metadata(group.protocol),
                    assignment=member.assignment,
                )
                for member in group.members
            ],
            rebalances=[
                g.Rebalance(
                    at_ms=self._epoch_ms + round(cause.at * 1000),
                    generation=cause.generation,
                    cause=cause.text,
                )
                for cause in group.causes
            ],
        )

    async def delete_groups(self, call: Call[g.DeleteGroupsRequest]) -> Reply:
        """Forget groups that have no members, with their offsets."""
        request = call.request
        results = []
        for name in request.groups:
            try:
                await self._delete_group(name)
                results.append(g.DeletedGroup(group=name))
            except Refused as refusal:
                results.append(
                    g.DeletedGroup(group=name, error=refusal.code, message=refusal.message)
                )
        return Reply(g.DeleteGroupsResponse(groups=results))

    async def _delete_group(self, name: str) -> None:
        coordinator = await self._coordinators.of(name)
        if not coordinator.is_known(name):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}")
        group = coordinator.group(name)
        if group.state is not State.EMPTY:
            raise Refused(
                ErrorCode.NON_EMPTY_GROUP,
                f"group {name!r} is {group.state} with {counted(len(group.members), 'member')}",
            )
        await self._coordinators.forget(coordinator, group)


def _existing(coordinator: Coordinator, name: str) -> Group:
    group = coordinator.groups.get(name)
    if group is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {name!r} here")
    return group
