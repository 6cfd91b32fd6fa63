"""The coordinator of the groups of one partition of `__consumer_offsets`, while this broker leads
it.

It begins by reading the whole partition, and serves once all of that is committed: what it tells
must not go back when somebody else takes over. Then each request is decided in one stretch by
`core/groups/group.py`; what has to be kept is appended in that stretch, and told once it is
committed. It ends with the leader epoch: callers that wait hear NOT_COORDINATOR and find the next
one.
"""

from __future__ import annotations

import heapq
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

import msgspec
import trio

from hightide.net.ports import WallClock
from hightide.protocol import group_messages as g
from hightide.protocol.columns import batch_at, keys_of, offsets_of, open_batch, values_of
from hightide.protocol.errors import TOO_LARGE, CorruptBatch, ErrorCode, Refused
from hightide.protocol.messages import Message
from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted
from hightide_broker.core.cluster.topic_keys import MAX_MESSAGE_BYTES
from hightide_broker.core.groups.group import Group
from hightide_broker.core.groups.group_events import group_changed, last_cause
from hightide_broker.core.groups.offsets import GroupOffsets
from hightide_broker.core.groups.parts import (
    Event,
    Limits,
    Moved,
    Outcome,
    State,
    Tick,
    Write,
    Written,
)
from hightide_broker.core.groups.records import (
    GroupKey,
    GroupRecordDamaged,
    GroupValue,
    Key,
    OffsetKey,
    OffsetValue,
    Portion,
    Record,
    decode,
    in_portions,
)
from hightide_broker.core.groups.text import show_group
from hightide_broker.ports import DiskError
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.groups.counts import GroupCounts
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.storage.segment import SegmentDamage
from hightide_broker.trace.events import CoordinatorBegan, CoordinatorEnded, Tell, tell_nobody

log = logging.getLogger("hightide.groups")

KEPT_AT_ONCE = 1000
"""Offsets and groups that are taken up before it is the turn of others."""

_NOT_HERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)


