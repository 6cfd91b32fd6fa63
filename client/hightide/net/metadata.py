"""What a client knows of the cluster: brokers, topics, who leads. Pure.

An answer about a partition with an older leader epoch than known is not believed: a broker that is
cut off tells of older ones, and takes itself for a leader (KIP-320). A topic that was made again
starts over; which of two it is, and whether there is one, is what the answer says that knows more
of the metadata. Times are monotonic, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hightide.protocol import messages as m
from hightide.protocol.errors import ApiError, ErrorCode
from hightide.protocol.topic_partition import TopicPartition
from hightide.protocol.words import counted


def no_such_partition(topic: str, count: int, partition: int) -> ApiError:
    """What is wrong with a partition beyond those of its topic."""
    partitions = counted(count, "partition")
    return ApiError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {topic!r} has {partitions}, {partition} is none of them",
    )


DOUBT_S = 600.0
"""For so long after it was last told, what somebody who knew more said of a topic is believed
against others: metadata that was lost, and begun again, is behind for ever."""


class _Told(NamedTuple):
    """Which topic has a name, by the answer that knew most."""

    as_of: int
    topic_id: str | None
    """None: there is no such topic."""
    until: float

    def knows_more_than(self, as_of: int) -> bool:
        """Than who knows the metadata up to there; not if that was not said."""
        return 0 <= as_of < self.as_of


class Metadata:
    """As of the last answers; `max_age_s` after which it counts as stale."""

    def __init__(self, *, max_age_s: float = float("inf")) -> None:
        self.cluster_id = ""
        self.controller = -1
        self.brokers: dict[int, m.BrokerInfo] = {}
        self.topics: dict[str, m.TopicMetadata] = {}
        self.stale_at = float("-inf")
        """When it gets too old; before anything was learned it is."""
        self.denied: dict[str, str] = {}
        """Topics that this client may not know of, and how that was said."""
        self._max_age_s = max_age_s
        self._leaders: dict[TopicPartition, m.PartitionMetadata] = {}
        self._newest: dict[TopicPartition, tuple[str, int]] = {}
        """The id of the topic, and the newest epoch of its leaders that anybody has told."""
        self._told: dict[str, _Told] = {}

    def leader(self, topic: str, partition: int) -> m.PartitionMetadata | None:
        """Who leads a partition as far as is known; None if nobody or not known."""
        known = self._leaders.get(TopicPartition(topic, partition))
        return known if known is not None and known.leader in self.brokers else None

    def why_leaderless(self, topic: str, partition: int) -> str:
        """Why nobody leads a partition, as far as a broker said."""
        known = self._leaders.get(TopicPartition(topic, partition))
        return (known.message if known else "") or f"{topic}-{partition} has no leader"

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; 0 if it is not known."""
        known = self.topics.get(topic)
        return len(known.partitions) if known else 0

    def available(self, topic: str) -> Sequence[int]:
        """Partitions that have a leader, or all if none has."""
        count = self.partition_count(topic)
        led = [number for number in range(count) if self.leader(topic, number) is not None]
        return led or range(count)

    def learn(self, answer: m.MetadataResponse, *, is_complete: bool, now: float) -> bool:
        """Take in an answer about some topics, or, if it `is_complete`, about all there are.

        Whether all of it could be believed: a broker that is behind is not the one to ask next.
        """
        if answer.cluster_id != self.cluster_id:
            self._told.clear()
        self.cluster_id = answer.cluster_id
        self.controller = answer.controller
        self.brokers = {broker.id: broker for broker in answer.brokers}
        self.stale_at = now + self._max_age_s
        as_of = answer.metadata_offset
        if is_complete:
            there = {topic.topic for topic in answer.topics}
            for name in [name for name in self.topics if name not in there]:
                if self._take(name, None, as_of, now):
                    del self.topics[name]
        believed = True
        for topic in answer.topics:
            self.denied.pop(topic.topic, None)
            if topic.error is None:
                believed = self._learn_topic(topic, as_of, now) and believed
            elif topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                self.denied[topic.topic] = topic.message
                self.forget(topic.topic)
            elif topic.topic in self.topics:
                believed = False  # another broker may know it still
                if self._take(topic.topic, None, as_of, now):
                    self.forget(topic.topic)
        return believed

    def _take(self, topic: str, topic_id: str | None, as_of: int, now: float) -> bool:
        """Whether to believe which topic has a name; None: none."""
        told = self._told.get(topic)
        if told is None or not told.knows_more_than(as_of) or now >= told.until:
            self._told[topic] = _Told(as_of, topic_id, now + DOUBT_S)
            return True
        return topic_id == told.topic_id

    def _learn_topic(self, topic: m.TopicMetadata, as_of: int, now: float) -> bool:
        if not self._take(topic.topic, topic.topic_id, as_of, now):
            return False
        has_fewer = len(topic.partitions) < self.partition_count(topic.topic)
        believed = not (has_fewer and self._told[topic.topic].knows_more_than(as_of))
        if believed:
            self.topics[topic.topic] = topic
        for partition in topic.partitions:
            tp = TopicPartition(topic.topic, partition.partition)
            topic_id, epoch = self._newest.get(tp, ("", -1))
            if topic_id != topic.topic_id or partition.leader_epoch >= epoch:
                self._newest[tp] = (topic.topic_id, partition.leader_epoch)
                self._leaders[tp] = partition
            else:
                believed = False
        return believed

    def forget(self, topic: str) -> None:
        """A topic is gone: one of the same name is another one, with epochs of its own."""
        self.topics.pop(topic, None)
        for tp in [tp for tp in self._leaders if tp.topic == topic]:
            del self._leaders[tp]

    def lost_leader(self, topic: str, partition: int, hint: m.LeaderHint | None = None) -> bool:
        """A broker said that it does not lead: forget, or believe its hint (KIP-951); whether
        anybody was thought to."""
        tp = TopicPartition(topic, partition)
        known = self._leaders.get(tp)
        if known is None:
            return False
        if hint is not None and hint.leader_epoch > known.leader_epoch:
            self._newest[tp] = (self._newest[tp][0], hint.leader_epoch)
            self._leaders[tp] = m.PartitionMetadata(
                partition=partition,
                leader=hint.leader,
                leader_epoch=hint.leader_epoch,
                replicas=known.replicas,
                isr=known.isr,
            )
        else:
            del self._leaders[tp]
        return True
