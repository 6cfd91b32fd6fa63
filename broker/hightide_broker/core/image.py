"""The cluster image: the fold of all changes. Brokers and controllers hold one each. Pure.

Only `replay` changes it, on the live path and when a log is reloaded alike, so two images at the
same offset are equal. Everything here is a dict in insertion order: the order of iteration is part
of the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import assert_never

from hightide_broker.core.changes import (
    AllocateProducerIds,
    AnyChange,
    Change,
    ChangePartition,
    CreatePartition,
    CreateTopic,
    FenceBroker,
    RegisterBroker,
    RemoveTopic,
    SetConfig,
    StopBroker,
    UnfenceBroker,
)

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A registered broker. `epoch` is the offset of its registration."""

    broker: int
    epoch: int
    incarnation: str
    host: str
    port: int
    rack: str
    roles: tuple[str, ...]
    fenced: bool
    stopping: bool = False
    """In its controlled shutdown."""
    clean: bool = True
    directory: str = ""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who holds a partition and who leads it. Both epochs only rise."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    elr: tuple[int, ...] = ()
    """Replicas outside the ISR that have all that is committed (KIP-966)."""
    last_leader: int = NO_LEADER
    """Who led when the ISR became empty."""

    def changed(self, change: ChangePartition) -> PartitionState:
        """The state after a change; a new leader makes a new leader epoch."""
        return PartitionState(
            self.replicas,
            self.isr if change.isr is None else change.isr,
            self.leader if change.leader is None else change.leader,
            self.leader_epoch + (change.leader is not None),
            self.partition_epoch + 1,
            self.elr if change.elr is None else change.elr,
            self.last_leader if change.last_leader is None else change.last_leader,
        )


@dataclass(slots=True)
class TopicState:
    """A topic: partitions are numbered 0..n-1 in order."""

    name: str
    topic_id: str
    partitions: list[PartitionState] = field(default_factory=list)


