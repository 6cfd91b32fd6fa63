"""A cluster of one controller, for tests: what it decides is committed at once, as bytes.

Not a test. Every change goes through its encoding into a list that plays the metadata log, and from
there into the image, so `replayed` is what any other node would make of the same log. Time stands
still until a test moves `now`; every broker has a disk of its own and is a new process whenever it
registers, unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hightide.protocol import controller_messages as c
from hightide.protocol import messages as m
from hightide.protocol.errors import ErrorCode, Refused
from hightide_broker.core.cluster.changes import (
    AnyChange,
    FenceBroker,
    decode_change,
    encode_change,
)
from hightide_broker.core.cluster.controller import Controller, Decision
from hightide_broker.core.cluster.image import ClusterImage, PartitionState

OURS = "cluster-1"
NONE = -1
SESSION_S = 9.0


class ControlledCluster:
    """One controller whose decisions are committed at once, as bytes, at rising offsets."""

    def __init__(
        self,
        *brokers: int,
        partitions: int = 1,
        replication: int = 1,
        topic_defaults: Mapping[str, str] | None = None,
    ) -> None:
        self.image = ClusterImage()
        self.log: list[bytes] = []
        self.changes: list[AnyChange] = []
        """What the last decision wrote."""
        self.hears_all = True
        """Whether whoever is in sync is heard to know of each decision, as brokers are that live:
        then nobody else stays eligible where enough are in sync."""
        self.shift = 0
        self.now = 1000.0
        self._facts = {
            "cluster_id": OURS,
            "default_partitions": partitions,
            "default_replication": replication,
            "topic_defaults": topic_defaults or {},
            "session_timeout_s": SESSION_S,
        }
        self.controller = Controller(self.image, **self._facts)
        self._settle()
        self._ids = 0
        self._processes = 0
        for broker in brokers:
            self.join(broker)

    def commit(self, decision: Decision) -> Any:
        self.changes = self._write(decision.changes)
        if self.hears_all:
            for broker in self.image.brokers:
                uncontested = self.controller.partitions.uncontested
                self._write(uncontested(broker, lambda member: self.image.offset))
        return decision.reply

    def _write(self, changes: list[AnyChange]) -> list[AnyChange]:
        written = []
        for change in changes:
            value = encode_change(change)
            written.append(decode_change(value))
            assert written[-1] == change, "a change survives its bytes"
            self.image.replay(written[-1], len(self.log))
            self.log.append(value)
        return written

    def replayed(self) -> ClusterImage:
        image = ClusterImage()
        for offset, value in enumerate(self.log):
            image.replay(decode_change(value), offset)
        return image

    def take_over(self) -> None:
        """Another controller, which knows nothing but the log, goes on."""
        self.image = self.replayed()
        self.controller = Controller(self.image, **self._facts)
        self.controller.brokers.activate(self.now)
        self._settle()

    def _settle(self) -> None:
        """As a controller does that becomes active."""
        self.commit(Decision(self.controller.partitions.settle(), m.Message()))

    def register(
        self,
        broker: int,
        *,
        incarnation: str | None = None,
        previous: int = -1,
        cluster: str = OURS,
        directory: str | None = None,
        runs: list[str] | None = None,
        host: str = "localhost",
        internal: tuple[str, int] | None = None,
        features: dict[str, int] | None = None,
    ) -> int:
        """The epoch that a process gets: a new one on this broker's own disk, if not told."""
        self._processes += 1
        request = c.RegisterBrokerRequest(
            broker=broker,
            incarnation=f"run-{self._processes}" if incarnation is None else incarnation,
            cluster_id=cluster,
            host=host,
            port=19092,
            rack="r1",
            internal=internal,
            roles=["broker"],
            previous_broker_epoch=previous,
            directory=f"disk-{broker}" if directory is None else directory,
            runs=runs,
            features=features or {},
        )
        promised = self.commit(self.controller.register_broker(request, self.now)).broker_epoch
        epoch = self.image.brokers[broker].epoch
        assert promised == (NONE if self.changes else epoch)
        return epoch

    def heartbeat(
        self, broker: int, *, epoch: int | None = None, seen: int | None = None, **wants: Any
    ) -> c.BrokerHeartbeatResponse:
        """It says what all brokers do: how far the logs reach that nobody leads, nowhere here."""
        offline = [(part.topic_id, part.partition) for part in wants.get("offline", [])]
        wants.setdefault(
            "leaderless",
            [
                told
                for told in self.leaderless(broker, (-1, 0))
                if (told.topic_id, told.partition) not in offline
            ],
        )
        request = c.BrokerHeartbeatRequest(
            broker=broker,
            broker_epoch=self.image.brokers[broker].epoch if epoch is None else epoch,
            metadata_offset=self.image.offset if seen is None else seen,
            **wants,
        )
        return self.commit(self.controller.broker_heartbeat(request, self.now))

    def leaderless(self, broker: int, end: tuple[int, int]) -> list[c.LeaderlessReplica]:
        """What a broker says of its replicas that nobody leads, if all logs end there."""
        return [
            c.LeaderlessReplica(
                topic_id=topic.topic_id,
                partition=number,
                last_epoch=end[0],
                log_end=end[1],
                leader_epoch=state.leader_epoch,
            )
            for topic in self.image.topics.values()
            for number, state in enumerate(topic.partitions)
            if state.leader == NONE and broker in state.replicas
        ]

    def join(self, *brokers: int) -> None:
        """Each one is a new process, and serves."""
        for broker in brokers:
            self.register(broker)
            self.unfence(broker)

    def unfence(self, *brokers: int) -> None:
        for broker in brokers:
            assert not self.heartbeat(broker).fenced

    def fence(self, *brokers: int) -> None:
        for broker in brokers:
            assert self.heartbeat(broker, want_fence=True).fenced

    def begin_stop(self, *brokers: int) -> None:
        """Each one leads something or is in an ISR, and wants to stop."""
        for broker in brokers:
            reply = self.heartbeat(broker, want_shut_down=True)
            assert (reply.should_shut_down, reply.fenced) == (False, False)

    def fence_silent(self) -> list[int]:
        """Whom the controller fences because it has not heard of it."""
        self.commit(Decision(self.controller.brokers.fence_silent(self.now), m.Message()))
        return [change.broker for change in self.changes if isinstance(change, FenceBroker)]

    def rebalance(self) -> list[AnyChange]:
        is_well = self.controller.brokers.who_is_well(self.now)
        self.commit(Decision(self.controller.partitions.rebalance(is_well), m.Message()))
        return self.changes

    def elect(
        self, *partitions: tuple[str, int], unclean: bool = False
    ) -> list[m.ElectLeadersResult]:
        """An election for these partitions, or for all that need one if none is named."""
        parts = [m.PartitionName(topic=topic, partition=number) for topic, number in partitions]
        request = m.ElectLeadersRequest(unclean=unclean, partitions=parts or None)
        return self.commit(self.controller.elect_leaders(request, self.now)).partitions

    def alter_isr(
        self, topic: str, *isr: int, number: int = 0, sender: int | None = None, **facts: Any
    ) -> c.AlterPartitionResult:
        """The leader's wish as of the epochs that the controller has, but for `facts`."""
        state = self.partition(topic, number)
        wish = {
            "topic_id": self.image.topics[topic].topic_id,
            "partition": number,
            "leader_epoch": state.leader_epoch,
            "partition_epoch": state.partition_epoch,
            "isr": list(isr),
        }
        sender = state.leader if sender is None else sender
        request = c.AlterPartitionRequest(
            broker=sender,
            broker_epoch=self.image.brokers[sender].epoch,
            partitions=[c.AlterPartition(**{**wish, **facts})],
        )
        (result,) = self.commit(self.controller.alter_partition(request)).partitions
        return result

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    def create_all(self, *topics: m.NewTopic, validate_only: bool = False) -> list[m.TopicResult]:
        request = m.CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
        decide = self.controller.create_topics
        return self.commit(decide(request, new_id=self._new_id, shift=self._shift)).topics

    def _shift(self, brokers: int) -> int:
        assert brokers > 0
        return self.shift % brokers

    def create(self, topic: str, **facts: Any) -> m.TopicResult:
        (result,) = self.create_all(m.NewTopic(topic=topic, **facts))
        return result

    def more_all(self, *wishes: tuple[str, int], validate_only: bool = False) -> list:
        topics = [m.MorePartitions(topic=topic, count=count) for topic, count in wishes]
        request = m.CreatePartitionsRequest(topics=topics, validate_only=validate_only)
        return self.commit(self.controller.create_partitions(request, shift=self._shift)).topics

    def more(self, topic: str, count: int) -> m.TopicResult:
        (result,) = self.more_all((topic, count))
        return result

    def delete(self, *topics: str, **ids: str) -> list[m.TopicResult]:
        request = m.DeleteTopicsRequest(topics=list(topics), ids=ids)
        return self.commit(self.controller.delete_topics(request)).topics

    def alter_all(self, *resources: m.ConfigChange, validate_only: bool = False) -> list:
        request = m.AlterConfigsRequest(resources=list(resources), validate_only=validate_only)
        return self.commit(self.controller.alter_configs(request)).resources

    def alter(self, topic: str, *unset: str, **to_set: str) -> m.ConfigResult:
        named = {key.replace("_", "."): value for key, value in to_set.items()}
        (result,) = self.alter_all(
            m.ConfigChange(kind="topic", name=topic, set=named, unset=list(unset))
        )
        return result

    def allocate(self, broker: int, *, epoch: int | None = None) -> range:
        state = self.image.brokers.get(broker)
        known = state.epoch if state is not None else 0
        request = c.AllocateProducerIdsRequest(
            broker=broker, broker_epoch=known if epoch is None else epoch
        )
        reply = self.commit(self.controller.allocate_producer_ids(request))
        return range(reply.first, reply.first + reply.count)

    def partition(self, topic: str, number: int = 0) -> PartitionState:
        return self.image.topics[topic].partitions[number]

    def partitions(self, topic: str) -> list[PartitionState]:
        return self.image.topics[topic].partitions


