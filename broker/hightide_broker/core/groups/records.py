"""What a coordinator keeps in `__consumer_offsets`, as keyed records of a compacted topic. Pure.

A key is a msgpack array, a value a msgpack map; no value (a tombstone) means that it is forgotten.
The last record of a key is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from hightide.protocol.group_messages import Protocol
from hightide.protocol.messages import Message
from hightide.protocol.records import Buffer
from hightide.protocol.topic_partition import TopicPartition


class OffsetKey(msgspec.Struct, frozen=True, array_like=True, tag="offset"):
    """A committed offset."""

    group: str
    topic: str
    partition: int

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class GroupKey(msgspec.Struct, frozen=True, array_like=True, tag="group"):
    """A group with its members."""

    group: str


Key = OffsetKey | GroupKey
I32_MAX = (1 << 31) - 1


class OffsetValue(Message, frozen=True, kw_only=True):
    offset: int
    """The next record to read."""
    topic_id: str = ""
    """Of the topic that had the name then."""
    leader_epoch: int = -1
    metadata: str = ""
    commit_time_ms: int = -1


class MemberValue(Message, frozen=True, kw_only=True):
    member_id: str
    session_ms: int
    rebalance_ms: int
    protocols: list[Protocol]
    instance_id: str = ""
    client_id: str = ""
    host: str = ""
    assignment: bytes = b""


class GroupValue(Message, frozen=True, kw_only=True):
    generation: int
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    written_at_ms: int = -1
    members: list[MemberValue] = []


def is_sound(value: GroupValue) -> bool:
    """Whether a coordinator may have written this: its members differ, agree on the protocol, and
    one of them leads. Everything else is damage."""
    ids = [member.member_id for member in value.members]
    instances = [member.instance_id for member in value.members if member.instance_id]
    times = [t for member in value.members for t in (member.session_ms, member.rebalance_ms)]
    offered = [{protocol.name for protocol in member.protocols} for member in value.members]
    return (
        value.leader in ids
        and len({*ids}) == len(ids)
        and len({*instances}) == len(instances)
        and all(0 < each <= I32_MAX for each in times)
        and all(value.protocol in each for each in offered)
    )


Record = tuple[Key, OffsetValue | GroupValue | None]
_BATCH_BYTES, _RECORD_BYTES = 1024, 32
"""What a batch takes beside its records, and a record beside its key and value, at most."""


class Portion(NamedTuple):
    """Records for one batch, and the bytes of their keys and values."""

    records: list[Record]
    keys: list[bytes]
    values: list[bytes | None]


class GroupRecordDamaged(Exception):
    """A record that no coordinator wrote."""


encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(OffsetKey | GroupKey).decode
_decode_offset = msgspec.msgpack.Decoder(OffsetValue).decode
_decode_group = msgspec.msgpack.Decoder(GroupValue).decode


def decode(key: Buffer, value: Buffer | None) -> tuple[Key, OffsetValue | GroupValue | None]:
    """What a record says; raises `GroupRecordDamaged`."""
    try:
        known = _decode_key(key)
        if value is None:
            return known, None
        return known, (_decode_offset if isinstance(known, OffsetKey) else _decode_group)(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GroupRecordDamaged(str(error)) from error


def in_portions(records: Iterable[Record], batch_bytes: int) -> Iterator[Portion]:
    """Records in their order, in as many portions as need batches of so many bytes, none of them
    empty; one that is larger alone has its own."""
    portion, room = Portion([], [], []), batch_bytes - _BATCH_BYTES
    for key, value in records:
        key_bytes, value_bytes = encode(key), None if value is None else encode(value)
        size = len(key_bytes) + len(value_bytes or b"") + _RECORD_BYTES
        if portion.records and size > room:
            yield portion
            portion, room = Portion([], [], []), batch_bytes - _BATCH_BYTES
        portion.records.append((key, value))
        portion.keys.append(key_bytes)
        portion.values.append(value_bytes)
        room -= size
    if portion.records:
        yield portion


def partition_of(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that a group is in: Java's hash, as Kafka's."""
    data = group.encode("utf-16-be", "surrogatepass")
    found = 0
    for at in range(0, len(data), 2):
        found = (31 * found + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    signed = found - (1 << 32) if found >= 1 << 31 else found
    return 0 if signed == -(1 << 31) else abs(signed) % partitions
