"""Requests about the committed offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from hightide.net.ports import WallClock
from hightide.protocol import group_messages as g
from hightide.protocol.errors import ErrorCode, Refused
from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.groups.parts import Commit
from hightide_broker.core.groups.records import OffsetKey, OffsetValue
from hightide_broker.runtime.base.call import Call, Reply
from hightide_broker.runtime.groups.coordinators import Coordinators, Metadata, topics_read

AGES_AT_ONCE = 100
"""Partitions of which the age of the next record is looked up in one stretch."""


class OffsetHandlers:
    """offset_commit, offset_fetch, offset_delete."""

    def __init__(
        self,
        coordinators: Coordinators,
        metadata: Metadata,
        *,
        config: BrokerConfig,
        clock: WallClock,
    ) -> None:
        self._coordinators = coordinators
        self._metadata = metadata
        self._metadata_bytes_max = config[keys.OFFSET_METADATA_MAX_BYTES]
        self._clock = clock

    async def offset_commit(self, call: Call[g.OffsetCommitRequest]) -> Reply:
        """Keep offsets; answered once they are committed."""
        request = call.request
        results = _results(request.partitions, await self._commit(request))
        return Reply(g.OffsetCommitResponse(partitions=results))

    async def _commit(self, request: g.OffsetCommitRequest) -> dict[int, Refused]:
        """Keep them; the partitions that were refused, by their number in the request."""
        coordinator = await self._coordinators.of(request.group)
        if request.generation >= 0 and request.group not in coordinator.groups:
            raise Refused(ErrorCode.ILLEGAL_GENERATION, f"there is no group {request.group!r} here")
        group = coordinator.group(request.group)
        coordinator.step(group, Commit(request))
        refusals: dict[int, Refused] = {}
        records: list[tuple[OffsetKey, OffsetValue]] = []
        now_ms, topic_ids = self._clock.now_ms(), self._coordinators.topic_ids()
        for number, part in enumerate(request.partitions):
            try:
                self._check_part(part)
                coordinator.check_turn(request, part)
            except Refused as refusal:
                refusals[number] = refusal
                continue
            value = OffsetValue(
                offset=part.offset,
                topic_id=topic_ids[part.topic],
                leader_epoch=part.leader_epoch,
                metadata=part.metadata,
                commit_time_ms=now_ms,
            )
            records.append((OffsetKey(request.group, part.topic, part.partition), value))
        await coordinator.commit_offsets(request.group, records)
        return refusals

    def _check_part(self, part: g.CommitPartition) -> None:
        topic = self._metadata.image.topics.get(part.topic)
        if topic is None or not 0 <= part.partition < len(topic.partitions):
            raise Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no partition {part.partition} of topic {part.topic!r}",
            )
        if part.topic_id not in ("", topic.topic_id):
            raise Refused(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"what was read of {part.topic!r} is not what has this name here: it was deleted "
                "and made again",
            )
        limit = self._metadata_bytes_max
        if len(part.metadata.encode()) > limit:
            raise Refused(
                ErrorCode.OFFSET_METADATA_TOO_LARGE,
                f"{counted(len(part.metadata.encode()), 'byte')} beside the offset, "
                f"offset.metadata.max.bytes is {limit}",
            )
        if part.offset < 0:
            raise Refused(ErrorCode.INVALID_REQUEST, f"offset {part.offset}, expected 0 or more")

    async def offset_fetch(self, call: Call[g.OffsetFetchRequest]) -> Reply:
        """What a group has committed, of the partitions it is asked for or of all."""
        request = call.request
        coordinator = await self._coordinators.of(request.group)
        offsets = coordinator.offsets.get(request.group)
        known = offsets.all(self._coordinators.topic_ids()) if offsets is not None else {}
        wanted = (
            list(known)
            if request.partitions is None
            else [TopicPartition(part.topic, part.partition) for part in request.partitions]
        )
        found = []
        for number, tp in enumerate(wanted, 1):
            if request.wants_age and number % AGES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()  # each is a look into a log
            value = known.get(tp) or OffsetValue(offset=g.NO_OFFSET)
            found.append(
                g.FetchedOffset(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=value.offset,
                    leader_epoch=value.leader_epoch,
                    metadata=value.metadata,
                    topic_id=value.topic_id,
                    commit_time_ms=value.commit_time_ms,
                    behind_ms=self._coordinators.behind_ms(request.group, tp, value.offset)
                    if request.wants_age
                    else -1,
                )
            )
        return Reply(g.OffsetFetchResponse(partitions=found))

    async def offset_delete(self, call: Call[g.OffsetDeleteRequest]) -> Reply:
        """Forget offsets of topics that no member reads."""
        request = call.request
        results = _results(request.partitions, await self._delete_offsets(request))
        return Reply(g.OffsetDeleteResponse(partitions=results))

    async def _delete_offsets(self, request: g.OffsetDeleteRequest) -> dict[int, Refused]:
        coordinator = await self._coordinators.of(request.group)
        if not coordinator.is_known(request.group):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {request.group!r}")
        read = topics_read(coordinator.group(request.group))
        refusals, records = {}, []
        for number, part in enumerate(request.partitions):
            if part.topic in read:
                refusals[number] = Refused(
                    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                    f"a member of group {request.group!r} reads {part.topic!r}",
                )
            else:
                records.append((OffsetKey(request.group, part.topic, part.partition), None))
        await coordinator.commit_offsets(request.group, records)
        return refusals


def _results(
    parts: Sequence[g.CommitPartition | g.GroupPartition], refusals: Mapping[int, Refused]
) -> list[g.CommitResult]:
    """What became of each partition; `refusals` by number."""
    results = []
    for number, part in enumerate(parts):
        refusal = refusals.get(number)
        results.append(
            g.CommitResult(
                topic=part.topic,
                partition=part.partition,
                error=refusal.code if refusal else None,
                message=refusal.message if refusal else "",
            )
        )
    return results
