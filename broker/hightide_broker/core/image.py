"""The cluster image: the fold of all changes. Brokers and controllers hold one each. Pure.

Only `replay` changes it, on the live path and when a log is reloaded alike, so two images at the
same offset are equal. Everything here is a dict in insertion order: the order of iteration is part
of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from hightide_broker.core.changes import (
    AllocateProducerIds,
    AnyChange,
    ChangePartition,
    CreatePartition,
    CreateTopic,
    FenceBroker,
    RegisterBroker,
    RemoveTopic,
    SetConfig,
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


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who holds a partition and who leads it. Both epochs only rise."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


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
                self._set_fenced(change.broker, change.broker_epoch, fenced=True)
            case UnfenceBroker():
                self._set_fenced(change.broker, change.broker_epoch, fenced=False)
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
            offset,
            change.incarnation,
            change.host,
            change.port,
            change.rack,
            change.roles,
            fenced=True,
        )

    def _set_fenced(self, broker: int, epoch: int, *, fenced: bool) -> None:
        state = self.brokers[broker]
        assert state.epoch == epoch, (
            f"broker {broker} has epoch {state.epoch}, the change says {epoch}"
        )
        self.brokers[broker] = BrokerState(
            state.broker,
            state.epoch,
            state.incarnation,
            state.host,
            state.port,
            state.rack,
            state.roles,
            fenced=fenced,
        )

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
            )
        )

    def _change_partition(self, change: ChangePartition) -> None:
        topic = self.topics_by_id[change.topic_id]
        old = topic.partitions[change.partition]
        isr = old.isr if change.isr is None else change.isr
        assert set(isr) <= set(old.replicas), f"{change}: ISR is not among {old.replicas}"
        topic.partitions[change.partition] = PartitionState(
            old.replicas,
            isr,
            old.leader if change.leader is None else change.leader,
            old.leader_epoch + (change.leader is not None),
            old.partition_epoch + 1,
        )

    def _set_config(self, change: SetConfig) -> None:
        entries = self.configs.setdefault((change.kind, change.name), {})
        if change.value is None:
            entries.pop(change.key, None)
        else:
            entries[change.key] = change.value

    def is_active(self, broker: int) -> bool:
        """Registered and not fenced."""
        state = self.brokers.get(broker)
        return state is not None and not state.fenced

    def topic_config(self, topic: str) -> dict[str, str]:
        """What is set on a topic."""
        return self.configs.get(("topic", topic), {})
