"""Target: what the members of a group say of themselves, read by the one that leads it.

Held: each is understood, or is a `RemoteProtocolError`; whatever the members claim, every partition
that there is gets one reader at most, nobody gets one that there is not, and what each is given can
be said to it. No test lives here.
"""

from collections import Counter

from hightide.consume.assignors import ASSIGNORS, Member
from hightide.protocol.consumer_protocol import (
    pack_assigned,
    pack_subscription,
    unpack_assigned,
    unpack_subscription,
)
from hightide.protocol.errors import RemoteProtocolError
from hightide.protocol.group_messages import Assigned, TopicPartitions
from hightide.protocol.topic_partition import TopicPartition

COUNTS = {"t": 4, "u": 1, "orders": 7}
NAMES = [*ASSIGNORS, "my_own"]
MEMBERS_MAX = 4


def members(data):
    """A byte for the assignor, and what each member says behind its length."""
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    found = []
    for words in _pieces(data[1:]):
        _check_assignment(words)
        try:
            said = unpack_subscription(words, name)
        except RemoteProtocolError:
            continue
        assert _places(said.owned) <= len(words)
        assert len(said.topics) <= len(words)
        found.append(_member(f"m{len(found)}", said))
        _check_again(said, name)
    if name in ASSIGNORS:
        _check_shares(found, ASSIGNORS[name](found, COUNTS), name)


def _pieces(data):
    """Up to `MEMBERS_MAX`; the last one is what is left."""
    pieces = []
    while data and len(pieces) < MEMBERS_MAX:
        size = int.from_bytes(data[:2], "big")
        pieces.append(data[2 : 2 + size])
        data = data[2 + size :]
    return pieces


def _places(owned):
    return sum(len(each.partitions) for each in owned)


def _member(name, said):
    owned = [TopicPartition(each.topic, n) for each in said.owned for n in each.partitions]
    return Member(name, tuple(said.topics), None, tuple(owned), said.generation)


def _check_assignment(words):
    try:
        given = unpack_assigned(words)
    except RemoteProtocolError:
        return
    assert _places(given.partitions) <= len(words)


def _check_again(said, name):
    """What Kafka's bytes have room for is said again in the same words."""
    numbers = [n for each in said.owned for n in each.partitions]
    if any(not -(1 << 31) <= n < 1 << 31 for n in (*numbers, said.generation)):
        return
    again = unpack_subscription(pack_subscription(said, name), name)
    assert again.topics == said.topics
    if name not in ("range", "roundrobin"):
        assert (again.owned, again.generation) == (said.owned, said.generation)


def _check_shares(found, shares, name):
    assert shares.keys() == {member.member_id for member in found}
    given = Counter(tp for places in shares.values() for tp in places)
    wanted = {topic for member in found for topic in member.topics} & COUNTS.keys()
    there = {TopicPartition(topic, n) for topic in wanted for n in range(COUNTS[topic])}
    assert given.keys() <= there, f"{given.keys() - there} are given, and are not there"
    assert set(given.values()) <= {1}, "a partition has two readers"
    if name != "cooperative-sticky":
        assert given.keys() == there, f"nobody reads {there - given.keys()}"
    topics_of = {member.member_id: member.topics for member in found}
    for member_id, places in shares.items():
        assert all(tp.topic in topics_of[member_id] for tp in places)
        said = [TopicPartitions(topic=tp.topic, partitions=[tp.partition]) for tp in places]
        assert unpack_assigned(pack_assigned(Assigned(partitions=said))).partitions == said
