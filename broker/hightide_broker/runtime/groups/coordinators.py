"""The coordinators of the partitions of `__consumer_offsets` that this broker leads.

A group's coordinator is the leader of the partition that its name hashes to. The topic is made when
somebody first asks for a coordinator; a coordinator, once a partition with records is led here, so
that the lag of its groups is told though no member is left, or when it is asked for a group.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

import trio

from hightide.net.ports import WallClock
from hightide.protocol import messages as m
from hightide.protocol.consumer_protocol import unpack_subscription
from hightide.protocol.errors import ErrorCode, Refused, RemoteProtocolError
from hightide.protocol.topic_partition import TopicPartition
from hightide_broker import config_keys as keys
from hightide_broker.config import BrokerConfig
from hightide_broker.core.cluster.image import NO_LEADER, BrokerState, ClusterImage, TopicState
from hightide_broker.core.cluster.offsets_topic import OFFSETS_TOPIC
from hightide_broker.core.groups.group import Group
from hightide_broker.core.groups.offsets import GroupOffsets
from hightide_broker.core.groups.parts import Limits, State
from hightide_broker.core.groups.records import OffsetKey, partition_of
from hightide_broker.runtime.base.watermark import Watermark
from hightide_broker.runtime.groups.coordinator import Coordinator
from hightide_broker.runtime.groups.counts import GroupCounts
from hightide_broker.runtime.groups.lag import Lag
from hightide_broker.runtime.replication.replica import Replica
from hightide_broker.runtime.replication.replicas import Replicas

log = logging.getLogger("hightide.groups")

LOAD_WAIT_S = 5.0
"""How long a request waits for its coordinator to be ready."""
NEWS_WAIT_S = 1.0
"""How long a member that joins waits for this broker to hear that it is the coordinator."""
SEGMENT_BYTES = 100 << 20
GROUP_ID_MAX = 1024


class Metadata(Protocol):
    """The cluster, and how to change it."""

    @property
    def image(self) -> ClusterImage: ...

    async def change(self, request: m.Message) -> m.Message: ...


class Coordinators:
    """The groups of this broker: a coordinator for each partition of the offsets topic that it
    leads. Answers once `run` has begun."""

    def __init__(
        self,
        metadata: Metadata,
        applied: Watermark,
        replicas: Replicas,
        *,
        config: BrokerConfig,
        clock: WallClock,
    ) -> None:
        """`applied`: how far the metadata is carried out here; its image may be ahead."""
        self.counts = GroupCounts()
        self._metadata = metadata
        self._applied = applied
        self._replicas = replicas
        self._config = config
        self._clock = clock
        self._limits = Limits(
            session_min_s=config.seconds(keys.GROUP_MIN_SESSION_TIMEOUT_MS),
            session_max_s=config.seconds(keys.GROUP_MAX_SESSION_TIMEOUT_MS),
            initial_delay_s=config.seconds(keys.GROUP_INITIAL_REBALANCE_DELAY_MS),
            size_max=config[keys.GROUP_MAX_SIZE],
        )
        self._broker = config[keys.NODE_ID]
        self._commit_timeout_s = config.seconds(keys.OFFSETS_COMMIT_TIMEOUT_MS)
        self._coordinators: dict[int, Coordinator] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Until cancelled: what coordinators do in the background."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._take_up)
            try:
                while True:
                    await trio.sleep(self._config.seconds(keys.OFFSETS_RETENTION_CHECK_INTERVAL_MS))
                    await self._expire()
            finally:
                self._nursery = None

    async def _take_up(self) -> None:
        """Read the groups that others kept, when their partition comes to be led here."""
        while True:
            seen = self._applied.value
            topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
            for number in range(len(topic.partitions) if topic else 0):
                replica = self._replica_of(TopicPartition(OFFSETS_TOPIC, number))
                if replica is not None and replica.leader is not None and replica.log.log_end:
                    self._coordinator_of(number)
            await self._applied.wait_for(seen + 1)

    # -- finding them ----------------------------------------------------------------------------

    async def find(self, group: str) -> BrokerState:
        """The broker that coordinates a group; makes what is missing. Raises `Refused`."""
        check_name(group)
        if OFFSETS_TOPIC not in self._metadata.image.topics:
            await self._make_topic()
        image = self._metadata.image
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} is not there")
        number = partition_of(group, len(topic.partitions))
        broker = image.brokers.get(topic.partitions[number].leader)
        if broker is None:
            raise Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"partition {number} of {OFFSETS_TOPIC} has no leader",
            )
        return broker

    async def _make_topic(self) -> None:
        """With as many replicas as are wanted, or as there are brokers."""
        brokers = sum("broker" in each.roles for each in self._metadata.image.brokers.values())
        wanted = self._config[keys.OFFSETS_TOPIC_REPLICATION_FACTOR]
        configs = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)}
        topic = m.NewTopic(
            topic=OFFSETS_TOPIC,
            partitions=self._config[keys.OFFSETS_TOPIC_NUM_PARTITIONS],
            replication_factor=min(wanted, brokers),
            configs=configs,
        )
        reply = await self._metadata.change(m.CreateTopicsRequest(topics=[topic]))
        assert isinstance(reply, m.CreateTopicsResponse)
        for result in reply.topics:
            if result.error not in (None, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, result.message)

    async def of(self, group: str, *, may_be_new: bool = False) -> Coordinator:
        """The coordinator of a group, ready; raises `Refused`. What follows is one stretch.
        `may_be_new`: whoever asks may have been sent by a broker that has heard of it first."""
        check_name(group)
        if may_be_new:
            await self._hear_of(group)
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise Refused(ErrorCode.NOT_COORDINATOR, f"there is no {OFFSETS_TOPIC} yet")
        coordinator = self._coordinator_of(partition_of(group, len(topic.partitions)))
        with trio.move_on_after(LOAD_WAIT_S):
            await coordinator.loaded.wait()
        if coordinator.ended is not None:
            raise coordinator.ended
        if not coordinator.loaded.is_set():
            raise Refused(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the groups beside {group!r} are being read",
            )
        return coordinator

    async def _hear_of(self, group: str) -> None:
        """Wait a moment if this broker does not know yet who coordinates a group, or is to do so
        itself and is not that far: who hears NOT_COORDINATOR asks again only after seconds."""
        with trio.move_on_after(NEWS_WAIT_S):
            while self._is_behind(group):
                await self._applied.wait_for(self._applied.value + 1)

    def _is_behind(self, group: str) -> bool:
        image = self._metadata.image
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return True
        if self._applied.value >= image.offset:
            return False
        return topic.partitions[partition_of(group, len(topic.partitions))].leader == self._broker

    def _coordinator_of(self, number: int) -> Coordinator:
        try:
            replica = self._replicas.get(OFFSETS_TOPIC, number)
            replica.require_leader()
        except Refused as refusal:
            raise Refused(ErrorCode.NOT_COORDINATOR, refusal.message) from refusal
        known = self._coordinators.get(number)
        if known is not None and known.ended is None and known.epoch == replica.leader_epoch:
            return known
        if self._nursery is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker starts or stops")
        made = self._coordinators[number] = self._make_coordinator(replica)
        self._nursery.start_soon(made.run)
        return made

    def _make_coordinator(self, replica: Replica) -> Coordinator:
        return Coordinator(
            replica,
            limits=self._limits,
            clock=self._clock,
            mark_dirty=self._replicas.mark_dirty,
            commit_timeout_s=self._commit_timeout_s,
            counts=self.counts,
            tell=self._replicas.happened,
        )

    async def all(self) -> list[Coordinator]:
        """Every coordinator of this broker, ready; raises `Refused` while one is reading."""
        found = []
        for replica in self._replicas:
            if replica.topic == OFFSETS_TOPIC and replica.leader is not None:
                with suppress(Refused):  # a failed disk hides nobody else's groups
                    found.append(self._coordinator_of(replica.partition))
        with trio.move_on_after(LOAD_WAIT_S):
            for coordinator in found:
                await coordinator.loaded.wait()
        if not all(coordinator.loaded.is_set() for coordinator in found):
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "groups are being read")
        return [coordinator for coordinator in found if coordinator.ended is None]

    def states(self) -> dict[str, int]:
        """How many coordinators there are by now that read their groups (`loading`) or answer
        (`active`), and how many partitions nobody coordinates because the replica here is offline
        (`failed`)."""
        at_work = [each for each in self._coordinators.values() if each.ended is None]
        active = sum(each.loaded.is_set() for each in at_work)
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        leaders = [each.leader for each in topic.partitions] if topic else []
        failed = sum(
            bool(each.offline) and leaders[each.partition] in (self._broker, NO_LEADER)
            for each in self._replicas
            if each.topic == OFFSETS_TOPIC and each.partition < len(leaders)
        )
        return {"loading": len(at_work) - active, "active": active, "failed": failed}

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Every group that is known here by now, with its name."""
        for coordinator in self._ready():
            yield from coordinator.groups.items()

    def offsets(self) -> Iterator[tuple[str, GroupOffsets]]:
        """What every group committed that is known here by now, with its name."""
        for coordinator in self._ready():
            yield from coordinator.offsets.items()

    def lags(self) -> list[Lag]:
        """Of every group here, with every partition that has a replica here. A list: it is read
        bit by bit, and groups change meanwhile."""
        topic_ids, found = self.topic_ids(), []
        for group, offsets in self.offsets():
            for tp, value in offsets.all(topic_ids).items():
                if (replica := self._replica_of(tp)) is not None:
                    found.append(Lag(group, tp, value.offset, replica))
        return found

    def behind_ms(self, group: str, tp: TopicPartition, committed: int) -> int:
        """How old the record is that a group reads next; -1: that is not known here."""
        replica = self._replica_of(tp)
        if replica is None or committed < 0:
            return -1
        behind_ms = Lag(group, tp, committed, replica).behind_ms(self._clock.now_ms())
        return -1 if behind_ms is None else behind_ms

    def _replica_of(self, tp: TopicPartition) -> Replica | None:
        """The one that is here, and serves."""
        if tp not in self._replicas or self._replicas[tp].offline:
            return None
        return self._replicas[tp]

    def _ready(self) -> Iterator[Coordinator]:
        """Those that have read their groups, each judged when it is its turn."""
        for coordinator in list(self._coordinators.values()):
            if coordinator.ended is None and coordinator.loaded.is_set():
                yield coordinator

    def topic_ids(self) -> Mapping[str, str]:
        """Topic → its id now, for a stretch."""
        return TopicIds(self._metadata.image.topics)

    # -- forgetting ------------------------------------------------------------------------------

    async def _expire(self) -> None:
        """Forget old offsets, and groups of which nothing is left."""
        for coordinator in self._ready():
            for name in [*{**coordinator.groups, **coordinator.offsets}]:
                await trio.lowlevel.checkpoint()  # each is a look at all that it has committed
                try:
                    await self._expire_group(coordinator, name)
                except Refused as refusal:
                    log.info("offsets of group %r stay for now: %s", name, refusal)

    async def _expire_group(self, coordinator: Coordinator, name: str) -> None:
        group = coordinator.group(name)
        offsets = coordinator.offsets.get(name)
        if offsets:
            expired = offsets.expired(
                self.topic_ids(),
                now_ms=self._clock.now_ms(),
                retention_ms=self._config[keys.OFFSETS_RETENTION_MS],
                empty_since_ms=group.empty_since_ms,
                read=None if group.state is State.EMPTY else topics_read(group),
            )
            # A commit that is under way must not be followed by the old one's end.
            settled = [w for w in expired if not coordinator.is_changing(OffsetKey(name, *w))]
            await self._forget_offsets(coordinator, name, settled)
            self.counts.offset_expirations += len(settled)
        if group.state is not State.EMPTY or coordinator.offsets.get(name):
            return
        if coordinator.is_known(name):
            await self.forget(coordinator, group)
        else:
            coordinator.groups.pop(name, None)  # somebody asked for it, and that was all

    async def _forget_offsets(
        self, coordinator: Coordinator, group: str, places: Iterable[tuple[str, int]]
    ) -> None:
        await coordinator.commit_offsets(group, [(OffsetKey(group, *w), None) for w in places])

    async def forget(self, coordinator: Coordinator, group: Group) -> None:
        """Tombstones for a group without members, and for its offsets; then it is gone."""
        name = group.group_id
        await self._forget_offsets(coordinator, name, coordinator.offsets.get(name, ()))
        is_same = coordinator.groups.get(name) is group
        if is_same and group.state is State.EMPTY and not coordinator.offsets.get(name):
            await coordinator.remove(group)


class TopicIds(Mapping[str, str]):
    """Topic → its id, as the image has it: many groups ask for a few."""

    def __init__(self, topics: Mapping[str, TopicState]) -> None:
        self._topics = topics

    def __getitem__(self, name: str) -> str:
        return self._topics[name].topic_id

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)


class _Everything:
    """Stands for the topics of a group whose subscriptions are not known: any may be read."""

    def __contains__(self, _: object) -> bool:
        return True


def topics_read(group: Group) -> Container[str]:
    """What the members of a group subscribe to; everything while that is not known: they join, or
    say it in words of their own."""
    if group.members and group.state is not State.STABLE:
        return _Everything()
    found: set[str] = set()
    for member in group.members:
        try:
            said = unpack_subscription(member.metadata(group.protocol), group.protocol)
        except RemoteProtocolError:
            return _Everything()
        found.update(said.topics)
    return found


def check_name(group: str) -> None:
    """Raise `Refused` INVALID_GROUP_ID for what names no group."""
    if not group or len(group) > GROUP_ID_MAX:
        raise Refused(
            ErrorCode.INVALID_GROUP_ID,
            f"a group's name has {len(group)} characters, expected 1 to {GROUP_ID_MAX}",
        )