def cluster_of(*brokers: int, min_isr: int = 1, **configs: str) -> ControlledCluster:
    """One partition `a-0` on these brokers, led by the first."""
    cluster = ControlledCluster(*brokers)
    named = {key.replace("_", "."): value for key, value in configs.items()}
    cluster.create(
        "a", assignment=[[*brokers]], configs={"min.insync.replicas": str(min_isr), **named}
    )
    return cluster


def who(cluster: ControlledCluster) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, ISR and ELR of the one partition."""
    state = cluster.partition("a")
    return state.leader, state.isr, state.elr


def nobody_leads() -> ControlledCluster:
    """0 fell silent and is fenced; 1 and 2 have not been heard of lately, and may be gone, too."""
    cluster = cluster_of(0, 1, 2)
    cluster.take_over()
    cluster.now += SESSION_S / 4
    cluster.heartbeat(1)
    cluster.heartbeat(2)
    cluster.now += SESSION_S * 3 / 4
    assert cluster.fence_silent() == [0]
    assert who(cluster) == (NONE, (), (0, 1, 2))
    return cluster


def refusal(do: Callable[..., object], *args: Any, **kwargs: Any) -> ErrorCode:
    with pytest.raises(Refused) as caught:
        do(*args, **kwargs)
    return caught.value.code


def leaders(cluster: ControlledCluster, topic: str) -> list[int]:
    return [partition.leader for partition in cluster.partitions(topic)]


def isrs(cluster: ControlledCluster, topic: str) -> list[tuple[int, ...]]:
    return [partition.isr for partition in cluster.partitions(topic)]


def epochs(cluster: ControlledCluster, topic: str) -> list[tuple[int, int]]:
    return [(p.leader_epoch, p.partition_epoch) for p in cluster.partitions(topic)]


def elrs(cluster: ControlledCluster, topic: str) -> list[tuple[int, ...]]:
    return [partition.elr for partition in cluster.partitions(topic)]
