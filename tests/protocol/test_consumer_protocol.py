"""What members of a group tell each other: Kafka's bytes, read and written as its clients do.

Goal: members of every client understand each other, whoever leads; bytes that are none are one
clear error, within bounds. Method: layouts written by hand; the classes of aiokafka and
kafka-python on the other side; Hypothesis draws subscriptions and damage.
"""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_members import AioAssignment, AioSticky, AioSubscription, Assignment, Subscription
from tries import tries

from hightide.consume.assignors import ASSIGNORS
from hightide.protocol import group_messages as g
from hightide.protocol.consumer_protocol import (
    pack_assigned,
    pack_subscription,
    unpack_assigned,
    unpack_subscription,
)
from hightide.protocol.errors import RemoteProtocolError

many = settings(max_examples=tries(150), deadline=None)
FORGETFUL = ["range", "roundrobin"]
MINDFUL = ["sticky", "cooperative-sticky", "my_own"]

topics = st.text(min_size=1, max_size=5)
places = st.lists(
    st.builds(
        lambda topic, partitions: g.TopicPartitions(topic=topic, partitions=partitions),
        topics,
        st.lists(st.integers(0, (1 << 31) - 1), max_size=3),
    ),
    max_size=3,
)
subscriptions = st.builds(
    lambda topics, owned, generation: g.Subscription(
        topics=topics, owned=owned, generation=generation
    ),
    st.lists(topics, max_size=3),
    places,
    st.integers(-1, (1 << 31) - 1),
)
SAID = g.Subscription(
    topics=["orders", "t"],
    owned=[g.TopicPartitions(topic="t", partitions=[3, 1])],
    generation=7,
)
OWNED = bytes.fromhex("00000001 0001 74 00000002 00000003 00000001")
SEVEN = bytes.fromhex("00000007")
TOPICS = bytes.fromhex("00000002 0006 6f7264657273 0001 74")
NONE = b"\xff" * 4


def plain(found) -> list[tuple[str, list[int]]]:
    return [(each.topic, list(each.partitions)) for each in found]


# Written.


@pytest.mark.parametrize("assignor", FORGETFUL)
def test_who_assigns_without_looking_back_is_told_the_topics_alone(assignor: str) -> None:
    packed = pack_subscription(SAID, assignor)
    assert packed == b"\0\0" + TOPICS + NONE
    assert unpack_subscription(packed, assignor) == g.Subscription(topics=["orders", "t"])


def test_sticky_and_cooperative_sticky_are_told_what_was_owned_where_kafka_looks_for_it() -> None:
    twenty_three = bytes.fromhex("00000017")
    fields = OWNED + SEVEN
    assert pack_subscription(SAID, "sticky") == b"\0\2" + TOPICS + twenty_three + fields + fields
    cooperative = pack_subscription(SAID, "cooperative-sticky")
    assert cooperative == b"\0\2" + TOPICS + bytes.fromhex("00000004") + SEVEN + fields
    assert pack_subscription(SAID, "my_own") == b"\0\2" + TOPICS + NONE + fields


def test_an_assignment_is_kafkas() -> None:
    packed = pack_assigned(g.Assigned(partitions=SAID.owned))
    assert packed == b"\0\0" + OWNED + NONE


@given(said=subscriptions, assignor=st.sampled_from([*ASSIGNORS, "my_own"]))
@many
def test_kafkas_clients_read_what_is_said_here(said: g.Subscription, assignor: str) -> None:
    packed = pack_subscription(said, assignor)
    aio = AioSubscription.decode(packed)
    python = Subscription.decode(packed)
    assert aio.subscription == python.topics == said.topics
    if assignor in MINDFUL:
        assert plain(python.owned_partitions) == plain(said.owned)
        assert python.generation_id == said.generation
    if assignor == "sticky":
        kept = AioSticky.decode(aio.user_data)
        assert [(t, list(p)) for t, p in kept.previous_assignment] == plain(said.owned)
        assert kept.generation == said.generation


@given(given_to=places)
@many
def test_kafkas_clients_read_what_they_are_given(given_to: list[g.TopicPartitions]) -> None:
    packed = pack_assigned(g.Assigned(partitions=given_to))
    assert [(t, list(p)) for t, p in AioAssignment.decode(packed).assignment] == plain(given_to)
    assert plain(Assignment.decode(packed).assigned_partitions) == plain(given_to)


# Read.


@given(said=subscriptions, assignor=st.sampled_from(MINDFUL))
@many
def test_what_is_said_here_is_read_here(said: g.Subscription, assignor: str) -> None:
    assert unpack_subscription(pack_subscription(said, assignor), assignor) == said
    assigned = g.Assigned(partitions=said.owned)
    assert unpack_assigned(pack_assigned(assigned)) == assigned


