"""Batches of a task that are in flight: sent, and their leaders' answers not looked at yet.

Meanwhile the task reads and packs the next rows. There is one of each partition at most, so that a
batch is never stored without the one before it: a leader that has forgotten the task takes any
number for its first.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from hightide.protocol import messages as m
from hightide.spark.client import LEAST_S, TRIED_AGAIN, BlockingClient
from hightide.spark.connection import Asked

if TYPE_CHECKING:
    from hightide.arrow.from_arrow import ArrowBatch
    from hightide.protocol.topic_partition import TopicPartition

BATCHES_MAX = 4
"""In flight at a time: each holds the rows it came from, some MiB."""


class Sent(NamedTuple):
    """A batch that was sent."""

    tp: TopicPartition
    batch: ArrowBatch
    asked: Asked | None
    """How its answer is asked for; None: it did not leave."""
    until: float
    """When the time for it is up."""


class InFlight:
    """Those of one task, in the order they were sent."""

    def __init__(self, client: BlockingClient, *, timeout_s: float) -> None:
        self._client, self._timeout_s = client, timeout_s
        self._sent: deque[Sent] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def rows_of(self, tp: TopicPartition) -> int:
        """How many rows of a partition are in flight."""
        return sum(len(sent.batch) for sent in self._sent if sent.tp == tp)

    def has_room(self, tp: TopicPartition) -> bool:
        """Whether another batch of the partition may be sent."""
        return len(self._sent) < BATCHES_MAX and all(sent.tp != tp for sent in self._sent)

    def send(self, tp: TopicPartition, batch: ArrowBatch, topic_id: str) -> None:
        """Send a packed batch to whoever is known to lead; what comes of it is heard later."""
        assert batch.encoded is not None, "what is sent was packed"
        asked, until = None, time.monotonic() + self._timeout_s
        try:
            leader = self._client.leader(*tp).leader
            broker = self._client.metadata.brokers[leader]
            asked = self._client.ask(
                (broker.host, broker.port),
                produce_request(tp, topic_id, self._timeout_s),
                timeout_s=self._timeout_s,
                attachments=[batch.encoded],
                is_kept=True,
            )
        except TRIED_AGAIN:
            pass  # as if it had been refused
        self._sent.append(Sent(tp, batch, asked, until))

    def hear(self) -> tuple[TopicPartition, ArrowBatch, bool]:
        """Wait for what became of the batch that was sent first: whether it was stored, for the
        first time. Others may have been answered before, or be on their way still."""
        tp, batch, asked, until = self._sent.popleft()
        if asked is None:
            return tp, batch, False
        try:
            left_s = max(until - time.monotonic(), LEAST_S)
            answer, _ = self._client.answer(asked, timeout_s=left_s)
        except TRIED_AGAIN:
            return tp, batch, False
        result: m.ProduceResult = answer.partitions[0]
        return tp, batch, result.error is None and not result.is_repeated


def produce_request(tp: TopicPartition, topic_id: str, timeout_s: float) -> m.ProduceRequest:
    """The request that one batch is attached to, which all in-sync replicas are to have. It names
    the topic's id: a batch is not for one made again, which lacks the batches before it."""
    part = m.ProducePartition(topic=tp[0], partition=tp[1], records=0, topic_id=topic_id)
    return m.ProduceRequest(acks=m.ACKS_ALL, timeout_ms=int(timeout_s * 1000), partitions=[part])