class Parked:
    """A request that waits; the ticket that `core/groups/group.py` hands back."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._answer: Message | None = None

    def set(self, answer: Message) -> None:
        """Give the answer to who waits for it."""
        self._answer = answer
        self._done.set()

    async def wait(self) -> Message:
        """Until the group has answered; the answer."""
        await self._done.wait()
        assert self._answer is not None
        return self._answer


class Coordinator:
    """Made when this broker is asked for a group of the partition; `run` until the epoch ends."""

    def __init__(
        self,
        replica: Replica,
        *,
        limits: Limits,
        clock: WallClock,
        mark_dirty: Callable[[Replica], None],
        commit_timeout_s: float,
        counts: GroupCounts,
        tell: Tell = tell_nobody,
    ) -> None:
        self._tell = tell
        self._counts = counts
        self.epoch = replica.leader_epoch
        self.loaded = trio.Event()
        self.ended: Refused | None = None
        self._groups: dict[str, Group] = {}
        self._group_offsets: dict[str, GroupOffsets] = {}
        self._appended: deque[tuple[int, frozenset[Key], Callable[[], None]]] = deque()
        """(where it ends in the log, the keys it has, what it does once it is committed), in the
        log's order."""
        self._replica = replica
        leadership = replica.leadership
        assert leadership is not None, f"{replica!r} does not lead"
        self._leadership = leadership
        self._limits = limits
        self._clock = clock
        self._mark_dirty = mark_dirty
        self._commit_timeout_s = commit_timeout_s
        self._nursery: trio.Nursery | None = None
        self._due: list[tuple[float, int, str]] = []
        self._due_at: dict[str, float] = {}
        self._order = count()
        self._wake = trio.Event()

    # -- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load, then watch the time, until another leader epoch begins."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._serve)
                self.ended = _not_here((await self._leadership.wait_ended()).message)
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            if self.ended is None:
                self.ended = _not_here("the broker stops")
            for group in self.groups.values():
                self._answer(group.step(Moved(self.ended), trio.current_time()))
            self.loaded.set()  # who waits for the groups looks at `ended` next
            self._tell(
                CoordinatorEnded(
                    topic=self._replica.topic,
                    partition=self._replica.partition,
                    leader_epoch=self.epoch,
                    why=self.ended.message,
                )
            )

    async def _serve(self) -> None:
        try:
            await self._load()
        except (SegmentDamage, CorruptBatch) as damage:
            self._replica.go_offline(f"the groups cannot be read: {damage}", damaged=True)
            return
        except DiskError as error:
            self._replica.go_offline(f"the groups cannot be read: {error}")
            return
        self.loaded.set()
        await self._watch()

    async def _load(self) -> None:
        """Everything that coordinators before this one kept, once it is committed."""
        found = self._replica.log
        end, latest = found.log_end, dict[Key, OffsetValue | GroupValue | None]()
        for header, batch in found.batches(found.log_start):
            columns = open_batch(batch, header)
            rows = zip(
                offsets_of(columns, header), keys_of(columns), values_of(columns), strict=True
            )
            for offset, key, value in rows:
                try:
                    known, what = decode(key or b"", value)
                except GroupRecordDamaged as damage:
                    log.warning(
                        "%s: record %d: %s",
                        self._replica.name,
                        offset,
                        damage,
                        extra={"event": "coordinator.damaged_record"},
                    )
                    continue
                if what is None:
                    latest.pop(known, None)
                else:
                    latest[known] = what
            await trio.lowlevel.checkpoint()
        while self._replica.committed.value < end:
            with suppress(Refused):  # too few replicas for a while
                await self._replica.committed.wait_for(end)
            await trio.lowlevel.checkpoint()
        now = trio.current_time()
        for number, (known, what) in enumerate(latest.items(), 1):
            if number % KEPT_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if isinstance(known, OffsetKey):
                assert isinstance(what, OffsetValue)
                self._offsets(known.group).commit(known.tp, what)
            elif isinstance(what, GroupValue):
                group = self.groups[known.group] = Group(known.group, self._limits)
                group.restore(what, now)
                self._counts.group_moved(group, State.EMPTY, None, now)
                if what.members and not group.members:
                    log.warning(
                        "group %r is damaged: its members have to join again",
                        known.group,
                        extra={"event": "coordinator.damaged_group"},
                    )
                    group.empty_since(self._clock.now_ms())
                self._watch_for(group)
        read = counted(len(self.groups), "group is read", "groups are read")
        level = logging.INFO if self.groups else logging.DEBUG  # most partitions have none
        log.log(level, "%s: %s", self._replica.name, read)
        self._tell(
            CoordinatorBegan(
                topic=self._replica.topic,
                partition=self._replica.partition,
                leader_epoch=self.epoch,
                groups=len(self.groups),
            )
        )

    async def _watch(self) -> None:
        """Let groups know that time passed."""
        while True:
            self._wake = trio.Event()
            until = self._due[0][0] if self._due else float("inf")
            with trio.move_on_at(until):
                await self._wake.wait()
            now = trio.current_time()
            while self._due and self._due[0][0] <= now:
                at, _, name = heapq.heappop(self._due)
                if self._due_at.get(name) != at:
                    continue  # it was put earlier meanwhile
                del self._due_at[name]
                group = self.groups.get(name)
                if group is None:
                    continue
                if group.next_at() <= now:
                    self.step(group, Tick())
                else:
                    self._watch_for(group)

    # -- groups ----------------------------------------------------------------------------------

    @property
    def groups(self) -> dict[str, Group]:
        """By name, as the log has them."""
        self._catch_up()
        return self._groups

    @property
    def offsets(self) -> dict[str, GroupOffsets]:
        """By group, as far as they are committed."""
        self._catch_up()
        return self._group_offsets

    def _catch_up(self) -> None:
        """Have what was appended, and is committed by now, count: it does so in the order of the
        log, also where the client that asked for it went away."""
        while self._appended and self._appended[0][0] <= self._replica.committed.value:
            _, _, take_effect = self._appended.popleft()
            take_effect()

    def group(self, name: str) -> Group:
        """A group, made if there is none."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name, self._limits)
        return group

    def _offsets(self, group: str) -> GroupOffsets:
        return self._group_offsets.setdefault(group, GroupOffsets())

    def step(self, group: Group, event: Event) -> Message | None:
        """Let something happen to a group, and see to what comes of it: answer, keep, and look
        again in time. The answer, if it is there at once; raises `Refused`."""
        before, cause, now = group.state, last_cause(group), trio.current_time()
        outcome = group.step(event, now)
        if group.state is not before or last_cause(group) is not cause:
            log.info("group %r: %s", group.group_id, show_group(group))
            self._tell(group_changed(group, cause))
            self._counts.group_moved(group, before, cause, now)
        self._answer(outcome)
        for write in outcome.writes:
            self._begin_write(group, write)
        self._watch_for(group)
        return outcome.reply

    def _answer(self, outcome: Outcome) -> None:
        for ticket, answer in outcome.replies:
            assert isinstance(ticket, Parked)
            ticket.set(answer)

    def _watch_for(self, group: Group) -> None:
        """Let a group know when its time has come."""
        at = group.next_at()
        if at < self._due_at.get(group.group_id, float("inf")):
            self._due_at[group.group_id] = at
            heapq.heappush(self._due, (at, next(self._order), group.group_id))
            if self._due[0][0] == at:
                self._wake.set()

    def _begin_write(self, group: Group, write: Write) -> None:
        """Append in this stretch, and hear of the commit later."""
        assert self._nursery is not None, "a coordinator writes while it runs"
        now_ms = self._clock.now_ms()
        if not group.members:
            group.empty_since(now_ms)
        value = msgspec.structs.replace(write.value, written_at_ms=now_ms)
        try:
            wait = self.append([(GroupKey(group.group_id), value)])
        except Refused as refusal:
            self.step(group, Written(write.token, refusal))
            return
        self._nursery.start_soon(self._finish_write, group, write, wait)

    async def _finish_write(self, group: Group, write: Write, wait: Appending) -> None:
        refusal = None
        try:
            await wait.committed()
        except Refused as error:
            refusal = error
        self.step(group, Written(write.token, refusal))

    # -- what is kept ----------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> Appending:
        """Append keyed records in one batch; raises `Refused` as a coordinator says it."""
        (portion,) = in_portions(records, sys.maxsize)
        return self._append(portion)

    def _append(self, portion: Portion) -> Appending:
        now_ms = self._clock.now_ms()
        batch = batch_at(now_ms, portion.values, portion.keys)
        try:
            appended = self._replica.append(memoryview(batch), acks_all=True, now_ms=now_ms)
        except Refused as refusal:
            raise translated(refusal) from refusal
        self._mark_dirty(self._replica)
        return Appending(
            self._replica.committed,
            appended.base_offset,
            appended.end_offset,
            self._commit_timeout_s,
        )

    def check_turn(self, request: g.OffsetCommitRequest, part: g.CommitPartition) -> None:
        """Raise `Refused` for a commit that comes after a later one of its sender."""
        tp = TopicPartition(part.topic, part.partition)
        if not self._offsets(request.group).take_turn(tp, request.sender, request.number):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"offset {part.offset} of {part.topic}-{part.partition} comes late: "
                f"{request.member_id or 'this consumer'} has committed another one since",
            )

    async def commit_offsets(self, group: str, records: Sequence[Record]) -> None:
        """Append these offsets, in as many batches as they need, and have them count once they are
        committed; raises `Refused`."""
        appending = None
        for portion in in_portions(records, self._replica.config[MAX_MESSAGE_BYTES]):
            appending = self._append(portion)
            keep = partial(self.keep_offsets, group, portion.records)
            keys = frozenset(key for key, _ in portion.records)
            self._appended.append((appending.end_offset, keys, keep))
        if appending is not None:
            await appending.committed()

    async def remove(self, group: Group) -> None:
        """Append that a group is gone; it is, once that is committed, if it has done nothing since.
        Raises `Refused`."""
        name, generation = group.group_id, group.generation

        def forget() -> None:
            is_idle = group.state is State.EMPTY and group.generation == generation
            if self._groups.get(name) is group and is_idle:
                del self._groups[name]

        appending = self.append([(GroupKey(name), None)])
        self._appended.append((appending.end_offset, frozenset(), forget))
        await appending.committed()

    def is_changing(self, key: Key) -> bool:
        """Whether something is appended for a key that does not count yet."""
        return any(key in keys for _, keys, _ in self._appended)

    def keep_offsets(self, group: str, records: Iterable[Record]) -> None:
        """Committed offset records count from here on."""
        offsets = self._offsets(group)
        for key, value in records:
            assert isinstance(key, OffsetKey)
            assert value is None or isinstance(value, OffsetValue)
            offsets.commit(key.tp, value)
            self._counts.offset_commits += value is not None
        if offsets.is_idle:
            del self._group_offsets[group]

    def is_known(self, name: str) -> bool:
        """Whether a group exists: it has, or had, members, or offsets are kept for it."""
        group = self.groups.get(name)
        has_lived = group is not None and (group.generation > 0 or group.state is not State.EMPTY)
        return has_lived or bool(self.offsets.get(name))


class Appending:
    """Records that are appended, and not committed yet."""

    def __init__(self, watermark: Watermark, base: int, end: int, timeout_s: float) -> None:
        self.base_offset = base
        self.end_offset = end
        self._watermark = watermark
        self._timeout_s = timeout_s

    async def committed(self) -> None:
        """Until they are; raises `Refused` as a coordinator says it."""
        try:
            with trio.move_on_after(self._timeout_s):
                await self._watermark.wait_for(self.end_offset)
                return
        except Refused as refusal:
            raise translated(refusal) from refusal
        raise Refused(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"not committed within {self._timeout_s:g} s (offsets.commit.timeout.ms)",
        )


def translated(refusal: Refused) -> Refused:
    """What a refused append means for a group: as Kafka's coordinator translates it."""
    if refusal.code in _NOT_HERE:
        return _not_here(refusal.message)
    if refusal.code in TOO_LARGE:
        return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, refusal.message)
    return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.message)


def _not_here(why: str) -> Refused:
    return Refused(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate the group: {why}")
