"""The replicated facts: what a record of `__cluster_metadata` says. Pure.

A change is a frozen Struct, tagged with its type on the wire and in the log, one msgpack map a
record. Handlers of the controller return changes; only `ClusterImage.replay` applies them. A field
may be added with a default; nothing is ever renamed or removed, because logs keep what was written.
Source: Kafka's metadata records (RegisterBrokerRecord and its kin).
"""

from __future__ import annotations

import msgspec


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The root of all changes."""


class RegisterBroker(Change, tag="register_broker", frozen=True, kw_only=True):
    """A broker process came up; it is fenced. Its epoch is the offset of this record."""

    broker: int
    incarnation: str
    host: str
    port: int
    rack: str = ""
    roles: tuple[str, ...] = ()
    clean: bool = True
    """Whether its last stop was orderly (KIP-966)."""


class FenceBroker(Change, tag="fence_broker", frozen=True, kw_only=True):
    broker: int
    broker_epoch: int


class UnfenceBroker(Change, tag="unfence_broker", frozen=True, kw_only=True):
    broker: int
    broker_epoch: int


class CreateTopic(Change, tag="topic", frozen=True, kw_only=True):
    topic: str
    topic_id: str


class RemoveTopic(Change, tag="remove_topic", frozen=True, kw_only=True):
    topic_id: str


class CreatePartition(Change, tag="partition", frozen=True, kw_only=True):
    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0


class ChangePartition(Change, tag="partition_change", frozen=True, kw_only=True):
    """Any of: a new ISR, a new leader. The partition epoch rises by one each time."""

    topic_id: str
    partition: int
    isr: tuple[int, ...] | None = None
    leader: int | None = None
    """Set: the leader epoch rises by one."""


class SetConfig(Change, tag="config", frozen=True, kw_only=True):
    """One key of one resource; value None takes it back to its default."""

    kind: str
    name: str
    key: str
    value: str | None


class AllocateProducerIds(Change, tag="producer_ids", frozen=True, kw_only=True):
    """Every producer id below `next_id` has been handed out."""

    next_id: int


AnyChange = (
    RegisterBroker
    | FenceBroker
    | UnfenceBroker
    | CreateTopic
    | RemoveTopic
    | CreatePartition
    | ChangePartition
    | SetConfig
    | AllocateProducerIds
)

_decoder = msgspec.msgpack.Decoder(AnyChange)


def encode_change(change: Change) -> bytes:
    """The record value of a change."""
    return msgspec.msgpack.encode(change)


def decode_change(value: bytes) -> AnyChange:
    """The change in a record value; raises `msgspec.MsgspecError` if it is none."""
    change: AnyChange = _decoder.decode(value)
    return change
