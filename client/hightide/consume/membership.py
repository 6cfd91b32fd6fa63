"""A consumer's membership in a group: joining, staying alive, committing.

The consumer's caller drives it: only while it asks for records does a member let go of partitions
and join the next generation, so that what it works on is not given away under its hands. Heartbeats
run by themselves, until the caller has not asked for `max_poll_interval_ms`: then the member
leaves, and joins again with the next call. Source: Kafka's ConsumerCoordinator; KIP-62, 345, 394,
429.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from hightide.consume.assignors import ASSIGNORS, Assignor, Member
from hightide.consume.subscription import OffsetAndMetadata
from hightide.net.cluster import Cluster, first_refusal
from hightide.net.group_channel import GroupChannel
from hightide.protocol import group_messages as g
from hightide.protocol.consumer_protocol import (
    pack_assigned,
    pack_subscription,
    unpack_assigned,
    unpack_subscription,
)
from hightide.protocol.errors import (
    UNREACHABLE,
    ApiError,
    ErrorCode,
    HightideError,
    UsageError,
    error_code,
)
from hightide.protocol.topic_partition import TopicPartition

_LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
JOIN_GRACE_S = 5.0
"""How much longer than the rebalance timeout an answer to a join may take."""
LEAVE_TIMEOUT_S = 2.0


class Membership:
    """One member of one group.

    `assignors` are by name, the first one is liked best; see `named`. Times in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        channel: GroupChannel,
        topics: Sequence[str] = (),
        *,
        assignors: Mapping[str, Assignor],
        session_timeout_s: float,
        heartbeat_interval_s: float,
        max_poll_interval_s: float,
        instance_id: str,
        client_id: str,
        wake: Callable[[], None],
    ) -> None:
        self.group = channel.group
        self.topics = list(topics)
        self.member_id = ""
        self.generation = -1
        self._name, self._commits = secrets.token_hex(8), 0
        self.failure: HightideError | None = None
        """Why it cannot be a member at all."""
        self.is_subscribed = self.must_join = bool(topics)
        """Otherwise its partitions are its own choice: it only commits."""
        self.is_lost = False
        """It was thrown out, or a generation went by without it: somebody else may read its
        partitions already. Until it has let go of them it commits nothing."""
        self.polled_at = trio.current_time()
        self.is_awaited = False
        """The caller waits for records right now."""
        self._cluster = cluster
        self._channel = channel
        self._assignors = assignors
        self._is_joining = False
        self._counts: dict[str, int] = {}
        """How many partitions each topic of the group had when this member began to lead it; empty:
        it does not."""
        self._counts_stale_at = float("inf")
        self._session_s = session_timeout_s
        self._interval_s = heartbeat_interval_s
        self._max_poll_s = max_poll_interval_s
        self._instance_id = instance_id
        self._client_id = client_id
        self._wake = wake
        self.reason = ""
        """Why it joins, for those who look at the group."""
        self.last_reason = ""
        """Why it is no member any more."""

    @property
    def is_cooperative(self) -> bool:
        """Whether what stays is kept through a rebalance (KIP-429)."""
        return list(self._assignors) == ["cooperative-sticky"]

    @property
    def denied(self) -> list[str]:
        """Why topics that it is a member for may not be known, as far as it has asked for them."""
        known = self._cluster.metadata.denied
        return [known[topic] for topic in self.topics if topic in known]

    # -- joining ---------------------------------------------------------------------------------

    async def join(self, owned: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Join the next generation; what this member is to read. With `is_lost` set, what it owned
        may be somebody else's: a generation went by without it. Raises `ApiError` if it cannot be a
        member, or, with `is_lost` set, if it was none any more, and has to begin again."""
        owned = list(owned)
        self._is_joining = True
        try:
            while True:
                try:
                    self.must_join = False
                    joined = await self._ask_to_join(owned)
                    return await self._ask_for_assignment(joined)
                except ApiError as error:
                    self.must_join = True
                    if error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
                        self._take_refusal(error)
                        raise
                    await trio.sleep(self._cluster.backoff_s(1))
        finally:
            self._is_joining = False

    async def _ask_to_join(self, owned: Sequence[TopicPartition]) -> g.JoinGroupResponse:
        said = g.Subscription(
            topics=self.topics, owned=_by_topic(owned), generation=self.generation
        )
        words = {name: pack_subscription(said, name) for name in self._assignors}
        while True:
            request = g.JoinGroupRequest(
                group=self.group,
                protocols=[g.Protocol(name=name, metadata=words[name]) for name in words],
                member_id=self.member_id,
                instance_id=self._instance_id,
                client_id=self._client_id,
                session_timeout_ms=round(self._session_s * 1000),
                rebalance_timeout_ms=round(self._max_poll_s * 1000),
                reason=self.reason,
            )
            joined: g.JoinGroupResponse = await self._channel.call(
                request, timeout_s=self._max_poll_s, grace_s=JOIN_GRACE_S
            )
            self.member_id = joined.member_id
            if joined.error is None:
                if 0 <= self.generation < joined.generation - 1:
                    # Static members keep their place; what they had may be another's since.
                    self.is_lost, self.last_reason = True, "a generation went by without it"
                self.generation, self.reason = joined.generation, ""
                return joined

    async def _ask_for_assignment(self, joined: g.JoinGroupResponse) -> list[TopicPartition]:
        assignments: list[g.MemberAssignment] = []
        self._counts = {}
        if joined.leader == joined.member_id:
            members = [_member(each, joined.protocol) for each in joined.members]
            topics = {topic for member in members for topic in member.topics}
            await self._look_up(topics)
            self._counts = self._count(topics)
            if not joined.skip_assignment:
                assignments = self._assign(joined.protocol, members, self._counts)
        request = g.SyncGroupRequest(
            group=self.group,
            member_id=self.member_id,
            instance_id=self._instance_id,
            generation=self.generation,
            protocol=joined.protocol,
            assignments=assignments,
        )
        answer: g.SyncGroupResponse = await self._channel.call(
            request, timeout_s=self._max_poll_s, grace_s=JOIN_GRACE_S
        )
        if not answer.assignment:
            return []
        given = unpack_assigned(answer.assignment)
        return [TopicPartition(t.topic, n) for t in given.partitions for n in t.partitions]

    async def _look_up(self, topics: Iterable[str]) -> None:
        """Ask for topics of the group, also those that only others read, which nobody else here
        asks for."""
        await self._cluster.refresh(sorted(topics))
        self._counts_stale_at = self._cluster.metadata.stale_at

    def _count(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each of these has, as far as is known."""
        return {topic: self._cluster.metadata.partition_count(topic) for topic in topics}

    def _assign(
        self, assignor: str, members: Sequence[Member], counts: Mapping[str, int]
    ) -> list[g.MemberAssignment]:
        """Who gets what; this member leads the generation."""
        given = self._assignors[assignor](members, counts)
        return [
            g.MemberAssignment(
                member_id=member.member_id,
                assignment=pack_assigned(
                    g.Assigned(partitions=_by_topic(given.get(member.member_id, [])))
                ),
            )
            for member in members
        ]

    def _forget_membership(self) -> None:
        self.member_id, self.generation = "", -1
        self._counts = {}

    # -- staying, and going ----------------------------------------------------------------------

    async def run(self) -> None:
        """Heartbeats, until cancelled."""
        while True:
            await trio.sleep(self._interval_s)
            if self._is_joining or self.generation < 0:
                continue
            silent_s = trio.current_time() - self.polled_at
            if silent_s > self._max_poll_s and not self.is_awaited:
                await self._give_up()
            else:
                await self._beat()
                await self._look_at_topics()

    async def _look_at_topics(self) -> None:
        """The leader of a group has to share out what came since."""
        if self._counts and trio.current_time() >= self._counts_stale_at:
            with trio.move_on_after(self._interval_s):  # the next heartbeat is not to be late
                try:
                    await self._look_up(self._counts)
                except HightideError as error:
                    self._channel.tell(error)
        if self._count(self._counts) != self._counts and not (self.must_join or self._is_joining):
            self.must_join, self._counts = True, {}
            self.reason = "the topics have other partitions now"
            self._wake()

    async def _beat(self) -> None:
        request = g.GroupHeartbeatRequest(
            group=self.group,
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self._instance_id,
        )
        generation = self.generation
        try:
            await self._channel.call(
                request, timeout_s=min(self._channel.timeout_s, self._session_s)
            )
        except ApiError as error:
            if generation == self.generation and not self._is_joining:
                self._take_refusal(error)
        except UNREACHABLE as error:
            self._channel.tell(error)

    def _take_refusal(self, error: ApiError) -> None:
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.must_join = True
        elif error.code in _LOST:
            self.must_join = self.is_lost = True
            self.last_reason = error.message
            self._forget_membership()
        elif error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
            # What it owned is somebody else's once its session is over: it asks to join again, and
            # its caller hears why it is not let in.
            self.must_join = self.is_lost = True
            self.last_reason = error.message
        elif error.code is ErrorCode.FENCED_INSTANCE_ID:
            self.failure = error
        self._wake()

    async def _give_up(self) -> None:
        """The caller is busy or gone: somebody else should read its partitions."""
        self.must_join = self.is_lost = True
        self.reason = f"not polled for {self._max_poll_s:g} s (max_poll_interval_ms)"
        self.last_reason = self.reason
        await self.leave(self.reason)

    async def leave(self, reason: str) -> None:
        """Tell the group, as well as that can be done quickly. Static members keep their place."""
        if not self.member_id or self._instance_id:
            return
        leaving = g.LeavingMember(member_id=self.member_id, reason=reason)
        self._forget_membership()
        try:
            with trio.move_on_after(LEAVE_TIMEOUT_S):
                request = g.LeaveGroupRequest(group=self.group, members=[leaving])
                await self._channel.call(request, timeout_s=LEAVE_TIMEOUT_S)
        except HightideError as error:
            self._channel.tell(error)

    def subscribe(self, topics: Sequence[str]) -> None:
        """Be a member for these topics, from the next generation on."""
        if self.generation >= 0:
            self.reason = "subscribed to " + (", ".join(topics) or "nothing")
        self.topics = list(topics)
        self.is_subscribed = self.must_join = True
        self._wake()

    async def unsubscribe(self) -> None:
        """Be no member any more, whether the group hears of it or not."""
        self.topics, self.is_subscribed, self.must_join = [], False, False
        try:
            await self.leave("unsubscribed")
        finally:
            self._forget_membership()  # also where a static member keeps its place

    # -- offsets ---------------------------------------------------------------------------------

    def commit_request(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> g.OffsetCommitRequest:
        """Keep offsets, for who this member is now: in a later generation it is refused."""
        self._commits += 1
        return g.OffsetCommitRequest(
            group=self.group,
            sender=self._name,
            number=self._commits,
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self._instance_id,
            partitions=[
                g.CommitPartition(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=each.offset,
                    leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                    topic_id=each.topic_id,
                )
                for tp, each in offsets.items()
            ],
        )

    async def commit(self, request: g.OffsetCommitRequest) -> None:
        """Have offsets kept; raises `ApiError`."""
        try:
            answer: g.OffsetCommitResponse = await self._channel.call(request)
        except ApiError as error:
            if not self._is_joining and request.generation == self.generation:
                self._take_refusal(error)
            raise
        for result in answer.partitions:
            if result.error is not None:
                raise ApiError(error_code(result.error), result.message)

    async def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition, None where there is none."""
        request = g.OffsetFetchRequest(
            group=self.group,
            partitions=[g.GroupPartition(topic=w.topic, partition=w.partition) for w in partitions],
        )
        answer: g.OffsetFetchResponse = await self._channel.call(request)
        if (refusal := first_refusal(answer.partitions)) is not None:
            raise refusal
        return {
            TopicPartition(each.topic, each.partition): OffsetAndMetadata(
                each.offset, each.leader_epoch, each.metadata, each.topic_id
            )
            if each.offset >= 0
            else None
            for each in answer.partitions
        }


def named(assignors: str | Sequence[str] | Assignor) -> dict[str, Assignor]:
    """Assignors by name: of `assignors.ASSIGNORS`, or one callable of one's own; raises
    `UsageError`."""
    if isinstance(assignors, str):
        assignors = [name.strip() for name in assignors.split(",")]
    if callable(assignors):
        return {getattr(assignors, "__name__", "custom"): assignors}
    for name in assignors:
        if name not in ASSIGNORS:
            raise UsageError(f"assignor {name!r}, expected some of {', '.join(ASSIGNORS)}")
    if not assignors:
        raise UsageError(f"no assignor, expected some of {', '.join(ASSIGNORS)}")
    return {name: ASSIGNORS[name] for name in assignors}


def _member(joined: g.JoinedMember, assignor: str) -> Member:
    subscription = unpack_subscription(joined.metadata, assignor)
    return Member(
        member_id=joined.member_id,
        topics=tuple(subscription.topics),
        instance_id=joined.instance_id or None,
        owned=tuple(
            TopicPartition(each.topic, number)
            for each in subscription.owned
            for number in each.partitions
        ),
        generation=subscription.generation,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[g.TopicPartitions]:
    found: dict[str, list[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp.partition)
    return [g.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in found.items()]
