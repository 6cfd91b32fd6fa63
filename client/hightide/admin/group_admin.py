"""Groups, as an administrator sees them: who is in them, how far they are, and moving them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from hightide.admin.descriptions import (
    CommittedOffset,
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupMove,
    described,
)
from hightide.consume.subscription import OffsetAndTimestamp, checked_places
from hightide.net.cluster import Cluster, first_refusal, only
from hightide.net.group_channel import GroupChannel
from hightide.protocol import group_messages as g
from hightide.protocol import messages as m
from hightide.protocol.consumer_protocol import unpack_assigned
from hightide.protocol.errors import ApiError, UsageError, whole
from hightide.protocol.messages import Message
from hightide.protocol.topic_partition import TopicPartition


class GroupAdmin(ABC):
    """The part of `Admin` that is about groups. Every method raises `ApiError` with the first
    refusal."""

    _timeout_s: float

    @property
    @abstractmethod
    def cluster(self) -> Cluster:
        """The way to the brokers."""

    @abstractmethod
    async def offsets(
        self, partitions: Iterable[tuple[str, int]], timestamp: int
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The offset of each partition at a time."""

    async def list_groups(self) -> list[GroupListing]:
        """All groups, by name."""
        await self.cluster.retrying(partial(self.cluster.refresh, []), timeout_s=self._timeout_s)
        found: dict[str, g.ListedGroup] = {}
        for broker in sorted(self.cluster.metadata.brokers):
            request = g.ListGroupsRequest()
            reply: g.ListGroupsResponse | None = await self.cluster.call_broker(
                broker, request, timeout_s=self._timeout_s, may_go=True
            )
            if reply is None:  # its groups are others' now, who may have been asked before
                return await self.list_groups()
            found |= {group.group: group for group in reply.groups}
        return [described(GroupListing, found[name]) for name in sorted(found)]

    async def describe_group(self, group: str) -> GroupDescription:
        """Members with their assignments, and the causes of the last rebalances."""
        request = g.DescribeGroupsRequest(groups=[group])
        return described(GroupDescription, only((await self._ask(group, request)).groups))

    async def group_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed, by partition."""
        return {
            TopicPartition(each.topic, each.partition): CommittedOffset(
                each.offset, each.leader_epoch, each.metadata, each.commit_time_ms
            )
            for each in await self._fetched(g.OffsetFetchRequest(group=group))
        }

    async def _fetched(self, request: g.OffsetFetchRequest) -> list[g.FetchedOffset]:
        reply: g.OffsetFetchResponse = await self._channel(request.group).call(request)
        return reply.partitions

    async def group_lag(self, group: str) -> list[GroupLag]:
        """How far a group is in every partition that it reads or has committed."""
        described = await self.describe_group(group)
        request = g.OffsetFetchRequest(group=group, wants_age=True)
        committed = {
            TopicPartition(each.topic, each.partition): each
            for each in await self._fetched(request)
        }
        readers = {
            TopicPartition(each.topic, number): member.member_id
            for member in described.members
            if member.assignment
            for each in unpack_assigned(member.assignment).partitions
            for number in each.partitions
        }
        wanted = sorted({*committed, *readers})
        ends = await self.offsets(wanted, m.LATEST)
        found = []
        for tp in wanted:
            known, end, reader = committed.get(tp), ends[tp].offset, readers.get(tp, "")
            if known is None:
                found.append(GroupLag(*tp, None, end, None, reader))
            else:
                lag = max(end - known.offset, 0)
                behind_ms = known.behind_ms if known.behind_ms >= 0 else None
                found.append(
                    GroupLag(*tp, known.offset, end, lag, reader, known.metadata, behind_ms)
                )
        return found

    async def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Have a group go on elsewhere; refused (UNKNOWN_MEMBER_ID) while it has members."""
        partitions = [
            g.CommitPartition(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in offsets.items()
        ]
        request = g.OffsetCommitRequest(group=group, partitions=partitions)
        await self._ask(group, request)

    async def move_group(
        self,
        group: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        to: Literal["start", "end"] | None = None,
        to_offset: int | None = None,
        to_time_ms: int | None = None,
        shift: int | None = None,
        dry_run: bool = False,
    ) -> list[GroupMove]:
        """Have a group without members go on elsewhere in these partitions, or in all that it has
        committed: at the `start` or `end`, at an offset, at the first record of a time or later, or
        so many records on. Never outside the log. `dry_run` only tells what would change."""
        if sum(way is not None for way in (to, to_offset, to_time_ms, shift)) != 1:
            raise UsageError("give one of to, to_offset, to_time_ms and shift")
        if to not in (None, "start", "end"):
            raise UsageError(f"to is {to!r}, expected 'start' or 'end'")
        if to_offset is not None:
            to_offset = whole("to_offset", to_offset, least=0)
        if to_time_ms is not None:
            to_time_ms = whole("to_time_ms", to_time_ms)
        if shift is not None:
            shift = whole("shift", shift)
        committed = await self.group_offsets(group)
        wanted = sorted(committed) if partitions is None else checked_places(partitions)
        starts, ends = await self.offsets(wanted, m.EARLIEST), await self.offsets(wanted, m.LATEST)
        found = {} if to_time_ms is None else await self.offsets(wanted, to_time_ms)
        moves = []
        for tp in wanted:
            known = committed.get(tp)
            start, end = starts[tp].offset, ends[tp].offset
            if to is not None:
                target = start if to == "start" else end
            elif to_offset is not None:
                target = to_offset
            elif to_time_ms is not None:
                target = found[tp].offset if found[tp].offset >= 0 else end
            elif known is not None:
                target = known.offset + (shift or 0)
            else:
                continue  # there is nothing to shift
            before = None if known is None else known.offset
            new = min(max(target, start), end)
            moves.append(GroupMove(*tp, before, new, limited=new != target))
        if moves and not dry_run:
            places = {(move.topic, move.partition): move.new for move in moves}
            await self.set_group_offsets(group, places)
        return moves

    async def delete_group_offsets(self, group: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Forget committed offsets of topics that no member reads."""
        wanted = [g.GroupPartition(topic=topic, partition=number) for topic, number in partitions]
        request = g.OffsetDeleteRequest(group=group, partitions=wanted)
        await self._ask(group, request)

    async def delete_group(self, group: str) -> None:
        """Forget a group without members, with its offsets."""
        await self._ask(group, g.DeleteGroupsRequest(groups=[group]))

    def _channel(self, group: str) -> GroupChannel:
        return GroupChannel(self.cluster, group, timeout_s=self._timeout_s)

    async def _ask(self, group: str, request: Message) -> Any:
        """An answer without a refusal in any of its parts."""
        return await self._channel(group).call(request, check=_refusal)


def _refusal(answer: Any) -> ApiError | None:
    return first_refusal(answer.partitions if hasattr(answer, "partitions") else answer.groups)
