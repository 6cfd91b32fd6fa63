"""What a consumer in a group does besides reading: rebalances, starting offsets, commits.

Everything here begins with a call of the consumer's caller (`tend`), because what was handed out
before that call has been worked on: its offsets may be committed and its partitions given away. A
rebalance then runs in the background, and nothing is handed out of partitions that are let go of.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from hightide.consume.completed_fetch import CompletedFetch
from hightide.consume.fetcher import Fetcher
from hightide.consume.membership import LEAVE_TIMEOUT_S, Membership, named
from hightide.consume.options import ConsumerOptions
from hightide.consume.subscription import Listener, OffsetAndMetadata, Subscription
from hightide.net.background import ki_protected, start
from hightide.net.cluster import Cluster
from hightide.net.group_channel import GroupChannel
from hightide.net.turns import Turns
from hightide.protocol import group_messages as g
from hightide.protocol.errors import (
    ApiError,
    ErrorCode,
    HightideError,
    RequestTimedOut,
    UsageError,
    whole,
)
from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted

Offsets = Mapping[tuple[str, int], int | OffsetAndMetadata]
Positions = dict[TopicPartition, OffsetAndMetadata]
Committed = Callable[[HightideError | None], None]


_Leaving = Mapping[TopicPartition, OffsetAndMetadata | None]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told of partitions, by functions that may be async. `lost` are those that somebody
    else may read already: nothing of them can be committed any more."""

    assigned: Listener | None = None
    revoked: Listener | None = None
    lost: Listener | None = None


