"""Who reads which partitions: the assignors of a group give what Kafka's give.

Goal: members that agree on an assignor's name agree on its result, no matter which of them leads
the group; nothing is read twice or by nobody, and what need not move stays. Method: vectors worked
out by hand from Kafka's rules; the rule for sticky written down a second time, step by step; and
any groups at all.
"""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tries import tries

from hightide.consume.assignors import (
    ASSIGNORS,
    Member,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from hightide.protocol.topic_partition import TopicPartition

NOTE = re.compile(r"(\w+)(?:/(\w*))?(?:@(-?\d+))?(?:=(\w+))?(?:: ?(.*))?")
every_assignor = pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
at_leisure = settings(max_examples=tries(60), deadline=None)
both_sticky = pytest.mark.parametrize("assign", [assign_sticky, assign_cooperative_sticky])


def places(text):
    """`x0 y12` is partition 0 of topic x and partition 12 of topic y."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def group(text):
    """`a/xz@3=i: x0; b` is a, which reads x and z, owned x0 in generation 3 and is static as i;
    and b, which reads x and y."""
    found = []
    for note in text.split("; ") if text else ():
        name, topics, generation, instance, owned = NOTE.fullmatch(note).groups()
        reads = tuple("xy" if topics is None else topics)
        found.append(Member(name, reads, instance, places(owned or ""), int(generation or 1)))
    return found


def shown(assignment):
    """`a: x0 y1; b:`, by member, with the partitions in the order that the assignor gave."""
    return "; ".join(
        " ".join([f"{name}:", *(f"{tp.topic}{tp.partition}" for tp in assignment[name])])
        for name in sorted(assignment)
    )


def run(assign, counts, members):
    """With `x3 y5` for 3 partitions of x and 5 of y."""
    return shown(assign(group(members), dict(places(counts))))


def rejoined(members, assignment):
    """The same members when they join again: they own what they were given."""
    later = max((each.generation for each in members), default=0) + 1
    return [
        each._replace(owned=tuple(assignment[each.member_id]), generation=later) for each in members
    ]


# -- all of them -----------------------------------------------------------------------------------


def test_the_names_are_those_that_kafkas_clients_use():
    assert list(ASSIGNORS) == ["range", "roundrobin", "sticky", "cooperative-sticky"]


@every_assignor
@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        pytest.param("x3", "", "", id="no members"),
        pytest.param("x2 y0 z1", "a/wxyz", "a: x0 x1 z0", id="no metadata of w, y is empty"),
        pytest.param("", "a; b", "a:; b:", id="no metadata at all"),
        pytest.param("x1 y4", "a/x", "a: x0", id="nobody reads y"),
        pytest.param("x2", "a/; b/x", "a:; b: x0 x1", id="a reads nothing"),
        pytest.param("x2", "a/; b/", "a:; b:", id="nobody reads anything"),
        pytest.param("x2", "c; a; b", "a: x0; b: x1; c:", id="more members than partitions"),
    ],
)
def test_whatever_the_assignor(assign, counts, members, expected):
    assert run(assign, counts, members) == expected


# -- range -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ("x9", "a; b; c", "a: x0 x1 x2; b: x3 x4 x5; c: x6 x7 x8"),
        ("x10", "a; b; c", "a: x0 x1 x2 x3; b: x4 x5 x6; c: x7 x8 x9"),
        ("x11", "a; b; c", "a: x0 x1 x2 x3; b: x4 x5 x6 x7; c: x8 x9 x10"),
        # Each topic begins again, so the first member has 8 of 20.
        (
            "x10 y10",
            "a; b; c",
            "a: x0 x1 x2 x3 y0 y1 y2 y3; b: x4 x5 x6 y4 y5 y6; c: x7 x8 x9 y7 y8 y9",
        ),
        # Kafka's example.
        ("x3 y3", "a; b", "a: x0 x1 y0 y1; b: x2 y2"),
        # A topic is divided among its readers.
        ("x3 y3", "a/x; b/xy; c/y", "a: x0 x1; b: x2 y0 y1; c: y2"),
        # Static members first, by instance: z c b 0 a.
        ("x6", "a; c=i2; b=i3; 0; z=i1", "0: x4; a: x5; b: x3; c: x2; z: x0 x1"),
    ],
)
def test_range_gives_neighbours_and_the_first_members_what_does_not_divide(
    counts, members, expected
):
    assert run(assign_range, counts, members) == expected


# -- round robin -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        # Kafka's example; the order of the words does not matter.
        ("y3 x3", "b/yx; a", "a: x0 x2 y1; b: x1 y0 y2"),
        # Who does not read the topic is passed over, and the turn goes on from who got the last.
        ("x1 y2 z3", "a/x; b/xy; c/xyz", "a: x0; b: y0; c: y1 z0 z1 z2"),
        ("x1 y1 z4", "a/xz; b/yz; c/xz", "a: x0 z1; b: y0 z2; c: z0 z3"),
        # Static members first, by instance: z c b 0 a.
        ("x7", "a; c=i2; b=i3; 0; z=i1", "0: x3; a: x4; b: x2; c: x1 x6; z: x0 x5"),
    ],
)
def test_round_robin_deals_in_turn(counts, members, expected):
    assert run(assign_round_robin, counts, members) == expected


# -- sticky, everybody reads the same --------------------------------------------------------------


@both_sticky
@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ("x3 y3", "a; b", "a: x0 x2 y1; b: x1 y0 y2"),
        ("x5", "c; a; b", "a: x0 x3; b: x1 x4; c: x2"),
        ("x7", "a; b; c", "a: x0 x3 x6; b: x1 x4; c: x2 x5"),
        ("x9", "a; b; c", "a: x0 x3 x6; b: x1 x4 x7; c: x2 x5 x8"),
        # Static members have no precedence here.
        ("x3", "b=i1; a=i2; 0", "0: x0; a: x1; b: x2"),
    ],
)
def test_sticky_deals_what_nobody_owns_in_turn(assign, counts, members, expected):
    assert run(assign, counts, members) == expected


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        # One joins; of those that have two the first may keep both.
        ("x5", "a: x0 x3; b: x1 x4; c: x2; d", "a: x0 x3; b: x1; c: x2; d: x4"),
        # One left; the first get what it had.
        ("x8", "a: x0 x4; b: x1 x5; c: x2 x6", "a: x0 x3 x4; b: x1 x5 x7; c: x2 x6"),
        # In turn, until one has enough.
        ("x9", "a: x0; b; c: x1 x2 x3", "a: x0 x4 x6; b: x5 x7 x8; c: x1 x2 x3"),
        # Who had enough gets one more before those that were filled up.
        ("x7", "a; b: x0 x1; c", "a: x2 x4; b: x0 x1 x6; c: x3 x5"),
        # Too much, and it divides; then too much, and one may have one more. The first by number,
        # then topic, stay.
        ("x3 y3", "a: y2 x2 y1 x1 y0 x0; b", "a: x0 x1 y0; b: x2 y1 y2"),
        ("x4 y3", "a; b: x0 x1 x2 x3 y0 y1 y2", "a: x2 x3 y2; b: x0 x1 y0 y1"),
        # Two have too much; the first of them may have one more, or both.
        ("x7", "a: x0 x2 x4 x6; b: x1 x3 x5; c", "a: x0 x2 x4; b: x1 x3; c: x5 x6"),
        ("x8", "a: x0 x2 x4 x6; b: x1 x3 x5 x7; c", "a: x0 x2 x4; b: x1 x3 x5; c: x6 x7"),
        # Fewer partitions than members.
        ("x2", "a; b; c: x0 x1", "a: x1; b:; c: x0"),
        ("x2", "a; b: x1; c: x0", "a:; b: x1; c: x0"),
        # Owned, but nobody reads it any longer, or it is not there any longer.
        ("x4 y2", "a/x: x0 y0 y1; b/x", "a: x0 x1; b: x2 x3"),
        ("x2", "a: x1 x2 x5 w0; b", "a: x1; b: x0"),
    ],
)
def test_sticky_leaves_partitions_where_they_are(counts, members, expected):
    assert run(assign_sticky, counts, members) == expected


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ("a@5: x0 x1; b@4: x1 x2", "a: x0 x1; b: x2 x3"),
        ("a@4: x0 x1; b@5: x1 x2", "a: x0 x3; b: x1 x2"),
        ("a@5: x1; b@5: x1", "a: x0 x2; b: x1 x3"),
        ("a@5: x1; b@5: x1; c@4: x1", "a: x0 x3; b: x1; c: x2"),
        ("a@4: x1; b@4: x1; c@5: x1", "a: x0; b: x2; c: x1 x3"),
        # What there cannot be is nobody's, whoever claims it.
        ("a@5: x0 x-1 x-2 x4; b@5", "a: x0 x1; b: x2 x3"),
        # An earlier generation keeps what nobody else claims.
        ("a@9: x3; b@-1: x0 x1", "a: x2 x3; b: x0 x1"),
    ],
)
def test_of_two_owners_the_later_one_counts_and_of_one_generation_neither(members, expected):
    assert run(assign_sticky, "x4", members) == expected


# -- sticky, everybody reads something else --------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        # To the member with the least.
        ("x3 y1", "a: x2; b; c/x: x0 x1", "a: x2; b: y0; c: x0 x1"),
        # To those that may have it; then until it is even.
        ("x2 y2", "a/x; b", "a: x0 x1; b: y0 y1"),
        # One more is no reason to move, two more are.
        ("x2 y1", "a/x: x0; b: x1 y0", "a: x0; b: x1 y0"),
        ("x1 y1", "a/x; b: x0 y0", "a: x0; b: y0"),
        # What the other may not have stays.
        ("x1 y5", "a/x: x0; b/y: y0 y1 y2 y3 y4", "a: x0; b: y0 y1 y2 y3 y4"),
        # What its owner reads no longer goes, and another comes.
        ("x1 y1", "a/y: x0; b: y0", "a: y0; b: x0"),
        # What is not there any longer does not count.
        ("x2 y2", "a/xw: x0 x2 x3 w0; b", "a: x0 x1; b: y0 y1"),
    ],
)
def test_sticky_with_unequal_subscriptions(counts, members, expected):
    assert run(assign_sticky, counts, members) == expected


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ("x3 y1", "a/x: x0; b: x1 x2 y0", {"a": 2, "b": 2}),
        # Through b; then each has one more than the one before.
        ("x2 y4", "a/x; b: x0 x1; c/y: y0 y1 y2 y3", {"a": 1, "b": 2, "c": 3}),
        # x0 may move only when b got one of c's.
        ("x1 y4", "a/x; b: x0; c/y: y0 y1 y2 y3", {"a": 1, "b": 2, "c": 2}),
    ],
)
def test_sticky_moves_some_of_those_that_may_move(counts, members, expected):
    found = assign_sticky(group(members), dict(places(counts)))
    assert {name: len(tps) for name, tps in found.items()} == expected


# -- cooperative -----------------------------------------------------------------------------------


def rounds_of(members, counts, rounds):
    """What is shown when everybody rejoins with what it was given, again and again."""
    members, counts = group(members), dict(places(counts))
    for _ in range(rounds):
        found = assign_cooperative_sticky(members, counts)
        yield shown(found)
        members = rejoined(members, found)


@pytest.mark.parametrize(
    ("counts", "members", "first", "then"),
    [
        ("x5", "a: x0 x1 x2 x3; b", "a: x0 x1 x2; b: x4", "a: x0 x1 x2; b: x3 x4"),
        # Its owner reads it no longer.
        ("x1 y1", "a/y: x0; b/x", "a: y0; b:", "a: y0; b: x0"),
        # Its owner is gone: at once.
        ("x6", "a: x0 x1; b: x2 x3", *["a: x0 x1 x4; b: x2 x3 x5"] * 2),
        # It has two owners, but one is of an earlier generation.
        ("x2", "a@3: x0 x1; b@4: x1", *["a: x0; b: x1"] * 2),
        # It has two owners of the same generation: both let go of it first.
        ("x1", "a; b: x0; c: x0", "a:; b:; c:", "a: x0; b:; c:"),
    ],
)
def test_cooperative_gives_away_only_what_its_owner_let_go_of(counts, members, first, then):
    assert list(rounds_of(members, counts, 3)) == [first, then, then]


def test_cooperative_withholds_as_long_as_the_owner_says_that_it_reads():
    for generation in range(3):
        members = f"a@{generation}: x0 x1; b@{generation + 1}"
        assert run(assign_cooperative_sticky, "x2", members) == "a: x0; b:"


# -- any group -------------------------------------------------------------------------------------

ALL_PLACES = places("w0 x0 x1 x2 x3 x4 x5 y0 y1 y2 y3 z0 z1 z2")
SUBSETS = [[name for bit, name in enumerate("wxyz") if mask >> bit & 1] for mask in range(16)]


@st.composite
def groups(draw, *, equal=False, rivals=True, fewest=0):
    """Members in any order with any claims, also to what is not there, and partition counts."""
    names = draw(st.lists(st.sampled_from("abcde"), unique=True, min_size=fewest))
    instances = draw(st.permutations([None, None, "i1", "i2", "i3"]))
    reads = draw(st.sampled_from(SUBSETS))
    members, left = [], {*ALL_PLACES}
    for name, instance in zip(names, instances, strict=False):
        topics = reads if equal else draw(st.sampled_from(SUBSETS))
        owned = draw(st.lists(st.sampled_from(ALL_PLACES), unique=True, max_size=8))
        if not rivals:
            owned = [tp for tp in owned if tp in left]
            left -= {*owned}
        members.append(
            Member(name, tuple(topics), instance, tuple(owned), draw(st.integers(-1, 2)))
        )
    return members, {topic: draw(st.integers(0, 7)) for topic in draw(st.sampled_from(SUBSETS))}


def readable(members, counts):
    """All that somebody reads, in order."""
    topics = {topic for each in members for topic in each.topics}
    return sorted(
        TopicPartition(topic, number) for topic in topics for number in range(counts.get(topic, 0))
    )


def given_out(assignment):
    return sorted(tp for tps in assignment.values() for tp in tps)


def sizes(assignment):
    return [len(tps) for tps in assignment.values()]


@every_assignor
@at_leisure
@given(groups())
def test_everything_is_given_once_in_order_and_to_a_reader(assign, drawn):
    members, counts = drawn
    found = assign(members, counts)
    assert found.keys() == {each.member_id for each in members}
    assert all(tps == sorted(tps) for tps in found.values())
    assert all(tp.topic in each.topics for each in members for tp in found[each.member_id])
    if assign is assign_cooperative_sticky:
        assert set(given_out(found)) <= set(readable(members, counts))
        assert max(Counter(given_out(found)).values(), default=1) == 1
    else:
        assert given_out(found) == readable(members, counts)


@every_assignor
@at_leisure
@given(groups(), st.randoms(use_true_random=False))
def test_the_order_in_which_members_and_their_words_come_does_not_matter(assign, drawn, dice):
    members, counts = drawn
    other = [
        each._replace(
            topics=tuple(dice.sample(each.topics, len(each.topics))),
            owned=tuple(dice.sample(each.owned, len(each.owned))),
        )
        for each in dice.sample(members, len(members))
    ]
    turned = dict(reversed(counts.items()))
    assert assign(other, turned) == assign(members, counts)


def sticky_by_the_rule(members, counts):
    """Kafka's rule for equal subscriptions, step by step."""
    everything = readable(members, counts)
    least, extra = divmod(len(everything), len(members))
    most = least + (extra > 0)
    found, under, exactly, at_most = {}, [], [], 0
    for each in sorted(members, key=lambda one: one.member_id):
        others = [one for one in members if one is not each]
        kept = sorted((number, topic) for topic, number in {*each.owned} & {*everything})
        kept = [TopicPartition(topic, number) for number, topic in kept]
        for other in others:
            if other.generation >= each.generation:
                kept = [tp for tp in kept if tp not in other.owned]
        if len(kept) < least:
            under.append(each.member_id)
        elif len(kept) >= most and at_most < extra:
            kept, at_most = kept[:most], at_most + 1
        else:
            kept = kept[:least]
            exactly.append(each.member_id)
        found[each.member_id] = kept
    if at_most == extra:
        exactly.clear()
    free = [tp for tp in everything if tp not in given_out(found)]
    while under:
        for member_id in list(under):
            found[member_id].append(free.pop(0))
            if len(found[member_id]) == least:
                under.remove(member_id)
                exactly.append(member_id)
    for tp in free:
        found[exactly.pop(0)].append(tp)
    return {member_id: sorted(tps) for member_id, tps in found.items()}


@at_leisure
@given(groups(equal=True, fewest=1))
def test_sticky_follows_the_rule_for_equal_subscriptions(drawn):
    found = assign_sticky(*drawn)
    assert found == sticky_by_the_rule(*drawn)
    assert max(sizes(found)) - min(sizes(found)) <= 1


@at_leisure
@given(groups())
def test_sticky_leaves_nobody_two_more_than_who_could_have_them(drawn):
    members, counts = drawn
    found = assign_sticky(members, counts)
    for one in members:
        for other in members:
            may_have = {tp for tp in found[one.member_id] if tp.topic in other.topics}
            if may_have:
                assert len(found[one.member_id]) <= len(found[other.member_id]) + 1


@both_sticky
@at_leisure
@given(st.one_of(groups(), groups(equal=True)))
def test_sticky_moves_nothing_when_nothing_changed(assign, drawn):
    members, counts = drawn
    found = assign_sticky(members, counts)
    assert assign(rejoined(members, found), counts) == found


@at_leisure
@given(groups(equal=True, fewest=1))
def test_one_who_joins_gets_the_least_that_is_even_and_nothing_else_moves(drawn):
    members, counts = drawn
    before = assign_sticky(members, counts)
    for name in ("0", "cc", "z"):
        newcomer = Member(name, members[0].topics)
        after = assign_sticky([newcomer, *rejoined(members, before)], counts)
        assert len(after[name]) == len(readable(members, counts)) // (len(members) + 1)
        assert all(set(after[each]) <= set(before[each]) for each in before)


@at_leisure
@given(groups(equal=True, fewest=2))
def test_who_stays_keeps_all_when_one_leaves(drawn):
    members, counts = drawn
    before = assign_sticky(members, counts)
    after = assign_sticky(rejoined(members, before)[1:], counts)
    assert all(set(after[each]) >= set(before[each]) for each in after)


@at_leisure
@given(groups(rivals=False))
def test_cooperative_is_sticky_less_what_another_live_member_owns(drawn):
    members, counts = drawn
    whole, found = assign_sticky(members, counts), assign_cooperative_sticky(members, counts)
    for each in members:
        elsewhere = {tp for other in members if other is not each for tp in other.owned}
        mine = [tp for tp in whole[each.member_id] if tp not in elsewhere]
        assert found[each.member_id] == mine


@pytest.mark.parametrize(("equal", "rounds"), [(True, 2), (False, 3)])
@at_leisure
@given(data=st.data())
def test_cooperative_comes_to_rest_with_everything_given_out(equal, rounds, data):
    members, counts = data.draw(groups(equal=equal))
    found = {}
    for _ in range(rounds):
        found = assign_cooperative_sticky(members, counts)
        members = rejoined(members, found)
    assert assign_cooperative_sticky(members, counts) == found
    assert given_out(found) == readable(members, counts)