@dataclass(slots=True)
class ClusterImage:
    """The cluster as of `offset`, the *next* metadata offset to replay."""

    offset: int = 0
    brokers: dict[int, BrokerState] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    topics_by_id: dict[str, TopicState] = field(default_factory=dict)
    configs: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """(kind, name) → what is set on that resource."""
    next_producer_id: int = 0

    def replay(self, change: AnyChange, offset: int) -> None:
        """Apply the change at `offset`; asserts what a correct controller guarantees."""
        assert offset >= self.offset, f"replay of offset {offset} at {self.offset}"
        match change:
            case RegisterBroker():
                self._register(change, offset)
            case FenceBroker():
                self._set_broker(change, fenced=True, stopping=False)
            case UnfenceBroker():
                self._set_broker(change, fenced=False, stopping=False)
            case StopBroker():
                self._set_broker(change, fenced=False, stopping=True)
            case CreateTopic():
                assert change.topic not in self.topics, f"topic {change.topic} exists"
                topic = TopicState(change.topic, change.topic_id)
                self.topics[change.topic] = self.topics_by_id[change.topic_id] = topic
            case RemoveTopic():
                topic = self.topics_by_id.pop(change.topic_id)
                del self.topics[topic.name]
                self.configs.pop(("topic", topic.name), None)
            case CreatePartition():
                self._create_partition(change)
            case ChangePartition():
                self._change_partition(change)
            case SetConfig():
                self._set_config(change)
            case AllocateProducerIds():
                assert change.next_id > self.next_producer_id, (
                    f"{change} after {self.next_producer_id}"
                )
                self.next_producer_id = change.next_id
            case _:
                assert_never(change)
        self.offset = offset + 1

    def _register(self, change: RegisterBroker, offset: int) -> None:
        self.brokers[change.broker] = BrokerState(
            change.broker,
            offset if change.broker_epoch < 0 else change.broker_epoch,
            change.incarnation,
            change.host,
            change.port,
            change.rack,
            change.roles,
            fenced=change.fenced,
            stopping=change.stopping,
            clean=change.clean,
            directory=change.directory,
        )

    def _set_broker(
        self, change: FenceBroker | UnfenceBroker | StopBroker, *, fenced: bool, stopping: bool
    ) -> None:
        state = self.brokers[change.broker]
        assert state.epoch == change.broker_epoch, f"{change}, but its epoch is {state.epoch}"
        self.brokers[change.broker] = replace(state, fenced=fenced, stopping=stopping)

    def _create_partition(self, change: CreatePartition) -> None:
        topic = self.topics_by_id[change.topic_id]
        assert change.partition == len(topic.partitions), f"{change} after {len(topic.partitions)}"
        topic.partitions.append(
            PartitionState(
                change.replicas,
                change.isr,
                change.leader,
                change.leader_epoch,
                change.partition_epoch,
                change.elr,
                change.last_leader,
            )
        )

    def _change_partition(self, change: ChangePartition) -> None:
        topic = self.topics_by_id[change.topic_id]
        old = topic.partitions[change.partition]
        assert {*(change.isr or ())} <= {*old.replicas}, f"{change}: replicas {old.replicas}"
        topic.partitions[change.partition] = old.changed(change)

    def _set_config(self, change: SetConfig) -> None:
        resource = (change.kind, change.name)
        entries = self.configs.setdefault(resource, {})
        if change.value is None:
            entries.pop(change.key, None)
        else:
            entries[change.key] = change.value
        if not entries:
            del self.configs[resource]

    def is_active(self, broker: int) -> bool:
        """Registered, not fenced, and not about to stop: it may lead."""
        state = self.brokers.get(broker)
        return state is not None and not state.fenced and not state.stopping

    def broker_epoch(self, broker: int) -> int:
        """The epoch of a broker's registration, -1 if it has none."""
        state = self.brokers.get(broker)
        return -1 if state is None else state.epoch

    def topic_config(self, topic: str) -> dict[str, str]:
        """What is set on a topic."""
        return self.configs.get(("topic", topic), {})

    # -- snapshots -------------------------------------------------------------------------------

    def changes(self) -> list[Change]:
        """Changes that make an equal image out of an empty one, but for its offset."""
        found: list[Change] = [_registration(state) for state in self.brokers.values()]
        for topic in self.topics.values():
            found.append(CreateTopic(topic=topic.name, topic_id=topic.topic_id))
            found += [
                CreatePartition(
                    topic_id=topic.topic_id,
                    partition=number,
                    replicas=state.replicas,
                    isr=state.isr,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                    elr=state.elr,
                    last_leader=state.last_leader,
                )
                for number, state in enumerate(topic.partitions)
            ]
        for (kind, name), entries in self.configs.items():
            found += [
                SetConfig(kind=kind, name=name, key=key, value=value)
                for key, value in entries.items()
            ]
        if self.next_producer_id:
            found.append(AllocateProducerIds(next_id=self.next_producer_id))
        return found

    @classmethod
    def of_snapshot(cls, changes: Iterable[AnyChange], end_offset: int) -> ClusterImage:
        """The image of a snapshot of everything below `end_offset`."""
        image = cls()
        for change in changes:
            image.replay(change, 0)
            image.offset = 0
        image.offset = end_offset
        return image

    def copy(self) -> ClusterImage:
        """An image of its own; what it is made of is never changed in place but for topics."""
        topics = {
            name: TopicState(topic.name, topic.topic_id, list(topic.partitions))
            for name, topic in self.topics.items()
        }
        return ClusterImage(
            offset=self.offset,
            brokers=dict(self.brokers),
            topics=topics,
            topics_by_id={topic.topic_id: topic for topic in topics.values()},
            configs={resource: dict(entries) for resource, entries in self.configs.items()},
            next_producer_id=self.next_producer_id,
        )


def _registration(state: BrokerState) -> RegisterBroker:
    return RegisterBroker(
        broker=state.broker,
        incarnation=state.incarnation,
        host=state.host,
        port=state.port,
        rack=state.rack,
        roles=state.roles,
        clean=state.clean,
        directory=state.directory,
        broker_epoch=state.epoch,
        fenced=state.fenced,
        stopping=state.stopping,
    )


def differences(old: ClusterImage, new: ClusterImage) -> list[AnyChange]:
    """Changes that concern whatever differs: who follows the metadata by changes, and got a
    snapshot instead, is to look at these again in `new`."""
    found: list[AnyChange] = [
        RemoveTopic(topic_id=topic_id)
        for topic_id in old.topics_by_id
        if topic_id not in new.topics_by_id
    ]
    for topic in new.topics.values():
        before = old.topics_by_id.get(topic.topic_id)
        partitions = before.partitions if before is not None else []
        for number, state in enumerate(topic.partitions):
            if number >= len(partitions) or partitions[number] != state:
                found.append(ChangePartition(topic_id=topic.topic_id, partition=number))
        if old.topic_config(topic.name) != new.topic_config(topic.name):
            found.append(SetConfig(kind="topic", name=topic.name, key="", value=None))
    return found