class Rebalancer:
    """The group side of one consumer."""

    def __init__(
        self,
        membership: Membership,
        subscription: Subscription,
        fetcher: Fetcher,
        nursery: trio.Nursery,
        *,
        listeners: Listeners,
        auto_commit_s: float | None,
        completed: CompletedFetch,
        on_retry: Callable[[HightideError], None] | None,
    ) -> None:
        self._membership = membership
        self._subscription = subscription
        self._fetcher = fetcher
        self._nursery = nursery
        self.listeners = listeners
        """The listener that is told from here on."""
        self._is_beating = False
        self._auto_commit_s = auto_commit_s
        self._completed = completed
        self._on_retry = on_retry
        self._commit_at = float("inf")
        self._is_joining = False
        self._joining, self._rebalanced = trio.CancelScope(), trio.Event()
        self.joins_since: float | None = None
        """When it began to join, if it has not yet."""
        self._kept: Positions = {}
        """What was committed last."""
        self._leaving: Positions = {}
        """How far partitions are that are let go of right now: they may still be committed."""
        self._committing: set[trio.CancelScope] = set()
        self._ends_at = float("inf")
        """When commits are given up, once it is closed."""
        self._turns = Turns()
        """Commits go one after the other: an older one must not come last."""

    @property
    def generation(self) -> int:
        """Of the group; -1 while this is no member."""
        return self._membership.generation

    @ki_protected
    def tend(self) -> None:
        """The caller asks for records: what it got before is done with. Raises what ended the
        membership."""
        membership, now = self._membership, trio.current_time()
        membership.polled_at = now
        if membership.failure is not None:
            raise membership.failure
        if membership.must_join:
            if not self._is_joining:
                self._is_joining = True
                if self.joins_since is None:
                    self.joins_since = now
                gives_up_all = membership.is_lost or not membership.is_cooperative
                owned = self._owned()
                unwanted = [tp for tp in owned if tp.topic not in membership.topics]
                leaving = self._release(owned if gives_up_all else unwanted)
                self._joining, self._rebalanced = trio.CancelScope(), trio.Event()
                start(self._nursery, self._rebalance, leaving)
        elif now >= self._commit_at:
            self._commit_at = now + (self._auto_commit_s or 0)
            try:
                self.commit_async(self._news(self.positions()), None)
            except HightideError as error:
                self._tell_outcome(error, None)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """The caller waits for the time of the block: it is not away."""
        self._membership.is_awaited = True
        try:
            yield
        finally:
            self._membership.is_awaited = False
            self._membership.polled_at = trio.current_time()

    # -- rebalances ------------------------------------------------------------------------------

    async def _rebalance(self, leaving: _Leaving) -> None:
        membership = self._membership
        try:
            self._give(await self._say_goodbye(leaving))
            if membership.is_lost:  # as it has heard meanwhile: what it kept is somebody else's
                await self._let_go(self._owned())
            with self._joining:
                given = await membership.join(self._owned())
            if self._joining.cancelled_caught:
                return  # it is closed
            if membership.is_lost:  # a generation went by without it
                await self._let_go(self._owned())
                membership.is_lost = False
            await self._take(given)
            self.joins_since = None
            for why in membership.denied:
                self._fetcher.fail(ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, why))
        except HightideError as error:
            denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
            if not membership.is_lost or (isinstance(error, ApiError) and error.code is denied):
                self._fetcher.fail(error)
            membership.must_join = True
        finally:
            self._is_joining = False
            self._rebalanced.set()
            self._fetcher.notify()

    def _owned(self) -> list[TopicPartition]:
        return [assignment.tp for assignment in self._subscription.all()]

    def _release(self, partitions: Sequence[TopicPartition]) -> _Leaving:
        """Read no more of these, in this stretch; how far each was worked on."""
        self._completed.settle()  # before the positions are known: a thread may be taking records
        positions = self.done()
        self._completed.drop_of(partitions)
        self._subscription.assign([tp for tp in self._owned() if tp not in partitions])
        return {tp: positions.get(tp) for tp in partitions}

    async def _let_go(self, partitions: Sequence[TopicPartition]) -> None:
        """Read no more of these, and say so."""
        self._give(await self._say_goodbye(self._release(partitions)))

    async def _say_goodbye(self, leaving: _Leaving) -> Exception | None:
        """Commit what was read of these, unless they are somebody else's already; their listener
        may commit, too. What it raised."""
        if not leaving:
            return None
        membership, listeners = self._membership, self.listeners
        if not membership.is_lost:
            self._leaving = {w: p for w, p in leaving.items() if p is not None}
        try:
            if self._auto_commit_s is not None and not membership.is_lost:
                await self._commit_quietly(self._leaving)
            listener = listeners.lost if membership.is_lost else listeners.revoked
            return await self._tell(listener, [*leaving])
        finally:
            self._leaving = {}
            for tp in leaving:
                self._kept.pop(tp, None)

    async def _take(self, given: Sequence[TopicPartition]) -> None:
        """Read these, each from where the group is."""
        owned = self._owned()
        surplus = [tp for tp in owned if tp not in given]
        if surplus:
            await self._let_go(surplus)
            self._membership.must_join = True  # somebody waits for them
            self._membership.reason = f"let go of {counted(len(surplus), 'partition')}"
        fresh = [tp for tp in given if tp not in owned]
        await self.begin([tp for tp in owned if tp in given], fresh, held=True)
        try:
            self._give(await self._tell(self.listeners.assigned, fresh))
        finally:
            self._subscription.hand_out(fresh)
            self._fetcher.wake()

    @staticmethod
    async def _tell(
        listener: Listener | None, partitions: Sequence[TopicPartition]
    ) -> Exception | None:
        """Call a listener; what it raised."""
        if listener is not None:
            try:
                outcome = listener(list(partitions))
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception as error:
                return error
        return None

    def _give(self, error: Exception | None) -> None:
        """What a listener raises, the caller gets with its next poll."""
        if error is not None:
            self._fetcher.fail(error)

    async def begin(
        self,
        kept: Sequence[TopicPartition],
        fresh: Sequence[TopicPartition],
        *,
        held: bool = False,
    ) -> None:
        """Read `kept` on, and `fresh` from their committed offsets, or by the reset policy; with
        `held` nothing of them is handed out yet."""
        committed = await self._membership.committed(fresh) if fresh else {}
        self._subscription.assign([*kept, *fresh])
        for tp in fresh:
            self._subscription.get(tp).is_held = held
            found = committed.get(tp)
            if found is not None:
                self._subscription.get(tp).begin_at(found, trio.current_time())
                self._kept[tp] = found
        if self._auto_commit_s is not None:
            self._commit_at = trio.current_time() + self._auto_commit_s
        self._fetcher.wake()

    # -- subscriptions ---------------------------------------------------------------------------

    @ki_protected
    def subscribe(self, topics: Sequence[str]) -> None:
        """Be a member for these topics: the next poll joins the group, or joins it again."""
        membership = self._membership
        if not self._is_beating:
            self._is_beating = True
            start(self._nursery, membership.run)
        if not membership.is_subscribed or list(topics) != membership.topics:
            membership.subscribe(topics)

    @property
    def is_subscribed(self) -> bool:
        """Whether the group says what is read."""
        return self._membership.is_subscribed

    async def unsubscribe(self, *, timeout_s: float) -> None:
        """Read nothing: commit, tell the listener, leave the group; to the end, even if it is
        cancelled meanwhile."""
        with trio.move_on_after(timeout_s, shield=True):
            await self._stop_joining()
            positions, owned = self.positions(), self._owned()
            async with self._turns.turn(self._turns.take()):
                pass  # everything that was asked for before is done
            self._release(owned)
            if self.is_subscribed:
                self._give(await self._say_goodbye({tp: positions.get(tp) for tp in owned}))
            elif self._auto_commit_s is not None:
                await self._commit_quietly(positions)
        self._release(self._owned())
        with trio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            await self._membership.unsubscribe()
        self._commit_at = float("inf")

    async def _stop_joining(self) -> None:
        """Its listeners are told to the end; nobody waits for the others any more."""
        if self._is_joining:
            self._joining.cancel()
            await self._rebalanced.wait()

    # -- commits ---------------------------------------------------------------------------------

    def positions(self) -> Positions:
        """The next record of each partition, where that is known."""
        self._completed.catch_up()
        return self._leaving | {
            a.tp: OffsetAndMetadata(a.position, a.position_epoch, topic_id=a.topic_id)
            for a in self._subscription.all()
            if a.position is not None
        }

    def wanted(self, offsets: Offsets | None) -> Positions:
        """What a caller wants to be committed; None: the positions. Raises `UsageError`."""
        if offsets is None:
            return self.positions()
        try:
            given = [(topic, partition, each) for (topic, partition), each in offsets.items()]
        except (AttributeError, TypeError, ValueError) as error:
            raise UsageError(
                f"offsets are {offsets!r}, expected (topic, partition) to offset"
            ) from error
        found = {}
        for topic, partition, each in given:
            told = each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
            offset = whole("offset", told.offset)
            tp = TopicPartition(topic, whole("partition", partition))
            read = self._subscription.find(tp)
            topic_id = told.topic_id or (read.topic_id if read else "")
            found[tp] = told._replace(offset=offset, topic_id=topic_id)
        return found

    def done(self) -> Positions:
        """The positions, but not behind what is being worked on right now."""
        positions = self.positions()
        in_work = self._completed.in_work
        if in_work is not None:
            tp = TopicPartition(in_work.topic, in_work.partition)
            if tp in positions and in_work.offset < positions[tp].offset:
                positions[tp] = positions[tp]._replace(offset=in_work.offset)
        return positions

    @ki_protected
    async def commit(self, offsets: Positions) -> None:
        """Keep offsets, after those of earlier calls; raises `ApiError`."""
        await self._commit(self._request(offsets), offsets, self._turns.take())

    def _request(self, offsets: Positions) -> g.OffsetCommitRequest:
        membership = self._membership
        if membership.is_subscribed and (membership.generation < 0 or membership.is_lost):
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"this consumer is no member of group {membership.group!r} now: "
                f"{membership.last_reason or 'it has not joined yet'}",
                knob="max_poll_interval_ms",
            )
        return membership.commit_request(offsets)

    async def _commit(
        self, request: g.OffsetCommitRequest, offsets: Positions, place: trio.Event
    ) -> None:
        with trio.CancelScope(deadline=self._ends_at) as scope:
            self._committing.add(scope)
            try:
                async with self._turns.turn(place):
                    if offsets:
                        await self._membership.commit(request)
                        self._kept.update(offsets)
            finally:
                self._committing.discard(scope)
        if scope.cancelled_caught:
            raise RequestTimedOut(
                "the consumer was closed, and its commits took too long", knob="request_timeout_ms"
            )

    @ki_protected
    def commit_async(self, offsets: Positions, then: Committed | None) -> None:
        """Keep offsets in the background; raises `ApiError` at once if this is no member."""
        work = self._request(offsets), offsets, self._turns.take()
        start(self._nursery, self._commit_and_tell, *work, then)

    async def _commit_and_tell(
        self,
        request: g.OffsetCommitRequest,
        offsets: Positions,
        place: trio.Event,
        then: Committed | None,
    ) -> None:
        error = None
        try:
            await self._commit(request, offsets, place)
        except HightideError as failure:
            error = failure
        self._tell_outcome(error, then)

    def _tell_outcome(self, error: HightideError | None, then: Committed | None) -> None:
        """What `then` raises, the caller gets with its next poll."""
        if then is None:
            if error is not None and self._on_retry is not None:
                self._on_retry(error)
            return
        try:
            then(error)
        except Exception as failure:
            self._fetcher.fail(failure)

    async def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed."""
        return await self._membership.committed(partitions)

    async def _commit_quietly(self, positions: Positions) -> None:
        """What was not kept yet; a refusal is told, and the records may be read again."""
        try:
            await self.commit(self._news(positions))
        except HightideError as error:
            self._tell_outcome(error, None)

    def _news(self, positions: Positions) -> Positions:
        """Those of these positions that are not committed yet."""
        return {w: p for w, p in positions.items() if p != self._kept.get(w)}

    async def close(self, *, failed: bool, timeout_s: float) -> None:
        """Commit what was handed out, but not what was being worked on when it `failed`, tell the
        listener, and leave; raises what the listener did. Commits, those that wait for their turn
        too, share one deadline."""
        self._ends_at = trio.current_time() + timeout_s
        for scope in self._committing:
            scope.deadline = self._ends_at
        await self._stop_joining()
        positions = self.done() if failed else self.positions()
        async with self._turns.turn(self._turns.take()):
            pass  # everything that was asked for before is done
        error = None
        if self.is_subscribed:
            owned = self._owned()
            self._release(owned)
            error = await self._say_goodbye({tp: positions.get(tp) for tp in owned})
        elif self._auto_commit_s is not None:
            await self._commit_quietly(positions)
        await self.leave()
        if error is not None and not failed:
            raise error

    async def leave(self) -> None:
        """Tell the group at once."""
        await self._membership.leave("the consumer was closed")


def group_side(
    options: ConsumerOptions,
    cluster: Cluster,
    subscription: Subscription,
    fetcher: Fetcher,
    completed: CompletedFetch,
    nursery: trio.Nursery,
) -> Rebalancer:
    """The group side of a consumer of these options; it joins once it subscribes."""
    channel = GroupChannel(
        cluster,
        options.group_id,
        timeout_s=options.request_timeout_ms / 1000,
        on_retry=fetcher.tell,
    )
    membership = Membership(
        cluster,
        channel,
        assignors=named(options.partition_assignment_strategy),
        session_timeout_s=options.session_timeout_ms / 1000,
        heartbeat_interval_s=options.heartbeat_interval_ms / 1000,
        max_poll_interval_s=options.max_poll_interval_ms / 1000,
        instance_id=options.group_instance_id,
        client_id=options.client_id,
        wake=fetcher.notify,
    )
    interval_s = options.auto_commit_interval_ms / 1000
    return Rebalancer(
        membership,
        subscription,
        fetcher,
        nursery,
        listeners=Listeners(options.on_assigned, options.on_revoked, options.on_lost),
        auto_commit_s=interval_s if options.enable_auto_commit else None,
        completed=completed,
        on_retry=options.on_retry,
    )