@given(said=subscriptions, version=st.integers(0, 3), user_data=st.none() | st.binary(max_size=9))
@many
def test_what_kafka_python_says_is_read(
    said: g.Subscription, version: int, user_data: bytes | None
) -> None:
    packed = Subscription(
        version=version,
        topics=said.topics,
        user_data=user_data,
        owned_partitions=[
            Subscription.TopicPartition(topic=each.topic, partitions=each.partitions)
            for each in said.owned
        ],
        generation_id=said.generation,
        rack_id="r",
    ).encode()
    found = unpack_subscription(packed, "range")
    assert found.topics == said.topics
    assert found.owned == (said.owned if version >= 1 else [])
    assert found.generation == (said.generation if version >= 2 else -1)


@given(said=subscriptions)
@many
def test_what_aiokafkas_sticky_assignor_keeps_is_read(said: g.Subscription) -> None:
    kept = AioSticky(plain(said.owned), said.generation).encode()
    packed = AioSubscription(0, said.topics, kept).encode()
    assert unpack_subscription(packed, "sticky") == said


def test_sticky_reads_its_first_version_and_ignores_what_it_cannot_read() -> None:
    def with_user_data(user_data: bytes) -> g.Subscription:
        packed = AioSubscription(0, ["t"], user_data).encode()
        return unpack_subscription(packed, "sticky")

    assert with_user_data(OWNED) == g.Subscription(topics=["t"], owned=SAID.owned)
    assert with_user_data(b"\0\0\0\x09") == with_user_data(b"") == g.Subscription(topics=["t"])


def test_cooperative_sticky_finds_the_generation_of_older_clients_in_its_own_bytes() -> None:
    old = b"\0\1" + TOPICS + bytes.fromhex("00000004") + SEVEN + OWNED
    assert unpack_subscription(old, "cooperative-sticky") == SAID
    assert unpack_subscription(old, "range").generation == -1


def test_of_a_later_version_what_is_known_is_read() -> None:
    later = b"\0\x09" + TOPICS + NONE + OWNED + SEVEN + b"\0\1rmore"
    assert unpack_subscription(later, "cooperative-sticky") == SAID
    assert unpack_assigned(b"\0\x09" + OWNED + NONE + b"more").partitions == SAID.owned


def test_what_members_of_before_wrote_is_read() -> None:
    pack = msgspec.msgpack.encode
    assert unpack_subscription(pack(SAID), "sticky") == SAID
    assert unpack_assigned(pack(g.Assigned(partitions=SAID.owned))).partitions == SAID.owned


# None of these.

CASES = {
    "nothing": b"",
    "half a version": b"\0",
    "a negative version": b"\xff\xff" + TOPICS + NONE,
    "no topics": b"\0\0",
    "fewer topics than it says": b"\0\0\0\0\0\3" + TOPICS[4:] + NONE,
    "a negative number of topics": b"\0\0" + NONE,
    "a topic that is null": b"\0\0\0\0\0\1\xff\xff" + NONE,
    "a topic that is no UTF-8": b"\0\0\0\0\0\1\0\1\xff" + NONE,
    "no user data": b"\0\0" + TOPICS,
    "user data of length -2": b"\0\0" + TOPICS + b"\xff\xff\xff\xfe",
    "no owned": b"\0\1" + TOPICS + NONE,
    "no generation": b"\0\2" + TOPICS + NONE + OWNED,
    "msgpack of something else": b"\x81\xa1x\x01",
    "a byte that msgpack does not have": b"\xc1",
}


@pytest.mark.parametrize("case", CASES)
def test_bytes_of_no_member_are_one_clear_error(case: str) -> None:
    with pytest.raises(RemoteProtocolError, match="not of a consumer"):
        unpack_subscription(CASES[case], "range")


@pytest.mark.parametrize("size", range(len(OWNED) + 2))
def test_an_assignment_that_is_cut_off_is_one_clear_error(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_assigned((b"\0\0" + OWNED)[:size])


@given(data=st.binary(max_size=60), assignor=st.sampled_from([*ASSIGNORS]))
@many
def test_any_bytes_are_read_or_one_error(data: bytes, assignor: str) -> None:
    with suppress(RemoteProtocolError):
        assert isinstance(unpack_subscription(data, assignor), g.Subscription)
    with suppress(RemoteProtocolError):
        assert isinstance(unpack_assigned(data), g.Assigned)


def test_a_count_of_billions_costs_nothing() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="2147483647 items"):
            unpack_subscription(b"\0\0" + struct.pack(">i", (1 << 31) - 1) + b"\0" * 100, "range")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16
