"""Requests about idempotent producers: their ids, and what partitions know of them. Pure.

The rules of `messages.py` hold here too. Sources: KIP-98, KIP-664.
"""

from __future__ import annotations

from hightide.protocol.messages import Message, PartitionName


class InitProducerIdRequest(Message, frozen=True, kw_only=True):
    pass


class InitProducerIdResponse(Message, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int


class ProducerQuestion(PartitionName, frozen=True, kw_only=True):
    producer_id: int = -1
    """-1: every one that wrote there."""


class DescribeProducersRequest(Message, frozen=True, kw_only=True):
    partitions: list[ProducerQuestion]


class KnownProducer(Message, frozen=True, kw_only=True):
    """An idempotent producer that wrote to a partition; -1: that is not known."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    """When its last batch was stored, ms."""


class ProducerState(Message, frozen=True, kw_only=True):
    """What a partition's leader has of a producer; -1: nothing (KIP-664)."""

    topic: str
    partition: int
    error: str | None = None
    message: str = ""
    producer_epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    high_watermark: int = -1
    producers: list[KnownProducer] = []
    """If all were asked for: those that wrote last, `PRODUCERS_TOLD_MAX` at most."""


class DescribeProducersResponse(Message, frozen=True, kw_only=True):
    partitions: list[ProducerState]
