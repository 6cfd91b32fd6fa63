"""A cluster of one controller, for tests: what it decides is committed at once, as bytes.

Not a test. Every change goes through its encoding into a list that plays the metadata log, and from
there into the image, so `replayed` is what any other node would make of the same log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hightide import controller_messages as c
from hightide import messages as m
from hightide.errors import ErrorCode, Refused
from hightide_broker.core.changes import AnyChange, decode_change, encode_change
from hightide_broker.core.controller import Controller, Decision
from hightide_broker.core.image import ClusterImage, PartitionState

OURS = "cluster-1"


class Cluster:
    """One controller whose decisions are committed at once, as bytes, at rising offsets."""

    def __init__(self, *brokers: int, partitions: int = 1, replication: int = 1) -> None:
        self.image = ClusterImage()
        self.log: list[bytes] = []
        self.changes: list[AnyChange] = []
        """What the last decision wrote."""
        self.shift = 0
        self._defaults = {"default_partitions": partitions, "default_replication": replication}
        self.controller = Controller(self.image, cluster_id=OURS, **self._defaults)
        self._ids = 0
        for broker in brokers:
            self.join(broker)

    def commit(self, decision: Decision) -> Any:
        self.changes = []
        for change in decision.changes:
            value = encode_change(change)
            self.changes.append(decode_change(value))
            assert self.changes[-1] == change, "a change survives its bytes"
            self.image.replay(self.changes[-1], len(self.log))
            self.log.append(value)
        return decision.reply

    def replayed(self) -> ClusterImage:
        image = ClusterImage()
        for offset, value in enumerate(self.log):
            image.replay(decode_change(value), offset)
        return image

    def take_over(self) -> None:
        """Another controller, which knows nothing but the log, goes on."""
        self.image = self.replayed()
        self.controller = Controller(self.image, cluster_id=OURS, **self._defaults)

    def register(
        self, broker: int, *, incarnation: str = "a", previous: int = -1, cluster: str = OURS
    ) -> int:
        request = c.RegisterBrokerRequest(
            broker=broker,
            incarnation=incarnation,
            cluster_id=cluster,
            host="localhost",
            port=19092,
            rack="r1",
            roles=["broker"],
            previous_broker_epoch=previous,
        )
        self.commit(self.controller.register_broker(request))
        return self.image.brokers[broker].epoch

    def heartbeat(
        self, broker: int, *, epoch: int | None = None, seen: int | None = None, **wants: bool
    ) -> c.BrokerHeartbeatResponse:
        request = c.BrokerHeartbeatRequest(
            broker=broker,
            broker_epoch=self.image.brokers[broker].epoch if epoch is None else epoch,
            metadata_offset=self.image.offset if seen is None else seen,
            **wants,
        )
        return self.commit(self.controller.broker_heartbeat(request))

    def join(self, broker: int) -> None:
        self.register(broker)
        assert not self.heartbeat(broker).fenced

    def fence(self, *brokers: int) -> None:
        for broker in brokers:
            assert self.heartbeat(broker, want_fence=True).fenced

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

    def delete(self, *topics: str) -> list[m.TopicResult]:
        request = m.DeleteTopicsRequest(topics=list(topics))
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


def refusal(do: Callable[..., object], *args: Any, **kwargs: Any) -> ErrorCode:
    with pytest.raises(Refused) as caught:
        do(*args, **kwargs)
    return caught.value.code


def leaders(cluster: Cluster, topic: str) -> list[int]:
    return [partition.leader for partition in cluster.partitions(topic)]


def isrs(cluster: Cluster, topic: str) -> list[tuple[int, ...]]:
    return [partition.isr for partition in cluster.partitions(topic)]


def epochs(cluster: Cluster, topic: str) -> list[tuple[int, int]]:
    return [(p.leader_epoch, p.partition_epoch) for p in cluster.partitions(topic)]
