"""Who reads which partitions: the assignors of a group, computed by the member that leads it. Pure.

Each takes the members with what they subscribe to, and the topics with their numbers of partitions,
and gives every member its partitions, sorted. Topics that nobody knows are left out. The results
are Kafka's (its RangeAssignor, RoundRobinAssignor and AbstractStickyAssignor); an assignor of one's
own is any callable of the same shape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

from hightide.protocol.topic_partition import TopicPartition


class Member(NamedTuple):
    """A member of a group, as far as an assignor needs to know it."""

    member_id: str
    topics: tuple[str, ...]
    instance_id: str | None = None
    """Set for static members, which keep their place over a restart (KIP-345)."""
    owned: tuple[TopicPartition, ...] = ()
    """What it has read until now, for assignors that keep that."""
    generation: int = -1
    """The generation it owned that in."""


Assignment = dict[str, list[TopicPartition]]
"""Member id → its partitions."""
Assignor = Callable[[Sequence[Member], Mapping[str, int]], Assignment]


def in_order(members: Iterable[Member]) -> list[Member]:
    """Static members first, by instance id; then the others by member id."""
    return sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))


def assign_range(members: Sequence[Member], counts: Mapping[str, int]) -> Assignment:
    """For each topic contiguous ranges; the first members get one partition more where the number
    does not divide. With many topics the first members have much more to do."""
    found: Assignment = {member.member_id: [] for member in members}
    for topic in _topics(members, counts):
        readers = [member for member in in_order(members) if topic in member.topics]
        share, rest = divmod(counts[topic], len(readers))
        start = 0
        for number, member in enumerate(readers):
            end = start + share + (number < rest)
            found[member.member_id] += [TopicPartition(topic, p) for p in range(start, end)]
            start = end
    return found


def assign_round_robin(members: Sequence[Member], counts: Mapping[str, int]) -> Assignment:
    """All partitions in order, dealt to the members in turn; who does not read a topic is passed
    over."""
    found: Assignment = {member.member_id: [] for member in members}
    turn = cycle(in_order(members))
    for tp in _partitions(members, counts):
        member = next(each for each in turn if tp.topic in each.topics)
        found[member.member_id].append(tp)
    return found


def assign_sticky(members: Sequence[Member], counts: Mapping[str, int]) -> Assignment:
    """As even as can be, and as much as possible stays where it was (KIP-54)."""
    members = sorted(members, key=lambda member: member.member_id)
    owned = _owned(members, counts)
    if len({frozenset(member.topics) for member in members}) <= 1:
        found = _deal_evenly(members, _partitions(members, counts), owned)
    else:
        found = _balance(members, _partitions(members, counts), owned)
    return {member_id: sorted(places) for member_id, places in found.items()}


def assign_cooperative_sticky(members: Sequence[Member], counts: Mapping[str, int]) -> Assignment:
    """As sticky; but what moves from a live owner is given to nobody yet: its owner lets go of it
    first, and the next rebalance gives it away (KIP-429)."""
    rightful = {tp: name for name, places in _claims(members).items() for tp in places}
    readers: dict[TopicPartition, set[str]] = {}
    for member in members:
        for tp in member.owned:
            readers.setdefault(tp, set()).add(member.member_id)

    def may_begin(name: str, tp: TopicPartition) -> bool:
        return rightful.get(tp) == name or readers.get(tp, set()) <= {name}

    return {
        name: [tp for tp in places if may_begin(name, tp)]
        for name, places in assign_sticky(members, counts).items()
    }


ASSIGNORS: dict[str, Assignor] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperative_sticky,
}
"""By the name that the members of a group agree on."""


def _topics(members: Iterable[Member], counts: Mapping[str, int]) -> list[str]:
    wanted = {topic for member in members for topic in member.topics}
    return sorted(topic for topic in wanted if counts.get(topic, 0) > 0)


def _partitions(members: Iterable[Member], counts: Mapping[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in _topics(members, counts)
        for number in range(counts[topic])
    ]


# -- sticky ----------------------------------------------------------------------------------------


def _claims(members: Sequence[Member]) -> dict[str, list[TopicPartition]]:
    """What each member owns; of two that claim the same the one of the later generation does, and
    neither if it is the same generation."""
    claims: dict[TopicPartition, list[Member]] = {}
    for member in members:
        for tp in member.owned:
            claims.setdefault(tp, []).append(member)
    found: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    for tp, claimants in claims.items():
        latest = max(member.generation for member in claimants)
        of_latest = [member for member in claimants if member.generation == latest]
        if len(of_latest) == 1:
            found[of_latest[0].member_id].append(tp)
    return found


def _owned(members: Sequence[Member], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """What members own and may keep: it is there, and they still read it."""
    claims = _claims(members)
    return {
        member.member_id: sorted(
            (
                tp
                for tp in claims[member.member_id]
                if tp.topic in member.topics and 0 <= tp.partition < counts.get(tp.topic, 0)
            ),
            key=lambda tp: (tp.partition, tp.topic),
        )
        for member in members
    }


def _deal_evenly(
    members: Sequence[Member],
    partitions: Sequence[TopicPartition],
    owned: Mapping[str, list[TopicPartition]],
) -> Assignment:
    """Everybody reads the same topics: each member has `least` or one more."""
    least, above = divmod(len(partitions), len(members)) if members else (0, 0)
    found: Assignment = {}
    short: deque[str] = deque()
    at_least: deque[str] = deque()
    for member in members:
        kept = owned[member.member_id]
        if len(kept) < least:
            short.append(member.member_id)
        elif len(kept) > least and above:
            kept, above = kept[: least + 1], above - 1
        else:
            kept = kept[:least]
            at_least.append(member.member_id)
        found[member.member_id] = list(kept)
    taken = {tp for places in found.values() for tp in places}
    for tp in partitions:
        if tp in taken:
            continue
        if short:
            member_id = short.popleft()
            found[member_id].append(tp)
            (short if len(found[member_id]) < least else at_least).append(member_id)
        else:
            found[at_least.popleft()].append(tp)
    return found


def _balance(
    members: Sequence[Member],
    partitions: Sequence[TopicPartition],
    owned: Mapping[str, list[TopicPartition]],
) -> Assignment:
    """Members read different topics: what is free goes to the one that has least and may have it;
    then single partitions move while that makes it more even."""
    readers = {
        tp: [member.member_id for member in members if tp.topic in member.topics]
        for tp in partitions
    }
    found: Assignment = {member.member_id: list(owned[member.member_id]) for member in members}
    owner = {tp: member_id for member_id, places in found.items() for tp in places}

    def least_of(tp: TopicPartition) -> str:
        return min(readers[tp], key=lambda member_id: (len(found[member_id]), member_id))

    hardest_first = sorted(partitions, key=lambda tp: (len(readers[tp]), tp))
    for tp in hardest_first:
        if tp not in owner:
            owner[tp] = least_of(tp)
            found[owner[tp]].append(tp)
    moved = True
    while moved:
        moved = False
        for tp in hardest_first:
            one, other = owner[tp], least_of(tp)
            if len(found[one]) > len(found[other]) + 1:
                found[one].remove(tp)
                found[other].append(tp)
                owner[tp], moved = other, True
    return found
