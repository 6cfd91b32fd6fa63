"""What members of a group tell each other, in the bytes of Kafka's consumers.

A member's subscription and its assignment are opaque to the coordinator: members that are to share
a group must write the same bytes, whoever of them leads. So these are Kafka's, `protocol_type`
"consumer": big-endian, strings of an `i16` length, arrays of an `i32` count, a length of -1 is
none.

Subscription: `i16 version; [string topic]; bytes user_data; from 1 on [string topic, [i32]] owned;
from 2 on i32 generation; from 3 on string rack`. Assignment: `i16 version; [string topic, [i32]];
bytes user_data`. Of a later version only what is known is read. What `sticky` and
`cooperative-sticky` keep in `user_data` is theirs. Members of before wrote msgpack, which is still
read; the first byte tells. Pure.

Source: Kafka's ConsumerProtocol, StickyAssignor, CooperativeStickyAssignor; KIP-429, KIP-792.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from hightide.protocol.errors import RemoteProtocolError
from hightide.protocol.group_messages import Assigned, Subscription, TopicPartitions
from hightide.protocol.words import counted

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_NONE = _I32.pack(-1)
_FORGETFUL = ("range", "roundrobin")
"""Assignors that do not care who owned what. They are told nothing of it: a static member that
begins again then says what its last process said."""
_STICKY, _COOPERATIVE = "sticky", "cooperative-sticky"
_WITH_TOPICS, _WITH_OWNED, _WITH_GENERATION = 0, 1, 2
_MSGPACK_FROM = 0x80
"""A msgpack map begins with such a byte, and none of Kafka's versions does."""
_old_subscription = msgspec.msgpack.Decoder(Subscription).decode
_old_assigned = msgspec.msgpack.Decoder(Assigned).decode
T = TypeVar("T")


def pack_subscription(subscription: Subscription, assignor: str) -> bytes:
    """What a member says of itself to whoever assigns by this assignor."""
    topics = _array(map(_string, subscription.topics))
    if assignor in _FORGETFUL:
        return _I16.pack(_WITH_TOPICS) + topics + _NONE
    owned, generation = _places(subscription.owned), _I32.pack(subscription.generation)
    user_data = _NONE
    if assignor == _STICKY:
        # Kafka's gives up everything before it joins, and keeps in its own words what that was.
        user_data = _I32.pack(len(owned + generation)) + owned + generation
    elif assignor == _COOPERATIVE:
        user_data = _I32.pack(len(generation)) + generation
    return _I16.pack(_WITH_GENERATION) + topics + user_data + owned + generation


def unpack_subscription(data: bytes, assignor: str) -> Subscription:
    """What another member says; raises `RemoteProtocolError` if it cannot be read."""
    return _read(data, _old_subscription, lambda reader: _subscription(reader, assignor))


def pack_assigned(assigned: Assigned) -> bytes:
    """What a member is to read."""
    return _I16.pack(_WITH_TOPICS) + _places(assigned.partitions) + _NONE


def unpack_assigned(data: bytes) -> Assigned:
    """What a member is to read; raises `RemoteProtocolError` if it cannot be read."""
    return _read(data, _old_assigned, _assigned)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _I16.pack(len(encoded)) + encoded


def _array(items: Iterable[bytes]) -> bytes:
    listed = list(items)
    return _I32.pack(len(listed)) + b"".join(listed)


def _places(partitions: Sequence[TopicPartitions]) -> bytes:
    return _array(
        [_string(each.topic) + _array(map(_I32.pack, each.partitions)) for each in partitions]
    )


class _Reader:
    """Fields one after the other; raises `ValueError` where there is none."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"{counted(size, 'byte')} at byte {self._at} of {len(self._data)}")
        taken, self._at = self._data[self._at : end], end
        return taken

    def i16(self) -> int:
        return int(_I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        return int(_I32.unpack(self.take(4))[0])

    def string(self) -> str:
        return self.take(self.i16()).decode()

    def array(self, item: Callable[[], T], *, item_bytes_min: int) -> list[T]:
        """So many as there say they are, which the bytes that are left must be able to hold."""
        count, left = self.i32(), len(self._data) - self._at
        if not 0 <= count <= left // item_bytes_min:
            raise ValueError(f"{counted(count, 'item')} in {counted(left, 'byte')}")
        return [item() for _ in range(count)]

    def strings(self) -> list[str]:
        return self.array(self.string, item_bytes_min=2)

    def places(self) -> list[TopicPartitions]:
        return self.array(self._place, item_bytes_min=6)

    def _place(self) -> TopicPartitions:
        topic = self.string()
        return TopicPartitions(topic=topic, partitions=self.array(self.i32, item_bytes_min=4))

    def bytes_or_none(self) -> bytes:
        size = self.i32()
        return b"" if size == -1 else self.take(size)


def _read(data: bytes, old: Callable[[bytes], T], new: Callable[[_Reader], T]) -> T:
    try:
        if data and data[0] >= _MSGPACK_FROM:
            return old(data)
        return new(_Reader(data))
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise RemoteProtocolError(
            f"another member sent what is not of a consumer: {error}"
        ) from error


def _subscription(reader: _Reader, assignor: str) -> Subscription:
    version = _version(reader)
    topics, user_data = reader.strings(), reader.bytes_or_none()
    owned = reader.places() if version >= _WITH_OWNED else []
    generation = reader.i32() if version >= _WITH_GENERATION else -1
    if assignor == _STICKY:
        owned, generation = _kept_by_sticky(user_data)
    elif assignor == _COOPERATIVE and version < _WITH_GENERATION and len(user_data) == _I32.size:
        generation = int(_I32.unpack(user_data)[0])
    return Subscription(topics=topics, owned=owned, generation=generation)


def _kept_by_sticky(user_data: bytes) -> tuple[list[TopicPartitions], int]:
    """What Kafka's StickyAssignor keeps; nothing if it cannot be read, as there."""
    reader = _Reader(user_data)
    try:
        owned = reader.places()
    except ValueError:
        return [], -1
    try:
        return owned, reader.i32()
    except ValueError:
        return owned, -1  # its first version kept no generation


def _assigned(reader: _Reader) -> Assigned:
    _version(reader)
    return Assigned(partitions=reader.places())


def _version(reader: _Reader) -> int:
    version = reader.i16()
    if version < 0:
        raise ValueError(f"version {version}")
    return version
